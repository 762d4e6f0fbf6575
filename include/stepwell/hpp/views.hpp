// SPDX-License-Identifier: Apache-2.0
//
// stepwell/hpp/views.hpp: fetched views, released with their owner.
#ifndef STEPWELL_HPP_VIEWS_HPP
#define STEPWELL_HPP_VIEWS_HPP

#include <stepwell/hpp/runtime.hpp>
#include <stepwell/hpp/span.hpp>
#include <stepwell/interop.h>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace stw {

/// A reference to one view of a set; it ends with its Views.
class View {
public:
    explicit View(const stw_view &view) noexcept : view_(&view) {}
    /// The bytes as elements of T: as many as fit. READ views give const elements only if T is
    /// const; writing through one is a race with other readers.
    template <class T> Span<T> as() const noexcept
    {
        return Span<T>(static_cast<T *>(view_->pointer),
                       static_cast<size_t>(view_->bytes / sizeof(T)));
    }
    void *data() const noexcept { return view_->pointer; }
    uint64_t bytes() const noexcept { return view_->bytes; }
    const stw_view &get() const noexcept { return *view_; }

private:
    const stw_view *view_;
};

/// The views of one fetch: all of them or none. Released together.
///
/// While an exception unwinds through its scope, the destructor releases with STW_RELEASE_ABANDON:
/// a half-finished write leaves no contents.
class Views {
public:
    Views() noexcept = default;
    Views(const Views &) = delete;
    Views &operator=(const Views &) = delete;
    Views(Views &&other) noexcept { swap(other); }
    Views &operator=(Views &&other) noexcept
    {
        Views taken(std::move(other));
        swap(taken);
        return *this;
    }
    ~Views() { (void)give_back(unwinding() ? uint32_t{STW_RELEASE_ABANDON} : flags_); }

    /// Blocks until the bytes are there, or the timeout. Errors: as stw_fetch().
    static Result<Views> fetch(const Runtime &runtime,
                               const std::vector<stw_fetch_request> &requests,
                               const stw_fetch_options *options = nullptr)
    {
        Views views;
        views.stream_ = options ? options->stream : STW_STREAM_HOST;
        views.views_.resize(requests.size());
        const auto n = static_cast<uint32_t>(requests.size());
        const stw_status code =
            stw_fetch(runtime.get(), options, requests.data(), n, views.views_.data());
        if (code >= 0) return views;
        views.views_.clear();
        return Result<Views>(code);
    }
    /// Takes over views that a C call has filled.
    static Views adopt(std::vector<stw_view> views, void *stream = STW_STREAM_HOST) noexcept
    {
        Views adopted;
        adopted.views_ = std::move(views);
        adopted.stream_ = stream;
        return adopted;
    }

    size_t size() const noexcept { return views_.size(); }
    View operator[](size_t index) const noexcept { return View(views_[index]); }
    /// One more pin on the bytes of one READ view, with a separate owner. Never blocks.
    Result<Views> share(size_t index = 0) const
    {
        Views more;
        more.stream_ = stream_;
        more.views_.resize(1);
        const stw_status code = stw_view_share(&views_[index], more.views_.data());
        if (code >= 0) return more;
        more.views_.clear();
        return Result<Views>(code);
    }
    /// One view as a DLPack tensor, the caller's by DLPack's rules. It leaves the set: later ones
    /// move up. Errors: as stw_view_to_dlpack(); then it stays.
    Result<DLManagedTensorVersioned *> to_dlpack(size_t index = 0)
    {
        DLManagedTensorVersioned *made = nullptr;
        const stw_status code = stw_view_to_dlpack(&views_[index], stream_, &made);
        return exported(index, code, made);
    }
    Result<DLManagedTensor *> to_dlpack_legacy(size_t index = 0)
    {
        DLManagedTensor *made = nullptr;
        const stw_status code = stw_view_to_dlpack_legacy(&views_[index], stream_, &made);
        return exported(index, code, made);
    }
    /// STW_RELEASE_* for the destructor and for release() without flags.
    void set_release_flags(uint32_t flags) noexcept { flags_ = flags; }
    /// Releases all now. Never blocks. The views end whatever the status.
    Status release() { return Status(give_back(flags_)); }
    Status release(uint32_t flags) { return Status(give_back(flags)); }

private:
    stw_status give_back(uint32_t flags) noexcept
    {
        if (views_.empty()) return STW_OK;
        const stw_status code =
            stw_release(views_.data(), static_cast<uint32_t>(views_.size()), stream_, flags);
        views_.clear();
        return code;
    }
    template <class Managed>
    Result<Managed *> exported(size_t index, stw_status code, Managed *made)
    {
        if (code < 0) return Result<Managed *>(code);
        views_.erase(views_.begin() + static_cast<std::ptrdiff_t>(index));
        return made;
    }
    bool unwinding() const noexcept
    {
#if !defined(STW_NO_EXCEPTIONS)
        return std::uncaught_exceptions() > exceptions_;
#else
        return false;
#endif
    }
    void swap(Views &other) noexcept
    {
        std::swap(views_, other.views_);
        std::swap(stream_, other.stream_);
        std::swap(flags_, other.flags_);
    }

    std::vector<stw_view> views_;
    void *stream_ = STW_STREAM_HOST;
    uint32_t flags_ = 0;
#if !defined(STW_NO_EXCEPTIONS)
    int exceptions_ = std::uncaught_exceptions();
#endif
};

/// To be called by the PyCapsule_Destructor of a capsule around either form.
inline void destroy_dlpack_capsule(void *capsule) noexcept
{
    stw_dlpack_capsule_destroy(capsule);
}

}  // namespace stw

#endif  // STEPWELL_HPP_VIEWS_HPP
