// SPDX-License-Identifier: Apache-2.0
// The inside of the pipeline: chunks, jobs (one tensor's way through a step, or one sum) and the
// machine that takes chunks of jobs from their fetch to their release. Jobs decide what is cut and
// computed; the machine decides when. Two locks: `claiming` around all claims, so that claims and
// the queues below have one order; `mutex`, a leaf, around all else. Tiers are never called with
// `mutex` held.
#pragma once

#include "lib/support/thread_annotations.h"
#include "lib/update/devices.h"
#include "lib/update/kernels/kernels.h"
#include "lib/update/pipeline.h"

#include <atomic>
#include <memory>
#include <optional>
#include <set>
#include <thread>
#include <vector>

namespace stepwell::update {

constexpr uint64_t kNotPreferred = UINT64_MAX;
constexpr uint32_t kJobTensorsMax = 12;   // parameter, gradient, master, average and the states
constexpr uint32_t kPreferredChunks = 8;  // of kChunksMax, reserved for jobs that a call waits for

struct Job;

// Jobs that a call waits for come first, then jobs in the order of their requests.
struct ReadyOrder {
    bool operator()(const Job *a, const Job *b) const;
};
using ReadyJobs = std::set<Job *, ReadyOrder>;

// One fetch: requested, granted or refused, worked on, released.
struct Chunk {
    Pipeline::Parts *pipeline = nullptr;
    Job *job = nullptr;
    Chunk *next = nullptr;  // in the list it is in
    uint64_t ordinal = 0;   // within the phase of its job
    uint64_t element_begin = 0;
    uint64_t element_count = 0;
    uint32_t part = 0;  // of the job's
    uint32_t piece_count = 0;
    uint64_t far_pieces = 0;
    bool opens = false;  // the first of its phase
    bool scans = false;  // reads for a verdict; for the statistics
    bool answered = false;
    uint64_t cost_bytes = 0;  // of the window
    uint64_t ticket = 0;
    uint64_t busy_ns = 0;
    bool begun = false;     // on a device, and given back: its results are still to come
    uint64_t begun_as = 0;  // the device's number for it
    Status status;
    Piece pieces[kPiecesMax];
    uint8_t owners[kPiecesMax] = {};  // of an update's pieces: which of the job's tensors
    void *pointers[kPiecesMax] = {};
    kernels::ScanResult scan;
    std::unique_ptr<double[]> sums;  // of its blocks of the scan
    uint64_t sums_count = 0;
};

// Chunks in the order in which they came.
struct ChunkList {
    Chunk *first = nullptr;
    Chunk *last = nullptr;

    [[nodiscard]] bool empty() const { return first == nullptr; }
    void append(Chunk &chunk);
    Chunk *take();  // the first; null: there is none
};

// All chunks of a pipeline, and those of them that are free.
class ChunkPool {
public:
    explicit ChunkPool(Pipeline::Parts *pipeline);

    [[nodiscard]] uint32_t free_count() const { return free_count_; }
    Chunk &take();  // there is a free one
    void give_back(Chunk &chunk);
    void give_back_all(Chunk *list);

private:
    std::vector<Chunk> chunks_;
    Chunk *free_ = nullptr;
    uint32_t free_count_ = 0;
};

// A job's place in the queue for a tensor; the first one may work.
struct Turn {
    TensorId tensor = kNone;
    Job *job = nullptr;
    Turn *behind = nullptr;
};

// Goes through one or several phases: first one chunk alone (so that a job that waits for a view or
// an earlier claim takes only one chunk of the window), then as many as the window has room for.
// Members are guarded by the pipeline's mutex unless they say otherwise.
struct Job {
    Job();
    Job(const Job &) = delete;
    Job &operator=(const Job &) = delete;

    // With the mutex held.
    virtual void cut(Chunk &chunk) = 0;
    [[nodiscard]] virtual bool more() const = 0;              // to be cut
    [[nodiscard]] virtual uint32_t chunk_pieces() const = 0;  // at most, of the next chunk
    // A chunk was worked on. Returns the list of chunks that are not needed any more.
    virtual Chunk *settle(Chunk &chunk) = 0;
    // A call waits for one of its tensors.
    virtual void on_preferred() {}
    // The thread that gives the verdict without which this job does not end; none: it needs none.
    [[nodiscard]] virtual std::optional<uint32_t> verdict_from() const { return {}; }
    // How many tensors it may have to set back; 0: none.
    [[nodiscard]] virtual uint32_t tensors_to_undo() const { return 0; }

