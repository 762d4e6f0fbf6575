// SPDX-License-Identifier: Apache-2.0
// A promoted transfer also stays in its old queue, and is skipped there.
#include "lib/schedule/replay/virtual_links.h"
#include "lib/support/assert.h"

#include <algorithm>
#include <cmath>

namespace stepwell::schedule {
namespace {

using residency::Instant;
using residency::Transfer;
using residency::TransferId;

// Rounded up, so that no run is faster than a bound.
Instant duration_ns(uint64_t bytes, double bytes_per_s)
{
    return static_cast<Instant>(std::ceil(static_cast<double>(bytes) * 1e9 / bytes_per_s));
}

}  // namespace

VirtualLinks::VirtualLinks(const Machine &machine)
    : machine_(machine), states_(machine.links.size()), group_free_at_(machine.groups.size())
{
    const auto places = static_cast<residency::PlaceId>(machine.config.places.size());
    for (residency::PlaceId from = 0; from < places; ++from) {
        for (residency::PlaceId to = 0; to < places; ++to) {
            link_of_.push_back(machine.find_link(from, to));
        }
    }
}

Status VirtualLinks::submit(const Transfer &transfer, Instant now)
{
    const size_t places = machine_.config.places.size();
    const bool moves = transfer.kind == residency::TransferKind::kMove ||
                       transfer.kind == residency::TransferKind::kRelocate;
    const uint32_t link = moves ? link_of_[transfer.from * places + transfer.to] : kNoLink;
    if (transfer.kind == residency::TransferKind::kMove && link == kNoLink && !instant_) {
        return Status::error(STW_ERROR_UNSUPPORTED,
                             "the machine has no link from place %u to place %u, and a transfer of "
                             "%s needs one",
                             transfer.from, transfer.to, bytes_text(transfer.bytes).c_str());
    }
    if (link == kNoLink || instant_) {
        flying_.push({now, order_++, transfer.id, kNoLink});
        return {};
    }
    State &state = states_[link];
    state.use.bytes += transfer.bytes;
    ++state.use.transfers;
    waiting_[transfer.id] = {transfer, link};
    state.queues[static_cast<size_t>(transfer.urgency)].push_back(transfer.id);
    start_some(link, now);
    return {};
}

void VirtualLinks::promote(TransferId id)
{
    const auto found = waiting_.find(id);
    if (found == waiting_.end()) return;
    Waiting &waiting = found->second;
    if (waiting.transfer.urgency == residency::Class::kDemand) return;
    waiting.transfer.urgency = residency::Class::kDemand;
    states_[waiting.link].queues[static_cast<size_t>(residency::Class::kDemand)].push_back(id);
}

void VirtualLinks::start_some(uint32_t link, Instant now)
{
    State &state = states_[link];
    for (size_t rank = kClasses; rank > 0 && state.flying < machine_.links[link].depth;) {
        std::deque<TransferId> &queue = state.queues[rank - 1];
        if (queue.empty()) {
            --rank;
            continue;
        }
        const auto found = waiting_.find(queue.front());
        queue.pop_front();
        if (found == waiting_.end()) continue;
        if (static_cast<size_t>(found->second.transfer.urgency) != rank - 1) continue;
        const Transfer transfer = found->second.transfer;
        waiting_.erase(found);
        start(link, transfer, now);
    }
}

void VirtualLinks::start(uint32_t link, const Transfer &transfer, Instant now)
{
    const Link &config = machine_.links[link];
    State &state = states_[link];
    Instant begin = std::max(now + config.latency_ns, state.free_at);
    Instant end = begin + duration_ns(transfer.bytes, config.bytes_per_s);
    if (config.group != kNoGroup) {
        Instant &group_free_at = group_free_at_[config.group];
        const double group_bytes_per_s = machine_.groups[config.group].bytes_per_s;
        const Instant shared = duration_ns(transfer.bytes, group_bytes_per_s);
        const Instant own = end - begin;
        begin = std::max(begin, group_free_at);
        end = begin + std::max(own, shared);
        group_free_at = begin + shared;
    }
    state.free_at = end;
    state.use.busy_ns += end - begin;
    ++state.flying;
    flying_.push({end, order_++, transfer.id, link});
    if (!recording_) return;
    spans_.push_back({link, transfer.tensor, transfer.urgency, transfer.bytes, begin, end});
}

Instant VirtualLinks::next_end() const
{
    return flying_.empty() ? residency::kNever : flying_.top().end;
}

TransferId VirtualLinks::take_ended()
{
    STW_ASSERT(!flying_.empty());
    const Flying ended = flying_.top();
    flying_.pop();
    if (ended.link != kNoLink) {
        --states_[ended.link].flying;
        start_some(ended.link, ended.end);
    }
    return ended.transfer;
}

std::vector<LinkUse> VirtualLinks::take_use()
{
    std::vector<LinkUse> uses;
    for (State &state : states_) {
        uses.push_back(state.use);
        state.use = {};
    }
    return uses;
}

std::vector<Span> VirtualLinks::take_spans()
{
    std::vector<Span> spans;
    spans.swap(spans_);
    return spans;
}

}  // namespace stepwell::schedule
