// SPDX-License-Identifier: Apache-2.0
//
// The functions of the driver by their exported names.

#include "gpu.h"

#include "must.h"

#include <dlfcn.h>
#include <memory>

namespace train_gpt::gpu {

// Of cuda.h: CUdevice is an int, CUdeviceptr 64 bits, all other handles are pointers.
struct Driver {
    void *library;
    int (*init)(unsigned flags);
    int (*error_name)(int error, const char **text);
    int (*device_get)(int *device, int ordinal);
    int (*device_name)(char *name, int capacity, int device);
    int (*context_retain)(void **context, int device);
    int (*context_release)(int device);
    int (*context_set)(void *context);
    int (*module_load)(void **module, const void *image);
    int (*module_unload)(void *module);
    int (*module_function)(void **function, void *module, const char *name);
    int (*memory_alloc)(unsigned long long *address, size_t bytes);
    int (*memory_free)(unsigned long long address);
    int (*host_alloc)(void **address, size_t bytes, unsigned flags);
    int (*host_free)(void *address);
    int (*copy_to_device)(unsigned long long to, const void *from, size_t bytes, void *stream);
    int (*copy_to_host)(void *to, unsigned long long from, size_t bytes, void *stream);
    int (*copy_inside)(unsigned long long to, unsigned long long from, size_t bytes, void *stream);
    int (*stream_create)(void **stream, unsigned flags);
    int (*stream_destroy)(void *stream);
    int (*stream_synchronize)(void *stream);
    int (*launch)(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                  unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                  void *stream, void **arguments, void **extra);
};

namespace {

constexpr unsigned kNonBlocking = 1;  // with the legacy stream, which others may use

template <class Function> void take(void *library, const char *name, Function **function_out)
{
    *function_out = reinterpret_cast<Function *>(dlsym(library, name));
    if (*function_out == nullptr)
        give_up((std::string("this machine's libcuda.so.1 has no function ") + name +
                 "; it needs a driver of CUDA 11 or later")
                    .c_str());
}

Driver *open_driver()
{
    auto driver = std::make_unique<Driver>();
    driver->library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (driver->library == nullptr)
        give_up((std::string("this machine has no NVIDIA driver: ") + dlerror()).c_str());
    void *library = driver->library;
    take(library, "cuInit", &driver->init);
    take(library, "cuGetErrorName", &driver->error_name);
    take(library, "cuDeviceGet", &driver->device_get);
    take(library, "cuDeviceGetName", &driver->device_name);
    take(library, "cuDevicePrimaryCtxRetain", &driver->context_retain);
    take(library, "cuDevicePrimaryCtxRelease_v2", &driver->context_release);
    take(library, "cuCtxSetCurrent", &driver->context_set);
    take(library, "cuModuleLoadData", &driver->module_load);
    take(library, "cuModuleUnload", &driver->module_unload);
    take(library, "cuModuleGetFunction", &driver->module_function);
    take(library, "cuMemAlloc_v2", &driver->memory_alloc);
    take(library, "cuMemFree_v2", &driver->memory_free);
    take(library, "cuMemHostAlloc", &driver->host_alloc);
    take(library, "cuMemFreeHost", &driver->host_free);
    take(library, "cuMemcpyHtoDAsync_v2", &driver->copy_to_device);
    take(library, "cuMemcpyDtoHAsync_v2", &driver->copy_to_host);
    take(library, "cuMemcpyDtoDAsync_v2", &driver->copy_inside);
    take(library, "cuStreamCreate", &driver->stream_create);
    take(library, "cuStreamDestroy_v2", &driver->stream_destroy);
    take(library, "cuStreamSynchronize", &driver->stream_synchronize);
    take(library, "cuLaunchKernel", &driver->launch);
    return driver.release();
}

}  // namespace

Gpu::Gpu(int ordinal) : driver_(open_driver())
{
    if (driver_->init(0) != 0 || driver_->device_get(&device_, ordinal) != 0)
        give_up(
            ("the NVIDIA driver shows this process no device " + std::to_string(ordinal)).c_str());
    void *context = nullptr;
    must(driver_->context_retain(&context, device_), "cuDevicePrimaryCtxRetain");
    must(driver_->context_set(context), "cuCtxSetCurrent");
    must(driver_->stream_create(&stream_, kNonBlocking), "cuStreamCreate");
    load_kernels();
}

Gpu::~Gpu()
{
    must(driver_->stream_destroy(stream_), "cuStreamDestroy");
    must(driver_->module_unload(module_), "cuModuleUnload");
    must(driver_->context_release(device_), "cuDevicePrimaryCtxRelease");
    delete driver_;
}

void Gpu::load_kernels()
{
    const int error = driver_->module_load(&module_, train_gpt_image);
    if (error != 0 && train_gpt_image_bytes == 0)
        give_up(
            "this program was built without nvcc, so it has no kernels; build it where the CUDA "
            "toolkit is");
    must(error, "cuModuleLoadData");
    for (uint32_t i = 0; i < kKernelCount; ++i)
        must(driver_->module_function(&functions_[i], module_, kKernels[i].name), kKernels[i].name);
}

void Gpu::must(int error, const char *call) const
{
    if (error == 0) return;
    const char *name = nullptr;
    driver_->error_name(error, &name);
    give_up((std::string(call) + " failed: " + (name != nullptr ? name : "error ") + " (" +
             std::to_string(error) + ")")
                .c_str());
}

std::string Gpu::name() const
{
    char name[256] = "";
    must(driver_->device_name(name, sizeof(name), device_), "cuDeviceGetName");
    return name;
}

uint64_t Gpu::allocate(uint64_t bytes)
{
    unsigned long long address = 0;
    must(driver_->memory_alloc(&address, bytes), "cuMemAlloc");
    return address;
}

void Gpu::free(uint64_t address)
{
    must(driver_->memory_free(address), "cuMemFree");
}

void *Gpu::allocate_pinned(uint64_t bytes)
{
    void *memory = nullptr;
    must(driver_->host_alloc(&memory, bytes, 0), "cuMemHostAlloc");
    return memory;
}

void Gpu::free_pinned(void *memory)
{
    must(driver_->host_free(memory), "cuMemFreeHost");
}

void Gpu::launch_bytes(Kernel kernel, const void *arguments, uint32_t bytes, uint64_t blocks)
{
    constexpr uint64_t kBlocksMax = 0x7fffffff;
    const KernelEntry &entry = kKernels[static_cast<uint32_t>(kernel)];
    if (bytes != entry.argument_bytes || blocks > kBlocksMax)
        give_up((std::string(entry.name) + " is launched with another argument, or too many blocks")
                    .c_str());
    if (blocks == 0) return;
    void *list[] = {const_cast<void *>(arguments)};
    must(driver_->launch(functions_[static_cast<uint32_t>(kernel)], static_cast<unsigned>(blocks),
                         1, 1, entry.threads, 1, 1, 0, stream_, list, nullptr),
         entry.name);
}

void Gpu::copy_to_device(uint64_t to, const void *from, uint64_t bytes)
{
    must(driver_->copy_to_device(to, from, bytes, stream_), "cuMemcpyHtoDAsync");
}

void Gpu::copy_to_host(void *to, uint64_t from, uint64_t bytes)
{
    must(driver_->copy_to_host(to, from, bytes, stream_), "cuMemcpyDtoHAsync");
}

void Gpu::copy_inside(uint64_t to, uint64_t from, uint64_t bytes)
{
    must(driver_->copy_inside(to, from, bytes, stream_), "cuMemcpyDtoDAsync");
}

void Gpu::wait()
{
    must(driver_->stream_synchronize(stream_), "cuStreamSynchronize");
}

}  // namespace train_gpt::gpu
