// SPDX-License-Identifier: Apache-2.0
// A file that appears whole or not at all: written under a temporary name in its own directory,
// then synced and renamed. What was at the path stays until the rename; a symbolic link there is
// replaced, not followed. Blocks for the file. One thread at a time per object.
#pragma once

#include "lib/report/json.h"
#include "lib/support/status.h"

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace stepwell::report {

class AtomicFile {
public:
    // `path`: its directory exists and may be written. `what` ("report") is for sentences.
    // Errors: INVALID, NOT_FOUND, PERMISSION, NO_SPACE, IO.
    static Result<std::unique_ptr<AtomicFile>> create(const char *path, const char *what);
    ~AtomicFile();  // without a commit() that returned OK, nothing is left
    AtomicFile(const AtomicFile &) = delete;
    AtomicFile &operator=(const AtomicFile &) = delete;

    // Errors are kept and returned by commit.
    void put(std::string_view bytes);
    // The same for a JsonWriter; borrows the file.
    [[nodiscard]] ByteSink sink();
    // Flush, sync, rename. Once. After an error the path is as it was before, except that a
    // directory that cannot be synced leaves the new file in place, and says so.
    Status commit();

private:
    AtomicFile(const char *path, const char *what) : path_(path), what_(what) {}
    Status open();
    Status open_temporary();
    void flush_buffer();
    void fail(int os_errno, const char *action);
    [[nodiscard]] Status error(int os_errno, const char *action) const;

    const std::string path_;
    const std::string what_;
    std::string name_;       // the last part of path_
    std::string temporary_;  // in the same directory; "" when none exists
    int directory_ = -1;
    int file_ = -1;
    std::string buffer_;
    Status status_;
};

}  // namespace stepwell::report
