// SPDX-License-Identifier: Apache-2.0
// What a driver said of a failure, as ours.
#pragma once

#include <stepwell/driver.h>

#include "lib/memory/driver_reason.h"
#include "lib/support/status.h"

namespace stepwell::memory {

inline Status from_driver(stw_status code, const stw_driver_error &error, const char *what)
{
    Status status =
        Status::error(code, "%s: %s", what, error.sentence[0] ? error.sentence : status_text(code));
    status.mutable_detail().os_errno = error.os_errno;
    status.mutable_detail().needed_bytes = error.needed_bytes;
    status.mutable_detail().free_bytes = error.free_bytes;
    return status;
}

}  // namespace stepwell::memory
