// SPDX-License-Identifier: Apache-2.0
// SignalsBlocked: threads started while it lives take no signal. Those are for the threads of the
// program. What a thread brings upon itself is no matter of masks: a fault that is blocked ends the
// process past every handler.
#pragma once

#include <csignal>
#include <pthread.h>

namespace stepwell {

class SignalsBlocked {
public:
    SignalsBlocked()
    {
        sigset_t all;
        sigfillset(&all);
        for (const int own : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) sigdelset(&all, own);
        pthread_sigmask(SIG_SETMASK, &all, &before_);
    }
    ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
    SignalsBlocked(const SignalsBlocked &) = delete;
    SignalsBlocked &operator=(const SignalsBlocked &) = delete;

private:
    sigset_t before_;
};

}  // namespace stepwell
