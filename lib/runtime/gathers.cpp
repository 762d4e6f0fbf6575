// SPDX-License-Identifier: Apache-2.0
// Wholes, as the program fetches and releases them: what the ledger decides in the call, and views.
#include "lib/runtime/ranks.h"
#include "lib/runtime/snapshot.h"
#include "lib/support/assert.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace stepwell {

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

std::vector<WholeId> wholes_of(const std::vector<Range> &ranges)
{
    std::vector<WholeId> wholes;
    for (const Range &range : ranges) wholes.push_back(range.tensor->sharding->whole_id);
    return wholes;
}

}  // namespace

// ---------------------------------------------------------------------------------- the call ----

// Under the lock: all of them at once, in the room that wholes have.
Status Runtime::wholes_fit(std::vector<const stw_tensor *> &tensors) const
{
    if (tensors.empty()) return {};
    std::sort(tensors.begin(), tensors.end());
    tensors.erase(std::unique(tensors.begin(), tensors.end()), tensors.end());
    uint64_t blocks = 0;
    for (const stw_tensor *tensor : tensors) {
        blocks +=
            std::max<uint64_t>((whole_bytes_of(*tensor) + block_bytes_ - 1) / block_bytes_, 1);
    }
    const uint64_t budget = ranks_->queue.gathers.ledger().budget_blocks();
    if (blocks <= budget) return {};
    Status status = Status::error(
        STW_ERROR_BUDGET,
        "%zu tensors ('%s' is one) cannot be gathered at once: %s needed; whole_bytes %s; raise it "
        "on all ranks, or fetch fewer at once",
        tensors.size(), tensors[0]->name.c_str(), bytes_text(blocks * block_bytes_).c_str(),
        sum_text({{budget * block_bytes_, "for all that is gathered"}}).c_str());
    status.mutable_detail().needed_bytes = blocks * block_bytes_;
    status.mutable_detail().free_bytes = budget * block_bytes_;
    return status;
}

// Under the lock. Made with the first call that names it, which is the same on all ranks.
Status Runtime::make_whole(stw_tensor &tensor)
{
    Sharding &sharding = *tensor.sharding;
    if (sharding.whole != residency::kNone) return {};
    residency::TensorSpec spec;
    spec.name = tensor.name;
    spec.bytes = whole_bytes_of(tensor);
    spec.role = tensor.role;
    spec.agreed = true;
    spec.policy.home = ranks_->place;
    spec.policy.allowed = 1u << ranks_->place;
    STW_TRY(metadata_room(spec));
    prepare_tables(spec);
    Result<residency::TensorId> made = dispatch_.core.create(spec);
    if (!made.ok()) return std::move(made.status());
    const residency::TensorId whole = made.value();
    Status status = address_pack(whole, nullptr);
    if (status.ok()) {
        gathering::WholeTensors tensors;
        tensors.shard = tensor.id;
        tensors.whole = whole;
        tensors.shard_bytes = tensor.bytes;
        tensors.whole_bytes = spec.bytes;
        Result<WholeId> id = ranks_->queue.gathers.add(tensor.name, tensors);
        status = std::move(id.status());
        if (id.ok()) sharding.whole_id = id.value();
    }
    if (!status.ok()) {
        Commands out;
        (void)dispatch_.core.destroy(whole, out);
        for (const residency::PackId pack : out.freed_packs) release_pack(pack);
        return status;
    }
    sharding.whole = whole;
    ranks_->queue.wholes.push_back(&tensor);
    STW_ASSERT(ranks_->queue.wholes.size() == sharding.whole_id + 1u);
    return {};
}

Status Runtime::check_gathered(const FetchPlan &plan) const
{
    for (const Range &range : plan.gathered) {
        const char *name = range.tensor->name.c_str();
        if (range.access != plan.gathered[0].access) {
            return Status::error(STW_ERROR_UNSUPPORTED,
                                 "%s is fetched whole with another access than the first "
                                 "of the call; fetch wholes to read and to write in calls of their "
                                 "own",
                                 tensor_text(name).c_str());
        }
        if (range.place != ranks_->place) {
            return Status::error(STW_ERROR_UNSUPPORTED,
                                 "%s is gathered at the nearest tier alone; leave the "
                                 "request's tier 0",
                                 tensor_text(name).c_str());
        }
        if (range.dtype != 0 || range.into) {
            return Status::error(STW_ERROR_UNSUPPORTED,
                                 "%s is sharded, and its whole is shown as it is: no "
                                 "other dtype, no memory of the caller's; stw_tensor_read copies",
                                 tensor_text(name).c_str());
        }
    }
    if (plan.flags & STW_FETCH_TRY) {
        return Status::error(STW_ERROR_INVALID,
                             "STW_FETCH_TRY and the whole of the sharded tensor '%s': other ranks "
                             "wait for this one, so there is nothing to try",
                             plan.gathered[0].tensor->name.c_str());
    }
    return ranks_->group.broken();
}

