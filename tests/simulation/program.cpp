// SPDX-License-Identifier: Apache-2.0
// The random program: one step is either something that happens in the machine or a call.
#include "tests/simulation/program.h"

namespace stepwell::simulation {
namespace {

constexpr uint32_t kTensorsMax = 24;
constexpr size_t kViewsMax = 10;
constexpr size_t kFetchesMax = 8;

Status cancelled()
{
    return Status::error(STW_ERROR_CANCELLED, "the simulated program changed its mind");
}

}  // namespace

Program::Program(const Options &options, Random &random, Journal &journal)
    : random_(random),
      journal_(journal),
      setup_(choose_setup(options, random)),
      machine_(setup_.config, random, journal, *this),
      model_(machine_, journal, setup_.config)
{
    machine_.faults = setup_.faults;
    journal_.line("%s", describe(setup_).c_str());
}

void Program::count(Outcome &outcome) const
{
    outcome.events = machine_.events;
    outcome.transfers = machine_.transfers;
    outcome.grants = grants_;
    outcome.refusals = refusals_;
}

void Program::check(const char *after)
{
    if (!journal_.failed()) break_deadlocks();
    if (journal_.failed()) return;
    const std::string broken = machine_.core.check();
    if (!broken.empty()) journal_.fail("after %s: %s", after, broken.c_str());
    const TensorId id = any_tensor();
    if (id != kNone) model_.check_tensor(id);
    if (!views_.empty()) {
        const View &view = views_[random_.below(views_.size())];
        if (view->request.access == Access::kRead) model_.check_bytes(*view, "under a view");
    }
}

void Program::step()
{
    if (!machine_.idle() && random_.chance(55)) {
        machine_.advance();
        check("a transfer");
        return;
    }
    machine_.events++;
    act();
    check("a call");
}

void Program::act()
{
    struct Choice {
        uint32_t weight;
        void (Program::*call)();
    };
    static const Choice kChoices[] = {
        {6, &Program::create},       {2, &Program::destroy},       {3, &Program::discard},
        {30, &Program::fetch},       {10, &Program::hit},          {8, &Program::scribble},
        {30, &Program::release_one}, {2, &Program::cancel},        {8, &Program::deliver_idle},
        {3, &Program::evict},        {2, &Program::change_policy}, {2, &Program::hint},
        {3, &Program::pass_time},    {4, &Program::claim},         {1, &Program::fail_one},
    };
    uint32_t total = 0;
    for (const Choice &choice : kChoices) total += choice.weight;
    uint64_t at = random_.below(total);
    for (const Choice &choice : kChoices) {
        if (at < choice.weight) {
            (this->*choice.call)();
            return;
        }
        at -= choice.weight;
    }
}

TensorId Program::any_tensor()
{
    std::vector<TensorId> alive;
    for (const auto &[id, tensor] : model_.tensors) {
        if (tensor.alive) alive.push_back(id);
    }
    return alive.empty() ? kNone : alive[random_.below(alive.size())];
}

void Program::create()
{
    uint32_t alive = 0;
    for (const auto &[id, tensor] : model_.tensors) alive += tensor.alive ? 1 : 0;
    if (alive >= kTensorsMax) return;
    const TensorSpec spec = choose_tensor(setup_, random_, created_++);
    Result<TensorId> made = machine_.core.create(spec);
    if (!made.ok()) {
        if (made.status().code() != STW_ERROR_BUDGET) {
            journal_.fail("create refused: %s", made.status().sentence());
        }
        return;
    }
    model_.create(made.value(), spec);
    journal_.line("create tensor %u: %llu bytes in pack %u + %llu, allowed %x home %u%s%s%s",
                  made.value(), (unsigned long long)spec.bytes, model_.tensors[made.value()].pack,
                  (unsigned long long)model_.tensors[made.value()].pack_offset, spec.policy.allowed,
                  spec.policy.home, spec.reads_zero ? " zero" : "", spec.agreed ? " agreed" : "",
                  spec.policy.retention == Retention::kPin ? " pin" : "");
}

void Program::destroy()
{
    const TensorId id = any_tensor();
    if (id == kNone || (!reading_back_ && random_.chance(60))) return;
    const ModelTensor &tensor = model_.tensors[id];
    const bool busy =
        tensor.readers + tensor.writers + tensor.fetches > 0 || !tensor.claims.empty();
    const Status status = machine_.core.destroy(id, out_);
    journal_.line("destroy tensor %u: %d", id, status.code());
    if (status.code() != (busy ? STW_ERROR_BUSY : STW_OK)) {
        journal_.fail("destroy of tensor %u: %d, with %u readers, %u writers, %u fetches", id,
                      status.code(), tensor.readers, tensor.writers, tensor.fetches);
    }
    execute();  // hints of it are refused
    if (status.ok()) model_.destroy(id);
}

void Program::discard()
{
    const TensorId id = any_tensor();
    if (id == kNone) return;
    ModelTensor &tensor = model_.tensors[id];
    const bool busy = tensor.readers + tensor.writers > 0 || !tensor.claims.empty();
    const Status status = machine_.core.discard(id, out_);
    journal_.line("discard tensor %u: %d", id, status.code());
    const bool may_be_busy = busy || tensor.fetches > 0;
    if (status.ok() ? busy : (status.code() != STW_ERROR_BUSY || !may_be_busy)) {
        journal_.fail("discard of tensor %u: %d, with %u readers, %u writers", id, status.code(),
                      tensor.readers, tensor.writers);
    }
    if (status.ok()) model_.settle(id);
    execute();
}

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
    const bool prefetch = asked.flags == kFetchPrefetch;
    asked.urgency = prefetch ? static_cast<Class>(random_.below(3)) : Class::kDemand;
    asked.priority = static_cast<int32_t>(random_.below(3));
    asked.owner = awake_owner();
    if (asked.owner == 0) return;
    const bool copies = kind == 3;
    if (copies) asked.flags = kFetchInternal;
    if (random_.chance(20)) asked.deadline = machine_.now() + random_.between(1, 5000);
    const uint64_t n = random_.chance(60) ? 1 : random_.between(2, 5);
    for (uint64_t i = 0; i < n; i++) {
        const TensorId id = any_tensor();
        if (id == kNone) return;
        const ModelTensor &tensor = model_.tensors[id];
        if (tensor.spec.agreed && (prefetch || !agreed_has_room(id))) continue;
        bool twice = false;
        for (const Request &other : asked.requests) twice = twice || other.tensor == id;
        // A second request of one call is mostly a mistake, sometimes made.
        if (twice && !random_.chance(5)) continue;
        asked.requests.push_back(choose_request(id, prefetch || copies));
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
    const FetchId id = machine_.core.fetch(asked, machine_.now(), out_);
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
}

Program::Claim *Program::claim_of(FetchId id)
{
    for (Claim &claim : claims_) {
        if (claim.fetch == id) return &claim;
    }
    return nullptr;
}

void Program::granted(const Granted &granted)
{
    grants_++;
    journal_.line("  granted %llu", (unsigned long long)granted.fetch);
    const auto found = fetches_.find(granted.fetch);
    if (found == fetches_.end()) {
        journal_.fail("fetch %llu is answered but not asked, or twice",
                      (unsigned long long)granted.fetch);
        return;
    }
    const FetchAsked asked = std::move(found->second.asked);
    fetches_.erase(found);
    answered(asked, granted.fetch);
    const bool prefetch = (asked.flags & kFetchPrefetch) != 0;
    if (granted.grants.size() != (prefetch ? 0 : asked.requests.size())) {
        journal_.fail("%zu grants for %zu requests", granted.grants.size(), asked.requests.size());
        return;
    }
    Claim *claim = asked.claim != 0 ? claim_of(granted.fetch) : nullptr;
    for (size_t i = 0; i < granted.grants.size() && !journal_.failed(); i++) {
        const Grant &grant = granted.grants[i];
        View view =
            model_.open(asked.requests[i], grant, grant.by_gate, asked.claim, granted.fetch);
        view->internal = (asked.flags & kFetchInternal) != 0;
        view->owner = view->internal || asked.claim != 0 ? 0 : asked.owner;
        if (claim) {
            claim->fetch = 0;
            claim->view = std::move(view);
        } else {
            views_.push_back(std::move(view));
        }
    }
}

void Program::refused(const Refused &refused)
{
    refusals_++;
    last_refusal_ = refused.status.code();
    journal_.line("  refused %llu: %d %s", (unsigned long long)refused.fetch, refused.status.code(),
                  refused.status.sentence());
    const auto found = fetches_.find(refused.fetch);
    if (found == fetches_.end()) {
        journal_.fail("fetch %llu is refused but not asked, or answered before",
                      (unsigned long long)refused.fetch);
        return;
    }
    const std::string why = model_.justify(found->second, refused.status);
    if (!why.empty())
        journal_.fail("fetch %llu: %s", (unsigned long long)refused.fetch, why.c_str());
    if (Claim *claim = claim_of(refused.fetch)) claim->fetch = 0;
    answered(found->second.asked, refused.fetch);
    fetches_.erase(found);
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
}

void Program::scribble()
{
    if (views_.empty()) return;
    ModelView &view = *views_[random_.below(views_.size())];
    if (view.request.access == Access::kRead) return;
    const uint64_t first = pieces_begin(view.request);
    const uint64_t count = pieces_end(view.request) - first;
    for (uint64_t i = 0; i < 4; i++) model_.scribble(view, first + random_.below(count));
}

void Program::release_one()
{
    if (!pick_releasable()) return;
    View view = std::move(views_.back());
    views_.pop_back();
    release(std::move(view));
}

void Program::release(View view)
{
    journal_.line("release tensor %u access %d place %u%s", view->request.tensor,
                  static_cast<int>(view->request.access), view->request.place,
                  view->by_gate ? " by gate" : "");
    if (view->by_gate && view->request.access == Access::kRead) {
        model_.close(*view, Model::End::kGood);
        if (!journal_.failed()) release_by_gate(*view);
    } else {
        release_by_core(*view);
    }
    execute();
}

void Program::release_by_gate(const ModelView &view)
{
    const TensorId id = view.request.tensor;
    const bool last = machine_.core.gate(id, view.request.place).unpin();
    // Whoever waits for room is told of every pin that goes, since open gates do not report.
    const bool tell = last || !machine_.core.stuck_fetches().empty();
    if (tell && random_.chance(50)) {
        idle_gates_.push_back(id);
    } else if (tell) {
        machine_.core.gate_idle(id, machine_.now(), out_);
    }
    if (random_.chance(20)) {
        machine_.core.release_hint(id, view.request.place, random_.chance(50), machine_.now(),
                                   out_);
    }
}

void Program::release_by_core(const ModelView &closed)
{
    ModelView view = closed;
    const bool write = view.request.access != Access::kRead;
    Release release;
    release.tensor = view.request.tensor;
    release.access = view.request.access;
    release.place = view.request.place;
    release.byte_begin = view.request.byte_begin;
    release.byte_count = view.request.byte_count;
    release.claim = view.claim;
    release.internal = view.internal;
    const uint64_t kind = random_.below(20);
    release.far = kind < 4;
    release.near = kind == 4 || kind == 5;
    release.abandon = write && view.claim == 0 && kind == 6;
    release.discard = write && view.claim == 0 && kind == 7;
    bool touched = false;
    for (const Stamp stamp : view.written) touched = touched || stamp != kAnything;
    release.unshown = write && view.claim == 0 && kind == 8 && !touched;
    const bool dies = release.abandon || release.discard ||
                      (release.unshown && view.request.access == Access::kWrite);
    // A view nobody saw, of bytes that were there, ends as if it had not been.
    model_.close(view, dies ? Model::End::kDead : Model::End::kGood);
    if (journal_.failed()) return;
    machine_.core.release(release, machine_.now(), out_);
    if (!dies) return;
    journal_.line("  the contents die");
    model_.settle(view.request.tensor);
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

void Program::deliver_idle()
{
    if (idle_gates_.empty()) return;
    std::swap(idle_gates_[random_.below(idle_gates_.size())], idle_gates_.back());
    const TensorId id = idle_gates_.back();
    idle_gates_.pop_back();
    if (!model_.tensors[id].alive) return;
    journal_.line("gate idle tensor %u", id);
    machine_.core.gate_idle(id, machine_.now(), out_);
    execute();
}

void Program::evict()
{
    if (random_.chance(30)) {
        machine_.core.write_back_all(out_);
        journal_.line("write back all");
    } else {
        const TensorId id = any_tensor();
        if (id == kNone) return;
        const PlaceId place = static_cast<PlaceId>(random_.below(setup_.config.places.size()));
        if ((setup_.viewable & (1u << place)) == 0) return;
        journal_.line("evict tensor %u from place %u", id, place);
        machine_.core.evict(id, place, out_);
    }
    execute();
}

void Program::change_policy()
{
    const TensorId id = any_tensor();
    if (id == kNone || model_.tensors[id].spec.agreed) return;
    Policy policy = model_.tensors[id].spec.policy;
    policy.retention = static_cast<Retention>(random_.below(3));
    policy.priority = static_cast<int32_t>(random_.below(3));
    if (machine_.core.set_policy(id, policy).ok()) model_.tensors[id].spec.policy = policy;
}

void Program::hint()
{
    if (machine_.write_faults > 0 && random_.chance(30)) {
        journal_.line("forgive");
        machine_.core.forgive();
        machine_.write_faults = 0;
    }
    const TensorId id = any_tensor();
    if (id == kNone) return;
    const PlaceId place = static_cast<PlaceId>(random_.below(setup_.config.places.size()));
    if ((setup_.viewable & (1u << place)) == 0) return;
    machine_.core.release_hint(id, place, random_.chance(50), machine_.now(), out_);
    execute();
}

// What an update or a reduce does to a tensor it could not complete.
void Program::fail_one()
{
    const TensorId id = any_tensor();
    if (id == kNone || random_.chance(70)) return;
    ModelTensor &tensor = model_.tensors[id];
    const bool used = tensor.readers + tensor.writers + tensor.fetches > 0;
    if (used || tensor.contents != Contents::kValid) return;
    journal_.line("fail tensor %u", id);
    machine_.core.fail(id, Status::error(STW_ERROR_SYNC, "a simulated update failed"));
    tensor.contents = Contents::kFailed;
}

void Program::pass_time()
{
    machine_.wait(random_.below(500));
    if (machine_.core.next_deadline() > machine_.now()) return;
    journal_.line("tick");
    machine_.core.tick(machine_.now(), out_);
    execute();
    for (const auto &[id, fetch] : fetches_) {
        if (fetch.asked.deadline <= machine_.now()) {
            journal_.fail("fetch %llu outlives its deadline", (unsigned long long)id);
        }
    }
}

}  // namespace stepwell::simulation
