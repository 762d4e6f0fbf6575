// SPDX-License-Identifier: Apache-2.0
// Opens, checks and reserves a file of storage. Each step that can fail has its own sentence, and
// none leaves anything in the directory: a new file gets its name last, when it is complete.
#include "drivers/common/storage_file.h"

#include "drivers/common/edge.h"

#include <bit>
#include <cerrno>
#include <cinttypes>
#include <climits>
#include <cstdio>
#include <string_view>

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

int create_new(int directory, const char *name)
{
    return open_beneath(directory, name, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC | O_NOFOLLOW, kMode,
                        RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS);
}

// For file systems without O_TMPFILE. The name exists for two system calls.
int create_and_unlink(int directory)
{
    for (int attempt = 0; attempt < kNameTriesMax; ++attempt) {
        uint64_t random = 0;
        if (getrandom(&random, sizeof random, 0) != sizeof random) return -1;
        char name[64];
        std::snprintf(name, sizeof name, ".stepwell-%d-%016" PRIx64, getpid(), random);
        const int fd = create_new(directory, name);
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

// A name in the directory, never a path out of it.
bool is_file_name(std::string_view name)
{
    return !name.empty() && name.size() <= NAME_MAX && name.front() != '.' &&
           name.find('/') == std::string_view::npos;
}

bool is_of_this_user_alone(const struct stat &about)
{
    return S_ISREG(about.st_mode) && about.st_uid == geteuid() && (about.st_mode & 077) == 0;
}

uint64_t allocated_bytes(const struct stat &about)
{
    constexpr uint64_t kUnit = 512;  // of st_blocks, whatever the file system's block is
    return static_cast<uint64_t>(about.st_blocks) * kUnit;
}

// Bytes that are freed when the file is removed: none if it has another name.
uint64_t freed_by_removal(const struct stat &about)
{
    return about.st_nlink == 1 ? allocated_bytes(about) : 0;
}

}  // namespace

std::string file_system_name(uint64_t magic)
{
    const FileSystem *file_system = find_file_system(magic);
    char name[32];
    std::snprintf(name, sizeof name, "0x%" PRIx64, magic);
    return file_system != nullptr ? file_system->name : name;
}

void StorageFile::add_remark(const std::string &text)
{
    if (!remark_.empty()) remark_ += " ";
    remark_ += text;
}

stw_status StorageFile::open_directory(const FileRequest &request, stw_driver_error *error_out)
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

stw_status StorageFile::look_at_file_system(const FileRequest &request, stw_driver_error *error_out)
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
    copy_on_write_ = file_system->copy_on_write;
    if (copy_on_write_)
        add_remark(file_system_ + " copies on write: it cannot promise the reserved space to "
                                  "overwrites, and writes slower than ext4 or xfs.");
    return STW_OK;
}

// Past this limit the kernel sends SIGXFSZ, which ends the process, even if a write does not change
// the file's size.
stw_status StorageFile::check_limit(const FileRequest &request, stw_driver_error *error_out) const
{
    rlimit limit = {};
    if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY ||
        bytes_ <= limit.rlim_cur)
        return STW_OK;
    return fail(error_out, STW_ERROR_NO_SPACE, {EFBIG, bytes_, limit.rlim_cur},
                "A file of %s in '%s' passes this process's limit of %s; raise it with "
                "ulimit -f unlimited.",
                bytes_text(bytes_).c_str(), request.path, bytes_text(limit.rlim_cur).c_str());
}

// `freed_bytes`: of a file that is removed before this one is made.
stw_status StorageFile::check_room(const FileRequest &request, uint64_t freed_bytes,
                                   stw_driver_error *error_out) const
{
    uint64_t free = 0;
    if (__builtin_add_overflow(free_bytes(directory_.get()), freed_bytes, &free)) free = UINT64_MAX;
    if (request.bytes > free)
        return fail(error_out, STW_ERROR_NO_SPACE, {ENOSPC, request.bytes, free},
                    "'%s' (%s) has %s free and %s are needed; free some, lower the nvme budget or "
                    "give another directory.",
                    request.path, file_system_.c_str(), bytes_text(free).c_str(),
                    bytes_text(request.bytes).c_str());
    return check_limit(request, error_out);
}

