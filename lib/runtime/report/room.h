// SPDX-License-Identifier: Apache-2.0
// report: statistics, the report and the timeline.
#pragma once

#include "lib/runtime/report/page.h"
#include "lib/runtime/report/reporter.h"

namespace stepwell {

struct ReportRoom {
    Reporter reporter;
    StatsPublisher page;
};

}  // namespace stepwell
