// SPDX-License-Identifier: Apache-2.0
//
// stepwell/hpp/error.hpp: failures as stw::Error, or as Status and Result<T>.
#ifndef STEPWELL_HPP_ERROR_HPP
#define STEPWELL_HPP_ERROR_HPP

#include <stepwell/stepwell.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <utility>

#if !defined(STW_NO_EXCEPTIONS) && !defined(__cpp_exceptions)
#define STW_NO_EXCEPTIONS 1
#endif
#if !defined(STW_NO_EXCEPTIONS)
#include <exception>
#include <stdexcept>
// A thrown failure need not be checked.
#define STW_NODISCARD_STATUS
#else
#define STW_NODISCARD_STATUS [[nodiscard]]
#endif

namespace stw {

#if !defined(STW_NO_EXCEPTIONS)
/// A failed call: what() is the library's sentence, info() the same as numbers.
class Error : public std::runtime_error {
public:
    explicit Error(const stw_error_info &info) : std::runtime_error(info.sentence), info_(info) {}
    stw_status code() const noexcept { return info_.status; }
    const stw_error_info &info() const noexcept { return info_; }

private:
    stw_error_info info_;
};
#endif

namespace detail {

/// The error of this thread's last failed call, which returned `code`.
inline stw_error_info last_error(stw_status code) noexcept
{
    stw_error_info info{};
    info.struct_size = sizeof info;
    (void)stw_last_error_info(&info);
    if (info.status == code) return info;
    // A call that is safe in signal handlers leaves no sentence.
    info = stw_error_info{};
    info.struct_size = sizeof info;
    info.status = code;
    info.rank = -1;
    std::strncpy(info.sentence, stw_status_string(code), sizeof info.sentence - 1);
    return info;
}

inline void raise(stw_status code)
{
#if !defined(STW_NO_EXCEPTIONS)
    if (code < 0) throw Error(last_error(code));
#else
    (void)code;
#endif
}

template <class T> constexpr uint32_t size_of() noexcept
{
    return static_cast<uint32_t>(sizeof(T));
}

}  // namespace detail

/// The meaning of a code; never null, static text.
inline const char *text_of(stw_status code) noexcept
{
    return stw_status_string(code);
}
/// The sentence of this thread's last failed call; valid until its next call.
inline const char *last_error() noexcept
{
    return stw_last_error();
}
/// The version of the loaded library; the header may be of another one.
inline const char *version() noexcept
{
    return stw_version_string();
}
inline uint32_t abi_version() noexcept
{
    return stw_abi_version();
}

/// The outcome of a call without a value. Above 0 it is success with a remark (PENDING, SKIPPED).
/// Without exceptions, the sentence is last_error() until this thread's next call.
class STW_NODISCARD_STATUS Status {
public:
    constexpr Status() noexcept = default;
    /// Throws stw::Error when `code` is a failure and exceptions are on.
    explicit Status(stw_status code) : code_(code) { detail::raise(code); }
    bool ok() const noexcept { return code_ >= 0; }
    stw_status code() const noexcept { return code_; }

private:
    stw_status code_ = STW_OK;
};

/// A value, or (without exceptions only) the code of the failure.
template <class T> class [[nodiscard]] Result {
public:
    Result(T value) noexcept : value_(std::move(value)) {}
    /// A failure; with exceptions it is thrown here.
    explicit Result(stw_status code) : code_(code) { detail::raise(code); }
    bool ok() const noexcept { return code_ >= 0; }
    stw_status code() const noexcept { return code_; }
    /// Without a value the process is aborted.
    T value() &&
    {
        if (!ok()) std::abort();
        return std::move(value_);
    }
    T &value() &
    {
        if (!ok()) std::abort();
        return value_;
    }

private:
    T value_{};
    stw_status code_ = STW_OK;
};

}  // namespace stw

#undef STW_NODISCARD_STATUS

#endif  // STEPWELL_HPP_ERROR_HPP
