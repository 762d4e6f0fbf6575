// SPDX-License-Identifier: Apache-2.0
// The residency core: where every block is, who pins it, who waits for what, what moves next. A
// deterministic state machine: events in, commands out, the same in a runtime and in a simulation.
// One thread at a time (the shell's lock); gates alone are touched by others. No OS, clock, driver.
#pragma once

#include "lib/residency/aliases.h"
#include "lib/residency/arena.h"
#include "lib/residency/block_ids.h"
#include "lib/residency/gate.h"
#include "lib/residency/model.h"
#include "lib/residency/policy.h"
#include "lib/residency/types.h"
#include "lib/support/table.h"

#include <deque>
#include <map>
#include <memory>
#include <set>
#include <unordered_map>

namespace stepwell::residency {

class Core {
public:
    explicit Core(Config config);
    ~Core();
    Core(const Core &) = delete;
    Core &operator=(const Core &) = delete;

    // ---- tensors -------------------------------------------------------------------------------
    // Promises room in a farthest allowed tier, so that what is accepted can always be put there.
    Result<TensorId> create(TensorSpec spec);
    // With contents that are at nvme already, as the pack of another tensor is where they share
    // blocks; the shell says at once which of its own the blocks are. MISMATCH: a tensor of that
    // pack has another role, neighbour or policy.
    Result<TensorId> restore(TensorSpec spec, const Stored &stored);
    // Of nvme, what nobody may be promised: slots that generations keep of tensors that are gone.
    void withhold(uint32_t blocks) { withheld_ = blocks; }
    // BUSY with views, fetches or a claim on it; changes nothing then.
    Status destroy(TensorId tensor, Commands &out);
    Status may_destroy(TensorId tensor, Commands &out);  // OK, or the BUSY that destroy would say
    Status discard(TensorId tensor, Commands &out);
    Status set_policy(TensorId tensor, const Policy &policy);
    // Of what is frozen one copy is promised where it is durable and shares its blocks with nobody.
    // BUDGET: what is to be written again needs more; changes nothing then.
    Status freeze(TensorId tensor, bool frozen);
    [[nodiscard]] bool is_frozen(TensorId tensor) const
    {
        return packs_[tensors_[tensor].pack].frozen;
    }
    // Marks what an update or a reduce could not complete; reads are refused with `cause`.
    void fail(TensorId tensor, const Status &cause);
    // Marks a tensor whose update never began: its contents are unchanged, and reads are refused
    // with `cause` until forgive() or a whole write.
    void miss(TensorId tensor, const Status &cause);
    void mark_valid(TensorId tensor);  // written whole, piece by piece: heals what had failed

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
    [[nodiscard]] ClaimId claimed_by(TensorId tensor) const;
    [[nodiscard]] bool has_claims() const;

    // ---- transfers -----------------------------------------------------------------------------
    void transfer_done(TransferId transfer, const Status &status, Instant now, Commands &out);
    // Of a move: its bytes are not there yet, but whoever uses them at their place comes behind it
    // by itself, as the streams of a device do. Those that wait to read are answered now; the
    // source stays, and those that wait to write, until transfer_done().
    void transfer_ordered(TransferId transfer, Instant now, Commands &out);
    // Deadlines that have passed.
    void tick(Instant now, Commands &out);
    [[nodiscard]] Instant next_deadline() const;

    // ---- eviction on request -------------------------------------------------------------------
    // Starts what can leave; returns how many blocks of the tensor are still at the place.
    uint64_t evict(TensorId tensor, PlaceId place, Commands &out);
    // Every block with newest bytes only in memory starts for its farthest tier; how many are left.
    uint64_t write_back_all(Commands &out);
    // Errors of write-back so far are forgiven, and the blocks may be tried again; what an update
    // missed is read as it is.
    void forgive();

