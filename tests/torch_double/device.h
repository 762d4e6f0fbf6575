// SPDX-License-Identifier: Apache-2.0
// The device `late` of PyTorch: calls of the driver's double, and the streams of the device.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>
#include <c10/util/Exception.h>

#include <optional>

#include "tests/cuda/double/api.h"
#include "tests/cuda/double/control.h"

extern "C" {
using namespace stepwell::cuda_double;
#define STW_LATE_DECLARE(entry, version, parameters) int entry parameters;
STW_CUDA_ENTRY_POINTS(STW_LATE_DECLARE)
#undef STW_LATE_DECLARE
}

namespace stepwell::torch_double {

inline const c10::Device kDevice{c10::DeviceType::PrivateUse1, 0};

// Refuses any other device, as there is one.
inline void check_is_device(const std::optional<c10::Device> &device)
{
    TORCH_CHECK(!device || device->index() <= 0, "late: invalid device ordinal ",
                static_cast<int>(device->index()));
}

// The double's threads and locks are not those of a child, which may compute on the CPU alone.
bool is_forked();

// Makes the device's context that of the calling thread.
void enter();

// What the driver returns; nobody need look at it, as where a destructor has no one to tell.
template <typename... Parameters, typename... Arguments>
int ask(int (*entry)(Parameters...), Arguments... arguments)
{
    enter();
    return entry(arguments...);
}

inline void check(int error, const char *entry)
{
    TORCH_CHECK(error == 0, "late: ", entry, " returned ", error);
}

#define STW_LATE_CALL(entry, ...)                                                                  \
    ::stepwell::torch_double::check(                                                               \
        ::stepwell::torch_double::ask(entry __VA_OPT__(, ) __VA_ARGS__), #entry)

c10::StreamId current_stream();
void *handle_of(c10::StreamId stream);
// Of the current stream.
inline void *current_handle()
{
    return handle_of(current_stream());
}

// An event that is recorded once and asked whether it is over.
class Mark {
public:
    explicit Mark(c10::StreamId stream);
    Mark(const Mark &) = delete;
    Mark &operator=(const Mark &) = delete;
    ~Mark();
    bool is_over() const;

private:
    void *event_ = nullptr;
};

}  // namespace stepwell::torch_double
