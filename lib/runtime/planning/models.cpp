// SPDX-License-Identifier: Apache-2.0
// Makes a model of a phase for replays: the step and its tensors are copied under the lock, the
// rest is done without it. Any thread; must not know what the model is for.
#include "lib/runtime/planning/models.h"

#include "lib/residency/core.h"
#include "lib/runtime/machine/meters.h"
#include "lib/runtime/plan_thread/model.h"
#include "lib/runtime/recording/grounds.h"
#include "lib/runtime/recording/phase.h"
#include "lib/runtime/recording/recorder.h"
#include "lib/schedule/trace/completed.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace stepwell {
namespace {

using residency::Access;
using residency::kNone;
using residency::kNoPlace;
using residency::PackId;
using residency::PlaceId;
using residency::TensorId;

// Used if nothing was measured and there is no machine profile.
constexpr double kNvmeBytesPerS = 2e9;
constexpr double kCopyBytesPerS = 10e9;
constexpr uint32_t kCopyShare = 4;  // of the room, for one piece of a copy

// The access pattern seen last; a declared one if no step was seen.
const schedule::Learned *newest(const schedule::PhaseTrace *phase)
{
    const schedule::Learned *best = nullptr;
    if (!phase) return best;
    for (const std::unique_ptr<schedule::Learned> &way : phase->learned()) {
        if (!best || way->last_seen > best->last_seen) best = way.get();
    }
    return best;
}

// Sorted by id, so that tensors that share blocks stay adjacent.
std::vector<TensorId> tensors_of(const schedule::Step &step)
{
    std::vector<TensorId> ids;
    ids.reserve(step.size());
    for (const schedule::Event &event : step) ids.push_back(event.tensor);
    std::sort(ids.begin(), ids.end());
    ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
    return ids;
}

// From ids of the core to numbers from 0. A tensor that was destroyed gets the size that the step
// used.
void number_tensors(StepModel &model)
{
    std::unordered_map<TensorId, TensorId> numbers;
    for (const TensorId id : model.ids) numbers.emplace(id, static_cast<TensorId>(numbers.size()));
    std::vector<uint64_t> bytes(model.ids.size(), 1);
    for (schedule::Event &event : model.step) {
        event.tensor = numbers[event.tensor];
        uint64_t &most = bytes[event.tensor];
        most = std::max(most, event.byte_begin + event.byte_count);
    }
    for (size_t i = 0; i < model.specs.size(); ++i) {
        residency::TensorSpec &spec = model.specs[i];
        if (spec.bytes == 0) {
            spec.name = "gone";
            spec.no_packing = true;
            model.ids[i] = kNone;
        }
        spec.bytes = std::max(spec.bytes, bytes[i]);
        spec.read_only = false;  // a replay must be able to fill it
        spec.agreed = false;
    }
}

// A tensor that lived only within the step takes room in it alone: discarded at its last use.
void end_gone_tensors(const std::vector<TensorId> &ids, schedule::Step &step)
{
    struct Life {
        bool begins = false;  // with a write, so nothing is carried into the next step
        bool seen = false;
        size_t last = 0;
    };
    std::vector<Life> lives(ids.size());
    for (size_t i = 0; i < step.size(); ++i) {
        const schedule::Event &event = step[i];
        Life &life = lives[event.tensor];
        if (!std::exchange(life.seen, true)) life.begins = event.access == Access::kWrite;
        life.last = i;
    }
    for (size_t i = 0; i < lives.size(); ++i) {
        schedule::Event &last = step[lives[i].last];
        if (ids[i] != kNone || !lives[i].begins) continue;
        if (last.act == schedule::Act::kRelease) last.hint = schedule::Hint::kDiscard;
    }
}

// Small enough to leave room for views of the program.
uint64_t copy_bytes_of(const residency::Config &config)
{
    uint32_t room = UINT32_MAX;
    for (const residency::PlaceConfig &place : config.places) {
        if (place.cpu_access && place.blocks > 0) room = std::min(room, place.blocks);
    }
    const uint32_t blocks = room == UINT32_MAX ? 1 : std::max(room / kCopyShare, 1u);
    return blocks * config.block_bytes;
}

}  // namespace