    // Without the mutex, on an update thread. The first chunk of the phase was granted: the claim
    // has its turn, nothing has changed yet.
    virtual Status opened() = 0;
    // The first chunk was refused; OK if that is an answer as well.
    virtual Status refused(Status status) { return status; }
    virtual Status run(Chunk &chunk) = 0;
    // The results of a chunk with `begun`. Waits for the device.
    virtual Status results(Chunk &) { return {}; }
    // No chunk is in flight and none will come. Last call of the phase; the job may have been
    // deleted after it.
    virtual void end() = 0;

    [[nodiscard]] bool is_parked() const { return parked_at != kNone; }

    Turn turns[kJobTensorsMax];  // set before it is queued, not changed while it is
    uint32_t turn_count = 0;
    PlaceId place = kAnyCpuPlace;  // where it is worked on; set when it is claimed
    uint32_t window = 0;           // that place's
    uint32_t run_pieces = 0;       // a chunk may go on into further blocks up to so many; by place
    ClaimId claim = 0;
    bool claimed = false;
    uint32_t blocked = 0;                 // turns that others have before it
    uint64_t call = 0;                    // that it came with
    uint64_t sequence = 0;                // of all jobs, as their claims
    uint64_t preference = kNotPreferred;  // of the job: the order in which they were asked for
    uint64_t rank = kNotPreferred;        // of its present phase
    uint32_t parked_at = kNone;
    bool undoes = false;        // what it has written: begins from the older contents
    bool ready = false;         // in the set of jobs that may be cut
    ReadyJobs::node_type node;  // of that set, while it is not in it: no allocation later
    bool open = false;
    bool urgent = false;  // a call waits for this phase
    uint32_t in_flight = 0;
    Status error;  // first cause

protected:
    ~Job() = default;
};

// A call that waits.
struct Waiter {
    uint64_t deadline_ns = 0;
    uint64_t begin_ns = 0;
};

struct Pipeline::Parts {
    explicit Parts(const PipelineOptions &asked);
    ~Parts();

    // workers.cpp: the threads
    Status start_threads();
    void stop_threads() STW_EXCLUDES(mutex);
    void worker_main() STW_EXCLUDES(mutex);
    void work(Chunk &chunk) STW_EXCLUDES(mutex);
    void open_job(Chunk &chunk, Status &status) STW_EXCLUDES(mutex);
    Status run_chunk(Chunk &chunk) const;
    void finish(Chunk &chunk) STW_EXCLUDES(mutex);
    Chunk *take_work() STW_REQUIRES(mutex);
    [[nodiscard]] bool idle() const STW_REQUIRES(mutex);
    bool settle(Chunk &chunk, bool granted, Status status) STW_REQUIRES(mutex);
    void count(const Chunk &chunk) STW_REQUIRES(mutex);
    Job *take_closed() STW_REQUIRES(mutex);

    // pipeline.cpp: the window
    void end_activity() STW_EXCLUDES(mutex);
    void pump() STW_EXCLUDES(mutex);
    void ask_to_pump() STW_EXCLUDES(mutex);
    void wake_to_pump();
    Chunk *next_chunk() STW_REQUIRES(mutex);
    bool window_has_room(const Job &job, uint64_t cost_bytes) const STW_REQUIRES(mutex);
    Job *next_job() STW_REQUIRES(mutex);
    void place_job(Job &job, PlaceId place) STW_REQUIRES(mutex);
    static void fetch_done(void *user, const Status &status, uint64_t ticket,
                           void *const *pointers);

    // turns.cpp: turns of jobs on a tensor, and their order
    void reserve_tensor(TensorId tensor) STW_REQUIRES(mutex);
    void enqueue(Job &job, uint64_t call) STW_REQUIRES(mutex);
    // The next one's; 0: calls have no order, and their jobs that of their numbers.
    uint64_t number_call() STW_REQUIRES(mutex) { return options.latest_first ? next_call++ : 0; }
    void activate(Job &job, ClaimId claim) STW_REQUIRES(mutex);
    void make_ready(Job &job) STW_REQUIRES(mutex);
    void unready(Job &job) STW_REQUIRES(mutex);
    void set_rank(Job &job, uint64_t rank) STW_REQUIRES(mutex);
    void prefer_job(Job &job) STW_REQUIRES(mutex);
    void prefer_ahead_of(Job &job) STW_REQUIRES(mutex);
    // Its tensors are unclaimed: the next in each queue moves up. job_gone() when its end is over.
    void retire(Job &job) STW_REQUIRES(mutex);
    void job_gone() STW_REQUIRES(mutex);
    [[nodiscard]] uint64_t jobs_behind_parked() const STW_REQUIRES(mutex);
    // It has its claim, and nothing to do until it is unparked; nobody waits for it.
    void park(Job &job) STW_REQUIRES(mutex);
    void unpark(Job &job) STW_REQUIRES(mutex);

