// SPDX-License-Identifier: Apache-2.0
//
// stepwell/hpp/memory.hpp: pieces of the host tier's scratch memory, freed with their owner.
#ifndef STEPWELL_HPP_MEMORY_HPP
#define STEPWELL_HPP_MEMORY_HPP

#include <stepwell/hpp/runtime.hpp>
#include <stepwell/hpp/span.hpp>

#include <cstddef>
#include <cstdint>
#include <utility>

namespace stw {

/// A piece of host memory (stw_host_alloc). The destructor frees it, also after its runtime was
/// closed with STW_CLOSE_DEFERRED.
class HostMemory {
public:
    HostMemory() noexcept = default;
    HostMemory(const HostMemory &) = delete;
    HostMemory &operator=(const HostMemory &) = delete;
    HostMemory(HostMemory &&other) noexcept
        : runtime_(other.runtime_), data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_)
    {
    }
    HostMemory &operator=(HostMemory &&other) noexcept
    {
        HostMemory taken(std::move(other));
        std::swap(runtime_, taken.runtime_);
        std::swap(data_, taken.data_);
        std::swap(bytes_, taken.bytes_);
        return *this;
    }
    ~HostMemory()
    {
        if (data_) (void)stw_host_free(runtime_, data_);
    }

    /// Never blocks. align_bytes: a power of two up to the block size, 0: 64. flags: STW_HOST_ZERO.
    static Result<HostMemory> allocate(const Runtime &runtime, uint64_t bytes,
                                       uint64_t align_bytes = 0, uint32_t flags = 0)
    {
        HostMemory made;
        const stw_status code =
            stw_host_alloc(runtime.get(), bytes, align_bytes, flags, &made.data_);
        if (code < 0) return Result<HostMemory>(code);
        made.runtime_ = runtime.get();
        made.bytes_ = bytes;
        return made;
    }
    /// Frees it now; on failure it is still owned.
    Status free()
    {
        const stw_status code = data_ ? stw_host_free(runtime_, data_) : STW_OK;
        if (code >= 0) data_ = nullptr;
        return Status(code);
    }

    void *data() const noexcept { return data_; }
    uint64_t bytes() const noexcept { return data_ ? bytes_ : 0; }
    explicit operator bool() const noexcept { return data_ != nullptr; }
    /// As many elements of T as fit.
    template <class T> Span<T> as() const noexcept
    {
        return Span<T>(static_cast<T *>(data_), static_cast<size_t>(bytes() / sizeof(T)));
    }

private:
    stw_runtime *runtime_ = nullptr;
    void *data_ = nullptr;
    uint64_t bytes_ = 0;
};

}  // namespace stw

#endif  // STEPWELL_HPP_MEMORY_HPP
