// SPDX-License-Identifier: Apache-2.0
// What the lanes of a rank ask of the core, each told to the model as well.
#include "tests/ranks/rank.h"

namespace stepwell::ranks {

Request Rank::request_of(const Use &use) const
{
    Request request;
    request.tensor = ids_[use.tensor];
    request.access = use.access;
    request.place = use.place;
    request.byte_count = setup_.tensors[use.tensor].spec.bytes;
    return request;
}

// With memory for requests, of one that is over.
FetchAsked Rank::new_asked()
{
    FetchAsked asked;
    if (spare_requests_.empty()) return asked;
    asked.requests = std::move(spare_requests_.back());
    spare_requests_.pop_back();
    return asked;
}

void Rank::keep_memory(FetchAsked &asked)
{
    asked.requests.clear();
    spare_requests_.push_back(std::move(asked.requests));
}

FetchId Rank::ask(Who who, FetchAsked asked)
{
    ++told_;
    const bool hint = (asked.flags & kFetchPrefetch) != 0;
    world_.counts.hints += hint;
    for (const Request &request : asked.requests) ++model_.tensors[request.tensor].fetches;
    const FetchId id = core_.fetch(asked, out_);
    last_fetch_ = id;
    if (asked.deadline != kNever) world_.wake(asked.deadline, Wake::kTick, number_);
    if (journal_.verbose()) {
        journal_.line("fetch %llu by %d, flags %x", static_cast<unsigned long long>(id),
                      static_cast<int>(who), asked.flags);
        for (const Request &request : asked.requests) {
            journal_.line("    tensor %u access %d place %u bytes %llu + %llu", request.tensor,
                          static_cast<int>(request.access), request.place,
                          static_cast<unsigned long long>(request.byte_begin),
                          static_cast<unsigned long long>(request.byte_count));
        }
    }
    Pending pending;
    pending.id = id;
    pending.asked = std::move(asked);
    pending.who = who;
    pending.in_shrink = shrinking_ != kNoPlace;
    pending_.push_back(std::move(pending));
    if (!hint) plan_due_ = true;
    return id;
}

// All gates open: pinned past the core, as a thread does that takes no lock.
bool Rank::try_hit(const Request *requests, size_t n, std::vector<View> *views)
{
    size_t pinned = 0;
    for (; pinned < n; ++pinned) {
        const Request &request = requests[pinned];
        if (request.access != Access::kRead || request.place == kAnyCpuPlace) break;
        if (!core_.gate(request.tensor, request.place).try_pin()) break;
    }
    if (pinned < n) {
        for (size_t i = 0; i < pinned; ++i) {
            (void)core_.gate(requests[i].tensor, requests[i].place).unpin();
        }
        return false;
    }
    for (size_t i = 0; i < n; ++i) {
        const Request &request = requests[i];
        Grant grant = core_.location(request.tensor, request.place);
        const uint64_t offset = grant.slot_offset + request.byte_begin;
        if (!setup_.config.places[request.place].maps) {
            grant.slot += static_cast<Slot>(offset / kBlockBytes);
        }
        grant.slot_offset = offset % kBlockBytes;
        grant.by_gate = true;
        journal_.line("hit tensor %u at place %u", request.tensor, request.place);
        views->push_back(model_.open(request, grant, nullptr, kByGate));
        if (journal_.failed()) return true;
        core_.touch(request.tensor, request.place);
        trace_.hit(phase_, request.tensor, request.place, request.byte_count);
        ++world_.counts.hits;
        ++told_;
        journal_.mix(request.tensor * 64 + request.place);
    }
    return true;
}

void Rank::give_back(const View &view, schedule::Hint hint)
{
    ++told_;
    const Request &request = view.request;
    const TensorId id = request.tensor;
    const bool discards = hint == schedule::Hint::kDiscard && view.claim == 0;
    const bool dies = discards && view.writes();
    journal_.line("release tensor %u at place %u%s%s", id, request.place,
                  view.by_gate ? " by gate" : "", dies ? ", dead" : "");
    journal_.mix(id * 128 + request.place);
    model_.close(view, ++stamp_, dies);
    if (journal_.failed() || world_.planted.now(Plant::kLeakedView)) return;
    plan_due_ = true;
    trace_.released(phase_, view.claim ? schedule::Lane::kUpdate : schedule::Lane::kProgram,
                    request, hint, world_.now());
    const bool far = hint == schedule::Hint::kFar;
    const bool near = hint == schedule::Hint::kNear;
    if (view.by_gate) {
        const bool last = core_.gate(id, request.place).unpin();
        // Open gates do not report, so whoever waits for room is told of every pin that goes.
        const bool tell = last || core_.waiting_fetches() > 0;
        const bool forgets = last && world_.planted.from_now_on(Plant::kForgottenPin);
        if (tell && !forgets) core_.gate_idle(id, out_);
        if (far || near) core_.release_hint(id, request.place, far, out_);
    } else {
        Release release;
        release.tensor = id;
        release.access = request.access;
        release.place = request.place;
        release.byte_begin = request.byte_begin;
        release.byte_count = request.byte_count;
        release.claim = view.claim;
        release.internal = view.internal;
        release.far = far;
        release.near = near;
        release.discard = dies;
        core_.release(release, out_);
        if (dies) model_.settle(id);
    }
    execute();
    if (discards && !dies) discard(id);
}

bool Rank::discard(TensorId id)
{
    ++told_;
    const ModelTensor &tensor = model_.tensors[id];
    const bool busy = tensor.readers + tensor.writers > 0 || !tensor.claims.empty();
    const Status status = core_.discard(id, out_);
    journal_.line("discard tensor %u: %d", id, status.code());
    const bool may_be_busy = busy || tensor.fetches > 0;
    if (status.ok() ? busy : (status.code() != STW_ERROR_BUSY || !may_be_busy)) {
        journal_.fail("rank %u: discard of tensor %u: %d with %u readers, %u writers", number_, id,
                      status.code(), tensor.readers, tensor.writers);
    }
    if (status.ok()) model_.settle(id);
    execute();
    return status.ok();
}

void Rank::destroy(uint32_t index)
{
    const TensorId id = ids_[index];
    if (id == kNone) return;
    ++told_;
    const ModelTensor &tensor = model_.tensors[id];
    uint32_t fetches = 0;  // hints of it are refused instead
    for (const Pending &at : pending_) {
        if ((at.asked.flags & kFetchPrefetch) != 0) continue;
        for (const Request &request : at.asked.requests) fetches += request.tensor == id;
    }
    const bool busy = tensor.readers + tensor.writers + fetches > 0 || !tensor.claims.empty();
    const Status status = core_.destroy(id, out_);
    journal_.line("destroy tensor %u: %d", id, status.code());
    if (status.code() != (busy ? STW_ERROR_BUSY : STW_OK)) {
        journal_.fail("rank %u: destroy of tensor %u: %d with %u readers, %u writers, %u fetches",
                      number_, id, status.code(), tensor.readers, tensor.writers, fetches);
    }
    if (!status.ok()) return;
    ids_[index] = kNone;
    execute();  // hints of it are refused, while the model still knows it
    model_.destroy(id);
}

void Rank::cancel(FetchId id, Status why)
{
    for (Pending &at : pending_) {
        if (at.id == id) at.told = why.code();
    }
    ++told_;
    journal_.line("cancel fetch %llu: %d", static_cast<unsigned long long>(id), why.code());
    core_.cancel(id, std::move(why), out_);
    execute();
    for (const Pending &at : pending_) {
        if (at.id != id) continue;
        journal_.fail("rank %u: fetch %llu was cancelled and has no answer", number_,
                      static_cast<unsigned long long>(id));
    }
}

}  // namespace stepwell::ranks
