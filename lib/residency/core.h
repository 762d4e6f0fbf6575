// SPDX-License-Identifier: Apache-2.0
// The residency core: where every block is, who pins it, who waits for what, what moves next. A
// deterministic state machine: events in, commands out, the same in a runtime and in a simulation.
// One thread at a time (the shell's lock); gates alone are touched by others. No OS, clock, driver.
//
// Core is the facade of the parts in this folder: the events are here, the questions in Queries,
// which owns the tables. Lowest first, each part knows only earlier ones:
//   Places, TensorTable, BlockTable, PackTable     what there is
//   Promises, Addresses, Gates, RecencyLists, VictimOrder, TransferTable, Occupancy, TensorLocks,
//   FetchQueue                                     what holds of it now, one owner for each count
//   Victims, Evictions, WriteBack                  what leaves, and where its bytes go
//   RoomOutlook, RunPlanner, Reservation           room for a fetch
//   Fills, FetchRunner                             a fetch from question to answer
//   Lifetimes, Deadlocks                           tensors made and destroyed; who gives way
#pragma once

#include "lib/residency/deadlocks.h"
#include "lib/residency/lifetimes.h"
#include "lib/residency/queries.h"

#include <utility>
#include <vector>

namespace stepwell::residency {

class Core : public Queries {
public:
    explicit Core(Config config);
    ~Core();

    // ---- tensors -------------------------------------------------------------------------------
    // Promises room in a farthest allowed tier, so that what is accepted can always be put there.
    Result<TensorId> create(TensorSpec spec) { return lifetimes_.create(std::move(spec)); }
    // With contents that are at nvme already, as the pack of another tensor is where they share
    // blocks; the shell says at once which of its own the blocks are. MISMATCH: a tensor of that
    // pack has another role, neighbour or policy.
    Result<TensorId> restore(TensorSpec spec, const Stored &stored)
    {
        return lifetimes_.restore(std::move(spec), stored);
    }
    // Of nvme, what nobody may be promised: slots that generations keep of tensors that are gone.
    void withhold(uint32_t blocks) { promises_.withhold(blocks); }
    // BUSY with views, fetches or a claim on it; changes nothing then.
    Status destroy(TensorId tensor, Commands &out) { return lifetimes_.destroy(tensor, out); }
    // OK, or the BUSY that destroy would say.
    Status may_destroy(TensorId tensor, Commands &out)
    {
        return lifetimes_.may_destroy(tensor, out);
    }
    Status discard(TensorId tensor, Commands &out) { return lifetimes_.discard(tensor, out); }
    Status set_policy(TensorId tensor, const Policy &policy)
    {
        return lifetimes_.set_policy(tensor, policy);
    }
    // Of what is frozen one copy is promised where it is durable and shares its blocks with nobody.
    // BUDGET: what is to be written again needs more; changes nothing then.
    Status freeze(TensorId tensor, bool frozen) { return lifetimes_.freeze(tensor, frozen); }
    // Marks what an update or a reduce could not complete; reads are refused with `cause`.
    void fail(TensorId tensor, const Status &cause) { lifetimes_.fail(tensor, cause); }
    // Marks a tensor whose update never began: its contents are unchanged, and reads are refused
    // with `cause` until forgive() or a whole write.
    void miss(TensorId tensor, const Status &cause) { lifetimes_.miss(tensor, cause); }
    // Written whole, piece by piece: heals what had failed.
    void mark_valid(TensorId tensor) { lifetimes_.mark_valid(tensor); }

    // ---- fetch and release ---------------------------------------------------------------------
    FetchId fetch(const FetchAsked &asked, Instant now, Commands &out);
    // Undo a fetch that was neither granted nor refused; the answer is a Refused with `why`.
    void cancel(FetchId fetch, Status why, Commands &out);
    // A view that was not pinned by a gate, or any view with write access.
    void release(const Release &release, Instant now, Commands &out);
    // A gate whose last pin went while it was closed, or room that somebody waits for.
    void gate_idle(TensorId tensor, Instant now, Commands &out);
    // Hits that went past the core, in any order; for recency.
    void touch(TensorId tensor, PlaceId place);
    // A release through the gate that asks for more than an unpin: leave first, or last.
    void release_hint(TensorId tensor, PlaceId place, bool far, Instant now, Commands &out);

    // A call comes back for more of the tensor: until it lets go, a destroy is BUSY.
    void keep(TensorId tensor) { ++tensors_[tensor].fetches; }
    void let_go(TensorId tensor) { --tensors_[tensor].fetches; }

    // ---- claims: the library's own exclusive use (updates, reduces) -----------------------------
    // Fetches that come later wait; under the claim, fetches with its id pass. Claims of one tensor
    // are served in order. Never blocks. Alone: of no update that has its turn behind others, but
    // of a copy, say, that waits for its pieces and for nothing else.
    ClaimId claim(bool alone = false);
    void claim_tensor(ClaimId claim, TensorId tensor);
    // empties: the contents are dead, in the same step (a used gradient).
    void unclaim_tensor(ClaimId claim, TensorId tensor, bool empties, Commands &out);

    // ---- transfers -----------------------------------------------------------------------------
    void transfer_done(TransferId transfer, const Status &status, Instant now, Commands &out);
    // Of a move: its bytes are not there yet, but whoever uses them at their place comes behind it
    // by itself, as the streams of a device do. Those that wait to read are answered now; the
    // source stays, and those that wait to write, until transfer_done().
    void transfer_ordered(TransferId transfer, Instant now, Commands &out);
    // Deadlines that have passed.
    void tick(Instant now, Commands &out);
    [[nodiscard]] Instant next_deadline() const { return fetches_.next_deadline(); }

