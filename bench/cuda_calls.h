// SPDX-License-Identifier: Apache-2.0
// How often this process calls CUDA's driver: whoever takes a function of it by dlsym, in any
// library, is given one that counts first.
#pragma once

#include <cstdint>

namespace bench {

uint64_t cuda_calls();

}  // namespace bench
