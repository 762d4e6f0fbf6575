// SPDX-License-Identifier: Apache-2.0
// The inside of an optimizer: its parameters, each of which is a job of the pipeline while a step
// is pending, and the step. Guarded by the pipeline's mutex unless a member says otherwise.
#pragma once

#include "lib/update/copy_share.h"
#include "lib/update/cuts.h"
#include "lib/update/early_trial.h"
#include "lib/update/optimizer.h"
#include "lib/update/parts.h"

#include <deque>
#include <limits>
#include <map>
#include <unordered_map>
#include <vector>

namespace stepwell::update {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Of an update that needs temporary values: the operands stay in the processor's cache, and these
// fit on the stack.
constexpr uint64_t kSliceElements = 8192;

constexpr uint32_t kJoined = 4;  // parameter, the master that is made of it, low halves and bits

// An entry: a range of a parameter with one group's hyper-parameters.
struct Part {
    uint64_t element_begin = 0;
    uint64_t element_count = 0;
    uint32_t group = 0;
    bool counted = true;
    stw_hyper hyper{};                     // as the step began
    uint32_t states_used = 0;              // with these
    stw_hyper judged_hyper{};              // as its verdict's step began
    uint32_t early_states = 0;             // of an early update
    kernels::Coefficients coefficients{};  // of the update threads
    double sum = 0.0;           // of the squares of its gradient, as far as it was scanned
    bool makes_master = false;  // in its first update, if earlier parts of it made theirs
    bool makes_average = false;
};

enum class StepPhase : uint8_t {
    kIdle,
    kScan,
    kVerdict,  // measured, waits for the verdict
    kKeep,     // measured, and about to be updated before the verdict
    kEarly,    // is updated before the verdict
    kUpdated,  // was, and waits for the verdict
    kUpdate,
    kRestore,  // gets its older contents back, since nothing is updated
    kJoin,     // the parts of its master become one
};

// The verdict has its gradient's norm from it, and is about it.
inline bool is_measured(StepPhase phase)
{
    return phase == StepPhase::kVerdict || phase == StepPhase::kKeep ||
           phase == StepPhase::kEarly || phase == StepPhase::kUpdated;
}

struct Step;

// A parameter in a step. Between steps only the optimizer's caller uses it.
struct ParameterJob final : Job {
    // Order of turns and layouts; master and average, where there are any, and the states follow.
    // A master in parts is two of them. While the parts are joined their master is the last.
    enum : uint32_t { kParameter, kGradient, kOthers, kLow = kOthers, kOpen };

    // The tensors of its update: their description in the entry, and the place of each one's bytes.
    struct Shape {
        uint32_t parameter_dtype;
        uint32_t gradient_dtype;
        uint32_t state_dtype;
        bool has_master;  // beside the parameter
        bool is_split;    // which is in parts
        bool has_average;
        uint32_t state_count;
        Layout layouts[kJobTensorsMax];

        [[nodiscard]] uint32_t average_at() const
        {
            return kOthers + (has_master ? 1 : 0) + (is_split ? 1 : 0);
        }
        [[nodiscard]] uint32_t first_state() const { return average_at() + (has_average ? 1 : 0); }
    };

    // Tensors without contents as the update began, which it makes with its first values: the
    // master from the parameter, the average from the master, states of zeros.
    struct Fresh {
        bool master = false;
        bool average = false;
        uint32_t states = 0;  // bit per state
    };

    ParameterJob(Optimizer::Parts &parts, const Entry &entry);

    void cut(Chunk &chunk) override;
    [[nodiscard]] bool more() const override { return !empty && part_cut < parts.size(); }
    [[nodiscard]] uint32_t chunk_pieces() const override;
    Chunk *settle(Chunk &chunk) override;
    void on_preferred() override;
    [[nodiscard]] std::optional<uint32_t> verdict_from() const override;
    [[nodiscard]] uint32_t tensors_to_undo() const override;
    Status opened() override;
    Status refused(Status status) override;
    Status run(Chunk &chunk) override;
    Status results(Chunk &chunk) override;
    void end() override;

