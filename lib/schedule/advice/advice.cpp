// SPDX-License-Identifier: Apache-2.0
// The alternative orders, and how they are judged.
#include "lib/schedule/advice/advice.h"

#include <algorithm>
#include <optional>
#include <utility>

namespace stepwell::schedule {
namespace {

using residency::PlaceId;
using residency::TensorSpec;
using residency::Tier;

constexpr double kSavesAtLeast = 0.02;    // of the present bytes; less is within a replay's error
constexpr double kSlowerAtMost = 0.05;    // of the present time, which a replay knows less well
constexpr uint32_t kBlocksAtLeast = 256;  // of a place, below which blocks are not made larger

// Policies that need no plan of keeping, the most telling first.
std::vector<Candidate> candidates(const std::vector<TensorSpec> &specs)
{
    std::vector<Candidate> first = {{Rule::kNextUse, 0}, {Rule::kNextUse, 1}};
    for (const Candidate &candidate : known_candidates(specs)) {
        const bool there = std::any_of(first.begin(), first.end(), [&](const Candidate &other) {
            return other.rule == candidate.rule && other.number == candidate.number;
        });
        if (!there && candidate.rule != Rule::kKept) first.push_back(candidate);
    }
    return first;
}

OrderCost cost_of(const Machine &machine, const Verdict &verdict)
{
    OrderCost cost;
    const auto tier = [&](PlaceId place) { return machine.config.places[place].tier; };
    for (size_t i = 0; i < verdict.links.size(); ++i) {
        const Link &link = machine.links[i];
        const uint64_t bytes = verdict.links[i].bytes / std::max(verdict.steps, 1u);
        const bool from_nvme = tier(link.from) == Tier::kNvme;
        const bool to_nvme = tier(link.to) == Tier::kNvme;
        if (from_nvme) cost.nvme_read_bytes += bytes;
        if (to_nvme) cost.nvme_write_bytes += bytes;
        // Paths between storage and a device without direct access pass through the host.
        const bool in = tier(link.to) == Tier::kDevice;
        const bool out = tier(link.from) == Tier::kDevice;
        const bool in_by_host = !from_nvme || !machine.config.places[link.to].storage_reaches();
        const bool out_by_host = !to_nvme || !machine.config.places[link.from].storage_reaches();
        if (in && in_by_host) cost.host_to_device_bytes += bytes;
        if (out && out_by_host) cost.device_to_host_bytes += bytes;
    }
    cost.step_ns = verdict.step_ns / std::max(verdict.steps, 1u);
    return cost;
}

// With the best of the first `policies` candidates.
Result<OrderCost> judge_order(const Machine &machine, const std::vector<TensorSpec> &specs,
                              const Step &step, size_t policies)
{
    std::optional<Verdict> best;
    const std::vector<Candidate> all = candidates(specs);
    for (size_t i = 0; i < std::min(policies, all.size()); ++i) {
        Result<Verdict> verdict = judge(all[i], machine, specs, step);
        if (!verdict.ok()) return std::move(verdict.status());
        const auto rank = [](const Verdict &of) { return std::pair(of.link_ns, of.step_ns); };
        if (!best || rank(verdict.value()) < rank(*best)) best = verdict.take();
    }
    return cost_of(machine, *best);
}

// Enlarged for the new tensors, which have room in the farthest place.
Machine with_room_for(const Machine &machine, const std::vector<TensorSpec> &specs, size_t from)
{
    Machine larger = machine;
    larger.config.tensors_max =
        std::max(machine.config.tensors_max, static_cast<uint32_t>(specs.size()));
    uint64_t blocks = 0;
    for (size_t i = from; i < specs.size(); ++i) {
        blocks += specs[i].bytes / machine.config.block_bytes + 2;
    }
    for (residency::PlaceConfig &place : larger.config.places) {
        if (place.tier != Tier::kNvme || place.blocks == 0) continue;
        place.blocks =
            static_cast<uint32_t>(std::min<uint64_t>(place.blocks + blocks, residency::kNone - 1));
    }
    return larger;
}

bool is_worth_it(const OrderCost &now, const OrderCost &then)
{
    const auto bytes = [](uint64_t count) { return static_cast<double>(count); };
    if (then.nvme_bytes() > now.nvme_bytes()) return false;
    if (bytes(then.step_ns) > bytes(now.step_ns) * (1 + kSlowerAtMost)) return false;
    return bytes(then.bytes()) < bytes(now.bytes()) * (1 - kSavesAtLeast);
}

struct Alternative {
    Advice advice;
    Order order;
};

std::vector<Alternative> alternatives_of(const std::vector<TensorSpec> &specs, const Step &step)
{
    std::vector<Alternative> found;
    std::optional<Order> grouped = group_micro_batches(specs, step);
    std::optional<Order> reversed = reverse_update(specs, step);
    Advice group;
    if (grouped) {
        group.micro_batches = grouped->times;
        group.parts = grouped->parts;
    }
    if (grouped && reversed) {
        std::optional<Order> both = reverse_update(grouped->specs, grouped->step);
        Advice advice = group;
        advice.kind = AdviceKind::kBoth;
        if (both) {
            advice.visits = both->times;
            found.push_back({advice, std::move(*both)});
        }
    }
    if (grouped) found.push_back({group, std::move(*grouped)});
    if (reversed) {
        Advice advice;
        advice.kind = AdviceKind::kReverse;
        advice.visits = reversed->times;
        found.push_back({advice, std::move(*reversed)});
    }
    return found;
}

// Both changes at once are advised only if each adds to the other.
void drop_needless_both(std::vector<Advice> &advices)
{
    uint64_t least = UINT64_MAX;
    for (const Advice &advice : advices) {
        if (advice.kind != AdviceKind::kBoth) least = std::min(least, advice.then.bytes());
    }
    std::erase_if(advices, [&](const Advice &advice) {
        if (advice.kind != AdviceKind::kBoth || least == UINT64_MAX) return false;
        const double saved = static_cast<double>(least) * (1 - kSavesAtLeast);
        return static_cast<double>(advice.then.bytes()) >= saved;
    });
}

// Doubles the block size, with the same bytes at each place.
bool coarsen(Machine &machine)
{
    for (const residency::PlaceConfig &place : machine.config.places) {
        if (place.blocks > 0 && place.tier != Tier::kNvme && place.blocks < 2 * kBlocksAtLeast) {
            return false;
        }
    }
    machine.config.block_bytes *= 2;
    for (residency::PlaceConfig &place : machine.config.places) {
        // the farthest place keeps its blocks, as tensors waste more in larger ones
        if (place.tier != Tier::kNvme) place.blocks /= 2;
    }
    return true;
}

}  // namespace

uint64_t replay_work(const Machine &machine, const std::vector<TensorSpec> &specs, const Step &step)
{
    uint64_t work = 0;
    for (const Event &event : step) {
        if (event.act != Act::kFetch) continue;
        const uint64_t bytes = event.byte_count ? event.byte_count : specs[event.tensor].bytes;
        work += 1 + bytes / machine.config.block_bytes;
    }
    return work;
}

Result<std::vector<Advice>> advise(const Machine &machine, const std::vector<TensorSpec> &specs,
                                   const Step &step)
{
    std::vector<Advice> advices;
    const std::vector<Alternative> alternatives = alternatives_of(specs, step);
    if (alternatives.empty()) return advices;
    Machine coarse = machine;
    uint64_t work = replay_work(coarse, specs, step);
    while (work > kReplayWork && coarsen(coarse)) work = replay_work(coarse, specs, step);
    if (work > kReplayWorkMax) {
        return Status::error(
            STW_ERROR_LIMIT,
            "the step has %llu fetches and blocks of %s to go through, and no more than %llu are "
            "replayed; ask for a phase of shorter steps",
            static_cast<unsigned long long>(work), bytes_text(coarse.config.block_bytes).c_str(),
            static_cast<unsigned long long>(kReplayWorkMax));
    }
    const auto policies = static_cast<size_t>(std::max<uint64_t>(1, kReplayWork / (work + 1)));
    Result<OrderCost> now = judge_order(coarse, specs, step, policies);
    if (!now.ok()) return std::move(now.status());
    for (const Alternative &alternative : alternatives) {
        const Machine larger = with_room_for(coarse, alternative.order.specs, specs.size());
        Result<OrderCost> then =
            judge_order(larger, alternative.order.specs, alternative.order.step, policies);
        if (!then.ok()) continue;  // needs more room than the machine has
        Advice advice = alternative.advice;
        advice.now = now.value();
        advice.then = then.value();
        if (is_worth_it(advice.now, advice.then)) advices.push_back(advice);
    }
    drop_needless_both(advices);
    std::stable_sort(advices.begin(), advices.end(), [](const Advice &a, const Advice &b) {
        return a.then.bytes() < b.then.bytes();
    });
    return advices;
}

}  // namespace stepwell::schedule