// One event, whose order among the calls is that of the collectives.
Status Runtime::ask_wholes(Waiter &waiter)
{
    STW_TRY(check_gathered(waiter.plan));
    const std::vector<Range> &ranges = waiter.plan.gathered;
    for (const Range &range : ranges) STW_TRY(write_zeros(range.tensor));
    waiter.begin = dispatch_.now();
    waiter.deadline = waiter.begin + dispatch_.timeout(waiter.plan.timeout_ns);
    waiter.cause = observe::Stall::kCollective;
    Status status;
    dispatch_.act([&](Core &, Commands &out) STW_REQUIRES(runtime_lock) {
        drain_hits();
        for (const Range &range : ranges) {
            status = make_whole(*range.tensor);
            if (!status.ok()) return;
        }
        note_gathered(waiter.plan);
        const std::vector<WholeId> wholes = wholes_of(ranges);
        const Access access = access_of(ranges[0].access);
        const bool absent = is_absent(waiter.plan);
        const uint64_t call =
            ranks_->queue.gathers.fetch(wholes, access, waiter.owner, dispatch_.now(), out, absent);
        ranks_->queue.calls[call] = {&waiter, wholes, access, absent};
        waiter.whole_call = call;
        queue_gathers();
    });
    return status;
}

// Under the lock, after a fetch: each new gather has its place in the queue.
void Runtime::queue_gathers()
{
    while (ranks_->queue.gathers_queued < ranks_->queue.gathers.ledger().last_gather()) {
        auto next = std::make_unique<Collective>();
        next->kind = Collective::Kind::kGather;
        next->start = ranks_->queue.gathers.queued(++ranks_->queue.gathers_queued);
        next->claim = next->start.claim;
        for (const WholeId whole : next->start.wholes) {
            next->tensors.push_back(ranks_->queue.wholes[whole]);
        }
        queue_collective(std::move(next));
    }
}

// Under the lock: what the decisions have come to since the last time.
void Runtime::pump_wholes(Commands &out)
{
    gathering::WholeCommands commands = ranks_->queue.gathers.pump();
    for (gathering::StartGather &start : commands.starts) {
        const auto place = std::find_if(ranks_->queue.collectives.begin(),
                                        ranks_->queue.collectives.end(), [&](const auto &at) {
                                            return at->kind == Collective::Kind::kGather &&
                                                   at->start.gather == start.gather;
                                        });
        STW_ASSERT(place != ranks_->queue.collectives.end());
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
        ranks_news_ = true;
    }
}

RankQueue::Call RankQueue::end_call(uint64_t number)
{
    const auto found = calls.find(number);
    STW_ASSERT(found != calls.end());
    Call call = std::move(found->second);
    calls.erase(found);
    if (!call.waiter) return call;
    call.waiter->whole_call = 0;
    if (call.waiter->asynchronous) granted.push_back(call.waiter);
    return call;
}

void Runtime::answer_call(gathering::WholeGranted granted, Commands &out)
{
    const RankQueue::Call call = ranks_->queue.end_call(granted.call);
    residency::Grant nothing;
    nothing.place = ranks_->place;
    if (call.absent) granted.grants.assign(call.wholes.size(), nothing);
    if (call.waiter) {
        call.waiter->whole_grants = std::move(granted.grants);
        return;
    }
    for (size_t i = 0; i < call.wholes.size(); ++i) {
        ranks_->queue.gathers.release(call.wholes[i], call.access,
                                      call.absent ? nullptr : &granted.grants[i], dispatch_.now(),
                                      out);
    }
}

void Runtime::refuse_call(gathering::WholeRefused refused, Commands &out)
{
    const RankQueue::Call call = ranks_->queue.end_call(refused.call);
    if (call.waiter) {
        call.waiter->whole_refused = refused.pinned;
        call.waiter->whole_spoilt = refused.spoils;
        call.waiter->whole_status = std::move(refused.status);
    } else if (refused.pinned) {
        for (const WholeId whole : call.wholes) {
            ranks_->queue.gathers.release(whole, call.access, nullptr, dispatch_.now(), out,
                                          end_of(refused.spoils));
        }
    }
}

// Who waited does not any more: what comes is given back when it comes.
void Runtime::give_up_wholes(Waiter &waiter)
{
    if (waiter.whole_call == 0) return;
    const auto found = ranks_->queue.calls.find(waiter.whole_call);
    if (found != ranks_->queue.calls.end()) found->second.waiter = nullptr;
    waiter.whole_call = 0;
}

