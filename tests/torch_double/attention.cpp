// SPDX-License-Identifier: Apache-2.0
// Scaled dot product attention. The CPU has a fused form, and takes it where it can; so does this
// device, by the name that PyTorch has for fused forms of other backends.
#include "tests/torch_double/device.h"

#include <ATen/SDPBackend.h>
#include <ATen/native/transformers/attention.h>
#include <ATen/ops/_fused_sdp_choice_native.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward.h>
#include <torch/library.h>

#include <tuple>

namespace stepwell::torch_double {
namespace {

using at::Tensor;
using c10::SymInt;
using std::optional;

int64_t choose(const Tensor &query, const Tensor &key, const Tensor &value,
               const optional<Tensor> &mask, double dropout, bool causal, optional<double> scale,
               bool grouped)
{
    const auto on_cpu = static_cast<at::SDPBackend>(at::native::_fused_sdp_choice_cpp(
        query, key, value, mask, dropout, causal, scale, grouped));
    return static_cast<int64_t>(on_cpu == at::SDPBackend::flash_attention
                                    ? at::SDPBackend::overrideable
                                    : at::SDPBackend::math);
}

std::tuple<Tensor, Tensor, Tensor, Tensor, SymInt, SymInt, Tensor, Tensor, Tensor> attend(
    const Tensor &query, const Tensor &key, const Tensor &value, const optional<Tensor> &bias,
    double dropout, bool causal, bool, optional<double> scale)
{
    auto [output, sums] = at::_scaled_dot_product_flash_attention_for_cpu(
        query, key, value, dropout, causal, bias, scale);
    return {output, sums, {}, {}, query.size(2), key.size(2), {}, {}, {}};
}

std::tuple<Tensor, Tensor, Tensor, Tensor> attend_backward(
    const Tensor &gradient, const Tensor &query, const Tensor &key, const Tensor &value,
    const Tensor &bias, std::array<bool, 4>, const Tensor &output, const Tensor &sums,
    const Tensor &, const Tensor &, SymInt, SymInt, double dropout, bool causal, const Tensor &,
    const Tensor &, optional<double> scale)
{
    const auto mask = bias.defined() ? optional(bias) : std::nullopt;
    auto [of_query, of_key, of_value] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        gradient, query, key, value, output, sums, dropout, causal, mask, scale);
    return {of_query, of_key, of_value, {}};
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m)
{
    m.impl("_scaled_dot_product_fused_attention_overrideable", attend);
    m.impl("_scaled_dot_product_fused_attention_overrideable_backward", attend_backward);
}

}  // namespace
}  // namespace stepwell::torch_double

namespace at::native {
REGISTER_PRIVATEUSE1_DISPATCH(_fused_sdp_choice_stub, &stepwell::torch_double::choose)
}
