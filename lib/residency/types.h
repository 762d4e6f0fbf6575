// SPDX-License-Identifier: Apache-2.0
// The vocabulary of the residency core: identifiers, places, events in, commands out. Plain data.
// Knows no clock, thread, driver or operating system; time comes in as an argument.
#pragma once

#include "lib/support/status.h"

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace stepwell::residency {

using Instant = uint64_t;  // nanoseconds on the shell's clock
using TensorId = uint32_t;
using PackId = uint32_t;
using BlockId = uint32_t;
using Slot = uint32_t;
using FetchId = uint64_t;
using TransferId = uint64_t;
using ClaimId = uint64_t;
using PlaceId = uint8_t;

constexpr uint32_t kNone = UINT32_MAX;
constexpr Slot kNoSlot = UINT32_MAX;
constexpr PlaceId kNoPlace = UINT8_MAX;
constexpr PlaceId kAnyCpuPlace = 254;  // of a request: wherever the CPU can work on it
constexpr Instant kNever = UINT64_MAX;
constexpr uint32_t kDevicesMax = 4;
constexpr uint32_t kPlacesMax = kDevicesMax + 2;

// A tier with its ordinal. Places are ordered near to far: devices, host, nvme.
enum class Tier : uint8_t { kDevice = 1, kHost = 2, kNvme = 3 };

struct PlaceConfig {
    Tier tier = Tier::kHost;
    uint32_t device = 0;
    uint32_t blocks = 0;        // budget; 0: no such tier, routes skip it
    uint32_t whole_blocks = 0;  // of these, kept for gathered wholes (agreed between ranks)
    uint64_t aside_bytes = 0;   // of the budget as given, which the core has nothing of
    bool cpu_access = false;    // kernels and storage may touch it
    bool direct = false;        // storage may, and kernels of the CPU may not
    bool maps = false;          // blocks are mapped at an address of the tensor's own

    [[nodiscard]] bool storage_reaches() const { return cpu_access || direct; }
};

struct Config {
    uint64_t block_bytes = 2 * 1024 * 1024;
    uint32_t tensors_max = 131072;
    uint32_t writebacks_max = 16;  // in flight at once
    uint32_t durable_copies = 1;   // of a durable tensor's blocks, promised at nvme
    bool room_farthest = false;    // no room is promised in a place before the farthest
    std::vector<PlaceConfig> places;
};

// kWriteEmpty is a write that is refused with EXISTS when there are contents to keep.
enum class Access : uint8_t { kRead = 0, kWrite = 1, kReadWrite = 2, kWriteEmpty = 3 };
enum class Contents : uint8_t { kEmpty = 0, kValid = 1, kFailed = 2 };
// Larger is more urgent.
enum class Class : uint8_t { kIdle = 0, kHint = 1, kPlanned = 2, kDemand = 3 };
// What the holder of a claim does with the tensor, and how it goes on. In the low bits of its id.
enum class ClaimKind : uint8_t {
    kUpdate = 0,  // changes it, in its turn among others
    kAlone = 1,   // has it alone as well, and waits for nothing but its own pieces: a copy, say
    kReads = 2,   // as kAlone, and only reads: others read beside it, and no other writes
};
constexpr ClaimId kClaimKinds = 4;
constexpr ClaimKind kind_of(ClaimId claim)
{
    return static_cast<ClaimKind>(claim % kClaimKinds);
}
// It bars those that read too; false of no claim (0).
constexpr bool is_exclusive(ClaimId claim)
{
    return claim != 0 && kind_of(claim) != ClaimKind::kReads;
}
enum class Advice : uint8_t { kNormal = 0, kCold = 1, kHot = 2 };
enum class Retention : uint8_t { kDefault = 0, kKeep = 1, kStream = 2, kPin = 3 };

struct Policy {
    PlaceId home = kNoPlace;  // where it rests
    uint32_t allowed = 0;     // bit per place
    Retention retention = Retention::kDefault;
    int32_t priority = 0;  // among equals, lower leaves first
};

struct TensorSpec {
    std::string name;
    uint64_t bytes = 0;
    uint64_t align_bytes = 256;
    uint32_t role = 0;
    uint64_t neighbour = 0;
    bool reads_zero = false;  // zeros until written, instead of EMPTY; where blocks are shared, a
                              // discard leaves it EMPTY and the shell writes the zeros
    bool read_only = false;
    bool agreed = false;      // a gathered whole: leaves only when told to (see lib/gathering)
    bool no_packing = false;  // a block of its own even when small
    bool passing = false;  // of the library, for a while: refused where the farthest place is full
    bool guarded = false;  // its address may be touched without a view, see aliases.h
    bool durable = false;  // generations have it: it shares blocks with such alone
    Policy policy;
};

// Blocks of a tensor that are at nvme from before the process began.
struct Stored {
    bool shares = false;      // its block, with others
    uint64_t offset = 0;      // in its first block
    PackId pack = kNone;      // of that block, where another tensor in it was restored already
    std::vector<bool> there;  // each of its blocks; the others read as zeros
};

// Where a tensor lies.
struct TensorBlocks {
    BlockId first = kNone;
    uint32_t count = 0;
    uint64_t offset = 0;  // in the first
    bool shares = false;
};

struct Request {
    TensorId tensor = kNone;
    Access access = Access::kRead;
    PlaceId place = kNoPlace;  // or kAnyCpuPlace
    uint64_t byte_begin = 0;   // of the tensor
    uint64_t byte_count = 0;   // at least 1
};

enum FetchFlags : uint32_t {
    kFetchTry = 1,       // BUSY instead of any wait
    kFetchWaitRoom = 2,  // wait for other owners' views, instead of BUDGET at once
    kFetchPrefetch = 4,  // a hint: ends when the bytes are there, pins nothing, takes only the room
                         // of what is needed later or not at all; kWriteEmpty asks for room alone
    kFetchInternal = 8,  // the library's own: its views go by themselves, so others wait for them
    kFetchPlanned = 16,  // of a prefetch: a plan's, so that what it brought is counted apart
    kFetchBesideReaders = 32,  // views that read at the same place do not keep it from writing
    kFetchLent = 64,           // reads what a claim has lent, see Core::lend
    kFetchAhead = 128,  // of one who has a view of the tensor: before a claim that waits for it
};

struct FetchAsked {
    std::vector<Request> requests;
    Class urgency = Class::kDemand;
    int32_t priority = 0;
    uint32_t flags = 0;
    uint64_t owner = 0;  // who waits: a thread's number; for cycles among waiting fetches
    ClaimId claim = 0;   // fetches under a claim pass it by
    // The block of an access without a view, with kFetchBesideReaders. The fetch is refused with
    // EXISTS as soon as the program can access the block at the tensor's address.
    BlockId touched = kNone;
    Instant deadline = kNever;
};

// Where one request of a granted fetch lies.
struct Grant {
    PlaceId place = kNoPlace;
    Slot slot = kNoSlot;       // of the first block; the others follow it, or the tensor's address
    uint64_t slot_offset = 0;  // bytes from the start of that block
    bool by_gate = false;      // pinned in the tensor's gate; else by its blocks, see Release
};

struct Release {
    TensorId tensor = kNone;
    Access access = Access::kRead;
    PlaceId place = kNoPlace;
    uint64_t byte_begin = 0;
    uint64_t byte_count = 0;
    bool far = false;      // leave first, write back now
    bool near = false;     // leave last
    bool discard = false;  // the contents are dead; after a read, discard() says so
    bool abandon = false;  // the write failed half way
    bool unshown = false;  // nobody saw the view: what was readable stays as it was; a write, whose
        // grant made the old bytes void, leaves the contents dead as abandon does
    bool internal = false;        // of a fetch with kFetchInternal
    bool beside_readers = false;  // of one with kFetchBesideReaders
    ClaimId claim = 0;            // of the fetch
};

enum class TransferKind : uint8_t {
    kMove,      // bytes from one place to another
    kZero,      // zeros into `to`
    kMap,       // nothing to move; the slot goes to the tensor's address
    kRelocate,  // to another slot of the same place
};

// One block on its way. `from` and `to` are read and written by the shell between the command and
// TransferDone, by nobody else.
struct Transfer {
    TransferId id = 0;
    BlockId block = kNone;
    TransferKind kind = TransferKind::kMove;
    Class urgency = Class::kIdle;
    PlaceId from = kNoPlace;
    PlaceId to = kNoPlace;
    Slot from_slot = kNoSlot;
    Slot to_slot = kNoSlot;
    uint64_t bytes = 0;        // of the block in use
    TensorId tensor = kNone;   // the block's first, for sentences
    PackId pack = kNone;       // for addresses
    uint64_t pack_offset = 0;  // of the block
};

struct Granted {
    FetchId fetch = 0;
    std::vector<Grant> grants;  // one per request; empty for a prefetch
};

struct Refused {
    FetchId fetch = 0;
    Status status;
};

// Work that failed after its call returned: the tensor keeps its newest bytes where they are.
struct BackgroundError {
    TensorId tensor = kNone;
    Status status;
};

// A free slot gives its memory to one that has none, where the budget is below the slots.
struct Swap {
    PlaceId place = kNoPlace;
    Slot backed = kNoSlot;
    Slot bare = kNoSlot;
};

// The block's nvme replica is gone: its slot may be reused, or it is the heir's now.
struct Forget {
    BlockId block = kNone;
    BlockId heir = kNone;
};

// What the shell has to do, in this order: forgets, swaps, transfers, promotes, then answers.
struct Commands {
    std::vector<Forget> forgets;
    std::vector<Swap> swaps;
    std::vector<PackId> freed_packs;  // no transfer uses its addresses any more
    std::vector<Transfer> transfers;
    std::vector<TransferId> promotes;  // queued or not, now of class kDemand
    std::vector<Granted> granted;
    std::vector<Refused> refused;
    std::vector<BackgroundError> errors;

    [[nodiscard]] bool empty() const
    {
        return forgets.empty() && swaps.empty() && freed_packs.empty() && transfers.empty() &&
               promotes.empty() && granted.empty() && refused.empty() && errors.empty();
    }
    void swap(Commands &other) noexcept
    {
        forgets.swap(other.forgets);
        swaps.swap(other.swaps);
        freed_packs.swap(other.freed_packs);
        transfers.swap(other.transfers);
        promotes.swap(other.promotes);
        granted.swap(other.granted);
        refused.swap(other.refused);
        errors.swap(other.errors);
    }
    void clear()
    {
        forgets.clear();
        swaps.clear();
        freed_packs.clear();
        transfers.clear();
        promotes.clear();
        granted.clear();
        refused.clear();
        errors.clear();
    }
};

// Neighbouring blocks of a pack in neighbouring slots.
struct SlotRun {
    uint32_t first_index = 0;
    Slot first_slot = kNoSlot;
    uint32_t count = 0;
};

// An open view of the program, by whom it was fetched: the core knows pins, the shell knows whose.
struct Held {
    uint64_t owner = 0;
    TensorId tensor = kNone;
    PlaceId place = kNoPlace;
    uint64_t byte_begin = 0;
    uint64_t byte_count = 0;
    bool writes = false;
};

// A thread of the program that does nothing until this fetch is answered.
struct Sleeper {
    uint64_t owner = 0;
    FetchId fetch = 0;
};

enum class BlockState : uint8_t { kAbsent, kFilling, kValid, kDirty, kStale, kDraining };

// What a policy of the program is told of a tensor that may live at a place.
struct Candidate {
    TensorId tensor = kNone;
    uint64_t bytes = 0;        // of it there, newest
    uint64_t dirty_bytes = 0;  // of these, newest nowhere farther
    uint64_t next_use = kNever;
    bool pinned = false;
    bool shares = false;  // its block, with others: they leave together
    bool there = false;   // the block is, with or without newest bytes of this one
};

// What the policy answered; never NaN.
struct Score {
    TensorId tensor = kNone;
    double score = 0;
};

// What a fetch of a request would have to move now. Blocks on their way are not in it.
struct Lack {
    PlaceId place = kNoPlace;                 // of the request; resolved where that leaves a choice
    bool readable = false;                    // the tensor is alive and has contents
    bool busy = false;                        // somebody writes it, or an update has it or is next
    uint64_t room_bytes = 0;                  // of the request's blocks, there or not
    uint64_t bytes = 0;                       // of those whose newest bytes are not there
    std::array<uint64_t, kPlacesMax> from{};  // of these, by the place they would come from
    uint64_t vacant_bytes = 0;                // of blocks without contents that have no room there
};

// What plans have brought to a place, in whole blocks. Each is used, wasted, or still there.
struct PlannedBlocks {
    uint64_t brought = 0;
    uint64_t used = 0;
    uint64_t wasted = 0;  // left, or were overwritten, before anybody had used them
};

struct PlaceUsage {
    uint64_t budget_blocks = 0;
    uint64_t used_blocks = 0;
    uint64_t peak_blocks = 0;
    uint64_t pinned_blocks = 0;
    uint64_t dirty_blocks = 0;
    uint64_t promised_blocks = 0;
    uint64_t evictions = 0;
    PlannedBlocks planned;
};

}  // namespace stepwell::residency
