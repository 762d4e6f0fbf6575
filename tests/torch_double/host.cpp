// SPDX-License-Identifier: Apache-2.0
// What the host reads and writes itself: operations on tensors of the CPU touch their bytes now,
// and the double judges whether the host knew that a copy from or to them was over.
#include "tests/torch_double/work.h"

#include <ATen/record_function.h>

#include <unordered_map>

namespace stepwell::torch_double {
namespace {

// What operations of one name do to their arguments.
struct Touches {
    bool any = true;  // false: they look at forms alone
    std::vector<bool> writes;
};

Touches touches_of(const c10::OperatorHandle &op)
{
    static const std::vector<std::string> kForms{
        "aten::empty_like",     "aten::is_pinned", "aten::new_empty", "aten::new_empty_strided",
        "aten::requires_grad_", "aten::resize_",   "aten::set_",      "aten::set_data",
    };
    const c10::FunctionSchema &schema = op.schema();
    Touches touches;
    touches.any = !op.hasTag(at::Tag::inplace_view);
    for (const std::string &name : kForms) touches.any &= schema.name() != name;
    for (const c10::Argument &each : schema.returns())  // a view reads nothing
        touches.any &= each.alias_info() == nullptr || each.alias_info()->isWrite();
    // What returns numbers looks at sizes and flags, but for two.
    static const auto is_number = [](const c10::Argument &each) {
        return each.type()->kind() != c10::TypeKind::TensorType &&
               each.type()->kind() != c10::TypeKind::ListType;
    };
    if (schema.name() != "aten::_local_scalar_dense" && schema.name() != "aten::equal")
        for (const c10::Argument &each : schema.returns()) touches.any &= !is_number(each);
    for (const c10::Argument &each : schema.arguments())
        touches.writes.push_back(each.alias_info() != nullptr && each.alias_info()->isWrite());
    return touches;
}

const Touches &touches_of(const c10::OperatorName &name)
{
    thread_local std::unordered_map<c10::OperatorName, Touches> known;
    const auto found = known.find(name);
    if (found != known.end()) return found->second;
    const auto op = c10::Dispatcher::singleton().findSchema(name);
    return known.emplace(name, op ? touches_of(*op) : Touches{false, {}}).first->second;
}

template <typename Visit> void each_tensor(const c10::IValue &value, Visit visit)
{
    if (value.isTensor() && value.toTensor().defined()) visit(value.toTensor());
    if (value.isTensorList())
        for (const at::Tensor &each : value.toTensorVector())
            if (each.defined()) visit(each);
}

void touch(const at::Tensor &tensor, bool writes)
{
    if (!tensor.is_cpu() || !tensor.has_storage() || tensor.numel() == 0) return;
    const auto address = reinterpret_cast<uint64_t>(tensor.const_data_ptr());
    const uint64_t bytes =
        Operand::bytes_of(tensor.sizes(), tensor.strides(), tensor.scalar_type());
    if (writes)
        stw_double_host_writes(address, bytes);
    else
        stw_double_host_reads(address, bytes);
}

std::unique_ptr<at::ObserverContext> observe(const at::RecordFunction &function)
{
    if (is_forked()) return nullptr;
    bool on_host = false;
    for (const c10::IValue &value : function.inputs()) {
        bool here = value.isDevice() && value.toDevice().type() == kDevice.type();
        each_tensor(value, [&](const at::Tensor &each) {
            here |= is_late(each);
            on_host |= each.is_cpu();
        });
        if (here) return nullptr;  // a copy, which the driver sees
    }
    const auto name = function.operator_name();
    if (!on_host || !name) return nullptr;
    const Touches &touches = touches_of(*name);
    if (!touches.any) return nullptr;
    for (size_t i = 0; i < function.inputs().size(); ++i)
        each_tensor(function.inputs()[i], [&](const at::Tensor &each) {
            touch(each, i < touches.writes.size() && touches.writes[i]);
        });
    return nullptr;
}

const bool observed = [] {
    at::addGlobalCallback(
        at::RecordFunctionCallback(&observe).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
    return true;
}();

}  // namespace
}  // namespace stepwell::torch_double
