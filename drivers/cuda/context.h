// SPDX-License-Identifier: Apache-2.0
// The primary context of one device, which frameworks use too. Calls are made inside a Scope, which
// makes the context current and restores the thread's own one.
//
// While a thread of the program records a graph, CUDA refuses event queries, waits, registrations
// and mappings to every thread, and the graph is lost. A thread in the
// relaxed capture mode is exempt, and a Scope puts its thread into that mode.
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
        if (handle_ == nullptr) return;
        const Unrecorded unrecorded(api());
        api().context_release(device_);
    }

    // The calls of this thread belong to no graph.
    class Unrecorded {
    public:
        explicit Unrecorded(const Api &api) : api_(api) { api_.exchange_capture_mode(&mode_); }
        Unrecorded(const Unrecorded &) = delete;
        Unrecorded &operator=(const Unrecorded &) = delete;
        ~Unrecorded() { api_.exchange_capture_mode(&mode_); }

    private:
        const Api &api_;
        int mode_ = kCaptureModeRelaxed;
    };

    class Scope {
    public:
        explicit Scope(const Context &context)
            : context_(context),
              unrecorded_(context.api()),
              error_(context.api().context_push(context.handle_))
        {
        }
        Scope(const Scope &) = delete;
        Scope &operator=(const Scope &) = delete;
        ~Scope()
        {
            ContextHandle mine = nullptr;
            if (error_ == kSuccess) context_.api().context_pop(&mine);
        }
        // CUDA's error if the context could not be made current; nothing may be called then.
        int error() const { return error_; }

    private:
        const Context &context_;
        const Unrecorded unrecorded_;
        const int error_;
    };

    // UNSUPPORTED: no such device. BUSY: another process has exclusive use of it.
    stw_status open(int ordinal, stw_driver_error *error_out);

    const Library &library() const { return library_; }
    const Api &api() const { return library_.api; }
    ContextHandle handle() const { return handle_; }
    int device() const { return device_; }
    // Whether the stream records into a graph: an event on it would draw other streams into that
    // graph. Inside a Scope.
    bool captures(StreamHandle stream) const
    {
        int status = 0;
        const int error = api().stream_is_capturing(stream, &status);
        return error == kCaptureImplicit || (error == kSuccess && status != 0);
    }
    // The nearest NUMA node of the host; -1: unknown.
    int numa_node() const;

private:
    const Library &library_;
    int device_ = -1;
    ContextHandle handle_ = nullptr;
};

}  // namespace stepwell::drivers::cuda
