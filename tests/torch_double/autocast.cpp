// SPDX-License-Identifier: Apache-2.0
// Autocast casts what it casts for CUDA: the lists are PyTorch's own.
#include <ATen/autocast_mode.h>
#include <torch/library.h>

namespace stepwell::torch_double {
namespace {

using at::IntArrayRef;  // as the lists name them
using at::Scalar;
using at::ScalarType;
using at::Tensor;

at::Tensor refuse_binary_cross_entropy(const at::Tensor &, const at::Tensor &,
                                       const std::optional<at::Tensor> &, int64_t)
{
    TORCH_CHECK(false, "torch.nn.functional.binary_cross_entropy and torch.nn.BCELoss are unsafe "
                       "to autocast.");
}

// clang-format off
#define STW_LOWER(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, lower_precision_fp)
#define STW_FP32(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32)
#define STW_FP32_DTYPE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, fp32_set_opt_dtype)
#define STW_PROMOTE(...) KERNEL_PRIVATEUSEONE(__VA_ARGS__, promote)
#define STW_FP32_APPENDED(...) KERNEL_DIFFERENT_REDISPATCH_SIGNATURE_PRIVATEUSEONE(__VA_ARGS__)

TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m)
{
    m.fallback(torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m)
{
    AT_FORALL_LOWER_PRECISION_FP(STW_LOWER)
    AT_FORALL_FP32(STW_FP32)
    AT_FORALL_FP32_SET_OPT_DTYPE(STW_FP32_DTYPE)
    AT_FORALL_DIFFERENT_REDISPATCH_SIGNATURE(STW_FP32_APPENDED)
    AT_FORALL_PROMOTE(STW_PROMOTE)
    m.impl("binary_cross_entropy", refuse_binary_cross_entropy);
}
// clang-format on

}  // namespace
}  // namespace stepwell::torch_double
