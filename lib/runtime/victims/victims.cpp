// SPDX-License-Identifier: Apache-2.0
// The program's victim policy: when it is called, its snapshots of tensors, and its scores. The
// policy's thread takes the lock for a part of the snapshot or of the scores at a time, and holds
// none while it calls the program.
#include "lib/runtime/victims/victims.h"

#include "lib/residency/core.h"
#include "lib/runtime/addresses/metadata.h"
#include "lib/runtime/recording/grounds.h"
#include "lib/runtime/recording/recorder.h"
#include "lib/runtime/victims/scoring.h"
#include "lib/support/thread.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <new>

namespace stepwell {
namespace {

using residency::PlaceId;

constexpr uint64_t kPartWork = 4096;      // blocks and tensors handled in one hold of the lock
constexpr uint32_t kEvictedShare = 8;     // scores are renewed after 1/8 of a place left
constexpr uint64_t kPauseFactor = 7;      // pause, in times of holding the lock: 1/8 at most
constexpr uint64_t kScoreNodeBytes = 16;  // overhead of an allocation

}  // namespace

bool ProgramVictims::has_policy() const
{
    return scoring && scoring->policy.rank;
}

// A tensor's part of metadata_bytes while a policy is set: its entry in the snapshot, in vectors
// that double, and in the order of each tier.
uint64_t ProgramVictims::policy_bytes(uint64_t tensors) const
{
    constexpr uint64_t kEntry =
        sizeof(stw_victim) + sizeof(VictimTable::Named) + sizeof(double) + sizeof(residency::Score);
    return tensors *
           (2 * kEntry + (machine_.tiers.host() + 1) * (residency::kRankBytes + kScoreNodeBytes));
}

Status ProgramVictims::check_policy_room() const
{
    const uint64_t needed = policy_bytes(dispatch_.core.tensor_ids());
    const uint64_t free =
        metadata_.metadata_budget - std::min(metadata_.metadata_budget, metadata_.metadata_taken());
    if (needed <= free) return {};
    Status status = Status::error(
        STW_ERROR_BUDGET,
        "snapshots of %u tensors for a victim policy have no room: %s needed; metadata_bytes %s; "
        "raise it when opening the runtime, or make fewer and larger tensors",
        dispatch_.core.tensor_ids(), bytes_text(needed).c_str(), metadata_.metadata_text().c_str());
    status.mutable_detail().needed_bytes = needed;
    status.mutable_detail().free_bytes = free;
    return status;
}

// Blocks until no call is under way. An interrupt does not end the wait of a close.
Status ProgramVictims::await_policy(uint64_t timeout_ns, bool closes)
{
    if (scoring->thread.get_id() == std::this_thread::get_id()) {
        return Status::error(STW_ERROR_BUSY,
                             "a victim policy can neither replace itself nor close its runtime: "
                             "the call would wait for itself");
    }
    const residency::Instant begin = dispatch_.now();
    while (scoring->calling) {
        if (!closes) STW_TRY(dispatch_.interrupted_since(begin));
        if (dispatch_.wait_progress(dispatch_.deadline(begin, timeout_ns))) continue;
        return Status::error(STW_ERROR_TIMEOUT,
                             "the victim policy's rank has not returned within %.3f s; nothing "
                             "was changed. Call again when it has",
                             static_cast<double>(dispatch_.timeout(timeout_ns)) * 1e-9);
    }
    return {};
}

Status ProgramVictims::set_victim_policy(const stw_victim_policy *policy, uint64_t timeout_ns)
{
    MutexLock lock(dispatch_.mutex());
    if (!scoring && !policy) return {};
    if (!scoring) scoring = std::make_unique<Scoring>();
    ++scoring->changers;
    Status status = await_policy(timeout_ns, false);
    if (status.ok() && policy && !scoring->policy.rank) status = check_policy_room();
    if (status.ok() && policy && !scoring->started) status = start_policy_thread();
    --scoring->changers;
    if (status.ok()) {
        scoring->policy = policy ? *policy : stw_victim_policy{};
        ++scoring->turn;
        scoring->told_nan = false;
        scoring->not_before = 0;
        if (!policy) scoring->table = {};
        dispatch_.core.forget_scores();
        ask_policy();
    }
    scoring->wake.notify_all();
    return status;
}

Status ProgramVictims::start_policy_thread()
{
    STW_TRY(
        start_thread(scoring->thread, "stw-policy", "the victim policy", [this] { run_policy(); }));
    scoring->started = true;
    return {};
}

// Before a close: the program is not called afterwards.
Status ProgramVictims::end_policy(uint64_t timeout_ns)
{
    std::thread thread;
    {
        MutexLock lock(dispatch_.mutex());
        if (!scoring || !scoring->started) return {};
        ++scoring->changers;
        Status status = await_policy(timeout_ns, true);
        --scoring->changers;
        if (status.ok()) {
            scoring->policy = {};
            scoring->stopping = true;
        }
        scoring->wake.notify_all();
        if (!status.ok()) return status;
        thread = std::move(scoring->thread);
    }
    thread.join();
    MutexLock lock(dispatch_.mutex());
    scoring->started = false;
    return {};
}

// Has all scores renewed.
void ProgramVictims::ask_policy()
{
    if (!has_policy()) return;
    for (PlaceId place = 0; place <= machine_.tiers.host(); ++place) {
        if (machine_.tiers[place].memory) scoring->due |= 1u << place;
    }
    scoring->wake.notify_all();
}

// After every event: renews the scores of a place after many evictions.
void ProgramVictims::note_departures()
{
    if (!has_policy()) return;
    for (PlaceId place = 0; place <= machine_.tiers.host(); ++place) {
        const uint64_t left = dispatch_.core.evictions(place) - scoring->evictions[place];
        if (left == 0 || (scoring->due & (1u << place)) != 0) continue;
        if (left < dispatch_.core.slots(place) / kEvictedShare) continue;
        scoring->due |= 1u << place;
        scoring->wake.notify_all();
    }
}

// False if the runtime closes.
bool ProgramVictims::await_scoring()
{
    for (;;) {
        if (scoring->stopping) return false;
        const bool wanted = scoring->policy.rank && scoring->due != 0 && scoring->changers == 0;
        const residency::Instant time = dispatch_.now();
        if (wanted && time >= scoring->not_before) return true;
        if (wanted) {
            (void)scoring->wake.wait_until(dispatch_.mutex(), scoring->not_before);
        } else {
            scoring->wake.wait(dispatch_.mutex());
        }
    }
}

void ProgramVictims::run_policy()
{
    MutexLock lock(dispatch_.mutex());
    while (await_scoring()) {
        const auto place = static_cast<PlaceId>(std::countr_zero(scoring->due));
        scoring->due &= ~(1u << place);
        scoring->evictions[place] = dispatch_.core.evictions(place);
        scoring->calling = true;
        try {
            score_place(place);
        } catch (const std::bad_alloc &) {
            const MutexUnlock unlocked(dispatch_.mutex());
            dispatch_.log.print(
                STW_LOG_WARNING, "policy",
                "no memory for a snapshot for the victim policy; its last scores stand");
        }
        scoring->calling = false;
        dispatch_.note_progress();
    }
}

void ProgramVictims::score_place(PlaceId place)
{
    const stw_victim_policy policy = scoring->policy;
    const uint64_t turn = scoring->turn;
    VictimTable &table = scoring->table;
    residency::Instant held = take_snapshot(place, policy.victim_bytes);
    const auto n = static_cast<uint32_t>(table.named.size());
    table.answers.assign(n, 0.0);
    if (n > 0) {
        const MutexUnlock unlocked(dispatch_.mutex());
        const auto *victims = reinterpret_cast<const stw_victim *>(table.victims.data());
        policy.rank(policy.user, static_cast<uint32_t>(machine_.tiers[place].kind),
                    machine_.tiers[place].device, victims, n, table.answers.data());
    }
    const uint64_t nans =
        static_cast<uint64_t>(std::count_if(table.answers.begin(), table.answers.end(),
                                            [](double answer) { return std::isnan(answer); }));
    if (nans > 0 && !std::exchange(scoring->told_nan, true)) {
        const MutexUnlock unlocked(dispatch_.mutex());
        dispatch_.log.print(
            STW_LOG_WARNING, "policy",
            "the victim policy gave %llu of %u tensors a score that is not a number; "
            "they count as 0. This is logged once for each policy",
            static_cast<unsigned long long>(nans), n);
    }
    if (turn != scoring->turn || n == 0) return;
    held += apply_scores(place);
    scoring->unscored += nans;
    ++scoring->calls[place];
    scoring->not_before = dispatch_.now() + kPauseFactor * held;
}

// Returns the time for which the lock was held.
residency::Instant ProgramVictims::take_snapshot(PlaceId place, uint32_t victim_bytes)
{
    VictimTable &table = scoring->table;
    table.named.clear();
    table.victims.clear();
    residency::Instant held = 0;
    recorder_.drain_hits();
    for (residency::PackId next = 0;;) {
        const residency::Instant begin = dispatch_.now();
        table.found.clear();
        next = dispatch_.core.candidates(place, next, kPartWork, &table.found);
        for (const residency::Candidate &candidate : table.found) {
            show(candidate, victim_bytes, table);
        }
        held += dispatch_.now() - begin;
        if (next == residency::kNone) return held;
        const MutexUnlock unlocked(dispatch_.mutex());
        std::this_thread::yield();
    }
}

void ProgramVictims::show(const residency::Candidate &candidate, uint32_t victim_bytes,
                          VictimTable &table)
{
    stw_tensor *tensor = handles_.at(candidate.tensor);
    if (!tensor) return;  // a tensor of the library
    const TensorNotes &notes = tensor->notes;
    const residency::Policy &rules = dispatch_.core.spec(candidate.tensor).policy;
    stw_victim victim{};
    victim.tensor = tensor;
    victim.bytes = candidate.bytes;
    victim.dirty_bytes = candidate.dirty_bytes;
    victim.last_use =
        notes.last_use == 0 ? residency::kNever : recorder_.accesses() - notes.last_use;
    victim.next_use = candidate.next_use;
    victim.role = tensor->role;
    victim.retention = static_cast<uint32_t>(rules.retention);
    victim.priority = rules.priority;
    victim.flags = (candidate.pinned ? uint32_t{STW_VICTIM_PINNED} : 0) |
                   (candidate.shares ? uint32_t{STW_VICTIM_SHARED} : 0);
    const size_t at = table.victims.size();
    table.victims.resize(at + victim_bytes);
    std::memcpy(table.victims.data() + at, &victim, std::min<size_t>(victim_bytes, sizeof victim));
    table.named.push_back({candidate.tensor, notes.serial});
}

// Skips tensors that were destroyed meanwhile. Those that share a block are scored in one part.
residency::Instant ProgramVictims::apply_scores(PlaceId place)
{
    VictimTable &table = scoring->table;
    residency::Instant held = 0;
    for (size_t i = 0; i < table.named.size();) {
        const residency::Instant begin = dispatch_.now();
        table.scores.clear();
        residency::PackId pack = residency::kNone;
        for (; i < table.named.size(); ++i) {
            const VictimTable::Named &named = table.named[i];
            const stw_tensor *tensor = handles_.at(named.id);
            if (!tensor || tensor->notes.serial != named.serial) continue;
            const residency::PackId own = dispatch_.core.pack_of(named.id);
            if (own != pack && table.scores.size() >= kPartWork) break;
            pack = own;
            const double answer = table.answers[i];
            table.scores.push_back({named.id, std::isnan(answer) ? 0.0 : answer});
        }
        dispatch_.core.score(place, table.scores.data(), table.scores.size());
        scoring->scored[place] += table.scores.size();
        held += dispatch_.now() - begin;
        const MutexUnlock unlocked(dispatch_.mutex());
        std::this_thread::yield();
    }
    return held;
}

void ProgramVictims::after_round(residency::Instant, Commands &)
{
    note_departures();
}

uint64_t ProgramVictims::metadata_bytes() const
{
    return tensor_bytes(dispatch_.core.tensor_ids(), false);
}

uint64_t ProgramVictims::tensor_bytes(uint64_t tensors, bool at_most) const
{
    return at_most || has_policy() ? policy_bytes(tensors) : 0;
}

}  // namespace stepwell
