// SPDX-License-Identifier: Apache-2.0
// The random program: one step is either something that happens in the machine or a call. Here are
// the choice of a call and the calls about tensors, policies and time.
#include "tests/simulation/program.h"

namespace stepwell::simulation {
namespace {

constexpr uint32_t kTensorsMax = 24;

}  // namespace

Program::Program(const Options &options, Random &random, Journal &journal)
    : random_(random),
      journal_(journal),
      setup_(choose_setup(options, random)),
      machine_(setup_.config, random, journal),
      model_(machine_, journal, setup_),
      address_random_(options.seed ^ 0x616c6961736573),
      addresses_(machine_, address_random_, journal),
      plan_random_(1),
      claim_random_(options.seed ^ 0x636c61696d73),
      plan_(plan_random_),
      plans_(random.chance(50))
{
    const PlaceId nvme = static_cast<PlaceId>(setup_.config.places.size() - 1);
    const PlaceId host = static_cast<PlaceId>(nvme - 1);
    machine_.loop.add(*this);
    for (uint32_t phase = 0; phase < kPhases; ++phase) lookaheads_.emplace_back(host, nvme);
    if (plans_) machine_.core.set_victim_policy(&trace_);
    if (setup_.aliases) {
        machine_.core.set_aliases(&addresses_);
        addresses_.refusals_percent = address_random_.chance(30) ? 10 : 0;
    }
    machine_.faults = setup_.faults;
    journal_.line("%s", describe(setup_).c_str());
    for (uint32_t i = 0; setup_.full && i < kTensorsMax; ++i) create();
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
    if (!journal_.failed()) look_ahead();
    if (!journal_.failed()) break_deadlocks();
    if (journal_.failed()) return;
    const std::string broken = machine_.core.check();
    if (!broken.empty()) journal_.fail("after %s: %s", after, broken.c_str());
    check_addresses();
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
    if (setup_.aliases && address_random_.chance(10)) {
        touch();
    } else {
        act();
    }
    check("a call");
}

void Program::act()
{
    struct Choice {
        uint32_t weight;
        void (Program::*call)();
    };
    static const Choice kChoices[] = {
        {6, &Program::create},        {2, &Program::destroy},       {3, &Program::discard},
        {30, &Program::fetch},        {10, &Program::hit},          {8, &Program::scribble},
        {30, &Program::release_one},  {2, &Program::cancel},        {8, &Program::deliver_idle},
        {3, &Program::evict},         {2, &Program::change_policy}, {2, &Program::hint},
        {3, &Program::pass_time},     {4, &Program::claim},         {1, &Program::fail_one},
        {3, &Program::change_budget}, {2, &Program::score},         {2, &Program::plan},
        {3, &Program::mark_step},
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

void Program::deliver_idle()
{
    if (idle_gates_.empty()) return;
    std::swap(idle_gates_[random_.below(idle_gates_.size())], idle_gates_.back());
    const TensorId id = idle_gates_.back();
    idle_gates_.pop_back();
    if (!model_.tensors[id].alive) return;
    journal_.line("gate idle tensor %u", id);
    machine_.core.gate_idle(id, out_);
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
        forgive();
        machine_.write_faults = 0;
    }
    const TensorId id = any_tensor();
    if (id == kNone) return;
    const PlaceId place = static_cast<PlaceId>(random_.below(setup_.config.places.size()));
    if ((setup_.viewable & (1u << place)) == 0) return;
    machine_.core.release_hint(id, place, random_.chance(50), out_);
    execute();
}

void Program::forgive()
{
    machine_.core.forgive(out_);
    for (auto &[id, tensor] : model_.tensors) tensor.missed = false;
    execute();
}

// What an update or a reduce does to a tensor it could not complete.
void Program::fail_one()
{
    const TensorId id = any_tensor();
    if (id == kNone || random_.chance(70)) return;
    ModelTensor &tensor = model_.tensors[id];
    const bool used = tensor.readers + tensor.writers + tensor.fetches > 0;
    if (used || tensor.contents != Contents::kValid || tensor.in_parts) return;
    if (setup_.aliases && (!tensor.claims.empty() || machine_.core.in_use(id))) return;
    journal_.line("fail tensor %u", id);
    const ClaimId claim = setup_.aliases ? machine_.core.claim() : 0;
    if (claim != 0) machine_.core.claim_tensor(claim, id);
    machine_.core.fail(id, Status::error(STW_ERROR_SYNC, "a simulated update failed"));
    tensor.contents = Contents::kFailed;
    if (claim != 0) machine_.core.unclaim_tensor(claim, id, false, out_);
    execute();
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