    // ---- live budgets (budget.cpp) -------------------------------------------------------------
    // OK, or why the place can never hold so little: room that is promised there.
    Status may_shrink(PlaceId place, uint32_t blocks) const;
    // From the first call on the place takes nothing over `blocks`; each call starts what can
    // leave, and returns how many blocks are still too many. Ends with set_budget(), which may be
    // that of before; fetches of more than `blocks` wait until then.
    uint64_t shrink(PlaceId place, uint32_t blocks, Commands &out);
    void set_budget(PlaceId place, uint32_t blocks, Commands &out);
    // Why nothing more leaves: what is pinned.
    [[nodiscard]] Status shrink_refusal(PlaceId place, uint32_t blocks) const;
    // Free slots, at most `n`, that the shell takes the memory from, until no more have any than
    // the budget says; and slots that it gives memory.
    std::vector<Slot> make_bare(PlaceId place, uint32_t n);
    // Those that make_bare() would return now.
    [[nodiscard]] std::vector<Slot> next_bare(PlaceId place, uint32_t n) const;
    std::vector<Slot> make_backed(PlaceId place, uint32_t n);
    [[nodiscard]] uint32_t backed_slots(PlaceId place) const { return arenas_[place].backed(); }
    [[nodiscard]] uint32_t slots(PlaceId place) const { return arenas_[place].slots(); }

    // What the program knows of the coming steps: leaves first and is written back now, or leaves
    // last. Of shared blocks the last word counts.
    void advise(TensorId tensor, Advice advice, Commands &out);

    // ---- scores of a policy of the program (ranking.cpp) ----------------------------------------
    // What may live at the place, from pack `from` on, until about `work_max` blocks and tensors
    // were looked at; returns the pack to go on with, kNone at the end.
    PackId candidates(PlaceId place, PackId from, uint64_t work_max,
                      std::vector<Candidate> *out) const;
    // Among equals in retention and priority the lower score leaves first, then next use and
    // recency decide; never scored is 0. Tensors of one block stand side by side, and the highest
    // score is the block's.
    void score(PlaceId place, const Score *scores, size_t n);
    void forget_scores();
    [[nodiscard]] uint64_t evictions(PlaceId place) const { return evictions_[place]; }

    // ---- what a plan asks (ahead.cpp) ----------------------------------------------------------
    [[nodiscard]] Lack lack(const Request &request) const;
    [[nodiscard]] uint64_t block_bytes() const { return config_.block_bytes; }
    [[nodiscard]] bool maps(PlaceId place) const { return config_.places[place].maps; }
    [[nodiscard]] uint64_t budget_bytes(PlaceId place) const  // for ordinary blocks
    {
        const Arena &arena = arenas_[place];
        if (arena.budget() <= arena.whole_slots()) return 0;
        return (arena.budget() - arena.whole_slots()) * config_.block_bytes;
    }
    [[nodiscard]] uint64_t free_bytes(PlaceId place) const
    {
        return arenas_[place].free() * config_.block_bytes;
    }
    [[nodiscard]] bool may_rest_at(TensorId tensor, PlaceId place) const
    {
        return is_open(place) && (tensors_[tensor].spec.policy.allowed & (1u << place)) != 0;
    }
    // Room is kept for it there, whatever happens to budgets.
    [[nodiscard]] bool is_promised_at(TensorId tensor, PlaceId place) const
    {
        return packs_[tensors_[tensor].pack].promised == place;
    }
    // Writes blocks of the place back early whose next use is more than `beyond` accesses away, as
    // long as nothing else wants the nvme place; returns how many were started.
    uint32_t clean_ahead(PlaceId place, uint64_t beyond, Commands &out);

    // ---- deadlocks (deadlock.cpp) --------------------------------------------------------------
    // The fetch that gives way where threads of the program wait for each other's views; 0: nobody
    // is in one, or somebody who could still release is awake. `held` may miss what came meanwhile.
    // updates_waiting: fetches of updates, when these do nothing else than wait for them; else 0.
    [[nodiscard]] FetchId find_deadlock(const std::vector<Held> &held,
                                        const std::vector<Sleeper> &sleepers,
                                        uint32_t updates_waiting = 0) const;
    // What it is told.
    [[nodiscard]] Status deadlock_refusal(FetchId fetch) const;

