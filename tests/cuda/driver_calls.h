// SPDX-License-Identifier: Apache-2.0
// What a program that is carried to a machine with a GPU calls of CUDA's driver, taken from the
// libcuda.so.1 that is there: to make streams, to enqueue work of its own, and to copy as a program
// without us would. It links nothing of CUDA's.
#pragma once

#include <cstddef>
#include <string>

namespace stepwell::gpu {

using Address = unsigned long long;  // CUdeviceptr

constexpr int kCannotRun = 2;
constexpr int kNoDevice = 77;  // what a skipped test returns

[[noreturn]] void give_up(int status, const std::string &sentence);

struct DriverCalls {
    int (*init)(unsigned flags);
    int (*error_name)(int error, const char **text);
    int (*device_get)(int *device, int ordinal);
    int (*device_name)(char *name, int capacity, int device);
    int (*context_retain)(void **context, int device);
    int (*context_release)(int device);
    int (*context_set)(void *context);
    int (*memory_alloc)(Address *address, size_t bytes);
    int (*memory_free)(Address address);
    int (*host_alloc)(void **address, size_t bytes, unsigned flags);
    int (*host_free)(void *address);
    int (*copy_to_device)(Address to, const void *from, size_t bytes, void *stream);
    int (*copy_to_host)(void *to, Address from, size_t bytes, void *stream);
    int (*copy_inside)(Address to, Address from, size_t bytes, void *stream);
    int (*fill)(Address to, unsigned value, size_t count, void *stream);  // of 32-bit words
    int (*stream_create)(void **stream, unsigned flags);
    int (*stream_destroy)(void *stream);
    int (*stream_synchronize)(void *stream);

    void *context;  // the primary one of device 0

    // For each thread that makes calls.
    void use_here() const { must(context_set(context), "cuCtxSetCurrent"); }
    // Ends the program where CUDA says no.
    void must(int error, const char *call) const;
};

// Device 0, whose primary context is then this thread's. Ends the program with kNoDevice where none
// is.
DriverCalls open_driver();
void close_driver(const DriverCalls &calls);
std::string device_name(const DriverCalls &calls);

}  // namespace stepwell::gpu
