// SPDX-License-Identifier: Apache-2.0
// A seat whose share changes gets a new end and a new version; the event of the old version is
// skipped.
#include "lib/simulate/shared_links.h"
#include "lib/support/assert.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace stepwell::simulate {
namespace {

constexpr uint32_t kNoJob = UINT32_MAX;
constexpr uint32_t kNoSeat = UINT32_MAX;

}  // namespace

SharedLinks::SharedLinks(const Machine &machine, uint32_t ranks, bool folded)
    : ranks_(ranks), folded_(folded)
{
    for (const Link &link : machine.links) add_kind(link, machine.sharers(link.per));
    if (machine.shares_host_memory) add_memory(machine);
}

void SharedLinks::add_kind(const Link &link, uint32_t sharers)
{
    const auto kind = static_cast<uint32_t>(kinds_.size());
    kinds_.push_back({link, folded_ ? sharers : 1});
    use_.push_back(0);
    const uint32_t of_one = folded_ ? 1 : sharers;
    for (uint32_t rank = 0; rank < ranks_; ++rank) {
        if (rank % of_one == 0) {
            instances_.emplace_back();
            instances_.back().link = kind;
        }
        instances_.back().seats.push_back(static_cast<uint32_t>(seats_.size()));
        instance_of_.push_back(static_cast<uint32_t>(instances_.size()) - 1);
        seats_.emplace_back();
    }
}

// Three users of one bandwidth: each is served beside the others, not after them.
void SharedLinks::add_memory(const Machine &machine)
{
    Link link;
    link.name = "host memory";
    link.bytes_per_s = machine.host_bytes_per_s;
    link.per = Per::kNode;
    memory_ = static_cast<uint32_t>(kinds_.size());
    const size_t first = instances_.size();
    for (uint32_t user = 0; user < 3; ++user) add_kind(link, machine.sharers(link.per));
    const size_t each = (instances_.size() - first) / 3;
    for (size_t other = first + each; other < instances_.size(); ++other) {
        const size_t shared = first + (other - first) % each;
        for (const uint32_t seat : instances_[other].seats) {
            instances_[shared].seats.push_back(seat);
            instance_of_[seat] = static_cast<uint32_t>(shared);
        }
    }
    instances_.resize(first + each);
}

std::vector<uint32_t> SharedLinks::memory_path() const
{
    if (memory_ == UINT32_MAX) return {};
    return {memory_ + 2};
}

uint32_t SharedLinks::add_own(double bytes_per_s, uint64_t latency_ns)
{
    Link link;
    link.bytes_per_s = bytes_per_s;
    link.latency_ns = latency_ns;
    add_kind(link, 1);
    return static_cast<uint32_t>(kinds_.size()) - 1;
}

std::vector<uint32_t> SharedLinks::path_of(Route route, uint32_t storage_path) const
{
    std::vector<uint32_t> path;
    for (uint32_t kind = 0; kind < kinds_.size(); ++kind)
        if ((kinds_[kind].link.routes >> static_cast<uint32_t>(route) & 1) != 0 &&
            (kinds_[kind].link.path == 0 || kinds_[kind].link.path == storage_path))
            path.push_back(kind);
    const bool of_nvme = route == Route::kNvmeToHost || route == Route::kHostToNvme;
    if (memory_ != UINT32_MAX) path.push_back(of_nvme ? memory_ : memory_ + 1);
    return path;
}

uint32_t SharedLinks::take_job()
{
    if (free_jobs_.empty()) {
        jobs_.emplace_back();
        return static_cast<uint32_t>(jobs_.size()) - 1;
    }
    const uint32_t job = free_jobs_.back();
    free_jobs_.pop_back();
    return job;
}

void SharedLinks::submit(uint32_t rank, Tag tag, const std::vector<uint32_t> &path, uint64_t bytes,
                         uint32_t urgency, Instant now)
{
    const uint32_t id = take_job();
    jobs_[id] = {rank, tag, path, 0, bytes, urgency};
    ++in_flight_;
    enter(id, now);
}

void SharedLinks::promote(uint32_t rank, Tag tag, uint32_t urgency)
{
    const auto found = std::find_if(jobs_.begin(), jobs_.end(), [&](const Job &job) {
        return job.rank == rank && job.tag == tag;
    });
    if (found == jobs_.end() || found->urgency >= urgency) return;
    const auto id = static_cast<uint32_t>(found - jobs_.begin());
    const uint32_t before = std::exchange(found->urgency, urgency);
    if (found->at == found->path.size()) return;
    Seat &seat = seats_[found->path[found->at] * ranks_ + rank];
    if (std::erase(seat.queues[before], id) > 0) seat.queues[urgency].push_back(id);
}

