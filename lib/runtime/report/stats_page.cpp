// SPDX-License-Identifier: Apache-2.0
// The statistics page in an unlinked memory file. Its memory is allocated when it is made, so that
// later writes cannot fail.
#include "lib/runtime/report/stats_page.h"

#include "lib/runtime/recording/grounds.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>

namespace stepwell {

Result<std::unique_ptr<StatsPage>> StatsPage::create()
{
    std::unique_ptr<StatsPage> page(new StatsPage());
    const auto failed = [](const char *what, int os_errno) {
        return Status::os_error(
            os_errno == EMFILE || os_errno == ENFILE ? STW_ERROR_LIMIT : STW_ERROR_MEMORY, os_errno,
            "There is no statistics page for 'stepwell top': %s failed", what);
    };
    page->file_ = memfd_create(kStatsPageName, MFD_CLOEXEC);
    if (page->file_ < 0) return failed("memfd_create", errno);
    const int cause = posix_fallocate(page->file_, 0, kStatsPageBytes);
    if (cause != 0) return failed("taking its memory", cause);
    void *memory =
        mmap(nullptr, kStatsPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, page->file_, 0);
    if (memory == MAP_FAILED) return failed("mapping it", errno);
    madvise(memory, kStatsPageBytes, MADV_DONTFORK);
    page->process_ = getpid();
    page->layout_ = new (memory) Layout{};
    return page;
}

StatsPage::~StatsPage()
{
    if (file_ >= 0) close(file_);
    // A fork's child does not have the mapping.
    if (layout_ && process_ == getpid()) munmap(layout_, kStatsPageBytes);
}

// As in the timeline: release and acquire on every word, so that a reader that sees a word of a
// later text also sees the sequence number written before it.
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
    // The program's name may contain anything; the last parenthesis ends it. Field 3 follows.
    const char *at = std::strrchr(text, ')');
    for (uint32_t field = 2; at && field < 22; ++field) at = std::strchr(at + 1, ' ');
    return at ? std::strtoull(at, nullptr, 10) : 0;
}

}  // namespace stepwell
