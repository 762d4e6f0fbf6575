// SPDX-License-Identifier: Apache-2.0
// What the core remembers: tensors, the packs of blocks they lie in, replicas of blocks at places,
// fetches and transfers under way. Plain data, and what can be said of it without the tables.
#pragma once

#include "lib/residency/types.h"

#include <algorithm>
#include <array>
#include <tuple>
#include <utility>
#include <vector>

namespace stepwell::residency {

// One block at one place.
enum class Mapped : uint8_t {  // at a place that maps: the slot is at the tensor's address
    kNot,
    kReadable,
    kWritable
};

struct Replica {
    Slot slot = kNoSlot;
    Slot last_slot = kNoSlot;  // before it left; at a place that maps it may still be mapped
    uint32_t pins = 0;         // views of the program
    uint32_t holds = 0;        // fetches under way and the library's own views
    uint32_t marks = 0;        // locked ranges that name the block here, with or without room yet
    uint32_t reads = 0;        // transfers out of it
    BlockId hotter = kNone;
    BlockId colder = kNone;
    bool listed = false;   // in the place's list of recency
    bool valid = false;    // has the newest bytes
    bool filling = false;  // a transfer writes it
    Mapped mapped = Mapped::kNot;
    bool doomed = false;       // dropped as soon as no transfer uses it
    bool evicting = false;     // dropped after its write-back, unless a fetch needs it meanwhile
    bool fresh : 1 = false;    // prefetched and not used yet
    bool planned : 1 = false;  // brought by a plan; counted when it is used or leaves
    bool rests : 1 = false;    // in the list, among those that are known not to leave
    [[nodiscard]] bool is_mapped() const { return mapped != Mapped::kNot; }
};
static_assert(sizeof(Replica) == 40);  // one for each block and place

struct Block {
    PackId pack = kNone;
    uint32_t index = 0;      // within the pack
    uint32_t transfers = 0;  // in flight, of any kind
    uint32_t writers = 0;    // locked write ranges, all at writer_place
    PlaceId writer_place = kNoPlace;
    bool write_failed = false;      // no victim until forgiven or written again
    bool queued_clean = false;      // in the queue of blocks to be written back early
    uint32_t epoch = 0;             // +1 when the contents are dropped: voids what is in flight
    FetchId protector = 0;          // the fetch that looks for room spares its own blocks ...
    uint32_t protected_places = 0;  // ... where it wants them, a bit per place
    std::vector<FetchId> waiters;
};

// What a pack is shared by: tensors smaller than a block, alike in all that decides where they go.
struct PackKey {
    uint32_t role = 0;
    uint64_t neighbour = 0;
    Policy policy;
    bool durable = false;
    bool guarded = false;
    [[nodiscard]] auto tied() const
    {
        return std::tie(role, neighbour, policy.home, policy.allowed, policy.retention,
                        policy.priority, durable, guarded);
    }
    bool operator<(const PackKey &other) const { return tied() < other.tied(); }
};

// What the policy said of the next use of a pack, and at which event: it holds all through one.
struct NextUse {
    uint64_t in = kNever;  // accesses from now
    uint64_t asked_at = 0;
};

struct Pack {
    BlockId first = kNone;
    uint32_t blocks = 0;
    uint64_t used_bytes = 0;
    uint32_t with_contents = 0;  // tensors that are not empty
    uint32_t writing = 0;        // locked ranges for writing, or under a claim
    uint32_t claimed = 0;        // of these, with a claim
    bool shared = false;
    bool dead = false;  // without tensors; waits for its last transfer
    bool agreed = false;
    bool frozen = false;   // written once: of what is durable no second copy comes
    bool passing = false;  // see TensorSpec
    Advice advice = Advice::kNormal;
    PlaceId promised = kNoPlace;
    PlaceId promised_home = kNoPlace;  // of what is pinned there, unless it is the same
    PlaceId pinned_home = kNoPlace;
    PackKey key;
    std::vector<TensorId> tensors;
    // Where slots matter, per place: the run set aside for it, how many of its blocks are there.
    std::array<Slot, kPlacesMax> run = no_slots();
    std::array<uint32_t, kPlacesMax> resident{};
    std::array<double, kPlacesMax> score{};  // lower leaves first; 0: the default order
    std::array<double, kPlacesMax> worth{};  // to the plan, where there is one
    mutable NextUse next_use;
    // No block from this index on is at the place. Lowered lazily, see VictimOrder::find_end.
    mutable std::array<uint32_t, kPlacesMax> end{};

