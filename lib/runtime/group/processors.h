// SPDX-License-Identifier: Apache-2.0
// The number of update threads: this rank's share of the processors of its host.
#pragma once

#include "lib/collective/processors.h"

#include <string>

namespace stepwell {

// Affinity and quota of this process. `root` is a prefix of /proc and /sys.
collective::Processors own_processors(const std::string &root = "");

struct UpdateThreads {
    uint32_t count = 1;
    std::string why;  // for the report
};
// `ranks` are those of this host; this is number `own`.
UpdateThreads update_threads(const std::vector<collective::Processors> &ranks, uint32_t own);

}  // namespace stepwell
