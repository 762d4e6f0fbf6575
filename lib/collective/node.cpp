// SPDX-License-Identifier: Apache-2.0
// Joining the ranks of a host, in three exchanges: who is where, the name of the memory, and
// whether everybody has it.
#include "lib/collective/node.h"

#include "lib/support/assert.h"

#include <stepwell/driver.h>

#include <algorithm>
#include <cinttypes>
#include <cstring>

namespace stepwell::collective {
namespace {

constexpr uint32_t kSummandsMax = 8;  // of a budget's sum, in its sentence

struct Hello {
    uint64_t layout;
    HostId host;
    ProcessId process;
    uint64_t host_bytes;
    uint64_t node_host_bytes;
    Processors processors;
};
static_assert(sizeof(Hello) <= STW_EXCHANGE_BYTES_MAX);

// What a rank did, and if it failed why.
struct Outcome {
    int64_t code;
    SegmentName name;
    char text[232];
};

Outcome outcome_of(const Status &status)
{
    Outcome outcome{};
    outcome.code = status.code();
    if (!status.ok()) std::strncpy(outcome.text, status.sentence(), sizeof outcome.text - 1);
    return outcome;
}

// The first rank that failed fails all.
Status first_failure(std::vector<Outcome> &outcomes, uint32_t own, Status &&status)
{
    if (!status.ok()) return std::move(status);
    for (uint32_t rank = 0; rank < outcomes.size(); ++rank) {
        Outcome &outcome = outcomes[rank];
        if (outcome.code >= STW_OK || rank == own) continue;
        outcome.text[sizeof outcome.text - 1] = '\0';
        Status failure =
            Status::error(static_cast<stw_status>(outcome.code),
                          "Rank %u could not join the others of its host: %s", rank, outcome.text);
        failure.mutable_detail().rank = static_cast<int>(rank);
        return failure;
    }
    return {};
}

std::vector<uint32_t> ranks_beside(const std::vector<Hello> &all, uint32_t rank)
{
    std::vector<uint32_t> list;
    for (uint32_t i = 0; i < all.size(); ++i) {
        if (i == rank || all[i].host.same_as(all[rank].host)) list.push_back(i);
    }
    return list;
}

uint64_t host_bytes_of(const std::vector<Hello> &all, const std::vector<uint32_t> &ranks)
{
    uint64_t sum = 0;
    for (const uint32_t rank : ranks) {
        if (__builtin_add_overflow(sum, all[rank].host_bytes, &sum)) return UINT64_MAX;
    }
    return sum;
}

std::string summands(const std::vector<Hello> &all, const std::vector<uint32_t> &ranks)
{
    std::string text;
    for (size_t i = 0; i < ranks.size(); ++i) {
        if (i == kSummandsMax) return text + " + ...";
        text += format_text("%s%" PRIu64 " of rank %u", i ? " + " : "", all[ranks[i]].host_bytes,
                            ranks[i]);
    }
    return text;
}

Status check_budget(const std::vector<Hello> &all, const std::vector<uint32_t> &ranks)
{
    uint64_t limit = UINT64_MAX;
    for (const uint32_t rank : ranks) {
        if (all[rank].node_host_bytes != 0) limit = std::min(limit, all[rank].node_host_bytes);
    }
    const uint64_t sum = host_bytes_of(all, ranks);
    if (sum <= limit) return {};
    Status status = Status::error(
        STW_ERROR_BUDGET,
        "The host of rank %u has %zu ranks, whose host_bytes add up to %" PRIu64 " (%s): %" PRIu64
        " more than its node_host_bytes, %" PRIu64 "; give each at most %" PRIu64 ".",
        ranks[0], ranks.size(), sum, summands(all, ranks).c_str(), sum - limit, limit,
        limit / ranks.size());
    status.mutable_detail().needed_bytes = sum;
    status.mutable_detail().free_bytes = limit;
    status.mutable_detail().rank = static_cast<int>(ranks[0]);
    return status;
}

// Everything that all ranks can see alike: no further exchange is needed to fail together.
Status check_hellos(const std::vector<Hello> &all)
{
    for (uint32_t rank = 0; rank < all.size(); ++rank) {
        if (all[rank].layout != all[0].layout) {
            return Status::error(STW_ERROR_MISMATCH,
                                 "Ranks 0 and %u run different builds of the library: what they "
                                 "would share has layouts %" PRIx64 " and %" PRIx64 ".",
                                 rank, all[0].layout, all[rank].layout);
        }
    }
    std::vector<bool> seen(all.size());
    for (uint32_t rank = 0; rank < all.size(); ++rank) {
        if (seen[rank]) continue;
        const std::vector<uint32_t> beside = ranks_beside(all, rank);
        for (const uint32_t other : beside) seen[other] = true;
        if (beside.size() > kHostRanksMax) {
            return Status::error(STW_ERROR_LIMIT, "The host of rank %u has %zu ranks, at most %u.",
                                 rank, beside.size(), kHostRanksMax);
        }
        STW_TRY(check_budget(all, beside));
    }
    return {};
}

const char *life_text(const Standing &standing)
{
    if (standing.left) return "closed";
    switch (standing.life) {
    case Life::kRuns: return "runs";
    case Life::kStopped: return "is stopped";
    case Life::kGone: return "is gone";
    case Life::kUnknown: break;
    }
    return "may run or not";
}

}  // namespace

// The three exchanges; each is done by all ranks or by none.
struct Node::Joining {
    const NodeOptions &options;
    std::vector<Hello> hellos = std::vector<Hello>(options.ranks);
    std::vector<Outcome> outcomes = std::vector<Outcome>(options.ranks);

