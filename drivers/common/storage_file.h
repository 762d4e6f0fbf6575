// SPDX-License-Identifier: Apache-2.0
// A file in a directory of the user, with its whole size reserved in the file system. Without a
// name it is removed with its descriptor, so a killed process leaves nothing; with a name it stays,
// and is locked while a process has it open.
#pragma once

#include <stepwell/driver.h>

#include "drivers/common/descriptor.h"

#include <cstdint>
#include <string>

#include <sys/stat.h>

namespace stepwell::drivers {

// "ext4"; "0x..." of one that is not known. The number is statfs's.
std::string file_system_name(uint64_t magic);

enum class DirectIo { kRequired, kPreferred, kNever };

struct FileRequest {
    const char *driver;  // for sentences
    const char *path;
    uint64_t bytes;
    DirectIo direct;
    bool allow_tmpfs;
    const char *name;      // null: none
    uint32_t name_access;  // STW_STORAGE_NAME_*
};

class StorageFile {
public:
    static stw_status open(const FileRequest &request, StorageFile *file_out,
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
    static stw_status check(const FileRequest &request, stw_driver_error *error_out);
    stw_status open_directory(const FileRequest &request, stw_driver_error *error_out);
    stw_status look_at_file_system(const FileRequest &request, stw_driver_error *error_out);
    stw_status create(const FileRequest &request, stw_driver_error *error_out);
    stw_status create_named(const FileRequest &request, stw_driver_error *error_out);
    stw_status take_named(const FileRequest &request, struct stat *about_out,
                          stw_driver_error *error_out);
    stw_status open_named(const FileRequest &request, stw_driver_error *error_out);
    stw_status remove_named(const FileRequest &request, stw_driver_error *error_out);
    stw_status take_lock(const FileRequest &request, stw_driver_error *error_out) const;
    static stw_status exists(const FileRequest &request, stw_driver_error *error_out);
    static stw_status is_foreign(const FileRequest &request, stw_driver_error *error_out);
    stw_status make(const FileRequest &request, stw_driver_error *error_out);
    stw_status publish(const FileRequest &request, stw_driver_error *error_out) const;
    stw_status choose_direct(const FileRequest &request, stw_driver_error *error_out);
    stw_status check_limit(const FileRequest &request, stw_driver_error *error_out) const;
    stw_status check_room(const FileRequest &request, uint64_t freed_bytes,
                          stw_driver_error *error_out) const;
    stw_status reserve(const FileRequest &request, stw_driver_error *error_out);
    bool read_alignment();
    void add_remark(const std::string &text);

    Descriptor directory_;
    Descriptor file_;
    uint64_t bytes_ = 0;
    uint64_t block_bytes_ = 0;  // of the file system
    bool direct_ = false;
    bool copy_on_write_ = false;
    bool has_name_ = false;  // a new file that could not be made without one
    bool stays_ = false;     // under a name
    uint32_t alignment_bytes_ = 1;
    std::string file_system_;
    std::string remark_;
};

}  // namespace stepwell::drivers
