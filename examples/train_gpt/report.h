// SPDX-License-Identifier: Apache-2.0
//
// What the user reads: the line of a step, the closing table, and the same as JSON. Computes from
// what was measured; measures nothing but the tiers, the links and the process at the end.

#ifndef TRAIN_GPT_REPORT_H
#define TRAIN_GPT_REPORT_H

#include "options.h"
#include "trainer.h"

#include <stepwell/stepwell.h>

#include <string>
#include <vector>

namespace train_gpt {

void print_progress(const Options &options, uint32_t step, const StepRecord &record);

constexpr uint32_t kStalls = 6;

struct LinkSummary {
    const char *name;
    uint64_t bytes;             // of the whole run
    double bytes_per_step;      // of the steps that count
    uint64_t bytes_per_second;  // measured by the runtime in this run
    double seconds_per_step;    // bytes / bandwidth; 0 when nothing moved
};

struct Summary {
    uint32_t steps_counted;  // the first ones warm up and do not count
    double step_seconds;     // median
    double bound_seconds;    // what compute and links force
    const char *bound_by;
    // Per step: nvme, host and device, room, update, other ranks, other.
    double stall_seconds[kStalls];
    double verdict_seconds;   // per step
    stw_tier_stats tiers[3];  // device, host, nvme
    LinkSummary links[kLinks];
    uint64_t peak_resident_bytes;
    uint64_t activation_bytes;
    uint64_t resident_limit_bytes;  // 0: not known, with a driver of a GPU in the process
    uint32_t rank;
    uint32_t ranks;
    uint64_t own_state_bytes;  // of this rank
};

// The median of values; 0 of none.
double median(std::vector<double> values);

Summary summarise(stw_runtime *runtime, const Options &options,
                  const std::vector<StepRecord> &records, const Arithmetic &arithmetic);
void print_summary(const Options &options, const Summary &summary);

// The losses, one hex float a line: each is in the file as soon as its step is over.
class LossFile {
public:
    LossFile() = default;
    ~LossFile();
    LossFile(const LossFile &) = delete;
    LossFile &operator=(const LossFile &) = delete;

    // Both: "" or the sentence for the user.
    std::string open(const std::string &path);
    std::string add(double loss);

private:
    std::string path_;
    std::FILE *file_ = nullptr;
};

// "" or the sentence for the user. The first: whether all files of a run can be written, which is
// looked at before it begins.
std::string check_outputs(const Options &options);
std::string write_json(const std::string &path, const Options &options, const ModelSize &size,
                       const std::vector<StepRecord> &records, const Summary &summary);

}  // namespace train_gpt

#endif
