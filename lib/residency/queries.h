// SPDX-License-Identifier: Apache-2.0
// Queries: what the shell, plans and reports ask of the core. The reading half of the facade Core,
// and the owner of the tables: what is where, who waits, what is under way. Changes nothing.
#pragma once

#include "lib/residency/fetch_queue.h"
#include "lib/residency/occupancy.h"
#include "lib/residency/promises.h"

#include <functional>
#include <string>
#include <vector>

namespace stepwell::residency {

class Queries {
public:
    explicit Queries(Config config);
    Queries(const Queries &) = delete;
    Queries &operator=(const Queries &) = delete;

    // ---- tensors -------------------------------------------------------------------------------
    [[nodiscard]] bool is_frozen(TensorId tensor) const
    {
        return packs_[tensors_[tensor].pack].frozen;
    }

    // ---- claims: the library's own use, beside no other or beside those that read ---------------
    [[nodiscard]] ClaimId claimed_by(TensorId tensor) const { return tensors_[tensor].claim(); }
    // A fetch under that claim, or under none (0), has to wait for the end of another one.
    [[nodiscard]] bool is_barred(TensorId tensor, Access access, ClaimId claim = 0) const
    {
        return tensors_[tensor].bars(claim, access != Access::kRead);
    }
    [[nodiscard]] bool shares_blocks(TensorId tensor) const
    {
        return packs_[tensors_[tensor].pack].shared;
    }
    [[nodiscard]] bool is_exposed(TensorId tensor, bool viewed) const
    {
        return addresses_.is_exposed(tensor, viewed);
    }
    [[nodiscard]] ClaimStage claim_stage(TensorId tensor) const { return tensors_[tensor].stage; }
    // Something is out under the claim that has the tensor, and comes back by itself.
    [[nodiscard]] bool claim_is_used(TensorId tensor) const
    {
        return tensors_[tensor].claim_users > 0;
    }
    // That hold a tensor, and for which `counts` is true; without it, any.
    [[nodiscard]] bool has_claims(const std::function<bool(ClaimId)> &counts = {}) const;

    // ---- scores of a policy of the program -----------------------------------------------------
    [[nodiscard]] uint64_t evictions(PlaceId place) const { return occupancy_.evictions(place); }

    // ---- what a plan asks ----------------------------------------------------------------------
    [[nodiscard]] Lack lack(const Request &request) const;
    [[nodiscard]] uint64_t block_bytes() const { return places_.block_bytes(); }
    [[nodiscard]] bool maps(PlaceId place) const { return places_[place].maps; }
    [[nodiscard]] uint64_t budget_bytes(PlaceId place) const  // for ordinary blocks
    {
        const Arena &arena = places_.arena(place);
        if (arena.budget() <= arena.whole_slots()) return 0;
        return (arena.budget() - arena.whole_slots()) * places_.block_bytes();
    }
    [[nodiscard]] uint64_t free_bytes(PlaceId place) const
    {
        return places_.arena(place).free() * places_.block_bytes();
    }
    [[nodiscard]] bool may_rest_at(TensorId tensor, PlaceId place) const
    {
        return places_.is_open(place) &&
               (tensors_[tensor].spec.policy.allowed & (1u << place)) != 0;
    }
    // Room is reserved for it there, whatever happens to budgets.
    // Where its room is promised; kNoPlace: it is a gathered whole.
    [[nodiscard]] PlaceId promised_place(TensorId tensor) const
    {
        return packs_[tensors_[tensor].pack].promised;
    }
    [[nodiscard]] bool is_promised_at(TensorId tensor, PlaceId place) const
    {
        return packs_[tensors_[tensor].pack].promised == place;
    }

