// SPDX-License-Identifier: Apache-2.0
// A thread that troubles the actors of a world: it sends them signals, interrupts all waits,
// changes budgets and evicts everything, at any time.
#pragma once

#include "world.h"

#include <pthread.h>

namespace stress {

// Signals do nothing but end system calls, and a touch that cannot be served fails the run.
void take_signals();

class Trouble {
public:
    Trouble(World &world, std::vector<pthread_t> actors);
    // While the actors' threads are there.
    void end();

private:
    void run();
    void make_one();

    World &world_;
    const std::vector<pthread_t> actors_;
    uint64_t state_;
    std::mutex mutex_;
    std::condition_variable wakes_;
    bool ends_ = false;
    std::thread thread_;
};

}  // namespace stress
