// SPDX-License-Identifier: Apache-2.0
// Runtime: the shell around the residency core. Owns tiers, engine, threads and the one lock; feeds
// events to the core, runs its commands, wakes who waits. The rules of where bytes are and who may
// use them are in the core alone.
#pragma once

#include "lib/collective/agreement.h"
#include "lib/collective/partition.h"
#include "lib/memory/host_pins.h"
#include "lib/memory/scratch.h"
#include "lib/memory/tiers.h"
#include "lib/observe/log.h"
#include "lib/observe/log_relay.h"
#include "lib/observe/step_history.h"
#include "lib/observe/step_stats.h"
#include "lib/observe/timeline.h"
#include "lib/profile/tuning.h"
#include "lib/report/report.h"
#include "lib/runtime/dispatch/dispatcher.h"
#include "lib/runtime/dispatch/errors.h"
#include "lib/runtime/handles/table.h"
#include "lib/runtime/planner.h"
#include "lib/runtime/touches.h"
#include "lib/runtime/views.h"
#include "lib/schedule/plan.h"
#include "lib/store/manifest.h"
#include "lib/support/status.h"
#include "lib/support/thread_annotations.h"
#include "lib/transfer/engine.h"
#include "lib/transfer/stream_ordering.h"
#include "lib/update/devices.h"
#include "lib/update/optimizer.h"
#include "lib/update/tiers.h"

#include <stepwell/driver.h>
#include <stepwell/stepwell.h>

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

