// SPDX-License-Identifier: Apache-2.0
// The pipeline of a runtime: its update threads, the window of chunks in flight, and the order in
// which tensors are worked on. Chunks are driven by the completions of their fetches: the read of
// the next, the arithmetic of this and the write-back of the last overlap on any number of threads.
// Knows jobs and chunks; what a job does with its bytes is in optimizer.h and accumulate.cpp.
#pragma once

#include "lib/support/status.h"
#include "lib/update/measure.h"
#include "lib/update/tiers.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace stepwell::update {

class Devices;

constexpr uint32_t kThreadsMax = 256;
constexpr uint32_t kChunksMax = 64;            // in flight, whatever the window is
constexpr uint32_t kAccumulationsMax = 65536;  // pending at once

// Blocks of chunks in flight at a place, counted whole, take no more than this, but for the first
// chunk of each tensor that somebody waits for; a single chunk that needs more goes alone.
struct WindowOptions {
    PlaceId place = kAnyCpuPlace;
    uint64_t bytes = 0;
};

struct PipelineOptions {
    Tiers *tiers = nullptr;      // borrowed until the pipeline is closed
    Devices *devices = nullptr;  // the same; null: none computes
    uint32_t thread_count = 1;
    uint64_t window_bytes = 0;                  // of what the CPU works on
    std::vector<WindowOptions> device_windows;  // of each device that computes
    // Else the first. For a runtime of one rank: where a collective has tensors, what comes after
    // it would fill the window, and what it waits for would not be requested.
    bool latest_first = false;

    // The first cause for which a tensor missed its update or its sum. On an update thread, no lock
    // held, before the tensor is unclaimed. Must not wait for the pipeline. Null: none.
    void (*failed)(void *user, TensorId tensor, const Status &cause) = nullptr;
    void *failed_user = nullptr;
    // One chunk's arithmetic, CLOCK_MONOTONIC. On update threads, several at once. Null: none.
    void (*span)(void *user, uint64_t start_ns, uint64_t end_ns, TensorId tensor) = nullptr;
    void *span_user = nullptr;
};

struct PipelineStats {
    uint64_t chunks = 0;         // done, of all kinds
    uint64_t scanned_bytes = 0;  // gradients read for a norm or a check
    uint64_t measured = 0;       // gradients, by those who wrote them
    uint64_t read_bytes = 0;     // by updates and sums, counted where they were fetched
    uint64_t written_bytes = 0;
    uint64_t device_bytes = 0;  // of these three, what a device worked on
    uint64_t busy_ns = 0;       // arithmetic, of all threads together
    uint64_t early = 0;         // parameters updated before their verdict
    uint64_t undone = 0;        // others that were, and set back
    uint64_t failures = 0;      // tensors that missed an update or a sum
    uint64_t window_bytes = 0;  // in flight now
    uint64_t window_peak_bytes = 0;
    uint64_t jobs = 0;  // tensors that wait for their update or sum now
};

uint32_t element_bytes(uint32_t dtype);             // 0: not a dtype of the kernels
[[nodiscard]] inline bool is_float(uint32_t dtype)  // of parameters and gradients
{
    return dtype == STW_F32 || dtype == STW_F16 || dtype == STW_BF16;
}

// A contribution to a gradient, summed in the order of the calls.
struct Accumulation {
    TensorId gradient = kNone;
    uint32_t gradient_dtype = 0;  // STW_F32, STW_F16, STW_BF16
    // Where the contribution is: a tensor that nobody else uses until `done`, when it may be
    // destroyed; or, if not null, memory of the host that stays as it is until then.
    TensorId scratch = kNone;
    const void *memory = nullptr;
    // Null: the CPU reads that memory. Else copies a part of it to where the CPU does, for
    // `done_user`; several update threads at once, no lock held. Blocks.
    Status (*bring)(void *user, void *to, const void *from, uint64_t bytes) = nullptr;
    uint32_t scratch_dtype = 0;  // of either
    uint64_t element_begin = 0;  // of the gradient, where the contribution begins
    uint64_t element_count = 0;  // of the contribution
    uint64_t gradient_elements = 0;
    double scale = 1.0;
    // Once, on an update thread, no lock held, after both tensors are unclaimed. May destroy the
    // scratch tensor and may ask for other work; must not wait for the pipeline.
    void (*done)(void *user, const Status &status) = nullptr;
    void *done_user = nullptr;
};

