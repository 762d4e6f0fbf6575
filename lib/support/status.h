// SPDX-License-Identifier: Apache-2.0
// Status and Result: how an error travels through the library. The frame that first knows the cause
// writes the sentence and the numbers, once; everybody else passes it up. Success allocates
// nothing. Any thread. Knows nothing of tensors, drivers or the C API beyond the status codes.
#pragma once

#include <stepwell/status.h>

#include <cstdarg>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace stepwell {

// What stands behind an error; the same fields as stw_error_info, with owned strings.
struct ErrorDetail {
    std::string sentence;
    std::string tensor;
    int os_errno = 0;
    int rank = -1;
    uint32_t tier = 0;
    uint32_t device = 0;
    uint64_t needed_bytes = 0;
    uint64_t free_bytes = 0;
    uint64_t pinned_bytes = 0;
    uint64_t pinned_views = 0;
    uint64_t offset_bytes = 0;
};

class [[nodiscard]] Status {
public:
    Status() = default;
    Status(stw_status code, ErrorDetail detail)
        : code_(code), detail_(std::make_unique<ErrorDetail>(std::move(detail)))
    {
    }
    Status(Status &&) noexcept = default;
    Status &operator=(Status &&) noexcept = default;
    Status(const Status &other) { *this = other; }
    Status &operator=(const Status &other);

    // The sentence in printf form: what, which tensor or path, numbers, errno, what to do.
    static Status error(stw_status code, const char *format, ...)
        __attribute__((format(printf, 2, 3)));
    // The same with the errno of the operating system; its text is appended in brackets.
    static Status os_error(stw_status code, int os_errno, const char *format, ...)
        __attribute__((format(printf, 3, 4)));
    // A success with a remark (PENDING, SKIPPED): no sentence.
    static Status remark(stw_status code)
    {
        Status status;
        status.code_ = code;
        return status;
    }

    [[nodiscard]] bool ok() const { return code_ >= STW_OK; }
    [[nodiscard]] stw_status code() const { return code_; }
    [[nodiscard]] const char *sentence() const;
    // Null on success.
    [[nodiscard]] const ErrorDetail *detail() const { return detail_.get(); }
    ErrorDetail &mutable_detail();

private:
    stw_status code_ = STW_OK;
    std::unique_ptr<ErrorDetail> detail_;
};

// printf into a std::string; for sentences that are put together in steps.
std::string format_text(const char *format, ...) __attribute__((format(printf, 1, 2)));
std::string format_text_list(const char *format, va_list arguments);
// "12.6 MiB", "512 bytes": sizes in sentences.
std::string bytes_text(uint64_t bytes);
// "1 request", "2 requests".
inline const char *plural(size_t count)
{
    return count == 1 ? "" : "s";
}
// "tensor 'w'", or "a tensor without a name": what a sentence calls it. A name that is refused for
// its length is cut.
std::string tensor_text(std::string_view name);
std::string parameter_text(std::string_view name);
// "10.0 MiB = 4.0 MiB pinned by views + 6.0 MiB free": the parts that make up a limit, for the
// sentence of a refusal. Parts of 0 bytes are left out, except the last, which is the free rest.
struct BytesPart {
    uint64_t bytes;
    const char *of;
};
std::string sum_text(std::initializer_list<BytesPart> parts);

template <class T> class [[nodiscard]] Result {
public:
    Result(T value) : value_(std::move(value)) {}
    Result(Status status) : status_(std::move(status)) {}

    [[nodiscard]] bool ok() const { return value_.has_value(); }
    [[nodiscard]] T &value() { return *value_; }
    [[nodiscard]] const T &value() const { return *value_; }
    [[nodiscard]] Status &status() { return status_; }
    [[nodiscard]] T take() { return std::move(*value_); }

private:
    std::optional<T> value_;
    Status status_;
};

}  // namespace stepwell

// Pass an error up: STW_TRY(store.open(path));
#define STW_TRY(expression)                                                                        \
    do {                                                                                           \
        ::stepwell::Status stw_try_status_ = (expression);                                         \
        if (!stw_try_status_.ok()) return stw_try_status_;                                         \
    } while (0)
