// SPDX-License-Identifier: Apache-2.0
#include "tests/torch_double/fallback.h"

#include "tests/torch_double/forms.h"
#include "tests/torch_double/generator.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>

#include <algorithm>
#include <mutex>
#include <optional>

namespace stepwell::torch_double {
namespace {

using torch::jit::Stack;

std::mutex counts_mutex;
Counts counts;

// Operations that take tensors of the CPU beside those of the device; others take numbers alone.
bool takes_host_tensors(const std::string &name)
{
    return name == "aten::index" || name == "aten::_index_put_impl_" ||
           name == "aten::_pack_padded_sequence";
}

bool draws_random_numbers(const c10::OperatorHandle &op)
{
    return op.hasTag(at::Tag::nondeterministic_seeded) &&
           op.schema().name() != "aten::_scaled_dot_product_flash_attention_for_cpu";
}

at::Tensor empty_like_on(const at::Tensor &form, c10::Device device)
{
    return at::empty_strided(form.sizes(), form.strides(), form.options().device(device));
}

// A tensor, or a list of them, of the meta device, that nobody else knows.
c10::IValue form_of(const c10::IValue &value)
{
    const auto of = [](const at::Tensor &tensor) {
        return tensor.defined() ? empty_like_on(tensor, at::kMeta) : at::Tensor();
    };
    if (value.isTensor()) return of(value.toTensor());
    if (!value.isTensorList()) return value;
    c10::List<at::Tensor> list;
    for (const at::Tensor &each : value.toTensorVector()) list.push_back(of(each));
    return list;
}

// One call of an operation.
class Call {
public:
    Call(const c10::OperatorHandle &op, const Stack &stack);
    Stack run();

private:
    int add(const at::Tensor &tensor, const c10::Argument &argument);
    void add_argument(size_t index, const c10::Argument &argument);
    void draw(size_t index);
    // The argument that a result is; -1: it is new.
    int argument_of(const c10::Argument &returned) const;
    bool makes_tensors() const;
    at::Tensor meta_of(size_t operand) const;
    std::shared_ptr<const Forms> forms();
    std::shared_ptr<const Forms> forms_of_metas();
    void resize(const std::vector<std::vector<int64_t>> &sizes);
    c10::IValue room_for(const c10::IValue &form);
    at::Tensor room_for_tensor(const at::Tensor &form);
    Stack enqueue_late(const Forms &forms);
    Stack wait();

