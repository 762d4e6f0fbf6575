// SPDX-License-Identifier: Apache-2.0
// Closing a runtime: what must end first, and the order in which its parts close.
#include "lib/memory/host_pins.h"
#include "lib/residency/core.h"
#include "lib/runtime/open/runtime.h"

#include "lib/runtime/group/state.h"
#include "lib/runtime/machine/touches.h"
#include "lib/runtime/planning/pause.h"
#include "lib/runtime/recording/phase.h"
#include "lib/runtime/updates/body.h"

#include <string>

namespace stepwell {

Status Runtime::drain(uint64_t timeout_ns)
{
    dispatch.give_way();
    const PlanPause pause(planning.prefetcher);
    const residency::Instant begin = dispatch.now();
    const residency::Instant deadline = dispatch.deadline(begin, timeout_ns);
    STW_TRY(ranks.collectives.drain_ranks(begin, deadline));
    if (machine.pipeline)
        STW_TRY(views.sleepers.tell_waiting(machine.pipeline->drain(dispatch.timeout(timeout_ns))));
    MutexLock lock(dispatch.mutex());
    // Snapshots are checked too: a copy that is between two chunks has no fetch or transfer, and
    // neither has a gradient that is just being emptied.
    while (dispatch.core.transfers_in_flight() > 0 || dispatch.core.waiting_fetches() > 0 ||
           !copies.snapshots.under_way.empty() || updates.pieces.emptying > 0 ||
           !ranks.collectives.is_idle()) {
        STW_TRY(dispatch.interrupted_since(begin));
        if (dispatch.wait_progress(deadline)) continue;
        Status status = Status::error(
            STW_ERROR_TIMEOUT,
            "%u transfers, %u fetches and %zu copies were still under way when the timeout of %.3f "
            "s passed",
            dispatch.core.transfers_in_flight(), dispatch.core.waiting_fetches(),
            copies.snapshots.under_way.size(),
            static_cast<double>(dispatch.timeout(timeout_ns)) * 1e-9);
        lock.unlock();
        status = views.sleepers.tell_waiting(std::move(status));
        dispatch.log.line(STW_LOG_WARNING, "timeout", status.sentence());
        return status;
    }
    return errors.first_locked();
}

// First what may still use memory (kernels, I/O), then threads, then the memory itself. After a
// TIMEOUT or INTERRUPTED it may be called again; of other errors the first one is for the caller,
// and all is closed.
Status Runtime::close_tiers(uint64_t timeout_ns)
{
    ranks.collectives.close_ranks();
    if (machine.touches) machine.touches->close();
    if (machine.pins) machine.pins->stop();
    if (machine.pipeline) STW_TRY(views.sleepers.tell_waiting(machine.pipeline->close(timeout_ns)));
    copies.snapshots.stop_copier();
    planning.plans.planner.stop();
    dispatch.stop_timer();
    durable.opening.close_durable(timeout_ns);
    Status error;
    if (machine.engine) error = machine.engine->close(timeout_ns);
    if (error.code() == STW_ERROR_TIMEOUT) return error;
    leave_ranks();
    calls.operations.stop_callbacks();
    return error;
}

Status Runtime::close(uint64_t timeout_ns, bool deferred)
{
    const residency::Instant deadline = dispatch.deadline(timeout_ns);
    dispatch.give_way();
    uint32_t open = 0;
    uint64_t pieces = 0;
    {
        MutexLock lock(dispatch.mutex());
        do {  // callbacks may start operations meanwhile
            open = view_table.open_views();
            pieces = machine.scratch_pieces();
            if ((open + pieces > 0 && !deferred) || calls.operations.count > 0) {
                return Status::error(STW_ERROR_BUSY,
                                     "the runtime '%s' has %u open views, %u operations and %llu "
                                     "pieces of stw_host_alloc; release and free them first, or "
                                     "close with STW_CLOSE_DEFERRED%s%s",
                                     machine.name.c_str(), open, calls.operations.count,
                                     static_cast<unsigned long long>(pieces),
                                     open > 0 ? "; views: " : "",
                                     views.sleepers.describe_views(8).c_str());
            }
            STW_TRY(calls.operations.await_callbacks(deadline));
        } while (calls.operations.count > 0 || view_table.open_views() != open ||
                 machine.scratch_pieces() != pieces);
    }
    if (open + pieces > 0) {
        STW_TRY(victims.end_policy(timeout_ns));
        // Views outlive this call; collectives do not, as the program may destroy their engine
        // afterwards. Executes what was called before, as far as the other ranks do.
        (void)ranks.collectives.drain_ranks(dispatch.now(), deadline);
        ranks.collectives.close_ranks();
        dispatch.log.silence();
        if (log_relay_) log_relay_->silence();
        return Status::remark(STW_PENDING);
    }
    Status error = drain(timeout_ns);
    if (error.code() == STW_ERROR_TIMEOUT || error.code() == STW_ERROR_INTERRUPTED) return error;
    STW_TRY(victims.end_policy(timeout_ns));
    Status closed = close_tiers(dispatch.timeout(timeout_ns));
    if (closed.code() == STW_ERROR_TIMEOUT || closed.code() == STW_ERROR_INTERRUPTED) return closed;
    if (error.ok()) error = std::move(closed);
    if (log_relay_) log_relay_->stop();
    MutexLock lock(dispatch.mutex());  // no other thread is left
    for (stw_tensor *tensor = handles.clear(); tensor;) {
        stw_tensor *next = tensor->notes.next;
        tensor->runtime = nullptr;
        tensor->sharding.reset();
        std::string().swap(tensor->name);  // frees it; the handle's memory stays
        tensor_pool.give(tensor);
        tensor = next;
    }
    for (const std::unique_ptr<Phase> &phase : recorder.phases) {
        if (phase->handle) phase_pool.give(phase->handle);
    }
    for (const std::unique_ptr<OptimizerBody> &optimizer : optimizers.bodies) {
        if (optimizer->handle) optimizer_pool.give(optimizer->handle);
    }
    return error;
}

}  // namespace stepwell