    // measure.cpp: gradients that are measured by their writers
    uint64_t wants_measure(TensorId gradient, std::vector<ElementRange> &parts_out)
        STW_EXCLUDES(mutex);
    void measured(TensorId gradient, uint64_t order, Measurement measurement, uint64_t version)
        STW_EXCLUDES(mutex);
    void register_measure(TensorId gradient, Measure &measure, std::vector<ElementRange> parts)
        STW_REQUIRES(mutex);
    void ask_measure(Measure &measure, bool wanted) STW_REQUIRES(mutex);
    void forget_measure(TensorId gradient, Measure &measure) STW_REQUIRES(mutex);

    // Without a lock: the tensor missed its update for this cause.
    void report(TensorId tensor, const Status &cause) STW_EXCLUDES(mutex);

    [[nodiscard]] Waiter waiter(uint64_t timeout_ns) const STW_REQUIRES(mutex);
    // One wait for a change; the caller looks again. TIMEOUT, INTERRUPTED.
    Status sleep(const Waiter &waiter) STW_REQUIRES(mutex);

    struct Queue {
        Turn *first = nullptr;
        Turn *last = nullptr;
        Measure *measure = nullptr;  // of the parameter whose gradient it is
    };

    // The work at one place.
    struct Window {
        PlaceId place = kAnyCpuPlace;
        uint64_t limit = 0;
        uint64_t bytes = 0;   // in flight
        uint32_t chunks = 0;  // the same
        ReadyJobs ready;
    };

    const PipelineOptions options;
    Tiers &tiers;
    const uint64_t block_bytes;

    Mutex claiming;  // before `mutex`
    mutable Mutex mutex;
    std::vector<Window> windows STW_GUARDED_BY(mutex);  // the CPU's first
    Condition work_ready;
    Condition changed;
    std::vector<std::thread> threads;  // of open and close alone

    ChunkPool chunks STW_GUARDED_BY(mutex);   // one that is handed to a thread is the thread's
    ChunkList arrived STW_GUARDED_BY(mutex);  // their bytes have come, or will not
    ChunkList begun STW_GUARDED_BY(mutex);    // on devices, in order
    uint32_t chunks_in_flight STW_GUARDED_BY(mutex) = 0;  // requested and not given back
    std::vector<Queue> queues STW_GUARDED_BY(mutex);      // by tensor
    std::vector<Job *> parked STW_GUARDED_BY(mutex);      // room for all there are
    uint32_t jobs_max STW_GUARDED_BY(mutex) = 0;          // that may be parked
    uint64_t next_call STW_GUARDED_BY(mutex) = 1;
    uint64_t next_sequence STW_GUARDED_BY(mutex) = 1;
    uint64_t next_preference STW_GUARDED_BY(mutex) = 0;
    uint64_t interrupted_ns STW_GUARDED_BY(mutex) = 0;  // waits that began up to then end
    uint64_t next_measure STW_GUARDED_BY(mutex) = 1;
    std::atomic<uint32_t> measures{0};  // that are wanted; changed with the mutex held
    uint32_t accumulations STW_GUARDED_BY(mutex) = 0;
    bool closing STW_GUARDED_BY(mutex) = false;
    // Threads between taking work and having requested more.
    uint32_t active STW_GUARDED_BY(mutex) = 0;
    bool pump_wanted STW_GUARDED_BY(mutex) = false;  // by a thread that must not pump itself
    std::atomic<bool> wake_wanted{false};            // of a thread for that, by who ends a transfer
    bool stopping STW_GUARDED_BY(mutex) = false;
    PipelineStats totals STW_GUARDED_BY(mutex);
};

inline bool ReadyOrder::operator()(const Job *a, const Job *b) const
{
    if (a->rank != b->rank) return a->rank < b->rank;
    if (a->open != b->open) return a->open;
    if (a->call != b->call) return a->call > b->call;
    return a->sequence < b->sequence;
}

}  // namespace stepwell::update