    // The place of its next step, which has its claim and has not begun; calls devices.
    [[nodiscard]] PlaceId find_place() const;
    void begin(StepPhase next);
    [[nodiscard]] std::vector<ElementRange> ranges() const;
    // The verdict has the gradient of that version measured already. With the mutex held.
    bool take_measure(uint64_t version);
    void cut_scan(Chunk &chunk) const;
    void cut_update(Chunk &chunk) const;
    void cut_join(Chunk &chunk) const;
    [[nodiscard]] bool block_is_through(const Layout &layout, const Chunk &chunk,
                                        uint64_t done) const;
    [[nodiscard]] uint32_t pieces_of(uint64_t begin, uint64_t elements, uint32_t tensors) const;
    [[nodiscard]] uint64_t next_run() const;
    void scan(Chunk &chunk) const;
    void insert_given(Chunk &chunk) const;
    void update(const Chunk &chunk, const Part &part) const;
    void update_slice(const Chunk &chunk, const Part &part, uint64_t begin, uint64_t count) const;
    void update_master(kernels::Chunk &work, const Chunk &chunk, const Part &part,
                       uint64_t begin) const;
    void update_split(kernels::Chunk &work, const Chunk &chunk, const Part &part,
                      uint64_t begin) const;
    void update_states(kernels::Chunk &work, const Chunk &chunk, const Part &part,
                       uint64_t begin) const;
    void update_values(const kernels::Chunk &work, const Part &part) const;
    void update_narrow(kernels::Chunk &work, const Chunk &chunk, const Part &part,
                       uint64_t begin) const;
    Status update_custom(const Chunk &chunk, const Part &part) const;
    [[nodiscard]] bool on_device() const { return place != kAnyCpuPlace; }
    Status scan_on_device(Chunk &chunk) const;
    Status update_on_device(const Chunk &chunk, const Part &part) const;
    uint64_t lie_together(const Chunk &chunk, uint32_t tensor, uint64_t done,
                          void **pointer_out) const;
    [[nodiscard]] stw_update_work work_of(const Part &part, void *const *pointers) const;
    void make_fresh(const Chunk &chunk, const Part &part) const;
    void note_made();
    [[nodiscard]] float *master_of(const Chunk &chunk) const
    {
        return static_cast<float *>(chunk.pointers[shape.has_master ? kOthers : kParameter]);
    }
    [[nodiscard]] float *average_of(const Chunk &chunk) const
    {
        return static_cast<float *>(chunk.pointers[shape.average_at()]);
    }
    void begin_join(TensorId master, uint64_t pack_offset);
    void join(const Chunk &chunk) const;
    void end_scan();
    void end_early();
    void end_update();
    void end_restore();

    // An early update.
    void make_older();
    [[nodiscard]] bool may_be_early() const;
    void start_early();
    [[nodiscard]] bool judged_alike() const;
    [[nodiscard]] bool has_older_piece(const Part &part, uint32_t tensor) const;
    void copy_older(const Chunk &chunk, const Part &part) const;
    [[nodiscard]] uint32_t tensors_of(const Part &part) const;
    void note_versions();
    void leave_decided();
    void end_join();
    void forget_parts();
    void tell_failure();
    bool renew();
    void begin_again();
    // Whether the parameter was written since its last update and the master was not: what was
    // written is newer than the master. Between updates, or before this one has written.
    [[nodiscard]] bool master_is_stale() const;
    // Unclaims all its tensors and leaves the step; those of the bits set become EMPTY.
    void leave(uint64_t emptied);

