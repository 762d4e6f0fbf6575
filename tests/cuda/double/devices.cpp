// SPDX-License-Identifier: Apache-2.0
// Entry points of devices and contexts.
#include "tests/cuda/double/control.h"
#include "tests/cuda/double/driver.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

namespace stepwell::cuda_double {
namespace {

int attribute(const Options &options, int which, int device)
{
    const auto given = options.attributes.find(which);
    if (given != options.attributes.end()) return given->second;
    const bool unified = options.unified != 0;
    switch (which) {
    case kMaxThreadsPerBlock:
    case kMaxBlockX:
    case kMaxBlockY: return 1024;
    case kMaxBlockZ: return 64;
    case kMaxGridX: return 0x7fffffff;
    case kMaxGridY:
    case kMaxGridZ: return 65535;
    case kMaxSharedMemoryPerBlock: return 48 << 10;
    case kWarpSize: return 32;
    case kMultiprocessorCount: return 4;
    case kAsyncEngineCount: return 2;
    case kCanMapHostMemory:
    case kConcurrentKernels:
    case kUnifiedAddressing:
    case kStreamPrioritiesSupported:
    case kManagedMemory:
    case kConcurrentManagedAccess:
    case kHostPointerForRegisteredMemory:
    case kHostRegisterSupported:
    case kVirtualMemoryManagement:
    case kReadOnlyHostRegister: return 1;
    case kIntegrated:
    case kPageableMemoryAccess:
    case kPageableMemoryUsesHostPageTables:
    case kDirectManagedAccessFromHost: return unified ? 1 : 0;
    case kPciBusId: return device + 1;
    case kComputeCapabilityMajor: return 8;
    case kComputeCapabilityMinor: return 0;
    default: return 0;  // PCI domain and device, NUMA node, compute mode, and what nobody asks
    }
}

int uuid(Entry entry, Uuid *uuid_out, int device)
{
    return enter(entry, Needs::kInit, [&](Call &call) -> int {
        if (uuid_out == nullptr) return kInvalidValue;
        if (!call.is_device(device)) return kInvalidDevice;
        std::memcpy(uuid_out->bytes, "stw-cuda-double", sizeof uuid_out->bytes);
        uuid_out->bytes[15] = static_cast<char>('0' + device);
        return kSuccess;
    });
}

// nullptr: none of this driver.
Context *context_of(Call &call, void *handle)
{
    for (Context &context : call.state.contexts)
        if (&context == handle) return &context;
    return nullptr;
}

}  // namespace

extern "C" {

int cuInit(unsigned flags)
{
    return enter(Entry::cuInit, Needs::kNothing, [&](Call &call) -> int {
        if (flags != 0) return kInvalidValue;
        if (call.state.options.devices == 0) return kNoDevice;
        call.state.initialized = true;
        return kSuccess;
    });
}

int cuDriverGetVersion(int *version_out)
{
    return enter(Entry::cuDriverGetVersion, Needs::kNothing, [&](Call &call) -> int {
        if (version_out == nullptr) return kInvalidValue;
        *version_out = static_cast<int>(call.state.options.driver);
        return kSuccess;
    });
}

int cuDeviceGetCount(int *count_out)
{
    return enter(Entry::cuDeviceGetCount, Needs::kInit, [&](Call &call) -> int {
        if (count_out == nullptr) return kInvalidValue;
        *count_out = static_cast<int>(call.state.options.devices);
        return kSuccess;
    });
}

int cuDeviceGet(int *device_out, int ordinal)
{
    return enter(Entry::cuDeviceGet, Needs::kInit, [&](Call &call) -> int {
        if (device_out == nullptr) return kInvalidValue;
        if (!call.is_device(ordinal)) return kInvalidDevice;
        *device_out = ordinal;
        return kSuccess;
    });
}

int cuDeviceGetName(char *name, int capacity, int device)
{
    return enter(Entry::cuDeviceGetName, Needs::kInit, [&](Call &call) -> int {
        if (name == nullptr || capacity <= 0) return kInvalidValue;
        if (!call.is_device(device)) return kInvalidDevice;
        std::snprintf(name, static_cast<size_t>(capacity), "CUDA double %d", device);
        return kSuccess;
    });
}

int cuDeviceGetAttribute(int *value_out, int which, int device)
{
    return enter(Entry::cuDeviceGetAttribute, Needs::kInit, [&](Call &call) -> int {
        if (value_out == nullptr || which <= 0 || which > static_cast<int>(kAttributesMax))
            return kInvalidValue;
        if (!call.is_device(device)) return kInvalidDevice;
        *value_out = attribute(call.state.options, which, device);
        return kSuccess;
    });
}

int cuDeviceTotalMem_v2(size_t *bytes_out, int device)
{
    return enter(Entry::cuDeviceTotalMem_v2, Needs::kInit, [&](Call &call) -> int {
        if (bytes_out == nullptr) return kInvalidValue;
        if (!call.is_device(device)) return kInvalidDevice;
        *bytes_out = call.memory().total();
        return kSuccess;
    });
}

int cuDeviceGetUuid(Uuid *uuid_out, int device)
{
    return uuid(Entry::cuDeviceGetUuid, uuid_out, device);
}

int cuDeviceGetUuid_v2(Uuid *uuid_out, int device)
{
    return uuid(Entry::cuDeviceGetUuid_v2, uuid_out, device);
}

int cuDeviceGetPCIBusId(char *id, int capacity, int device)
{
    return enter(Entry::cuDeviceGetPCIBusId, Needs::kInit, [&](Call &call) -> int {
        if (id == nullptr || capacity < 13) return kInvalidValue;
        if (!call.is_device(device)) return kInvalidDevice;
        std::snprintf(id, static_cast<size_t>(capacity), "0000:%02x:00.0", device + 1);
        return kSuccess;
    });
}

int cuDevicePrimaryCtxRetain(void **context_out, int device)
{
    return enter(Entry::cuDevicePrimaryCtxRetain, Needs::kInit, [&](Call &call) -> int {
        if (context_out == nullptr) return kInvalidValue;
        if (!call.is_device(device)) return kInvalidDevice;
        if (call.state.options.busy != 0) return kDeviceUnavailable;
        Context &context = call.state.contexts[static_cast<size_t>(device)];
        // What broke stays broken for as long as the process lives.
        if (context.sticky != 0) return context.sticky;
        ++context.retained;
        if (context.legacy == nullptr)
            context.legacy = call.scheduler().create(&context, true, true);
        *context_out = &context;
        return kSuccess;
    });
}

int cuDevicePrimaryCtxRelease_v2(int device)
{
    return enter(Entry::cuDevicePrimaryCtxRelease_v2, Needs::kInit, [&](Call &call) -> int {
        if (!call.is_device(device)) return kInvalidDevice;
        Context &context = call.state.contexts[static_cast<size_t>(device)];
        if (context.retained == 0) return kInvalidContext;
        --context.retained;
        return kSuccess;
    });
}

int cuCtxGetCurrent(void **context_out)
{
    return enter(Entry::cuCtxGetCurrent, Needs::kInit, [&](Call &call) -> int {
        if (context_out == nullptr) return kInvalidValue;
        *context_out = call.thread.context();
        return kSuccess;
    });
}

int cuCtxSetCurrent(void *handle)
{
    return enter(Entry::cuCtxSetCurrent, Needs::kInit, [&](Call &call) -> int {
        Context *context = context_of(call, handle);
        if (handle != nullptr && (context == nullptr || context->retained == 0))
            return kInvalidContext;
        std::vector<Context *> &stack = call.thread.stack;
        if (!stack.empty()) stack.pop_back();
        if (context != nullptr) stack.push_back(context);
        return kSuccess;
    });
}

int cuCtxPushCurrent_v2(void *handle)
{
    return enter(Entry::cuCtxPushCurrent_v2, Needs::kInit, [&](Call &call) -> int {
        Context *context = context_of(call, handle);
        if (context == nullptr || context->retained == 0) return kInvalidContext;
        call.thread.stack.push_back(context);
        ++call.thread.pushes;
        return kSuccess;
    });
}

int cuCtxPopCurrent_v2(void **context_out)
{
    return enter(Entry::cuCtxPopCurrent_v2, Needs::kInit, [&](Call &call) -> int {
        std::vector<Context *> &stack = call.thread.stack;
        if (stack.empty() || call.thread.pushes == 0)
            call.state.report.add(STW_DOUBLE_CONTEXT_STACK,
                                  "cuCtxPopCurrent_v2 popped a context that this thread did not "
                                  "push.");
        if (stack.empty()) return kInvalidContext;
        if (context_out != nullptr) *context_out = stack.back();
        stack.pop_back();
        call.thread.pushes = std::max<int64_t>(0, call.thread.pushes - 1);
        return kSuccess;
    });
}

int cuCtxGetDevice(int *device_out)
{
    return enter(Entry::cuCtxGetDevice, Needs::kContext, [&](Call &call) -> int {
        if (device_out == nullptr) return kInvalidValue;
        *device_out = call.context->device;
        return kSuccess;
    });
}

int cuCtxSynchronize()
{
    return enter(Entry::cuCtxSynchronize, Needs::kContext, [&](Call &call) -> int {
        if (const int result = break_captures(call, call.context)) return result;
        std::vector<OperationPtr> last;
        Clock known;
        call.scheduler().each([&](const Stream &stream) {
            if (stream.context != call.context) return;
            known.join(stream.clock);
            if (!stream.queue.empty()) last.push_back(stream.last);
        });
        for (const OperationPtr &operation : last) call.scheduler().wait(call.lock, operation);
        call.tracker().host().join(known);
        return call.verdict();
    });
}

int cuCtxGetStreamPriorityRange(int *least_out, int *greatest_out)
{
    return enter(Entry::cuCtxGetStreamPriorityRange, Needs::kContext, [&](Call &) -> int {
        if (least_out != nullptr) *least_out = 0;
        if (greatest_out != nullptr) *greatest_out = -5;
        return kSuccess;
    });
}

}  // extern "C"

}  // namespace stepwell::cuda_double
