// SPDX-License-Identifier: Apache-2.0
#include "lib/support/limits.h"

#include <cstdio>
#include <cstdlib>

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

namespace stepwell {
namespace {

// Of addresses, now; 0: not known.
unsigned long long mapped_bytes()
{
    char text[64] = {};
    const int file = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    if (file < 0) return 0;
    const ssize_t count = read(file, text, sizeof text - 1);
    close(file);
    const auto page = static_cast<unsigned long long>(sysconf(_SC_PAGESIZE));
    return count > 0 ? std::strtoull(text, nullptr, 10) * page : 0;
}

}  // namespace

LimitsText limits_text() noexcept
{
    LimitsText made{};
    rlimit limit{};
    const bool limited = getrlimit(RLIMIT_AS, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
    const unsigned long long mapped = mapped_bytes() >> 20;
    const unsigned long long most = limit.rlim_cur >> 20;
    if (limited) {
        std::snprintf(made.text, sizeof made.text,
                      "it has %llu MiB of addresses, and may have %llu MiB (ulimit -v)", mapped,
                      most);
    } else {
        std::snprintf(made.text, sizeof made.text, "it has %llu MiB of addresses, without a limit",
                      mapped);
    }
    return made;
}

Status no_thread(int os_errno, const char *purpose)
{
    return Status::os_error(STW_ERROR_LIMIT, os_errno,
                            "the system starts no thread of this process for %s: %s", purpose,
                            limits_text().text);
}

}  // namespace stepwell