    Optimizer::Parts &owner;
    stw_tensor *const handle;
    const char *const name;
    const uint32_t index;         // in the order of entries
    Shape shape;                  // constant
    std::vector<Part *> parts;    // in the order of entries
    uint64_t count = 0;           // completed updates
    bool selected = false;        // of the caller of step()
    const void *asked = nullptr;  // likewise: a gradient in the caller's memory
    const void *given = nullptr;  // of its step
    Step *step = nullptr;         // its step, until its tensors are unclaimed

    StepPhase phase = StepPhase::kIdle;
    // The contents from before an early update, of each of its tensors but the gradient.
    TensorId older[kJobTensorsMax];
    bool has_older = false;
    bool asked_older = false;  // and there was no room, or none is needed
    bool claims_older = false;
    uint32_t copies = 0;        // tensors, a bit for each, of which an early update copies these
    uint64_t copied_bytes = 0;  // of these that take free room
    double early_scale = 1.0;
    bool empty = false;        // no gradient
    uint32_t part_cut = 0;     // where the next chunk begins
    uint64_t element_cut = 0;  // of that part
    uint64_t next_ordinal = 0;
    uint64_t settled = 0;     // chunks of the scan whose sums are taken, in order
    Chunk *parked = nullptr;  // completed before their turn
    kernels::ScanResult scanned;
    Measure measure;
    ParameterJob *next_leaving = nullptr;
    Fresh fresh;                     // of the update threads
    uint64_t parameter_version = 0;  // as its last update left it, or as it was restored
    uint64_t master_version = 0;
    bool made_master = false;  // by a step before, for the parts there were
    bool made_average = false;
};

// One call of step(). Those without a verdict go on side by side, each parameter in one of them at
// most; one with a verdict is alone. What early ones have begun goes over to the next one that is
// not early, as it is then: that is its verdict.
struct Step {
    uint64_t call = 0;  // its number
    uint32_t flags = 0;
    bool asked = false;       // there was one
    bool active = false;      // until its last tensor is unclaimed
    bool decided = false;     // as far as this rank's gradients go
    bool known = false;       // the verdict
    bool gives_back = false;  // which is that nothing is updated
    bool scans = false;
    bool judges = false;  // somebody wants its verdict, or it clips or skips
    bool early = false;
    double scale = 1.0;  // of gradients; with the clip once that is known
    double clip_norm = 0.0;
    bool infinity_norm = false;
    uint32_t scans_left = 0;
    uint32_t jobs_left = 0;  // and the agreement
    Agreement *agreement = nullptr;
    uint64_t demanded = kNotPreferred;  // a call waits for an update that needs the verdict
    ParameterJob *leaving = nullptr;    // parameters that leave with the verdict
    Status verdict;                     // OK, SKIPPED or the reason why there is none
    Status failure;                     // first reason why a parameter missed its update
    StepResult result;
};

struct Optimizer::Parts {
    Parts(Pipeline &owner, uint32_t number) : pipeline(owner.parts()), algorithm(number) {}

    // optimizer.cpp
    Status check_entry(const Entry &entry) const;
    Status check_hyper(const stw_hyper &hyper) const;
    Status check_part(const Entry &entry, const ParameterJob &job) const;
    Status add_entry(const Entry &entry);
    void forget_last_job() STW_REQUIRES(pipeline.mutex);
    void keep(size_t jobs_kept, size_t parts_kept);
    void reserve(const Entry *entries, uint32_t n);
    [[nodiscard]] ParameterJob *find(TensorId parameter) const;
    [[nodiscard]] stw_hyper hyper_of(uint32_t group) const;
    [[nodiscard]] uint32_t states_needed(const stw_hyper &hyper) const;