    static constexpr std::array<Slot, kPlacesMax> no_slots()
    {
        std::array<Slot, kPlacesMax> slots{};
        slots.fill(kNoSlot);
        return slots;
    }
    bool clean_late = false;  // when the last claim goes: others were to change the block again
    // Of the tensors' gates, so that a large pack need not be walked to learn that there are none.
    std::array<uint32_t, kPlacesMax> gates_open{};
    std::array<uint32_t, kPlacesMax> gates_draining{};  // closed, with pins when last looked at
};

enum class ClaimStage : uint8_t {  // of the claim that holds a tensor
    kNext,                         // nothing was out under it yet
    kBegun,
    kLent  // see Core::lend
};

struct Tensor {
    TensorSpec spec;
    PackId pack = kNone;
    uint64_t offset = 0;  // in the pack
    uint64_t version = 0;
    std::vector<ClaimId> claims;  // served first come first served; the front one holds
    uint32_t readers = 0;         // locked read ranges that are not in a gate
    uint32_t touched = 0;         // views beside readers, which may be concealed while they last
    bool passed = false;          // unless such views have passed all claims that there are
    uint32_t index_in_pack = 0;
    TensorId older = kNone;    // has the contents as they were before the claim's first write
    uint32_t draining = 0;     // a bit per place, see Pack::gates_draining
    uint32_t claim_users = 0;  // locked ranges under the claim
    uint32_t waiting = 0;      // fetches in the lock phase that want to write it
    uint32_t fetches = 0;      // that name it and are not answered
    bool writer = false;
    bool hinted = false;  // its writer is a prefetch that only reserves room
    bool alive = false;
    bool holds_touches = false;  // see Core::hold_touches
    ClaimStage stage = ClaimStage::kNext;
    Contents contents = Contents::kEmpty;
    Status cause;  // of kFailed, and of kValid where an update missed it: reads are refused with it

    [[nodiscard]] ClaimId claim() const { return claims.empty() ? 0 : claims.front(); }
    [[nodiscard]] ClaimId last_claim() const { return claims.empty() ? 0 : claims.back(); }
    // A fetch under `mine`, or under no claim (0), has to wait for the end of another one.
    [[nodiscard]] bool bars(ClaimId mine, bool writes) const;
};

// The order in which packs leave a place: by the program's rules, then by the plan. Without a plan,
// packs that differ only in their number are decided by next use and recency, see Victims::pick.
struct Rank {
    int stays = 0;  // 0: leave first, 2: leave last
    int32_t priority = 0;
    double score = 0;
    double worth = 0;
    PackId pack = kNone;
    [[nodiscard]] auto reasons() const { return std::tie(stays, priority, score, worth); }
    [[nodiscard]] auto rules() const { return std::tie(stays, priority, score); }
    bool operator<(const Rank &other) const
    {
        if (stays != other.stays) return stays < other.stays;
        if (priority != other.priority) return priority < other.priority;
        if (score != other.score) return score < other.score;
        if (worth != other.worth) return worth < other.worth;
        return pack < other.pack;
    }
};

// In a set, with its node. The shell counts them, with what else a policy of the program takes.
constexpr uint64_t kRankBytes = sizeof(Rank) + 5 * sizeof(void *);

// A block that a fetch needs at a place.
struct Target {
    BlockId block = kNone;
    PlaceId place = kNoPlace;
    bool needs_bytes = false;
    bool writes = false;
    bool started = false;
    bool waiting = false;
    bool home = false;           // only the slot, for bytes that are worked on at another place
    bool moves = false;          // is seen at its address from the grant on, if aliases decide that
    Slot wanted_slot = kNoSlot;  // of a run
    uint32_t tried = 0;          // sources that failed, a bit per place
};

// What it takes to clear a slot for a run.
struct RunSlot {
    enum class Look : uint8_t { kNone, kFree, kLeaves, kMoves, kStays, kPlanned };
    Look look = Look::kNone;  // kNone: not looked at yet
    uint32_t cost = 0;
};

// A fetch that waits holds nothing: neither locks nor room. It gets both at once and then waits for
// transfers alone, so that no two fetches ever wait for what the other has.
enum class Phase : uint8_t { kWait, kFill };
enum class Lacks : uint8_t { kNothing, kLocks, kRoom };  // of one that waits, when last looked at

struct Fetch {
    FetchId id = 0;
    FetchAsked asked;
    Phase phase = Phase::kWait;
    Lacks lacks = Lacks::kNothing;
    bool stuck = false;  // only views of the program are in the way
    bool moved = false;  // blocks have changed slots for its runs
    uint32_t pending = 0;
    ClaimId last_claim = 0;          // of the first tensor, when it was locked
    size_t conflict = 0;             // the request that could not be locked
    uint64_t needed_in = kNever;     // of a prefetch: accesses until its bytes are used
    PlaceId short_place = kNoPlace;  // where it lacks room ...
    uint32_t short_blocks = 0;       // ... and how many blocks it needs there
    Status error;
    std::vector<PlaceId> places;     // resolved, per request
    std::vector<Target> targets;     // sorted by place and block, each once
    std::vector<PlaceId> built_for;  // the places that the targets are of ...
    uint64_t built_at = 0;           // ... and PackTable::homes_changed() then

