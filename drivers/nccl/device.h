// SPDX-License-Identifier: Apache-2.0
// The part of a device that a group uses: the primary context, a stream, and memory for exchanges
// on the device and in pinned host memory. Calls are made inside a Scope, which makes the context
// current and excludes the thread's calls from graphs that the program records.
#pragma once

#include "drivers/nccl/libraries.h"

#include <cstdint>

namespace stepwell::drivers {

class Device {
public:
    explicit Device(const Libraries &libraries) : libraries_(libraries) {}
    Device(const Device &) = delete;
    Device &operator=(const Device &) = delete;
    ~Device();

    // The calls of this thread belong to no graph.
    class Unrecorded {
    public:
        explicit Unrecorded(const CudaApi &cuda) : cuda_(cuda)
        {
            cuda_.exchange_capture_mode(&mode_);
        }
        Unrecorded(const Unrecorded &) = delete;
        Unrecorded &operator=(const Unrecorded &) = delete;
        ~Unrecorded() { cuda_.exchange_capture_mode(&mode_); }

    private:
        const CudaApi &cuda_;
        int mode_ = kCudaCaptureModeRelaxed;
    };

    class Scope {
    public:
        explicit Scope(const Device &device)
            : cuda_(device.libraries_.cuda),
              unrecorded_(cuda_),
              pushed_(cuda_.context_push(device.context_) == kCudaSuccess)
        {
        }
        Scope(const Scope &) = delete;
        Scope &operator=(const Scope &) = delete;
        ~Scope()
        {
            void *context = nullptr;
            if (pushed_) cuda_.context_pop(&context);
        }

    private:
        const CudaApi &cuda_;
        const Unrecorded unrecorded_;
        const bool pushed_;
    };

    // UNSUPPORTED: no such device here.
    stw_status open(int ordinal, stw_driver_error *error_out);
    // Inside a Scope. `bytes` of device memory and of host memory. MEMORY.
    stw_status take_room(size_t bytes, stw_driver_error *error_out);

    void *stream() const { return stream_; }
    CudaAddress on_device() const { return on_device_; }
    char *on_host() const { return static_cast<char *>(on_host_); }

private:
    stw_status failed(const char *what, int error, stw_driver_error *error_out) const;

    const Libraries &libraries_;
    int device_ = -1;
    void *context_ = nullptr;
    void *stream_ = nullptr;
    CudaAddress on_device_ = 0;
    void *on_host_ = nullptr;
};

}  // namespace stepwell::drivers
