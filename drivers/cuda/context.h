// SPDX-License-Identifier: Apache-2.0
// The primary context of one device, which frameworks use too. Calls are made inside a Scope, which
// makes it current and gives the thread its own back.
#pragma once

#include "drivers/cuda/library.h"

namespace stepwell::drivers::cuda {

class Context {
public:
    explicit Context(const Library &library) : library_(library) {}
    Context(const Context &) = delete;
    Context &operator=(const Context &) = delete;
    ~Context()
    {
        if (handle_ != nullptr) api().context_release(device_);
    }

    class Scope {
    public:
        explicit Scope(const Context &context) : context_(context)
        {
            context_.api().context_push(context_.handle_);
        }
        Scope(const Scope &) = delete;
        Scope &operator=(const Scope &) = delete;
        ~Scope()
        {
            ContextHandle mine = nullptr;
            context_.api().context_pop(&mine);
        }

    private:
        const Context &context_;
    };

    // UNSUPPORTED: no such device. BUSY: another process has it for itself.
    stw_status open(int ordinal, stw_driver_error *error_out);

    const Library &library() const { return library_; }
    const Api &api() const { return library_.api; }
    ContextHandle handle() const { return handle_; }
    int device() const { return device_; }
    // Into a graph: an event on it would draw others into that. Inside a Scope.
    bool captures(StreamHandle stream) const
    {
        int status = 0;
        const int error = api().stream_is_capturing(stream, &status);
        return error == kCaptureImplicit || (error == kSuccess && status != 0);
    }
    // The host's that is nearest; -1: not known.
    int numa_node() const;

private:
    const Library &library_;
    int device_ = -1;
    ContextHandle handle_ = nullptr;
};

}  // namespace stepwell::drivers::cuda