namespace stepwell {

struct PieceFetch;

namespace collective {
struct FoundGenerations;
struct GroupTotals;
struct NodeOptions;
}  // namespace collective

namespace store {
struct GenerationInfo;
}  // namespace store

namespace gathering {
struct WholeGranted;
struct WholeRefused;
}  // namespace gathering

class LocalVerdict;
struct Collective;
struct CommitWork;
struct StepSpec;
class SmallSums;
struct SumAgreed;
struct StepModel;
struct PlanWork;

class Runtime final : public update::Tiers,
                      public update::Devices,
                      residency::CommandSink,
                      DispatchHook,
                      AnswerListener {
public:
    static Result<Runtime *> open(const stw_runtime_options &options, stw_runtime *handle);
    // BUSY with the list when views or operations are open; TIMEOUT when I/O does not end.
    Status close(uint64_t timeout_ns, bool deferred);
    ~Runtime();

    // ---- tensors (tensors.cpp) -----------------------------------------------------------------
    Status create_tensors(const stw_tensor_spec *specs, uint32_t n, stw_tensor **tensors_out);
    Status destroy_tensors(stw_tensor *const *tensors, uint32_t n);
    Status find_tensor(const char *name, stw_tensor **tensor_out);
    Status next_tensor(stw_tensor *previous, stw_tensor **next_out);
    Status tensor_info(stw_tensor *tensor, stw_tensor_info *info_out);
    Status set_policy(stw_tensor *tensor, const stw_policy &policy);
    Status freeze(stw_tensor *tensor, bool frozen);
    Status reshape(stw_tensor *tensor, const uint64_t *shape, uint32_t dimensions);
    Status discard(stw_tensor *const *tensors, uint32_t n);
    Status advise(stw_tensor *const *tensors, uint32_t n, uint32_t advice);
    Status tensor_address(stw_tensor *tensor, uint32_t device, void **pointer_out,
                          uint64_t *bytes_out);

    // ---- fetch and release (fetch.cpp) ---------------------------------------------------------
    // One read of a resident tensor: no lock, no allocation, no system call. False: the long way.
    bool fetch_hit(const Range &range, uint64_t step, void *stream, stw_view *view_out);
    // The same of a few, all or none.
    static constexpr uint32_t kHitsAtOnceMax = 16;
    bool fetch_hits(const Range *ranges, uint32_t n, uint64_t step, void *stream,
                    stw_view *views_out);
    // The same of any number: pinned one after the other, opened when all are.
    bool add_hit(HitChain *chain, const Range &range, uint64_t step);
    void open_hits(const HitChain &chain, stw_view *views_out);
    void undo_hits(const HitChain &chain);
    Status fetch(FetchPlan plan, stw_view *views_out);
    Status fetch_async(FetchPlan plan, stw_operation **operation_out);
    Status collect(stw_operation *operation, void *stream, stw_view *views_out, uint32_t n);
    Status fits(const std::vector<Range> &ranges);
    Status prefetch(const std::vector<Range> &ranges);
    Status release(stw_view *views, uint32_t n, void *stream, uint32_t flags);
    // INVALID: none of a device of this runtime's. At a place: the host's, where it has streams.
    Status check_stream(void *stream);
    Status forget_stream(void *stream);
    Status check_stream_at(residency::PlaceId place, void *stream);
    Status share(const stw_view &view, stw_view *view_out);
    [[nodiscard]] Status check_open(const stw_view &view) const;
    [[nodiscard]] uint32_t dtype_of(const stw_view &view) const;  // that is open
    // The pin goes on as `moved_out`, which counts as an export; `view` and its copies are stale.
    // The stream comes behind what the view's own did.
    Status begin_export(const stw_view &view, void *stream);
    Status move_to_export(stw_view *view, stw_view *moved_out);
    Status evict(stw_tensor *const *tensors, uint32_t n, residency::PlaceId place,
                 uint64_t timeout_ns);
    // budgets.cpp. In force when it returns OK, else as before.
    Status set_budget(residency::PlaceId place, uint64_t bytes, uint64_t timeout_ns);

    Status poll(stw_operation *operation);
    Status wait(stw_operation *operation, uint64_t timeout_ns);
    Status cancel(stw_operation *operation);
    Status free_operation(stw_operation *operation);
    // Those who wait in no thread (callbacks.cpp).
    Status on_done(stw_operation *operation, stw_done_fn done, void *user);
    Status notify_fd(stw_operation *operation, int fd);

    // ---- copies from and to the caller's memory (copy.cpp) --------------------------------------
    // INVALID unless the dtypes are equal (or `dtype` 0), or both of those that convert.
    static Status check_dtype(const stw_tensor *tensor, uint32_t dtype);
    Status write(stw_tensor *tensor, const void *source, const stw_copy_options &options);
    Status read(stw_tensor *tensor, void *destination, const stw_copy_options &options);
    Status fill(stw_tensor *tensor, double value, const stw_copy_options &options);
    Status reduce(stw_tensor *gradient, const void *local, const stw_reduce_options &options);
    Status adopt(stw_tensor *gradient, const void *local, const stw_reduce_options &options,
                 stw_deleter_fn deleter, void *user);

    // ---- phases (phases.cpp) -------------------------------------------------------------------
    Status create_phase(const char *name, stw_phase **phase_out);
    Status destroy_phase(stw_phase *phase);
    Status begin_step(stw_phase *phase);
    Status end_step(stw_phase *phase, stw_step_stats *stats_out);
    Status abort_step(stw_phase *phase, void *stream);
    Status declare_step(stw_phase *phase, std::vector<DeclaredUse> uses);
    [[nodiscard]] uint64_t step_of(const stw_phase *phase) const;  // 0: none open
    Status advise(const stw_phase *phase, stw_plan_advice *advice_out, uint32_t capacity,
                  uint32_t *count_out) const;  // advice.cpp

    // ---- optimizers (optimizers.cpp) -----------------------------------------------------------
    Status create_optimizer(const stw_optimizer_options &options, stw_optimizer **optimizer_out);
    Status destroy_optimizer(stw_optimizer *optimizer);
    Status add_parameters(stw_optimizer *optimizer, const stw_optimizer_entry *entries, uint32_t n);
    Status set_hyper(stw_optimizer *optimizer, uint32_t group, const stw_hyper &hyper);
    Status optimizer_state(stw_optimizer *optimizer, stw_tensor *parameter, const char *state,
                           stw_tensor **tensor_out);
    Status get_count(stw_optimizer *optimizer, stw_tensor *parameter, uint64_t *count_out);
    Status set_count(stw_optimizer *optimizer, stw_tensor *parameter, uint64_t count);
    Status optimizer_step(stw_optimizer *optimizer, const stw_update_options &options,
                          stw_update_result *result_out);
    Status optimizer_result(stw_optimizer *optimizer, stw_update_result *result_out);

    // ---- generations (commit.cpp) --------------------------------------------------------------
    Status commit(const stw_commit_options &options, uint64_t *generation_out);
    Status generation_info(uint64_t generation, stw_generation_info *info_out);
    Status generation_metadata(uint64_t generation, void *buffer, uint64_t capacity_bytes,
                               uint64_t *bytes_out);

    // ---- scratch memory (host_memory.cpp) ------------------------------------------------------
    Result<void *> take_scratch(uint64_t bytes, uint64_t align_bytes);
    Status give_scratch(void *pointer);
    [[nodiscard]] uint64_t scratch_pieces() const
    {
        return scratch_ ? scratch_->usage().pieces : 0;
    }

    // ---- a victim policy of the program (scoring.cpp) ------------------------------------------
    Status set_victim_policy(const stw_victim_policy *policy, uint64_t timeout_ns);

    // ---- observation (observe.cpp) -------------------------------------------------------------
    Status tier_stats(uint32_t tier, uint32_t device, stw_tier_stats *stats_out);
    Status link_stats(uint32_t link, uint32_t device, stw_link_stats *stats_out);
    Status rank_stats(stw_link_stats *stats_out) const;
    [[nodiscard]] collective::GroupTotals rank_totals() const;
    void record_ranks(residency::TensorId tensor, residency::Instant begin, uint64_t bytes_before);
    Status device_info(uint32_t device, stw_device_info *info_out);
    static Status driver_info(const char *driver, stw_driver_info *info_out);
    Status write_report(const char *path);
    Status write_timeline(const char *path);

    // ---- the whole -----------------------------------------------------------------------------
    void interrupt() { dispatch_.interrupt(); }  // async-signal-safe
    Status drain(uint64_t timeout_ns);
    Status background_error() { return errors_.first(); }
    void clear_error() { errors_.clear(); }
    [[nodiscard]] uint64_t timeout(uint64_t timeout_ns) const
    {
        return dispatch_.timeout(timeout_ns);
    }
    [[nodiscard]] ViewTable &views() { return views_; }
    [[nodiscard]] const memory::TierSet &tiers() const { return tiers_; }
    [[nodiscard]] uint64_t current_step() const
    {
        return current_step_.load(std::memory_order_relaxed);
    }

    // ---- update::Tiers (tiers.cpp) --------------------------------------------------------------
    residency::ClaimId claim(const residency::TensorId *tensors, uint32_t n) override;
    void unclaim(residency::ClaimId claim, const residency::TensorId *tensors, uint32_t n,
                 residency::TensorId emptied) override;
    void fail(residency::TensorId tensor, const Status &cause) override;
    void miss(residency::TensorId tensor, const Status &cause) override;
    void versions(residency::ClaimId claim, const residency::TensorId *tensors, uint32_t n,
                  uint64_t *versions_out) override;
    residency::Contents contents(residency::TensorId tensor) override;
    uint64_t version(residency::TensorId tensor) override;
    void fetch(residency::ClaimId claim, const update::Piece *pieces, uint32_t n,
               residency::PlaceId place, residency::Class urgency, update::FetchDone done,
               void *user) override;
    void release(uint64_t ticket, uint64_t far_pieces) override;
    void updates_wait() override;
    [[nodiscard]] uint64_t block_bytes() const override { return block_bytes_; }
    [[nodiscard]] uint64_t pack_offset(residency::TensorId tensor) const override;

    // ---- update::Devices (device_updates.cpp) ---------------------------------------------------
    residency::PlaceId place_for(uint32_t algorithm, const residency::TensorId *kept,
                                 uint32_t kept_count, const residency::TensorId *others,
                                 uint32_t other_count) override;
    Status start_update(uint64_t ticket, const stw_update_work &work) override;
    Status start_sum(uint64_t ticket, const stw_accumulate_work &work) override;
    Status start_zeros(uint64_t ticket, void *destination, uint64_t bytes) override;
    Result<uint64_t> start_scan(uint64_t ticket, const stw_scan_work &work) override;
    Status end_scan(residency::PlaceId place, uint64_t scan, double *sums_out,
                    kernels::ScanResult *result_out) override;

private:
    struct Phase;
    struct Scoring;
    struct VictimTable;
    struct OptimizerBody;
    struct Ranks;
    struct Durable;

    Runtime(const stw_runtime_options &options, stw_runtime *handle, uint64_t whole_blocks);

    // open.cpp
    Status open_tiers(const stw_runtime_options &options);
    Status open_memories(const stw_runtime_options &options);
    Status open_memory(residency::PlaceId place, const char *driver, memory::TierOptions asked);
    Status open_devices(const stw_runtime_options &options, bool streams);
    Status open_store(const stw_runtime_options &options, profile::Tuning &tuning,
                      std::unique_ptr<store::Store> *store_out);
    Status store_options(const stw_runtime_options &options, const profile::Tuning &tuning,
                         store::StoreOptions *store_out);

    static residency::Config tiers_config(const stw_runtime_options &options, uint64_t whole_blocks,
                                          uint64_t bucket_blocks);

    // durable_open.cpp
    void close_durable(uint64_t timeout_ns);
    static uint32_t generations_kept(const stw_runtime_options &options);
    static uint64_t store_blocks(const stw_runtime_options &options, uint32_t index);
    // `nvme` is what options.nvme points to.
    static void find_budgets(const stw_runtime_options &options, stw_nvme_options *nvme);
    static std::pair<uint32_t, uint32_t> durable_place(const stw_runtime_options &options);
    Status agree_store(collective::Record mine, std::vector<collective::Record> &all,
                       bool *heard_out);
    Status exchange_found(const collective::FoundGenerations &mine,
                          std::vector<collective::FoundGenerations> *all);
    static Status check_ranks_there(const stw_runtime_options &options);
    Status open_parts(const stw_runtime_options &options, store::StoreOptions &store,
                      store::Stay stay, std::unique_ptr<store::Store> *store_out);
    void remove_parts(const stw_runtime_options &options, bool with_generations);
    [[nodiscard]] uint16_t files_there(const stw_runtime_options &options) const;
    Status agree_open(const stw_runtime_options &options, const Status &mine);
    Status make_store(const stw_runtime_options &options, store::StoreOptions &store, Status before,
                      std::unique_ptr<store::Store> *store_out);
    Status find_store(const stw_runtime_options &options, store::StoreOptions &store, Status before,
                      std::unique_ptr<store::Store> *store_out);
    Status open_durable(const stw_runtime_options &options, store::StoreOptions &store,
                        Status before, std::unique_ptr<store::Store> *store_out);
    void expect_tensors(store::Manifest manifest);
    [[nodiscard]] const store::StoredTensor *find_restored(const std::string &name) const
        STW_REQUIRES(runtime_lock);
    void take_restored(const std::string &name, bool taken) STW_REQUIRES(runtime_lock);
    static Status check_restored(const store::StoredTensor &there, const std::string &words);
    Result<residency::TensorId> restore_tensor(const residency::TensorSpec &wanted,
                                               const store::StoredTensor &there)
        STW_REQUIRES(runtime_lock);
    void forget_pack(residency::PackId pack) STW_REQUIRES(runtime_lock);
    void withhold_kept() STW_REQUIRES(runtime_lock);
    void note_gone(uint64_t blocks, residency::PackId pack = residency::kNone)
        STW_REQUIRES(runtime_lock);
    [[nodiscard]] uint64_t kept_slots(residency::TensorId tensor) const STW_REQUIRES(runtime_lock);
    Status freeze_durable(residency::TensorId tensor, bool frozen) STW_REQUIRES(runtime_lock);
    [[nodiscard]] Status check_thawed(const stw_tensor &tensor) const STW_REQUIRES(runtime_lock);
    void note_kept(const CommitWork &work) STW_REQUIRES(runtime_lock);
    void note_left_out(CommitWork *work) STW_REQUIRES(runtime_lock);
    uint64_t restored_count(const std::string &name);

    // commit.cpp
    Status begin_commit(const std::shared_ptr<CommitWork> &work);
    [[nodiscard]] Status durable_view_open();
    void run_commit(CommitWork &work);
    Status commit_over_ranks(CommitWork &work);
    Result<store::Manifest> write_generation(CommitWork &work, uint32_t set);
    Status await_claims(const CommitWork &work);
    struct BlockRun;
    struct KeptBlocks;
    std::vector<BlockRun> runs_of(const CommitWork &work) const STW_REQUIRES(runtime_lock);
    Status keep_runs(const CommitWork &work, const BlockRun *runs, size_t n, uint32_t set,
                     KeptBlocks *kept);
    store::StoredTensor describe_stored(const stw_tensor &tensor, bool empty,
                                        const KeptBlocks &kept) const STW_REQUIRES(runtime_lock);
    std::vector<OptimizerBody *> durable_optimizers();
    std::vector<store::StoredCount> count_updates();
    [[nodiscard]] const store::GenerationInfo *info_of(uint64_t generation) const
        STW_REQUIRES(runtime_lock);
    [[nodiscard]] Status no_generation(uint64_t generation) const STW_REQUIRES(runtime_lock);
    void open_scratch(uint64_t bytes);
    Status open_engine(const stw_runtime_options &options, std::unique_ptr<store::Store> store);
    Status open_update(uint32_t asked);
    Status open_metadata(const stw_runtime_options &options);
    Status close_tiers(uint64_t timeout_ns);
    residency::Policy default_policy(uint32_t role) const;
    Status to_policy(const stw_policy *from, uint32_t role, residency::Policy *policy_out) const;

    // shell.cpp
    // What the loop calls, under the lock.
    void forget(residency::BlockId block) override;
    void swap_memory(std::vector<residency::Swap> &swaps) override;
    void pack_freed(residency::PackId pack) override STW_REQUIRES(runtime_lock);
    void submit(std::vector<residency::Transfer> &transfers, Commands &out) override
        STW_REQUIRES(runtime_lock);
    void promote(residency::TransferId transfer) override;
    void failed(const residency::BackgroundError &error) override STW_REQUIRES(runtime_lock);
    bool granted(residency::Granted &granted, residency::Instant now, Commands &out) override
        STW_REQUIRES(runtime_lock);
    bool refused(residency::Refused &refused, residency::Instant now, Commands &out) override
        STW_REQUIRES(runtime_lock);
    void after_round(residency::Instant now, Commands &out) override STW_REQUIRES(runtime_lock);
    void before_unlock() override STW_REQUIRES(runtime_lock);
    void unlocked() override;
    [[nodiscard]] residency::Instant due() const override STW_REQUIRES(runtime_lock);
    void on_timer(residency::Instant now) override;
    void on_timer_locked(residency::Instant now) override STW_REQUIRES(runtime_lock);
    void interrupted(residency::Instant at) override STW_REQUIRES(runtime_lock);
    void answered(Waiter &waiter) override STW_REQUIRES(runtime_lock);
    Status discard_one(stw_tensor *tensor, Commands &out, Core &core) STW_REQUIRES(runtime_lock);
    stw_status give_back(residency::PlaceId place, residency::Slot first, uint32_t count);
    stw_status take_back(residency::PlaceId place, residency::Slot first, uint32_t count,
                         stw_driver_error *error);
    transfer::Job job_of(const residency::Transfer &transfer) const STW_REQUIRES(runtime_lock);
    char *pointer_of(residency::PlaceId place, residency::Slot slot,
                     const residency::Transfer &transfer) const STW_REQUIRES(runtime_lock);
    [[nodiscard]] bool is_at_address(residency::PlaceId place, residency::BlockId block) const
        STW_REQUIRES(runtime_lock);
    void forget_unused(const Commands &out) STW_REQUIRES(runtime_lock);
    void end_transfers(const transfer::Completion *list, uint32_t n) STW_EXCLUDES(runtime_lock);
    static void engine_done(void *user, transfer::Completion *list, uint32_t n);
    static void engine_span(void *user, const transfer::Span &span);
    void drain_hits() STW_REQUIRES(runtime_lock);
    [[nodiscard]] residency::Instant now() const override { return Dispatcher::now(); }

    // fetch.cpp, granted.cpp, waiting.cpp, release.cpp
    residency::FetchAsked asked_of(const Waiter &waiter) const;
    Status start_fetch(Waiter &waiter);
    void ask(Waiter &waiter, Commands &out) STW_REQUIRES(runtime_lock);
    Status prepare_fetch(Waiter &waiter);
    Status sticky_errors(const FetchPlan &plan);
    void drop_scratches(FetchPlan &plan);
    Status check_places(const FetchPlan &plan) const;
    Status prepare_reduces(FetchPlan &plan);
    Status make_scratch(Range &range) STW_REQUIRES(runtime_lock);
    bool ask_privately(residency::Refused &refused, Commands &out) STW_REQUIRES(runtime_lock);
    void drop_scratch(residency::TensorId scratch);
    bool waits_for_itself(const Waiter &waiter, std::string *tensor_out) STW_REQUIRES(runtime_lock);
    void break_deadlocks() STW_REQUIRES(runtime_lock);
    std::vector<residency::Held> held_by_sleepers() STW_REQUIRES(runtime_lock);
    [[nodiscard]] observe::Stall cause_of(const Waiter &waiter) const STW_REQUIRES(runtime_lock);
    void add_stall_of(uint64_t step, observe::Stall cause, residency::TensorId tensor,
                      residency::Instant begin, residency::Instant end) STW_REQUIRES(runtime_lock);
    // The wait is put down to the tensor.
    void await(Waiter &waiter, residency::TensorId tensor);
    void sleep_on(Waiter &waiter, residency::Instant deadline, bool until_answered)
        STW_REQUIRES(runtime_lock);
    Status finish_fetch(Waiter &waiter, stw_view *views_out);
    void count_pinning_views(ErrorDetail &detail);
    [[nodiscard]] Status tell_waiting(Status status);
    void log_timeout(const Status &status);
    std::string describe_views(uint32_t lines_max) STW_REQUIRES(runtime_lock);
    Status fill_views(Waiter &waiter, stw_view *views_out);
    void undo_grants(const FetchPlan &plan, const std::vector<residency::Grant> &grants);
    uint32_t pin_hit(const Range &range, uint64_t step);
    uint32_t pin_hit_on(const Range &range, uint64_t step, void *stream);
    void undo_hit(uint32_t index);
    void open_hit(uint32_t index, const Range &range, uint64_t step, stw_view *view_out);
    void push_after_drain(ThreadState &state, residency::TensorId tensor, residency::PlaceId place,
                          uint64_t step);
    static void describe_view(const Range &range, const memory::Tier &place, void *pointer,
                              uint64_t cookie, stw_view *view_out);
    void *view_pointer(const Range &range, const residency::Grant &grant) const
        STW_REQUIRES(runtime_lock);
    // Where it lies, if that is not where it is seen.
    void *arena_pointer(const Range &range, const residency::Grant &grant) const
        STW_REQUIRES(runtime_lock);
    Status show_range(const Range &range, residency::PlaceId place, memory::SlotRange slots);
    memory::ShownTensor *shown_of(const Range &range, residency::PlaceId place) const;
    void open_view(uint32_t slot, const Range &range, const residency::Grant &grant,
                   const Waiter &waiter, stw_view *views_out);
    Status release_one(stw_view &view, void *stream, uint32_t flags);
    Status end_view(uint32_t index, ViewSlot &slot, memory::DeviceStreams::Id stream,
                    uint32_t flags);

    bool is_ordered(uint32_t index, const Range &range, memory::DeviceStreams::Id stream);

    // stream_order.cpp: who comes behind whose work on a device
    Status begin_streams(const Waiter &waiter);
    void join_registrations(const Range &range, const residency::Grant &grant);
    [[nodiscard]] bool is_joined(const Range &range) const;
    // Of what no caller could ask for again: tried until no stream records a graph any more, or the
    // runtime's time for a fetch has passed.
    Status when_not_busy(const std::function<Status()> &order) const;
    Status begin_whole(const Range &range, const residency::Grant &grant, void *stream);
    Status stream_id(residency::PlaceId place, void *stream, memory::DeviceStreams::Id *id_out);
    [[nodiscard]] memory::SlotRange slots_of(const ViewSlot &view) const;
    void pin_host_memory();
    void open_ordering();

    // device_updates.cpp
    [[nodiscard]] std::vector<update::WindowOptions> device_windows() const
        STW_REQUIRES(runtime_lock);
    Status order_update(const PieceFetch &fetch);
    void end_update(const PieceFetch &fetch);
    template <class Work> Status compute(uint64_t ticket, const char *what, Work &&work);
    struct Measured {
        uint64_t order = 0;  // 0: was not
        update::Measurement measurement;
    };
    Measured measure_gradient(const ViewSlot &view, uint32_t flags);
    Status release_reduce(const ViewSlot &slot, uint32_t flags);
    Status release_converted(const ViewSlot &slot, uint32_t flags);
    Status release_copy(stw_view &view, uint32_t flags);
    void note_access(residency::TensorId tensor) STW_REQUIRES(runtime_lock);
    void note_use(stw_tensor &tensor, residency::Instant begin, uint32_t thread)
        STW_REQUIRES(runtime_lock);

    static Status freed_meanwhile();
    void end_early(Waiter &waiter, Core &core, Commands &out) STW_REQUIRES(runtime_lock);

    // touches.cpp: what is done at addresses without a view
    friend class Touches;
    Status open_touches(const stw_runtime_options &options);
    bool show_block(residency::PlaceId place, residency::Slot slot, residency::PackId pack,
                    uint32_t index, bool writable) STW_REQUIRES(runtime_lock);
    void hide_block(residency::PlaceId place, residency::Slot slot);
    stw_tensor *tensor_at(uintptr_t address, residency::PlaceId *place_out)
        STW_REQUIRES(runtime_lock);
    Status serve_touch(const MemoryFault &fault);
    Status fetch_touched(const Range &range);
    Status fetch_once(FetchPlan plan, stw_view *views_out);
    void release_touches();

    // callbacks.cpp
    void tell_end(Waiter &waiter) STW_REQUIRES(runtime_lock);
    Status start_callbacks() STW_REQUIRES(runtime_lock);
    void stop_callbacks();
    void run_callbacks();
    Waiter *next_callback(stw_status *status_out) STW_EXCLUDES(runtime_lock);
    void end_callback(Waiter *waiter) STW_EXCLUDES(runtime_lock);
    Status await_callbacks(residency::Instant deadline) STW_REQUIRES(runtime_lock);

    // tiers.cpp
    residency::ClaimId claim_alone(residency::TensorId tensor);
    void *piece_pointer(const residency::Grant &grant, const update::Piece &piece) const
        STW_REQUIRES(runtime_lock);

    // optimizers.cpp
    Status make_state(OptimizerBody &body, stw_tensor *parameter, const char *name,
                      bool starts_empty, residency::PlaceId home, residency::TensorId *id_out);
    Status check_entry(const OptimizerBody &body, const stw_optimizer_entry &entry) const;
    [[nodiscard]] collective::Range own_part(const stw_optimizer_entry &entry) const;
    Status step_on_ranks(OptimizerBody &body, const std::vector<stw_tensor *> &tensors,
                         update::StepOptions step, update::StepResult *result);
    Status make_entry(OptimizerBody &body, const stw_optimizer_entry &entry,
                      update::Entry *entry_out);
    Status take_parameters(OptimizerBody &body, const stw_optimizer_entry *entries, uint32_t n);
    void forget_states(OptimizerBody &body, size_t keep, Commands &out);
    OptimizerBody &body_of(const stw_optimizer *optimizer) STW_EXCLUDES(runtime_lock);
    [[nodiscard]] std::vector<stw_tensor *> held_by(const OptimizerBody &body) const
        STW_EXCLUDES(runtime_lock);
    // That holds it; null: none.
    [[nodiscard]] const OptimizerBody *optimizer_of(const stw_tensor &tensor) const
        STW_REQUIRES(runtime_lock)
    {
        return static_cast<const OptimizerBody *>(tensor.notes.optimizer);
    }

    // copy.cpp
    struct ChunkFetch;
    struct Copy;
    template <class Body>
    Status each_chunk(stw_tensor *tensor, residency::Access access, bool exclusive,
                      uint64_t element_begin, uint64_t element_count, uint64_t timeout_ns,
                      Body &&body);
    Status self_wait(stw_tensor *tensor, residency::Access access, uint32_t owner);
    [[nodiscard]] uint64_t chunk_elements(const Copy &copy, uint64_t at) const;
    void ask_chunk(ChunkFetch &chunk, Copy &copy);
    void *chunk_pointer(const ChunkFetch &chunk, const Copy &copy);
    void release_chunk(const ChunkFetch &chunk, const Copy &copy);

    // snapshot.cpp: the copies of a fetch; copier.cpp: those of operations
    bool copy_resident(const FetchPlan &plan);
    Status copy_out(Waiter &waiter);
    Status prepare_snapshot(Waiter &waiter);
    bool next_chunk(Snapshot &work);
    void ask_chunk(Snapshot &work, Core &core, Commands &out) STW_REQUIRES(runtime_lock);
    void ask_ahead(Snapshot &work, Core &core, Commands &out);
    void give_chunk_back(Snapshot &work, Core &core, Commands &out);
    void start_over(Snapshot &work, Core &core, Commands &out) STW_REQUIRES(runtime_lock);
    void drop_holds(Snapshot &work, Core &core, Commands &out);
    [[nodiscard]] bool has_own_view(const Waiter &waiter, const stw_tensor *tensor) const;
    void end_snapshot(Snapshot &work, Core &core, Commands &out) STW_REQUIRES(runtime_lock);
    void copy_chunk(Snapshot &work);
    [[nodiscard]] bool is_torn(Snapshot &work) STW_REQUIRES(runtime_lock);
    void sleep_follows(residency::FetchId before, residency::FetchId after)
        STW_REQUIRES(runtime_lock);
    Status start_snapshot(Waiter &waiter);
    Status start_copier();
    void stop_copier();
    void run_copier();
    void finish_snapshot(Waiter &waiter);

    Status accumulate(const ViewSlot &slot, residency::TensorId sum, uint64_t sum_elements);
    // adopted.cpp
    Status take_adopted(const stw_tensor &gradient, uint64_t bytes, uint64_t timeout_ns);
    void give_adopted(uint64_t bytes);
    struct Adopted;
    Status start_adopted(update::Accumulation &work, std::unique_ptr<Adopted> &mine);
    Status adopt_here(stw_tensor *gradient, update::Accumulation &work,
                      std::unique_ptr<Adopted> &mine);
    Status adopt_on_ranks(stw_tensor *gradient, update::Accumulation &work, bool more,
                          std::unique_ptr<Adopted> &mine);
    Status add_up(const stw_tensor &gradient, residency::TensorId scratch, uint32_t scratch_dtype,
                  residency::TensorId sum, collective::Range range, uint64_t sum_elements);
    Status resolve_copy(const stw_tensor &tensor, const stw_copy_options &options,
                        collective::Range *asked_out, collective::Range *part_out) const;
    Status change_shards(stw_tensor *tensor);
    Status read_whole(stw_tensor *tensor, void *destination, collective::Range asked,
                      const stw_copy_options &options);
    Status reduce_over_ranks(stw_tensor *gradient, const void *local,
                             const stw_reduce_options &options);
    void note_zeros(residency::TensorId tensor) STW_REQUIRES(runtime_lock);
    Status write_zeros(const stw_tensor *tensor);
    Status write_all_zeros();

    // ranks.cpp: the queue of collectives; gathers.cpp: wholes; sums.cpp,
    // small_sums.cpp: what is summed; replicas.cpp: the ranks that hold the same shards
    static Status agree_wholes(const stw_runtime_options &options, uint64_t *blocks_out);
    static Status agree_replicas(const stw_runtime_options &options, uint64_t blocks,
                                 Status status);
    void share_failure();
    Status join_host(collective::NodeOptions node);
    Status join_ranks(const stw_runtime_options &options, uint64_t whole_blocks);
    void share_disks(const stw_runtime_options &options, transfer::EngineOptions *engine);
    Status open_ranks();
    // group_memory.cpp: of the CPU, or of a device with streams
    static uint64_t bucket_blocks(const stw_runtime_options &options);
    Status open_group_memory();
    Status register_group_memory(bool asked);
    void leave_group_memory();
    [[nodiscard]] bool is_of_group(const void *memory) const;
    Status move_bytes(void *to, const void *from, uint64_t bytes);
    Status zero_bytes(void *memory, uint64_t bytes);
    std::function<Status(void *, const void *, uint64_t)> mover();
    Status order_copy(const void *memory, uint64_t bytes, bool writes, uint32_t copies);
    Status order_group(const void *memory, uint64_t bytes, bool writes);
    Status piece_of_shard(const stw_tensor &tensor, residency::FetchAsked asked, Waiter &waiter,
                          residency::FetchAsked *asked_out);
    void leave_ranks();
    void close_ranks();
    [[nodiscard]] bool ranks_idle() const STW_REQUIRES(runtime_lock);
    // Collectives are the affair of whoever waits.
    [[nodiscard]] bool works_here() const;
    Status drain_ranks(residency::Instant begin, residency::Instant deadline);
    [[nodiscard]] bool ranks_stopped() const STW_REQUIRES(runtime_lock);
    void tell_ranks();
    void queue_collective(std::unique_ptr<Collective> next) STW_REQUIRES(runtime_lock);
    bool work_one() STW_REQUIRES(runtime_lock);
    void run_collective(Collective &work) STW_EXCLUDES(runtime_lock);
    void lose_bucket();
    bool wait_ranks(residency::Instant begin, residency::Instant deadline,
                    const std::function<bool()> &done) STW_REQUIRES(runtime_lock);
    static collective::Record record_of(collective::Kind kind,
                                        const std::vector<stw_tensor *> &tensors,
                                        const Status &status);
    Status take_pieces(Waiter &waiter, residency::FetchAsked &asked);
    void give_pieces(const Waiter &waiter, const residency::FetchAsked &asked, bool abandon);
    char *bytes_at(residency::TensorId tensor, const residency::Grant &grant);
    Status copy_shard(const stw_tensor &tensor, residency::ClaimId claim, uint64_t begin,
                      uint64_t bytes, char *memory, bool writes);
    void hint_shards();
    [[nodiscard]] residency::PlaceId shard_place() const;
    [[nodiscard]] Status wholes_fit(std::vector<const stw_tensor *> &tensors) const
        STW_REQUIRES(runtime_lock);
    Status make_whole(stw_tensor &tensor) STW_REQUIRES(runtime_lock);
    Status check_gathered(const FetchPlan &plan) const;
    Status ask_wholes(Waiter &waiter);
    Status fetch_wholes(Waiter &waiter);
    void queue_gathers() STW_REQUIRES(runtime_lock);
    void pump_wholes(Commands &out) STW_REQUIRES(runtime_lock);
    void answer_call(gathering::WholeGranted granted, Commands &out) STW_REQUIRES(runtime_lock);
    void refuse_call(gathering::WholeRefused refused, Commands &out) STW_REQUIRES(runtime_lock);
    void give_up_wholes(Waiter &waiter) STW_REQUIRES(runtime_lock);
    void undo_wholes(Waiter &waiter);
    void release_wholes(Waiter &waiter, Commands &out) STW_REQUIRES(runtime_lock);
    void release_refused(Waiter &waiter, Commands &out) STW_REQUIRES(runtime_lock);
    bool end_wholes_early(Waiter &waiter, Commands &out) STW_REQUIRES(runtime_lock);
    void finish_gathered(Waiter &waiter);
    void run_gather(Collective &work);
    void lose_gather(const Collective &work, const Status &status);
    Status gather_in_parts(const Collective &work, const char *shard, char *whole,
                           uint64_t rank_bytes);
    Status read_shard(const stw_tensor &tensor, residency::ClaimId claim, uint64_t begin,
                      uint64_t count, char *memory);
    bool pin_shard(const Collective &work, Waiter &waiter, residency::FetchAsked &pin);
    Status make_bucket(uint64_t bytes);
    void run_keep(Collective &work);
    Status release_whole(const ViewSlot &view, bool by_gate, uint32_t flags);
    Status write_shards(stw_tensor *tensor, Commands &out) STW_REQUIRES(runtime_lock);
    Status await_gathers(stw_tensor *const *tensors, uint32_t n);
    Status may_unshard(const stw_tensor &tensor, Commands &out) STW_REQUIRES(runtime_lock);
    void unshard(stw_tensor &tensor, Commands &out) STW_REQUIRES(runtime_lock);
    void update_shards(const stw_tensor *tensor, Commands &out) STW_REQUIRES(runtime_lock);
    [[nodiscard]] std::optional<residency::Request> shard_request(const Range &range) const;
    void note_gathered(const FetchPlan &plan) STW_REQUIRES(runtime_lock);
    Result<residency::TensorId> make_buffer(const stw_tensor &tensor, uint64_t bytes)
        STW_REQUIRES(runtime_lock);
    Status release_sum(const ViewSlot &view, uint32_t flags);
    void drop_partial(residency::TensorId tensor, Commands &out) STW_REQUIRES(runtime_lock);
    Status queue_reduce(stw_tensor *tensor, residency::TensorId source, bool gives,
                        const Status &cause);
    Status agree_sum(collective::Record mine, SumAgreed *agreed);
    Status sum_over_ranks(residency::TensorId tensor, char *source, char *sums, uint64_t elements,
                          uint32_t dtype);
    void run_reduce(Collective &work);
    void end_reduce(const Collective &work, const Status &status);
    std::vector<Collective *> small_sums(Collective &front);
    uint64_t fill_sums(const SmallSums &sums);
    Status take_sum(const SmallSums &sums, size_t i);
    void run_sums(SmallSums sums, const Status &put);
    void run_verdict(Collective &work);
    void agree_verdict(collective::Record record, update::Verdict *all);
    static StepSpec describe_step(const OptimizerBody &body,
                                  const std::vector<stw_tensor *> &parameters,
                                  const update::StepOptions &step);
    std::shared_ptr<LocalVerdict> queue_verdict(OptimizerBody &body,
                                                const std::vector<stw_tensor *> &parameters,
                                                const update::StepOptions &step);

    // metadata.cpp
    static uint64_t name_bytes(size_t length);
    [[nodiscard]] uint64_t metadata_bytes() const STW_REQUIRES(runtime_lock);
    [[nodiscard]] std::string metadata_text() const STW_REQUIRES(runtime_lock);
    [[nodiscard]] Status metadata_room(const residency::TensorSpec &spec) const
        STW_REQUIRES(runtime_lock);

    // tensors.cpp
    Status create_one(const stw_tensor_spec &spec, stw_tensor **tensor_out);
    Status shard_one(const stw_tensor_spec &spec, uint64_t elements,
                     std::unique_ptr<Sharding> *sharding_out) const;
    Status destroy_held(stw_tensor *const *tensors, uint32_t n, const OptimizerBody *holder)
        STW_EXCLUDES(runtime_lock);
    Status register_tensor(const residency::TensorSpec &wanted, const std::string &words,
                           stw_tensor *tensor) STW_REQUIRES(runtime_lock);
    Result<residency::TensorId> make_tensor(const residency::TensorSpec &wanted,
                                            const std::string &words, stw_tensor *tensor)
        STW_REQUIRES(runtime_lock);
    Result<residency::TensorId> make_durable(const residency::TensorSpec &wanted,
                                             const std::string &words, stw_tensor *tensor)
        STW_REQUIRES(runtime_lock);
    Status check_durable(const stw_tensor_spec &spec, const residency::Policy &policy) const;
    [[nodiscard]] std::string words_of(const stw_tensor &tensor) const;
    void prepare_tables(const residency::TensorSpec &wanted) STW_REQUIRES(runtime_lock);
    void unregister_tensor(stw_tensor *tensor, Commands &out) STW_REQUIRES(runtime_lock);
    void count_trained(const residency::TensorSpec &wanted, stw_tensor *tensor)
        STW_REQUIRES(runtime_lock);
    [[nodiscard]] residency::PlaceId home_of_states(const OptimizerBody &body, uint64_t bytes);

    // budgets.cpp
    struct BudgetChange {
        residency::PlaceId place = 0;
        uint32_t before = 0;  // blocks
        uint32_t after = 0;
        residency::Instant begin = 0;
        residency::Instant deadline = 0;
    };
    Status go_on_with(const BudgetChange &change) const STW_EXCLUDES(runtime_lock);
    [[nodiscard]] std::string name_of(residency::PlaceId place) const STW_EXCLUDES(runtime_lock);
    Status give_slots_back(const BudgetChange &change);
    Status take_slots_back(const BudgetChange &change);
    [[nodiscard]] bool others_work(residency::PlaceId place) const STW_REQUIRES(runtime_lock);
    Status blocks_of_budget(residency::PlaceId place, uint64_t bytes, uint32_t *blocks_out) const
        STW_REQUIRES(runtime_lock);
    Status wait_for_budget(const BudgetChange &change, const char *what) STW_REQUIRES(runtime_lock);
    Status shrink(const BudgetChange &change);
    Status wait_for_claims(const BudgetChange &change);
    Status empty_down_to(const BudgetChange &change);
    Status shrink_store(const BudgetChange &change);
    void unpin_before(const BudgetChange &change);
    Status give_memory_back(const BudgetChange &change);
    Status grow(const BudgetChange &change);
    Status take_memory_back(const BudgetChange &change);
    [[nodiscard]] uint64_t update_window() const STW_REQUIRES(runtime_lock);  // bytes
    [[nodiscard]] Status check_cpu_room() const;
    bool name_parameters(const OptimizerBody &body, const stw_update_options &options,
                         std::vector<stw_tensor *> *named);
    [[nodiscard]] Status find_parameter(const OptimizerBody &body, const stw_tensor *parameter,
                                        bool *updated_here) const;
    [[nodiscard]] Status check_update_room(const OptimizerBody &body,
                                           const std::vector<stw_tensor *> &parameters) const;

    // planning.cpp
    struct PlanPause;
    void begin_pause() STW_EXCLUDES(runtime_lock);
    void end_pause() STW_EXCLUDES(runtime_lock);
    [[nodiscard]] uint32_t phase_of(uint64_t step) const STW_REQUIRES(runtime_lock);
    void note_fetch(const FetchPlan &plan) STW_REQUIRES(runtime_lock);
    void note_copies(const FetchPlan &plan) STW_REQUIRES(runtime_lock);
    void note_update(const residency::FetchAsked &asked) STW_REQUIRES(runtime_lock);
    void note_fetched(uint32_t phase, schedule::Lane lane,
                      const std::vector<residency::Request> &requests) STW_REQUIRES(runtime_lock);
    void note_update_end(const residency::Release &release) STW_REQUIRES(runtime_lock);
    void note_release(const residency::Request &view, uint64_t step, uint32_t flags)
        STW_REQUIRES(runtime_lock);
    void note_discard(schedule::Lane lane, residency::TensorId tensor) STW_REQUIRES(runtime_lock);
    void look_ahead() STW_REQUIRES(runtime_lock);
    void look_ahead_in(uint32_t phase) STW_REQUIRES(runtime_lock);
    bool make_lookahead(Phase &phase) STW_REQUIRES(runtime_lock);
    bool end_hint(residency::FetchId fetch, const Status &status) STW_REQUIRES(runtime_lock);
    void expect_bandwidths(const profile::Tuning &tuning);
    void take_bandwidths(const std::vector<observe::LinkTotal> &links) STW_REQUIRES(runtime_lock);
    void plan_now();

    // plans.cpp: of what stays, made beside the program
    void ask_plan(uint32_t phase, const std::vector<observe::LinkTotal> &totals);
    std::unique_ptr<PlanWork> plan_question(uint32_t phase) STW_REQUIRES(runtime_lock);
    uint64_t planning_bytes(const std::vector<const schedule::Step *> &steps) const
        STW_REQUIRES(runtime_lock);
    std::vector<const schedule::Step *> describe_work(
        const std::vector<schedule::Trace::Turn> &round, PlanWork *work) const
        STW_REQUIRES(runtime_lock);
    void prepare_plan(PlanWork &work) const;
    bool make_plan_room(uint64_t bytes) STW_REQUIRES(runtime_lock);
    [[nodiscard]] uint64_t rank_bytes() const STW_REQUIRES(runtime_lock);
    void note_line(uint32_t level, const char *topic, const Status &status)
        STW_REQUIRES(runtime_lock);
    void take_plan() STW_REQUIRES(runtime_lock);
    void follow_plan(uint32_t phase) STW_REQUIRES(runtime_lock);
    [[nodiscard]] PlanWork *plan_for(uint32_t phase) STW_REQUIRES(runtime_lock);
    [[nodiscard]] bool plan_fits(const PlanWork &work, uint32_t at, uint32_t phase) const
        STW_REQUIRES(runtime_lock);
    [[nodiscard]] uint64_t room_number() const STW_REQUIRES(runtime_lock);
    [[nodiscard]] uint64_t plans_bytes() const STW_REQUIRES(runtime_lock);
    // Of metadata_bytes, what is used, with all that is kept for the trace and for plans.
    [[nodiscard]] uint64_t metadata_taken() const STW_REQUIRES(runtime_lock)
    {
        return metadata_bytes() - trace_.metadata_bytes() - plans_bytes() + trace_.limit() +
               plan_bytes_max_;
    }
    void report_plans(report::ReportData &data) const STW_REQUIRES(runtime_lock);
    [[nodiscard]] uint64_t computed_now(const std::vector<PlanWork::Turn> &round) const
        STW_REQUIRES(runtime_lock);
    void fill_plan(const schedule::Plan &plan, report::PlanReport *report) const;
    [[nodiscard]] uint32_t link_between(const schedule::Link &link) const;

    // model.cpp: for replays, of the way the phase's steps went last, else as they were declared.
    // EMPTY where there is none. Holds the lock while it copies.
    Result<StepModel> take_model(uint32_t phase) const;
    void copy_steps(const std::vector<const schedule::Step *> &steps, StepModel *model) const
        STW_REQUIRES(runtime_lock);
    void settle_model(const std::vector<observe::LinkTotal> &totals, StepModel *model) const;
    static schedule::Step complete_step(schedule::Step step, const StepModel &model);
    [[nodiscard]] std::vector<uint32_t> blocks_of_others(
        const std::vector<residency::TensorId> &used) const STW_REQUIRES(runtime_lock);
    [[nodiscard]] residency::Config room_beside(const std::vector<uint32_t> &others) const
        STW_REQUIRES(runtime_lock);
    void make_links(const std::vector<observe::LinkTotal> &totals,
                    schedule::Machine *machine) const;

    // phases.cpp
    void note_reduced(stw_tensor *gradient, uint64_t step) STW_REQUIRES(runtime_lock);
    void close_step(Phase &phase) STW_REQUIRES(runtime_lock);
    void sample_tiers(residency::Instant time) STW_REQUIRES(runtime_lock);
    // Of the host tier, for staging and scratch memory.
    [[nodiscard]] uint64_t kept_bytes() const
    {
        return staging_bytes_ + (scratch_ ? scratch_->usage().bytes : 0);
    }
    void empty_behind(residency::TensorId tensor);

    // scoring.cpp
    [[nodiscard]] bool has_policy() const STW_REQUIRES(runtime_lock);
    [[nodiscard]] uint64_t policy_bytes(uint64_t tensors) const;
    [[nodiscard]] Status check_policy_room() const STW_REQUIRES(runtime_lock);
    Status start_policy_thread() STW_REQUIRES(runtime_lock);
    Status await_policy(uint64_t timeout_ns, bool closes) STW_REQUIRES(runtime_lock);
    Status end_policy(uint64_t timeout_ns);
    void ask_policy() STW_REQUIRES(runtime_lock);
    void note_departures() STW_REQUIRES(runtime_lock);
    bool await_scoring() STW_REQUIRES(runtime_lock);
    void run_policy();
    void score_place(residency::PlaceId place) STW_REQUIRES(runtime_lock);
    residency::Instant take_snapshot(residency::PlaceId place, uint32_t victim_bytes)
        STW_REQUIRES(runtime_lock);
    void show(const residency::Candidate &candidate, uint32_t victim_bytes, VictimTable &table)
        STW_REQUIRES(runtime_lock);
    residency::Instant apply_scores(residency::PlaceId place) STW_REQUIRES(runtime_lock);

    // shared by fetches and copies
    uint32_t owner_number();
    Status check_fixed_address(const stw_tensor_spec &spec, const Sharding *sharding) const;
    Status show_pack(residency::TensorId tensor, stw_tensor *handle, residency::PlaceId place)
        STW_REQUIRES(runtime_lock);
    Status address_pack(residency::TensorId tensor, stw_tensor *handle) STW_REQUIRES(runtime_lock);
    void release_pack(residency::PackId pack) STW_REQUIRES(runtime_lock);
    std::vector<observe::LinkTotal> link_totals() const;
    void fill_report(report::ReportData &data);
    void report_drivers(report::ReportData &data);
    void report_waste(report::ReportData &data) const STW_REQUIRES(runtime_lock);
    void report_history(report::HistoryData &data) const STW_REQUIRES(runtime_lock);
    // stats.cpp
    void open_stats();
    void publish_stats();
    [[nodiscard]] std::vector<report::TensorName> tensor_names() const STW_REQUIRES(runtime_lock);

    stw_runtime *const handle_;
    const uint64_t serial_;
    std::string name_;
    uint64_t block_bytes_;
    uint32_t preset_;
    uint32_t operations_max_;
    uint32_t update_threads_ = 0;
    std::string update_threads_why_;
    residency::Instant opened_ns_ = 0;
    report::UpdateReport updates_;
    report::ProfileReport profile_;
    std::unique_ptr<observe::LogRelay> log_relay_;  // with touches
    stw_services services_{};
    std::unique_ptr<observe::Timeline> timeline_;
    memory::TierSet tiers_;
    HandleTable handles_;
    Dispatcher dispatch_;
    BackgroundErrors errors_{dispatch_, handles_};
    uint64_t staging_bytes_ = 0;
    uint32_t staging_blocks_ = 0;
    uint64_t metadata_budget_ = 0;
    std::unique_ptr<memory::Scratch> scratch_;  // in the host tier's memory; null: none was kept
    std::unique_ptr<transfer::StreamOrdering> ordering_;
    std::unique_ptr<transfer::Engine> engine_;
    ViewTable views_;

    std::unique_ptr<Touches> touches_;  // null: a touch without a view is undefined
    std::unique_ptr<memory::HostPins>
        pins_;                     // null: no device has streams, or there is no host tier
    bool plans_ = true;            // as opened
    uint64_t plan_bytes_max_ = 0;  // of metadata_bytes, for plans made and the one being made
    Planner planner_{[this](PlanWork &work) { prepare_plan(work); }};

    schedule::Trace trace_ STW_GUARDED_BY(runtime_lock);
    schedule::Planned planned_ STW_GUARDED_BY(runtime_lock){trace_};
    // The oldest first; also those refused.
    std::vector<std::unique_ptr<PlanWork>> plans_made_ STW_GUARDED_BY(runtime_lock);
    const PlanWork *plan_followed_ STW_GUARDED_BY(runtime_lock)
        STW_PT_GUARDED_BY(runtime_lock) = nullptr;         // of these
    uint32_t plan_turn_ STW_GUARDED_BY(runtime_lock) = 0;  // in its round
    uint64_t plan_deviations_ STW_GUARDED_BY(runtime_lock) =
        0;  // of the phases, as of its last begin
    uint64_t policies_changed_ STW_GUARDED_BY(runtime_lock) = 0;
    // That the question under way may take; 0: none is.
    uint64_t plan_bytes_asked_ STW_GUARDED_BY(runtime_lock) = 0;
    uint64_t plan_bytes_kept_ STW_GUARDED_BY(runtime_lock) = 0;  // of plans_made_
    bool plan_refused_ STW_GUARDED_BY(runtime_lock) =
        false;  // the system starts no thread for them
    // As of the last begin or end of a step.
    std::vector<observe::LinkTotal> bandwidths_ STW_GUARDED_BY(runtime_lock);
    uint64_t lookahead_bytes_ STW_GUARDED_BY(runtime_lock) = 0;  // of all phases
    bool plan_due_ STW_GUARDED_BY(runtime_lock) = false;  // something changed that a plan goes by
    residency::Instant plan_wake_ STW_GUARDED_BY(runtime_lock) =
        residency::kNever;                                   // it looks again then
    uint32_t plan_pauses_ STW_GUARDED_BY(runtime_lock) = 0;  // calls that wait for quiet
    // Threads of the program in await() or wait().
    std::vector<residency::Sleeper> sleepers_ STW_GUARDED_BY(runtime_lock);
    struct PackAddresses {
        uint32_t blocks = 0;
        void *at[residency::kDevicesMax] = {};  // per device; null: none
        std::unique_ptr<memory::ShownTensor> shown[residency::kDevicesMax];
    };
    std::vector<PackAddresses> pack_addresses_ STW_GUARDED_BY(runtime_lock);  // by pack
    std::map<std::string, stw_tensor *, std::less<>> names_ STW_GUARDED_BY(runtime_lock);
    uint64_t shown_bytes_ STW_GUARDED_BY(runtime_lock) =
        0;  // of tensors with an address of their own
    uint64_t handles_bytes_ STW_GUARDED_BY(runtime_lock) =
        0;  // of the tensors' handles, names included
    uint64_t trained_bytes_ STW_GUARDED_BY(runtime_lock) = 0;  // see count_trained()
    uint64_t accesses_ STW_GUARDED_BY(runtime_lock) = 0;       // of tensors, since open
    uint32_t operations_ STW_GUARDED_BY(runtime_lock) = 0;
    std::vector<Snapshot *> snapshots_ STW_GUARDED_BY(runtime_lock);  // under way
    // Operations that are over, in that order.
    Waiter *callbacks_first_ STW_GUARDED_BY(runtime_lock) = nullptr;
    Waiter *callbacks_last_ STW_GUARDED_BY(runtime_lock) = nullptr;
    // Of operations freed before they returned.
    uint32_t callbacks_freed_ STW_GUARDED_BY(runtime_lock) = 0;
    uint64_t adopted_bytes_ STW_GUARDED_BY(runtime_lock) =
        0;  // of stw_reduce_adopt's, not given back
    Condition callbacks_ready_;
    bool callbacks_run_ STW_GUARDED_BY(runtime_lock) = false;  // the thread does
    bool callbacks_end_ STW_GUARDED_BY(runtime_lock) = false;
    pthread_t callbacks_thread_{};
    std::vector<std::unique_ptr<Phase>> phases_ STW_GUARDED_BY(runtime_lock);
    observe::StepHistory steps_ STW_GUARDED_BY(runtime_lock);
    observe::StallLedger stalls_ STW_GUARDED_BY(runtime_lock);
    // When bytes per tier were recorded last.
    residency::Instant sampled_ns_ STW_GUARDED_BY(runtime_lock) = 0;
    residency::Instant drained_ns_ STW_GUARDED_BY(runtime_lock) =
        0;                                            // when the core heard of hits last
    uint64_t hits_ STW_GUARDED_BY(runtime_lock) = 0;  // that it has heard of
    uint64_t misses_ STW_GUARDED_BY(runtime_lock) = 0;
    // Of the statistics page; the timer's thread alone uses it.
    struct Stats;
    struct StatsOwner {
        StatsOwner();
        ~StatsOwner();
        std::unique_ptr<Stats> body;  // null: not asked for
    };
    StatsOwner stats_;
    residency::Instant stats_due_ns_ = residency::kNever;
    struct RanksOwner {
        RanksOwner();
        ~RanksOwner();
        Ranks *operator->() const { return body.get(); }
        std::unique_ptr<Ranks> body;  // null: one rank
    };
    RanksOwner ranks_;
    struct DurableOwner {
        DurableOwner();
        ~DurableOwner();
        Durable *operator->() const { return body.get(); }
        std::unique_ptr<Durable> body;  // null: scratch alone
    };
    DurableOwner durable_;
    std::atomic<bool> ranks_news_{false};  // tell_ranks() once the lock is given back
    stw_group *group_ = nullptr;           // that this runtime has for itself
    stw_group *replica_group_ = nullptr;   // and this one
    std::unique_ptr<Scoring> scoring_ STW_GUARDED_BY(runtime_lock)
        STW_PT_GUARDED_BY(runtime_lock);          // null until there is a policy
    std::unique_ptr<update::Pipeline> pipeline_;  // outlives the optimizers that use it
    std::vector<std::unique_ptr<OptimizerBody>> optimizers_ STW_GUARDED_BY(runtime_lock);
    std::set<residency::TensorId> zeros_owed_
        STW_GUARDED_BY(runtime_lock);                           // empty, but read as zeros
    bool budget_changes_ STW_GUARDED_BY(runtime_lock) = false;  // somebody is in set_budget()
    // By place, of devices with streams: the budget, or what it changes to if that is less.
    std::vector<uint64_t> update_blocks_ STW_GUARDED_BY(runtime_lock);
    // A fetch was asked for that may wait for theirs.
    std::atomic<bool> touches_give_way_{false};

    std::atomic<uint64_t> current_step_{0};
    std::atomic<size_t> zeros_owed_count_{0};
    // Copies of operations, a chunk at a time; the thread starts with the first one.
    std::thread copier_;
    Condition copier_wakes_;
    // Their chunk was granted or refused.
    std::deque<Snapshot *> copier_queue_ STW_GUARDED_BY(runtime_lock);
    bool copier_stops_ STW_GUARDED_BY(runtime_lock) = false;
};

}  // namespace stepwell