    // ---- questions -----------------------------------------------------------------------------
    [[nodiscard]] Door &door(TensorId tensor, PlaceId place) const
    {
        return doors_[tensor / kDoorsChunk][tensor % kDoorsChunk].at[place];
    }
    [[nodiscard]] Gate &gate(TensorId tensor, PlaceId place) const
    {
        return door(tensor, place).gate;
    }
    [[nodiscard]] const TensorSpec &spec(TensorId tensor) const;
    [[nodiscard]] Contents contents(TensorId tensor) const;
    [[nodiscard]] uint64_t version(TensorId tensor) const;
    // Bit per place that holds the newest bytes of all of the tensor.
    [[nodiscard]] uint32_t residence(TensorId tensor) const;
    // Of a range: its bytes in blocks that lack the newest bytes there.
    [[nodiscard]] uint64_t missing_bytes(const Request &request) const;
    // Where a pinned or resident tensor lies at a place of slots: the first block's slot, offset.
    [[nodiscard]] Grant location(TensorId tensor, PlaceId place) const;
    // The longest around a block that has a slot there.
    [[nodiscard]] SlotRun run_of(BlockId block, PlaceId place) const;
    // Nobody has a view of what lies in the slots, but one fetch of `own`.
    [[nodiscard]] bool are_quiet(PlaceId place, Slot first, uint32_t count, TensorId own) const;
    [[nodiscard]] PlaceId choose_cpu_place(const Request &request) const;
    [[nodiscard]] uint32_t pack_blocks(TensorId tensor) const;  // of all that moves with it
    [[nodiscard]] uint64_t pack_offset(TensorId tensor) const;
    [[nodiscard]] PackId pack_of(TensorId tensor) const;
    [[nodiscard]] TensorBlocks blocks_of(TensorId tensor) const;
    // Somewhere are bytes of the block; else it is empty, or zeros.
    [[nodiscard]] bool has_bytes(BlockId block) const { return bytes_exist(block, 0); }
    [[nodiscard]] BlockState block_state(BlockId block, PlaceId place) const;
    [[nodiscard]] std::string place_name(PlaceId place) const;  // for sentences
    [[nodiscard]] PlaceUsage usage(PlaceId place) const;  // looks at every block that is there
    [[nodiscard]] uint64_t budget_blocks(PlaceId place) const { return arenas_[place].budget(); }
    [[nodiscard]] uint64_t used_blocks(PlaceId place) const { return arenas_[place].used(); }
    [[nodiscard]] uint64_t metadata_bytes() const;
    // What creating a tensor can add to it, and what it can become within budgets and tensors_max.
    [[nodiscard]] uint64_t metadata_growth(const TensorSpec &spec) const;
    [[nodiscard]] uint64_t metadata_bytes_max() const;
    [[nodiscard]] uint32_t tensors_max() const { return config_.tensors_max; }
    [[nodiscard]] uint32_t tensor_ids() const { return static_cast<uint32_t>(tensors_.size()); }
    [[nodiscard]] uint32_t pack_ids() const { return static_cast<uint32_t>(packs_.size()); }
    [[nodiscard]] uint32_t block_ids() const { return static_cast<uint32_t>(blocks_.size()); }
    [[nodiscard]] uint32_t waiting_fetches() const;
    [[nodiscard]] uint32_t transfers_in_flight() const;
    // Fetches that only views of the program keep waiting (kFetchWaitRoom), oldest first.
    [[nodiscard]] std::vector<FetchId> stuck_fetches() const;
    [[nodiscard]] bool waits_for_locks(FetchId fetch) const;
    [[nodiscard]] bool is_waiting(FetchId fetch) const { return fetches_.count(fetch) > 0; }
    // A fetch of the tensor, not a prefetch and of a higher number, waits for locks or room.
    [[nodiscard]] bool is_awaited(TensorId tensor, FetchId number) const;
    [[nodiscard]] FetchId last_fetch() const { return next_fetch_ - 1; }
    [[nodiscard]] bool waits_for_room(FetchId fetch) const;
    [[nodiscard]] bool waits_for_nvme(FetchId fetch) const;  // a transfer from there or to there
    // Those that wait, one line each, and what for.
    [[nodiscard]] std::string describe_waiting(size_t lines_max) const;
    // Neither answered nor on its way: what a deadlock can be made of.
    [[nodiscard]] bool is_blocked(FetchId fetch) const;
    // Views, fetches past their lock, or pins: somebody has it now (claims do not count).
    [[nodiscard]] bool in_use(TensorId tensor) const;
    // With room for private buffers of so many bytes, made for tensors.
    [[nodiscard]] Status fits(const std::vector<Request> &requests,
                              const std::vector<Request> &buffers = {}) const;
    // Every invariant of the design; empty when all hold. For tests and after each simulated event.
    [[nodiscard]] std::string check() const;

