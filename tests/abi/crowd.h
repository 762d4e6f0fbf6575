/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A device that a view has pinned, and operations that wait for it: they end when the test says so.
 */
#ifndef TESTS_ABI_CROWD_H
#define TESTS_ABI_CROWD_H

#include "support.h"

/* A runtime whose device is pinned by a view, and a tensor that has to wait for it. */
typedef struct crowd {
    stw_runtime *runtime;
    stw_tensor *held, *wanted;
    stw_view view;
    uint64_t timeout_ns;
} crowd;

crowd crowd_open(void);
stw_operation *ask(stw_runtime *runtime, stw_tensor *tensor, uint32_t access, uint64_t timeout_ns);
/* Under way until the crowd's view is put back. */
stw_operation *ask_for_room(crowd *here);
void until_over(stw_operation *operation);

#endif
