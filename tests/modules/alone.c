/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The smallest collective driver: groups of one rank, whose collectives end where they begin. It
 * has no group of operations beyond those that every driver has, and its table ends there.
 */
#include <stepwell/driver.h>

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

struct stw_collective {
    uint64_t works;
};

static stw_status alone_open(const stw_services *services, const stw_collective_options *options,
                             stw_collective **collective_out, stw_driver_error *error_out)
{
    (void)services, (void)error_out;
    if (options->size > 1) return STW_ERROR_UNSUPPORTED;
    *collective_out = calloc(1, sizeof **collective_out);
    return *collective_out ? STW_OK : STW_ERROR_MEMORY;
}

static void alone_info(stw_collective *collective, stw_collective_info *info_out)
{
    (void)collective;
    info_out->rank = 0;
    info_out->size = 1;
}

static stw_status alone_copy(stw_collective *collective, void *to, const void *from, uint64_t bytes,
                             uint64_t *work_out)
{
    if (to != from) memcpy(to, from, bytes);
    *work_out = ++collective->works;
    return STW_OK;
}

static stw_status alone_exchange(stw_collective *collective, const void *record, void *records,
                                 uint32_t bytes, uint64_t *work_out)
{
    return alone_copy(collective, records, record, bytes, work_out);
}

static stw_status alone_all_gather(stw_collective *collective, const void *shard, void *whole,
                                   uint64_t shard_bytes, void *stream, uint64_t *work_out)
{
    (void)stream;
    return alone_copy(collective, whole, shard, shard_bytes, work_out);
}

static stw_status alone_reduce_scatter(stw_collective *collective, const void *whole, void *shard,
                                       uint64_t shard_elements, uint32_t dtype, void *stream,
                                       uint64_t *work_out)
{
    const uint64_t bytes = dtype == 4 ? 8 : dtype == 1 ? 4 : 2; /* F64, F32, the 16 bit ones */
    (void)stream;
    return alone_copy(collective, shard, whole, shard_elements * bytes, work_out);
}

static stw_status alone_all_reduce(stw_collective *collective, void *data, uint64_t elements,
                                   uint32_t dtype, void *stream, uint64_t *work_out)
{
    (void)elements, (void)dtype, (void)stream;
    return alone_copy(collective, data, data, 0, work_out);
}

static stw_status alone_poll(stw_collective *collective, uint64_t work, stw_driver_error *error_out)
{
    (void)collective, (void)work, (void)error_out;
    return STW_OK;
}

static stw_status alone_close(stw_collective *collective, uint64_t wait_ns)
{
    (void)wait_ns;
    free(collective);
    return STW_OK;
}

static const stw_collective_ops collective = {
    .struct_size = offsetof(stw_collective_ops, split),
    .abi = STW_DRIVER_ABI,
    .name = "alone",
    .capabilities = STW_COLLECTIVE_HOST,
    .open = alone_open,
    .info = alone_info,
    .exchange = alone_exchange,
    .all_gather = alone_all_gather,
    .reduce_scatter = alone_reduce_scatter,
    .all_reduce = alone_all_reduce,
    .poll = alone_poll,
    .close = alone_close,
};

const stw_driver_module *stw_driver_module_get(void)
{
    static const stw_driver_module module = {
        sizeof(stw_driver_module), STW_DRIVER_ABI, NULL, NULL, &collective,
    };
    return &module;
}
