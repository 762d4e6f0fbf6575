// SPDX-License-Identifier: Apache-2.0
// Gathered tensors, as the program fetches and releases them: decisions of the ledger, and views.
#include "lib/runtime/ranks/wholes.h"

#include "lib/residency/core.h"
#include "lib/runtime/addresses/addresses.h"
#include "lib/runtime/addresses/metadata.h"
#include "lib/runtime/addresses/sink.h"
#include "lib/runtime/dispatch/snapshot.h"
#include "lib/runtime/group/state.h"
#include "lib/runtime/machine/meters.h"
#include "lib/runtime/ranks/collectives.h"
#include "lib/runtime/ranks/memory.h"
#include "lib/runtime/ranks/shards.h"
#include "lib/runtime/recording/grounds.h"
#include "lib/runtime/recording/recorder.h"
#include "lib/runtime/tensors/zeros.h"
#include "lib/support/assert.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace stepwell {

using residency::TensorId;

using gathering::WholeEnd;
using gathering::WholeId;
using residency::Access;

namespace {

uint64_t whole_bytes_of(const stw_tensor &tensor)
{
    return tensor.sharding->padded_elements() * (tensor.element_bits / 8);
}

WholeEnd end_of(bool spoilt)
{
    return spoilt ? WholeEnd::kSpoilt : WholeEnd::kView;
}

std::vector<WholeId> wholes_of(const std::vector<RequestedRange> &ranges)
{
    std::vector<WholeId> wholes;
    for (const RequestedRange &range : ranges) wholes.push_back(range.tensor->sharding->whole_id);
    return wholes;
}

}  // namespace

// ------------------------------------------------------------------------------------- fetch ----

// All tensors of a call together, in the room for gathered tensors.
Status Wholes::wholes_fit(std::vector<const stw_tensor *> &tensors) const
{
    if (tensors.empty()) return {};
    std::sort(tensors.begin(), tensors.end());
    tensors.erase(std::unique(tensors.begin(), tensors.end()), tensors.end());
    uint64_t blocks = 0;
    for (const stw_tensor *tensor : tensors) {
        blocks += std::max<uint64_t>(
            (whole_bytes_of(*tensor) + machine_.block_bytes - 1) / machine_.block_bytes, 1);
    }
    const uint64_t budget = machine_.ranks->queue.gathers.ledger().budget_blocks();
    if (blocks <= budget) return {};
    Status status = Status::error(
        STW_ERROR_BUDGET,
        "%zu tensors ('%s' is one) cannot be gathered at once: %s needed; whole_bytes %s; raise it "
        "on all ranks, or fetch fewer at once",
        tensors.size(), tensors[0]->name.c_str(), bytes_text(blocks * machine_.block_bytes).c_str(),
        sum_text({{budget * machine_.block_bytes, "for all that is gathered"}}).c_str());
    status.mutable_detail().needed_bytes = blocks * machine_.block_bytes;
    status.mutable_detail().free_bytes = budget * machine_.block_bytes;
    return status;
}

// Made in the first call that names the tensor, which is the same on all ranks.
Status Wholes::make_whole(stw_tensor &tensor)
{
    Sharding &sharding = *tensor.sharding;
    if (sharding.whole != residency::kNone) return {};
    residency::TensorSpec spec;
    spec.name = tensor.name;
    spec.bytes = whole_bytes_of(tensor);
    spec.role = tensor.role;
    spec.agreed = true;
    spec.policy.home = machine_.ranks->place;
    spec.policy.allowed = 1u << machine_.ranks->place;
    STW_TRY(metadata_.metadata_room(spec));
    metadata_.prepare_tables(spec);
    Result<residency::TensorId> made = dispatch_.core.create(spec);
    if (!made.ok()) return std::move(made.status());
    const residency::TensorId whole = made.value();
    Status status = addresses_.address_pack(whole, nullptr);
    if (status.ok()) {
        gathering::WholeTensors tensors;
        tensors.shard = tensor.id;
        tensors.whole = whole;
        tensors.shard_bytes = tensor.bytes;
        tensors.whole_bytes = spec.bytes;
        Result<WholeId> id = machine_.ranks->queue.gathers.add(tensor.name, tensors);
        status = std::move(id.status());
        if (id.ok()) sharding.whole_id = id.value();
        if (id.ok()) machine_.ranks->queue.gathers.set_undecided(id.value(), sharding.undecided);
    }
    if (!status.ok()) {
        Commands out;
        (void)dispatch_.core.destroy(whole, out);
        sink_.forget_unused(out);
        return status;
    }
    sharding.whole = whole;
    machine_.ranks->queue.wholes.push_back(&tensor);
    STW_ASSERT(machine_.ranks->queue.wholes.size() == sharding.whole_id + 1u);
    return {};
}

