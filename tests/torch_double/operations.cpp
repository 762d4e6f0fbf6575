// SPDX-License-Identifier: Apache-2.0
// Which operations run as the CPU's kernel, late.
#include "tests/torch_double/fallback.h"

#include <torch/library.h>

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

TORCH_LIBRARY_IMPL(_, PrivateUse1, m)
{
    m.fallback(CppFunction::makeFromBoxedFunction<&fallback>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m)
{
    m.impl("convolution_overrideable", CppFunction::makeFromBoxedFunction<&convolution>());
    m.impl("convolution_backward_overrideable",
           CppFunction::makeFromBoxedFunction<&convolution_backward>());
    // Else composed of others, whose bits are not those of the CPU's kernel.
    for (const char *name : {"_stack", "_stack.out", "addr", "addr.out", "mish_backward",
                             "native_group_norm", "native_layer_norm", "silu_backward"})
        m.impl(name, CppFunction::makeFromBoxedFunction<&fallback>());
}

}  // namespace
}  // namespace stepwell::torch_double
