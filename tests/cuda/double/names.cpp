// SPDX-License-Identifier: Apache-2.0
// Names of errors and of entry points, and which entry point a version of CUDA means by a name.
#include "tests/cuda/double/driver.h"

#include <cstring>
#include <string_view>

namespace stepwell::cuda_double {
namespace {

struct ErrorName {
    int code;
    const char *name;
    const char *text;
};
constexpr ErrorName kErrors[] = {
    {kSuccess, "CUDA_SUCCESS", "no error"},
    {kInvalidValue, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {kOutOfMemory, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {kNotInitialized, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {kNewerDriverNeeded, "CUDA_ERROR_CALL_REQUIRES_NEWER_DRIVER", "the call needs a newer driver"},
    {kDeviceUnavailable, "CUDA_ERROR_DEVICE_UNAVAILABLE", "device is busy or unavailable"},
    {kNoDevice, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {kInvalidDevice, "CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"},
    {kInvalidContext, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {kAlreadyMapped, "CUDA_ERROR_ALREADY_MAPPED", "already mapped"},
    {kEccUncorrectable, "CUDA_ERROR_ECC_UNCORRECTABLE", "uncorrectable ECC error encountered"},
    {kInvalidHandle, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
    {kNotFound, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {kNotReady, "CUDA_ERROR_NOT_READY", "device not ready"},
    {kIllegalAddress, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {kLaunchOutOfResources, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
     "too many resources requested for launch"},
    {kLaunchTimeout, "CUDA_ERROR_LAUNCH_TIMEOUT", "the launch timed out and was terminated"},
    {kContextIsDestroyed, "CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"},
    {kAssert, "CUDA_ERROR_ASSERT", "device-side assert triggered"},
    {kHostMemoryAlreadyRegistered, "CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED",
     "part or all of the requested memory range is already mapped"},
    {kHostMemoryNotRegistered, "CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED",
     "pointer does not correspond to a registered memory region"},
    {kHardwareStackError, "CUDA_ERROR_HARDWARE_STACK_ERROR", "hardware stack error"},
    {kIllegalInstruction, "CUDA_ERROR_ILLEGAL_INSTRUCTION",
     "an illegal instruction was encountered"},
    {kMisalignedAddress, "CUDA_ERROR_MISALIGNED_ADDRESS", "misaligned address"},
    {kInvalidAddressSpace, "CUDA_ERROR_INVALID_ADDRESS_SPACE",
     "operation not supported on global or shared address space"},
    {kInvalidPc, "CUDA_ERROR_INVALID_PC", "invalid program counter"},
    {kLaunchFailed, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {kNotPermitted, "CUDA_ERROR_NOT_PERMITTED", "operation not permitted"},
    {kNotSupported, "CUDA_ERROR_NOT_SUPPORTED", "operation not supported"},
    {kCaptureUnsupported, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
     "operation not permitted when stream is capturing"},
    {kCaptureImplicit, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT",
     "operation would make the legacy stream depend on a capturing blocking stream"},
    {kUnknown, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

const ErrorName *find_error(int code)
{
    for (const ErrorName &error : kErrors)
        if (error.code == code) return &error;
    return nullptr;
}

int name_error(Entry entry, int code, const char **text_out, const char *ErrorName::*field)
{
    return enter(entry, Needs::kNothing, [&](Call &) -> int {
        if (text_out == nullptr) return kInvalidValue;
        const ErrorName *error = find_error(code);
        *text_out = error != nullptr ? error->*field : nullptr;
        return error != nullptr ? kSuccess : kInvalidValue;
    });
}

const EntryPoint kEntryPoints[] = {
#define STW_LIST(name, since, parameters) {#name, since, reinterpret_cast<void *>(&name)},
    STW_CUDA_ENTRY_POINTS(STW_LIST)
#undef STW_LIST
};

// "cuMemAlloc" of "cuMemAlloc_v2".
std::string_view base_name(std::string_view name)
{
    const size_t suffix = name.rfind("_v");
    return suffix == std::string_view::npos ? name : name.substr(0, suffix);
}

}  // namespace

const EntryPoint &entry_point(Entry entry)
{
    return kEntryPoints[static_cast<size_t>(entry)];
}

Entry entry_by_name(const char *name)
{
    for (unsigned i = 0; i < kEntryCount; ++i)
        if (std::strcmp(kEntryPoints[i].name, name) == 0) return static_cast<Entry>(i);
    return Entry::kCount;
}

extern "C" {

int cuGetErrorName(int error, const char **text_out)
{
    return name_error(Entry::cuGetErrorName, error, text_out, &ErrorName::name);
}

int cuGetErrorString(int error, const char **text_out)
{
    return name_error(Entry::cuGetErrorString, error, text_out, &ErrorName::text);
}

// The newest of that name that the version had.
int cuGetProcAddress_v2(const char *symbol, void **function_out, int version, uint64_t,
                        int *status_out)
{
    return enter(Entry::cuGetProcAddress_v2, Needs::kNothing, [&](Call &call) -> int {
        if (symbol == nullptr || function_out == nullptr) return kInvalidValue;
        if (version > static_cast<int>(call.state.options.driver)) return kInvalidValue;
        const EntryPoint *found = nullptr;
        int status = kSymbolNotFound;
        for (const EntryPoint &entry : kEntryPoints) {
            if (base_name(entry.name) != symbol) continue;
            if (status == kSymbolNotFound) status = kSymbolNeedsNewerVersion;
            if (entry.since > version) continue;
            if (found == nullptr || found->since < entry.since) found = &entry;
        }
        if (found != nullptr) status = kSymbolFound;
        *function_out = found != nullptr ? found->function : nullptr;
        if (status_out != nullptr) *status_out = status;
        // Without a place for the status, the code has to say it.
        return found != nullptr || status_out != nullptr ? kSuccess : kNotFound;
    });
}

}  // extern "C"

}  // namespace stepwell::cuda_double
