// SPDX-License-Identifier: Apache-2.0
// Groups as the program makes them: from options to a driver, and from that to ranks that know each
// other.
#pragma once

#include "lib/collective/group.h"

#include <stepwell/group.h>

#include <memory>

namespace stepwell {

// Null: this process alone. Checked options; blocks until all ranks have joined.
Result<std::unique_ptr<collective::Group>> open_group(const stw_group_options &options);

}  // namespace stepwell
