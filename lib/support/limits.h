// SPDX-License-Identifier: Apache-2.0
// What the process has of its addresses and may have, for sentences of refusals. Asks for no
// memory. Any thread.
#pragma once

#include "lib/support/limits.h"
#include "lib/support/status.h"

namespace stepwell {

struct LimitsText {
    char text[128];
};

// "it has 231 MiB of addresses, and may have 240 MiB (ulimit -v)"
LimitsText limits_text() noexcept;

// LIMIT: none was started; with the numbers above.
Status no_thread(int os_errno, const char *purpose);

}  // namespace stepwell
