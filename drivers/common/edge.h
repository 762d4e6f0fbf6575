// SPDX-License-Identifier: Apache-2.0
// Code that every driver needs at its C interface: error sentences, structs that grow, a guard
// against exceptions, the library's services, and the check of requests at submit.
#pragma once

#include <stepwell/driver.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <system_error>

namespace stepwell::drivers {

// The levels of the log service, as the public header numbers them.
enum LogLevel : uint32_t { kLogError = 1, kLogWarning = 2, kLogInfo = 3, kLogDebug = 4 };

struct Numbers {
    int os_errno = 0;
    uint64_t needed_bytes = 0;
    uint64_t free_bytes = 0;
};

// Writes one sentence, followed by the errno if there is one, and returns `status`.
[[gnu::format(printf, 4, 5)]] stw_status fail(stw_driver_error *error_out, stw_status status,
                                              Numbers numbers, const char *format, ...);

// "1.5 GiB (1610612736 bytes)"
std::string bytes_text(uint64_t bytes);

// Copies a sentence into a field of a struct, cut at its end.
void copy_text(char *destination, size_t capacity, const std::string &text);

// Services are copied: the library lends the functions, not the struct.
class Services {
public:
    explicit Services(const stw_services *services)
    {
        if (services != nullptr) services_ = *services;
    }
    uint64_t now_ns() const;
    void log(uint32_t level, const char *topic, const std::string &line) const;

private:
    stw_services services_ = {};
};

// Options grow at their end: a caller of an older build has too few bytes, one of a newer build may
// ask for what this build does not know, and both are refused rather than half understood.
template <class Options> bool options_are_known(const Options *options)
{
    if (options == nullptr || options->struct_size < sizeof(Options)) return false;
    const char *bytes = reinterpret_cast<const char *>(options);
    return std::all_of(bytes + sizeof(Options), bytes + options->struct_size,
                       [](char byte) { return byte == 0; });
}

// Fills as much of a growing struct as its owner has room for.
template <class Info> void give_info(Info value, Info *out)
{
    if (out == nullptr) return;
    value.struct_size = out->struct_size;
    std::memcpy(out, &value, std::min<size_t>(out->struct_size, sizeof(Info)));
}

template <class Body> stw_status guard_open(stw_driver_error *error_out, Body &&body) noexcept
try {
    return body();
} catch (const std::bad_alloc &) {
    return fail(error_out, STW_ERROR_MEMORY, {}, "The driver's own tables found no memory.");
} catch (const std::system_error &error) {
    return fail(
        error_out, STW_ERROR_LIMIT, {error.code().value(), 0, 0},
        "The driver could not start its threads; raise the limit on processes (ulimit -u).");
} catch (...) {
    return fail(error_out, STW_ERROR_INTERNAL, {}, "The driver failed in an unexpected way.");
}

// Passes the object that `open` makes to the caller as a C handle, written only on success.
template <class Object, class Handle, class Open>
stw_status open_handle(Handle **handle_out, stw_driver_error *error_out, Open &&open) noexcept
{
    return guard_open(error_out, [&] {
        std::unique_ptr<Object> object;
        const stw_status status = open(&object);
        if (status == STW_OK) *handle_out = reinterpret_cast<Handle *>(object.release());
        return status;
    });
}

// Reads may reach past the end and come back short; a write there would grow the file.
inline bool request_is_valid(const stw_io &io, uint64_t alignment_bytes, uint64_t file_bytes)
{
    const uint64_t together =
        reinterpret_cast<uintptr_t>(io.data) | io.offset_bytes | io.bytes;  // all three at once
    const uint64_t end_max = static_cast<uint64_t>(INT64_MAX);
    if (io.data == nullptr || io.bytes == 0 || io.reserved != 0) return false;
    if (together % alignment_bytes != 0) return false;
    if (io.bytes > end_max || io.offset_bytes > end_max - io.bytes) return false;
    if (io.kind == STW_IO_READ) return true;
    return io.kind == STW_IO_WRITE && io.offset_bytes + io.bytes <= file_bytes;
}

}  // namespace stepwell::drivers
