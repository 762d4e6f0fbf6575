// SPDX-License-Identifier: Apache-2.0
// What collectives must give, by plain loops: each rank knows what every rank brings.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace conformance::ranks {

uint64_t element_bytes(uint32_t dtype);
// Values of all magnitudes that a dtype has, so that the order of additions shows in the bits.
std::vector<char> values(uint32_t dtype, uint32_t rank, uint64_t elements, uint64_t seed);
// The sums over ranks of what values() gives them, in rank order, rounded once.
std::vector<char> sums(uint32_t dtype, uint32_t ranks, uint64_t elements, uint64_t seed);
// "" or the first element that differs; one that is no number equals every other such one.
std::string difference(uint32_t dtype, const void *found, const void *expected, uint64_t elements);

}  // namespace conformance::ranks
