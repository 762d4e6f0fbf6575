// SPDX-License-Identifier: Apache-2.0
// The element types as C++ types, so that a loop is compiled for each of them. Constants only.
#pragma once

#include <cstdint>

namespace stepwell::kernels {

struct F32 {
    using Stored = float;
};
struct F16 {
    using Stored = uint16_t;
};
struct Bf16 {
    using Stored = uint16_t;
};

inline constexpr uint32_t kCanonicalNan = 0x7FC00000;

}  // namespace stepwell::kernels