    // ---- questions -----------------------------------------------------------------------------
    [[nodiscard]] Door &door(TensorId tensor, PlaceId place) const
    {
        return tensors_.door(tensor, place);
    }
    [[nodiscard]] Gate &gate(TensorId tensor, PlaceId place) const
    {
        return tensors_.gate(tensor, place);
    }
    // A tensor that lies in the block; kNone: nobody has it any more.
    [[nodiscard]] TensorId tensor_in(BlockId block) const;
    [[nodiscard]] const TensorSpec &spec(TensorId tensor) const { return tensors_[tensor].spec; }
    [[nodiscard]] Contents contents(TensorId tensor) const { return tensors_[tensor].contents; }
    [[nodiscard]] uint64_t version(TensorId tensor) const { return tensors_[tensor].version; }
    // Bit per place that holds the newest bytes of all of the tensor.
    [[nodiscard]] uint32_t residence(TensorId tensor) const;
    // Of a range: its bytes in blocks that lack the newest bytes there.
    [[nodiscard]] uint64_t missing_bytes(const Request &request) const;
    // Where a pinned or resident tensor lies at a place of slots: the first block's slot, offset.
    [[nodiscard]] Grant location(TensorId tensor, PlaceId place) const
    {
        return packs_.location(tensor, place);
    }
    // The longest run around a block that has a slot there.
    [[nodiscard]] SlotRun run_of(BlockId block, PlaceId place) const
    {
        return packs_.run_of(block, place);
    }
    // There is no view of what lies in the slots, except one of `own`.
    [[nodiscard]] bool are_quiet(PlaceId place, Slot first, uint32_t count, TensorId own) const;
    [[nodiscard]] PlaceId choose_cpu_place(const Request &request) const
    {
        return locks_.choose_cpu_place(request);
    }
    // Blocks of all that moves with it.
    [[nodiscard]] uint32_t pack_blocks(TensorId tensor) const
    {
        return packs_[tensors_[tensor].pack].blocks;
    }
    [[nodiscard]] uint64_t pack_offset(TensorId tensor) const { return tensors_[tensor].offset; }
    [[nodiscard]] PackId pack_of(TensorId tensor) const { return tensors_[tensor].pack; }
    [[nodiscard]] TensorBlocks blocks_of(TensorId tensor) const { return packs_.blocks_of(tensor); }
    // The block has bytes at some place; else it is empty, or zeros.
    [[nodiscard]] bool has_bytes(BlockId block) const { return blocks_.bytes_exist(block, 0); }
    [[nodiscard]] BlockState block_state(BlockId block, PlaceId place) const
    {
        return blocks_.block_state(block, place);
    }
    // For sentences.
    [[nodiscard]] std::string place_name(PlaceId place) const { return places_.name(place); }
    [[nodiscard]] PlaceUsage usage(PlaceId place) const;  // looks at every block that is there
    // While a place shrinks: that before, which what is there may still take.
    [[nodiscard]] uint64_t settled_budget(PlaceId place) const
    {
        return places_.is_shrinking(place) ? places_.budget_before(place) : budget_blocks(place);
    }
    [[nodiscard]] uint64_t budget_blocks(PlaceId place) const
    {
        return places_.arena(place).budget();
    }
    // Of the budget, without what tensors at home there keep that found no room farther.
    [[nodiscard]] uint64_t passing_blocks(PlaceId place) const
    {
        return budget_blocks(place) - promises_.displaced(place);
    }
    [[nodiscard]] uint64_t used_blocks(PlaceId place) const { return places_.arena(place).used(); }
    [[nodiscard]] uint64_t metadata_bytes() const;
    // What creating a tensor can add to it, and what it can become within budgets and tensors_max.
    [[nodiscard]] uint64_t metadata_growth(const TensorSpec &spec) const;
    [[nodiscard]] uint64_t metadata_bytes_max() const;
    [[nodiscard]] uint32_t tensors_max() const { return places_.config().tensors_max; }
    [[nodiscard]] uint32_t tensor_ids() const { return static_cast<uint32_t>(tensors_.size()); }
    [[nodiscard]] uint32_t pack_ids() const { return static_cast<uint32_t>(packs_.size()); }
    [[nodiscard]] uint32_t block_ids() const { return static_cast<uint32_t>(blocks_.size()); }
    [[nodiscard]] uint32_t waiting_fetches() const
    {
        return static_cast<uint32_t>(fetches_.queue().size());
    }
    [[nodiscard]] uint32_t transfers_in_flight() const
    {
        return static_cast<uint32_t>(transfers_.flights().size());
    }
    // Fetches that only views of the program keep waiting (kFetchWaitRoom), oldest first.
    [[nodiscard]] std::vector<FetchId> stuck_fetches() const { return fetches_.stuck(); }
    // Prefetches that wait for locks or room, oldest first.
    [[nodiscard]] std::vector<FetchId> blocked_hints() const { return fetches_.blocked_hints(); }
    [[nodiscard]] bool waits_for_locks(FetchId fetch) const
    {
        return fetches_.waits_for_locks(fetch);
    }
    [[nodiscard]] TensorId waits_for(FetchId fetch) const { return fetches_.waits_for(fetch); }
    [[nodiscard]] bool is_waiting(FetchId fetch) const { return fetches_.has(fetch); }
    // A fetch of the tensor, not a prefetch and of a higher number, waits for locks or room.
    [[nodiscard]] bool is_awaited(TensorId tensor, FetchId number) const
    {
        return fetches_.is_awaited(tensor, number);
    }
    [[nodiscard]] FetchId last_fetch() const { return fetches_.last_id(); }
    [[nodiscard]] bool waits_for_room(FetchId fetch) const
    {
        return fetches_.waits_for_room(fetch);
    }
    // It waits for a transfer from nvme or to it.
    [[nodiscard]] bool waits_for_nvme(FetchId fetch) const
    {
        return fetches_.waits_for_nvme(fetch);
    }
    // The waiting fetches, and what each of them waits for.
    [[nodiscard]] std::string describe_waiting(size_t lines_max) const
    {
        return fetches_.describe_waiting(lines_max);
    }
    // Neither answered nor in transfer: a fetch that can be part of a deadlock.
    [[nodiscard]] bool is_blocked(FetchId fetch) const { return fetches_.is_blocked(fetch); }
    // There are views, pins, or fetches with their locks (claims do not count).
    [[nodiscard]] bool in_use(TensorId tensor) const;
    // The claim has it, and no view or hint that came before.
    [[nodiscard]] bool is_alone(ClaimId claim, TensorId tensor) const
    {
        return claimed_by(tensor) == claim && !in_use(tensor) && !tensors_[tensor].writer;
    }
    [[nodiscard]] bool is_written(TensorId tensor) const  // by one of these
    {
        return tensors_[tensor].writer && !tensors_[tensor].hinted;
    }
    // Checks every invariant of the design; empty if all hold. For tests, after simulated events.
    [[nodiscard]] std::string check() const;
    // At a place that maps: programs may touch the block's address without a view, so it is mapped
    // there only while they may see it.
    [[nodiscard]] bool guards(BlockId block, PlaceId place) const
    {
        return addresses_.guards(block, place);
    }
    [[nodiscard]] bool shows(BlockId block, PlaceId place, bool writable) const
    {
        return addresses_.shows(block, place, writable);
    }
    // Such a block is mapped at its address, and not in the arena.
    [[nodiscard]] bool is_mapped(BlockId block, PlaceId place) const
    {
        return blocks_.replica(block, place).is_mapped();
    }

protected:
    ~Queries() = default;

    // Each part knows only earlier ones.
    Places places_;
    TensorTable tensors_;
    BlockTable blocks_;
    PackTable packs_;
    Promises promises_;
    Addresses addresses_;
    Gates gates_;
    RecencyLists recency_;
    VictimOrder order_;
    TransferTable transfers_;
    Occupancy occupancy_;
    TensorLocks locks_;
    FetchQueue fetches_;

private:
    [[nodiscard]] std::string check_tensors() const;
};

}  // namespace stepwell::residency