Status Wholes::check_gathered(const FetchPlan &plan) const
{
    for (const RequestedRange &range : plan.gathered) {
        const char *name = range.tensor->name.c_str();
        if (range.access != plan.gathered[0].access) {
            return Status::error(STW_ERROR_UNSUPPORTED,
                                 "%s is fetched gathered with another access than the first tensor "
                                 "of the call; use separate calls to read and to write gathered "
                                 "tensors",
                                 tensor_text(name).c_str());
        }
        if (range.place != machine_.ranks->place) {
            return Status::error(STW_ERROR_UNSUPPORTED,
                                 "%s can be gathered only at the nearest tier; leave the "
                                 "request's tier 0",
                                 tensor_text(name).c_str());
        }
        if (range.dtype != 0 || range.into) {
            return Status::error(STW_ERROR_UNSUPPORTED,
                                 "%s is sharded, and a gathered tensor can be fetched neither in "
                                 "another dtype nor into the caller's memory; stw_tensor_read "
                                 "copies",
                                 tensor_text(name).c_str());
        }
    }
    if (plan.flags & STW_FETCH_TRY) {
        return Status::error(STW_ERROR_INVALID,
                             "STW_FETCH_TRY cannot gather the sharded tensor '%s': other ranks "
                             "wait for this one",
                             plan.gathered[0].tensor->name.c_str());
    }
    return machine_.ranks->group.broken();
}

// In one event, so that calls have the order of the collectives.
Status Wholes::ask_wholes(Waiter &waiter)
{
    STW_TRY(check_gathered(waiter.plan));
    const std::vector<RequestedRange> &ranges = waiter.plan.gathered;
    for (const RequestedRange &range : ranges) STW_TRY(zeros_.write_zeros(range.tensor));
    waiter.begin = dispatch_.now();
    waiter.deadline = dispatch_.deadline(waiter.begin, waiter.plan.timeout_ns);
    waiter.cause = observe::Stall::kCollective;
    Status status;
    dispatch_.act([&](Core &, Commands &out) STW_REQUIRES(runtime_lock) {
        recorder_.drain_hits();
        for (const RequestedRange &range : ranges) {
            status = make_whole(*range.tensor);
            if (!status.ok()) return;
        }
        recorder_.note_gathered(waiter.plan);
        const std::vector<WholeId> wholes = wholes_of(ranges);
        const Access access = access_of(ranges[0].access);
        const bool absent = is_absent(waiter.plan);
        const uint64_t call =
            machine_.ranks->queue.gathers.fetch(wholes, access, waiter.owner, out, absent);
        machine_.ranks->queue.calls[call] = {&waiter, wholes, access, absent};
        waiter.whole.call = call;
        queue_gathers();
    });
    return status;
}

// After a fetch: gives each new gather its place in the queue.
void Wholes::queue_gathers()
{
    while (machine_.ranks->queue.gathers_queued <
           machine_.ranks->queue.gathers.ledger().last_gather()) {
        auto next = std::make_unique<Collective>();
        next->kind = Collective::Kind::kGather;
        next->start = machine_.ranks->queue.gathers.queued(++machine_.ranks->queue.gathers_queued);
        next->claim = next->start.claim;
        for (const WholeId whole : next->start.wholes) {
            next->tensors.push_back(machine_.ranks->queue.wholes[whole]);
        }
        collectives_.queue_collective(std::move(next));
    }
}

// Carries out the decisions made since the last time.
void Wholes::pump_wholes(Commands &out)
{
    gathering::WholeCommands commands = machine_.ranks->queue.gathers.pump();
    for (gathering::StartGather &start : commands.starts) {
        const auto place = std::find_if(
            machine_.ranks->queue.collectives.begin(), machine_.ranks->queue.collectives.end(),
            [&](const auto &at) {
                return at->kind == Collective::Kind::kGather && at->start.gather == start.gather;
            });
        STW_ASSERT(place != machine_.ranks->queue.collectives.end());
        (*place)->start = std::move(start);
        (*place)->started = true;
    }
    for (gathering::WholeGranted &granted : commands.granted) {
        answer_call(std::move(granted), out);
    }
    for (gathering::WholeRefused &refused : commands.refused) {
        refuse_call(std::move(refused), out);
    }
    if (!commands.starts.empty() || !commands.granted.empty() || !commands.refused.empty()) {
        collectives_.ranks_news = true;
    }
}

