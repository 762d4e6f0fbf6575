// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>

namespace stepwell {

// The first of 10,000 seeds that no other day has: few seeds a run are many in a month.
inline uint64_t seed_of_the_day()
{
    const auto now = std::chrono::system_clock::now().time_since_epoch();
    return 10'000 * static_cast<uint64_t>(now / std::chrono::hours(24));
}

}  // namespace stepwell
