// SPDX-License-Identifier: Apache-2.0
// How Highway is included: once per target, headers only. Its debug assertions call into its shared
// library, which ours must not need, so they are off. Define HWY_TARGET_INCLUDE first.
// The baseline is its one-lane target with every compiler: the emulated 128-bit one, which it would
// take with some, is no faster where it is needed and takes minutes to compile with sanitizers.
// No include guard of its own: Highway's headers know how often they want to be read.

#ifndef HWY_IS_DEBUG_BUILD
#define HWY_IS_DEBUG_BUILD 0
#endif
#ifndef HWY_BROKEN_EMU128
#define HWY_BROKEN_EMU128 1
#endif

#include <hwy/foreach_target.h>  // must come before highway.h

#include <hwy/highway.h>
