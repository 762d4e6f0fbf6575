// SPDX-License-Identifier: Apache-2.0
// Written under another name in the same directory, synced, renamed.
#include "whole_file.h"

#include "signals.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace stepwell::cli {

std::string directory_of(const std::string &path)
{
    const std::string parent = std::filesystem::path(path).parent_path();
    return parent.empty() ? "." : parent;
}

bool write_all(int file, const std::string &text)
{
    size_t done = 0;
    while (done < text.size()) {
        const ssize_t n = write(file, text.data() + done, text.size() - done);
        if (n < 0 && errno == EINTR) continue;
        if (n <= 0) return false;
        done += static_cast<size_t>(n);
    }
    return true;
}

int write_whole(const std::string &path, const std::string &text, mode_t mode)
{
    const SignalsHeld signals;
    std::string temporary = directory_of(path) + "/.stepwell-XXXXXX";
    const int file = mkostemp(temporary.data(), O_CLOEXEC);
    if (file < 0) return errno;
    bool done = write_all(file, text) && fchmod(file, mode) == 0 && fsync(file) == 0;
    int cause = errno;
    if (close(file) != 0 && done) done = false, cause = errno;
    if (done && rename(temporary.c_str(), path.c_str()) == 0) return 0;
    if (done) cause = errno;
    unlink(temporary.c_str());
    return cause;
}

}  // namespace stepwell::cli
