// SPDX-License-Identifier: Apache-2.0
// Serves faults: finds the tensor, fetches it, keeps the view. A fault that waits for a view of
// another thread must not delay a fault of that thread, so each is served on a thread of its own.
#include "lib/runtime/calls/faults.h"

#include "lib/residency/core.h"
#include "lib/runtime/addresses/addresses.h"
#include "lib/runtime/calls/fetches.h"
#include "lib/runtime/dispatch/waiter.h"
#include "lib/runtime/machine/touches.h"
#include "lib/runtime/recording/grounds.h"
#include "lib/runtime/recording/recorder.h"
#include "lib/runtime/views/ends.h"
#include "lib/runtime/views/sleepers.h"
#include "lib/support/fault_handler.h"
#include "lib/support/signals.h"
#include "lib/update/pipeline.h"

#include <algorithm>
#include <cstring>
#include <system_error>
#include <utility>

namespace stepwell {

using residency::PlaceId;

namespace {

// The thread that faults copies from or to this tensor, if any.
class CopyWaits {
public:
    CopyWaits(Dispatcher &dispatch, Touches &touches, residency::TensorId tensor)
        : dispatch_(dispatch), touches_(touches), tensor_(tensor)
    {
        if (tensor_ == residency::kNone) return;
        const MutexLock lock(dispatch_.mutex());
        touches_.copies_waiting.push_back(tensor_);
    }
    CopyWaits(const CopyWaits &) = delete;
    CopyWaits &operator=(const CopyWaits &) = delete;
    ~CopyWaits()
    {
        if (tensor_ == residency::kNone) return;
        const MutexLock lock(dispatch_.mutex());
        std::vector<residency::TensorId> &waiting = touches_.copies_waiting;
        waiting.erase(std::find(waiting.begin(), waiting.end(), tensor_));
    }

private:
    Dispatcher &dispatch_;
    Touches &touches_;
    const residency::TensorId tensor_;
};

}  // namespace

bool Faults::show_block(PlaceId place, residency::Slot slot, residency::PackId pack, uint32_t index,
                        bool writable)
{
    const memory::Tier &at = machine_.tiers[place];
    char *address =
        static_cast<char *>(addresses_.of_pack(pack).at[place]) + index * machine_.block_bytes;
    return at.ops->map_as(at.memory, slot, address, writable) == STW_OK;
}

void Faults::hide_block(PlaceId place, residency::Slot slot)
{
    const memory::Tier &at = machine_.tiers[place];
    (void)at.ops->home(at.memory, slot);
}

bool Faults::awaits_verdict(residency::TensorId tensor) const
{
    return machine_.pipeline->verdict_from(tensor, true).has_value();
}

// The unused rest of the last block counts as the tensor's.
stw_tensor *Faults::tensor_at(uintptr_t address, PlaceId *place_out)
{
    stw_tensor *nearest = nullptr;
    uintptr_t begin = 0;
    for (stw_tensor *tensor = handles_.first(); tensor; tensor = tensor->notes.next) {
        const PackAddresses &pack = addresses_.of_pack(dispatch_.core.pack_of(tensor->id));
        for (PlaceId place = 0; place < machine_.tiers.host(); ++place) {
            const auto whole = reinterpret_cast<uintptr_t>(pack.at[place]);
            const auto own = reinterpret_cast<uintptr_t>(tensor->addresses[place]);
            const bool inside = own != 0 && own <= address &&
                                address - whole < pack.blocks * machine_.block_bytes && own > begin;
            if (!inside) continue;
            nearest = tensor;
            begin = own;
            *place_out = place;
        }
    }
    return nearest;
}

Status Faults::serve(const MemoryFault &fault)
try {
    RequestedRange range;
    residency::BlockId touched = residency::kNone;
    bool writes = fault.writes;
    {
        const MutexLock lock(dispatch_.mutex());
        range.tensor = tensor_at(fault.address, &range.place);
        if (!range.tensor) {
            return Status::error(STW_ERROR_INVALID,
                                 "address 0x%llx was accessed and belongs to no tensor any more",
                                 static_cast<unsigned long long>(fault.address));
        }
        const auto own = reinterpret_cast<uintptr_t>(range.tensor->addresses[range.place]);
        const residency::TensorBlocks blocks = dispatch_.core.blocks_of(range.tensor->id);
        touched = static_cast<residency::BlockId>(
            blocks.first + (blocks.offset + (fault.address - own)) / machine_.block_bytes);
        // On processors that do not report it: a fault on a readable block is a write.
        writes |= !FaultWatch::kSaysWrites && dispatch_.core.is_mapped(touched, range.place);
        TensorNotes &notes = range.tensor->notes;
        ++(writes ? notes.write_touches : notes.read_touches);
    }
    range.access = writes ? STW_READ_WRITE : STW_READ;
    range.element_begin = range.tensor->shard_begin;
    range.element_count = range.tensor->elements;
    range.byte_count = range.tensor->bytes;
    Status status;
    if (const uint32_t repeats = machine_.touches->repeats(fault)) {
        const MutexLock lock(dispatch_.mutex());
        status = Status::error(
            STW_ERROR_BUDGET,
            "the instruction at 0x%llx has asked for it %u times in a second and uses other "
            "memory as well, and the budget of %s holds either, not both; raise it, or copy with "
            "stw_tensor_read and stw_tensor_write",
            static_cast<unsigned long long>(fault.instruction), repeats,
            bytes_text(dispatch_.core.budget_bytes(range.place)).c_str());
    } else if (range.tensor->flags & STW_TENSOR_NO_ADDRESS) {
        status = Status::error(STW_ERROR_INVALID, "it has STW_TENSOR_NO_ADDRESS");
    } else if (writes && (range.tensor->flags & STW_TENSOR_READ_ONLY) != 0) {
        status = Status::error(STW_ERROR_INVALID, "it is read-only");
    } else {
        // An interrupt ends calls: here there is none to return from.
        residency::Instant begin = 0;
        const CopyWaits waits(dispatch_, *machine_.touches, views_.copied_by(fault.thread));
        do {
            begin = dispatch_.now();
            status = fetch_or_fill(range, touched, views_.number_of(fault.thread));
        } while (status.code() == STW_ERROR_INTERRUPTED && interrupted_since(begin));
    }
    if (status.ok()) return status;
    status = Status::error(status.code(),
                           "tensor '%s' was %s at its address 0x%llx without a view, and cannot "
                           "be fetched for that: %s",
                           range.tensor->name.c_str(), writes ? "written" : "read",
                           static_cast<unsigned long long>(fault.address), status.sentence());
    dispatch_.act([&](Core &, Commands &)
                      STW_REQUIRES(runtime_lock) { errors_.add(range.tensor->id, status); });
    return status;
} catch (const std::bad_alloc &) {
    return Status::error(STW_ERROR_MEMORY, "no memory to serve an access without a view");
}

// A fault of another thread may wait for the thread's verdict, or for its view of the tensor.
bool Faults::is_waited_for(uint32_t owner, const stw_tensor *tensor)
{
    const MutexLock lock(dispatch_.mutex());
    const std::vector<const stw_tensor *> viewed = sleepers_.viewed_by(owner);
    return (owner != 0 && machine_.pipeline->verdict_from(tensor->id) == owner) ||
           std::find(viewed.begin(), viewed.end(), tensor) != viewed.end();
}

// What a claim has concealed stays so until the view ends.
bool Faults::is_shown(const RequestedRange &range)
{
    const MutexLock lock(dispatch_.mutex());
    const residency::TensorBlocks blocks = dispatch_.core.blocks_of(range.tensor->id);
    for (residency::BlockId block = blocks.first; block < blocks.first + blocks.count; ++block) {
        if (!dispatch_.core.is_mapped(block, range.place)) return false;
    }
    return true;
}

// A speculative update is read before its verdict, which this thread may have to give.
Status Faults::fetch_touched(const RequestedRange &range, residency::BlockId touched,
                             uint32_t owner)
{
    std::vector<stw_view> weaker;
    if (machine_.touches->has(range.tensor, range.access != STW_READ, is_shown(range), &weaker))
        return {};
    if (!weaker.empty()) (void)ends_.release(weaker.data(), 1, STW_STREAM_SYNCED, {});
    FetchPlan plan;
    plan.ranges.push_back(range);
    plan.owner = owner;
    plan.flags = STW_FETCH_HAND_OVER | STW_FETCH_WAIT_ROOM;  // no call that a refusal returns from
    if (range.access == STW_READ) plan.flags |= STW_FETCH_SPECULATED;
    plan.touched = touched;  // the program may write to memory while it holds a READ view of it
    stw_view view{};
    residency::FetchId before = 0;
    residency::ClaimId claim = 0;
    {
        const MutexLock lock(dispatch_.mutex());
        plan.step = recorder_.step_of_thread(owner);  // a wait for its own view would never end
        before = dispatch_.core.last_fetch();
        claim = dispatch_.core.claimed_by(range.tensor->id);
    }
    Status status = fetches_.fetch(std::move(plan), &view);
    // A view of the program shows it, and may last until this access has been made.
    if (status.code() == STW_ERROR_EXISTS) return {};
    STW_TRY(std::move(status));
    views_.slot(ViewTable::index_of(view.cookie)).step = 0;  // not of a step of the program
    machine_.touches->keep(view);
    // Whatever began to wait since `before` could not end this view, so end it here. An older fetch
    // waits for a view of the program; ending this view for it would only make the fault come
    // again. A thread in wait_progress() is woken by this event, and ends the view if its condition
    // does not hold yet.
    dispatch_.act([&](Core &core, Commands &) STW_REQUIRES(runtime_lock) {
        const residency::TensorId id = range.tensor->id;
        const bool claimed = core.claimed_by(id) != 0 && core.claimed_by(id) != claim;
        if (claimed || core.is_awaited(id, before)) dispatch_.give_way_soon();
    });
    return {};
}

bool Faults::interrupted_since(residency::Instant begin)
{
    const MutexLock lock(dispatch_.mutex());
    return !dispatch_.interrupted_since(begin).ok();
}

bool Faults::shows(const RequestedRange &range, residency::BlockId touched)
{
    const MutexLock lock(dispatch_.mutex());
    return dispatch_.core.shows(touched, range.place, range.access != STW_READ);
}

// The first write to an empty tensor; the rest of it must not show bytes of another one. The zeros
// are for the first of several threads that write: the others come after it, and find contents. A
// fault behind another one ends early when a view shows its block, for which the other may wait.
Status Faults::fetch_or_fill(const RequestedRange &range, residency::BlockId touched,
                             uint32_t owner)
{
    constexpr uint64_t kLookNs = 1'000'000;
    Touches::Turn turn(*machine_.touches);
    const bool waits = !is_waited_for(owner, range.tensor);
    while (waits && !turn.take(range.tensor, kLookNs)) {
        if (shows(range, touched)) return {};
    }
    Status status = fetch_touched(range, touched, owner);
    if (status.code() != STW_ERROR_EMPTY || range.access == STW_READ) return status;
    STW_TRY(machine_.pipeline->zero(range.tensor->id, range.tensor->bytes));
    return fetch_touched(range, touched, owner);
}

void Faults::give_way()
{
    if (!machine_.touches) return;
    if (machine_.touches->any()) end_views(residency::kNever);
    machine_.touches->await_released();
}

void Faults::end_views(residency::Instant kept_until)
{
    std::vector<stw_view> views = machine_.touches->take(kept_until);
    const auto n = static_cast<uint32_t>(views.size());
    if (n > 0) (void)ends_.release(views.data(), n, STW_STREAM_SYNCED, {});
    machine_.touches->released();
}

// A fetch that waits for room may go on waiting when they have ended, for other views: an access is
// made again before its view ends for that, or it would fault for ever.
void Faults::unlocked()
{
    if (!machine_.touches) return;
    if (dispatch_.gives_way_now()) return dispatch_.give_way();
    if (!dispatch_.has_stuck_fetch() || !machine_.touches->any()) return;
    const residency::Instant oldest = machine_.touches->oldest();
    const residency::Instant now = dispatch_.now();
    if (oldest != residency::kNever && oldest + Touches::kLeastNs <= now)
        end_views(now - Touches::kLeastNs);
    MutexLock lock(dispatch_.mutex());
    dispatch_.arm_timer(due());
}

residency::Instant Faults::due() const
{
    if (!machine_.touches || !dispatch_.has_stuck_fetch()) return residency::kNever;
    const residency::Instant oldest = machine_.touches->oldest();
    return oldest == residency::kNever ? oldest : oldest + Touches::kLeastNs;
}

}  // namespace stepwell
