// SPDX-License-Identifier: Apache-2.0
// start_thread(): a thread of the library. It takes no signal, has a name, and works for the
// runtime that the thread works for which starts it.
#pragma once

#include "lib/support/assert.h"
#include "lib/support/limits.h"
#include "lib/support/signals.h"

#include <pthread.h>
#include <system_error>
#include <thread>
#include <utility>

namespace stepwell {

// purpose: for the sentence of LIMIT, if the system starts none. name: up to 15 characters.
template <typename Run>
Status start_thread(std::thread &thread, const char *name, const char *purpose, Run run)
{
    const SignalsBlocked signals;
    try {
        thread = std::thread([log = assertion_log(), run = std::move(run)] {
            set_assertion_log(log);
            run();
        });
    } catch (const std::system_error &error) {
        return no_thread(error.code().value(), purpose);
    }
    pthread_setname_np(thread.native_handle(), name);
    return {};
}

}  // namespace stepwell
