// SPDX-License-Identifier: Apache-2.0
// A page of memory that other processes of the user can read while this one runs: an unlinked file
// (memfd), which they find in /proc/PID/fd, with a text under a sequence lock. One writer, which
// never waits for readers. Disappears with the process. docs/command.md has the layout.
#pragma once

#include "lib/support/status.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace stepwell {

constexpr uint32_t kStatsPageBytes = 32768;
constexpr const char *kStatsPageName = "stepwell-stats";
constexpr uint64_t kStatsPageMagic = 0x3147415453505453;  // "STPSTAG1", little endian

class StatsPage {
public:
    // MEMORY, LIMIT.
    static Result<std::unique_ptr<StatsPage>> create();
    ~StatsPage();
    StatsPage(const StatsPage &) = delete;
    StatsPage &operator=(const StatsPage &) = delete;

    // One thread at a time. False, and nothing is published, if the text is longer than the page.
    bool publish(std::string_view text);
    [[nodiscard]] int file() const { return file_; }

private:
    // The sequence is odd while the text is being written.
    struct Layout {
        std::atomic<uint64_t> magic;
        std::atomic<uint64_t> sequence;
        std::atomic<uint64_t> bytes;  // of the text
        std::atomic<uint64_t> words[kStatsPageBytes / 8 - 3];
    };
    static_assert(sizeof(Layout) == kStatsPageBytes);
    static_assert(std::atomic<uint64_t>::is_always_lock_free);

    StatsPage() = default;

    int file_ = -1;
    Layout *layout_ = nullptr;
    int process_ = 0;  // the process that made it
};

// Field 22 of /proc/PID/stat; 0 where it cannot be read.
uint64_t process_start_ticks();

}  // namespace stepwell