void SharedLinks::remind(uint32_t rank, Tag tag, Instant at)
{
    const uint32_t id = take_job();
    jobs_[id] = {rank, tag, {}, 0, 0, 0};
    ++in_flight_;
    events_.push({at, order_++, kNoSeat, id, 0});
}

void SharedLinks::enter(uint32_t id, Instant now)
{
    const Job &job = jobs_[id];
    if (job.at == job.path.size()) {
        events_.push({now, order_++, kNoSeat, id, 0});
        return;
    }
    const uint32_t kind = job.path[job.at];
    const uint32_t seat = kind * ranks_ + job.rank;
    seats_[seat].queues[job.urgency].push_back(id);
    if (seats_[seat].job == kNoJob) serve_next(seat, now);
}

void SharedLinks::serve_next(uint32_t at, Instant now)
{
    Seat &seat = seats_[at];
    for (uint32_t urgency = kUrgencies; urgency-- > 0;) {
        std::deque<uint32_t> &queue = seat.queues[urgency];
        if (queue.empty()) continue;
        seat.job = queue.front();
        queue.pop_front();
        seat.left = static_cast<double>(jobs_[seat.job].bytes);
        seat.told = 0;
        seat.since = now;
        seat.share = 0;
        ++seat.version;
        ++instances_[instance_of_[at]].served;
        touch(instance_of_[at]);
        return;
    }
}

void SharedLinks::touch(uint32_t instance)
{
    if (instances_[instance].dirty) return;
    instances_[instance].dirty = true;
    dirty_.push_back(instance);
}

void SharedLinks::leave(uint32_t at, Instant now)
{
    Seat &seat = seats_[at];
    const uint32_t id = seat.job;
    const uint32_t kind = at / ranks_;
    if (at % ranks_ == 0) use_[kind] += static_cast<double>(jobs_[id].bytes) - seat.told;
    seat.job = kNoJob;
    ++seat.version;
    --instances_[instance_of_[at]].served;
    touch(instance_of_[at]);
    serve_next(at, now);
    ++jobs_[id].at;
    const uint64_t latency = kinds_[kind].link.latency_ns;
    if (latency > 0)
        events_.push({now + latency, order_++, kNoSeat, id, 1});
    else
        enter(id, now);
}

void SharedLinks::clean()
{
    while (!events_.empty()) {
        const Event &top = events_.top();
        if (top.seat == kNoSeat || seats_[top.seat].version == top.version) return;
        events_.pop();
    }
}

Instant SharedLinks::next() const
{
    return events_.empty() ? residency::kNever : events_.top().at;
}

void SharedLinks::take(Instant now, std::vector<Ended> *ended)
{
    for (clean(); !events_.empty() && events_.top().at == now; clean()) {
        const Event event = events_.top();
        events_.pop();
        if (event.seat != kNoSeat) {
            leave(event.seat, now);
            continue;
        }
        Job &job = jobs_[event.job];
        if (event.version == 1 && job.at < job.path.size()) {
            enter(event.job, now);  // the latency of its last link has passed
            continue;
        }
        ended->push_back({job.rank, job.tag});
        --in_flight_;
        free_jobs_.push_back(event.job);
    }
}

double SharedLinks::left_at(const Seat &seat, Instant now)
{
    return std::max(0.0, seat.left - seat.share * static_cast<double>(now - seat.since));
}

void SharedLinks::flush(Instant now)
{
    for (const uint32_t index : dirty_) {
        Instance &instance = instances_[index];
        instance.dirty = false;
        const Kind &kind = kinds_[instance.link];
        const double active = static_cast<double>(instance.served) * kind.weight;
        const double share = kind.link.bytes_per_s * kind.link.stripes / kNsPerSecond / active;
        for (const uint32_t at : instance.seats) {
            Seat &seat = seats_[at];
            if (seat.job == kNoJob || seat.share == share) continue;
            seat.left = left_at(seat, now);
            seat.since = now;
            seat.share = share;
            ++seat.version;
            const auto takes = static_cast<Instant>(std::ceil(seat.left / share));
            events_.push({now + takes, order_++, at, seat.job, seat.version});
        }
    }
    dirty_.clear();
    clean();
}

std::vector<double> SharedLinks::take_use(Instant now)
{
    for (size_t kind = 0; kind < use_.size(); ++kind) {
        Seat &seat = seats_[kind * ranks_];
        if (seat.job == kNoJob) continue;
        const double passed = static_cast<double>(jobs_[seat.job].bytes) - left_at(seat, now);
        use_[kind] += passed - seat.told;
        seat.told = passed;
    }
    std::vector<double> use(use_.size());
    use.swap(use_);
    return use;
}

}  // namespace stepwell::simulate
