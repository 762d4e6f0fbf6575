// SPDX-License-Identifier: Apache-2.0
// A runtime with an nvme tier, streamed through the way a program would: by fetch and release, a
// few fetches ahead, checksums on. What is measured is what a program gets.
#pragma once

#include <stepwell/stepwell.h>

#include <stdexcept>
#include <string>
#include <vector>

namespace stepwell::cli {

// The library's sentence, or ours.
class Failed : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

// Throws Failed with the library's sentence.
void must(stw_status status);

double now_s();
double median(std::vector<double> values);

struct Setting {
    std::string driver;  // "": the library's choice
    uint32_t request_bytes = 0;
    uint32_t queue_depth = 0;
};

struct TierOptions {
    std::vector<std::string> directories;
    Setting setting;             // of all of them
    std::string profile_path;    // "": none is used
    bool usual_profile = false;  // what the library finds by itself
    uint64_t bytes = 0;          // of tensors, over all directories
};

// What one pass moved to and from the drives.
struct Pass {
    uint64_t read_bytes = 0;
    uint64_t written_bytes = 0;
    double seconds = 0;

    double read_rate() const { return rate(read_bytes); }
    double write_rate() const { return rate(written_bytes); }

private:
    double rate(uint64_t bytes) const
    {
        return seconds > 0 ? static_cast<double>(bytes) / seconds : 0;
    }
};

class Tier {
public:
    explicit Tier(const TierOptions &options);
    ~Tier();
    Tier(const Tier &) = delete;
    Tier &operator=(const Tier &) = delete;

    // Each goes once through all tensors, or as far as the time reaches. The first write goes into
    // reserved space, which is slower; what it did not reach is not read either. Ends when every
    // byte is on the drives.
    Pass write(double seconds_most);
    Pass read(double seconds_most);
    Pass update(double seconds_most);  // reads and writes each
    stw_runtime *runtime() const { return runtime_; }

    static constexpr uint64_t kTensorBytes = 8 << 20;
    static constexpr uint64_t kHostBytes = 160 << 20;

private:
    Pass stream(uint32_t access, double seconds_most);
    void all_out();
    stw_operation *ask(uint64_t index, uint32_t access);
    static stw_view take(stw_operation *operation);
    void close();

    stw_runtime *runtime_ = nullptr;
    std::vector<stw_tensor *> tensors_;
    uint64_t written_ = 0;  // tensors, at least once
};

}  // namespace stepwell::cli
