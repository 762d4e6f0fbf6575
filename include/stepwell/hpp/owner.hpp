// SPDX-License-Identifier: Apache-2.0
//
// stepwell/hpp/owner.hpp: one C handle with one owner.
#ifndef STEPWELL_HPP_OWNER_HPP
#define STEPWELL_HPP_OWNER_HPP

#include <stepwell/hpp/error.hpp>

#include <utility>

namespace stw {

namespace detail {

/// One C handle with one owner. `Close` releases it; its status may be ignored.
template <class Handle, class Close> class Owner {
public:
    Owner() noexcept = default;
    explicit Owner(Handle *handle) noexcept : handle_(handle) {}
    Owner(const Owner &) = delete;
    Owner &operator=(const Owner &) = delete;
    Owner(Owner &&other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
    Owner &operator=(Owner &&other) noexcept
    {
        if (this != &other) {
            drop();
            handle_ = std::exchange(other.handle_, nullptr);
        }
        return *this;
    }
    ~Owner() { drop(); }

    /// The handle for calls of the C API; still owned here.
    Handle *get() const noexcept { return handle_; }
    explicit operator bool() const noexcept { return handle_ != nullptr; }
    /// Passes ownership to the caller.
    Handle *detach() noexcept { return std::exchange(handle_, nullptr); }

protected:
    /// Forgets a handle that was closed.
    void drop_handle() noexcept { handle_ = nullptr; }
    /// On failure (usually BUSY) nothing has changed and the handle is still owned.
    stw_status close_now() noexcept
    {
        if (!handle_) return STW_OK;
        const stw_status code = Close()(handle_);
        if (code >= 0) handle_ = nullptr;
        return code;
    }

private:
    void drop() noexcept
    {
        if (handle_) (void)Close()(std::exchange(handle_, nullptr));
    }

    Handle *handle_ = nullptr;
};

}  // namespace detail

}  // namespace stw

#endif  // STEPWELL_HPP_OWNER_HPP