RankQueue::Call RankQueue::end_call(uint64_t number)
{
    const auto found = calls.find(number);
    STW_ASSERT(found != calls.end());
    Call call = std::move(found->second);
    calls.erase(found);
    if (!call.waiter) return call;
    call.waiter->whole.call = 0;
    if (call.waiter->asynchronous) granted.push_back(call.waiter);
    return call;
}

void Wholes::answer_call(gathering::WholeGranted granted, Commands &out)
{
    const RankQueue::Call call = machine_.ranks->queue.end_call(granted.call);
    residency::Grant nothing;
    nothing.place = machine_.ranks->place;
    if (call.absent) granted.grants.assign(call.wholes.size(), nothing);
    if (call.waiter) {
        call.waiter->whole.grants = std::move(granted.grants);
        return;
    }
    for (size_t i = 0; i < call.wholes.size(); ++i) {
        machine_.ranks->queue.gathers.release(call.wholes[i], call.access,
                                              call.absent ? nullptr : &granted.grants[i], out);
    }
}

void Wholes::refuse_call(gathering::WholeRefused refused, Commands &out)
{
    const RankQueue::Call call = machine_.ranks->queue.end_call(refused.call);
    if (call.waiter) {
        call.waiter->whole.refused = refused.pinned;
        call.waiter->whole.invalidated = refused.spoils;
        call.waiter->whole.status = std::move(refused.status);
    } else if (refused.pinned) {
        for (const WholeId whole : call.wholes) {
            machine_.ranks->queue.gathers.release(whole, call.access, nullptr, out,
                                                  end_of(refused.spoils));
        }
    }
}

// The waiter has stopped waiting: what is granted later is given back at once.
void Wholes::give_up_wholes(Waiter &waiter)
{
    if (waiter.whole.call == 0) return;
    const auto found = machine_.ranks->queue.calls.find(waiter.whole.call);
    if (found != machine_.ranks->queue.calls.end()) found->second.waiter = nullptr;
    waiter.whole.call = 0;
}

// Blocks. The waiter owns what was gathered.
Status Wholes::fetch_wholes(Waiter &waiter)
{
    STW_TRY(ask_wholes(waiter));
    MutexLock lock(dispatch_.mutex());
    const residency::Instant begin = dispatch_.now();
    const bool answered = collectives_.wait_ranks(waiter.begin, waiter.deadline,
                                                  [&] { return waiter.whole.call == 0; });
    recorder_.add_stall_of(waiter.plan.step, observe::Stall::kCollective,
                           waiter.plan.gathered[0].tensor->id, begin, dispatch_.now());
    if (answered) {
        lock.unlock();
        if (waiter.whole.refused) {
            dispatch_.act([&](Core &, Commands &out)
                              STW_REQUIRES(runtime_lock) { release_refused(waiter, out); });
        }
        return waiter.whole.status;
    }
    give_up_wholes(waiter);
    STW_TRY(dispatch_.interrupted_since(waiter.begin));
    return Status::error(STW_ERROR_TIMEOUT,
                         "%s was not gathered when the timeout passed; other ranks may "
                         "not have called, or are slow: the collective goes on without a view here",
                         tensor_text(waiter.plan.gathered[0].tensor->name).c_str());
}

// For views that are not opened.
void Wholes::release_wholes(Waiter &waiter, Commands &out)
{
    for (size_t i = 0; i < waiter.whole.grants.size(); ++i) {
        const RequestedRange &range = waiter.plan.gathered[i];
        machine_.ranks->queue.gathers.release(
            range.tensor->sharding->whole_id, access_of(range.access),
            is_absent(waiter.plan) ? nullptr : &waiter.whole.grants[i], out,
            end_of(range.access == STW_WRITE));
    }
    waiter.whole.grants.clear();
}

// Unpins what a failed call had pinned, when the program gets the error: pins must end in the
// order of calls, which is the same on all ranks, and not at the time of the failure.
void Wholes::release_refused(Waiter &waiter, Commands &out)
{
    if (!std::exchange(waiter.whole.refused, false)) return;
    for (const RequestedRange &range : waiter.plan.gathered) {
        machine_.ranks->queue.gathers.release(range.tensor->sharding->whole_id,
                                              access_of(range.access), nullptr, out,
                                              end_of(waiter.whole.invalidated));
    }
}

