// SPDX-License-Identifier: Apache-2.0
// The shell of a rank: commands out of the core, events into it, and what is checked after each.
#include "tests/ranks/rank.h"

#include <algorithm>

namespace stepwell::ranks {
namespace {

constexpr Instant kNoLinkNs = 2000;  // of what moves no bytes over a link
constexpr Instant kHangNs = 60'000'000;

}  // namespace

Rank::Rank(World &world, uint32_t number, uint64_t seed)
    : world_(world),
      number_(number),
      setup_(world.setup),
      journal_(world.journal),
      random_(seed),
      memory_(setup_.config, world.journal),
      core_(setup_.config),
      model_(setup_.config, memory_, core_, world.journal),
      ids_(setup_.tensors.size(), kNone),
      handles_(setup_.handles)
{
    loop_.add(*this);
    for (uint32_t phase = 0; phase < kPhases; ++phase) {
        lookaheads_.emplace_back(kHost, kNvme);
        for (const schedule::Link &link : setup_.machine.links) {
            const auto speed = static_cast<uint64_t>(link.bytes_per_s);
            if (random_.chance(80)) lookaheads_[phase].set_bandwidth(link.from, link.to, speed);
        }
    }
    for (PlaceId place = 0; place < kPlaces; ++place) {
        budget_[place] = setup_.config.places[place].blocks;
    }
    if (random_.chance(60)) core_.set_victim_policy(&trace_);
    looks_ahead_ = random_.chance(60);
}

void Rank::start()
{
    for (uint32_t index = 0; index < ids_.size(); ++index) {
        if (!setup_.tensors[index].passing) create(index);
    }
    world_.wake(world_.now() + 1, Wake::kCompute, number_);
    arm_loader(random_.below(50000));
}

void Rank::create(uint32_t index)
{
    if (ids_[index] != kNone) return;
    const TensorSpec &spec = setup_.tensors[index].spec;
    ++told_;
    const Result<TensorId> made = core_.create(spec);
    if (!made.ok()) {
        Result<TensorId> refused = made;
        const Status status = std::move(refused.status());
        if (status.code() != STW_ERROR_BUDGET || status.sentence()[0] == '\0') {
            journal_.fail("rank %u: create refused: %s", number_, status.sentence());
        }
        return;
    }
    ids_[index] = made.value();
    model_.create(made.value(), spec);
    journal_.line("create '%s' as tensor %u in pack %u", spec.name.c_str(), made.value(),
                  core_.pack_of(made.value()));
}

// -------------------------------------------------------------------------------- commands out --

void Rank::forget(const residency::Forget &forget)
{
    if (!world_.planted.now(Plant::kForgottenForget)) memory_.forget(forget);
}

void Rank::swap_memory(std::vector<Swap> &swaps)
{
    for (const Swap &swap : swaps) memory_.swap(swap);
}

void Rank::pack_freed(PackId pack)
{
    for (const Sent &flight : flights_) {
        if (flight.transfer.pack != pack) continue;
        journal_.fail("pack %u is freed under transfer %llu", pack, number(flight.transfer.id));
    }
    memory_.free(pack);
}

void Rank::submit(std::vector<Transfer> &transfers, Commands &)
{
    for (const Transfer &transfer : transfers) begin_transfer(transfer);
}

void Rank::promote(TransferId id)
{
    const Sent *flight = flight_of(id);
    if (!flight) {
        journal_.fail("transfer %llu is promoted and not in flight", number(id));
    } else if (flight->job != kNone) {
        world_.promote(flight->job);
    }
}

Sent *Rank::flight_of(TransferId id)
{
    for (Sent &flight : flights_) {
        if (flight.transfer.id == id) return &flight;
    }
    return nullptr;
}

void Rank::begin_transfer(const Transfer &transfer)
{
    journal_.line("  transfer %llu kind %d block %u (pack %u + %u) %d:%d to %d:%d class %d",
                  number(transfer.id), static_cast<int>(transfer.kind), transfer.block,
                  transfer.pack, index_of(transfer), static_cast<int8_t>(transfer.from),
                  static_cast<int>(transfer.from_slot), transfer.to,
                  static_cast<int>(transfer.to_slot), static_cast<int>(transfer.urgency));
    journal_.mix(transfer.id ^ (uint64_t{transfer.block} << 32) ^ (uint64_t{transfer.to} << 24));
    ++world_.counts.transfers;
    if (flight_of(transfer.id)) {
        journal_.fail("transfer id %llu is used twice", number(transfer.id));
        return;
    }
    Sent flight;
    flight.transfer = transfer;
    flight.job = kNone;
    flight.deaths = model_.deaths(transfer.pack);
    memory_.begin(flight);
    if (journal_.failed()) return;
    flight.fails = world_.choose_fault(number_, transfer);
    const bool hangs = world_.disturbance.hangs[number_] > 0;
    if (hangs) --world_.disturbance.hangs[number_];
    flights_.push_back(flight);
    if (hangs || transfer.kind != TransferKind::kMove) {
        const Instant takes = hangs ? kHangNs : kNoLinkNs + random_.below(kNoLinkNs);
        world_.wake(world_.now() + takes, Wake::kTransfer, number_, transfer.id);
        return;
    }
    world_.submit(number_, &flights_.back());
}

// --------------------------------------------------------------------------------- events into --

void Rank::transfer_ends(TransferId id)
{
    Sent *found = flight_of(id);
    if (!found || journal_.failed()) return;
    if (world_.planted.now(Plant::kLostCompletion)) return;
    Sent flight = *found;
    *found = flights_.back();
    flights_.pop_back();
    const bool reads_disk =
        flight.transfer.kind == TransferKind::kMove && flight.transfer.from == kNvme;
    Image brought = flight.taken;
    if (reads_disk && world_.planted.now(Plant::kWrongBytes)) brought.fill(memory_.garbage());
    const bool early = flight.fails == STW_OK && flight.transfer.kind == TransferKind::kMove &&
                       world_.planted.now(Plant::kEarlyCompletion);
    const bool arrives = flight.fails == STW_OK && !early;
    memory_.end(flight, arrives);
    if (brought != flight.taken && flight.transfer.to != kNvme) {
        memory_.at(flight.transfer.to, flight.transfer.to_slot) = brought;
    }
    Status status;
    if (flight.fails != STW_OK && !world_.planted.now(Plant::kFailureIsGood)) {
        ++world_.counts.failed_transfers;
        status = Status::error(flight.fails, "a simulated fault of transfer %llu", number(id));
        if (flight.transfer.pack >= model_.hurt.size())
            model_.hurt.resize(flight.transfer.pack + 1);
        model_.hurt[flight.transfer.pack] = true;
        model_.write_failed |= flight.transfer.to > flight.transfer.from;
    }
    journal_.line("transfer %llu ends%s", number(id), status.ok() ? "" : ": fault");
    journal_.mix(id * 8 + static_cast<uint64_t>(status.ok()));
    ++told_;
    plan_due_ = true;
    const std::vector<TensorId> hurt = status.ok() ? std::vector<TensorId>() : hurt_by(flight);
    failed_.clear();
    core_.transfer_done(id, status, out_);
    execute();
    for (const TensorId tensor : hurt) {
        if (std::count(failed_.begin(), failed_.end(), tensor) > 0 || journal_.failed()) continue;
        journal_.fail("rank %u: a write of tensor %u failed and nobody is told", number_, tensor);
    }
}

// What could not be written is told to those it hurts, unless nobody wants it any more.
std::vector<TensorId> Rank::hurt_by(const Sent &flight) const
{
    std::vector<TensorId> hurt;
    const bool writes = flight.transfer.to == kNvme;
    if (!writes || flight.deaths != model_.deaths(flight.transfer.pack)) return hurt;
    for (TensorId id = 0; id < model_.tensors.size(); ++id) {
        const ModelTensor &tensor = model_.tensors[id];
        if (tensor.alive && tensor.pack == flight.transfer.pack && tensor.readable())
            hurt.push_back(id);
    }
    return hurt;
}

Rank::Pending Rank::take_pending(FetchId id)
{
    for (size_t i = 0; i < pending_.size(); ++i) {
        if (pending_[i].id != id) continue;
        std::swap(pending_[i], pending_.back());
        Pending taken = std::move(pending_.back());
        pending_.pop_back();
        return taken;
    }
    journal_.fail("rank %u: fetch %llu is answered and was not asked, or twice", number_,
                  number(id));
    return {};
}

bool Rank::granted(Granted &granted, Commands &)
{
    Pending pending = take_pending(granted.fetch);
    if (journal_.failed()) return true;
    ++world_.counts.grants;
    const bool hint = (pending.asked.flags & kFetchPrefetch) != 0;
    journal_.line("  fetch %llu is granted", number(granted.fetch));
    journal_.mix(granted.fetch * 16 + 1);
    if (granted.grants.size() != (hint ? 0 : pending.asked.requests.size())) {
        journal_.fail("%zu grants for %zu requests", granted.grants.size(),
                      pending.asked.requests.size());
        return true;
    }
    views_.clear();
    for (size_t i = 0; i < granted.grants.size() && !journal_.failed(); ++i) {
        views_.push_back(model_.open(pending.asked.requests[i], granted.grants[i], &pending.asked,
                                     granted.fetch));
        views_.back().owner = pending.asked.owner;
        model_.tensors[pending.asked.requests[i].tensor].fetches -= 1;
    }
    for (size_t i = granted.grants.size(); i < pending.asked.requests.size(); ++i) {
        model_.tensors[pending.asked.requests[i].tensor].fetches -= 1;
    }
    if (journal_.failed()) return true;
    switch (pending.who) {
    case Who::kProgram: handles_[setup_.program[cursor_].handle].views.swap(views_); break;
    case Who::kUpdate: chunk_ = views_.front(); break;
    case Who::kLoader:
    case Who::kReadBack: loaded_.insert(loaded_.end(), views_.begin(), views_.end()); break;
    default: break;
    }
    answered(pending, {});
    return true;
}

bool Rank::refused(Refused &refused, Commands &)
{
    Pending pending = take_pending(refused.fetch);
    if (journal_.failed()) return true;
    ++world_.counts.refusals;
    const Status &status = refused.status;
    journal_.line("  fetch %llu is refused: %d %s", number(refused.fetch), status.code(),
                  status.sentence());
    journal_.mix(refused.fetch * 16 + 2 + (static_cast<uint64_t>(-status.code()) << 48));
    const std::string why = model_.justify(pending, status);
    if (!why.empty()) {
        journal_.fail("rank %u: fetch %llu is refused with %d \"%s\" %s", number_,
                      number(refused.fetch), status.code(), status.sentence(), why.c_str());
    }
    world_.counts.timeouts += status.code() == STW_ERROR_TIMEOUT;
    for (const Request &request : pending.asked.requests) {
        model_.tensors[request.tensor].fetches -= 1;
    }
    answered(pending, status);
    return true;
}

void Rank::answered(Pending &pending, const Status &status)
{
    const Instant now = world_.now();
    switch (pending.who) {
    case Who::kProgram:
        trace_.waited(phase_, since_, now);
        program_ = State::kReady;
        program_fetch_ = 0;
        ++cursor_;
        break;
    case Who::kUpdate:
        if (status.ok()) {
            update_ = State::kComputes;
            world_.wake(now + random_.between(10, 120) * 1000, Wake::kUpdate, number_);
            break;
        }
        update_ = State::kReady;
        fail_tensor(jobs_.front().tensors.back(), status);
        next_tensor(jobs_.front(), false);
        break;
    case Who::kPlan: end_hint(pending.id, status); break;
    default: break;
    }
    if (loader_sleeps_ == pending.id) loader_sleeps_ = 0;
    if (pending.who == Who::kLoader) arm_loader(random_.between(1, setup_.loader_gap_us) * 1000);
    keep_memory(pending.asked);
}

// ------------------------------------------------------------------------------------- checked --

void Rank::go_on()
{
    execute();
    do {
        while (!journal_.failed() && (advance_program() || advance_updates())) {}
        if (journal_.failed() || (told_ == looked_at_ && !plan_due_)) return;
        if (plan_due_) look_ahead();
        while (!journal_.failed() && break_deadlock()) {}
        if (shrinking_ != kNoPlace && !journal_.failed()) go_on_shrinking();
        // Who gave way, or has room now, goes on.
    } while (advance_program() || advance_updates());
    if (!journal_.failed()) check_now();
    looked_at_ = told_;
}

void Rank::check_now()
{
    for (PlaceId place = 0; place < kPlaces; ++place) {
        memory_.check_budget(place, budget_[place]);
        if (core_.used_blocks(place) <= budget_[place]) continue;
        journal_.fail("rank %u: place %u uses %llu blocks of %u", number_, place,
                      number(core_.used_blocks(place)), budget_[place]);
    }
    unchecked_ += told_ - looked_at_;
    if (unchecked_ < world_.options.check_every) return;
    unchecked_ = 0;
    check_all();
}

void Rank::check_all()
{
    ++world_.counts.checks;
    const std::string broken = core_.check();
    if (!broken.empty()) journal_.fail("rank %u: %s", number_, broken.c_str());
    if (core_.transfers_in_flight() != flights_.size()) {
        journal_.fail("rank %u: the core has %u transfers in flight, the links have %zu", number_,
                      core_.transfers_in_flight(), flights_.size());
    }
    size_t planned = 0;
    size_t flying = 0;
    for (const Pending &at : pending_) planned += at.who == Who::kPlan;
    for (const schedule::Lookahead &at : lookaheads_) flying += at.in_flight();
    if (planned != flying) {
        journal_.fail("rank %u: %zu planned fetches wait, the plans know of %zu", number_, planned,
                      flying);
    }
    for (const Pending &at : pending_) {
        if (!core_.is_waiting(at.id)) {
            journal_.fail("rank %u: fetch %llu has no answer, and the core does not know it",
                          number_, number(at.id));
        }
        if (at.asked.deadline < world_.now()) {
            journal_.fail("rank %u: fetch %llu outlives its deadline", number_, number(at.id));
        }
    }
    for (TensorId id = 0; id < model_.tensors.size(); ++id) model_.check_tensor(id);
}

}  // namespace stepwell::ranks
