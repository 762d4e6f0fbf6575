// SPDX-License-Identifier: Apache-2.0
// The runtime's one lock, as annotations name it. The mutex is the dispatcher's; rooms reach it
// through different references, so clang is given this one name for all of them.
#pragma once

#include "lib/support/thread_annotations.h"

namespace stepwell {

class STW_CAPABILITY("mutex") RuntimeLock {};
// Never defined: MutexLock lock(dispatch_.mutex()) acquires it.
extern RuntimeLock runtime_lock;

}  // namespace stepwell
