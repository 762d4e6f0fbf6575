// SPDX-License-Identifier: Apache-2.0
// Copies between the device and the host, and what reads a single number.
#include "tests/torch_double/fallback.h"
#include "tests/torch_double/memory.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/item.h>
#include <torch/library.h>

namespace stepwell::torch_double {
namespace {

void copy_on_device(const at::Tensor &from, const at::Tensor &to)
{
    static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::copy_", "");
    auto work = std::make_unique<Work>(op);
    work->arguments = {c10::IValue(), c10::IValue(), false};
    work->places = {{0, Place::kTensor, {0}}, {1, Place::kTensor, {1}}};
    work->operands = {Operand(to, true), Operand(from, false)};
    enqueue(std::move(work));
}

// The host waits unless it asked not to, and the memory is such as a device can reach by itself.
void wait_unless(bool non_blocking, const at::Tensor &host)
{
    if (non_blocking && PinnedMemory::holds(host.const_data_ptr()))
        PinnedMemory::get().use(host.storage().data_ptr());
    else
        STW_LATE_CALL(cuStreamSynchronize, current_handle());
}

bool is_plain(const at::Tensor &tensor)
{
    return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

void copy_up(const at::Tensor &from, const at::Tensor &to, bool non_blocking)
{
    const at::Tensor plain = from.resolve_conj().resolve_neg();
    const at::Tensor source = plain.to(to.scalar_type()).expand(to.sizes()).contiguous();
    const at::Tensor room = is_plain(to) ? to : at::empty(to.sizes(), to.options());
    STW_LATE_CALL(cuMemcpyHtoDAsync_v2, address_of(room), source.const_data_ptr(), source.nbytes(),
                  current_handle());
    wait_unless(non_blocking, source);
    if (!room.is_same(to)) copy_on_device(room, to);
}

void copy_down(const at::Tensor &from, const at::Tensor &to, bool non_blocking)
{
    const at::Tensor source = is_plain(from) ? from : at::empty(from.sizes(), from.options());
    if (!source.is_same(from)) copy_on_device(from, source);
    const bool fits =
        is_plain(to) && to.scalar_type() == source.scalar_type() && to.sizes() == source.sizes();
    const at::Tensor room =
        fits ? to : at::empty(source.sizes(), source.options().device(at::kCPU));
    STW_LATE_CALL(cuMemcpyDtoHAsync_v2, room.mutable_data_ptr(), address_of(source),
                  source.nbytes(), current_handle());
    wait_unless(non_blocking && fits, room);
    if (!fits) to.copy_(room.expand(to.sizes()));
    throw_failure();
}

at::Tensor copy_from(const at::Tensor &from, const at::Tensor &to, bool non_blocking)
{
    throw_failure();
    if (to.numel() == 0) return to;
    if (is_late(from) && is_late(to))
        copy_on_device(from, to);
    else if (is_late(to))
        copy_up(from, to, non_blocking);
    else
        copy_down(from, to, non_blocking);
    return to;
}

at::Tensor copy_from_and_resize(const at::Tensor &from, const at::Tensor &to)
{
    to.resize_(from.sizes());
    return copy_from(from, to, false);
}

at::Scalar local_scalar_dense(const at::Tensor &self)
{
    at::Tensor host = at::empty(self.sizes(), self.options().device(at::kCPU));
    copy_down(self, host, false);
    return host.item();
}

void record_stream(at::Tensor &self, c10::Stream stream)
{
    DeviceMemory::get().recordStream(self.storage().data_ptr(), stream);
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m)
{
    m.impl("_copy_from", copy_from);
    m.impl("_copy_from_and_resize", copy_from_and_resize);
    m.impl("_local_scalar_dense", local_scalar_dense);
    m.impl("record_stream", record_stream);
}

// Copies resolve these themselves; what resolves them for others is made of copies.
TORCH_LIBRARY_IMPL(aten, Conjugate, m)
{
    m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, Negative, m)
{
    m.impl("_copy_from", torch::CppFunction::makeFallthrough());
}

}  // namespace
}  // namespace stepwell::torch_double
