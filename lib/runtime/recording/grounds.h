// SPDX-License-Identifier: Apache-2.0
// Definitions of what ground.h declares and most sources use.
#pragma once

#include "lib/runtime/dispatch/dispatcher.h"
#include "lib/runtime/dispatch/errors.h"
#include "lib/runtime/handles/table.h"
#include "lib/runtime/handles/views.h"
#include "lib/runtime/machine/machine.h"
#include "lib/runtime/recording/ground.h"
