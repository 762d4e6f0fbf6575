// SPDX-License-Identifier: Apache-2.0
// How many threads update: as many as this rank has of the processors of its host.
#pragma once

#include "lib/collective/processors.h"

#include <string>

namespace stepwell {

// Affinity and quota of this process. `root` is put before /proc and /sys.
collective::Processors own_processors(const std::string &root = "");

struct UpdateThreads {
    uint32_t count = 1;
    std::string why;  // for the report
};
// `ranks` of this host, of which this is number `own`.
UpdateThreads update_threads(const std::vector<collective::Processors> &ranks, uint32_t own);

}  // namespace stepwell
