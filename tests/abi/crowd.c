/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A device that a view has pinned, and operations that wait for it.
 */
#include "crowd.h"

crowd crowd_open(void)
{
    machine small = machine_small();
    crowd made;
    memset(&made, 0, sizeof made);
    small.operations_max = 64;
    made.runtime = machine_open(&small);
    made.held = tensor_f32(made.runtime, "held", 6 * BLOCK / 4);
    made.wanted = tensor_f32(made.runtime, "wanted", 6 * BLOCK / 4);
    tensor_fill_sequence(made.held, 6 * BLOCK / 4, 0);
    tensor_fill_sequence(made.wanted, 6 * BLOCK / 4, 0);
    made.view = view_get(made.runtime, made.held, STW_READ);
    return made;
}

stw_operation *ask(stw_runtime *runtime, stw_tensor *tensor, uint32_t access, uint64_t timeout_ns)
{
    stw_fetch_request request = request_of(tensor, access);
    stw_operation *operation = NULL;
    stw_fetch_options options = {
        .struct_size = sizeof options, .flags = STW_FETCH_WAIT_ROOM, .timeout_ns = timeout_ns};
    ok(stw_fetch_async(runtime, &options, &request, 1, &operation));
    return operation;
}

stw_operation *ask_for_room(crowd *here)
{
    stw_operation *operation = ask(here->runtime, here->wanted, STW_READ, here->timeout_ns);
    assert_int_equal(stw_operation_poll(operation), STW_PENDING);
    return operation;
}

void until_over(stw_operation *operation)
{
    while (stw_operation_wait(operation, SECOND_NS) == STW_PENDING) continue;
}