    void set_victim_policy(const VictimPolicy *policy);  // not owned, outlives the core or null
    // Not owned, outlives the core; before the first tensor. A guarded block is then at its address
    // from a fetch that names no claim until it leaves, is written back, or an update has it. It
    // can be read there, and written while a view may; nobody else's bytes are ever seen. Small
    // tensors that share a block are seen together.
    void set_aliases(Aliases *aliases) { aliases_ = aliases; }
    // At a place that maps: touches of the block's address are served, so that it is there only
    // while they may see it.
    [[nodiscard]] bool guards(BlockId block, PlaceId place) const;
    // Of such a block: at its address, and not in the arena.
    [[nodiscard]] bool is_mapped(BlockId block, PlaceId place) const
    {
        return replica(block, place).mapped;
    }
    // What the policy knows has changed as a whole.
    void replan();

private:
    enum class Room { kTaken, kComing, kStuck, kNever, kAgain };
    // Of a place: no hint whose bytes are needed then, or later, finds a block that may leave.
    struct Barren {
        bool known = false;
        uint64_t needed_in = 0;
        uint64_t until = 0;  // the event in which it was found, or kNever
    };
    using Blocked = std::array<bool, kPlacesMax>;      // places an earlier fetch waits for
    using BlockRange = std::pair<uint32_t, uint32_t>;  // indexes in the pack, end exclusive

    // tensors.cpp
    [[nodiscard]] Status can_promise(PlaceId place, uint32_t blocks) const;
    Status promise(Pack &pack);
    [[nodiscard]] uint32_t promised_blocks(const Pack &pack, PlaceId place) const
    {
        const bool copies = pack.key.durable && !pack.frozen && is_nvme(place);
        return pack.blocks * (copies ? config_.durable_copies : 1);
    }
    [[nodiscard]] PlaceId place_to_promise(const Pack &pack) const;
    void keep_promise(Pack &pack, PlaceId place, PlaceId home);
    void promise_farther(PlaceId place);
    void unpromise(const Pack &pack);
    void prepare_tensor();
    void prepare_pack(uint32_t blocks);
    PackId take_pack(Pack &&pack);
    [[nodiscard]] PlaceId device_to_promise(const Pack &pack, PlaceId last) const;
    [[nodiscard]] PackId open_pack(const PackKey &key, const TensorSpec &spec) const;
    Status check_tensors_max() const;
    Result<PackId> new_pack(const TensorSpec &spec, const PackKey &key, bool shared, bool open);
    TensorId take_tensor(TensorSpec &&spec, PackId pack, uint64_t offset);
    void bury(PackId pack, Commands &out);
    void free_pack(PackId pack, Commands &out);
    void drop_contents(TensorId tensor, Commands &out);
    void drop_hints(TensorId tensor, Commands &out);

    // locks.cpp: who may use what beside whom
    bool conflicts_with(const Fetch &fetch, const Request &request, PlaceId place);
    bool gates_in_the_way(TensorId tensor, const Fetch &fetch, const Request &request,
                          PlaceId place);
    // Readers at other places are in its way still: of their blocks it is the only writer.
    [[nodiscard]] static bool beside_readers(const Fetch &fetch)
    {
        return (fetch.asked.flags & kFetchBesideReaders) != 0;
    }
    // A block that is being written at one place must not be used at another; small tensors that
    // share it are bound by this as well.
    [[nodiscard]] bool block_in_the_way(const Block &block, BlockId id, bool writes,
                                        PlaceId place) const
    {
        if (block.writers > 0 && block.writer_place != place) return true;
        return writes && is_used_elsewhere(id, place);
    }
    [[nodiscard]] bool is_used_elsewhere(BlockId block, PlaceId place) const;
    bool may_lock(Fetch &fetch);
    void follow_neighbour(Fetch &fetch, size_t index);
    [[nodiscard]] Status conflict_within(const Fetch &fetch) const;
    Status readable(const Fetch &fetch) const;
    void lock(Fetch &fetch);
    void unlock(const Request &request, PlaceId place, ClaimId claim);
    void build_targets(Fetch &fetch);
    void update_gate(TensorId tensor, PlaceId place);
    void open_gate(TensorId tensor, PlaceId place);
    uint32_t close_gate(TensorId tensor, PlaceId place);  // returns the pins that are left
    bool try_close_gate(TensorId tensor, PlaceId place);
    void note_draining(TensorId tensor, PlaceId place, bool draining);
    [[nodiscard]] bool uses_gates(const Pack &pack, PlaceId place) const
    {
        return pack.gates_open[place] + pack.gates_draining[place] > 0;
    }
    void set_contents(TensorId tensor, Contents contents);
    [[nodiscard]] std::string check_tensors() const;

