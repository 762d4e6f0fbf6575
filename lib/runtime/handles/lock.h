// SPDX-License-Identifier: Apache-2.0
// The name of a runtime's one lock in annotations. The mutex itself is the dispatcher's; rooms that
// hold references to it cannot name it alike, so clang is given one name for all of them.
#pragma once

#include "lib/support/thread_annotations.h"

namespace stepwell {

class STW_CAPABILITY("mutex") RuntimeLock {};
// Declared only: MutexLock lock(dispatch_.mutex()) acquires it.
extern RuntimeLock runtime_lock;

}  // namespace stepwell
