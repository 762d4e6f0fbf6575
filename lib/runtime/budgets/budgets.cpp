// SPDX-License-Identifier: Apache-2.0
// Live budgets: what is evicted, what drivers decommit and recommit, and what is undone on
// failure. One change at a time; memory always follows the core's decisions.
#include "lib/runtime/budgets/budgets.h"

#include "lib/memory/host_pins.h"
#include "lib/memory/scratch.h"
#include "lib/report/report.h"
#include "lib/residency/core.h"
#include "lib/runtime/addresses/sink.h"
#include "lib/runtime/copies/snapshots.h"
#include "lib/runtime/group/state.h"
#include "lib/runtime/machine/touches.h"
#include "lib/runtime/planning/pause.h"
#include "lib/runtime/recording/grounds.h"
#include "lib/runtime/recording/recorder.h"
#include "lib/runtime/restored/durable.h"
#include "lib/runtime/restored/restored.h"
#include "lib/runtime/tensors/placement.h"
#include "lib/runtime/updates/body.h"
#include "lib/runtime/updates/tiers.h"
#include "lib/transfer/engine.h"

#include <algorithm>
#include <set>

namespace stepwell {
namespace {

using residency::PlaceId;
using residency::Slot;

constexpr uint32_t kSlotsAtOnce = 16;  // decommitted or recommitted under one hold of the lock

// Calls `body(first, count)` for each run of consecutive slots.
template <class Body> stw_status each_run(std::vector<Slot> slots, Body &&body)
{
    std::sort(slots.begin(), slots.end());
    for (size_t i = 0; i < slots.size();) {
        size_t end = i + 1;
        while (end < slots.size() && slots[end] == slots[end - 1] + 1) ++end;
        const stw_status status = body(slots[i], static_cast<uint32_t>(end - i));
        if (status != STW_OK) return status;
        i = end;
    }
    return STW_OK;
}

}  // namespace

// Whether another tier has room for a chunk of an update that was accepted.
bool Budgets::others_work(PlaceId place) const
{
    for (PlaceId other = 0; other <= machine_.tiers.host(); ++other) {
        if (other == place || !machine_.tiers[other].memory || !machine_.tiers[other].cpu_access)
            continue;
        if (dispatch_.core.budget_blocks(other) >= update::kPiecesNeeded) return true;
    }
    return false;
}

// Rounds as at open; staging is part of a tier's budget.
Status Budgets::blocks_of_budget(PlaceId place, uint64_t bytes, uint32_t *blocks_out) const
{
    // Staging and scratch memory of the host tier are outside the core's budget.
    const uint64_t scratch_bytes = machine_.scratch ? machine_.scratch->usage().bytes : 0;
    const uint64_t kept_bytes =
        machine_.tiers.is_host(place) ? machine_.staging_bytes + scratch_bytes : 0;
    const uint64_t kept = kept_bytes / machine_.block_bytes;
    const uint64_t blocks = bytes / machine_.block_bytes;
    const uint64_t most = dispatch_.core.slots(place) + kept;
    const memory::Tier &at = machine_.tiers[place];
    if (!machine_.tiers.is_nvme(place) && !at.shrinks) {
        const bool says_why = at.streams && !at.remark.empty();
        return Status::error(STW_ERROR_UNSUPPORTED,
                             "the driver '%s' of %s cannot give memory back, so its budget stays "
                             "what it was at open%s%s",
                             at.driver.c_str(), dispatch_.core.place_name(place).c_str(),
                             says_why ? ": " : "", says_why ? at.remark.c_str() : "");
    }
    if (blocks > most) {
        Status status = Status::error(
            STW_ERROR_LIMIT,
            "%s was opened with %s and cannot grow to %s; open the runtime with the most that it "
            "may ever have, and lower the budget afterwards",
            dispatch_.core.place_name(place).c_str(),
            bytes_text(most * machine_.block_bytes).c_str(), bytes_text(bytes).c_str());
        status.mutable_detail().needed_bytes = bytes;
        status.mutable_detail().free_bytes = most * machine_.block_bytes;
        return status;
    }
    const bool works =
        !machine_.tiers.is_nvme(place) && machine_.tiers[place].cpu_access && !others_work(place);
    const uint64_t floor = std::min<uint64_t>(most, kept + (works ? update::kPiecesNeeded : 0u));
    const bool nothing = blocks == 0 && kept == 0;
    if (blocks < floor && !nothing) {
        return Status::error(
            STW_ERROR_BUDGET,
            "%s cannot do with %s: it needs %s, as an update works on up to %u blocks of %s at a "
            "time; leave it that%s",
            dispatch_.core.place_name(place).c_str(), bytes_text(bytes).c_str(),
            sum_text({{kept * machine_.block_bytes, "for staging and scratch"},
                      {(floor - kept) * machine_.block_bytes, "to work in"}})
                .c_str(),
            update::kPiecesNeeded, bytes_text(machine_.block_bytes).c_str(),
            kept == 0 ? ", or nothing" : "");
    }
    *blocks_out = static_cast<uint32_t>(blocks - (nothing ? 0 : kept));
    return {};
}

Status Budgets::set_budget(PlaceId place, uint64_t bytes, uint64_t timeout_ns)
{
    dispatch_.give_way();
    if (machine_.ranks && place == machine_.ranks->place) {
        return Status::error(STW_ERROR_UNSUPPORTED,
                             "a part of the %s tier's budget is agreed between the ranks of the "
                             "group, for gathered tensors; it cannot change while they are open",
                             report::tier_name(static_cast<uint32_t>(machine_.tiers[place].kind)));
    }
    if (restored_.durable && machine_.tiers.is_nvme(place)) {
        return Status::error(STW_ERROR_UNSUPPORTED,
                             "the nvme tier keeps the store '%s', whose files have the size that "
                             "they were made with; open another store with another budget",
                             restored_.durable->name.c_str());
    }
    const PlanPause pause(prefetcher_);
    BudgetChange change;
    change.place = place;
    change.begin = dispatch_.now();
    change.deadline = dispatch_.deadline(change.begin, timeout_ns);
    {
        MutexLock lock(dispatch_.mutex());
        while (budget_changes_) STW_TRY(wait_for_budget(change, "another change of a budget"));
        STW_TRY(blocks_of_budget(place, bytes, &change.after));
        budget_changes_ = true;
        change.before = static_cast<uint32_t>(dispatch_.core.budget_blocks(place));
        placement_.update_blocks[place] = std::min(change.before, change.after);
    }
    Status status = change.after < change.before ? shrink(change) : grow(change);
    MutexLock lock(dispatch_.mutex());
    budget_changes_ = false;
    placement_.update_blocks[place] = dispatch_.core.budget_blocks(place);
    dispatch_.note_progress();
    if (!status.ok()) return status;
    machine_.pipeline->set_window(residency::kAnyCpuPlace, placement_.update_window());
    for (const update::WindowOptions &window : placement_.device_windows()) {
        machine_.pipeline->set_window(window.place, window.bytes);
    }
    return status;
}

// Blocks until progress is made.
Status Budgets::wait_for_budget(const BudgetChange &change, const char *what)
{
    STW_TRY(dispatch_.interrupted_since(change.begin));
    if (dispatch_.wait_progress(change.deadline)) return {};
    return Status::error(
        STW_ERROR_TIMEOUT,
        "%s still waited for %s when the timeout passed; its budget is what it was",
        dispatch_.core.place_name(change.place).c_str(), what);
}

Status Budgets::shrink(const BudgetChange &change)
{
    STW_TRY(wait_for_claims(change));
    Status refused;
    dispatch_.act([&](Core &core, Commands &) STW_REQUIRES(runtime_lock) {
        recorder_.drain_hits();
        refused = core.may_shrink(change.place, change.after);
        if (refused.ok()) refused = check_undo(change);
    });
    STW_TRY(std::move(refused));
    Status status = empty_down_to(change);
    if (status.ok() && machine_.tiers.is_nvme(change.place)) status = shrink_store(change);
    dispatch_.act([&](Core &core, Commands &out) STW_REQUIRES(runtime_lock) {
        if (status.ok()) status = check_undo(change);  // early steps have gone on meanwhile
        core.set_budget(change.place, status.ok() ? change.after : change.before, out);
    });
    if (status.ok() && !machine_.tiers.is_nvme(change.place)) status = give_memory_back(change);
    return status;
}

// Updates, sums and copies that were accepted need room for their pieces: at a tier where the CPU
// works, if no other tier has it, and at a device that computes.
Status Budgets::wait_for_claims(const BudgetChange &change)
{
    if (machine_.tiers.is_nvme(change.place)) return {};
    const memory::Tier &at = machine_.tiers[change.place];
    MutexLock lock(dispatch_.mutex());
    const bool few = change.after < update::kPiecesNeeded;
    const bool works = at.cpu_access && !others_work(change.place);
    const bool last = works && change.after == 0;
    if (!few || (!works && !at.computes)) return {};
    for (uint32_t index = 0; last && index < views_.slots_used(); ++index) {
        if (!views_.is_open(index)) continue;
        const ViewSlot &view = views_.slot(index);
        if (view.scratch == residency::kNone || view.access != STW_REDUCE) continue;
        return Status::error(STW_ERROR_BUSY,
                             "%s has a view open to be summed, which needs room in %s; "
                             "release it first",
                             tensor_text(view.tensor->name).c_str(),
                             dispatch_.core.place_name(change.place).c_str());
    }
    STW_TRY(check_undo(change));
    while (works_on_tensors() || !snapshots_.under_way.empty()) {
        STW_TRY(wait_for_budget(change, "updates, sums or copies"));
    }
    return {};
}

// Updates that wait for their verdict do not count: this thread may be the one to give it.
bool Budgets::works_on_tensors() const
{
    return dispatch_.core.has_claims(
        [this](residency::ClaimId claim) { return !machine_.pipeline->is_parked(claim); });
}

// A parameter that was updated before its verdict keeps the room that setting it back takes.
Status Budgets::check_undo(const BudgetChange &change) const
{
    const uint32_t tensors = machine_.pipeline->tensors_to_undo();
    if (tensors == 0) return {};
    std::vector<uint64_t> rooms;
    for (PlaceId place = 0; place <= machine_.tiers.host(); ++place) {
        const bool changes = place == change.place;
        rooms.push_back(changes ? change.after : dispatch_.core.budget_blocks(place));
    }
    if (may_undo(machine_.tiers, rooms, tensors, tensors)) return {};
    return Status::error(STW_ERROR_BUSY,
                         "%s cannot shrink to %u blocks of %s before the verdict of speculative "
                         "updates, as setting one back takes %u at once; take a step without "
                         "STW_UPDATE_SPECULATE first, or one with STW_UPDATE_REJECT",
                         dispatch_.core.place_name(change.place).c_str(), change.after,
                         bytes_text(machine_.block_bytes).c_str(), 2 * tensors + 1);
}

Status Budgets::empty_down_to(const BudgetChange &change)
{
    Touches::Patience patience(machine_.touches.get(), change.deadline);
    for (;;) {
        uint64_t left = 0;
        uint64_t seen = 0;
        bool moves = false;
        Status refusal;
        dispatch_.act([&](Core &core, Commands &out) STW_REQUIRES(runtime_lock) {
            left = core.shrink(change.place, change.after, out);
            moves = core.transfers_in_flight() > 0 || works_on_tensors();
            seen = dispatch_.progress() + 1;  // this event counts as progress
            if (left > 0 && !moves) refusal = core.shrink_refusal(change.place, change.after);
        });
        if (left == 0) return {};
        if (moves) patience.begin_anew();
        if (!moves && patience.clear_way()) continue;
        if (!moves) return refusal;
        MutexLock lock(dispatch_.mutex());
        while (dispatch_.progress() == seen) STW_TRY(wait_for_budget(change, "blocks to leave it"));
    }
}

Status Budgets::shrink_store(const BudgetChange &change)
{
    store::Store &store = *machine_.engine->store();
    for (;;) {
        uint64_t seen = 0;
        uint64_t out_of_use = 0;
        {
            MutexLock lock(dispatch_.mutex());
            seen = dispatch_.progress();
            out_of_use = dispatch_.core.slots(machine_.tiers.nvme()) - change.after;
        }
        Status status = store.shrink(out_of_use - store.resting_slots());
        if (status.code() != STW_ERROR_BUSY) return status;
        MutexLock lock(dispatch_.mutex());
        while (dispatch_.progress() == seen) STW_TRY(wait_for_budget(change, "writes to end"));
    }
}

// Without the lock, since it waits for copies. A guess of the slots that are decommitted next,
// which is nearly always right.
void Budgets::unpin_before(const BudgetChange &change)
{
    if (!machine_.tiers.is_host(change.place) || !machine_.pins) return;
    std::vector<Slot> slots;
    dispatch_.act([&](Core &core, Commands &) STW_REQUIRES(runtime_lock) {
        slots = core.next_bare(change.place, kSlotsAtOnce);
    });
    (void)each_run(std::move(slots), [&](Slot begin, uint32_t count) {
        machine_.pins->release(begin, count);
        return STW_OK;
    });
}

// In batches, so that the lock is never held for long.
Status Budgets::give_memory_back(const BudgetChange &change)
{
    const memory::Tier &place = machine_.tiers[change.place];
    if (place.slot_memory) return give_slots_back(change);
    const memory::HostPins::Pause pause(machine_.pins.get());
    for (bool first = true;; first = false) {
        stw_status code = STW_OK;
        bool done = false;
        unpin_before(change);
        dispatch_.act([&](Core &core, Commands &) STW_REQUIRES(runtime_lock) {
            const std::vector<Slot> slots = core.make_bare(change.place, kSlotsAtOnce);
            done = slots.empty();
            code = each_run(slots, [&](Slot begin, uint32_t count) {
                return sink_.give_back(change.place, begin, count);
            });
        });
        if (done) return {};
        if (code == STW_OK) continue;
        if (!first) {
            dispatch_.log.print(STW_LOG_WARNING, "budget",
                                "%s keeps memory that is not in its budget any "
                                "more: driver '%s' says %s",
                                name_of(change.place).c_str(), place.driver.c_str(),
                                stw_status_string(code));
            continue;
        }
        BudgetChange back = change;
        std::swap(back.before, back.after);
        (void)grow(back);
        return Status::error(code, "the driver '%s' of %s cannot give memory back",
                             place.driver.c_str(), name_of(change.place).c_str());
    }
}

std::string Budgets::name_of(PlaceId place) const
{
    MutexLock lock(dispatch_.mutex());
    return dispatch_.core.place_name(place);
}

Status Budgets::go_on_with(const BudgetChange &change) const
{
    MutexLock lock(dispatch_.mutex());
    STW_TRY(dispatch_.interrupted_since(change.begin));
    if (dispatch_.now() < change.deadline) return {};
    return Status::error(STW_ERROR_TIMEOUT,
                         "%s still waited for work of streams in its blocks when the timeout "
                         "passed; its budget is what it was",
                         dispatch_.core.place_name(change.place).c_str());
}

// On a device with streams: the work on the slots must end first, and is not waited for under the
// lock.
Status Budgets::give_slots_back(const BudgetChange &change)
{
    memory::SlotMemory &memory = *machine_.tiers[change.place].slot_memory;
    dispatch_.act([&](Core &core, Commands &) STW_REQUIRES(runtime_lock) {
        for (const Slot slot : core.make_bare(change.place, core.slots(change.place)))
            memory.give(slot);
    });
    Status status = memory.settle([&] { return go_on_with(change); });
    if (status.ok()) return {};
    // Slots that were not decommitted yet still have their memory, so this does not wait.
    dispatch_.act([&](Core &core, Commands &out) STW_REQUIRES(runtime_lock) {
        const uint32_t backed = core.backed_slots(change.place);
        const uint32_t wanted = change.before - std::min(change.before, backed);
        for (const Slot slot : core.make_backed(change.place, wanted)) memory.take(slot);
        core.set_budget(change.place, change.before, out);
    });
    (void)memory.settle([&] { return go_on_with(change); });
    return status;
}

Status Budgets::take_slots_back(const BudgetChange &change)
{
    memory::SlotMemory &memory = *machine_.tiers[change.place].slot_memory;
    dispatch_.act([&](Core &core, Commands &) STW_REQUIRES(runtime_lock) {
        const uint32_t backed = core.backed_slots(change.place);
        const uint32_t wanted = change.after - std::min(change.after, backed);
        for (const Slot slot : core.make_backed(change.place, wanted)) memory.take(slot);
    });
    Status status = memory.settle([&] { return go_on_with(change); });
    if (status.ok()) return {};
    dispatch_.act(
        [&](Core &core, Commands &) STW_REQUIRES(runtime_lock) {  // restores the old budget
            for (const Slot slot : core.make_bare(change.place, core.slots(change.place)))
                memory.give(slot);
        });
    (void)memory.settle([&] { return go_on_with(change); });
    ErrorDetail &detail = status.mutable_detail();
    detail.sentence = format_text("%s cannot grow to %s: %s", name_of(change.place).c_str(),
                                  bytes_text(change.after * machine_.block_bytes).c_str(),
                                  detail.sentence.c_str());
    return status;
}

Status Budgets::grow(const BudgetChange &change)
{
    Status status;
    if (machine_.tiers.is_nvme(change.place)) {
        if (change.after > change.before) {
            status = machine_.engine->store()->grow(change.after - change.before);
        }
    } else {
        status = take_memory_back(change);
    }
    if (!status.ok()) return status;
    dispatch_.act([&](Core &core, Commands &out) STW_REQUIRES(runtime_lock) {
        core.set_budget(change.place, change.after, out);
    });
    return {};
}

Status Budgets::take_memory_back(const BudgetChange &change)
{
    const memory::Tier &place = machine_.tiers[change.place];
    if (place.slot_memory) return take_slots_back(change);
    for (bool done = false; !done;) {
        stw_status code = STW_OK;
        stw_driver_error error = STW_DRIVER_ERROR_INIT;
        dispatch_.act([&](Core &core, Commands &) STW_REQUIRES(runtime_lock) {
            const uint32_t backed = core.backed_slots(change.place);
            const uint32_t wanted = change.after - std::min(change.after, backed);
            done = wanted == 0;
            const std::vector<Slot> slots =
                core.make_backed(change.place, std::min(wanted, kSlotsAtOnce));
            code = each_run(slots, [&](Slot begin, uint32_t count) {
                return sink_.take_back(change.place, begin, count, &error);
            });
        });
        if (code == STW_OK) continue;
        (void)give_memory_back(change);  // restores the old budget
        Status status =
            Status::error(code, "%s cannot grow to %s: %s", name_of(change.place).c_str(),
                          bytes_text(change.after * machine_.block_bytes).c_str(),
                          error.sentence[0] ? error.sentence : stw_status_string(code));
        status.mutable_detail().os_errno = error.os_errno;
        status.mutable_detail().needed_bytes = error.needed_bytes;
        status.mutable_detail().free_bytes = error.free_bytes;
        return status;
    }
    return {};
}

}  // namespace stepwell