    Status meet()
    {
        const Hello hello{kSegmentLayout,          options.host,
                          options.process,         options.host_bytes,
                          options.node_host_bytes, options.processors};
        STW_TRY(options.exchange(&hello, hellos.data(), sizeof hello));
        return check_hellos(hellos);
    }
    Status agree(Status status, const SegmentName &name)
    {
        Outcome outcome = outcome_of(status);
        outcome.name = name;
        STW_TRY(options.exchange(&outcome, outcomes.data(), sizeof outcome));
        return first_failure(outcomes, options.rank, std::move(status));
    }
    // The first rank of the host makes the memory, the others open it.
    static Status keep(Result<std::unique_ptr<Segment>> made, Node &node)
    {
        if (!made.ok()) return std::move(made.status());
        node.segment_ = made.take();
        return {};
    }
    Status share(Node &node)
    {
        const auto n = static_cast<uint32_t>(node.ranks_.size());
        const bool first = node.index_ == 0;
        Status status;
        if (first) status = keep(n > 1 ? Segment::create(n) : Segment::alone(), node);
        STW_TRY(agree(std::move(status), node.segment_ ? node.segment_->name() : SegmentName{}));
        Status opened;
        if (!first) opened = keep(Segment::open(outcomes[node.ranks_[0]].name, n), node);
        STW_TRY(agree(std::move(opened), {}));
        node.segment_->forget_name();
        return {};
    }
};

Result<std::unique_ptr<Node>> Node::join(const NodeOptions &options)
{
    if (options.rank >= options.ranks) {
        return Status::error(STW_ERROR_INVALID, "There is no rank %u in a group of %u.",
                             options.rank, options.ranks);
    }
    Joining joining{options};
    STW_TRY(joining.meet());
    std::unique_ptr<Node> node(new Node());
    node->ranks_ = ranks_beside(joining.hellos, options.rank);
    for (const uint32_t rank : node->ranks_) {
        node->processes_.push_back(joining.hellos[rank].process);
        node->processors_.push_back(joining.hellos[rank].processors);
    }
    node->index_ = node->index_of(options.rank);
    node->host_bytes_ = host_bytes_of(joining.hellos, node->ranks_);
    STW_TRY(joining.share(*node));
    node->own_ = &node->segment_->slot(node->index_);
    node->own_->state.store(RankSlot::kJoined, std::memory_order_release);
    return node;
}

Node::~Node()
{
    if (own_ && is_rank()) own_->state.store(RankSlot::kLeft, std::memory_order_release);
}

uint32_t Node::index_of(uint32_t rank) const
{
    const auto at = std::lower_bound(ranks_.begin(), ranks_.end(), rank);
    const bool found = at != ranks_.end() && *at == rank;
    return found ? static_cast<uint32_t>(at - ranks_.begin()) : UINT32_MAX;
}

Standing Node::standing(uint32_t rank) const
{
    Standing standing;
    const uint32_t index = index_of(rank);
    if (index == UINT32_MAX) return standing;
    const RankSlot &slot = segment_->slot(index);
    standing.here = true;
    standing.left = slot.state.load(std::memory_order_acquire) == RankSlot::kLeft;
    standing.life = life_of(processes_[index]);
    // A text that cannot be read is one that its rank writes all the while: it says nothing.
    (void)slot.read(standing.collective, standing.text);
    return standing;
}

std::string Node::describe(uint32_t rank) const
{
    const Standing standing = this->standing(rank);
    if (!standing.here) return format_text("rank %u is on another host", rank);
    const auto pid = static_cast<long long>(processes_[index_of(rank)].pid);
    std::string text = format_text("rank %u (process %lld) %s", rank, pid, life_text(standing));
    if (standing.text.empty()) return text + ", and began no collective";
    return text + format_text("; collective %" PRIu64 ": ", standing.collective) + standing.text;
}

}  // namespace stepwell::collective
