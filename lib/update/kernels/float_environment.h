// SPDX-License-Identifier: Apache-2.0
// Round to nearest even, denormals kept, no traps, for as long as the object lives. Threads inherit
// the mode of whoever made them, and trainers like to flush denormals: without this the bits would
// depend on it. Any thread. The arithmetic must be in a function that is not inlined here: to the
// compiler, arithmetic does not depend on the mode and may be moved across the switch.
#pragma once

#if !defined(__x86_64__)
#error "Floating-point mode: add the control register of this processor here."
#endif

#include <xmmintrin.h>

namespace stepwell::kernels {

class FloatEnvironment {
public:
    FloatEnvironment() : saved_(_mm_getcsr()) { _mm_setcsr(kAllMaskedToNearest); }
    // The sticky exception flags go back too: what we raised is nobody's business.
    ~FloatEnvironment() { _mm_setcsr(saved_); }
    FloatEnvironment(const FloatEnvironment &) = delete;
    FloatEnvironment &operator=(const FloatEnvironment &) = delete;

private:
    static constexpr unsigned kAllMaskedToNearest = 0x1F80;
    unsigned saved_;
};

}  // namespace stepwell::kernels
