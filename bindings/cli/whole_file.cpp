// SPDX-License-Identifier: Apache-2.0
// Written under another name in the same directory, synced, renamed. Opened for reading without
// waiting, since a pipe may have no writer, ever.
#include "whole_file.h"

#include "signals.h"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

namespace stepwell::cli {

namespace {

constexpr size_t kChunkBytes = 64 << 10;

int read_to_end(int file, size_t bytes_max, std::string *text)
{
    for (;;) {
        const size_t had = text->size();
        text->resize(had + kChunkBytes);
        const ssize_t n = read(file, text->data() + had, kChunkBytes);
        const int cause = errno;
        text->resize(had + static_cast<size_t>(n > 0 ? n : 0));
        if (n == 0) return 0;
        if (text->size() > bytes_max) return EFBIG;
        if (n > 0 || cause == EINTR) continue;
        if (cause != EAGAIN) return cause;
        pollfd wanted = {file, POLLIN, 0};
        if (poll(&wanted, 1, -1) < 0 && errno != EINTR) return errno;
    }
}

}  // namespace

int read_whole(const std::string &path, size_t bytes_max, std::string *text)
{
    text->clear();
    const int file = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (file < 0) return errno;
    const int cause = read_to_end(file, bytes_max, text);
    close(file);
    return cause;
}

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