// Blocks. What was gathered is the waiter's.
Status Runtime::fetch_wholes(Waiter &waiter)
{
    STW_TRY(ask_wholes(waiter));
    MutexLock lock(dispatch_.mutex());
    const residency::Instant begin = dispatch_.now();
    const bool answered =
        wait_ranks(waiter.begin, waiter.deadline, [&] { return waiter.whole_call == 0; });
    add_stall_of(waiter.plan.step, observe::Stall::kCollective, waiter.plan.gathered[0].tensor->id,
                 begin, dispatch_.now());
    if (answered) {
        lock.unlock();
        if (waiter.whole_refused) {
            dispatch_.act([&](Core &, Commands &out)
                              STW_REQUIRES(runtime_lock) { release_refused(waiter, out); });
        }
        return waiter.whole_status;
    }
    give_up_wholes(waiter);
    STW_TRY(dispatch_.interrupted_since(waiter.begin));
    return Status::error(STW_ERROR_TIMEOUT,
                         "%s was not gathered when the timeout passed; other ranks may "
                         "not have called, or are slow: the collective goes on without a view here",
                         tensor_text(waiter.plan.gathered[0].tensor->name).c_str());
}

// Views that are not opened after all. Under the lock.
void Runtime::release_wholes(Waiter &waiter, Commands &out)
{
    for (size_t i = 0; i < waiter.whole_grants.size(); ++i) {
        const Range &range = waiter.plan.gathered[i];
        ranks_->queue.gathers.release(range.tensor->sharding->whole_id, access_of(range.access),
                                      is_absent(waiter.plan) ? nullptr : &waiter.whole_grants[i],
                                      dispatch_.now(), out, end_of(range.access == STW_WRITE));
    }
    waiter.whole_grants.clear();
}

// What was gathered in vain, where the program learns of it: pins end by the order of calls, which
// is the same on all ranks, and not by when the failure came. Under the lock.
void Runtime::release_refused(Waiter &waiter, Commands &out)
{
    if (!std::exchange(waiter.whole_refused, false)) return;
    for (const Range &range : waiter.plan.gathered) {
        ranks_->queue.gathers.release(range.tensor->sharding->whole_id, access_of(range.access),
                                      nullptr, dispatch_.now(), out, end_of(waiter.whole_spoilt));
    }
}

void Runtime::undo_wholes(Waiter &waiter)
{
    if (waiter.whole_grants.empty()) return;
    dispatch_.act([&](Core &, Commands &out)
                      STW_REQUIRES(runtime_lock) { release_wholes(waiter, out); });
}

// Under the lock, of an operation that is given up: true where it was at its wholes, and is over.
bool Runtime::end_wholes_early(Waiter &waiter, Commands &out)
{
    if (!ranks_.body) return false;
    const bool granted = std::erase(ranks_->queue.granted, &waiter) > 0;
    if (waiter.whole_call == 0 && !granted) return false;
    give_up_wholes(waiter);
    release_wholes(waiter, out);
    waiter.status = cancelled();
    waiter.done = true;
    tell_end(waiter);
    waiter.cv.notify_all();
    return true;
}

// An operation whose wholes are there: the rest of it, on the queue's thread.
void Runtime::finish_gathered(Waiter &waiter)
{
    Status status = std::move(waiter.whole_status);
    if (status.ok() && (needs_copies(waiter.plan) || !waiter.plan.ranges.empty())) {
        status = needs_copies(waiter.plan) ? start_snapshot(waiter) : start_fetch(waiter);
        if (status.ok()) {
            MutexLock lock(dispatch_.mutex());
            if (!waiter.done) dispatch_.arm_timer(waiter.deadline);
            return;
        }
    }
    dispatch_.act([&](Core &, Commands &) STW_REQUIRES(runtime_lock) {
        waiter.status = std::move(status);
        waiter.done = true;
        tell_end(waiter);
        waiter.cv.notify_all();
    });
}

// -------------------------------------------------------------------------------- and its end ----

// What was written of a whole is every rank's own to keep: its slice goes to its shard behind the
// call.
Status Runtime::release_whole(const ViewSlot &view, bool by_gate, uint32_t flags)
{
    stw_tensor *tensor = view.tensor;
    const WholeId whole = tensor->sharding->whole_id;
    const uint32_t access = view.access;
    const bool abandon = access != STW_READ && (flags & STW_RELEASE_ABANDON) != 0;
    residency::Grant grant;
    grant.place = view.place;
    grant.by_gate = by_gate;
    dispatch_.act([&](Core &core, Commands &out) STW_REQUIRES(runtime_lock) {
        note_release({tensor->id, Access::kRead, shard_place(), 0, tensor->bytes}, view.step,
                     flags);
        ranks_->queue.gathers.release(whole, access_of(access), view.absent ? nullptr : &grant,
                                      dispatch_.now(), out, end_of(abandon));
        if (access == STW_READ || abandon || ranks_stopped()) return;
        auto next = std::make_unique<Collective>();
        next->kind = Collective::Kind::kKeep;
        next->tensors.push_back(tensor);
        next->claim = core.claim();
        core.claim_tensor(next->claim, tensor->id);
        core.claim_tensor(next->claim, tensor->sharding->whole);
        ranks_->queue.gathers.keep(whole);
        queue_collective(std::move(next));
    });
    return errors_.of(tensor->id);
}

