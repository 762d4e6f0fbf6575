// SPDX-License-Identifier: Apache-2.0
// The statistics page as a file in memory. Its room is taken when it is made: a write to it later
// cannot fail, whatever else fills that file system.
#include "lib/runtime/stats_page.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>

namespace stepwell {

namespace {

std::string page_directory()
{
    const char *directory = secure_getenv("XDG_RUNTIME_DIR");
    if (directory && *directory == '/' && access(directory, W_OK | X_OK) == 0) return directory;
    return "/dev/shm";
}

}  // namespace

Status StatsPage::error(const char *what, int os_errno) const
{
    stw_status code = STW_ERROR_IO;
    if (os_errno == EACCES || os_errno == EPERM || os_errno == EROFS) code = STW_ERROR_PERMISSION;
    if (os_errno == ENOSPC || os_errno == EDQUOT) code = STW_ERROR_NO_SPACE;
    if (os_errno == EMFILE || os_errno == ENFILE) code = STW_ERROR_LIMIT;
    return Status::os_error(code, os_errno,
                            "There is no statistics page for 'stepwell top': %s '%s' failed.", what,
                            path_.c_str());
}

Result<std::unique_ptr<StatsPage>> StatsPage::create(uint64_t runtime_serial)
{
    std::unique_ptr<StatsPage> page(new StatsPage());
    page->process_ = getpid();
    const std::string path =
        page_directory() + format_text("/stepwell-%d-%llu.stats", page->process_,
                                       static_cast<unsigned long long>(runtime_serial));
    // What is there is of a dead process that had this number.
    unlink(path.c_str());
    const int file =
        open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, S_IRUSR | S_IWUSR);
    page->path_ = path;
    if (file < 0) {
        const int os_errno = errno;
        Status status = page->error("creating", os_errno);
        page->path_.clear();
        return status;
    }
    const int cause = posix_fallocate(file, 0, kStatsPageBytes);
    void *memory = MAP_FAILED;
    if (cause == 0) {
        memory = mmap(nullptr, kStatsPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    }
    const int os_errno = cause == 0 ? errno : cause;
    close(file);
    if (memory == MAP_FAILED) return page->error("taking memory for", os_errno);
    madvise(memory, kStatsPageBytes, MADV_DONTFORK);
    page->layout_ = new (memory) Layout{};
    return page;
}

StatsPage::~StatsPage()
{
    if (process_ != getpid()) return;
    if (!path_.empty()) unlink(path_.c_str());
    if (layout_) munmap(layout_, kStatsPageBytes);
}

// As in the timeline: release and acquire on every word, so that whoever sees one word of a later
// text also sees the sequence by which it announced itself.
bool StatsPage::publish(std::string_view text)
{
    if (text.size() > sizeof layout_->words) return false;
    const uint64_t sequence = layout_->sequence.load(std::memory_order_relaxed);
    layout_->sequence.store(sequence + 1, std::memory_order_relaxed);
    layout_->bytes.store(text.size(), std::memory_order_release);
    for (size_t at = 0; at < text.size(); at += sizeof(uint64_t)) {
        uint64_t word = 0;
        std::memcpy(&word, text.data() + at, std::min(sizeof word, text.size() - at));
        layout_->words[at / sizeof word].store(word, std::memory_order_release);
    }
    layout_->sequence.store(sequence + 2, std::memory_order_release);
    layout_->magic.store(kStatsPageMagic, std::memory_order_release);
    return true;
}

uint64_t process_start_ticks()
{
    char text[1024];
    const int file = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
    if (file < 0) return 0;
    const ssize_t n = read(file, text, sizeof text - 1);
    close(file);
    if (n <= 0) return 0;
    text[n] = '\0';
    // The program's name may hold anything; the last parenthesis ends it. Field 3 follows.
    const char *at = std::strrchr(text, ')');
    for (uint32_t field = 2; at && field < 22; ++field) at = std::strchr(at + 1, ' ');
    return at ? std::strtoull(at, nullptr, 10) : 0;
}

}  // namespace stepwell
