// SPDX-License-Identifier: Apache-2.0
// A page of memory that other processes of the user can read while this one runs: a file of mode
// 0600 in XDG_RUNTIME_DIR, or else in /dev/shm, with a text under a sequence lock. One writer,
// which never waits for a reader. The file goes with the object. docs/command.md has the layout.
#pragma once

#include "lib/support/status.h"

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace stepwell {

constexpr uint32_t kStatsPageBytes = 32768;
constexpr uint64_t kStatsPageMagic = 0x3147415453505453;  // "STPSTAG1", little endian

class StatsPage {
public:
    // PERMISSION, NO_SPACE, IO, LIMIT.
    static Result<std::unique_ptr<StatsPage>> create(uint64_t runtime_serial);
    ~StatsPage();
    StatsPage(const StatsPage &) = delete;
    StatsPage &operator=(const StatsPage &) = delete;

    // One thread at a time. What is longer than the page is left out, and false.
    bool publish(std::string_view text);
    [[nodiscard]] const std::string &path() const { return path_; }

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
    [[nodiscard]] Status error(const char *what, int os_errno) const;

    std::string path_;
    Layout *layout_ = nullptr;
    int process_ = 0;  // that made it; a child of fork must not take it away
};

// Field 22 of /proc/PID/stat; 0 where it cannot be read.
uint64_t process_start_ticks();

}  // namespace stepwell