    // fetch.cpp: a fetch from question to answer
    Status check_request(const FetchAsked &asked) const;
    void advance(Commands &out);
    void advance_queue(Commands &out);
    bool step(Fetch &fetch, Blocked &blocked, Commands &out);
    [[nodiscard]] Status busy_refusal(const Fetch &fetch) const;
    void wait_for(Fetch &fetch, Target &target, Commands &out);
    void hurry_hints(const Fetch &fetch, Commands &out);
    bool finish(FetchId id, Commands &out);
    Grant pin(const Fetch &fetch, size_t request);
    void refuse(FetchId id, Status why, Commands &out);
    Fetch &new_fetch(FetchId id);
    void enqueue(Fetch &fetch);
    void dequeue(const Fetch &fetch);
    void forget_fetch(Fetch &fetch);
    void end_write(const Release &release, Commands &out);

    // room.cpp: reservation; runs.cpp: contiguous slots; eviction.cpp: victims, write-back
    [[nodiscard]] bool is_behind(const Fetch &fetch, const Blocked &blocked) const;
    Room reserve(Fetch &fetch, Blocked &blocked, Commands &out);
    Room try_reserve(Fetch &fetch, Blocked &blocked, Commands &out);
    Room make_room(Fetch &fetch, PlaceId place, uint32_t needed, bool whole, Commands &out);
    void hasten_write_backs(const Fetch &fetch, PlaceId place, Commands &out);
    Room plan_runs(Fetch &fetch, const Blocked &blocked, Commands &out);
    Room plan_all_runs(Fetch &fetch, bool tight, const Blocked &blocked, Commands &out);
    [[nodiscard]] bool is_rearranging(PlaceId place) const;
    [[nodiscard]] static uint32_t targets_at(const Fetch &fetch, PlaceId place);
    Room plan_run(Fetch &fetch, Target *first, uint32_t count, bool tight, Commands &out);
    class RunCosts;
    static Slot choose_run(RunCosts &costs, bool tight);
    bool run_lies(const Target *first, uint32_t count) const;
    Room make_spare_slot(const Fetch &fetch, RunCosts &costs, PlaceId place, Commands &out);
    [[nodiscard]] bool may_move(BlockId block, PlaceId place) const;
    [[nodiscard]] bool is_in_own_run(BlockId block, PlaceId place, const Fetch &fetch) const;
    [[nodiscard]] bool fits_beside(const Fetch &fetch, PlaceId place) const;
    bool start_move(const Fetch &fetch, BlockId block, PlaceId place, Slot begin, uint32_t count,
                    Commands &out);
    [[nodiscard]] Slot neighbour_slot(BlockId block, PlaceId place);
    void set_run(Pack &pack, PlaceId place, Slot begin);
    void take_room(Fetch &fetch, Commands &out);
    void take_slot(PlaceId place, BlockId block, bool whole, Slot slot, Commands &out);
    BlockId pick_victim(PlaceId place, const Fetch &fetch);
    [[nodiscard]] bool stays(BlockId block, PlaceId place) const;
    BlockId pick_behind(BlockId block, PlaceId place, const Fetch &fetch);
    // Those colder than `end` that will not leave go to the other end of the list, so that who
    // looks next does not pass them again. kNone: all may be of them.
    template <class WillStay> void heat_colder(BlockId end, PlaceId place, WillStay &&will_stay)
    {
        const BlockId last = hottest_[place];
        for (BlockId at = coldest_[place]; at != end && at != last;) {
            const BlockId next = replica(at, place).hotter;
            if (will_stay(at)) heat(at, place);
            at = next;
        }
    }
    [[nodiscard]] bool is_barren(PlaceId place, const Fetch &fetch) const;
    void note_barren(PlaceId place, const Fetch &fetch);
    void stir(BlockId block, PlaceId place);
    [[nodiscard]] bool leaves_before(BlockId block, BlockId other, PlaceId place) const;
    bool may_leave(BlockId block, PlaceId place, const Fetch *fetch) const;
    bool is_movable(BlockId block, PlaceId place, const Fetch *fetch) const;
    [[nodiscard]] Room stuck_or_never() const;
    static Room fall_short(Fetch &fetch, PlaceId place, Room room);
    Room let_mover_leave(const Fetch &fetch, PlaceId place, Commands &out);
    // Wanted there by the fetch that looks for room. At other places it may leave like any other.
    [[nodiscard]] bool is_own(BlockId block, PlaceId place, const Fetch &fetch) const
    {
        const Block &at = blocks_[block];
        return at.protector == fetch.id && (at.protected_places & (1u << place)) != 0;
    }
    bool can_drain(const Pack &pack, PlaceId place) const;
    [[nodiscard]] bool may_rest(const Pack &pack, PlaceId place) const;
    // The newest bytes are somewhere else too, or there are none.
    [[nodiscard]] bool is_duplicate(BlockId block, PlaceId place) const
    {
        if (!replica(block, place).valid) return true;
        for (PlaceId other = 0; other < places(); ++other) {
            const Replica &there = replica(block, other);
            if (other != place && there.valid && !there.doomed) return true;
        }
        return is_worthless(block);
    }
    PlaceId drain_place(BlockId block, PlaceId place, Commands &out);
    bool start_eviction(BlockId block, PlaceId place, Commands &out);
    void start_write_back(BlockId block, PlaceId from, PlaceId to, bool evicts, Commands &out);
    void pump_write_back(Commands &out);
    bool clean_early(BlockId block, PlaceId place, Commands &out);
    bool clean(BlockId block, PlaceId place, Commands &out);
    void queue_clean(BlockId block);
    void clean_soon(BlockId block, PlaceId place);
    void end_claims(Pack &pack);
    // A hint takes no room of what is known to be needed sooner than its own bytes.
    [[nodiscard]] bool is_needed_before(BlockId block, const Fetch &fetch) const
    {
        if ((fetch.asked.flags & kFetchPrefetch) == 0) return false;
        const uint64_t next = next_use(block);
        return next != kNever && next <= fetch.needed_in;
    }
    [[nodiscard]] static bool is_blind_hint(const Fetch &fetch);
    void note_use(BlockId block, PlaceId place);
    void note_waste(BlockId block, PlaceId place);
    void clean_coldest(PlaceId place, uint32_t reserve, Commands &out);
    void clean_planned(PlaceId place, uint32_t reserve, Commands &out);
    uint32_t clean_planned_beyond(PlaceId place, uint64_t beyond, uint32_t most, Commands &out);
    [[nodiscard]] uint32_t pinned_blocks(PlaceId place, bool whole, const Fetch *except) const;
    [[nodiscard]] bool are_more_pinned(PlaceId place, bool whole, const Fetch &fetch,
                                       uint32_t most) const;
    [[nodiscard]] bool is_pinned(BlockId block, PlaceId place) const;
    [[nodiscard]] bool is_pinned_by_gates(const Pack &pack, PlaceId place) const
    {
        return uses_gates(pack, place) && has_pins(pack, place);
    }
    [[nodiscard]] bool has_pins(const Pack &pack, PlaceId place) const;
    [[nodiscard]] bool room_will_come(PlaceId place) const;
    [[nodiscard]] uint64_t next_use(BlockId block) const;
    Status budget_refusal(const Fetch &fetch, PlaceId place, uint32_t needed) const;
    [[nodiscard]] bool asks_for_wholes(const Fetch &fetch, PlaceId place) const;

