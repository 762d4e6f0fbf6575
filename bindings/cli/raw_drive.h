// SPDX-License-Identifier: Apache-2.0
// What a drive gives without the library: O_DIRECT reads and writes by several threads on one file
// without a name. The limit that a tier is held against.
#pragma once

#include <cstdint>
#include <string>

namespace stepwell::cli {

class RawDrive {
public:
    RawDrive(const std::string &directory, uint64_t bytes);  // throws Failed; writes it all once
    ~RawDrive();
    RawDrive(const RawDrive &) = delete;
    RawDrive &operator=(const RawDrive &) = delete;

    // The requests that are fastest here, of a few; asked for before rates are.
    void find_best();
    // Bytes a second over the whole file, or as far as the time reaches.
    double read(double seconds_most) const;
    double write(double seconds_most) const;
    std::string setting(bool reads) const;  // "1 MiB x 16"

private:
    struct Way {
        uint64_t request_bytes = 1 << 20;
        uint32_t threads = 16;
    };
    double run(bool reads, const Way &way, double seconds_most) const;

    std::string directory_;
    int file_ = -1;
    uint64_t bytes_ = 0;
    Way reads_;
    Way writes_;
};

}  // namespace stepwell::cli
