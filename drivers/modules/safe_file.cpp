// SPDX-License-Identifier: Apache-2.0
// One walk from the root down, a descriptor at a time.
#include "drivers/modules/safe_file.h"

#include "drivers/common/edge.h"

#include <cerrno>
#include <cstdlib>

#include <fcntl.h>
#include <sys/stat.h>

namespace stepwell::drivers {

namespace {

constexpr mode_t kWritableByOthers = S_IWGRP | S_IWOTH;
constexpr mode_t kModeBits = 07777;

// The path with symbolic links resolved; "" if it does not exist.
std::string resolved(const std::string &path)
{
    const std::unique_ptr<char, void (*)(void *)> real(realpath(path.c_str(), nullptr), std::free);
    return real ? real.get() : "";
}

class Walk {
public:
    Walk(const std::string &path, stw_driver_error *error_out) : path_(path), error_out_(error_out)
    {
    }

    stw_status run(Descriptor *file_out)
    {
        at_ = Descriptor(open("/", O_PATH | O_DIRECTORY | O_CLOEXEC));
        if (!at_.valid()) return cannot_open(errno);
        if (const stw_status status = check(true)) return status;
        for (size_t begin = path_.find_first_not_of('/'); begin != std::string::npos;) {
            const size_t end = path_.find('/', begin);
            const size_t next = path_.find_first_not_of('/', end);
            const std::string part = path_.substr(begin, end - begin);
            if (const stw_status status = enter(part, end != std::string::npos)) return status;
            begin = next;
        }
        *file_out = std::move(at_);
        return STW_OK;
    }

private:
    stw_status enter(const std::string &part, bool directory)
    {
        reached_ += (reached_.back() == '/' ? "" : "/") + part;
        // Without O_NONBLOCK the open of a pipe would block.
        const int flags = directory ? O_PATH | O_DIRECTORY : O_RDONLY | O_NONBLOCK | O_NOCTTY;
        Descriptor next(openat(at_.get(), part.c_str(), flags | O_NOFOLLOW | O_CLOEXEC));
        if (!next.valid()) {
            const int cause = errno;
            struct stat entry = {};
            const bool is_link =
                fstatat(at_.get(), part.c_str(), &entry, AT_SYMLINK_NOFOLLOW) == 0 &&
                S_ISLNK(entry.st_mode);
            return is_link ? is_symbolic_link(entry) : cannot_open(cause);
        }
        at_ = std::move(next);
        return check(directory);
    }

    stw_status check(bool directory)
    {
        struct stat entry = {};
        if (fstat(at_.get(), &entry) != 0) return cannot_open(errno);
        if (!directory && !S_ISREG(entry.st_mode))
            return fail(error_out_, STW_ERROR_INVALID, {},
                        "The module '%s' is not a regular file; give the path of a shared library.",
                        path_.c_str());
        if (entry.st_uid != 0 && entry.st_uid != geteuid())
            return unsafe(entry, "only root's and this user's are trusted", "chown root");
        const bool sticky = directory && (entry.st_mode & S_ISVTX) != 0;
        if ((entry.st_mode & kWritableByOthers) != 0 && !sticky)
            return unsafe(entry, "others may write to it", "chmod go-w");
        return STW_OK;
    }

    stw_status unsafe(const struct stat &entry, const char *why, const char *remedy)
    {
        const bool itself = reached_ == path_;
        return fail(error_out_, STW_ERROR_PERMISSION, {},
                    "The module '%s' is not loaded: %s%s%s belongs to user %u with mode %04o, and "
                    "%s (this process runs as user %u). To trust it: %s '%s'",
                    path_.c_str(), itself ? "it" : "the directory '",
                    itself ? "" : reached_.c_str(), itself ? "" : "'", entry.st_uid,
                    entry.st_mode & kModeBits, why, geteuid(), remedy, reached_.c_str());
    }

    stw_status is_symbolic_link(const struct stat &entry)
    {
        const std::string real = resolved(path_);
        return fail(error_out_, STW_ERROR_PERMISSION, {},
                    "The module '%s' is not loaded: '%s' is a symbolic link of user %u, and could "
                    "point elsewhere tomorrow. %s%s%s",
                    path_.c_str(), reached_.c_str(), entry.st_uid,
                    real.empty() ? "It points nowhere now" : "Give the path itself: '",
                    real.c_str(), real.empty() ? "." : "'.");
    }

    stw_status cannot_open(int cause)
    {
        const bool absent = cause == ENOENT || cause == ENOTDIR;
        const bool refused = cause == EACCES || cause == EPERM;
        return fail(error_out_,
                    absent    ? STW_ERROR_NOT_FOUND
                    : refused ? STW_ERROR_PERMISSION
                              : STW_ERROR_IO,
                    {cause, 0, 0}, "The module '%s' cannot be opened: '%s' %s.", path_.c_str(),
                    reached_.c_str(),
                    absent    ? "is not there"
                    : refused ? "may not be read by this user"
                              : "does not open");
    }

    const std::string &path_;
    stw_driver_error *error_out_;
    std::string reached_{"/"};  // the path of at_, or of the part being opened
    Descriptor at_;
};

}  // namespace

stw_status open_safe_file(const std::string &path, Descriptor *file_out,
                          stw_driver_error *error_out)
{
    return Walk(path, error_out).run(file_out);
}

}  // namespace stepwell::drivers
