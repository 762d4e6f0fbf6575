// SPDX-License-Identifier: Apache-2.0
// Entry points of modules and kernels. No image is looked at: a kernel is found by its name among
// what the process and the library of kernels export.
#include "tests/cuda/double/control.h"
#include "tests/cuda/double/driver.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include <dlfcn.h>

namespace stepwell::cuda_double {
namespace {

constexpr uint32_t kArgumentsMax = 64;

const std::vector<void *> &libraries_of_kernels()
{
    static const std::vector<void *> libraries = [] {
        std::vector<void *> opened;
        const char *paths = std::getenv("STW_CUDA_DOUBLE_KERNELS");
        std::istringstream list(paths != nullptr ? paths : "");
        for (std::string path; std::getline(list, path, ':');) {
            void *library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
            if (library != nullptr) opened.push_back(library);
        }
        return opened;
    }();
    return libraries;
}

template <class Type> void look_up(const char *prefix, const std::string &name, Type **function_out)
{
    const std::string symbol = "stw_double_" + (prefix + name);
    void *found = dlsym(RTLD_DEFAULT, symbol.c_str());
    for (void *library : libraries_of_kernels())
        if (found == nullptr) found = dlsym(library, symbol.c_str());
    *function_out = reinterpret_cast<Type *>(found);
}

int find_function(Call &call, void **function_out, const char *name)
{
    if (function_out == nullptr || name == nullptr) return kInvalidValue;
    std::unique_ptr<Function> &function = call.state.functions[name];
    if (function == nullptr) {
        auto made = std::make_unique<Function>();
        made->name = name;
        look_up("kernel_", made->name, &made->run);
        look_up("ranges_", made->name, &made->ranges);
        look_up("args_", made->name, &made->args);
        if (made->run == nullptr || made->ranges == nullptr || made->args == nullptr)
            return kNotFound;
        function = std::move(made);
    }
    *function_out = function.get();
    return kSuccess;
}

const Function *function_of(Call &call, void *handle)
{
    for (const auto &[name, function] : call.state.functions)
        if (function != nullptr && function.get() == handle) return function.get();
    return nullptr;
}

int load(Call &call, void **module_out, const void *image, bool library)
{
    if (module_out == nullptr || image == nullptr) return kInvalidValue;
    auto module = std::make_unique<Module>();
    module->context = library ? nullptr : call.context;
    *module_out = module.get();
    call.state.modules[*module_out] = std::move(module);
    return kSuccess;
}

int find_module(Call &call, void *handle, bool library, Module **module_out)
{
    const auto entry = call.state.modules.find(handle);
    if (entry == call.state.modules.end() || entry->second->unloaded ||
        (entry->second->context == nullptr) != library) {
        call.state.report.add(STW_DOUBLE_DEAD_HANDLE,
                              text("%s was given %p, which is no %s that is loaded.", call.name(),
                                   handle, library ? "library" : "module"));
        return kInvalidHandle;
    }
    *module_out = entry->second.get();
    return kSuccess;
}

int unload(Call &call, void *handle, bool library)
{
    Module *module = nullptr;
    if (const int result = find_module(call, handle, library, &module); result != kSuccess)
        return result;
    module->unloaded = true;
    return kSuccess;
}

int function_in(Call &call, void *handle, bool library, void **function_out, const char *name)
{
    Module *module = nullptr;
    if (const int result = find_module(call, handle, library, &module); result != kSuccess)
        return result;
    return find_function(call, function_out, name);
}

// The arguments as they are at the launch; the caller's may go when it returns.
class Arguments {
public:
    Arguments(const Function &function, void **arguments)
    {
        uint32_t sizes[kArgumentsMax] = {};
        const uint32_t count = std::min(function.args(sizes, kArgumentsMax), kArgumentsMax);
        // Blocks of eight bytes: as aligned as any argument asks.
        for (uint32_t i = 0; i < count; ++i) {
            values_.emplace_back((sizes[i] + 7) / 8);
            if (sizes[i] > 0) std::memcpy(values_.back().data(), arguments[i], sizes[i]);
        }
        for (auto &value : values_) pointers_.push_back(value.data());
    }
    Arguments(const Arguments &) = delete;
    Arguments &operator=(const Arguments &) = delete;
    void **pointers() { return pointers_.data(); }

private:
    std::vector<std::vector<uint64_t>> values_;
    std::vector<void *> pointers_;
};

std::vector<Touch> touches_of(const Function &function, Arguments &arguments,
                              const stw_double_launch &launch)
{
    std::vector<stw_double_range> ranges(16);
    const auto ask = [&] {
        return function.ranges(arguments.pointers(), &launch, ranges.data(),
                               static_cast<uint32_t>(ranges.size()));
    };
    const uint32_t count = ask();
    const bool all = count <= ranges.size();
    ranges.resize(count);
    if (!all) ask();
    std::vector<Touch> touches;
    for (const stw_double_range &range : ranges)
        if (range.bytes > 0) touches.push_back({range.address, range.bytes, range.writes != 0});
    return touches;
}

bool can_launch(const stw_double_launch &launch)
{
    uint64_t threads = 1;
    for (int axis = 0; axis < 3; ++axis) {
        if (launch.grid[axis] == 0 || launch.block[axis] == 0) return false;
        if (axis > 0 && launch.grid[axis] > 65535) return false;
        threads *= launch.block[axis];
    }
    return launch.grid[0] <= 0x7fffffff && launch.block[2] <= 64 && threads <= 1024 &&
           launch.shared_bytes <= (48u << 10);
}

int launch_kernel(Call &call, void *handle, const stw_double_launch &launch, void *stream_handle,
                  void **arguments)
{
    const Function *function = function_of(call, handle);
    if (function == nullptr) return kInvalidHandle;
    Stream *stream = nullptr;
    if (const int result = find_stream(call, stream_handle, &stream); result != kSuccess)
        return result;
    if (stream->context != call.context) {
        call.state.report.add(STW_DOUBLE_WRONG_CONTEXT,
                              text("cuLaunchKernel of %s was given stream %llu of device %d while "
                                   "the context of device %d was current.",
                                   function->name.c_str(),
                                   static_cast<unsigned long long>(stream->number),
                                   stream->context->device, call.context->device));
        return kInvalidHandle;
    }
    if (!can_launch(launch)) return kInvalidValue;
    auto copied = std::make_shared<Arguments>(*function, arguments);
    Request request;
    request.what = function->name.c_str();
    request.kernel = true;
    request.touches = touches_of(*function, *copied, launch);
    request.work = {Engine::kCompute, bytes_of(request.touches),
                    call.state.timing.costs().kernel_ns};
    request.run = [run = function->run, copied, launch] {
        run(copied->pointers(), &launch, stw_double_alias);
    };
    call.scheduler().submit(*stream, std::move(request));
    return kSuccess;
}

}  // namespace

extern "C" {

int cuModuleLoadData(void **module_out, const void *image)
{
    return enter(Entry::cuModuleLoadData, Needs::kContext,
                 [&](Call &call) { return load(call, module_out, image, false); });
}

int cuModuleLoadDataEx(void **module_out, const void *image, unsigned, int *, void **)
{
    return enter(Entry::cuModuleLoadDataEx, Needs::kContext,
                 [&](Call &call) { return load(call, module_out, image, false); });
}

int cuModuleUnload(void *module)
{
    return enter(Entry::cuModuleUnload, Needs::kContext,
                 [&](Call &call) { return unload(call, module, false); });
}

int cuModuleGetFunction(void **function_out, void *module, const char *name)
{
    return enter(Entry::cuModuleGetFunction, Needs::kContext,
                 [&](Call &call) { return function_in(call, module, false, function_out, name); });
}

int cuLibraryLoadData(void **library_out, const void *image, int *, void **, unsigned, int *,
                      void **, unsigned)
{
    return enter(Entry::cuLibraryLoadData, Needs::kInit,
                 [&](Call &call) { return load(call, library_out, image, true); });
}

int cuLibraryUnload(void *library)
{
    return enter(Entry::cuLibraryUnload, Needs::kInit,
                 [&](Call &call) { return unload(call, library, true); });
}

int cuLibraryGetKernel(void **kernel_out, void *library, const char *name)
{
    return enter(Entry::cuLibraryGetKernel, Needs::kInit,
                 [&](Call &call) { return function_in(call, library, true, kernel_out, name); });
}

// One function serves as kernel and as function of every context.
int cuKernelGetFunction(void **function_out, void *kernel)
{
    return enter(Entry::cuKernelGetFunction, Needs::kContext, [&](Call &call) -> int {
        if (function_out == nullptr) return kInvalidValue;
        if (function_of(call, kernel) == nullptr) return kInvalidHandle;
        *function_out = kernel;
        return kSuccess;
    });
}

int cuFuncGetAttribute(int *value_out, int attribute, void *function)
{
    return enter(Entry::cuFuncGetAttribute, Needs::kContext, [&](Call &call) -> int {
        constexpr int kMaxThreads = 0, kRegisters = 4, kLast = 15;
        if (value_out == nullptr || attribute < 0 || attribute > kLast) return kInvalidValue;
        if (function_of(call, function) == nullptr) return kInvalidHandle;
        *value_out = attribute == kMaxThreads ? 1024 : attribute == kRegisters ? 32 : 0;
        return kSuccess;
    });
}

int cuLaunchKernel(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                   unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                   void *stream, void **arguments, void **extra)
{
    return enter(Entry::cuLaunchKernel, Needs::kContext, [&](Call &call) -> int {
        if (extra != nullptr) return kNotSupported;  // arguments in one buffer: nobody does it
        const stw_double_launch launch{
            {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes, 0};
        return launch_kernel(call, function, launch, stream, arguments);
    });
}

}  // extern "C"

}  // namespace stepwell::cuda_double
