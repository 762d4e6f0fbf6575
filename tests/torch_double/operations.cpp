// SPDX-License-Identifier: Apache-2.0
// Which operations run as the CPU's kernel, late.
#include "tests/torch_double/fallback.h"

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <optional>
#include <tuple>

namespace stepwell::torch_double {
namespace {

using torch::CppFunction;

// Convolutions of other devices have names of their own, which the CPU has no kernels for.
void convolution(const c10::OperatorHandle &, torch::jit::Stack *stack)
{
    static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::convolution", "");
    fallback(op, stack);
}

void convolution_backward(const c10::OperatorHandle &, torch::jit::Stack *stack)
{
    constexpr size_t kArguments = 10, kAfterTensors = 7;
    static const auto op =
        c10::Dispatcher::singleton().findSchemaOrThrow("aten::convolution_backward", "");
    const at::Tensor gradient = torch::jit::peek(*stack, 0, kArguments).toTensor();
    stack->insert(stack->end() - kAfterTensors,
                  c10::IValue(std::vector<int64_t>{gradient.size(1)}));  // sizes of the bias
    fallback(op, stack);
}

// The CPU's kernel draws from the generator of the CPU.
std::tuple<at::Tensor, at::Tensor> native_dropout(const at::Tensor &input, double dropped,
                                                  std::optional<bool> trains)
{
    const at::Tensor mask = at::empty(input.sizes(), input.options().dtype(at::kBool));
    if (!trains.value_or(true)) return {input.clone(), mask.fill_(true)};
    const double kept = 1 - dropped;
    mask.bernoulli_(kept);
    return {input.mul(mask).mul_(kept == 0 ? 0 : 1 / kept), mask};
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m)
{
    m.fallback(CppFunction::makeFromBoxedFunction<&fallback>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m)
{
    m.impl("convolution_overrideable", CppFunction::makeFromBoxedFunction<&convolution>());
    m.impl("convolution_backward_overrideable",
           CppFunction::makeFromBoxedFunction<&convolution_backward>());
    m.impl("native_dropout", native_dropout);
    // Else composed of others, whose bits are not those of the CPU's kernel.
    for (const char *name : {"_stack", "_stack.out", "addr", "addr.out", "mish_backward",
                             "native_group_norm", "native_layer_norm", "silu_backward"})
        m.impl(name, CppFunction::makeFromBoxedFunction<&fallback>());
}

}  // namespace
}  // namespace stepwell::torch_double
