// SPDX-License-Identifier: Apache-2.0
// Opens, checks and reserves a scratch file. Each step that can fail writes its own sentence, and
// none leaves anything in the directory.
#include "drivers/common/scratch_file.h"

#include "drivers/common/edge.h"

#include <bit>
#include <cerrno>
#include <cinttypes>
#include <cstdio>

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/vfs.h>

namespace stepwell::drivers {

namespace {

constexpr uint32_t kAlignmentDefault = 4096;
constexpr uint64_t kAlignmentMax = 64 << 10;
constexpr int kNameTriesMax = 16;
constexpr mode_t kMode = 0600;

struct FileSystem {
    uint64_t magic;
    const char *name;
    bool copy_on_write;
    bool memory;
};
constexpr FileSystem kFileSystems[] = {
    {0xef53, "ext4", false, false},        {0x58465342, "xfs", false, false},
    {0x9123683e, "btrfs", true, false},    {0x2fc12fc1, "zfs", true, false},
    {0xca451a4e, "bcachefs", true, false}, {0x01021994, "tmpfs", false, true},
    {0x858458f6, "ramfs", false, true},    {0x794c7630, "overlay", false, false},
    {0xf2f52010, "f2fs", false, false},    {0x6969, "nfs", false, false},
    {0x65735546, "fuse", false, false},    {0xff534d42, "cifs", false, false},
    {0xfe534d42, "smb2", false, false},    {0x01021997, "9p", false, false},
    {0x00c36400, "ceph", false, false},    {0x0bd00bd0, "lustre", false, false},
    {0x47504653, "gpfs", false, false},
};

const FileSystem *find_file_system(uint64_t magic)
{
    for (const FileSystem &file_system : kFileSystems)
        if (file_system.magic == magic) return &file_system;
    return nullptr;
}

// openat2 where the kernel and its filters know it, else openat with the same flags.
int open_beneath(int directory, const char *name, int flags, mode_t mode, uint64_t resolve)
{
    open_how how = {};
    how.flags = static_cast<uint64_t>(flags);
    how.mode = (flags & (O_CREAT | O_TMPFILE)) != 0 ? mode : 0;
    how.resolve = resolve;
    const long fd = syscall(SYS_openat2, directory, name, &how, sizeof how);
    if (fd >= 0 || (errno != ENOSYS && errno != EPERM && errno != E2BIG))
        return static_cast<int>(fd);
    return openat(directory, name, flags, mode);
}

// For file systems without O_TMPFILE. The name lives for two system calls.
int create_and_unlink(int directory)
{
    for (int attempt = 0; attempt < kNameTriesMax; ++attempt) {
        uint64_t random = 0;
        if (getrandom(&random, sizeof random, 0) != sizeof random) return -1;
        char name[64];
        std::snprintf(name, sizeof name, ".stepwell-%d-%016" PRIx64, getpid(), random);
        const int fd =
            open_beneath(directory, name, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC | O_NOFOLLOW, kMode,
                         RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS);
        if (fd < 0 && errno == EEXIST) continue;
        if (fd < 0) return -1;
        if (unlinkat(directory, name, 0) == 0) return fd;
        const int cause = errno;
        close(fd);
        errno = cause;
        return -1;
    }
    errno = EEXIST;
    return -1;
}

uint64_t free_bytes(int fd)
{
    struct statvfs space = {};
    if (fstatvfs(fd, &space) != 0) return UINT64_MAX;  // unknown: fallocate decides
    return static_cast<uint64_t>(space.f_bavail) * space.f_frsize;
}

// 0, or the errno.
int allocate(int fd, int mode, uint64_t offset_bytes, uint64_t bytes)
{
    const auto begin = static_cast<off_t>(offset_bytes);
    int cause = 0;
    do {
        cause = fallocate(fd, mode, begin, static_cast<off_t>(bytes)) == 0 ? 0 : errno;
    } while (cause == EINTR);
    return cause;
}

}  // namespace

std::string file_system_name(uint64_t magic)
{
    const FileSystem *file_system = find_file_system(magic);
    char name[32];
    std::snprintf(name, sizeof name, "0x%" PRIx64, magic);
    return file_system != nullptr ? file_system->name : name;
}

void ScratchFile::add_remark(const std::string &text)
{
    if (!remark_.empty()) remark_ += " ";
    remark_ += text;
}

stw_status ScratchFile::open_directory(const ScratchRequest &request, stw_driver_error *error_out)
{
    const int fd =
        open_beneath(AT_FDCWD, request.path, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC, 0, 0);
    if (fd >= 0) {
        directory_ = Descriptor(fd);
        return STW_OK;
    }
    const int cause = errno;
    struct stat entry = {};
    if (cause == ENOTDIR && lstat(request.path, &entry) == 0 && S_ISLNK(entry.st_mode))
        return fail(error_out, STW_ERROR_INVALID, {cause, 0, 0},
                    "'%s' is a symbolic link; give the directory that it points to.", request.path);
    switch (cause) {
    case ENOENT:
        return fail(error_out, STW_ERROR_NOT_FOUND, {cause, 0, 0},
                    "The directory '%s' does not exist; create it or give another.", request.path);
    case ENOTDIR:
        return fail(error_out, STW_ERROR_INVALID, {cause, 0, 0},
                    "'%s' is not a directory; the nvme tier makes its file in a directory.",
                    request.path);
    case EACCES:
    case EPERM:
        return fail(error_out, STW_ERROR_PERMISSION, {cause, 0, 0},
                    "The directory '%s' may not be entered by this user.", request.path);
    default:
        return fail(error_out, STW_ERROR_IO, {cause, 0, 0}, "The directory '%s' cannot be opened.",
                    request.path);
    }
}

stw_status ScratchFile::look_at_file_system(const ScratchRequest &request,
                                            stw_driver_error *error_out)
{
    struct statfs about = {};
    if (fstatfs(directory_.get(), &about) != 0)
        return fail(error_out, STW_ERROR_IO, {errno, 0, 0},
                    "The file system of '%s' does not answer.", request.path);
    const uint64_t magic = static_cast<uint32_t>(about.f_type);
    block_bytes_ = static_cast<uint64_t>(about.f_bsize);
    const FileSystem *file_system = find_file_system(magic);
    file_system_ = file_system_name(magic);
    if (file_system == nullptr) return STW_OK;
    if (file_system->memory && !request.allow_tmpfs)
        return fail(error_out, STW_ERROR_UNSUPPORTED, {},
                    "'%s' is on %s, which is memory: a tier there would use up the memory that the "
                    "budgets limit. Give a directory on a disk; for tests, the driver option "
                    "allow_tmpfs=1 takes it.",
                    request.path, file_system->name);
    if (file_system->memory)
        add_remark(file_system_ + " is memory: this tier saves none and counts in no budget.");
    if (file_system->copy_on_write)
        add_remark(file_system_ + " copies on write: it cannot promise the reserved space to "
                                  "overwrites, and writes slower than ext4 or xfs.");
    return STW_OK;
}

stw_status ScratchFile::check_room(const ScratchRequest &request, stw_driver_error *error_out) const
{
    const uint64_t free = free_bytes(directory_.get());
    if (request.bytes > free)
        return fail(error_out, STW_ERROR_NO_SPACE, {ENOSPC, request.bytes, free},
                    "'%s' (%s) has %s free and %s are needed; free some, lower the nvme budget or "
                    "give another directory.",
                    request.path, file_system_.c_str(), bytes_text(free).c_str(),
                    bytes_text(request.bytes).c_str());
    rlimit limit = {};
    // Past this limit the kernel sends SIGXFSZ, which ends the process.
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
        request.bytes > limit.rlim_cur)
        return fail(error_out, STW_ERROR_NO_SPACE, {EFBIG, request.bytes, limit.rlim_cur},
                    "A file of %s in '%s' passes this process's limit of %s; raise it with "
                    "ulimit -f unlimited.",
                    bytes_text(request.bytes).c_str(), request.path,
                    bytes_text(limit.rlim_cur).c_str());
    return STW_OK;
}

