/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Modules that must be refused: the macro named after each says what is wrong with it.
 */
#include <stepwell/driver.h>

#include <stddef.h>

#if defined(NEEDS_ABSENT)
int absent_stack(void);
#endif

#if !defined(NO_SYMBOL)
#if defined(SMALL_DRIVER)
#define OPS_BYTES offsetof(stw_storage_ops, close)
#else
#define OPS_BYTES sizeof(stw_storage_ops)
#endif

static const stw_storage_ops incomplete = {
    OPS_BYTES, STW_DRIVER_ABI, "incomplete", 0,    NULL, NULL, NULL,
    NULL,      NULL,           NULL,         NULL, NULL, NULL,
};

const stw_driver_module *stw_driver_module_get(void)
{
    static stw_driver_module module = {sizeof(stw_driver_module), STW_DRIVER_ABI, &incomplete, NULL,
                                       NULL};
#if defined(OTHER_ABI)
    module.abi = STW_DRIVER_ABI + 1;
    module.storage = (const stw_storage_ops *)(uintptr_t)1; /* nobody may look */
#elif defined(SMALL_TABLE)
    module.struct_size -= 1;
#elif defined(NO_DRIVER)
    module.storage = NULL;
#elif defined(NO_TABLE)
    return NULL;
#elif defined(NEEDS_ABSENT)
    module.abi += (uint32_t)absent_stack();
#endif
    return &module;
}
#endif
