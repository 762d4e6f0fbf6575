// SPDX-License-Identifier: Apache-2.0
// CommandLoop: carries out what the core commands, in the one order that is right, until an event
// has no more consequences. The same object in the runtime, in replays, in the simulator and in the
// simulations of the tests; what differs is who moves bytes and who asked.
#pragma once

#include "lib/residency/types.h"

#include <vector>

namespace stepwell::residency {

// Where bytes are moved. Commands that follow from what it does are added to `out`.
class CommandSink {
public:
    virtual ~CommandSink() = default;
    [[nodiscard]] virtual Instant now() const = 0;
    // A slot that no block has any more may be another's with the next transfer.
    virtual void forget(const Forget &forget) = 0;
    virtual void swap_memory(std::vector<Swap> &swaps) = 0;
    virtual void pack_freed(PackId pack) = 0;
    // In the order in which they go into their queues. What cannot be begun ends in a
    // Core::transfer_done() here.
    virtual void submit(std::vector<Transfer> &transfers, Commands &out) = 0;
    virtual void promote(TransferId transfer) = 0;
    virtual void failed(const BackgroundError &error) = 0;
};

// Who asks the core for something. Hooks are called in the order in which they were added.
class EventHook {
public:
    virtual ~EventHook() = default;
    // True: the answer was for this one, and no other hook gets it.
    virtual bool granted(Granted &, Commands &) { return false; }
    virtual bool refused(Refused &, Commands &) { return false; }
    // The commands of one round are carried out; there may be more in `out`.
    virtual void after_round(Instant, Commands &) {}
};

class CommandLoop {
public:
    explicit CommandLoop(CommandSink &sink) : sink_(sink) {}

    void add(EventHook &hook) { hooks_.push_back(&hook); }

    // Events of the core add to it.
    Commands out;
    // Until nothing is left. Called by what it calls, it leaves that to the call under way.
    void run();

private:
    void carry_out(Commands &round);
    void answer(Commands &round);

    CommandSink &sink_;  // not owned, like the hooks
    std::vector<EventHook *> hooks_;
    Commands round_;  // keeps its memory
    bool runs_ = false;
};

}  // namespace stepwell::residency
