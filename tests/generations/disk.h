// SPDX-License-Identifier: Apache-2.0
// A disk for the crash tests of stores: files with names that outlive their handles, a cache that a
// flush empties, and a power cut that leaves a random part of it. Requests are done when they are
// sent; what fails, and when the power goes, the test says. One thread.
#pragma once

#include <stepwell/driver.h>

#include <array>
#include <cstdint>
#include <map>
#include <random>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace stepwell::generations {

constexpr uint64_t kSectorBytes = 512;

class Disk {
public:
    explicit Disk(uint64_t seed) : random_(seed) {}

    // The driver, and the options that name this disk to it.
    static const stw_storage_ops &ops();
    [[nodiscard]] std::string options() const;

    // The power goes within this many requests and flushes from now on; 0: not at all. From then on
    // all fails, and nothing more reaches the disk.
    void cut_after(uint64_t requests) { left_ = requests; }
    [[nodiscard]] bool is_off() const { return off_; }
    // One of so many requests, or flushes, fails; 0: none does.
    uint32_t fail_one_in = 0;
    uint32_t fail_flush_one_in = 0;

    // On again. What was not flushed is there in part: each write by itself, and of each some
    // sectors. `lost`: the power was gone; else only the process was, and all is there.
    void restart(bool lost);

    [[nodiscard]] uint64_t requests() const { return requests_; }

private:
    struct Write {
        uint64_t offset = 0;
        std::vector<uint8_t> bytes;
    };
    // Sectors that were written; the others hold what the file system left there.
    using Sector = std::array<uint8_t, kSectorBytes>;
    using Image = std::unordered_map<uint64_t, Sector>;
    struct File {
        uint64_t bytes = 0;
        Image medium;              // what is safe
        Image now;                 // what a read sees
        std::vector<Write> cache;  // written since the last flush, in order
        std::vector<std::pair<uint64_t, uint64_t>> touched;  // since the last restart
        bool open = false;
    };
    struct Handle {
        Disk *disk = nullptr;
        File *file = nullptr;
        std::vector<stw_io_done> done;
    };

    static void keep(File &file, const stw_io &io);
    void save(File &file, bool in_part);
    bool goes_on();  // false: the power went, now or before
    int64_t serve(File &file, const stw_io &io);

    static stw_status open(const stw_services *, const stw_storage_options *options,
                           stw_storage **out, stw_driver_error *error);
    static void info(stw_storage *storage, stw_storage_info *out);
    static stw_status submit(stw_storage *storage, const stw_io *ios, uint32_t n, uint32_t *out);
    static uint32_t poll(stw_storage *storage, stw_io_done *done, uint32_t capacity, uint64_t);
    static stw_status flush(stw_storage *storage);
    static stw_status close(stw_storage *storage, uint64_t);

    std::mt19937_64 random_;
    std::map<std::string, File> files_;
    uint64_t left_ = 0;
    uint64_t requests_ = 0;
    bool off_ = false;
};

}  // namespace stepwell::generations
