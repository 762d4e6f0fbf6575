// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda/driver_calls.h"

#include <cstdio>
#include <cstdlib>

#include <dlfcn.h>

namespace stepwell::gpu {

namespace {

constexpr const char *kName = "libcuda.so.1";

template <class Function> void take(void *library, const char *name, Function **function_out)
{
    *function_out = reinterpret_cast<Function *>(dlsym(library, name));
    if (*function_out == nullptr)
        give_up(kNoDevice, std::string("this machine's ") + kName + " has no function " + name);
}

DriverCalls take_all(void *library)
{
    DriverCalls calls = {};
    take(library, "cuInit", &calls.init);
    take(library, "cuGetErrorName", &calls.error_name);
    take(library, "cuDeviceGet", &calls.device_get);
    take(library, "cuDeviceGetName", &calls.device_name);
    take(library, "cuDevicePrimaryCtxRetain", &calls.context_retain);
    take(library, "cuDevicePrimaryCtxRelease_v2", &calls.context_release);
    take(library, "cuCtxSetCurrent", &calls.context_set);
    take(library, "cuMemAlloc_v2", &calls.memory_alloc);
    take(library, "cuMemFree_v2", &calls.memory_free);
    take(library, "cuMemHostAlloc", &calls.host_alloc);
    take(library, "cuMemFreeHost", &calls.host_free);
    take(library, "cuMemcpyHtoDAsync_v2", &calls.copy_to_device);
    take(library, "cuMemcpyDtoHAsync_v2", &calls.copy_to_host);
    take(library, "cuMemcpyDtoDAsync_v2", &calls.copy_inside);
    take(library, "cuMemsetD32Async", &calls.fill);
    take(library, "cuStreamCreate", &calls.stream_create);
    take(library, "cuStreamDestroy_v2", &calls.stream_destroy);
    take(library, "cuStreamSynchronize", &calls.stream_synchronize);
    return calls;
}

}  // namespace

void give_up(int status, const std::string &sentence)
{
    std::fprintf(stderr, "%s\n", sentence.c_str());
    std::exit(status);
}

void DriverCalls::must(int error, const char *call) const
{
    if (error == 0) return;
    const char *name = nullptr;
    error_name(error, &name);
    give_up(kCannotRun, std::string(call) + " failed: " + (name != nullptr ? name : "error ") +
                            " (" + std::to_string(error) + ")");
}

DriverCalls open_driver()
{
    void *library = dlopen(kName, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr)
        give_up(kNoDevice, std::string("this machine has no NVIDIA driver: ") + dlerror());
    DriverCalls calls = take_all(library);
    int device = 0;
    if (calls.init(0) != 0 || calls.device_get(&device, 0) != 0)
        give_up(kNoDevice, "the NVIDIA driver shows this process no device");
    calls.must(calls.context_retain(&calls.context, device), "cuDevicePrimaryCtxRetain");
    calls.use_here();
    return calls;
}

void close_driver(const DriverCalls &calls)
{
    calls.must(calls.context_release(0), "cuDevicePrimaryCtxRelease");
}

std::string device_name(const DriverCalls &calls)
{
    char name[256] = "";
    calls.must(calls.device_name(name, sizeof name, 0), "cuDeviceGetName");
    return name;
}

}  // namespace stepwell::gpu
