// SPDX-License-Identifier: Apache-2.0
// The report and the timeline as files: JSON for people and scripts, Chrome trace JSON that
// Perfetto opens. The runtime fills the plain structs below from what it knows; this folder decides
// how it reads, and derives ratios and the named cause of what a step lost. Carries ids, sizes,
// times and names, never contents. Blocks for the file; any thread.
#pragma once

#include <stepwell/observe.h>

#include "lib/observe/step_stats.h"
#include "lib/observe/timeline.h"
#include "lib/report/history.h"
#include "lib/support/status.h"

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace stepwell::report {

class JsonWriter;

constexpr uint32_t kReportFormat = 1;  // "format" of the file; grows when a field changes meaning

struct TierReport {
    uint32_t tier = 0;  // STW_TIER_*
    uint32_t device = 0;
    stw_tier_stats stats = STW_TIER_STATS_INIT;
    std::string scratch_allocator;  // of the host tier's scratch memory; "" if none
    uint64_t promised_bytes = 0;    // to fetches and to tensors that have a right to the room
};

struct LinkReport {
    uint32_t link = 0;  // STW_LINK_*
    uint32_t device = 0;
    stw_link_stats stats = STW_LINK_STATS_INIT;
};

struct DriverReport {
    std::string kind;         // "storage", "memory"
    std::string name;         // "aio"
    std::string used_for;     // the path of a store, "device 0", "host"
    std::string file_system;  // of storage; ""
    std::string remark;       // what is slower than it could be, and why; "" if nothing
    uint64_t bytes = 0;
    uint32_t queue_depth = 0;  // of storage
    bool locked = false;       // of memory
    bool huge_pages = false;
    int32_t numa_node = -1;
};

struct PhaseReport {
    std::string name;
    uint32_t number = 0;  // the lane of its steps in the timeline
    uint64_t steps = 0;
    uint64_t aborted = 0;
    stw_step_stats last{};
    stw_step_stats mean{};
    observe::StepBound last_bound;
};

struct UpdateReport {
    uint64_t steps = 0;
    uint64_t skipped = 0;
    uint64_t parameters = 0;  // updated, over all steps
    uint64_t early = 0;       // parameters updated before their verdict, which stood
    uint64_t undone = 0;      // updated before it, and set back
    uint64_t chunks = 0;
    uint64_t elements = 0;
    uint64_t bytes = 0;    // read and written by kernels
    uint64_t busy_ns = 0;  // of all threads together
    uint32_t threads = 0;
};

struct ErrorReport {
    stw_status status = STW_OK;
    std::string tensor;  // "" if none
    std::string sentence;
    uint64_t count = 1;
};

// What blocks cost beyond the bytes of the tensors in them.
struct WasteReport {
    uint32_t role = 0;  // STW_ROLE_*
    uint64_t tensors = 0;
    uint64_t tensor_bytes = 0;   // asked for
    uint64_t charged_bytes = 0;  // the blocks that hold them
};

// What was known of a directory when the runtime was opened, and how it is driven now.
struct ProfileDirectoryReport {
    std::string path;
    std::string device;  // "254:1"
    std::string file_system;
    std::string file_system_id;
    std::string source = "none";  // "profile", "cache" (of an earlier probe), "probe", "none"
    std::string file;             // of the profile or cache; "" if none
    std::string created;
    std::string remark;  // what of it is not used, and why; "" if nothing
    uint64_t read_bytes_per_s = 0;
    uint64_t write_bytes_per_s = 0;
    uint64_t read_request_bytes = 0;
    uint64_t write_request_bytes = 0;
    uint32_t read_queue_depth = 0;
    uint32_t write_queue_depth = 0;
};

struct ProfileReport {
    std::string kernel;
    std::string processor;
    uint64_t cores = 0;
    uint64_t host_copy_bytes_per_s = 0;
    std::vector<ProfileDirectoryReport> directories;
};

// A policy, and what a replay of the step says that it costs.
struct CandidateReport {
    std::string policy;
    bool earlier = false;  // replayed by an earlier plan, when links and computing took other times
    std::array<uint64_t, observe::kLinkTable> link_bytes{};  // by STW_LINK_*, of all devices
    uint64_t step_ns = 0;
    uint64_t stall_ns = 0;
};

// A stretch in which a lane is expected to work, from the begin of the step.
struct ExpectedSpan {
    uint32_t link = 0;  // STW_LINK_*; 0: the program computes
    uint64_t start_ns = 0;
    uint64_t end_ns = 0;
};

// One step of those that a plan is for.
struct PlannedTurnReport {
    uint32_t phase = 0;
    uint64_t way = 0;       // as of the steps that follow it
    uint64_t begin_ns = 0;  // as expected, from the begin of the first one
    uint64_t end_ns = 0;
    uint64_t least_ns = 0;
};

// What was planned for a phase, or for several in turn.
struct PlanReport {
    std::string name;
    std::vector<CandidateReport> candidates;  // the first one is used
    uint64_t steps = 0;                       // that followed it, or an earlier one for these
    bool repeats = false;                     // there is what follows
    uint64_t bound_ns = 0;                    // with the computing that it was made with
    uint64_t compute_ns = 0;
    uint64_t now_ns = 0;  // with that of the last steps; 0: not known any more
    uint64_t now_compute_ns = 0;
    std::array<uint64_t, observe::kLinkTable> bound_bytes{};  // that have to move
    std::array<uint64_t, observe::kLinkTable> bound_link_ns{};
    uint64_t step_ns = 0;
    std::vector<ExpectedSpan> spans;
    std::vector<PlannedTurnReport> turns;  // those of a plan of steps that differ: none
};

// Sums that round to half precision at each contribution.
struct HalfSumReport {
    std::string tensor;
    uint32_t dtype = 0;
    uint64_t contributions = 0;  // since it was made
};

// Of a tensor: faults at its address, where the program had no view of it.
struct TouchReport {
    std::string tensor;
    uint64_t reads = 0;
    uint64_t writes = 0;
};

struct ReportData {
    std::string name;
    std::string version;
    uint64_t block_bytes = 0;
    uint64_t elapsed_ns = 0;  // since open
    uint32_t threads = 0;     // that update
    std::string threads_why;  // so many
    std::vector<TierReport> tiers;
    std::vector<LinkReport> links;
    std::vector<DriverReport> drivers;
    ProfileReport profile;
    std::vector<PhaseReport> phases;
    std::vector<PlanReport> plans;
    uint64_t planning_ns = 0;  // of the processor, since open
    UpdateReport update;
    std::vector<HalfSumReport> half_sums;
    std::vector<TouchReport> touches;
    std::vector<ErrorReport> errors;
    uint64_t errors_total = 0;  // background errors since open; `errors` keeps the first ones
    std::vector<WasteReport> waste;
    uint64_t timeline_spans = 0;
    uint64_t timeline_lost = 0;
    uint64_t log_suppressed = 0;
    HistoryData history;
};

Status write_report(const char *path, const ReportData &data);

// The member "plan".
void write_plans(JsonWriter &json, const ReportData &data);

// The member "stall_ns" of a step: how long the program waited, by cause.
void write_stalls(JsonWriter &json, const stw_step_stats &stats);

struct TimelineData {
    std::string name;                      // of the process in the trace
    uint64_t origin_ns = 0;                // time 0 of the trace: when the runtime was opened
    std::vector<std::string> phase_names;  // by lane of kStep; missing ones get a number
    std::vector<TensorName> tensors;
    observe::TimelineSnapshot snapshot;
};

Status write_timeline(const char *path, const TimelineData &data);

// Words of the reports, also for sentences elsewhere. Static text; "unknown" for other numbers.
const char *tier_name(uint32_t tier);    // "device"
const char *dtype_name(uint32_t dtype);  // "bf16"
const char *link_name(uint32_t link);    // "nvme_to_host"
const char *role_name(uint32_t role);    // "param"
// Of a step's way a word: it has more digits than a number of JavaScript.
std::string way_text(uint64_t way);

}  // namespace stepwell::report