void Wholes::undo_wholes(Waiter &waiter)
{
    if (waiter.whole.grants.empty()) return;
    dispatch_.act([&](Core &, Commands &out)
                      STW_REQUIRES(runtime_lock) { release_wholes(waiter, out); });
}

// Ends an operation that is given up; true if it was waiting for gathered tensors.
bool Wholes::end_wholes_early(Waiter &waiter, Commands &out)
{
    if (!machine_.ranks) return false;
    const bool granted = std::erase(machine_.ranks->queue.granted, &waiter) > 0;
    if (waiter.whole.call == 0 && !granted) return false;
    give_up_wholes(waiter);
    release_wholes(waiter, out);
    waiter.status = cancelled();
    waiter.done = true;
    waiter.listener->answered(waiter);
    waiter.cv.notify_all();
    return true;
}

// ------------------------------------------------------------------------------------ release ----

// Each rank keeps its own slice of what was written: it is copied to its shard after this call.
Status Wholes::end(const ViewSlot &view, ReleaseHint hint)
{
    stw_tensor *tensor = view.tensor;
    const WholeId whole = tensor->sharding->whole_id;
    const uint32_t access = view.access;
    const bool abandon = access != STW_READ && hint.drops();
    residency::Grant grant;
    grant.place = view.place;
    grant.by_gate = view.by_gate != 0;
    dispatch_.act([&](Core &core, Commands &out) STW_REQUIRES(runtime_lock) {
        recorder_.note_release(
            {tensor->id, Access::kRead, recorder_.shard_place(), 0, tensor->bytes}, view.step,
            hint);
        machine_.ranks->queue.gathers.release(whole, access_of(access),
                                              view.absent ? nullptr : &grant, out, end_of(abandon));
        if (access == STW_READ || abandon || collectives_.ranks_stopped()) return;
        auto next = std::make_unique<Collective>();
        next->kind = Collective::Kind::kKeep;
        next->tensors.push_back(tensor);
        next->claim = core.claim();
        core.claim_tensor(next->claim, tensor->id);
        core.claim_tensor(next->claim, tensor->sharding->whole);
        machine_.ranks->queue.gathers.keep(whole);
        collectives_.queue_collective(std::move(next));
    });
    return errors_.of(tensor->id);
}

void Wholes::run_keep(Collective &work)
{
    stw_tensor &tensor = *work.tensors[0];
    const Sharding &sharding = *tensor.sharding;
    const uint64_t size = tensor.element_bits / 8;
    residency::FetchAsked asked;
    asked.claim = work.claim;
    asked.requests.push_back(
        {sharding.whole, Access::kRead, machine_.ranks->place, 0, whole_bytes_of(tensor)});
    Waiter waiter;
    Status status = shards_.take_pieces(waiter, asked);
    if (status.ok()) {
        char *whole = addresses_.bytes_at(sharding.whole, waiter.grants[0]);
        const uint64_t begin =
            sharding.partition.shard_elements * machine_.ranks->group.rank() * size;
        status = shards_.copy_shard(tensor, work.claim, 0, tensor.bytes, whole + begin, true);
        shards_.give_pieces(waiter, asked, false);
    }
    dispatch_.act([&](Core &core, Commands &out) STW_REQUIRES(runtime_lock) {
        if (status.ok()) {
            core.mark_valid(tensor.id);
        } else {
            core.fail(tensor.id, status);
            errors_.add(tensor.id, status);
        }
        machine_.ranks->queue.gathers.keep_over(sharding.whole_id, work.claim, out);
        core.unclaim_tensor(work.claim, tensor.id, false, out);
    });
}

// The shards are about to be changed, and not through a view of the gathered tensor.
Status Wholes::write_shards(stw_tensor *tensor, Commands &out)
{
    if (!tensor->sharding || tensor->sharding->whole == residency::kNone) return {};
    return machine_.ranks->queue.gathers.write(tensor->sharding->whole_id, out);
}

