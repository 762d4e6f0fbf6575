// SPDX-License-Identifier: Apache-2.0
// Commands in their order: room before what needs it, answers after what they rest on.
#include "lib/residency/command_loop.h"

namespace stepwell::residency {

void CommandLoop::run()
{
    if (runs_) return;
    struct Running {
        CommandLoop &loop;
        explicit Running(CommandLoop &of) : loop(of) { loop.runs_ = true; }
        ~Running()
        {
            loop.round_.clear();
            loop.runs_ = false;
        }
    } running(*this);
    do {
        round_.swap(out);
        carry_out(round_);
        round_.clear();
        for (EventHook *hook : hooks_) hook->after_round(sink_.now(), out);
    } while (!out.empty());
}

void CommandLoop::carry_out(Commands &round)
{
    for (const Forget &forget : round.forgets) sink_.forget(forget);
    if (!round.swaps.empty()) sink_.swap_memory(round.swaps);
    for (const PackId pack : round.freed_packs) sink_.pack_freed(pack);
    if (!round.transfers.empty()) sink_.submit(round.transfers, out);
    for (const TransferId transfer : round.promotes) sink_.promote(transfer);
    answer(round);
    for (const BackgroundError &error : round.errors) sink_.failed(error);
}

void CommandLoop::answer(Commands &round)
{
    if (round.granted.empty() && round.refused.empty()) return;
    for (Granted &granted : round.granted) {
        for (EventHook *hook : hooks_) {
            if (hook->granted(granted, out)) break;
        }
    }
    for (Refused &refused : round.refused) {
        for (EventHook *hook : hooks_) {
            if (hook->refused(refused, out)) break;
        }
    }
}

}  // namespace stepwell::residency