    // aliases.cpp: what is seen of blocks at their addresses
    bool show_targets(const Fetch &fetch);
    void protect(BlockId block, PlaceId place);
    void hide(BlockId block, PlaceId place);
    void clear_address(BlockId block, PlaceId place);
    void conceal(TensorId tensor);
    void conceal_asked(const Fetch &fetch);

    // moves.cpp: transfers and what they change
    void start_fill(Fetch &fetch, Target &target, Commands &out);
    bool satisfied(const Target &target) const;
    Flight &new_flight(TransferId id);
    void start_transfer(Transfer transfer, bool evicts, bool writes_back, Commands &out);
    bool bytes_exist(BlockId block, uint32_t tried) const;
    // The nearest replica with the newest bytes that has not failed this fetch yet.
    [[nodiscard]] PlaceId choose_source(BlockId block, PlaceId place, uint32_t tried) const
    {
        for (PlaceId from = 0; from < places(); ++from) {
            const Replica &there = replica(block, from);
            if (from == place || (tried & (1u << from))) continue;
            if (there.valid && !there.doomed && !there.filling) return from;
        }
        return kNoPlace;
    }
    void settle_target(const Flight &flight, bool ok, Commands &out);
    void unsettle_target(const Flight &flight, const Status &status, Commands &out);
    void settle_source(const Flight &flight, bool ok, Commands &out);
    void wake_waiters(BlockId block, const Flight *failed, const Status &status, Commands &out);
    void note_failure(Fetch &fetch, Target &target, const Flight &failed, const Status &status);
    [[nodiscard]] const std::string &hurt_name(const Fetch &fetch, const Target &target) const;
    [[nodiscard]] bool is_worthless(BlockId block) const;
    void drop_replica(BlockId block, PlaceId place, Commands &out);
    void free_slot(BlockId block, PlaceId place, Commands &out);
    void hold(BlockId block, PlaceId place);
    bool close_gates(BlockId block, PlaceId place);

