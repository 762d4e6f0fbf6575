// SPDX-License-Identifier: Apache-2.0
// /proc/PID/stat, and where this process stands.
#include "lib/collective/process.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

namespace stepwell::collective {
namespace {

struct ProcessStat {
    char state = 0;
    uint64_t threads = 0;
    uint64_t start_ticks = 0;
};

// How many bytes, at most `capacity` - 1, or -1 with errno. A zero byte follows them.
ssize_t read_file(const char *path, char *text, size_t capacity)
{
    const int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0) return -1;
    const ssize_t n = read(file, text, capacity - 1);
    const int os_errno = errno;
    ::close(file);
    errno = os_errno;
    if (n >= 0) text[n] = '\0';
    return n;
}

// The field `count` fields behind; null where the text ends before.
const char *skip_fields(const char *at, uint32_t count)
{
    for (; at && count > 0; --count) at = std::strchr(at + 1, ' ');
    return at;
}

bool parse(const char *text, ProcessStat &out)
{
    // The program's name may hold anything; the last parenthesis ends it. Field 3 follows.
    const char *state = std::strrchr(text, ')');
    state = skip_fields(state, 1);
    const char *threads = skip_fields(state, 20 - 3);
    const char *start = skip_fields(threads, 22 - 20);
    if (!start) return false;
    out.state = state[1];
    out.threads = std::strtoull(threads, nullptr, 10);
    out.start_ticks = std::strtoull(start, nullptr, 10);
    return true;
}

uint64_t inode_of(const char *path)
{
    struct stat found {};
    return stat(path, &found) == 0 ? found.st_ino : 0;
}

}  // namespace

HostId this_host()
{
    char text[64];
    HostId host;
    if (read_file("/proc/sys/kernel/random/boot_id", text, sizeof text) < 36) return host;
    uint32_t digits = 0;
    for (const char *at = text; *at && digits < 32; ++at) {
        const char digit[] = {*at, '\0'};
        char *end = nullptr;
        const uint64_t value = std::strtoul(digit, &end, 16);
        if (end == digit) continue;
        host.boot[digits / 16] = host.boot[digits / 16] << 4 | value;
        ++digits;
    }
    host.process_namespace = inode_of("/proc/self/ns/pid");
    host.mount_namespace = inode_of("/proc/self/ns/mnt");
    host.user = geteuid();
    host.known = digits == 32 && host.process_namespace != 0 && host.mount_namespace != 0 ? 1 : 0;
    return host;
}

ProcessId this_process()
{
    char text[1024];
    ProcessStat found;
    ProcessId self{getpid(), 0};
    if (read_file("/proc/self/stat", text, sizeof text) > 0 && parse(text, found)) {
        self.start_ticks = found.start_ticks;
    }
    return self;
}

Life life_of(const ProcessId &process)
{
    char path[64];
    char text[1024];
    ProcessStat found;
    std::snprintf(path, sizeof path, "/proc/%lld/stat", static_cast<long long>(process.pid));
    if (process.start_ticks == 0) return Life::kUnknown;
    if (read_file(path, text, sizeof text) <= 0) {
        // Where /proc hides other processes a signal still tells whether there is one.
        const bool none = kill(static_cast<pid_t>(process.pid), 0) != 0 && errno == ESRCH;
        return none ? Life::kGone : Life::kUnknown;
    }
    if (!parse(text, found)) return Life::kUnknown;
    if (found.start_ticks != process.start_ticks) return Life::kGone;
    switch (found.state) {
    case 'T':
    case 't': return Life::kStopped;
    case 'X':
    case 'x': return Life::kGone;
    // The state is of the first thread, which may end before the others.
    case 'Z': return found.threads > 1 ? Life::kRuns : Life::kGone;
    default: return Life::kRuns;
    }
}

uint64_t monotonic_ns()
{
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

}  // namespace stepwell::collective
