// SPDX-License-Identifier: Apache-2.0
#include "lib/runtime/dispatch/waiter.h"

#include "lib/runtime/dispatch/snapshot.h"

namespace stepwell {

Waiter::Waiter() = default;
Waiter::~Waiter() = default;

}  // namespace stepwell
