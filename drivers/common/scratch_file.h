// SPDX-License-Identifier: Apache-2.0
// A file without a name in a directory of the user's, with its whole size promised by the file
// system. It is gone with its descriptor, so a killed process leaves nothing behind.
#pragma once

#include <stepwell/driver.h>

#include "drivers/common/descriptor.h"

#include <cstdint>
#include <string>

namespace stepwell::drivers {

// "ext4"; "0x..." of one that is not known. The number is statfs's.
std::string file_system_name(uint64_t magic);

enum class DirectIo { kRequired, kPreferred, kNever };

struct ScratchRequest {
    const char *driver;  // for sentences
    const char *path;
    uint64_t bytes;
    DirectIo direct;
    bool allow_tmpfs;
};

class ScratchFile {
public:
    static stw_status open(const ScratchRequest &request, ScratchFile *file_out,
                           stw_driver_error *error_out);

    void info(uint32_t queue_depth, stw_storage_info *info_out) const;
    stw_status flush() const;
    stw_status give_back(uint64_t offset_bytes, uint64_t bytes) const;
    stw_status take_back(uint64_t offset_bytes, uint64_t bytes, stw_driver_error *error_out) const;

    int fd() const { return file_.get(); }
    uint64_t bytes() const { return bytes_; }
    bool direct() const { return direct_; }
    uint32_t alignment_bytes() const { return alignment_bytes_; }

private:
    stw_status open_directory(const ScratchRequest &request, stw_driver_error *error_out);
    stw_status look_at_file_system(const ScratchRequest &request, stw_driver_error *error_out);
    stw_status create(const ScratchRequest &request, stw_driver_error *error_out);
    stw_status choose_direct(const ScratchRequest &request, stw_driver_error *error_out);
    stw_status check_room(const ScratchRequest &request, stw_driver_error *error_out) const;
    stw_status reserve(const ScratchRequest &request, stw_driver_error *error_out);
    bool read_alignment();
    void add_remark(const std::string &text);

    Descriptor directory_;
    Descriptor file_;
    uint64_t bytes_ = 0;
    uint64_t block_bytes_ = 0;  // of the file system
    bool direct_ = false;
    uint32_t alignment_bytes_ = 1;
    std::string file_system_;
    std::string remark_;
};

}  // namespace stepwell::drivers
