// SPDX-License-Identifier: Apache-2.0
// Fetches of the random program: what is asked, the core's answers, hits past the core, and changes
// of mind.
#include "tests/simulation/program.h"

namespace stepwell::simulation {
namespace {

constexpr size_t kViewsMax = 10;
constexpr size_t kFetchesMax = 8;

Status cancelled()
{
    return Status::error(STW_ERROR_CANCELLED, "the simulated program changed its mind");
}

}  // namespace

// Gathered wholes are given room by their ledger; this program keeps the same arithmetic.
bool Program::agreed_has_room(TensorId id) const
{
    uint64_t blocks = 0;
    for (const auto &[other, tensor] : model_.tensors) {
        if (!tensor.alive || !tensor.spec.agreed) continue;
        const bool there = tensor.contents != Contents::kEmpty || tensor.fetches > 0 ||
                           tensor.writers > 0 || other == id;
        if (there) blocks += machine_.core.pack_blocks(other);
    }
    return blocks <= setup_.config.places[0].whole_blocks;
}

Request Program::choose_request(TensorId id, bool prefetch)
{
    const ModelTensor &tensor = model_.tensors[id];
    Request request;
    request.tensor = id;
    request.place = choose_place(setup_, random_, tensor.spec.policy);
    const uint64_t kind = random_.below(10);
    const bool readable = tensor.readable() || random_.chance(5);
    request.access = prefetch                ? Access::kRead
                     : kind < 5 && readable  ? Access::kRead
                     : kind < 8 || !readable ? Access::kWrite
                                             : Access::kReadWrite;
    if (request.access == Access::kWrite && random_.chance(10)) {
        request.access = Access::kWriteEmpty;
    }
    // Room for what will be written, as a lookahead asks for it.
    const bool leaves = tensor.spec.policy.retention != Retention::kPin;
    const bool vacant = tensor.contents == Contents::kEmpty && !machine_.core.blocks_of(id).shares;
    if (prefetch && vacant && leaves && random_.chance(85)) request.access = Access::kWriteEmpty;
    request.byte_count = tensor.spec.bytes;
    if (random_.chance(40) && !tensor.spec.agreed) {
        const uint64_t pieces = tensor.newest.size();
        const uint64_t first = random_.below(pieces);
        const uint64_t count = random_.between(1, pieces - first);
        request.byte_begin = first * kPieceBytes;
        request.byte_count = std::min(count * kPieceBytes, tensor.spec.bytes - request.byte_begin);
    }
    return request;
}

void Program::fetch()
{
    if (views_.size() >= kViewsMax || fetches_.size() >= kFetchesMax) return;
    FetchAsked asked;
    const uint64_t kind = random_.below(10);
    if (kind < 2) asked.flags = kFetchPrefetch;
    if (kind == 2) asked.flags = kFetchTry;
    if (kind >= 7) asked.flags = kFetchWaitRoom;
    if (kind >= 2 && random_.chance(20)) asked.flags |= kFetchLent;
    const bool prefetch = asked.flags == kFetchPrefetch;
    asked.urgency = prefetch ? static_cast<Class>(random_.below(3)) : Class::kDemand;
    asked.priority = static_cast<int32_t>(random_.below(3));
    asked.owner = awake_owner();
    if (asked.owner == 0) return;
    const bool copies = kind == 3;
    if (copies) asked.flags |= kFetchInternal;
    if (random_.chance(20)) asked.deadline = machine_.now() + random_.between(1, 5000);
    const uint64_t n = random_.chance(60) ? 1 : random_.between(2, 5);
    for (uint64_t i = 0; i < n; i++) {
        const TensorId expected = expected_tensor();
        const TensorId id = expected != kNone ? expected : any_tensor();
        if (id == kNone) return;
        const ModelTensor &tensor = model_.tensors[id];
        if (tensor.spec.agreed && (prefetch || !agreed_has_room(id))) continue;
        bool twice = false;
        for (const Request &other : asked.requests) twice = twice || other.tensor == id;
        // A second request of one call is mostly a mistake, sometimes made.
        if (twice && !random_.chance(5)) continue;
        asked.requests.push_back(choose_request(id, prefetch || copies));
        if (copies) asked.requests.back().access = Access::kRead;
        if (tensor.spec.agreed) break;
    }
    if (asked.requests.empty()) return;
    ask(asked);
    const bool waits = !prefetch && fetches_.count(last_fetch_) > 0;
    if (waits && random_.chance(80)) sleepers_[asked.owner] = last_fetch_;
}

void Program::ask(const FetchAsked &asked)
{
    const bool prefetch = (asked.flags & kFetchPrefetch) != 0;
    for (const Request &request : asked.requests) {
        ModelTensor &tensor = model_.tensors[request.tensor];
        ++(prefetch ? tensor.hints : tensor.fetches);
    }
    note(asked);
    const FetchId id = machine_.core.fetch(asked, out_);
    if (asking_) asking_->asked(id);
    journal_.line("fetch %llu flags %x claim %llu", (unsigned long long)id, asked.flags,
                  (unsigned long long)asked.claim);
    for (const Request &request : asked.requests) {
        journal_.line("    tensor %u access %d place %u bytes %llu + %llu", request.tensor,
                      static_cast<int>(request.access), request.place,
                      (unsigned long long)request.byte_begin,
                      (unsigned long long)request.byte_count);
    }
    last_fetch_ = id;
    if (!fetches_.emplace(id, ModelFetch{asked, {}}).second) {
        journal_.fail("fetch id %llu is used twice", (unsigned long long)id);
    }
    for (Claim &claim : claims_) {
        if (asked.claim == claim.id) claim.fetch = id;
    }
    execute();
    check_read_beside(id, asked);
}

Program::Claim *Program::claim_of(FetchId id)
{
    for (Claim &claim : claims_) {
        if (claim.fetch == id) return &claim;
    }
    return nullptr;
}

bool Program::granted(Granted &granted, Commands &)
{
    grants_++;
    journal_.line("  granted %llu", (unsigned long long)granted.fetch);
    const auto found = fetches_.find(granted.fetch);
    if (found == fetches_.end()) {
        journal_.fail("fetch %llu is answered but not asked, or twice",
                      (unsigned long long)granted.fetch);
        return true;
    }
    const FetchAsked asked = std::move(found->second.asked);
    fetches_.erase(found);
    hint_over(granted.fetch, Status());
    answered(asked, granted.fetch);
    const bool prefetch = (asked.flags & kFetchPrefetch) != 0;
    if (granted.grants.size() != (prefetch ? 0 : asked.requests.size())) {
        journal_.fail("%zu grants for %zu requests", granted.grants.size(), asked.requests.size());
        return true;
    }
    Claim *claim = asked.claim != 0 ? claim_of(granted.fetch) : nullptr;
    for (size_t i = 0; i < granted.grants.size() && !journal_.failed(); i++) {
        const Grant &grant = granted.grants[i];
        View view = model_.open(asked.requests[i], grant, grant.by_gate, asked.claim, granted.fetch,
                                (asked.flags & kFetchLent) != 0);
        view->internal = (asked.flags & kFetchInternal) != 0;
        view->touched = asked.touched != kNone;
        for (const Slot slot : view->pinned)
            addresses_.touched[{view->request.place, slot}] += view->touched;
        view->owner = view->internal || asked.claim != 0 ? 0 : asked.owner;
        if (claim) {
            claim->fetch = 0;
            claim->view = std::move(view);
        } else {
            views_.push_back(std::move(view));
        }
    }
    return true;
}

bool Program::refused(Refused &refused, Commands &)
{
    refusals_++;
    last_refusal_ = refused.status.code();
    journal_.line("  refused %llu: %d %s", (unsigned long long)refused.fetch, refused.status.code(),
                  refused.status.sentence());
    const auto found = fetches_.find(refused.fetch);
    if (found == fetches_.end()) {
        journal_.fail("fetch %llu is refused but not asked, or answered before",
                      (unsigned long long)refused.fetch);
        return true;
    }
    const bool no_mapping = refused.status.code() == STW_ERROR_LIMIT && addresses_.take_refusal();
    const FetchAsked &touch = found->second.asked;
    const bool is_made = touch.touched != kNone && refused.status.code() == STW_ERROR_EXISTS;
    std::string why;
    if (is_made && !is_shown(touch, addresses_.table()) && !is_shown(touch, addresses_.hidden))
        why = "it was refused as shown, and was not";
    if (!is_made && !no_mapping) why = model_.justify(found->second, refused.status);
    if (!why.empty())
        journal_.fail("fetch %llu: %s", (unsigned long long)refused.fetch, why.c_str());
    if (Claim *claim = claim_of(refused.fetch)) claim->fetch = 0;
    hint_over(refused.fetch, refused.status);
    answered(found->second.asked, refused.fetch);
    fetches_.erase(found);
    return true;
}

// A thread that finds the gate open passes by without the core.
void Program::hit()
{
    const TensorId id = any_tensor();
    if (id == kNone || views_.size() >= kViewsMax) return;
    Request request = choose_request(id, true);
    const uint64_t owner = awake_owner();
    if (request.place == kAnyCpuPlace || owner == 0) return;
    if (!machine_.core.gate(id, request.place).try_pin()) return;
    Grant grant = machine_.core.location(id, request.place);
    const uint64_t offset = grant.slot_offset + request.byte_begin;
    if (!setup_.config.places[request.place].maps) {
        grant.slot += static_cast<Slot>(offset / kBlockBytes);
    }
    grant.slot_offset = offset % kBlockBytes;
    journal_.line("hit tensor %u at place %u slot %u", id, request.place, grant.slot);
    views_.push_back(model_.open(request, grant, true, 0, kByGate));
    views_.back()->owner = owner;
    if (random_.chance(70)) machine_.core.touch(id, request.place);
    if (plans_) trace_.hit(phase_, id, request.place, model_.tensors[id].spec.bytes);
}

void Program::cancel()
{
    if (fetches_.empty()) return;
    auto at = fetches_.begin();
    std::advance(at, static_cast<std::ptrdiff_t>(random_.below(fetches_.size())));
    const std::vector<FetchId> stuck = machine_.core.stuck_fetches();
    const FetchId id = stuck.empty() || random_.chance(50) ? at->first : stuck.back();
    if (fetches_.count(id) == 0) {
        journal_.fail("fetch %llu is stuck but was answered", (unsigned long long)id);
        return;
    }
    fetches_.at(id).cancelled = cancelled();
    journal_.line("cancel %llu", (unsigned long long)id);
    machine_.core.cancel(id, cancelled(), out_);
    execute();
    if (!journal_.failed() && fetches_.count(id) > 0) {
        journal_.fail("fetch %llu was cancelled and has no answer", (unsigned long long)id);
    }
}

}  // namespace stepwell::simulation
