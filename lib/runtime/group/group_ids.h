// SPDX-License-Identifier: Apache-2.0
// What the groups of this process are made of, so that no two are made of one thing: collectives of
// two groups over one engine would take each other's bytes, or wait for ever. Any thread.
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
    // "" where groups need not be told apart: MPI makes a communicator of its own for each. Until
    // give(); BUSY while a group of this process has it. `epoch` is that of forks: a child has none
    // of its parent's groups.
    Result<std::string> take(const stw_group_options &options, uint64_t epoch);
    // The group is gone. NCCL takes an id for one group only, so that one stays taken where the
    // group was made.
    void give(const std::string &id, bool was_made);

private:
    Mutex mutex_;
    std::set<std::string> taken_ STW_GUARDED_BY(mutex_);
};

}  // namespace stepwell
