// SPDX-License-Identifier: Apache-2.0
// What changes with each commit.
#include "lib/api/check.h"

#include "stepwell_revision.h"

const char *stw_version_string(void)
{
    return STEPWELL_VERSION "+" STEPWELL_REVISION;
}

uint32_t stw_abi_version(void)
{
    return STEPWELL_ABI_MAJOR;
}
