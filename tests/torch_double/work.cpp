// SPDX-License-Identifier: Apache-2.0
#include "tests/torch_double/work.h"

#include "tests/torch_double/products.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <mutex>
#include <set>

namespace stepwell::torch_double {
namespace {

constexpr uint64_t kRunsMax = 64;

std::mutex failure_mutex;
std::string failure;

void keep_failure(const std::string &text)
{
    const std::lock_guard<std::mutex> lock(failure_mutex);
    if (failure.empty()) failure = text;
}

// The double keeps the names of operations.
const char *lasting(const std::string &name)
{
    static std::mutex mutex;
    static auto *names = new std::set<std::string>;
    const std::lock_guard<std::mutex> lock(mutex);
    return names->insert(name).first->c_str();
}

void keep_result(const at::Tensor &room, const at::Tensor &result)
{
    TORCH_CHECK(room.sizes() == result.sizes() && room.scalar_type() == result.scalar_type(),
                "the form of a result on the CPU is ", result.sizes(), " of ", result.scalar_type(),
                ", and on the meta device ", room.sizes(), " of ", room.scalar_type());
    room.copy_(result);
}

void run(Work *work, stw_double_alias_of alias)
{
    const at::AutoDispatchBelowADInplaceOrView below;
    const at::DisableRecordFunctionGuard unobserved;
    std::vector<at::Tensor> tensors;
    for (const Operand &each : work->operands)
        tensors.push_back(each.is_result ? at::empty({0}, at::TensorOptions().dtype(each.dtype))
                                         : each.on_host(alias));
    torch::jit::Stack stack = work->arguments;
    for (const Place &place : work->places) stack[place.argument] = place.filled(tensors);
    work->op.callBoxed(&stack);
    for (size_t i = 0; i < tensors.size(); ++i)
        if (work->operands[i].is_result) keep_result(work->operands[i].on_host(alias), tensors[i]);
    if (work->returned_out != nullptr) {
        *work->returned_out = std::move(stack);
        return;
    }
    const std::vector<at::Tensor> results = tensors_of(stack);
    for (size_t i = 0; i < work->results.size() && i < results.size(); ++i)
        if (work->results[i] >= 0 && results[i].defined())
            keep_result(tensors[static_cast<size_t>(work->results[i])], results[i]);
}

// On the thread of the double.
void run_and_drop(void *user, stw_double_alias_of alias)
{
    const std::unique_ptr<Work> work(static_cast<Work *>(user));
    try {
        run(work.get(), alias);
    } catch (const c10::Error &error) {
        keep_failure(work->name + ": " + error.what_without_backtrace());
    } catch (const std::exception &error) {
        keep_failure(work->name + ": " + error.what());
    }
}

bool is_number(const at::Tensor &tensor)
{
    return tensor.unsafeGetTensorImpl()->is_wrapped_number();
}

}  // namespace

// A host tensor is read when the operation is enqueued, as the arguments of a launch are.
Operand::Operand(const at::Tensor &of, bool writes_it)
    : address(is_late(of) ? address_of(of) : 0),
      sizes(of.sizes().vec()),
      strides(of.strides().vec()),
      dtype(of.scalar_type()),
      conjugated(of.is_conj()),
      negative(of.is_neg()),
      writes(writes_it),
      host(is_late(of) ? at::Tensor() : of.detach().clone())
{
    // A number of the program's, whose type does not decide that of a result.
    if (host.defined() && host.dim() == 0)
        host.unsafeGetTensorImpl()->set_wrapped_number(is_number(of));
}

uint64_t Operand::bytes_of(c10::IntArrayRef sizes, c10::IntArrayRef strides, at::ScalarType dtype)
{
    uint64_t last = 0;
    for (size_t i = 0; i < sizes.size(); ++i) {
        if (sizes[i] == 0) return 0;
        last += static_cast<uint64_t>(sizes[i] - 1) * static_cast<uint64_t>(strides[i]);
    }
    return (last + 1) * c10::elementSize(dtype);
}

void Operand::add_ranges(std::vector<stw_double_range> *ranges_out) const
{
    if (bytes() == 0) return;
    std::vector<std::pair<uint64_t, uint64_t>> steps;  // in bytes, and how many
    for (size_t i = 0; i < sizes.size(); ++i)
        if (sizes[i] > 1 && strides[i] > 0)
            steps.emplace_back(static_cast<uint64_t>(strides[i]) * c10::elementSize(dtype),
                               static_cast<uint64_t>(sizes[i]));
    std::sort(steps.begin(), steps.end());
    uint64_t run = c10::elementSize(dtype);
    auto outer = steps.begin();
    for (; outer != steps.end() && outer->first <= run; ++outer)
        run += (outer->second - 1) * outer->first;
    uint64_t count = 1;
    for (auto step = outer; step != steps.end(); ++step) count *= step->second;
    if (count > kRunsMax) return ranges_out->push_back({address, bytes(), writes, 0});
    for (uint64_t i = 0; i < count; ++i) {
        uint64_t offset = 0, rest = i;
        for (auto step = outer; step != steps.end(); ++step) {
            offset += rest % step->second * step->first;
            rest /= step->second;
        }
        ranges_out->push_back({address + offset, run, writes, 0});
    }
}

at::Tensor Operand::on_host(stw_double_alias_of alias) const
{
    if (host.defined()) return host;
    const auto options = at::TensorOptions().dtype(dtype);
    at::Tensor tensor = bytes() == 0 ? at::empty_strided(sizes, strides, options)
                                     : at::from_blob(alias(address), sizes, strides, options);
    tensor._set_conj(conjugated);
    tensor._set_neg(negative);
    return tensor;
}

c10::IValue Place::filled(const std::vector<at::Tensor> &tensors) const
{
    const auto of = [&](int number) {
        return number < 0 ? at::Tensor() : tensors[static_cast<size_t>(number)];
    };
    if (kind == kTensor) return of(numbers[0]);
    if (kind == kList) {
        c10::List<at::Tensor> list;
        for (const int number : numbers) list.push_back(of(number));
        return list;
    }
    c10::List<std::optional<at::Tensor>> list;
    for (const int number : numbers)
        list.push_back(number < 0 ? std::optional<at::Tensor>() : of(number));
    return list;
}

std::vector<at::Tensor> tensors_of(const std::vector<c10::IValue> &values)
{
    std::vector<at::Tensor> all;
    for (const c10::IValue &value : values) {
        if (value.isTensor()) all.push_back(value.toTensor());
        if (value.isTensorList())
            for (const at::Tensor &each : value.toTensorVector()) all.push_back(each);
    }
    return all;
}

void enqueue(std::unique_ptr<Work> work)
{
    std::vector<stw_double_range> ranges;
    for (const Operand &each : work->operands)
        if (!each.host.defined()) each.add_ranges(&ranges);
    const char *name = lasting(work->name);
    const auto count = static_cast<uint32_t>(ranges.size());
    enter();
    if (const uint64_t ns = product_ns(*work); ns > 0)
        check(stw_double_compute(current_handle(), ns), name);
    check(stw_double_consume(current_handle(), name, ranges.data(), count, &run_and_drop,
                             work.release()),
          name);
}

void throw_failure()
{
    const std::lock_guard<std::mutex> lock(failure_mutex);
    if (failure.empty()) return;
    const std::string text = std::exchange(failure, {});
    TORCH_CHECK(false, "late: ", text);
}

}  // namespace stepwell::torch_double
