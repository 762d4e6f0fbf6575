// SPDX-License-Identifier: Apache-2.0
// Checks of the C boundary, and each thread's last error.
#include "lib/api/check.h"

#include "lib/report/report.h"
#include "lib/support/limits.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>

namespace stepwell::api {
namespace {

struct LastError {
    stw_status code = STW_OK;
    const char *plain = nullptr;  // the sentence, where there was no memory for one of its own
    ErrorDetail detail;
    char refused[320] = {};  // a sentence about memory
};

LastError &last_error()
{
    thread_local LastError error;
    return error;
}

stw_status keep(stw_status code, ErrorDetail &&detail) noexcept
{
    LastError &error = last_error();
    error.code = code;
    error.plain = nullptr;
    error.detail = std::move(detail);
    return code;
}

Status stale(const char *what)
{
    return Status::error(STW_ERROR_INVALID,
                         "the %s handle is not alive: it is null, was destroyed, or never was a "
                         "handle",
                         what);
}

}  // namespace

stw_status last_code() noexcept
{
    return last_error().code;
}
const ErrorDetail &last_detail() noexcept
{
    return last_error().detail;
}
const char *last_sentence() noexcept
{
    const LastError &error = last_error();
    return error.plain ? error.plain : error.detail.sentence.c_str();
}

void fill_error_info(stw_status code, const char *sentence, const ErrorDetail &detail,
                     stw_error_info *info_out) noexcept
{
    stw_error_info info{};
    info.struct_size = std::min<uint32_t>(info_out->struct_size, sizeof info);
    info.status = code;
    info.os_errno = detail.os_errno;
    info.rank = detail.rank;
    info.tier = detail.tier;
    info.device = detail.device;
    info.needed_bytes = detail.needed_bytes;
    info.free_bytes = detail.free_bytes;
    info.pinned_bytes = detail.pinned_bytes;
    info.offset_bytes = detail.offset_bytes;
    info.pinned_views = detail.pinned_views;
    std::snprintf(info.tensor, sizeof info.tensor, "%s", detail.tensor.c_str());
    std::snprintf(info.sentence, sizeof info.sentence, "%s", sentence);
    std::memcpy(info_out, &info, std::min<size_t>(info_out->struct_size, sizeof info));
}

stw_status report(const Status &status) noexcept
{
    if (status.code() >= STW_OK) return status.code();
    try {
        ErrorDetail detail = status.detail() ? *status.detail() : ErrorDetail{};
        return keep(status.code(), std::move(detail));
    } catch (...) {
        return report_plain(status.code(), "there is no memory for the sentence of this error");
    }
}

stw_status report_plain(stw_status code, const char *sentence) noexcept
{
    LastError &error = last_error();
    error.code = code;
    error.plain = sentence;
    error.detail = ErrorDetail{};
    return code;
}

stw_status report_refused() noexcept
{
    char *sentence = last_error().refused;
    std::snprintf(sentence, sizeof last_error().refused,
                  "the process cannot have more memory, and the library's tables need it: %s; free "
                  "some, or raise the limit, and try again",
                  limits_text().text);
    return report_plain(STW_ERROR_MEMORY, sentence);
}

stw_status report_invalid(const char *format, ...) noexcept
{
    va_list arguments;
    va_start(arguments, format);
    ErrorDetail detail;
    bool written = true;
    try {
        detail.sentence = format_text_list(format, arguments);
    } catch (...) {
        written = false;
    }
    va_end(arguments);
    if (written) return keep(STW_ERROR_INVALID, std::move(detail));
    return report_plain(STW_ERROR_INVALID, "there is no memory for the sentence of this error");
}

Status enter(const stw_runtime *runtime)
{
    if (!runtime_pool.is_live(runtime)) {
        return Status::error(STW_ERROR_CLOSED,
                             "the runtime handle is not open: it is null, was closed, or never was "
                             "a runtime");
    }
    if (runtime->fork_epoch.load(std::memory_order_relaxed) !=
        fork_epoch.load(std::memory_order_relaxed)) {
        return Status::error(STW_ERROR_FORKED,
                             "this process is a fork of the one that opened the runtime; open one "
                             "of its own, or start workers with spawn instead of fork");
    }
    if (runtime->life.load(std::memory_order_acquire) != Life::kOpen) {
        return Status::error(STW_ERROR_CLOSED, "the runtime was closed");
    }
    set_assertion_log(runtime->assertions.get());
    if (runtime->assertions->any()) {
        char text[256];
        runtime->assertions->failures(text, sizeof text);
        return Status::error(STW_ERROR_INTERNAL,
                             "an assertion of the library failed in the runtime '%s' (%s); its "
                             "state cannot be trusted, and other runtimes go on. Please report it",
                             runtime->body->machine.name.c_str(), text);
    }
    if (assertion_failures(nullptr, 0) > 0) {
        char text[256];
        assertion_failures(text, sizeof text);
        return Status::error(STW_ERROR_INTERNAL,
                             "an assertion of the library failed (%s); its state cannot be "
                             "trusted. Please report it",
                             text);
    }
    return {};
}

Status enter(const stw_tensor *tensor)
{
    if (!tensor_pool.is_live(tensor)) return stale("tensor");
    return enter(tensor->runtime);
}

Status enter(const stw_phase *phase)
{
    if (!phase_pool.is_live(phase)) return stale("phase");
    return enter(phase->runtime);
}

Status enter(const stw_optimizer *optimizer)
{
    if (!optimizer_pool.is_live(optimizer)) return stale("optimizer");
    return enter(optimizer->runtime);
}

Status enter(const stw_operation *operation)
{
    if (!operation_pool.is_live(operation)) return stale("operation");
    return enter(operation->runtime);
}

Status take_struct(void *to, size_t known, const void *from, const char *name)
{
    if (!from) return Status::error(STW_ERROR_INVALID, "%s is null", name);
    uint32_t size = 0;
    std::memcpy(&size, from, sizeof size);
    if (size < 2 * sizeof(uint32_t) || size > 4096 || size % 8 != 0) {
        return Status::error(STW_ERROR_INVALID,
                             "%s.struct_size is %u, not the size of a version of it; start from "
                             "its _INIT macro",
                             name, size);
    }
    const auto *bytes = static_cast<const unsigned char *>(from);
    for (size_t at = known; at < size; ++at) {
        if (bytes[at] == 0) continue;
        return Status::error(STW_ERROR_INVALID,
                             "%s has a non-zero byte at offset %zu that this version of the "
                             "library does not know; it was built for a newer one",
                             name, at);
    }
    std::memset(to, 0, known);
    std::memcpy(to, from, size < known ? size : known);
    return {};
}

Status check_output(const void *output, size_t smallest, const char *name)
{
    if (!output) return Status::error(STW_ERROR_INVALID, "%s is null", name);
    uint32_t size = 0;
    std::memcpy(&size, output, sizeof size);
    if (size >= smallest && size <= 4096) return {};
    return Status::error(STW_ERROR_INVALID,
                         "%s->struct_size is %u; set it to the size of the struct before the call",
                         name, size);
}

Status check_flags(uint32_t flags, uint32_t known, const char *name)
{
    if ((flags & ~known) == 0) return {};
    return Status::error(STW_ERROR_INVALID, "%s has bits 0x%x that this version does not know",
                         name, flags & ~known);
}

Status check_host_memory(const stw_tensor *tensor, uint32_t tier, uint32_t device, void *stream)
{
    const bool host = tier == STW_TIER_DEFAULT || tier == STW_TIER_HOST;
    if (!host || device != 0) {
        return Status::error(STW_ERROR_UNSUPPORTED,
                             "options has tier %u and device %u, but this call uses host memory "
                             "alone: leave them 0, or fetch a view of %s where its bytes are",
                             tier, device, tensor_text(tensor->name).c_str());
    }
    STW_TRY(tensor->runtime->body->views.streams.check_stream(stream));
    if (stream == STW_STREAM_HOST || stream == STW_STREAM_SYNCED) return {};
    return Status::error(STW_ERROR_UNSUPPORTED,
                         "options.stream is %p, but host memory is in no order with streams: "
                         "synchronise with it and pass STW_STREAM_SYNCED",
                         stream);
}

Status check_memory(const stw_tensor *tensor, uint32_t tier, uint32_t device, void *stream)
{
    return tier == STW_TIER_DEVICE ? Status() : check_host_memory(tensor, tier, device, stream);
}

Status take_copy(const stw_tensor *tensor, const stw_copy_options *from, stw_copy_options *options)
{
    STW_TRY(enter(tensor));
    *options = STW_COPY_OPTIONS_INIT;
    if (from) STW_TRY(take(options, from, "options"));
    if (options->scope > STW_SHARD || options->reserved || options->tier > STW_TIER_HOST) {
        return Status::error(STW_ERROR_INVALID, "options.scope %u or tier %u is not known",
                             options->scope, options->tier);
    }
    return {};
}

Status refuse_unsummable(const stw_tensor *tensor)
{
    const uint32_t dtype = tensor->dtype;
    if (dtype == STW_F32 || dtype == STW_F16 || dtype == STW_BF16) return {};
    return Status::error(STW_ERROR_INVALID,
                         "%s of dtype %s cannot be summed into; only f32, f16 and bf16 can",
                         tensor_text(tensor->name).c_str(), report::dtype_name(dtype));
}

}  // namespace stepwell::api

const char *stw_last_error(void)
{
    return stepwell::api::last_sentence();
}

stw_status stw_last_error_info(stw_error_info *info_out)
{
    if (!info_out || info_out->struct_size < 8) return STW_ERROR_INVALID;
    stepwell::api::fill_error_info(stepwell::api::last_code(), stepwell::api::last_sentence(),
                                   stepwell::api::last_detail(), info_out);
    return STW_OK;
}