    // step.cpp
    Status check_options(const StepOptions &options) const;
    Status select(const StepOptions &options);
    void select_early() STW_REQUIRES(pipeline.mutex);
    [[nodiscard]] bool waits_for_others() const STW_REQUIRES(pipeline.mutex);
    Status check_groups() const;
    void unselect();
    [[nodiscard]] bool may_begin(const StepOptions &options) const STW_REQUIRES(pipeline.mutex);
    Status begin(const StepOptions &options);
    ClaimId claim_entering();
    Step &new_step() STW_REQUIRES(pipeline.mutex);
    Step &early_step() STW_REQUIRES(pipeline.mutex);
    bool activate(Step &step, ClaimId claim, bool waits) STW_REQUIRES(pipeline.mutex);
    Step &prepare(const StepOptions &options) STW_REQUIRES(pipeline.mutex);
    void enter(ParameterJob &job, Step &step) STW_REQUIRES(pipeline.mutex);
    void take_over(ParameterJob &job, Step &step) STW_REQUIRES(pipeline.mutex);
    [[nodiscard]] Status check_early(const StepOptions &options) const STW_REQUIRES(pipeline.mutex);
    [[nodiscard]] const ParameterJob *wrongly_named(const StepOptions &options) const
        STW_REQUIRES(pipeline.mutex);
    [[nodiscard]] bool misses_many() const STW_REQUIRES(pipeline.mutex);
    [[nodiscard]] bool goes_early() const STW_REQUIRES(pipeline.mutex);
    void end_round(bool missed) STW_REQUIRES(pipeline.mutex);
    void park(ParameterJob &job) STW_REQUIRES(pipeline.mutex);
    // After the last scan: decides about the step. True: some leave now, with let_go().
    bool decide(Step &step) STW_REQUIRES(pipeline.mutex);
    bool conclude(Step &step, const Verdict &all) STW_REQUIRES(pipeline.mutex);
    bool go_ahead(Step &step, const Verdict &all) STW_REQUIRES(pipeline.mutex);
    [[nodiscard]] Verdict measure(const Step &step) const STW_REQUIRES(pipeline.mutex);
    // What the verdict means for a parameter that is idle. True: it leaves.
    bool apply(ParameterJob &job, Step &step) STW_REQUIRES(pipeline.mutex);
    static void let_go(const Step &step);
    Status begin_join(ParameterJob &job, TensorId master);
    void left(Step &step) STW_REQUIRES(pipeline.mutex);
    Status answer(StepResult *result_out) const STW_REQUIRES(pipeline.mutex);

    Pipeline::Parts &pipeline;
    const uint32_t algorithm;
    stw_custom_update custom{};             // update null: none
    double average_decay = 0.0;             // 0: no average
    TorchOrder torch_order;                 // none: the library's own
    std::deque<Part> parts;                 // in the order of entries; grows between steps only
    std::vector<ParameterJob *> part_jobs;  // the job of each part
    std::deque<ParameterJob> jobs;
    std::unordered_map<TensorId, ParameterJob *> by_tensor;
    std::map<uint32_t, stw_hyper> hypers;
    std::vector<ParameterJob *> chosen;                // of the last step, in the order of entries
    std::vector<ParameterJob *> entering;              // of these, not in a step before
    std::vector<ParameterJob *> keeping;               // of these, to be updated early at once
    std::vector<TensorId> tensors;                     // room for those of a claim
    std::vector<std::pair<ClaimId, TensorId>> judged;  // of early steps, whose verdict is asked for
    std::vector<TensorId> gradients;                   // of those chosen
    std::vector<uint64_t> versions;                    // of these, as claimed
    std::vector<PlaceId> places;                       // of those chosen
    // One for each parameter that may be in a step, and one more.
    std::deque<Step> steps{1};
    Step *last = &steps.front();     // as called; one with a verdict is the last while it is active
    std::vector<Step *> idle_steps;  // neither active nor the last
    uint32_t active_steps = 0;
    uint32_t early_steps = 0;  // of these
    uint64_t misses = 0;       // a bit for each of the last verdicts, which an early update missed
    CopyShare copy_share;
    EarlyTrial early_trial;
    uint32_t verdict_thread = 0;     // that gives verdicts, by its steps
    bool asks_early = false;         // there was an early step since the last verdict
    bool waits_for_verdict = false;  // the call that gave the last one
};

}  // namespace stepwell::update