    // A new fetch that keeps the memory of the vectors.
    void begin_anew(FetchId now)
    {
        Fetch fresh;
        fresh.id = now;
        fresh.asked.requests.swap(asked.requests);
        fresh.places.swap(places);
        fresh.targets.swap(targets);
        fresh.built_for.swap(built_for);
        fresh.places.clear();
        fresh.targets.clear();
        fresh.built_for.clear();
        *this = std::move(fresh);
    }
};

enum class Room : uint8_t { kTaken, kComing, kStuck, kNever, kAgain };  // what a fetch found of it
using BlockRange = std::pair<uint32_t, uint32_t>;  // indexes in the pack, end exclusive

// Readers at other places still conflict: a block is written at one place at a time.
inline bool beside_readers(const Fetch &fetch)
{
    return (fetch.asked.flags & kFetchBesideReaders) != 0;
}

// Places where an earlier fetch waits for room.
struct Blocked {
    std::array<bool, kPlacesMax> to_all{};
    // Room that an access without a view waits for. Only other such accesses wait behind it: the
    // threads whose views have to end may need more room before they end them.
    std::array<bool, kPlacesMax> to_touches{};
    [[nodiscard]] bool is_behind(const Fetch &fetch, PlaceId place) const
    {
        return to_all[place] || (to_touches[place] && beside_readers(fetch));
    }
};

inline bool is_hint(const Fetch &fetch)
{
    return (fetch.asked.flags & kFetchPrefetch) != 0;
}

// It is not known when its bytes are needed: it does not evict what other hints have brought.
inline bool is_blind_hint(const Fetch &fetch)
{
    return is_hint(fetch) && fetch.needed_in == kNever;
}

// All blocks that the fetch wants there, resident or not: the sum that a refusal gives.
inline uint32_t targets_at(const Fetch &fetch, PlaceId place)
{
    return static_cast<uint32_t>(
        std::count_if(fetch.targets.begin(), fetch.targets.end(),
                      [place](const Target &target) { return target.place == place; }));
}

struct Flight {
    Transfer transfer;
    uint32_t epoch = 0;
    bool evicts = false;
    bool writes_back = false;
    bool ordered = false;  // its target is used already
};

// Demand before hints, larger priority first, then first come first served.
struct QueueKey {
    uint8_t urgency = 0;
    int32_t priority = 0;
    FetchId id = 0;
    bool operator<(const QueueKey &other) const
    {
        if (urgency != other.urgency) return urgency > other.urgency;
        if (priority != other.priority) return priority > other.priority;
        return id < other.id;
    }
};

struct Queued {
    QueueKey key;
    Fetch *fetch = nullptr;
    bool operator<(const Queued &other) const { return key < other.key; }
};

// Fetches, views and threads that may be in a deadlock; reduced by Deadlocks::loosen().
struct Knot {
    std::vector<const Fetch *> tied;  // waiting fetches that cannot proceed
    std::vector<Held> views;          // of threads that cannot proceed
    std::vector<Sleeper> sleepers;    // these threads
    uint32_t updates_waiting = 0;

    [[nodiscard]] bool has(FetchId id) const
    {
        return std::any_of(tied.begin(), tied.end(),
                           [id](const Fetch *fetch) { return fetch->id == id; });
    }
    [[nodiscard]] bool has_owner(uint64_t owner) const
    {
        return std::any_of(sleepers.begin(), sleepers.end(),
                           [owner](const Sleeper &sleeper) { return sleeper.owner == owner; });
    }
};

}  // namespace stepwell::residency
