// SPDX-License-Identifier: Apache-2.0
// Turns: jobs that need the same tensor work on it in the order of their claims, and a job begins
// when it is first for all of its tensors. A chunk in flight so never waits for a chunk that was
// not asked for yet. Among those that may begin: what somebody waits for; then what has begun; then
// the latest call, as the backward pass ends with what the next forward pass begins with (over
// ranks, the first one).
#include "lib/update/parts.h"

#include "lib/support/assert.h"

namespace stepwell::update {

Job::Job()
{
    ReadyJobs maker;
    maker.insert(this);
    node = maker.extract(maker.begin());
}

void Pipeline::Parts::reserve_tensor(TensorId tensor)
{
    if (tensor >= queues.size()) queues.resize(static_cast<size_t>(tensor) + 1);
}

void Pipeline::Parts::enqueue(Job &job, uint64_t call)
{
    job.claim = 0;
    job.claimed = false;
    job.blocked = 0;
    job.call = call;
    job.sequence = next_sequence++;
    job.preference = kNotPreferred;
    job.rank = kNotPreferred;
    job.ready = false;
    job.open = false;
    job.in_flight = 0;
    job.error = Status();
    for (uint32_t i = 0; i < job.turn_count; ++i) {
        Turn &turn = job.turns[i];
        turn.job = &job;
        turn.behind = nullptr;
        reserve_tensor(turn.tensor);
        Queue &queue = queues[turn.tensor];
        if (queue.last != nullptr) {
            queue.last->behind = &turn;
            ++job.blocked;
        } else {
            queue.first = &turn;
        }
        queue.last = &turn;
    }
    ++totals.jobs;
}

void Pipeline::Parts::activate(Job &job, ClaimId claim)
{
    job.claim = claim;
    job.claimed = true;
    if (job.blocked == 0) make_ready(job);
}

void Pipeline::Parts::make_ready(Job &job)
{
    STW_ASSERT(!job.ready);
    job.ready = true;
    ReadyJobs &ready = windows[job.window].ready;
    ready.insert(ready.end(), std::move(job.node));
    if (closing) work_ready.notify_one();
}

void Pipeline::Parts::unready(Job &job)
{
    if (!job.ready) return;
    job.ready = false;
    job.node = windows[job.window].ready.extract(&job);
}

void Pipeline::Parts::set_rank(Job &job, uint64_t rank)
{
    const bool was_ready = job.ready;
    ReadyJobs &ready = windows[job.window].ready;
    if (was_ready) job.node = ready.extract(&job);
    job.rank = rank;
    if (was_ready) ready.insert(std::move(job.node));
}

// What stands before it in any queue has to go first, so that is waited for as well.
void Pipeline::Parts::prefer_ahead_of(Job &job)
{
    for (uint32_t i = 0; i < job.turn_count; ++i) {
        Turn *turn = queues[job.turns[i].tensor].first;
        for (; turn->job != &job; turn = turn->behind) prefer_job(*turn->job);
    }
}

void Pipeline::Parts::prefer_job(Job &job)
{
    if (job.preference != kNotPreferred) return;
    job.preference = next_preference++;
    prefer_ahead_of(job);
    set_rank(job, job.preference);
    pump_wanted = true;  // it may pass a window that is full for others
    work_ready.notify_one();
    job.on_preferred();
}

void Pipeline::Parts::retire(Job &job)
{
    STW_ASSERT(!job.ready && job.in_flight == 0);
    for (uint32_t i = 0; i < job.turn_count; ++i) {
        Queue &queue = queues[job.turns[i].tensor];
        STW_ASSERT(queue.first == &job.turns[i]);
        queue.first = job.turns[i].behind;
        if (queue.first == nullptr) {
            queue.last = nullptr;
            continue;
        }
        Job &next = *queue.first->job;
        STW_ASSERT(next.blocked > 0);
        if (--next.blocked == 0 && next.claimed) make_ready(next);
    }
}

void Pipeline::Parts::park(Job &job)
{
    if (closing) {
        make_ready(job);
        return;
    }
    job.parked_at = static_cast<uint32_t>(parked.size());
    parked.push_back(&job);
    job_gone();
}

void Pipeline::Parts::unpark(Job &job)
{
    if (!job.is_parked()) return;
    parked.back()->parked_at = job.parked_at;
    parked[job.parked_at] = parked.back();
    parked.pop_back();
    job.parked_at = kNone;
    ++totals.jobs;
}

void Pipeline::Parts::job_gone()
{
    STW_ASSERT(totals.jobs > 0);
    --totals.jobs;
    if (totals.jobs == 0 || !parked.empty()) changed.notify_all();
}

// Jobs that cannot begin before a parked one has its verdict: sums into its gradient, for example.
uint64_t Pipeline::Parts::jobs_behind_parked() const
{
    std::set<const Job *> behind;
    std::vector<const Job *> left(parked.begin(), parked.end());
    while (!left.empty()) {
        const Job &job = *left.back();
        left.pop_back();
        for (uint32_t i = 0; i < job.turn_count; ++i) {
            for (const Turn *at = job.turns[i].behind; at != nullptr; at = at->behind) {
                if (behind.insert(at->job).second) left.push_back(at->job);
            }
        }
    }
    return behind.size();
}

}  // namespace stepwell::update
