// SPDX-License-Identifier: Apache-2.0
// Tensors of the device without what is in them: how they are made, viewed and resized.
#include "tests/torch_double/storage.h"

#include "tests/torch_double/memory.h"

#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/unfold_native.h>
#include <ATen/ops/view_as_complex_native.h>
#include <ATen/ops/view_as_real_native.h>
#include <ATen/ops/view_native.h>
#include <torch/library.h>

#include <algorithm>

namespace stepwell::torch_double {

void resize_storage(c10::StorageImpl *storage, size_t bytes)
{
    c10::DataPtr data = DeviceMemory::get().allocate(bytes);
    const size_t kept = std::min(bytes, storage->nbytes());
    if (kept > 0) DeviceMemory::get().copy_data(data.get(), storage->data(), kept);
    storage->set_data_ptr_noswap(std::move(data));
    storage->set_nbytes(bytes);
}

namespace {

using c10::IntArrayRef;
using std::optional;

constexpr c10::DispatchKeySet kKeys{c10::DispatchKey::PrivateUse1};

at::Tensor empty_memory_format(IntArrayRef sizes, optional<at::ScalarType> dtype,
                               optional<at::Layout>, optional<c10::Device> device, optional<bool>,
                               optional<at::MemoryFormat> format)
{
    check_is_device(device);
    return at::detail::empty_generic(sizes, &DeviceMemory::get(), kKeys,
                                     c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(IntArrayRef sizes, IntArrayRef strides, optional<at::ScalarType> dtype,
                         optional<at::Layout>, optional<c10::Device> device, optional<bool>)
{
    check_is_device(device);
    return at::detail::empty_strided_generic(sizes, strides, &DeviceMemory::get(), kKeys,
                                             c10::dtype_or_default(dtype));
}

at::Tensor as_strided(const at::Tensor &self, IntArrayRef sizes, IntArrayRef strides,
                      optional<int64_t> offset)
{
    return at::native::as_strided_tensorimpl(self, sizes, strides, offset);
}

at::Tensor reshape_alias(const at::Tensor &self, IntArrayRef sizes, IntArrayRef strides)
{
    return at::native::_reshape_alias(self, sizes, strides);
}

const at::Tensor &resize_(const at::Tensor &self, IntArrayRef sizes,
                          optional<at::MemoryFormat> format)
{
    auto *impl = self.unsafeGetTensorImpl();
    const auto end = impl->storage_offset() + c10::multiply_integers(sizes);
    const size_t needed = static_cast<size_t>(end) * self.element_size();
    if (needed > impl->storage().nbytes())
        resize_storage(impl->unsafe_storage().unsafeGetStorageImpl(), needed);
    impl->set_sizes_contiguous(sizes);
    if (format && *format != at::MemoryFormat::Preserve) impl->empty_tensor_restride(*format);
    return self;
}

at::Tensor &set_storage_at(at::Tensor &self, at::Storage source, int64_t offset, IntArrayRef sizes,
                           IntArrayRef strides)
{
    auto *impl = self.unsafeGetTensorImpl();
    impl->set_storage_keep_dtype(std::move(source));
    impl->set_storage_offset(offset);
    if (strides.size() == sizes.size())
        impl->set_sizes_and_strides(sizes, strides);
    else
        impl->set_sizes_contiguous(sizes);
    return self;
}

at::Tensor &set_storage(at::Tensor &self, at::Storage source)
{
    const auto count = static_cast<int64_t>(source.nbytes() / self.element_size());
    return set_storage_at(self, std::move(source), 0, {count}, {1});
}

at::Tensor &set_tensor(at::Tensor &self, const at::Tensor &source)
{
    return set_storage_at(self, source.storage(), source.storage_offset(), source.sizes(),
                          source.strides());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m)
{
    m.impl("empty.memory_format", empty_memory_format);
    m.impl("empty_strided", empty_strided);
    m.impl("as_strided", as_strided);
    m.impl("view", TORCH_FN(at::native::view));
    m.impl("unfold", TORCH_FN(at::native::unfold));
    m.impl("view_as_complex", TORCH_FN(at::native::view_as_complex));
    m.impl("view_as_real", TORCH_FN(at::native::view_as_real));
    m.impl("_reshape_alias", reshape_alias);
    m.impl("resize_", resize_);
    m.impl("set_.source_Storage_storage_offset", set_storage_at);
    m.impl("set_.source_Storage", set_storage);
    m.impl("set_.source_Tensor", set_tensor);
}

}  // namespace
}  // namespace stepwell::torch_double
