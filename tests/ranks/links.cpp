// SPDX-License-Identifier: Apache-2.0
// Links: who is served next, and for how long.
#include "tests/ranks/links.h"

#include <algorithm>

namespace stepwell::ranks {

Links::Links(const Setups &setups, uint32_t ranks) : setups_(setups)
{
    for (uint32_t kind = 0; kind < kLinkKinds; ++kind) {
        instances_[kind].resize((ranks + setups[kind].sharers - 1) / setups[kind].sharers);
    }
}

Links::Instance &Links::instance(const Job &job)
{
    const LinkKind kind = job.path[job.at];
    return instances_[kind][instance_of(kind, job.rank)];
}

uint32_t Links::submit(uint32_t rank, TransferId transfer, const std::array<LinkKind, 2> &path,
                       uint32_t length, uint64_t bytes, Class urgency, Instant now, Random &random,
                       std::vector<Moved> *started)
{
    uint32_t id = static_cast<uint32_t>(jobs_.size());
    if (free_jobs_.empty()) {
        jobs_.emplace_back();
    } else {
        id = free_jobs_.back();
        free_jobs_.pop_back();
    }
    jobs_[id] = {rank, transfer, path, length, 0, bytes, static_cast<uint32_t>(urgency), false};
    enter(id, now, random, started);
    return id;
}

void Links::enter(uint32_t id, Instant now, Random &random, std::vector<Moved> *started)
{
    Job &job = jobs_[id];
    Instance &at = instance(job);
    job.queued = true;
    at.queues[job.urgency].push_back(id);
    serve(job.path[job.at], at, now, random, started);
}

// Those that are served at once may end in another order than they began in.
void Links::serve(LinkKind kind, Instance &at, Instant now, Random &random,
                  std::vector<Moved> *started)
{
    const LinkSetup &setup = setups_[kind];
    for (uint32_t urgency = kClasses; urgency-- > 0;) {
        std::deque<uint32_t> &queue = at.queues[urgency];
        while (!queue.empty() && at.serving < setup.depth) {
            const uint32_t id = queue.front();
            queue.pop_front();
            Job &job = jobs_[id];
            job.queued = false;
            ++at.serving;
            const double takes = static_cast<double>(job.bytes) / setup.bytes_per_ns * at.slow;
            at.free_at = std::max(at.free_at, now) + static_cast<Instant>(takes);
            const Instant latency = setup.latency_ns + random.below(setup.latency_ns + 1);
            started->push_back({id, at.free_at + latency});
        }
    }
}

bool Links::arrive(uint32_t id, Instant now, Random &random, std::vector<Moved> *started)
{
    Job &job = jobs_[id];
    Instance &left = instance(job);
    --left.serving;
    const LinkKind kind = job.path[job.at];
    ++job.at;
    const bool over = job.at == job.length;
    if (over) free_jobs_.push_back(id);
    if (!over) enter(id, now, random, started);
    serve(kind, left, now, random, started);
    return over;
}

void Links::promote(uint32_t id)
{
    Job &job = jobs_[id];
    if (job.urgency == kClasses - 1) return;
    if (job.queued) {
        Instance &at = instance(job);
        std::deque<uint32_t> &queue = at.queues[job.urgency];
        queue.erase(std::find(queue.begin(), queue.end(), id));
        at.queues[kClasses - 1].push_back(id);
    }
    job.urgency = kClasses - 1;
}

void Links::set_slow(LinkKind kind, uint32_t rank, double factor)
{
    instances_[kind][instance_of(kind, rank)].slow = factor;
}

}  // namespace stepwell::ranks
