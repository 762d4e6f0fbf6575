// SPDX-License-Identifier: Apache-2.0
// AtomicFile: everything goes relative to one descriptor of the directory, so that a directory
// renamed meanwhile cannot send the file elsewhere.
#include "lib/report/file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>

namespace stepwell::report {

namespace {

constexpr size_t kBufferBytes = 64 * 1024;
constexpr uint32_t kNamesMax =
    64;  // tried for the temporary file; a dead process may have left one

stw_status status_of(int os_errno)
{
    switch (os_errno) {
    case ENOENT:
    case ENOTDIR: return STW_ERROR_NOT_FOUND;
    case EACCES:
    case EPERM: return STW_ERROR_PERMISSION;
    case ENOSPC:
    case EDQUOT: return STW_ERROR_NO_SPACE;
    case EINVAL:
    case EISDIR:
    case ELOOP:
    case ENAMETOOLONG: return STW_ERROR_INVALID;
    case EMFILE:
    case ENFILE: return STW_ERROR_LIMIT;
    default: return STW_ERROR_IO;
    }
}

std::string directory_of(const std::string &path)
{
    const size_t slash = path.rfind('/');
    if (slash == std::string::npos) return ".";
    return slash == 0 ? "/" : path.substr(0, slash);
}

}  // namespace

Status AtomicFile::error(int os_errno, const char *action) const
{
    return Status::os_error(status_of(os_errno), os_errno,
                            "The %s could not be written to '%s': %s in the directory '%s' failed. "
                            "What was there before is unchanged.",
                            what_.c_str(), path_.c_str(), action, directory_of(path_).c_str());
}

Result<std::unique_ptr<AtomicFile>> AtomicFile::create(const char *path, const char *what)
{
    if (path == nullptr || *path == '\0') {
        return Status::error(STW_ERROR_INVALID, "The %s needs the path of a file; it is empty.",
                             what);
    }
    std::unique_ptr<AtomicFile> file(new AtomicFile(path, what));
    Status status = file->open();
    if (!status.ok()) return status;
    return file;
}

Status AtomicFile::open()
{
    const size_t slash = path_.rfind('/');
    name_ = slash == std::string::npos ? path_ : path_.substr(slash + 1);
    if (name_.empty() || name_ == "." || name_ == "..") {
        return Status::error(STW_ERROR_INVALID,
                             "The %s needs the path of a file; '%s' names a "
                             "directory.",
                             what_.c_str(), path_.c_str());
    }
    const std::string directory = directory_of(path_);
    directory_ = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (directory_ < 0) {
        const int os_errno = errno;
        return Status::os_error(status_of(os_errno), os_errno,
                                "The %s could not be written to '%s': the directory '%s' cannot be "
                                "opened. Name one that exists and may be written.",
                                what_.c_str(), path_.c_str(), directory.c_str());
    }
    // rename would say it too, but only after everything has been written.
    struct stat present;
    if (fstatat(directory_, name_.c_str(), &present, AT_SYMLINK_NOFOLLOW) == 0 &&
        S_ISDIR(present.st_mode)) {
        return error(EISDIR, "putting a file in the place of a directory");
    }
    return open_temporary();
}

Status AtomicFile::open_temporary()
{
    static std::atomic<uint32_t> numbers{0};
    for (uint32_t i = 0; i < kNamesMax; ++i) {
        const uint32_t number = numbers.fetch_add(1, std::memory_order_relaxed);
        const std::string name =
            format_text(".stepwell-%ld-%u.tmp", static_cast<long>(getpid()), number);
        file_ = openat(directory_, name.c_str(),
                       O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        if (file_ >= 0) {
            temporary_ = name;
            buffer_.reserve(kBufferBytes);
            return {};
        }
        if (errno != EEXIST) break;
    }
    return error(errno, "creating a temporary file");
}

AtomicFile::~AtomicFile()
{
    if (file_ >= 0) ::close(file_);
    if (!temporary_.empty()) unlinkat(directory_, temporary_.c_str(), 0);
    if (directory_ >= 0) ::close(directory_);
}

void AtomicFile::put(std::string_view bytes)
{
    while (!bytes.empty()) {
        const size_t taken = std::min(bytes.size(), kBufferBytes - buffer_.size());
        buffer_ += bytes.substr(0, taken);
        bytes.remove_prefix(taken);
        if (buffer_.size() == kBufferBytes) flush_buffer();
    }
}

ByteSink AtomicFile::sink()
{
    return {[](void *user, std::string_view bytes) { static_cast<AtomicFile *>(user)->put(bytes); },
            this};
}

void AtomicFile::flush_buffer()
{
    size_t written = 0;
    while (status_.ok() && written < buffer_.size()) {
        const ssize_t n = ::write(file_, buffer_.data() + written, buffer_.size() - written);
        if (n > 0) {
            written += static_cast<size_t>(n);
        } else if (n == 0 || errno != EINTR) {
            status_ = error(n == 0 ? EIO : errno, "writing the temporary file");
        }
    }
    buffer_.clear();
}

Status AtomicFile::commit()
{
    flush_buffer();
    STW_TRY(status_);
    // Without it a crash after the rename leaves an empty file in the place of the old one.
    if (fsync(file_) != 0) return error(errno, "syncing the temporary file");
    const int closed = ::close(file_);
    file_ = -1;
    if (closed != 0 && errno != EINTR) return error(errno, "closing the temporary file");
    if (renameat(directory_, temporary_.c_str(), directory_, name_.c_str()) != 0) {
        return error(errno, "renaming the temporary file");
    }
    temporary_.clear();
    // EINVAL: a file system whose directories cannot be synced one by one.
    if (fsync(directory_) != 0 && errno != EINVAL) {
        const int os_errno = errno;
        return Status::os_error(STW_ERROR_IO, os_errno,
                                "The %s was written to '%s', but its directory could not be "
                                "synced: it may be gone after a power cut.",
                                what_.c_str(), path_.c_str());
    }
    return {};
}

}  // namespace stepwell::report
