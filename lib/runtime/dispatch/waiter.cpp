// SPDX-License-Identifier: Apache-2.0
#include "lib/runtime/dispatch/waiter.h"

#include "lib/observe/step_stats.h"
#include "lib/runtime/dispatch/snapshot.h"

namespace stepwell {

Waiter::Waiter() : cause(observe::Stall::kHostDevice) {}
Waiter::~Waiter() = default;

}  // namespace stepwell
