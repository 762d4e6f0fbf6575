// SPDX-License-Identifier: Apache-2.0
// The residency core: where every block is, who pins it, who waits for what, what moves next. A
// deterministic state machine: events in, commands out, the same in a runtime and in a simulation.
// One thread at a time (the shell's lock); other threads use only gates. No OS, clock, driver.
//
// Core is the facade of the parts in this folder: the events are here, the questions in Queries,
// which owns the tables. Lowest first, each part knows only earlier ones:
//   Places, TensorTable, BlockTable, PackTable     what there is
//   Promises, Addresses, Gates, RecencyLists, VictimOrder, TransferTable, Occupancy, TensorLocks,
//   FetchQueue                                     what holds of it now
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
    [[nodiscard]] std::string check() const;

    // ---- tensors -------------------------------------------------------------------------------
    // Reserves room in the farthest allowed tier that has some, so that an accepted tensor can
    // always be stored.
    Result<TensorId> create(TensorSpec spec) { return lifetimes_.create(std::move(spec)); }
    // A tensor whose contents are at nvme already, in the pack of another one if they share a
    // block; the shell then says which of its stored blocks these are. MISMATCH: a tensor of that
    // pack has another role, neighbour or policy.
    Result<TensorId> restore(TensorSpec spec, const Stored &stored)
    {
        return lifetimes_.restore(std::move(spec), stored);
    }
    // Blocks of nvme that may not be reserved: generations keep them of destroyed tensors.
    void withhold(uint32_t blocks) { promises_.withhold(blocks); }
    // Tensors that are created from now on leave so much room at the place for others to be worked
    // on.
    void expect_visits(PlaceId place, uint32_t blocks) { promises_.expect_visits(place, blocks); }
    // BUSY if there are views, fetches or a claim on it; changes nothing then.
    Status destroy(TensorId tensor, Commands &out) { return lifetimes_.destroy(tensor, out); }
    // OK, or the BUSY that destroy() would return.
    Status may_destroy(TensorId tensor, Commands &out)
    {
        return lifetimes_.may_destroy(tensor, out);
    }
    Status discard(TensorId tensor, Commands &out) { return lifetimes_.discard(tensor, out); }
    Status set_policy(TensorId tensor, const Policy &policy)
    {
        return lifetimes_.set_policy(tensor, policy);
    }
    // For a frozen durable tensor with blocks of its own, room for one copy is reserved. BUDGET:
    // one that is to be written again needs room for more copies; changes nothing then.
    Status freeze(TensorId tensor, bool frozen) { return lifetimes_.freeze(tensor, frozen); }
    // Marks a tensor that an update or a reduce left incomplete; reads are refused with `cause`.
    void fail(TensorId tensor, const Status &cause) { lifetimes_.fail(tensor, cause); }
    // Marks a tensor whose update never began: its contents are unchanged, and reads are refused
    // with `cause` until forgive() or a whole write.
    void miss(TensorId tensor, const Status &cause) { lifetimes_.miss(tensor, cause); }
    // It was written whole, piece by piece: clears an earlier failure.
    void mark_valid(TensorId tensor) { lifetimes_.mark_valid(tensor); }
    // Tensors that read as zeros and were emptied in a block that they share: the shell writes the
    // zeros before the next use, and says so when that has begun.
    [[nodiscard]] const std::set<TensorId> &owed_zeros() const { return lifetimes_.owed_zeros(); }
    void give_zeros(TensorId tensor) { lifetimes_.give_zeros(tensor); }

    // ---- fetch and release ---------------------------------------------------------------------
    FetchId fetch(const FetchAsked &asked, Commands &out);
    // Undo a fetch that was neither granted nor refused; the answer is a Refused with `why`.
    void cancel(FetchId fetch, Status why, Commands &out);
    // A view that was not pinned by a gate, or any view with write access.
    void release(const Release &release, Commands &out);
    // The last pin of a closed gate was released, or one that a fetch for room waits for.
    void gate_idle(TensorId tensor, Commands &out);
    // Hits that did not enter the core, in any order; for recency.
    void touch(TensorId tensor, PlaceId place);
    // A release through the gate with a hint: evict first (far), or last.
    void release_hint(TensorId tensor, PlaceId place, bool far, Commands &out);

    // A call will fetch more of the tensor: until let_go(), a destroy is BUSY.
    void keep(TensorId tensor) { ++tensors_[tensor].fetches; }
    void let_go(TensorId tensor) { --tensors_[tensor].fetches; }

    // ---- claims: the library's own use, beside no other or beside those that read ---------------
    // Later fetches wait, except those with the claim's id and, if it only reads, those that only
    // read as well. Claims of one tensor are served in order. Never blocks.
    ClaimId claim(ClaimKind kind = ClaimKind::kUpdate);
    void claim_tensor(ClaimId claim, TensorId tensor);
    // Fetches with kFetchLent may read the tensor, of which nothing is out under the claim that has
    // it, as if it were free: up to the next fetch under the claim, which waits for their end.
    void lend(ClaimId claim, TensorId tensor, Commands &out);
    // To those alone that wait for it now. Whether the claim is what the fetch waits for all the
    // same.
    bool lend_once(TensorId tensor, FetchId fetch, Commands &out);
    // From now until the claim ends nothing is lent to fetches beside readers.
    void hold_touches(ClaimId claim, TensorId tensor);
    // The contents are dropped, under a claim of which nothing is out.
    void empty_tensor(TensorId tensor, Commands &out);
    // empties: also drops the contents (of a used gradient).
    void unclaim_tensor(ClaimId claim, TensorId tensor, bool empties, Commands &out);
    // Of a tensor under a claim that is all at nvme, with blocks of its own: writes under the claim
    // leave the contents from before in `older`, an empty tensor of the same size under the same
    // claim, block by block and without a transfer.
    void keep_older(TensorId tensor, TensorId older) { tensors_[tensor].older = older; }

    // ---- transfers -----------------------------------------------------------------------------
    // more: another transfer that has ended as well comes next, and the fetches that wait for room
    // are looked at after the last one.
    void transfer_done(TransferId transfer, const Status &status, Commands &out, bool more = false);
    // Of a move: its bytes have not arrived, but every use of them at their place is ordered after
    // the move, as on a device's streams. Fetches to read are answered now; the source is kept, and
    // fetches to write wait, until transfer_done().
    void transfer_ordered(TransferId transfer, Commands &out);
    // Deadlines that have passed.
    void tick(Instant now, Commands &out);
    [[nodiscard]] Instant next_deadline() const { return fetches_.next_deadline(); }

    // ---- eviction on request -------------------------------------------------------------------
    // Starts what can leave; returns how many blocks of the tensor are still at the place.
    uint64_t evict(TensorId tensor, PlaceId place, Commands &out);
    // The same for a list of blocks, from which those that have left are erased: what comes back
    // meanwhile does not prolong an eviction.
    void evict(std::vector<BlockId> *blocks, PlaceId place, Commands &out);
    // Adds the blocks of the tensor that are at the place and may leave it.
    void list_blocks(TensorId tensor, PlaceId place, std::vector<BlockId> *blocks) const;
    // Starts the write-back of every block whose newest bytes are only in memory; returns how many
    // are left.
    uint64_t write_back_all(Commands &out);
    // Clears the errors of write-back so far, so that these blocks are tried again; tensors that an
    // update missed can be read as they are.
    void forgive(Commands &out);

    // ---- live budgets --------------------------------------------------------------------------
    // OK, or why the place cannot shrink so far: room there is reserved.
    [[nodiscard]] Status may_shrink(PlaceId place, uint32_t blocks) const
    {
        return promises_.may_shrink(place, blocks);
    }
    // From the first call on the place holds no new block beyond `blocks`; each call evicts what it
    // can, and returns how many blocks are still too many. Ends with set_budget(), possibly to the
    // old budget; fetches of more than `blocks` wait until then.
    uint64_t shrink(PlaceId place, uint32_t blocks, Commands &out);
    void set_budget(PlaceId place, uint32_t blocks, Commands &out);
    // Why nothing more can leave: what is pinned.
    [[nodiscard]] Status shrink_refusal(PlaceId place, uint32_t blocks) const
    {
        return outlook_.shrink_refusal(place, blocks);
    }
    // Free slots, at most `n`, whose memory the shell decommits, until only as many as the budget
    // have memory; and slots that it recommits.
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

    // What the program knows of the coming steps: cold tensors are evicted first and written back
    // now, hot ones are evicted last. For a shared block the latest advice counts.
    void advise(TensorId tensor, Advice advice, Commands &out)
    {
        lifetimes_.advise(tensor, advice, out);
    }

    // ---- scores of a policy of the program -----------------------------------------------------
    // Tensors that may be at the place, from pack `from` on, until about `work_max` blocks and
    // tensors were looked at; returns the pack to continue with, kNone at the end.
    PackId candidates(PlaceId place, PackId from, uint64_t work_max,
                      std::vector<Candidate> *out) const
    {
        return order_.candidates(place, from, work_max, out);
    }
    // Among equals in retention and priority the lower score leaves first, then next use and
    // recency decide; without a score it is 0. Tensors of one block are adjacent in `scores`, and
    // the block has their highest score.
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
    // The fetch that gives way if threads of the program wait for each other's views; 0: there is
    // no deadlock, or a thread that could still release is awake. `held` may lack the newest views.
    // updates_waiting: the fetches of updates, if updates only wait for these; else 0.
    [[nodiscard]] FetchId find_deadlock(const std::vector<Held> &held,
                                        const std::vector<Sleeper> &sleepers,
                                        uint32_t updates_waiting = 0) const
    {
        return deadlocks_.find(held, sleepers, updates_waiting);
    }
    // Tells find_deadlock() that the claim waits, without a fetch, until it holds the tensor and
    // nobody writes it. kNone: the claim waits no longer.
    void note_wait(ClaimId claim, TensorId tensor) { deadlocks_.note_wait(claim, tensor); }
    // The status that it fails with.
    [[nodiscard]] Status deadlock_refusal(FetchId fetch) const { return deadlocks_.refusal(fetch); }

    // ---- refusals foreseen; what the shell lends -----------------------------------------------
    // OK, or the refusal of a fetch that could never fit, with private buffers beside it.
    [[nodiscard]] Status fits(const std::vector<Request> &requests,
                              const std::vector<Request> &buffers = {}) const
    {
        return outlook_.fits(requests, buffers);
    }
    // Not owned, outlives the core; null: least recently used.
    void set_victim_policy(const VictimPolicy *policy) { order_.set_policy(policy); }
    // Not owned, outlives the core; before the first tensor. A guarded block is then mapped at its
    // address from a fetch without a claim until it leaves, is written back, or an update has it.
    // It can be read there, and written while a view may write; other tensors' bytes are never
    // visible, except of small tensors that share the block.
    void set_aliases(Aliases *aliases) { addresses_.set_aliases(aliases); }
    // The plan of the policy was replaced: asks it anew about every pack.
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
    ClaimId next_claim_ = 0;  // without its kind
};

}  // namespace stepwell::residency
