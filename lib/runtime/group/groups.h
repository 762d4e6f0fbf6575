// SPDX-License-Identifier: Apache-2.0
// Opens groups from the program's options: the driver, then the ranks that meet through it.
#pragma once

#include "lib/collective/group.h"

#include <stepwell/group.h>

#include <memory>

namespace stepwell {

// Null: this process alone. `options` are checked. Blocks until all ranks have joined.
Result<std::unique_ptr<collective::Group>> open_group(const stw_group_options &options);

}  // namespace stepwell
