// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "lib/residency/types.h"

namespace stepwell::schedule {

constexpr residency::Instant kMs = 1'000'000;

}  // namespace stepwell::schedule