    // deadlock.cpp
    [[nodiscard]] bool conflicts_with_view(const Fetch &fetch, const Held &view) const;
    [[nodiscard]] bool lacks_room_of(const Fetch &fetch, const Held &view) const;
    [[nodiscard]] static bool claim_moves(ClaimId claim, const Knot &knot);
    [[nodiscard]] bool locks_may_come(const Fetch &fetch, const Knot &knot) const;
    [[nodiscard]] bool room_may_come(const Fetch &fetch, const Knot &knot) const;
    [[nodiscard]] bool has_somebody_else(PlaceId place, const Knot &knot) const;
    void loosen(Knot &knot) const;

    // ranking.cpp
    [[nodiscard]] Rank rank_of(PackId pack, PlaceId place) const;
    void rank(PackId pack, PlaceId place);
    void unrank(PackId pack, PlaceId place);
    void count_in(BlockId block, PlaceId place);
    void count_out(PackId pack, PlaceId place);
    void order_anew();
    void look_at_plan(PackId pack);
    [[nodiscard]] double worth_of(const Pack &pack, PlaceId place) const;
    [[nodiscard]] uint32_t find_end(PackId pack, PlaceId place) const;
    [[nodiscard]] BlockId pick_planned(PlaceId place, const Fetch &fetch) const;
    // Around a change of what a pack is ranked by.
    template <class Change> void rerank(PackId id, Change &&change)
    {
        for (PlaceId place = 0; place < places(); ++place) unrank(id, place);
        change();
        for (PlaceId place = 0; place < places(); ++place) rank(id, place);
    }
    void note_unscored(PackId pack);
    void look_at(BlockId block, PlaceId place, const Tensor &tensor, Candidate *candidate) const;
    BlockId pick_ranked(PlaceId place, const Fetch &fetch, BlockId best) const;
    [[nodiscard]] std::string check_ranks() const;

    // recency.cpp
    void heat(BlockId block, PlaceId place);
    void cool(BlockId block, PlaceId place);
    void unlist(BlockId block, PlaceId place);

    [[nodiscard]] PlaceId places() const { return places_; }
    [[nodiscard]] bool awaits_budget(const Fetch &fetch) const;
    [[nodiscard]] bool is_shrinking(PlaceId place) const { return budgets_before_[place] != kNone; }
    // It has a budget now; without one, routes and promises pass it by.
    [[nodiscard]] bool is_open(PlaceId place) const { return arenas_[place].budget() > 0; }
    [[nodiscard]] bool exists(PlaceId place) const { return config_.places[place].blocks > 0; }
    [[nodiscard]] bool is_nvme(PlaceId place) const
    {
        return config_.places[place].tier == Tier::kNvme;
    }
    Replica &replica(BlockId block, PlaceId place) { return replicas_[block * places() + place]; }
    [[nodiscard]] const Replica &replica(BlockId block, PlaceId place) const
    {
        return replicas_[block * places() + place];
    }
    [[nodiscard]] BlockRange blocks_of(const Tensor &tensor, uint64_t begin, uint64_t count) const
    {
        const uint64_t first = tensor.offset + begin;
        const uint64_t last = first + (count > 0 ? count - 1 : 0);
        return {block_index(first), block_index(last) + 1};
    }
    // Blocks are usually of a power of two, and a division is dear.
    [[nodiscard]] uint32_t block_index(uint64_t offset) const
    {
        return static_cast<uint32_t>(block_shift_ > 0 ? offset >> block_shift_
                                                      : offset / config_.block_bytes);
    }
    [[nodiscard]] bool lies_whole(TensorId tensor, PlaceId place) const;
    [[nodiscard]] uint64_t block_bytes_used(BlockId block) const;
    [[nodiscard]] std::string describe_conflict(const Fetch &fetch) const;