class Pipeline {
public:
    static Result<std::unique_ptr<Pipeline>> open(const PipelineOptions &options);
    // Closed before, or nothing was ever asked for.
    ~Pipeline();
    Pipeline(const Pipeline &) = delete;
    Pipeline &operator=(const Pipeline &) = delete;

    // gradient += contribution x scale; the first one to an EMPTY gradient is taken as it is, with
    // zeros around it.
    // Claims its tensors before it returns. Never blocks. Errors: INVALID, LIMIT, CLOSED.
    Status accumulate(const Accumulation &accumulation);

    // Zeros into a tensor, of `bytes`, unless it has contents when its turn comes. Claims it before
    // it returns. Never blocks. Errors: LIMIT, CLOSED.
    Status zero(TensorId tensor, uint64_t bytes);

    // A tensor was written, to its last byte, and its writer still has it: the parts to be measured
    // if it is a gradient whose norm the next step will want, and a number for measured(); else 0.
    // As prefer(), but may allocate.
    uint64_t wants_measure(TensorId gradient, std::vector<ElementRange> &parts_out);
    // What came of it: of the gradient as of that version, see Tiers::versions(). As prefer().
    void measured(TensorId gradient, uint64_t order, Measurement measurement, uint64_t version);

    // Transfers of the tiers have ended: an update thread requests what calls have left to it. No
    // lock held.
    void transfers_ended();

    // Somebody waits for this tensor: what it still has to go through comes next, as a demand. Any
    // thread, with or without the runtime's lock; takes a leaf lock and calls nothing.
    void prefer(TensorId tensor);
    // Whether an update or a sum of it is pending. As prefer().
    [[nodiscard]] bool pending(TensorId tensor) const;

    // The thread that is to give the verdict that work on the tensor waits for, by its number, 0
    // where that is not known: the one that took the last step without STW_UPDATE_SPECULATE, before
    // the first of these the one that took a speculative step. None: no work on it waits for one,
    // or, with `early`, what does may still be updated before it. As prefer().
    [[nodiscard]] std::optional<uint32_t> verdict_from(TensorId tensor, bool early = false) const;
    // Whether all that is pending waits for verdicts, one of them of this thread. As prefer().
    [[nodiscard]] bool waits_only_for(uint32_t thread) const;

    // The tensors of the largest parameter that a verdict may set back, which takes a block of each
    // and of its older contents at once; 0: there is none. As prefer().
    [[nodiscard]] uint32_t tensors_to_undo() const;
    // The job that has it waits for its verdict, with nothing to do until then.
    [[nodiscard]] bool is_parked(ClaimId claim) const;

    // Whether what was written to it, and lent, is to be undone. As prefer().
    [[nodiscard]] bool undoes(TensorId tensor) const;

    // How many chunks wait for their fetches, when that is all that the pipeline does; else 0. As
    // prefer().
    [[nodiscard]] uint32_t blocked_chunks() const;

    // Of chunks in flight at a place that has one, from the next one on.
    void set_window(PlaceId place, uint64_t bytes);

    // Until nothing is pending. TIMEOUT, INTERRUPTED. Failures of the work itself went to failed().
    Status drain(uint64_t timeout_ns);
    // Every call that began to wait in this pipeline up to that instant of wait_clock_ns() returns
    // INTERRUPTED. Takes the leaf lock, so not from a signal handler. The work goes on.
    void interrupt(uint64_t at_ns);
    // No new chunk begins; those in flight are waited for. What could not begin or end is failed
    // with CLOSED and unclaimed. After TIMEOUT close may be called again. Fetches that still wait
    // have to be answered for it to end. INTERRUPTED.
    Status close(uint64_t timeout_ns);

    [[nodiscard]] PipelineStats stats() const;

    // The inside, for optimizers.
    struct Parts;
    [[nodiscard]] Parts &parts() { return *parts_; }

private:
    explicit Pipeline(std::unique_ptr<Parts> parts);

    std::unique_ptr<Parts> parts_;
};

}  // namespace stepwell::update