stw_status ScratchFile::create(const ScratchRequest &request, stw_driver_error *error_out)
{
    int fd = open_beneath(directory_.get(), ".", O_TMPFILE | O_RDWR | O_CLOEXEC, kMode,
                          RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS);
    if (fd < 0 && (errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL || errno == ENOENT ||
                   errno == ENOSYS))
        fd = create_and_unlink(directory_.get());
    if (fd >= 0) {
        file_ = Descriptor(fd);
        return STW_OK;
    }
    const int cause = errno;
    if (cause == EACCES || cause == EPERM || cause == EROFS)
        return fail(error_out, STW_ERROR_PERMISSION, {cause, 0, 0},
                    "The directory '%s' is not writable%s.", request.path,
                    cause == EROFS ? ": its file system is mounted read-only" : " for this user");
    if (cause == ENOSPC || cause == EDQUOT)
        return fail(error_out, STW_ERROR_NO_SPACE,
                    {cause, request.bytes, free_bytes(directory_.get())},
                    "'%s' has no room for another file (inodes or quota).", request.path);
    return fail(error_out, STW_ERROR_IO, {cause, 0, 0}, "No file can be made in '%s'.",
                request.path);
}

// Of memory, offset and length. At least the file system's block: ext4 orders writes of less than
// a block behind all that is in flight, inside io_submit. False: O_DIRECT is refused.
bool ScratchFile::read_alignment()
{
    uint64_t alignment = kAlignmentDefault;
#ifdef STATX_DIOALIGN
    struct statx about = {};
    if (statx(file_.get(), "", AT_EMPTY_PATH, STATX_DIOALIGN, &about) == 0 &&
        (about.stx_mask & STATX_DIOALIGN) != 0) {
        if (about.stx_dio_offset_align == 0) return false;
        alignment = std::max(about.stx_dio_offset_align, about.stx_dio_mem_align);
    }
#endif
    if (std::has_single_bit(block_bytes_) && block_bytes_ <= kAlignmentMax)
        alignment = std::max(alignment, block_bytes_);
    alignment_bytes_ = static_cast<uint32_t>(alignment);
    return true;
}

