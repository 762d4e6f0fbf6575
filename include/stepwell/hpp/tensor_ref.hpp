// SPDX-License-Identifier: Apache-2.0
// stepwell/hpp/tensor_ref.hpp: the calls on a tensor, owned or not, and requests for its bytes.
#ifndef STEPWELL_HPP_TENSOR_REF_HPP
#define STEPWELL_HPP_TENSOR_REF_HPP

#include <stepwell/hpp/error.hpp>
#include <stepwell/hpp/span.hpp>
#include <stepwell/interop.h>

#include <cstddef>
#include <cstdint>
#include <initializer_list>

namespace stw {

namespace detail {

/// The calls that Tensor and TensorRef have in common. `Self` has the handle.
template <class Self> class TensorCalls {
public:
    /// Copies all of it from the caller's memory; blocks until the source is free again.
    Status write(const void *source) { return Status(stw_tensor_write(handle(), source, nullptr)); }
    Status write(const void *source, const stw_copy_options &options)
    {
        return Status(stw_tensor_write(handle(), source, &options));
    }
    /// Copies all of it to the caller's memory; blocks until it is there.
    Status read(void *destination) const
    {
        return Status(stw_tensor_read(handle(), destination, nullptr));
    }
    Status read(void *destination, const stw_copy_options &options) const
    {
        return Status(stw_tensor_read(handle(), destination, &options));
    }
    /// Fills it with one value, converted to nearest; blocks until every block is filled.
    Status fill(double value) { return Status(stw_tensor_fill(handle(), value, nullptr)); }
    Status fill(double value, const stw_copy_options &options)
    {
        return Status(stw_tensor_fill(handle(), value, &options));
    }
    /// Adds memory of the caller to all of it; null: this rank has no gradient. Blocks until it is
    /// added.
    Status reduce(const void *local) { return Status(stw_reduce(handle(), local, nullptr)); }
    Status reduce(const void *local, const stw_reduce_options &options)
    {
        return Status(stw_reduce(handle(), local, &options));
    }
    /// The same, and the memory is the library's until it calls deleter(user); added after the
    /// return. On failure the memory stays the caller's.
    Status reduce_adopt(const void *local, stw_deleter_fn deleter, void *user)
    {
        return Status(stw_reduce_adopt(handle(), local, nullptr, deleter, user));
    }
    Status reduce_adopt(const void *local, const stw_reduce_options &options,
                        stw_deleter_fn deleter, void *user)
    {
        return Status(stw_reduce_adopt(handle(), local, &options, deleter, user));
    }
    /// The contents are dead: EMPTY from now on, nothing is written back. BUSY with views open.
    Status discard()
    {
        stw_tensor *tensor = handle();
        return Status(stw_tensor_discard(&tensor, 1));
    }
    /// As many elements as at creation or fewer; EMPTY from now on. BUSY with views open.
    Status reshape(std::initializer_list<uint64_t> shape)
    {
        const auto dimensions = static_cast<uint32_t>(shape.size());
        return Status(stw_tensor_reshape(handle(), shape.begin(), dimensions));
    }
    /// From the next decision on. Never blocks. Errors: as stw_tensor_set_policy().
    Status set_policy(const stw_policy &policy)
    {
        return Status(stw_tensor_set_policy(handle(), &policy));
    }
    /// Freezes it, so that only write() writes it, or unfreezes it. Errors: as stw_tensor_freeze().
    Status freeze(bool frozen = true)
    {
        return Status(stw_tensor_freeze(handle(), frozen ? 1 : 0));
    }
    /// STW_ADVICE_*. Never blocks.
    Status advise(uint32_t advice)
    {
        stw_tensor *tensor = handle();
        return Status(stw_advise(&tensor, 1, advice));
    }
    /// Its range of addresses on a device, the same for life. Only a view makes the bytes resident.
    Result<Span<std::byte>> address(uint32_t device = 0) const
    {
        void *pointer = nullptr;
        uint64_t bytes = 0;
        const stw_status code = stw_tensor_address(handle(), device, &pointer, &bytes);
        if (code < 0) return Result<Span<std::byte>>(code);
        return Span<std::byte>(static_cast<std::byte *>(pointer), static_cast<size_t>(bytes));
    }
    /// That address as a DLPack tensor without a pin, the caller's by DLPack's rules.
    Result<DLManagedTensorVersioned *> to_dlpack(uint32_t device = 0) const
    {
        DLManagedTensorVersioned *made = nullptr;
        const stw_status code = stw_tensor_to_dlpack(handle(), device, &made);
        if (code < 0) return Result<DLManagedTensorVersioned *>(code);
        return made;
    }
    Result<DLManagedTensor *> to_dlpack_legacy(uint32_t device = 0) const
    {
        DLManagedTensor *made = nullptr;
        const stw_status code = stw_tensor_to_dlpack_legacy(handle(), device, &made);
        if (code < 0) return Result<DLManagedTensor *>(code);
        return made;
    }
    Result<stw_tensor_info> info() const
    {
        stw_tensor_info info{};
        info.struct_size = size_of<stw_tensor_info>();
        const stw_status code = stw_tensor_info_get(handle(), &info);
        if (code < 0) return Result<stw_tensor_info>(code);
        return info;
    }

protected:
    TensorCalls() noexcept = default;

private:
    stw_tensor *handle() const noexcept { return static_cast<const Self *>(this)->get(); }
};

}  // namespace detail

/// A tensor with another owner: found by name, a state of an optimizer, or a Tensor passed on.
/// Copies refer to the same tensor; it ends with its owner.
class TensorRef : public detail::TensorCalls<TensorRef> {
public:
    TensorRef() noexcept = default;
    TensorRef(stw_tensor *tensor) noexcept : tensor_(tensor) {}
    stw_tensor *get() const noexcept { return tensor_; }
    explicit operator bool() const noexcept { return tensor_ != nullptr; }
    friend bool operator==(TensorRef one, TensorRef other) noexcept
    {
        return one.tensor_ == other.tensor_;
    }
    friend bool operator!=(TensorRef one, TensorRef other) noexcept { return !(one == other); }

private:
    stw_tensor *tensor_ = nullptr;
};

/// A request: `stw::want(w)`, `stw::want(gradient, STW_REDUCE)`, or a range of elements.
inline stw_fetch_request want(TensorRef tensor, uint32_t access = STW_READ,
                              uint32_t tier = STW_TIER_DEFAULT, uint64_t element_begin = 0,
                              uint64_t element_count = 0) noexcept
{
    stw_fetch_request request = STW_FETCH_REQUEST_INIT;
    request.tensor = tensor.get();
    request.access = access;
    request.tier = tier;
    request.element_begin = element_begin;
    request.element_count = element_count;
    return request;
}
/// The request as a copy to host memory of the caller's, which must hold all its elements; READ
/// only: `stw::into(stw::want(w), buffer.data())`. Its view refers to that memory and pins nothing.
inline stw_fetch_request into(stw_fetch_request request, void *memory) noexcept
{
    request.into = memory;
    return request;
}
/// The request in another dtype among f32, f16 and bf16; READ or REDUCE:
/// `stw::converted(stw::want(w), STW_BF16)`, with stw::into() or alone.
inline stw_fetch_request converted(stw_fetch_request request, uint32_t dtype) noexcept
{
    request.dtype = dtype;
    return request;
}

}  // namespace stw

#endif  // STEPWELL_HPP_TENSOR_REF_HPP