// Blocks that other tensors cannot give up: pinned at the place, or without room farther.
std::vector<uint32_t> StepModels::blocks_of_others(const std::vector<TensorId> &used) const
{
    std::vector<uint32_t> blocks(machine_.tiers.nvme() + 1);
    std::unordered_set<PackId> counted;
    for (const TensorId id : used) {
        if (handles_.at(id)) counted.insert(dispatch_.core.pack_of(id));
    }
    for (const stw_tensor *tensor = handles_.first(); tensor; tensor = tensor->notes.next) {
        if (dispatch_.core.contents(tensor->id) == residency::Contents::kEmpty) continue;
        const residency::Policy &policy = dispatch_.core.spec(tensor->id).policy;
        const bool pinned = policy.retention == residency::Retention::kPin;
        const PlaceId place = pinned ? policy.home : dispatch_.core.promised_place(tensor->id);
        if (place >= machine_.tiers.nvme()) continue;
        if (!counted.insert(dispatch_.core.pack_of(tensor->id)).second) continue;
        blocks[place] += dispatch_.core.pack_blocks(tensor->id);
    }
    return blocks;
}

// At the present budgets.
residency::Config StepModels::room_beside(const std::vector<uint32_t> &others) const
{
    residency::Config config;
    config.block_bytes = machine_.block_bytes;
    for (PlaceId at = 0; at <= machine_.tiers.nvme(); ++at) {
        residency::PlaceConfig place;
        place.tier = machine_.tiers[at].kind;
        place.device = machine_.tiers[at].device;
        place.cpu_access = machine_.tiers[at].cpu_access;
        place.direct = machine_.tiers[at].direct;
        place.maps = machine_.tiers[at].maps;
        const uint64_t blocks = dispatch_.core.budget_bytes(at) / machine_.block_bytes;
        place.blocks = static_cast<uint32_t>(blocks - std::min<uint64_t>(blocks, others[at]));
        config.places.push_back(place);
    }
    return config;
}

// Measured, else expected at open, else as in the opposite direction, else a constant.
void StepModels::make_links(const std::vector<observe::LinkTotal> &totals,
                            schedule::Machine *machine) const
{
    double speeds[residency::kPlacesMax][residency::kPlacesMax] = {};
    for (const observe::LinkTotal &total : totals) {
        const auto device = static_cast<PlaceId>(total.device);
        const auto speed = static_cast<double>(total.bytes_per_s);
        switch (total.link) {
        case STW_LINK_NVME_TO_HOST:
            speeds[machine_.tiers.nvme()][machine_.tiers.host()] = speed;
            break;
        case STW_LINK_HOST_TO_NVME:
            speeds[machine_.tiers.host()][machine_.tiers.nvme()] = speed;
            break;
        case STW_LINK_HOST_TO_DEVICE: speeds[machine_.tiers.host()][device] = speed; break;
        case STW_LINK_DEVICE_TO_HOST: speeds[device][machine_.tiers.host()] = speed; break;
        case STW_LINK_NVME_TO_DEVICE: speeds[machine_.tiers.nvme()][device] = speed; break;
        case STW_LINK_DEVICE_TO_NVME: speeds[device][machine_.tiers.nvme()] = speed; break;
        default: break;
        }
    }
    const auto speed_of = [&](PlaceId from, PlaceId to) {
        if (speeds[from][to] > 0) return speeds[from][to];
        if (speeds[to][from] > 0) return speeds[to][from];
        return machine_.tiers.is_nvme(from) || machine_.tiers.is_nvme(to) ? kNvmeBytesPerS
                                                                          : kCopyBytesPerS;
    };
    const std::vector<residency::PlaceConfig> &places = machine->config.places;
    for (PlaceId from = 0; from <= machine_.tiers.nvme(); ++from) {
        for (PlaceId to = 0; to <= machine_.tiers.nvme(); ++to) {
            if (from == to || places[from].blocks == 0 || places[to].blocks == 0) continue;
            schedule::Link link;
            link.from = from;
            link.to = to;
            link.bytes_per_s = speed_of(from, to);
            // Across a bus the path is by way of the host, and the slower hop counts.
            const auto behind_bus = [&](PlaceId at) {
                return machine_.tiers.is_device(at) && !machine_.tiers[at].storage_reaches();
            };
            const bool by_host = !machine_.tiers.is_host(from) && !machine_.tiers.is_host(to) &&
                                 (behind_bus(from) || behind_bus(to));
            if (by_host && speeds[from][to] == 0) {
                link.bytes_per_s = std::min(speed_of(from, machine_.tiers.host()),
                                            speed_of(machine_.tiers.host(), to));
            }
            machine->links.push_back(link);
        }
    }
    // All reads of the disk share its read bandwidth, and all writes its write bandwidth.
    for (const bool reads : {true, false}) {
        schedule::LinkGroup disk;
        for (schedule::Link &link : machine->links) {
            if ((reads ? link.from : link.to) != machine_.tiers.nvme()) continue;
            link.group = static_cast<uint32_t>(machine->groups.size());
            disk.bytes_per_s = std::max(disk.bytes_per_s, link.bytes_per_s);
        }
        if (disk.bytes_per_s > 0) machine->groups.push_back(disk);
    }
}