    static constexpr std::array<uint32_t, kPlacesMax> none_before()
    {
        std::array<uint32_t, kPlacesMax> none{};
        none.fill(kNone);
        return none;
    }

    static constexpr uint32_t kDoorsChunk = 512;  // tensors whose doors are allocated at once
    static constexpr size_t kSpareFetches = 16;
    static constexpr size_t kSpareFlights = 64;
    static constexpr size_t kSpareRanks = 16;

    Config config_;
    PlaceId places_ = 0;        // as many as the config has
    uint32_t block_shift_ = 0;  // of block_bytes; 0: no power of two
    LeastRecentlyUsed recency_only_;
    const VictimPolicy *victims_ = &recency_only_;
    Aliases *aliases_ = nullptr;
    std::array<Arena, kPlacesMax> arenas_;
    std::array<uint32_t, kPlacesMax> coming_{};                        // evictions under way
    std::array<uint32_t, kPlacesMax> promised_{};                      // of the budget, to packs
    std::array<uint32_t, kPlacesMax> budgets_before_ = none_before();  // of those that shrink
    std::array<uint64_t, kPlacesMax> evictions_{};
    std::array<PlannedBlocks, kPlacesMax> brought_{};
    std::array<Barren, kPlacesMax> barren_{};
    std::array<std::set<Rank>, kPlacesMax> ranked_;  // scored or planned: packs with blocks there
    std::vector<std::set<Rank>::node_type> spare_ranks_;  // of packs that left
    std::vector<RunSlot> run_slots_;                      // for RunCosts, kept for its memory
    uint32_t withheld_ = 0;                               // blocks of nvme
    bool scored_ = false;
    bool has_plan_ = false;
    std::array<BlockId, kPlacesMax> hottest_{};
    std::array<BlockId, kPlacesMax> coldest_{};
    std::array<std::array<uint32_t, 2>, kPlacesMax> listed_{};  // ordinary blocks, and wholes
    std::vector<std::unique_ptr<Doors[]>> doors_;               // in chunks that never move
    Table<Tensor> tensors_;
    std::vector<TensorId> free_tensors_;
    Table<Pack> packs_;
    std::vector<PackId> free_packs_;
    std::map<PackKey, PackId> open_packs_;  // shared ones that take more tensors
    std::vector<Block> blocks_;
    std::vector<Replica> replicas_;  // blocks x places
    BlockIds free_blocks_;
    using Fetches = std::unordered_map<FetchId, Fetch>;
    Fetches fetches_;
    std::vector<Fetches::node_type> spare_fetches_;  // over, kept for their memory
    std::vector<Queued> queue_;  // those that wait, in order; of fetches_, which never move
    std::map<std::pair<Instant, FetchId>, bool> deadlines_;
    using Flights = std::unordered_map<TransferId, Flight>;
    std::vector<FetchId> slow_hints_;  // with their locks, whose transfers are not urgent
    Flights flights_;
    std::vector<Flights::node_type> spare_flights_;  // over, kept for their memory
    std::deque<BlockId> clean_queue_;
    FetchId next_fetch_ = 1;
    ClaimId next_claim_ = 0;  // even; with kAloneClaim odd
    TransferId next_transfer_ = 1;
    uint32_t write_backs_ = 0;
    uint64_t event_ = 0;  // counts those that may ask the policy, see Pack::asked_at
    bool advancing_ = false;
    mutable Knot knot_;               // of find_deadlock, kept for its memory
    mutable bool pins_seen_ = false;  // in gates, since the room of a fetch was looked for
    bool may_write_back_ = false;     // something changed since pump_write_back looked last
};

}  // namespace stepwell::residency