stw_status ScratchFile::choose_direct(const ScratchRequest &request, stw_driver_error *error_out)
{
    if (request.direct == DirectIo::kNever) {
        add_remark("I/O is buffered by option.");
        return STW_OK;
    }
    // Set after the file is made: open with O_CREAT | O_DIRECT leaves a file behind when it fails.
    const int flags = fcntl(file_.get(), F_GETFL);
    int cause = 0;
    if (flags < 0 || fcntl(file_.get(), F_SETFL, flags | O_DIRECT) != 0) cause = errno;
    if (cause == 0 && !read_alignment()) {
        cause = EINVAL;
        fcntl(file_.get(), F_SETFL, flags);
    }
    direct_ = cause == 0;
    if (direct_) return STW_OK;
    if (request.direct == DirectIo::kRequired)
        return fail(error_out, STW_ERROR_UNSUPPORTED, {cause, 0, 0},
                    "%s on '%s' refuses O_DIRECT, without which the %s driver would block; use the "
                    "posix driver there.",
                    file_system_.c_str(), request.path, request.driver);
    add_remark(file_system_ + " refuses O_DIRECT: I/O is buffered, and pages are dropped behind "
                              "each request.");
    return STW_OK;
}

stw_status ScratchFile::reserve(const ScratchRequest &request, stw_driver_error *error_out)
{
    const int cause = allocate(file_.get(), 0, 0, request.bytes);
    if (cause == 0) return STW_OK;
    file_ = Descriptor();  // what was half reserved goes back before free space is read
    const uint64_t free = free_bytes(directory_.get());
    const Numbers numbers = {cause, request.bytes, free};
    if (cause == ENOSPC || cause == EDQUOT || cause == EFBIG)
        return fail(error_out, STW_ERROR_NO_SPACE, numbers,
                    "'%s' (%s) cannot reserve %s: %s are free, less what quotas and the largest "
                    "file allow.",
                    request.path, file_system_.c_str(), bytes_text(request.bytes).c_str(),
                    bytes_text(free).c_str());
    if (cause == EOPNOTSUPP || cause == ENOSYS)
        return fail(error_out, STW_ERROR_UNSUPPORTED, numbers,
                    "%s on '%s' cannot reserve space for a file (fallocate), so a write could fail "
                    "for lack of room later; give a directory on another file system.",
                    file_system_.c_str(), request.path);
    return fail(error_out, STW_ERROR_IO, numbers, "Reserving %s in '%s' failed.",
                bytes_text(request.bytes).c_str(), request.path);
}

