// SPDX-License-Identifier: Apache-2.0
// The structs of DLPack 1.1, a stable ABI of others: written from its published specification, so
// that the build needs no header of theirs. A program may have that header and include it; this one
// stays inside.
#pragma once

#include <cstddef>
#include <cstdint>

enum DLDeviceType : int32_t { kDLCPU = 1, kDLCUDA = 2 };

enum DLDataTypeCode : uint8_t {
    kDLInt = 0,
    kDLUInt = 1,
    kDLFloat = 2,
    kDLBfloat = 4,
    kDLBool = 6,
    kDLFloat8_e4m3fn = 10,
    kDLFloat8_e5m2 = 12,
};

constexpr uint64_t kDLReadOnly = 1;

struct DLDevice {
    int32_t device_type;
    int32_t device_id;
};

struct DLDataType {
    uint8_t code;
    uint8_t bits;
    uint16_t lanes;
};

struct DLTensor {
    void *data;
    DLDevice device;
    int32_t ndim;
    DLDataType dtype;
    int64_t *shape;
    int64_t *strides;  // in elements
    uint64_t byte_offset;
};

struct DLPackVersion {
    uint32_t major;
    uint32_t minor;
};

struct DLManagedTensor {
    DLTensor dl_tensor;
    void *manager_ctx;
    void (*deleter)(DLManagedTensor *self);
};

struct DLManagedTensorVersioned {
    DLPackVersion version;
    void *manager_ctx;
    void (*deleter)(DLManagedTensorVersioned *self);
    uint64_t flags;
    DLTensor dl_tensor;
};

static_assert(offsetof(DLTensor, dtype) == 20 && sizeof(DLTensor) == 48);
static_assert(offsetof(DLManagedTensor, deleter) == 56 && sizeof(DLManagedTensor) == 64);
static_assert(offsetof(DLManagedTensorVersioned, flags) == 24);
static_assert(offsetof(DLManagedTensorVersioned, dl_tensor) == 32);