    const c10::FunctionSchema &schema_;
    std::vector<c10::IValue> given_;
    std::vector<at::Tensor> tensors_;  // of the operands, while this call lasts
    std::unique_ptr<Work> work_;
};

Call::Call(const c10::OperatorHandle &op, const Stack &stack)
    : schema_(op.schema()), work_(std::make_unique<Work>(op))
{
    const size_t count = schema_.arguments().size();
    given_.assign(stack.end() - static_cast<std::ptrdiff_t>(count), stack.end());
    work_->arguments = given_;
    for (size_t i = 0; i < count; ++i) add_argument(i, schema_.arguments()[i]);
    // The generator of the CPU is not to be drawn from late.
    TORCH_CHECK_NOT_IMPLEMENTED(
        schema_.argumentIndexWithName("generator") || !draws_random_numbers(op),
        "late: ", work_->name, " draws random numbers of no generator that it is given");
}

int Call::add(const at::Tensor &tensor, const c10::Argument &argument)
{
    if (!tensor.defined()) return -1;
    const bool writes = argument.alias_info() != nullptr && argument.alias_info()->isWrite();
    for (size_t i = 0; i < tensors_.size(); ++i)
        if (tensors_[i].is_same(tensor)) {
            work_->operands[i].writes |= writes;
            work_->operands[i].is_result &= argument.is_out();
            return static_cast<int>(i);
        }
    TORCH_CHECK(is_late(tensor) || (tensor.is_cpu() && !writes &&
                                    (tensor.dim() == 0 || takes_host_tensors(work_->name))),
                "Expected all tensors to be on the same device, but ", work_->name,
                " found at least two devices, late:0 and ", tensor.device(), "!");
    tensors_.push_back(tensor);
    work_->operands.emplace_back(tensor, writes);
    work_->operands.back().is_result = argument.is_out();
    return static_cast<int>(tensors_.size() - 1);
}

void Call::add_argument(size_t index, const c10::Argument &argument)
{
    c10::IValue &value = work_->arguments[index];
    Place place{index, Place::kTensor, {}};
    if (value.isTensor()) {
        place.numbers = {add(value.toTensor(), argument)};
    } else if (value.isTensorList()) {
        place.kind = Place::kList;
        for (const at::Tensor &each : value.toTensorVector())
            place.numbers.push_back(add(each, argument));
    } else if (value.isOptionalTensorList()) {
        place.kind = Place::kOptionals;
        for (const auto &each : value.toOptionalTensorVector())
            place.numbers.push_back(each ? add(*each, argument) : -1);
    } else {
        if (value.isDevice()) value = c10::Device(at::kCPU);
        if (argument.name() == "generator") draw(index);
        return;
    }
    value = {};  // what is enqueued keeps no memory
    work_->places.push_back(std::move(place));
}

void Call::draw(size_t index)
{
    c10::IValue &value = work_->arguments[index];
    at::Generator generator = value.isNone() ? LateGenerator::of_device() : value.toGenerator();
    TORCH_CHECK(generator.device().type() == kDevice.type(),
                "Expected a 'late' device type for generator but found '", generator.device(), "'");
    value = generator.get<LateGenerator>()->next();
}

int Call::argument_of(const c10::Argument &returned) const
{
    if (returned.alias_info() == nullptr) return -1;
    TORCH_CHECK(returned.alias_info()->isWrite(), "late: ", work_->name, " returns a view");
    const auto &arguments = schema_.arguments();
    for (size_t i = 0; i < arguments.size(); ++i)
        if (arguments[i].alias_info() != nullptr &&
            arguments[i].alias_info()->beforeSets() == returned.alias_info()->beforeSets())
            return static_cast<int>(i);
    return -1;
}

bool Call::makes_tensors() const
{
    const auto &all = schema_.returns();
    return std::any_of(all.begin(), all.end(),
                       [&](const c10::Argument &each) { return argument_of(each) < 0; });
}

at::Tensor Call::meta_of(size_t operand) const
{
    const at::Tensor &tensor = tensors_[operand];
    if (!work_->operands[operand].is_result) return empty_like_on(tensor, at::kMeta);
    return at::empty({0}, tensor.options().device(at::kMeta));
}

// Nothing: the bytes decide, or there is no kernel for meta tensors; and what is wrong with the
// arguments the CPU's kernel says best.
std::shared_ptr<const Forms> Call::forms()
{
    if (has_other_forms(work_->name)) return nullptr;
    const std::optional<std::string> key = key_of_forms(*work_);
    std::shared_ptr<const Forms> forms = key ? remembered_forms(*key) : nullptr;
    if (forms == nullptr) {
        forms = forms_of_metas();
        if (key && forms != nullptr) remember_forms(*key, forms);
    }
    return forms;
}

std::shared_ptr<const Forms> Call::forms_of_metas()
{
    std::vector<at::Tensor> metas;
    for (size_t i = 0; i < tensors_.size(); ++i)
        metas.push_back(work_->operands[i].host.defined() ? tensors_[i] : meta_of(i));
    Stack stack = work_->arguments;
    for (const Place &place : work_->places) stack[place.argument] = place.filled(metas);
    for (c10::IValue &value : stack) {
        if (value.isDevice()) value = c10::Device(at::kMeta);
        if (value.isGenerator()) value = {};
    }
    try {
        work_->op.callBoxed(&stack);
        correct_forms(work_->op, given_, &stack);
    } catch (const std::exception &) {
        if (makes_tensors()) return nullptr;
        stack.clear();
    }
    auto forms = std::make_shared<Forms>();
    for (size_t i = 0; i < stack.size(); ++i)
        forms->results.push_back(argument_of(schema_.returns()[i]) < 0 ? form_of(stack[i])
                                                                       : c10::IValue());
    for (size_t i = 0; i < tensors_.size(); ++i)
        forms->sizes.push_back(stack.empty() ? work_->operands[i].sizes : metas[i].sizes().vec());
    return forms;
}

// Tensors for results that the program gave, and that were too small.
void Call::resize(const std::vector<std::vector<int64_t>> &sizes)
{
    for (size_t i = 0; i < tensors_.size(); ++i) {
        const Operand &operand = work_->operands[i];
        if (!operand.writes || tensors_[i].sizes() == sizes[i]) continue;
        tensors_[i].resize_(sizes[i]);
        const bool is_result = operand.is_result;
        work_->operands[i] = Operand(tensors_[i], true);
        work_->operands[i].is_result = is_result;
    }
}

at::Tensor Call::room_for_tensor(const at::Tensor &form)
{
    if (!form.defined()) {
        work_->results.push_back(-1);
        return {};
    }
    at::Tensor made = empty_like_on(form, kDevice);
    work_->operands.emplace_back(made, true);
    work_->results.push_back(static_cast<int>(work_->operands.size() - 1));
    return made;
}

c10::IValue Call::room_for(const c10::IValue &form)
{
    if (form.isTensor()) return room_for_tensor(form.toTensor());
    if (!form.isTensorList()) return form;
    c10::List<at::Tensor> list;
    for (const at::Tensor &each : form.toTensorVector()) list.push_back(room_for_tensor(each));
    return list;
}

Stack Call::enqueue_late(const Forms &forms)
{
    resize(forms.sizes);
    Stack results;
    for (size_t i = 0; i < schema_.returns().size(); ++i) {
        const int argument = argument_of(schema_.returns()[i]);
        if (argument < 0) {
            results.push_back(room_for(forms.results.at(i)));
            continue;
        }
        results.push_back(given_[static_cast<size_t>(argument)]);
        work_->results.insert(work_->results.end(), tensors_of({results.back()}).size(), -1);
    }
    {
        const std::lock_guard<std::mutex> lock(counts_mutex);
        ++counts.late;
    }
    enqueue(std::move(work_));
    return results;
}

Stack Call::wait()
{
    Stack returned;
    work_->returned_out = &returned;
    {
        const std::lock_guard<std::mutex> lock(counts_mutex);
        counts.waited.push_back(work_->name);
    }
    enqueue(std::move(work_));
    STW_LATE_CALL(cuStreamSynchronize, current_handle());
    throw_failure();
    Stack results;
    for (size_t i = 0; i < schema_.returns().size(); ++i) {
        const int argument = argument_of(schema_.returns()[i]);
        c10::IValue value = argument < 0 ? returned.at(i) : given_[static_cast<size_t>(argument)];
        if (argument < 0 && value.isTensor() && value.toTensor().defined())
            value = value.toTensor().to(kDevice);
        if (argument < 0 && value.isTensorList()) {
            c10::List<at::Tensor> list;
            for (const at::Tensor &each : value.toTensorVector()) list.push_back(each.to(kDevice));
            value = list;
        }
        results.push_back(std::move(value));
    }
    return results;
}

Stack Call::run()
{
    const std::shared_ptr<const Forms> known = forms();
    return known != nullptr ? enqueue_late(*known) : wait();
}

}  // namespace

void fallback(const c10::OperatorHandle &op, Stack *stack)
{
    throw_failure();
    TORCH_CHECK_NOT_IMPLEMENTED(op.hasComputedKernelForDispatchKey(c10::DispatchKey::CPU),
                                "late: the CPU has no kernel of ", op.schema().name());
    const at::AutoDispatchBelowADInplaceOrView below;
    Stack results = Call(op, *stack).run();
    torch::jit::drop(*stack, op.schema().arguments().size());
    for (c10::IValue &each : results) stack->push_back(std::move(each));
}

Counts take_counts()
{
    const std::lock_guard<std::mutex> lock(counts_mutex);
    return std::exchange(counts, {});
}

}  // namespace stepwell::torch_double