// Concatenates the steps, unchanged.
void StepModels::copy_steps(const std::vector<const schedule::Step *> &steps,
                            StepModel *model) const
{
    for (const schedule::Step *step : steps) {
        model->step.insert(model->step.end(), step->begin(), step->end());
    }
    model->ids = tensors_of(model->step);
    for (TensorId &id : model->ids) {
        model->specs.emplace_back();
        if (!handles_.at(id)) continue;
        model->specs.back() = dispatch_.core.spec(id);
    }
    model->machine.config = room_beside(blocks_of_others(model->ids));
    for (residency::PlaceId place = 0; place < machine_.tiers.host(); ++place)
        model->enqueued |= machine_.tiers[place].streams ? 1u << place : 0u;
}

// With no lock held: numbers the tensors and completes the machine.
void StepModels::settle_model(const std::vector<observe::LinkTotal> &totals, StepModel *model) const
{
    number_tensors(*model);
    residency::Config &config = model->machine.config;
    config.tensors_max = static_cast<uint32_t>(model->specs.size()) + 1;
    // A replay counts slots, and destroyed tensors may have used the same ones in turn.
    residency::PlaceConfig &nvme = config.places[machine_.tiers.nvme()];
    if (nvme.blocks > 0) {
        uint64_t stored = 0;
        for (const residency::TensorSpec &spec : model->specs) {
            stored += spec.bytes / machine_.block_bytes + 2;
        }
        nvme.blocks = static_cast<uint32_t>(std::min<uint64_t>(stored, kNone - 1));
    }
    make_links(totals, &model->machine);
}

// Makes a step of a settled model replayable.
schedule::Step StepModels::complete_step(schedule::Step step, const StepModel &model)
{
    std::vector<bool> buffers;
    for (const TensorId id : model.ids) buffers.push_back(id == kNone);
    schedule::fold_sums(step, buffers);
    schedule::Step complete = schedule::completed(step, copy_bytes_of(model.machine.config));
    end_gone_tensors(model.ids, complete);
    schedule::delay_releases(complete, model.enqueued, model.machine.config);
    return complete;
}

Result<StepModel> StepModels::take_model(uint32_t phase) const
{
    StepModel model;
    const std::vector<observe::LinkTotal> totals = meters_.link_totals();
    {
        MutexLock lock(dispatch_.mutex());
        const schedule::Learned *way = newest(recorder_.trace.phase(phase));
        if (way) copy_steps({&way->events()}, &model);
        if (!way) {
            return Status::error(
                STW_ERROR_EMPTY,
                "nothing is known of the steps of phase '%s': none has ended, or was declared%s",
                recorder_.phases[phase]->name.c_str(),
                recorder_.enabled ? "" : ", and the runtime was opened with STW_RUNTIME_NO_PLAN");
        }
    }
    settle_model(totals, &model);
    model.step = complete_step(model.step, model);
    return model;
}

}  // namespace stepwell
