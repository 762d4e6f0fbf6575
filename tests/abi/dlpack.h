/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DLPack 1.1 as a consumer knows it, from its specification and not from the library.
 */
#ifndef TESTS_ABI_DLPACK_H
#define TESTS_ABI_DLPACK_H

#include <stdint.h>

enum { DL_INT = 0, DL_UINT = 1, DL_FLOAT = 2, DL_BFLOAT = 4, DL_BOOL = 6 };
enum { DL_FLOAT8_E4M3FN = 10, DL_FLOAT8_E5M2 = 12 };
enum { DL_CPU = 1, DL_READ_ONLY = 1 };

typedef struct dl_tensor {
    void *data;
    int32_t device_type;
    int32_t device_id;
    int32_t ndim;
    uint8_t code;
    uint8_t bits;
    uint16_t lanes;
    int64_t *shape;
    int64_t *strides;
    uint64_t byte_offset;
} dl_tensor;

struct DLManagedTensor {
    dl_tensor tensor;
    void *context;
    void (*deleter)(struct DLManagedTensor *self);
};

struct DLManagedTensorVersioned {
    uint32_t major;
    uint32_t minor;
    void *context;
    void (*deleter)(struct DLManagedTensorVersioned *self);
    uint64_t flags;
    dl_tensor tensor;
};

#endif