stw_status ScratchFile::open(const ScratchRequest &request, ScratchFile *file_out,
                             stw_driver_error *error_out)
{
    if (request.path == nullptr || request.path[0] == '\0')
        return fail(error_out, STW_ERROR_INVALID, {}, "The nvme tier was given no directory.");
    if (request.bytes == 0 || request.bytes > static_cast<uint64_t>(INT64_MAX))
        return fail(error_out, STW_ERROR_INVALID, {0, request.bytes, 0},
                    "A file of %s cannot be made in '%s'.", bytes_text(request.bytes).c_str(),
                    request.path);
    ScratchFile file;
    file.bytes_ = request.bytes;
    using Step = stw_status (ScratchFile::*)(const ScratchRequest &, stw_driver_error *);
    constexpr Step kBefore[] = {&ScratchFile::open_directory, &ScratchFile::look_at_file_system};
    constexpr Step kAfter[] = {&ScratchFile::create, &ScratchFile::choose_direct,
                               &ScratchFile::reserve};
    for (const Step step : kBefore)
        if (const stw_status status = (file.*step)(request, error_out)) return status;
    if (const stw_status status = file.check_room(request, error_out)) return status;
    for (const Step step : kAfter)
        if (const stw_status status = (file.*step)(request, error_out)) return status;
    file.directory_ = Descriptor();  // it would keep the mount busy
    *file_out = std::move(file);
    return STW_OK;
}

void ScratchFile::info(uint32_t queue_depth, stw_storage_info *info_out) const
{
    stw_storage_info info = {};
    info.alignment_bytes = alignment_bytes_;
    info.queue_depth = queue_depth;
    info.bytes = bytes_;
    copy_text(info.file_system, sizeof info.file_system, file_system_);
    copy_text(info.remark, sizeof info.remark, remark_);
    give_info(info, info_out);
}

stw_status ScratchFile::flush() const
{
    return fdatasync(file_.get()) == 0 ? STW_OK : STW_ERROR_SYNC;
}

stw_status ScratchFile::give_back(uint64_t offset_bytes, uint64_t bytes) const
{
    if (bytes == 0 || offset_bytes > bytes_ || bytes > bytes_ - offset_bytes)
        return STW_ERROR_INVALID;
    constexpr int kHole = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
    return allocate(file_.get(), kHole, offset_bytes, bytes) == 0 ? STW_OK : STW_ERROR_UNSUPPORTED;
}

stw_status ScratchFile::take_back(uint64_t offset_bytes, uint64_t bytes,
                                  stw_driver_error *error_out) const
{
    if (bytes == 0 || offset_bytes > bytes_ || bytes > bytes_ - offset_bytes)
        return fail(error_out, STW_ERROR_INVALID, {}, "The range is not one of the file's.");
    const int cause = allocate(file_.get(), 0, offset_bytes, bytes);
    if (cause == 0) return STW_OK;
    const bool full = cause == ENOSPC || cause == EDQUOT;
    return fail(error_out, full ? STW_ERROR_NO_SPACE : STW_ERROR_IO,
                {cause, bytes, free_bytes(file_.get())},
                "%s cannot reserve %s again: others have taken the space meanwhile.",
                file_system_.c_str(), bytes_text(bytes).c_str());
}

}  // namespace stepwell::drivers
