// SPDX-License-Identifier: Apache-2.0
// The suite of all drivers, run against those that are built in.
#include "tests/conformance/support.h"

namespace conformance {

using stepwell::drivers::memory_driver;
using stepwell::drivers::storage_driver;

std::vector<StorageCase> storage_cases()
{
    return {{"aio", storage_driver("aio"), "", ""},
            {"posix", storage_driver("posix"), "", ""},
            {"posix_buffered", storage_driver("posix"), "buffered=1;threads=2", ""},
            {"fault_over_aio", storage_driver("fault"), "inner=aio", ""},
            {"fault_over_posix", storage_driver("fault"), "inner=posix;inner.buffered=1", ""}};
}

std::vector<MemoryCase> memory_cases()
{
    return {{"cpu", memory_driver("cpu")},
            {"cpu_discrete", memory_driver("cpu-discrete")},
            {"host", memory_driver("host")}};
}

}  // namespace conformance