// A gather ahead of its fetch may hold the tensors. Ranks have agreed on it, so it ends soon.
Status Wholes::await_gathers(stw_tensor *const *tensors, uint32_t n)
{
    if (!machine_.ranks) return {};
    const residency::Instant begin = dispatch_.now();
    const auto gathers = [&](const stw_tensor *tensor) STW_REQUIRES(runtime_lock) {
        const Sharding *sharding = tensor->sharding.get();
        return sharding && sharding->whole != residency::kNone &&
               machine_.ranks->queue.gathers.gathering(sharding->whole_id);
    };
    MutexLock lock(dispatch_.mutex());
    const bool over = collectives_.wait_ranks(
        begin, begin + machine_.ranks->group.timeout_ns(),
        [&]() STW_REQUIRES(runtime_lock) { return std::none_of(tensors, tensors + n, gathers); });
    if (over) return {};
    STW_TRY(dispatch_.interrupted_since(begin));
    return Status::error(STW_ERROR_BUSY,
                         "%s is still being gathered: other ranks have not reached that call",
                         tensor_text((*std::find_if(tensors, tensors + n, gathers))->name).c_str());
}

// Before a tensor is destroyed: fails if its gathered tensor is in use or a sum is under way.
Status Wholes::may_unshard(const stw_tensor &tensor, Commands &out)
{
    if (!tensor.sharding) return {};
    const Sharding &sharding = *tensor.sharding;
    if (sharding.partial != residency::kNone)
        STW_TRY(dispatch_.core.may_destroy(sharding.partial, out));
    if (sharding.whole == residency::kNone) return {};
    if (machine_.ranks->queue.gathers.ledger().pinned(sharding.whole_id)) {
        return Status::error(STW_ERROR_BUSY, "%s has open views of its gathered whole",
                             tensor_text(tensor.name).c_str());
    }
    return dispatch_.core.may_destroy(sharding.whole, out);
}

void Wholes::unshard(stw_tensor &tensor, Commands &out)
{
    if (!tensor.sharding) return;
    Sharding &sharding = *tensor.sharding;
    const auto destroy = [&](residency::TensorId id) STW_REQUIRES(runtime_lock) {
        const Status status = dispatch_.core.destroy(id, out);
        STW_ASSERT(status.ok());
    };
    if (sharding.partial != residency::kNone) destroy(sharding.partial);
    if (sharding.whole == residency::kNone) return;
    const Status removed = machine_.ranks->queue.gathers.remove(sharding.whole_id, out);
    STW_ASSERT(removed.ok());
    machine_.ranks->queue.wholes[sharding.whole_id] = nullptr;
    destroy(sharding.whole);
}

void Wholes::update_shards(const stw_tensor *tensor, Commands &out)
{
    if (!tensor->sharding || tensor->sharding->whole == residency::kNone) return;
    machine_.ranks->queue.gathers.update(tensor->sharding->whole_id, out);
}

bool Wholes::written_gathered(const std::vector<stw_tensor *> &tensors) const
{
    MutexLock lock(dispatch_.mutex());
    return std::any_of(
        tensors.begin(), tensors.end(), [&](const stw_tensor *tensor) STW_REQUIRES(runtime_lock) {
            const Sharding *sharding = tensor->sharding.get();
            return sharding && sharding->whole != residency::kNone &&
                   machine_.ranks->queue.gathers.ledger().written(sharding->whole_id);
        });
}

void Wholes::set_undecided(const std::vector<stw_tensor *> &tensors, bool undecided)
{
    MutexLock lock(dispatch_.mutex());
    for (const stw_tensor *tensor : tensors) {
        Sharding *sharding = tensor->sharding.get();
        if (!sharding) continue;
        sharding->undecided = undecided;
        if (sharding->whole == residency::kNone) continue;
        machine_.ranks->queue.gathers.set_undecided(sharding->whole_id, undecided);
    }
}

// Drops this rank's part of a sum that was to have MORE. If the pipeline still adds to it, a later
// call destroys it.
void Wholes::drop_partial(TensorId tensor, Commands &out)
{
    const stw_tensor *handle = handles_.at(tensor);
    if (!handle || !handle->sharding) return;
    const TensorId partial = std::exchange(handle->sharding->partial, residency::kNone);
    if (partial != residency::kNone) machine_.ranks->queue.voided.push_back(partial);
    std::erase_if(machine_.ranks->queue.voided, [&](TensorId gone) STW_REQUIRES(runtime_lock) {
        return dispatch_.core.may_destroy(gone, out).ok() && dispatch_.core.destroy(gone, out).ok();
    });
}

void Wholes::after_round(residency::Instant, Commands &out)
{
    pump_wholes(out);
}

void Wholes::run(Collective &work)
{
    if (work.kind == Collective::Kind::kGather) return run_gather(work);
    run_keep(work);
}

}  // namespace stepwell
