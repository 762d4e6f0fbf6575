// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Storage.h>

namespace stepwell::torch_double {

// What fits of the old bytes is kept.
void resize_storage(c10::StorageImpl *storage, size_t bytes);

}  // namespace stepwell::torch_double
