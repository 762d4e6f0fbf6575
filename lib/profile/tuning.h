// SPDX-License-Identifier: Apache-2.0
// What an opening runtime knows beforehand of its directories, from a machine profile, from an
// earlier probe or from one of its own, and what follows from it: driver, depth and size of
// requests, expected bandwidths. What the program says itself always wins. The opening thread.
// Trouble with what nobody asked for is a line of the log and never an error.
#pragma once

#include "lib/observe/log.h"
#include "lib/profile/profile.h"
#include "lib/report/report.h"
#include "lib/store/store.h"

#include <stepwell/runtime.h>

#include <optional>
#include <vector>

namespace stepwell::profile {

class Tuning {
public:
    Tuning(const stw_runtime_options &options, observe::Log &log, const stw_services &services);

    // Reads what there is. Errors: those of a profile that the program named.
    Status find();
    // The driver of a directory whose options name none, and the depth of its queue. Before the
    // store is opened.
    [[nodiscard]] const char *driver(uint32_t index) const;
    void choose(uint32_t index, store::PathOptions &path) const;
    // Measures what is not known, where that is wanted and worth it; tells the store what is known.
    // Before anybody else uses the store.
    void settle(store::Store &store);

    // Over all directories; 0 where one is not known.
    [[nodiscard]] uint64_t read_bytes_per_s() const;
    [[nodiscard]] uint64_t write_bytes_per_s() const;
    [[nodiscard]] uint64_t host_copy_bytes_per_s() const { return report_.host_copy_bytes_per_s; }

    // Where each figure is from; requests in force are the engine's to tell.
    [[nodiscard]] report::ProfileReport take_report() { return std::move(report_); }

private:
    struct Known {
        std::string path;
        std::string driver_options;
        std::optional<FileSystem> file_system;
        std::optional<Directory> entry;
    };

    void read_usual(const std::string &file);
    void use(const Profile &profile, const char *source);
    [[nodiscard]] bool may_probe() const;
    [[nodiscard]] bool wants_probe(uint32_t index) const;
    void probe_all(store::Store &store);
    void probe_one(uint32_t index, store::Store &store, uint64_t time_ns);
    void keep(const std::vector<Directory> &fresh);
    void apply(uint32_t index, store::Store &store);
    void say(uint32_t index, const store::Store &store) const;

    const stw_runtime_options &options_;
    observe::Log &log_;
    const stw_services &services_;
    Machine machine_;
    std::vector<Known> known_;  // as options_.nvme
    report::ProfileReport report_;
};

}  // namespace stepwell::profile