    // ---- eviction on request -------------------------------------------------------------------
    // Starts what can leave; returns how many blocks of the tensor are still at the place.
    uint64_t evict(TensorId tensor, PlaceId place, Commands &out);
    // Every block with newest bytes only in memory starts for its farthest tier; how many are left.
    uint64_t write_back_all(Commands &out);
    // Errors of write-back so far are forgiven, and the blocks may be tried again; what an update
    // missed is read as it is.
    void forgive();

    // ---- live budgets --------------------------------------------------------------------------
    // OK, or why the place can never hold so little: room that is promised there.
    [[nodiscard]] Status may_shrink(PlaceId place, uint32_t blocks) const
    {
        return promises_.may_shrink(place, blocks);
    }
    // From the first call on the place takes nothing over `blocks`; each call starts what can
    // leave, and returns how many blocks are still too many. Ends with set_budget(), which may be
    // that of before; fetches of more than `blocks` wait until then.
    uint64_t shrink(PlaceId place, uint32_t blocks, Commands &out);
    void set_budget(PlaceId place, uint32_t blocks, Commands &out);
    // Why nothing more leaves: what is pinned.
    [[nodiscard]] Status shrink_refusal(PlaceId place, uint32_t blocks) const
    {
        return outlook_.shrink_refusal(place, blocks);
    }
    // Free slots, at most `n`, that the shell takes the memory from, until no more have any than
    // the budget says; and slots that it gives memory.
    std::vector<Slot> make_bare(PlaceId place, uint32_t n) { return places_.make_bare(place, n); }
    std::vector<Slot> make_backed(PlaceId place, uint32_t n)
    {
        return places_.make_backed(place, n);
    }
    [[nodiscard]] uint32_t backed_slots(PlaceId place) const
    {
        return places_.arena(place).backed();
    }
    [[nodiscard]] uint32_t slots(PlaceId place) const { return places_.arena(place).slots(); }
    // Those that make_bare() would return now.
    [[nodiscard]] std::vector<Slot> next_bare(PlaceId place, uint32_t n) const
    {
        return places_.next_bare(place, n);
    }

    // What the program knows of the coming steps: leaves first and is written back now, or leaves
    // last. Of shared blocks the last word counts.
    void advise(TensorId tensor, Advice advice, Commands &out)
    {
        lifetimes_.advise(tensor, advice, out);
    }

    // ---- scores of a policy of the program -----------------------------------------------------
    // What may live at the place, from pack `from` on, until about `work_max` blocks and tensors
    // were looked at; returns the pack to go on with, kNone at the end.
    PackId candidates(PlaceId place, PackId from, uint64_t work_max,
                      std::vector<Candidate> *out) const
    {
        return order_.candidates(place, from, work_max, out);
    }
    // Among equals in retention and priority the lower score leaves first, then next use and
    // recency decide; never scored is 0. Tensors of one block stand side by side, and the highest
    // score is the block's.
    void score(PlaceId place, const Score *scores, size_t n) { order_.score(place, scores, n); }
    void forget_scores() { order_.forget_scores(); }

    // ---- what a plan asks ----------------------------------------------------------------------
    // Writes blocks of the place back early whose next use is more than `beyond` accesses away, as
    // long as nothing else wants the nvme place; returns how many were started.
    uint32_t clean_ahead(PlaceId place, uint64_t beyond, Commands &out)
    {
        return write_back_.clean_ahead(place, beyond, out);
    }

    // ---- deadlocks -----------------------------------------------------------------------------
    // The fetch that gives way where threads of the program wait for each other's views; 0: nobody
    // is in one, or somebody who could still release is awake. `held` may miss what came meanwhile.
    // updates_waiting: fetches of updates, when these do nothing else than wait for them; else 0.
    [[nodiscard]] FetchId find_deadlock(const std::vector<Held> &held,
                                        const std::vector<Sleeper> &sleepers,
                                        uint32_t updates_waiting = 0) const
    {
        return deadlocks_.find(held, sleepers, updates_waiting);
    }
    // What it is told.
    [[nodiscard]] Status deadlock_refusal(FetchId fetch) const { return deadlocks_.refusal(fetch); }

    // ---- refusals foreseen; what the shell lends -----------------------------------------------
    // With room for private buffers of so many bytes, made for tensors.
    [[nodiscard]] Status fits(const std::vector<Request> &requests,
                              const std::vector<Request> &buffers = {}) const
    {
        return outlook_.fits(requests, buffers);
    }
    // Not owned, outlives the core or null.
    void set_victim_policy(const VictimPolicy *policy) { order_.set_policy(policy); }
    // Not owned, outlives the core; before the first tensor. A guarded block is then at its address
    // from a fetch that names no claim until it leaves, is written back, or an update has it. It
    // can be read there, and written while a view may; nobody else's bytes are ever seen. Small
    // tensors that share a block are seen together.
    void set_aliases(Aliases *aliases) { addresses_.set_aliases(aliases); }
    // What the policy knows has changed as a whole.
    void replan() { order_.replan(); }

private:
    void end_write(const Release &release, Commands &out);

    // Above the tables of Queries, in the same order.
    Victims victims_;
    Evictions evictions_;
    WriteBack write_back_;
    RoomOutlook outlook_;
    RunPlanner runs_;
    Reservation reservation_;
    Fills fills_;
    FetchRunner runner_;
    Lifetimes lifetimes_;
    Deadlocks deadlocks_;
    ClaimId next_claim_ = 0;  // even; with kAloneClaim odd
};

}  // namespace stepwell::residency
