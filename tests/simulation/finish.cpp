// SPDX-License-Identifier: Apache-2.0
// The end of a run: no fetch may wait for nothing, the newest bytes are all there, and nothing is
// left when everything is destroyed.
#include "tests/simulation/program.h"

namespace stepwell::simulation {
namespace {

constexpr uint32_t kRoundsMax = 2000;

}  // namespace

// One thing that the program owes; false when it owes nothing any more.
bool Program::give_one_back()
{
    if (!idle_gates_.empty()) {
        deliver_idle();
        return true;
    }
    for (auto at = claims_.begin(); at != claims_.end(); ++at) {
        if (at->fetch != 0) continue;
        if (!at->view) {
            next_tensor(*at);
            if (at->tensors.empty()) claims_.erase(at);
        } else {
            advance_claim(*at);
        }
        return true;
    }
    if (!pick_releasable()) return false;
    release_one();
    return true;
}

void Program::settle()
{
    for (uint32_t round = 0; round < kRoundsMax && !journal_.failed(); round++) {
        if (machine_.advance()) {
            check("a transfer");
            continue;
        }
        if (!give_one_back()) break;
        check("giving back");
    }
    if (journal_.failed()) return;
    if (!machine_.idle()) journal_.fail("the machine does not come to rest");
    if (machine_.core.transfers_in_flight() > 0) {
        journal_.fail("%u transfers in flight, the machine has none",
                      machine_.core.transfers_in_flight());
    }
    if (!fetches_.empty()) {
        for (const auto &[id, fetch] : fetches_) {
            journal_.line("fetch %llu of owner %llu (%s) waits for %s", (unsigned long long)id,
                          (unsigned long long)fetch.asked.owner,
                          awake(fetch.asked.owner) ? "awake" : "asleep",
                          machine_.core.waits_for_locks(id)  ? "locks"
                          : machine_.core.waits_for_room(id) ? "room"
                                                             : "transfers");
        }
        for (const View &view : views_) {
            journal_.line("owner %llu has tensor %u at place %u", (unsigned long long)view->owner,
                          view->request.tensor, view->request.place);
        }
        journal_.fail("fetch %llu waits although nothing is open and nothing moves",
                      (unsigned long long)fetches_.begin()->first);
    }
    if (machine_.core.waiting_fetches() > 0) {
        journal_.fail("%u fetches wait, the program has none", machine_.core.waiting_fetches());
    }
}

void Program::finish()
{
    journal_.line("---- finish");
    machine_.faults = {};
    addresses_.refusals_percent = 0;
    if (shrinking_ != kNoPlace) end_shrinking(shrinks_from_);
    settle();
    if (journal_.failed()) return;
    forgive();
    read_everything();
    if (journal_.failed()) return;
    for (PlaceId place = 0; place < setup_.config.places.size(); place++) {
        const PlaceUsage usage = machine_.core.usage(place);
        if (usage.pinned_blocks > 0) {
            journal_.fail("place %u: %llu blocks are pinned, no view is open", place,
                          (unsigned long long)usage.pinned_blocks);
        }
        if (usage.peak_blocks > machine_.core.slots(place)) {
            journal_.fail("place %u: peak %llu of %u blocks", place,
                          (unsigned long long)usage.peak_blocks, machine_.core.slots(place));
        }
    }
    destroy_everything();
}

void Program::read_everything()
{
    reading_back_ = true;
    for (auto &[id, tensor] : model_.tensors) {
        if (journal_.failed()) return;
        if (tensor.alive) model_.check_tensor(id);
        if (tensor.alive && tensor.readable()) read_back(id);
    }
}

void Program::read_back(TensorId id)
{
    const ModelTensor &tensor = model_.tensors[id];
    const bool rotten = machine_.rotten(tensor.pack);
    PlaceId place = kAnyCpuPlace;
    while (place == kAnyCpuPlace) place = choose_place(setup_, random_, tensor.spec.policy);
    uint64_t next = 0;
    while (next < tensor.spec.bytes && !journal_.failed()) {
        FetchAsked asked;
        Request request;
        request.tensor = id;
        request.place = place;
        const uint64_t chunk = kBlockBytes - (tensor.pack_offset + next) % kBlockBytes;
        request.byte_begin = next;
        request.byte_count = std::min(chunk, tensor.spec.bytes - next);
        next += request.byte_count;
        asked.requests.push_back(request);
        const uint64_t grants = grants_;
        ask(asked);
        for (uint32_t round = 0; round < kRoundsMax && machine_.advance(); round++) {}
        if (journal_.failed()) return;
        // Too little room, by arithmetic that was checked: promised to what cannot leave.
        if (grants_ == grants && last_refusal_ == STW_ERROR_BUDGET) return;
        if (grants_ == grants && !rotten) {
            journal_.fail("tensor %u is valid, its block at byte %llu cannot be read", id,
                          (unsigned long long)request.byte_begin);
            return;
        }
        while (!views_.empty()) release_one();
    }
}

void Program::destroy_everything()
{
    std::vector<TensorId> ids;
    for (const auto &[id, tensor] : model_.tensors) {
        if (tensor.alive) ids.push_back(id);
    }
    settle();
    for (const TensorId id : ids) {
        if (journal_.failed()) return;
        const Status status = machine_.core.destroy(id, out_);
        if (!status.ok())
            journal_.fail("destroy of tensor %u at the end: %s", id, status.sentence());
        model_.destroy(id);
        execute();
        check("destroy");
    }
    settle();
    if (journal_.failed()) return;
    for (PlaceId place = 0; place < setup_.config.places.size(); place++) {
        const PlaceUsage usage = machine_.core.usage(place);
        if (usage.used_blocks + usage.promised_blocks + usage.dirty_blocks > 0) {
            journal_.fail("place %u: %llu blocks used, %llu promised, no tensor is left", place,
                          (unsigned long long)usage.used_blocks,
                          (unsigned long long)usage.promised_blocks);
        }
    }
    check_planned();
    if (!machine_.memories.nvme.empty()) {
        journal_.fail("%zu blocks are left on nvme", machine_.memories.nvme.size());
    }
}

}  // namespace stepwell::simulation