void Runtime::run_keep(Collective &work)
{
    stw_tensor &tensor = *work.tensors[0];
    const Sharding &sharding = *tensor.sharding;
    const uint64_t size = tensor.element_bits / 8;
    residency::FetchAsked asked;
    asked.claim = work.claim;
    asked.requests.push_back(
        {sharding.whole, Access::kRead, ranks_->place, 0, whole_bytes_of(tensor)});
    Waiter waiter;
    Status status = take_pieces(waiter, asked);
    if (status.ok()) {
        char *whole = bytes_at(sharding.whole, waiter.grants[0]);
        const uint64_t begin = sharding.partition.shard_elements * ranks_->group.rank() * size;
        status = copy_shard(tensor, work.claim, 0, tensor.bytes, whole + begin, true);
        give_pieces(waiter, asked, false);
    }
    dispatch_.act([&](Core &core, Commands &out) STW_REQUIRES(runtime_lock) {
        if (status.ok()) {
            core.mark_valid(tensor.id);
        } else {
            core.fail(tensor.id, status);
            errors_.add(tensor.id, status);
        }
        ranks_->queue.gathers.keep_over(sharding.whole_id, work.claim, dispatch_.now(), out);
        core.unclaim_tensor(work.claim, tensor.id, false, out);
    });
}

// Under the lock: the shards are to be changed by something else than a view of the whole.
Status Runtime::write_shards(stw_tensor *tensor, Commands &out)
{
    if (!tensor->sharding || tensor->sharding->whole == residency::kNone) return {};
    return ranks_->queue.gathers.write(tensor->sharding->whole_id, out);
}

// A gather ahead of its fetch may have the tensors: the ranks have agreed on it, so it ends soon.
Status Runtime::await_gathers(stw_tensor *const *tensors, uint32_t n)
{
    if (!ranks_.body) return {};
    const residency::Instant begin = dispatch_.now();
    const auto gathers = [&](const stw_tensor *tensor) STW_REQUIRES(runtime_lock) {
        const Sharding *sharding = tensor->sharding.get();
        return sharding && sharding->whole != residency::kNone &&
               ranks_->queue.gathers.gathering(sharding->whole_id);
    };
    MutexLock lock(dispatch_.mutex());
    const bool over =
        wait_ranks(begin, begin + ranks_->group.timeout_ns(), [&]() STW_REQUIRES(runtime_lock) {
            return std::none_of(tensors, tensors + n, gathers);
        });
    if (over) return {};
    STW_TRY(dispatch_.interrupted_since(begin));
    return Status::error(STW_ERROR_BUSY,
                         "%s is still being gathered: other ranks have not come that far",
                         tensor_text((*std::find_if(tensors, tensors + n, gathers))->name).c_str());
}

// Before a tensor goes: is its whole in use, or a sum under way?
Status Runtime::may_unshard(const stw_tensor &tensor, Commands &out)
{
    if (!tensor.sharding) return {};
    const Sharding &sharding = *tensor.sharding;
    if (sharding.partial != residency::kNone)
        STW_TRY(dispatch_.core.may_destroy(sharding.partial, out));
    if (sharding.whole == residency::kNone) return {};
    if (ranks_->queue.gathers.ledger().pinned(sharding.whole_id)) {
        return Status::error(STW_ERROR_BUSY, "%s has open views of its gathered whole",
                             tensor_text(tensor.name).c_str());
    }
    return dispatch_.core.may_destroy(sharding.whole, out);
}

void Runtime::unshard(stw_tensor &tensor, Commands &out)
{
    if (!tensor.sharding) return;
    Sharding &sharding = *tensor.sharding;
    const auto destroy = [&](residency::TensorId id) STW_REQUIRES(runtime_lock) {
        const Status status = dispatch_.core.destroy(id, out);
        STW_ASSERT(status.ok());
    };
    if (sharding.partial != residency::kNone) destroy(sharding.partial);
    if (sharding.whole == residency::kNone) return;
    const Status removed = ranks_->queue.gathers.remove(sharding.whole_id, out);
    STW_ASSERT(removed.ok());
    ranks_->queue.wholes[sharding.whole_id] = nullptr;
    destroy(sharding.whole);
}

void Runtime::update_shards(const stw_tensor *tensor, Commands &out)
{
    if (!tensor->sharding || tensor->sharding->whole == residency::kNone) return;
    ranks_->queue.gathers.update(tensor->sharding->whole_id, out);
}

}  // namespace stepwell
