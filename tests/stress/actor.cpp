// SPDX-License-Identifier: Apache-2.0
// What one actor does next, which outcomes are errors, and the calls that are no fetch.
#include "actor.h"

#include "../support/budget_sentence.h"

namespace stress {

Actor::Actor(World &world, uint32_t number)
    : world_(world),
      mine_(world.estates[number]),
      number_(number),
      state_(world.seed * 0x9e3779b97f4a7c15ull + number + 1)
{
}

bool Actor::accept(const char *what, stw_status status, bool empty_allowed)
{
    if (status >= 0) return true;
    const char *wrong = status == STW_ERROR_BUDGET ? budget_sentence_wrong(stw_last_error()) : NULL;
    if (wrong) world_.fail("actor %u: %s: %s in '%s'", number_, what, wrong, stw_last_error());
    Counters &counters = world_.counters;
    const bool crowded = world_.features.holds_more || world_.features.budgets;
    if (status == STW_ERROR_INTERRUPTED && world_.features.interrupts) return false;
    // By a write that an interrupt has ended; its owner writes all of it again.
    const bool torn = status == STW_ERROR_IO && strstr(stw_last_error(), "half written") != NULL;
    if (torn && world_.features.interrupts) return false;
    if (status == STW_ERROR_BUSY && crowded) {
        counters.busy.fetch_add(1);
    } else if (status == STW_ERROR_BUDGET && crowded) {
        counters.budget.fetch_add(1);
    } else if (status == STW_ERROR_EMPTY && empty_allowed) {
        counters.empty.fetch_add(1);
    } else if (world_.is_fault(status)) {
        counters.failed.fetch_add(1);
        if (chance(30)) world_.clear_errors();
    } else if (world_.setup.errors_allowed &&
               (status == STW_ERROR_BUSY || status == STW_ERROR_BUDGET)) {
        // What could not be written back takes room until the error is cleared.
        counters.budget.fetch_add(1);
        world_.clear_errors();
    } else {
        world_.fail("actor %u: %s: %s", number_, what, stw_last_error());
    }
    return false;
}

// A fetch always names its phase: without one it would belong to a step of another actor.
stw_fetch_options Actor::options(uint32_t flags) const
{
    stw_fetch_options options = STW_FETCH_OPTIONS_INIT;
    options.flags = flags;
    options.phase = mine_.phase;
    return options;
}

uint32_t Actor::a_tier()
{
    if (!world_.setup.device || world_.setup.host_blocks < 12) return STW_TIER_DEFAULT;
    const uint32_t tiers[] = {STW_TIER_DEFAULT, STW_TIER_DEVICE, STW_TIER_HOST};
    return tiers[random(3)];
}

stw_tensor *Actor::any_tensor()
{
    if (chance(60)) return world_.shared[random(world_.shared.size())]->tensor;
    return any_owned().tensor;
}

void Actor::hint_operation()
{
    stw_tensor *tensor = any_tensor();
    stw_fetch_request request = STW_FETCH_REQUEST_INIT;
    request.tensor = tensor;
    request.tier = a_tier();
    switch (random(5)) {
    case 0:
    case 1: accept("prefetch", stw_prefetch(world_.runtime, &request, 1), false); break;
    case 2:
        accept("advise", stw_advise(&tensor, 1, static_cast<uint32_t>(random(3))), false);
        break;
    case 3: {
        // Views of others are in the way as a rule: BUSY is an answer here.
        const bool device = world_.setup.device && (chance(50) || !world_.setup.host_blocks);
        const uint32_t tier = device ? STW_TIER_DEVICE : STW_TIER_HOST;
        const stw_status status = stw_evict(world_.runtime, &tensor, 1, tier, 0, kWaitNs);
        if (status != STW_ERROR_BUSY) accept("evict", status, false);
        break;
    }
    default: {
        stw_tensor_info info = {};
        info.struct_size = sizeof info;
        accept("info", stw_tensor_info_get(tensor, &info), false);
        world_.check_budgets();
    }
    }
}

void Actor::step_operation()
{
    if (!step_open_) {
        accept("step begin", stw_step_begin(mine_.phase), false);
        step_open_ = true;
        return;
    }
    step_open_ = false;
    stw_step_stats stats = {};
    stats.struct_size = sizeof stats;
    accept("step end", stw_step_end(mine_.phase, &stats), false);
}

void Actor::evict_operation()
{
    const bool device = world_.setup.device && (chance(50) || !world_.setup.host_blocks);
    const uint32_t tier = device ? STW_TIER_DEVICE : STW_TIER_HOST;
    const stw_status status = stw_evict(world_.runtime, nullptr, 0, tier, 0, kWaitNs);
    if (status != STW_ERROR_BUSY) accept("evict of all", status, false);
}

// BUSY for views, updates before their verdict, and another commit.
void Actor::commit_operation()
{
    if (!world_.setup.store) return;
    const stw_status status = stw_commit(world_.runtime, nullptr, nullptr);
    if (status == STW_OK) world_.counters.commits.fetch_add(1);
    if (status != STW_ERROR_BUSY) accept("commit", status, false);
}

// Returns what it was.
const char *Actor::operate(uint64_t kind)
{
    if (!world_.boards.empty() && chance(40)) return board_operation(), "use of a board";
    if (kind < 50) return share_operation(), "use of shared tensors";
    if (kind < 62) return own_operation(), "change of an own tensor";
    if (kind < 66) return copy_owned(), "copy";
    if (kind < 72) return read_owned(any_owned(), chance(30)), "read";
    if (kind < 82) return train(), "training";
    if (kind < 87) return sum_operation(), "sum";
    if (kind < 94) return hint_operation(), "hint";
    if (kind < 95) return evict_operation(), "evict of all";
    if (kind < 96) return commit_operation(), "commit";
    return step_operation(), "mark of a step";
}

void Actor::run(uint64_t operations)
{
    // A touch of a thread that has begun no step would belong to another actor's.
    step_operation(), step_operation();
    for (uint64_t i = 0; i < operations; ++i) {
        world_.progress[number_].store(i + 1);
        const uint64_t begin = World::now_ns();
        locked_ns_ = 0;
        const char *what = operate(random(100));
        world_.check_time(what, begin + locked_ns_);
        world_.counters.operations.fetch_add(1);
    }
    if (step_open_) step_operation();
    world_.progress[number_].store(UINT64_MAX);
}

}  // namespace stress
