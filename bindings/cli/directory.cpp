// SPDX-License-Identifier: Apache-2.0
#include "directory.h"

#include "text.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <utility>

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

namespace stepwell::cli {

namespace {

constexpr const char *kMemory[] = {"tmpfs", "ramfs", "devtmpfs", "hugetlbfs"};
constexpr const char *kCopiesOnWrite[] = {"btrfs", "zfs", "bcachefs"};
constexpr const char *kRemote[] = {"nfs",  "nfs4", "cifs",   "smb3",      "9p",    "virtiofs",
                                   "ceph", "gpfs", "lustre", "glusterfs", "beegfs"};

class Descriptor {
public:
    explicit Descriptor(int fd) : fd_(fd) {}
    Descriptor(Descriptor &&other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
    ~Descriptor()
    {
        if (fd_ >= 0) close(fd_);
    }
    int get() const { return fd_; }

private:
    int fd_;
};

template <size_t N> bool is_one_of(const char *const (&names)[N], const std::string &name)
{
    return std::find(std::begin(names), std::end(names), name) != std::end(names);
}

void refuse(Directory *directory, std::string error, std::string remedy)
{
    directory->error = std::move(error);
    directory->remedy = std::move(remedy);
}

std::string in_quotes(const std::string &path)
{
    return "'" + printable(path) + "'";
}

void refuse_path(Directory *directory, int cause)
{
    const std::string name = in_quotes(directory->path);
    const std::string word = shell_word(directory->path);
    if (cause == ENOENT)
        refuse(directory, name + " does not exist.", "mkdir -p " + word);
    else if (cause == ENOTDIR)
        refuse(directory, name + " is not a directory.", "give the directory it is in");
    else if (cause == EACCES || cause == EPERM)
        refuse(directory, name + " may not be entered by this user.", "chmod u+rwx " + word);
    else
        refuse(directory, name + " cannot be looked at: " + std::strerror(cause) + ".", "");
}

// Without the last link followed, as a tier opens it.
bool find_directory(Directory *directory, uint64_t *mount_id_out)
{
    struct stat entry = {};
    if (lstat(directory->path.c_str(), &entry) != 0) return refuse_path(directory, errno), false;
    directory->is_link = S_ISLNK(entry.st_mode);
    if (stat(directory->path.c_str(), &entry) != 0) {
        const int cause = errno;
        if (directory->is_link && cause == ENOENT)
            refuse(directory, in_quotes(directory->path) + " is a symbolic link to nothing.",
                   "give a directory");
        else
            refuse_path(directory, cause);
        return false;
    }
    if (!S_ISDIR(entry.st_mode)) return refuse_path(directory, ENOTDIR), false;
    std::error_code error;
    directory->real_path = std::filesystem::canonical(directory->path, error).string();
    if (error) directory->real_path = directory->path;
    *mount_id_out = 0;
#ifdef STATX_MNT_ID
    struct statx about = {};
    if (statx(AT_FDCWD, directory->path.c_str(), 0, STATX_MNT_ID, &about) == 0 &&
        (about.stx_mask & STATX_MNT_ID) != 0)
        *mount_id_out = about.stx_mnt_id;
#endif
    return true;
}

bool look_at_room(Directory *directory)
{
    struct statvfs space = {};
    if (statvfs(directory->path.c_str(), &space) != 0) {
        refuse_path(directory, errno);
        return false;
    }
    directory->total_bytes = static_cast<uint64_t>(space.f_blocks) * space.f_frsize;
    directory->free_bytes = static_cast<uint64_t>(space.f_bfree) * space.f_frsize;
    directory->available_bytes = static_cast<uint64_t>(space.f_bavail) * space.f_frsize;
    if ((space.f_flag & ST_RDONLY) != 0) {
        refuse(directory, in_quotes(directory->path) + " is mounted read-only.",
               "mount -o remount,rw " + shell_word(directory->mount.point));
        return false;
    }
    // ramfs and some others count nothing.
    if (directory->total_bytes > 0 && directory->available_bytes < kStoreBytesMin) {
        refuse(directory,
               in_quotes(directory->path) + " is full: " + bytes_text(directory->available_bytes) +
                   " are available, and the smallest useful store takes " +
                   bytes_text(kStoreBytesMin) + ".",
               "du -xh --max-depth=1 " + shell_word(directory->mount.point) + " | sort -h");
        return false;
    }
    return true;
}

Descriptor create_and_unlink(const std::string &directory)
{
    std::string name = directory + "/.stepwell-info-XXXXXX";
    Descriptor file(mkostemp(name.data(), O_CLOEXEC));
    if (file.get() >= 0) unlink(name.c_str());
    return file;
}

// Set behind the creation: with O_CREAT some file systems leave a file behind when they refuse.
void try_direct(int file, Directory *directory)
{
    const int flags = fcntl(file, F_GETFL);
    directory->direct = flags >= 0 && fcntl(file, F_SETFL, flags | O_DIRECT) == 0;
#ifdef STATX_DIOALIGN
    struct statx about = {};
    if (!directory->direct || statx(file, "", AT_EMPTY_PATH, STATX_DIOALIGN, &about) != 0 ||
        (about.stx_mask & STATX_DIOALIGN) == 0)
        return;
    directory->memory_alignment_bytes = about.stx_dio_mem_align;
    directory->offset_alignment_bytes = about.stx_dio_offset_align;
    directory->direct = about.stx_dio_offset_align != 0;
#endif
}

void try_file(Directory *directory)
{
    Descriptor unnamed(open(directory->path.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
    directory->unnamed_files = unnamed.get() >= 0;
    int cause = errno;
    const bool lacks_it =
        cause == EOPNOTSUPP || cause == EISDIR || cause == EINVAL || cause == ENOENT;
    errno = cause;
    const Descriptor file = directory->unnamed_files ? std::move(unnamed)
                            : lacks_it               ? create_and_unlink(directory->path)
                                                     : std::move(unnamed);
    if (file.get() >= 0) {
        directory->tried = true;
        try_direct(file.get(), directory);
        return;
    }
    cause = errno;
    const std::string name = in_quotes(directory->path);
    if (cause == EACCES || cause == EPERM)
        refuse(directory, name + " is not writable for this user.",
               "chown \"$USER\" " + shell_word(directory->path));
    else
        refuse(directory, "No file can be made in " + name + ": " + std::strerror(cause) + ".", "");
}

}  // namespace

void classify_file_system(const std::string &type, Directory *directory)
{
    directory->file_system = printable(type);
    directory->is_memory = is_one_of(kMemory, type);
    directory->copies_on_write = is_one_of(kCopiesOnWrite, type);
    directory->is_remote = is_one_of(kRemote, type) || type.starts_with("fuse.sshfs");
}

Directory look_at_directory(const std::string &path, const std::vector<Mount> &mounts,
                            const std::string &root)
{
    Directory directory;
    directory.path = path;
    uint64_t mount_id = 0;
    if (!find_directory(&directory, &mount_id)) return directory;
    if (const Mount *mount = find_mount(mounts, mount_id, directory.real_path)) {
        directory.mount = *mount;
        classify_file_system(mount->type, &directory);
        directory.device = read_block_device(root, *mount);
    }
    if (look_at_room(&directory)) try_file(&directory);
    return directory;
}

}  // namespace stepwell::cli
