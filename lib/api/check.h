// SPDX-License-Identifier: Apache-2.0
// The C boundary: handles, struct sizes and arguments are checked here, exceptions end here, and
// the sentence of a failure is kept for stw_last_error. No logic. Any thread.
#pragma once

#include "lib/runtime/open/runtime.h"
#include "lib/support/assert.h"
#include "lib/support/status.h"

#include <stepwell/stepwell.h>

#include <cstring>
#include <new>

namespace stepwell::api {

// Remembers a failure for this thread and returns its code.
stw_status report(const Status &status) noexcept;
// The same without asking for memory; the sentence lives for ever.
stw_status report_plain(stw_status code, const char *sentence) noexcept;
// Memory was refused: with what the process has and may have.
stw_status report_refused() noexcept;
stw_status report_invalid(const char *format, ...) noexcept __attribute__((format(printf, 1, 2)));

stw_status last_code() noexcept;
const ErrorDetail &last_detail() noexcept;
const char *last_sentence() noexcept;
// The numbers of a failure, as far as the caller's struct goes.
void fill_error_info(stw_status code, const char *sentence, const ErrorDetail &detail,
                     stw_error_info *info_out) noexcept;

// Nothing may unwind into C.
template <class Body> stw_status guard(Body &&body) noexcept
try {
    return report(body());
} catch (const std::bad_alloc &) {
    return report_refused();
} catch (...) {
    return report_plain(STW_ERROR_INTERNAL, "an exception inside the library; please report it");
}

// The runtime may be used by this call: open, this process's, no failed assertion.
Status enter(const stw_runtime *runtime);
Status enter(const stw_tensor *tensor);
Status enter(const stw_group *group);
Status enter(const stw_phase *phase);
Status enter(const stw_optimizer *optimizer);
Status enter(const stw_operation *operation);

// Around a release after STW_CLOSE_DEFERRED; false where the runtime is not in that state. Whoever
// leaves last, with no view open, ends the runtime: never under the feet of another release.
bool enter_deferred(stw_runtime *runtime) noexcept;
void leave_deferred(stw_runtime *runtime) noexcept;

// Copies a struct that crosses the boundary. A newer caller's extra bytes must be zero; an older
// one's missing fields are zero.
Status take_struct(void *to, size_t known, const void *from, const char *name);
template <class Struct> Status take(Struct *to, const Struct *from, const char *name)
{
    return take_struct(to, sizeof(Struct), from, name);
}
// The size an output struct announces is one we can fill.
Status check_output(const void *output, size_t smallest, const char *name);
// Every bit of `flags` is in `known`.
Status check_flags(uint32_t flags, uint32_t known, const char *name);
// Memory of the caller that a copy or a sum uses: of the host, ready before the call.
Status check_host_memory(const stw_tensor *tensor, uint32_t tier, uint32_t device, void *stream);
// As check_host_memory, and allows memory of a device: whether it is one's, the copy checks.
Status check_memory(const stw_tensor *tensor, uint32_t tier, uint32_t device, void *stream);
// The options of a copy, or their defaults where `from` is null.
Status take_copy(const stw_tensor *tensor, const stw_copy_options *from, stw_copy_options *options);
// Sums are made in f32, f16 and bf16 alone.
Status refuse_unsummable(const stw_tensor *tensor);
// What a request asks for: INVALID with the reason where that cannot be.
Status resolve_request(const stw_runtime *runtime, const stw_fetch_request &request,
                       RequestedRange *range);

// Arrays of structs have the stride of their first element.
template <class Struct> const Struct &element(const Struct *array, uint32_t index)
{
    const auto *bytes = reinterpret_cast<const char *>(array);
    return *reinterpret_cast<const Struct *>(bytes + size_t{index} * array[0].struct_size);
}

}  // namespace stepwell::api