stw_status StorageFile::create(const FileRequest &request, stw_driver_error *error_out)
{
    int fd = open_beneath(directory_.get(), ".", O_TMPFILE | O_RDWR | O_CLOEXEC, kMode,
                          RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS);
    if (fd < 0 && (errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL || errno == ENOENT ||
                   errno == ENOSYS)) {
        const bool named = request.name != nullptr;
        fd = named ? create_new(directory_.get(), request.name)
                   : create_and_unlink(directory_.get());
        has_name_ = named && fd >= 0;  // else it is another's
    }
    if (fd >= 0) {
        file_ = Descriptor(fd);
        return request.name != nullptr ? take_lock(request, error_out) : STW_OK;
    }
    const int cause = errno;
    if (cause == EEXIST && request.name != nullptr) return exists(request, error_out);
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
// a block after all that is in flight, inside io_submit. False: O_DIRECT is refused.
bool StorageFile::read_alignment()
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

stw_status StorageFile::choose_direct(const FileRequest &request, stw_driver_error *error_out)
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

// Reserves what is not reserved yet: all of a new file, the holes of an existing one.
stw_status StorageFile::reserve(const FileRequest &request, stw_driver_error *error_out)
{
    struct stat about = {};
    fstat(file_.get(), &about);
    const int cause = allocate(file_.get(), 0, 0, bytes_);
    if (cause == 0) return STW_OK;
    file_ = Descriptor();  // partly reserved space is freed before free space is read
    const uint64_t free = free_bytes(directory_.get());
    const uint64_t needed = bytes_ - std::min(bytes_, allocated_bytes(about));
    const Numbers numbers = {cause, needed, free};
    if (cause == ENOSPC || cause == EDQUOT || cause == EFBIG)
        return fail(error_out, STW_ERROR_NO_SPACE, numbers,
                    "'%s' (%s) cannot reserve %s: %s are free, less what quotas and the largest "
                    "file allow.",
                    request.path, file_system_.c_str(), bytes_text(needed).c_str(),
                    bytes_text(free).c_str());
    if (cause == EOPNOTSUPP || cause == ENOSYS)
        return fail(error_out, STW_ERROR_UNSUPPORTED, numbers,
                    "%s on '%s' cannot reserve space for a file (fallocate), so a write could fail "
                    "for lack of room later; give a directory on another file system.",
                    file_system_.c_str(), request.path);
    return fail(error_out, STW_ERROR_IO, numbers, "Reserving %s in '%s' failed.",
                bytes_text(needed).c_str(), request.path);
}

stw_status StorageFile::exists(const FileRequest &request, stw_driver_error *error_out)
{
    return fail(error_out, STW_ERROR_EXISTS, {EEXIST, 0, 0},
                "'%s/%s' is there already; resume it, or say that it may be overwritten.",
                request.path, request.name);
}

stw_status StorageFile::is_foreign(const FileRequest &request, stw_driver_error *error_out)
{
    return fail(error_out, STW_ERROR_PERMISSION, {},
                "'%s/%s' is not a regular file of this user's that nobody else may read or write "
                "(mode 0600); a store is taken from no other.",
                request.path, request.name);
}

// A lock of the open file description: the kernel holds it until the last I/O of a killed process
// is over.
stw_status StorageFile::take_lock(const FileRequest &request, stw_driver_error *error_out) const
{
    struct flock lock = {};
    lock.l_type = F_WRLCK;
    lock.l_whence = SEEK_SET;
    if (fcntl(file_.get(), F_OFD_SETLK, &lock) == 0) return STW_OK;
    const int cause = errno;
    if (cause == EAGAIN || cause == EACCES)
        return fail(error_out, STW_ERROR_LOCKED, {cause, 0, 0},
                    "'%s/%s' is in use by another process, or by one that was killed and whose I/O "
                    "is not over; close it there, or try again.",
                    request.path, request.name);
    return fail(error_out, STW_ERROR_UNSUPPORTED, {cause, 0, 0},
                "%s on '%s' has no locks on files, so two processes could write one store; give a "
                "directory on another file system.",
                file_system_.c_str(), request.path);
}

// Opens and locks the file of that name: a regular file of this user that no other process has
// open.
stw_status StorageFile::take_named(const FileRequest &request, struct stat *about_out,
                                   stw_driver_error *error_out)
{
    // Checked before it is opened as well: opening a FIFO or a device has effects.
    if (fstatat(directory_.get(), request.name, about_out, AT_SYMLINK_NOFOLLOW) == 0 &&
        !S_ISREG(about_out->st_mode))
        return is_foreign(request, error_out);
    const int fd =
        open_beneath(directory_.get(), request.name, O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK,
                     kMode, RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS);
    const int cause = fd < 0 ? errno : 0;
    if (cause == ENOENT)
        return fail(error_out, STW_ERROR_NOT_FOUND, {cause, 0, 0}, "There is no '%s' in '%s'.",
                    request.name, request.path);
    if (cause != 0) {
        const bool refused = cause == EACCES || cause == EPERM || cause == EROFS;
        return fail(error_out, refused ? STW_ERROR_PERMISSION : STW_ERROR_IO, {cause, 0, 0},
                    "'%s/%s' cannot be opened for reading and writing.", request.path,
                    request.name);
    }
    file_ = Descriptor(fd);
    if (fstat(fd, about_out) == 0 && !is_of_this_user_alone(*about_out))
        return is_foreign(request, error_out);
    if (const stw_status status = take_lock(request, error_out)) return status;
    // Others may have changed or removed it before the lock was ours.
    if (fstat(fd, about_out) != 0)
        return fail(error_out, STW_ERROR_IO, {errno, 0, 0}, "'%s/%s' does not answer.",
                    request.path, request.name);
    if (about_out->st_nlink != 0) return STW_OK;
    return fail(error_out, STW_ERROR_NOT_FOUND, {ENOENT, 0, 0},
                "'%s/%s' was removed while it was opened.", request.path, request.name);
}

stw_status StorageFile::open_named(const FileRequest &request, stw_driver_error *error_out)
{
    struct stat about = {};
    if (const stw_status status = take_named(request, &about, error_out)) return status;
    bytes_ = static_cast<uint64_t>(about.st_size);
    if (request.bytes != 0 && request.bytes != bytes_)
        return fail(error_out, STW_ERROR_MISMATCH, {0, request.bytes, bytes_},
                    "'%s/%s' has %s, and %s were asked for; open it with the budget that it was "
                    "made with.",
                    request.path, request.name, bytes_text(bytes_).c_str(),
                    bytes_text(request.bytes).c_str());
    if (bytes_ == 0)
        return fail(error_out, STW_ERROR_FORMAT, {}, "'%s/%s' is empty.", request.path,
                    request.name);
    if (const stw_status status = check_limit(request, error_out)) return status;
    if (const stw_status status = choose_direct(request, error_out)) return status;
    // Space that was given back is reserved anew; a file system that copies on write reserves none.
    return copy_on_write_ ? STW_OK : reserve(request, error_out);
}

// A file that another process has open stays, and so does one whose replacement would not fit.
stw_status StorageFile::remove_named(const FileRequest &request, stw_driver_error *error_out)
{
    struct stat about = {};
    StorageFile old;
    old.directory_ = Descriptor(fcntl(directory_.get(), F_DUPFD_CLOEXEC, 0));
    old.file_system_ = file_system_;
    stw_status status = old.take_named(request, &about, error_out);
    if (status == STW_ERROR_NOT_FOUND) return STW_OK;
    if (status == STW_OK) status = check_room(request, freed_by_removal(about), error_out);
    if (status != STW_OK) return status;
    if (unlinkat(directory_.get(), request.name, 0) == 0 || errno == ENOENT) return STW_OK;
    return fail(error_out, STW_ERROR_PERMISSION, {errno, 0, 0},
                "'%s/%s' cannot be removed to make a new one.", request.path, request.name);
}

stw_status StorageFile::make(const FileRequest &request, stw_driver_error *error_out)
{
    using Step = stw_status (StorageFile::*)(const FileRequest &, stw_driver_error *);
    constexpr Step kSteps[] = {&StorageFile::create, &StorageFile::choose_direct,
                               &StorageFile::reserve};
    if (const stw_status status = check_room(request, 0, error_out)) return status;
    for (const Step step : kSteps)
        if (const stw_status status = (this->*step)(request, error_out)) return status;
    return STW_OK;
}

// A new file is complete except for its name.
stw_status StorageFile::publish(const FileRequest &request, stw_driver_error *error_out) const
{
    char self[64];
    std::snprintf(self, sizeof self, "/proc/self/fd/%d", file_.get());
    if (fsync(file_.get()) != 0)
        return fail(error_out, STW_ERROR_SYNC, {errno, 0, 0}, "'%s/%s' cannot be flushed.",
                    request.path, request.name);
    if (!has_name_ &&
        linkat(AT_FDCWD, self, directory_.get(), request.name, AT_SYMLINK_FOLLOW) != 0) {
        const int cause = errno;
        if (cause == EEXIST) return exists(request, error_out);
        const bool full = cause == ENOSPC || cause == EDQUOT;
        return fail(error_out, full ? STW_ERROR_NO_SPACE : STW_ERROR_IO, {cause, 0, 0},
                    "%s on '%s' gives a new file no name ('%s').", file_system_.c_str(),
                    request.path, request.name);
    }
    const Descriptor directory(open_beneath(directory_.get(), ".",
                                            O_RDONLY | O_DIRECTORY | O_CLOEXEC, 0,
                                            RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS));
    if (directory.valid() && fsync(directory.get()) == 0) return STW_OK;
    const int cause = errno;
    unlinkat(directory_.get(), request.name, 0);
    return fail(error_out, STW_ERROR_SYNC, {cause, 0, 0}, "The name of '%s/%s' cannot be flushed.",
                request.path, request.name);
}

stw_status StorageFile::create_named(const FileRequest &request, stw_driver_error *error_out)
{
    struct stat about = {};
    const bool replaces = request.name_access == STW_STORAGE_NAME_REPLACE;
    if (replaces) {
        if (const stw_status status = remove_named(request, error_out)) return status;
    } else if (fstatat(directory_.get(), request.name, &about, AT_SYMLINK_NOFOLLOW) == 0) {
        return exists(request, error_out);
    }
    stw_status status = make(request, error_out);
    if (status == STW_OK) status = publish(request, error_out);
    if (status != STW_OK && has_name_) unlinkat(directory_.get(), request.name, 0);
    return status;
}

stw_status StorageFile::check(const FileRequest &request, stw_driver_error *error_out)
{
    if (request.path == nullptr || request.path[0] == '\0')
        return fail(error_out, STW_ERROR_INVALID, {}, "The nvme tier was given no directory.");
    const bool named = request.name != nullptr;
    const std::string_view name = named ? request.name : "";
    if (name.size() > NAME_MAX)
        return fail(error_out, STW_ERROR_INVALID, {},
                    "A name of %zu bytes is too long for a file in '%s': at most %d.", name.size(),
                    request.path, NAME_MAX);
    if (named && !is_file_name(name))
        return fail(error_out, STW_ERROR_INVALID, {},
                    "'%s' is no name for a file in '%s': at most %d bytes, no '/', no '.' in "
                    "front.",
                    request.name, request.path, NAME_MAX);
    if (named && (request.name_access < STW_STORAGE_NAME_CREATE ||
                  request.name_access > STW_STORAGE_NAME_REPLACE))
        return fail(error_out, STW_ERROR_INVALID, {}, "%u is no way to open '%s/%s'.",
                    request.name_access, request.path, request.name);
    const bool opens = named && request.name_access == STW_STORAGE_NAME_OPEN;
    if ((request.bytes == 0 && !opens) || request.bytes > static_cast<uint64_t>(INT64_MAX))
        return fail(error_out, STW_ERROR_INVALID, {0, request.bytes, 0},
                    "A file of %s cannot be made in '%s'.", bytes_text(request.bytes).c_str(),
                    request.path);
    return STW_OK;
}

stw_status StorageFile::open(const FileRequest &request, StorageFile *file_out,
                             stw_driver_error *error_out)
{
    if (const stw_status status = check(request, error_out)) return status;
    const bool named = request.name != nullptr;
    const bool opens = named && request.name_access == STW_STORAGE_NAME_OPEN;
    StorageFile file;
    file.bytes_ = request.bytes;
    file.stays_ = named;
    using Step = stw_status (StorageFile::*)(const FileRequest &, stw_driver_error *);
    const Step steps[] = {&StorageFile::open_directory, &StorageFile::look_at_file_system,
                          opens   ? &StorageFile::open_named
                          : named ? &StorageFile::create_named
                                  : &StorageFile::make};
    for (const Step step : steps)
        if (const stw_status status = (file.*step)(request, error_out)) return status;
    file.directory_ = Descriptor();  // it would keep the mount busy
    *file_out = std::move(file);
    return STW_OK;
}

void StorageFile::info(uint32_t queue_depth, stw_storage_info *info_out) const
{
    stw_storage_info info = {};
    info.alignment_bytes = alignment_bytes_;
    info.queue_depth = queue_depth;
    info.bytes = bytes_;
    copy_text(info.file_system, sizeof info.file_system, file_system_);
    copy_text(info.remark, sizeof info.remark, remark_);
    give_info(info, info_out);
}

stw_status StorageFile::flush() const
{
    if (fdatasync(file_.get()) != 0) return STW_ERROR_SYNC;
    struct stat about = {};
    const bool removed = stays_ && fstat(file_.get(), &about) == 0 && about.st_nlink == 0;
    return removed ? STW_ERROR_NOT_FOUND : STW_OK;
}

stw_status StorageFile::give_back(uint64_t offset_bytes, uint64_t bytes) const
{
    if (bytes == 0 || offset_bytes > bytes_ || bytes > bytes_ - offset_bytes)
        return STW_ERROR_INVALID;
    constexpr int kHole = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
    return allocate(file_.get(), kHole, offset_bytes, bytes) == 0 ? STW_OK : STW_ERROR_UNSUPPORTED;
}

stw_status StorageFile::take_back(uint64_t offset_bytes, uint64_t bytes,
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
