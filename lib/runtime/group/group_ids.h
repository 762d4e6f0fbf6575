// SPDX-License-Identifier: Apache-2.0
// What identifies the groups of this process, so that no two use the same engine: their
// collectives would take each other's bytes, or wait for ever. Any thread.
#pragma once

#include "lib/support/status.h"
#include "lib/support/thread_annotations.h"

#include <stepwell/group.h>

#include <cstdint>
#include <set>
#include <string>

namespace stepwell {

class GroupIds {
public:
    // Empty if groups cannot clash, as with MPI, which makes a communicator for each. Taken until
    // give(); BUSY if another group of this process has it. `epoch` counts forks: a child has none
    // of its parent's groups.
    Result<std::string> take(const stw_group_options &options, uint64_t epoch);
    // The group was destroyed. NCCL takes a unique id for one group only, so that id stays taken
    // if the group was made.
    void give(const std::string &id, bool was_made);

private:
    Mutex mutex_;
    std::set<std::string> taken_ STW_GUARDED_BY(mutex_);
};

}  // namespace stepwell
