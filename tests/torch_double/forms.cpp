// SPDX-License-Identifier: Apache-2.0
#include "tests/torch_double/forms.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <mutex>
#include <unordered_map>

namespace stepwell::torch_double {

namespace {

constexpr size_t kRememberedMax = 4096;

std::mutex remembered_mutex;
auto &remembered = *new std::unordered_map<std::string, std::shared_ptr<const Forms>>;

class Key {
public:
    template <typename Plain> void add(const Plain &value)
    {
        bytes_.append(reinterpret_cast<const char *>(&value), sizeof value);
    }
    template <typename Plain> void add_all(const std::vector<Plain> &values)
    {
        add(values.size());
        for (const Plain &each : values) add(each);
    }
    void add(const Operand &operand)
    {
        add_all(operand.sizes);
        add_all(operand.strides);
        add(operand.dtype);
        const bool on_host = operand.host.defined();
        const bool is_number = on_host && operand.host.unsafeGetTensorImpl()->is_wrapped_number();
        for (const bool flag :
             {operand.conjugated, operand.negative, operand.is_result, on_host, is_number})
            add(flag);
    }
    // False: not of a kind that is known here.
    bool add(const c10::IValue &value)
    {
        if (value.isInt()) return add_tagged('i', value.toInt());
        if (value.isBool()) return add_tagged('b', value.toBool());
        if (value.isDouble()) return add_tagged('d', value.toDouble());
        if (value.isString()) {
            add_tagged('s', value.toStringRef().size());
            bytes_ += value.toStringRef();
            return true;
        }
        if (!value.isList()) return add_tagged('n', false) && has_no_say(value);
        add_tagged('l', value.toListRef().size());
        for (const c10::IValue &each : value.toListRef())
            if (!add(each)) return false;
        return true;
    }
    std::string take() { return std::move(bytes_); }

private:
    template <typename Plain> bool add_tagged(char tag, const Plain &value)
    {
        add(tag);
        add(value);
        return true;
    }
    static bool has_no_say(const c10::IValue &value)
    {
        return value.isNone() || value.isGenerator() || value.isDevice();
    }

    std::string bytes_;
};

}  // namespace

std::optional<std::string> key_of_forms(const Work &work)
{
    Key key;
    key.add(&work.op.schema());
    key.add(c10::get_default_dtype_as_scalartype());
    key.add(work.operands.size());
    for (const Operand &each : work.operands) key.add(each);
    for (const Place &each : work.places) {
        key.add(each.argument);
        key.add_all(each.numbers);
    }
    for (const c10::IValue &each : work.arguments)
        if (!key.add(each)) return std::nullopt;
    return key.take();
}

std::shared_ptr<const Forms> remembered_forms(const std::string &key)
{
    const std::lock_guard<std::mutex> lock(remembered_mutex);
    const auto found = remembered.find(key);
    return found != remembered.end() ? found->second : nullptr;
}

void remember_forms(const std::string &key, std::shared_ptr<const Forms> forms)
{
    const std::lock_guard<std::mutex> lock(remembered_mutex);
    if (remembered.size() >= kRememberedMax) remembered.clear();
    remembered[key] = std::move(forms);
}

bool has_other_forms(const std::string &name)
{
    return name == "aten::_embedding_bag" || name == "aten::_embedding_bag_forward_only";
}

// The CPU's statistics of a normalization have the type of its parameters, and outside of training
// of batches there are none.
void correct_forms(const c10::OperatorHandle &op, const std::vector<c10::IValue> &arguments,
                   std::vector<c10::IValue> *forms)
{
    const std::string &name = op.schema().name();
    const bool of_batches =
        name.find("batch_norm") != std::string::npos && name.find("backward") == std::string::npos;
    if (!of_batches && name != "aten::native_layer_norm") return;
    const at::ScalarType of_input = arguments[0].toTensor().scalar_type();
    at::ScalarType type = of_input;
    for (const c10::IValue &each : arguments)
        if (each.isTensor() && each.toTensor().defined() && type == of_input)
            type = each.toTensor().scalar_type();
    const auto training = op.schema().argumentIndexWithName("training");
    const bool trains = !training || arguments[static_cast<size_t>(*training)].toBool();
    for (const size_t i : {1, 2}) {
        const at::Tensor form = (*forms)[i].toTensor().to(type);
        (*forms)[i] = of_batches && !trains ? at::empty({0}, form.options()) : form;
    }
}

}  // namespace stepwell::torch_double
