// SPDX-License-Identifier: Apache-2.0
// A victim policy of the program: when it is asked, what it is shown, and what becomes of its
// scores. Its thread takes the lock for a part of the snapshot or of the scores at a time, and
// holds none while it calls the program.
#include "lib/runtime/scoring.h"
#include "lib/support/signals.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <new>

namespace stepwell {
namespace {

using residency::PlaceId;

constexpr uint64_t kPartWork = 4096;      // blocks and tensors looked at under the lock, in one go
constexpr uint32_t kEvictedShare = 8;     // of a place's blocks: scores are old then
constexpr uint64_t kPauseFactor = 7;      // of the time it held the lock: an eighth of all at most
constexpr uint64_t kScoreNodeBytes = 16;  // of an allocation

}  // namespace

bool Runtime::has_policy() const
{
    return scoring_ && scoring_->policy.rank;
}

// What a tensor takes of metadata_bytes while a policy is set: its entry of the snapshot, in
// vectors that double, and its place in the order of each tier.
uint64_t Runtime::policy_bytes(uint64_t tensors) const
{
    constexpr uint64_t kEntry =
        sizeof(stw_victim) + sizeof(VictimTable::Named) + sizeof(double) + sizeof(residency::Score);
    return tensors * (2 * kEntry + (tiers_.host() + 1) * (residency::kRankBytes + kScoreNodeBytes));
}

Status Runtime::check_policy_room() const
{
    const uint64_t needed = policy_bytes(dispatch_.core.tensor_ids());
    const uint64_t free = metadata_budget_ - std::min(metadata_budget_, metadata_taken());
    if (needed <= free) return {};
    Status status = Status::error(
        STW_ERROR_BUDGET,
        "snapshots of %u tensors for a victim policy have no room: %s needed; metadata_bytes %s; "
        "raise it when opening the runtime, or make fewer and larger tensors",
        dispatch_.core.tensor_ids(), bytes_text(needed).c_str(), metadata_text().c_str());
    status.mutable_detail().needed_bytes = needed;
    status.mutable_detail().free_bytes = free;
    return status;
}

// Under the lock: until no call is under way. A close is not interrupted, as no close is.
Status Runtime::await_policy(uint64_t timeout_ns, bool closes)
{
    if (scoring_->started && pthread_equal(scoring_->thread, pthread_self())) {
        return Status::error(STW_ERROR_BUSY,
                             "a victim policy can neither replace itself nor close its runtime: "
                             "its own call would be waited for");
    }
    const residency::Instant begin = dispatch_.now();
    while (scoring_->calling) {
        if (!closes) STW_TRY(dispatch_.interrupted_since(begin));
        if (dispatch_.wait_progress(begin + dispatch_.timeout(timeout_ns))) continue;
        return Status::error(STW_ERROR_TIMEOUT,
                             "the victim policy's rank has not returned within %.3f s; nothing "
                             "was changed. Call again when it has",
                             static_cast<double>(dispatch_.timeout(timeout_ns)) * 1e-9);
    }
    return {};
}

Status Runtime::set_victim_policy(const stw_victim_policy *policy, uint64_t timeout_ns)
{
    MutexLock lock(dispatch_.mutex());
    if (!scoring_ && !policy) return {};
    if (!scoring_) scoring_ = std::make_unique<Scoring>();
    ++scoring_->changers;
    Status status = await_policy(timeout_ns, false);
    if (status.ok() && policy && !scoring_->policy.rank) status = check_policy_room();
    if (status.ok() && policy && !scoring_->started) status = start_policy_thread();
    --scoring_->changers;
    if (status.ok()) {
        scoring_->policy = policy ? *policy : stw_victim_policy{};
        ++scoring_->turn;
        scoring_->told_nan = false;
        scoring_->not_before = 0;
        if (!policy) scoring_->table = {};
        dispatch_.core.forget_scores();
        ask_policy();
    }
    scoring_->wake.notify_all();
    return status;
}

Status Runtime::start_policy_thread()
{
    const SignalsBlocked signals;
    const auto main = [](void *runtime) -> void * {
        static_cast<Runtime *>(runtime)->run_policy();
        return nullptr;
    };
    const int error = pthread_create(&scoring_->thread, nullptr, main, this);
    if (error != 0) {
        return Status::os_error(STW_ERROR_LIMIT, error,
                                "the system starts no thread for the victim policy");
    }
    pthread_setname_np(scoring_->thread, "stw-policy");
    scoring_->started = true;
    return {};
}

// Before a close: no call of the program's code from here on.
Status Runtime::end_policy(uint64_t timeout_ns)
{
    pthread_t thread{};
    {
        MutexLock lock(dispatch_.mutex());
        if (!scoring_ || !scoring_->started) return {};
        ++scoring_->changers;
        Status status = await_policy(timeout_ns, true);
        --scoring_->changers;
        if (status.ok()) {
            scoring_->policy = {};
            scoring_->stopping = true;
        }
        scoring_->wake.notify_all();
        if (!status.ok()) return status;
        thread = scoring_->thread;
    }
    pthread_join(thread, nullptr);
    MutexLock lock(dispatch_.mutex());
    scoring_->started = false;
    return {};
}

// Under the lock: all scores are worth being renewed.
void Runtime::ask_policy()
{
    if (!has_policy()) return;
    for (PlaceId place = 0; place <= tiers_.host(); ++place) {
        if (tiers_[place].memory) scoring_->due |= 1u << place;
    }
    scoring_->wake.notify_all();
}

// Under the lock, after every event: where so much has left that scores are old.
void Runtime::note_departures()
{
    if (!has_policy()) return;
    for (PlaceId place = 0; place <= tiers_.host(); ++place) {
        const uint64_t left = dispatch_.core.evictions(place) - scoring_->evictions[place];
        if (left == 0 || (scoring_->due & (1u << place)) != 0) continue;
        if (left < dispatch_.core.slots(place) / kEvictedShare) continue;
        scoring_->due |= 1u << place;
        scoring_->wake.notify_all();
    }
}

// False when the runtime closes.
bool Runtime::await_scoring()
{
    for (;;) {
        if (scoring_->stopping) return false;
        const bool wanted = scoring_->policy.rank && scoring_->due != 0 && scoring_->changers == 0;
        const residency::Instant time = dispatch_.now();
        if (wanted && time >= scoring_->not_before) return true;
        if (wanted) {
            (void)scoring_->wake.wait_until(dispatch_.mutex(), scoring_->not_before);
        } else {
            scoring_->wake.wait(dispatch_.mutex());
        }
    }
}

void Runtime::run_policy()
{
    MutexLock lock(dispatch_.mutex());
    while (await_scoring()) {
        const auto place = static_cast<PlaceId>(std::countr_zero(scoring_->due));
        scoring_->due &= ~(1u << place);
        scoring_->evictions[place] = dispatch_.core.evictions(place);
        scoring_->calling = true;
        try {
            score_place(place);
        } catch (const std::bad_alloc &) {
            const MutexUnlock unlocked(dispatch_.mutex());
            dispatch_.log.print(
                STW_LOG_WARNING, "policy",
                "no memory for a snapshot for the victim policy; its last scores stand");
        }
        scoring_->calling = false;
        dispatch_.note_progress();
    }
}

void Runtime::score_place(PlaceId place)
{
    const stw_victim_policy policy = scoring_->policy;
    const uint64_t turn = scoring_->turn;
    VictimTable &table = scoring_->table;
    residency::Instant held = take_snapshot(place, policy.victim_bytes);
    const auto n = static_cast<uint32_t>(table.named.size());
    table.answers.assign(n, 0.0);
    if (n > 0) {
        const MutexUnlock unlocked(dispatch_.mutex());
        const auto *victims = reinterpret_cast<const stw_victim *>(table.victims.data());
        policy.rank(policy.user, static_cast<uint32_t>(tiers_[place].kind), tiers_[place].device,
                    victims, n, table.answers.data());
    }
    const uint64_t nans =
        static_cast<uint64_t>(std::count_if(table.answers.begin(), table.answers.end(),
                                            [](double answer) { return std::isnan(answer); }));
    if (nans > 0 && !std::exchange(scoring_->told_nan, true)) {
        const MutexUnlock unlocked(dispatch_.mutex());
        dispatch_.log.print(
            STW_LOG_WARNING, "policy",
            "the victim policy answered %llu of %u tensors with a score that is not a "
            "number; they count as 0. This is said once per policy",
            static_cast<unsigned long long>(nans), n);
    }
    if (turn != scoring_->turn || n == 0) return;
    held += apply_scores(place);
    scoring_->unscored += nans;
    ++scoring_->calls[place];
    scoring_->not_before = dispatch_.now() + kPauseFactor * held;
}

// Returns how long it held the lock.
residency::Instant Runtime::take_snapshot(PlaceId place, uint32_t victim_bytes)
{
    VictimTable &table = scoring_->table;
    table.named.clear();
    table.victims.clear();
    residency::Instant held = 0;
    drain_hits();
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

void Runtime::show(const residency::Candidate &candidate, uint32_t victim_bytes, VictimTable &table)
{
    stw_tensor *tensor = handles_.at(candidate.tensor);
    if (!tensor) return;  // the library's own
    const TensorNotes &notes = tensor->notes;
    const residency::Policy &rules = dispatch_.core.spec(candidate.tensor).policy;
    stw_victim victim{};
    victim.tensor = tensor;
    victim.bytes = candidate.bytes;
    victim.dirty_bytes = candidate.dirty_bytes;
    victim.last_use = notes.last_use == 0 ? residency::kNever : accesses_ - notes.last_use;
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

// Tensors destroyed meanwhile are left out. Those of one block are never parted.
residency::Instant Runtime::apply_scores(PlaceId place)
{
    VictimTable &table = scoring_->table;
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
        scoring_->scored[place] += table.scores.size();
        held += dispatch_.now() - begin;
        const MutexUnlock unlocked(dispatch_.mutex());
        std::this_thread::yield();
    }
    return held;
}

}  // namespace stepwell
