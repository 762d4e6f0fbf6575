// SPDX-License-Identifier: Apache-2.0
// Virtual time: when each operation would begin and end on a device with these costs, and when each
// call of a thread would return. It depends on what is called, in which order and by which threads,
// and not on how long anything takes here, so that a test may judge overlap by it. Pure but for the
// time of the calling thread; called under the driver's lock.
//
// A device has one engine for copies into it, one for copies out of it, and one for kernels and
// copies inside. An engine takes whatever is ready first: an operation that still waits for others
// leaves it to those behind.
#pragma once

#include "tests/cuda/double/options.h"

#include <array>
#include <cstdint>
#include <map>

namespace stepwell::cuda_double {

enum class Engine : uint8_t { kUp, kDown, kCompute, kNone };
inline constexpr size_t kEngines = 3;

// What an operation takes of a device.
struct Work {
    Engine engine = Engine::kNone;
    uint64_t bytes = 0;
    uint64_t ns = 0;  // beside its bytes
};

struct Times {
    uint64_t begin_ns = 0;
    uint64_t end_ns = 0;
};

struct EngineTotals {
    uint64_t operations = 0;
    uint64_t bytes = 0;
    uint64_t busy_ns = 0;
};

class Timing {
public:
    explicit Timing(const Options &options);

    // ---- the calling thread's time -------------------------------------------------------------
    uint64_t now();
    void spend(uint64_t ns);
    void call(Entry entry);
    void registers(uint64_t bytes);
    // It saw that something is over, or came to it when it had happened.
    void not_before(uint64_t ns);
    // It slept until then.
    void woken(uint64_t ns) { not_before(ns + costs_.wake_ns); }
    // All threads go on from the end of all that was enqueued and called so far.
    uint64_t settle();

    // ---- operations ----------------------------------------------------------------------------
    const Costs &costs() const { return costs_; }
    // One that the calling thread enqueues now, and that waits for others until `ready_ns`.
    Times place(int device, const Work &work, uint64_t ready_ns);
    const EngineTotals &totals(int device, Engine engine) const
    {
        return engine_of(device, engine).totals;
    }

private:
    struct Channel {
        std::map<uint64_t, uint64_t> busy;  // ends by begins, neighbours joined
        EngineTotals totals;
    };
    using Device = std::array<Channel, kEngines>;
    const Channel &engine_of(int device, Engine engine) const
    {
        return devices_[static_cast<size_t>(device)][static_cast<size_t>(engine)];
    }
    uint64_t duration(const Work &work) const;
    static uint64_t take(Channel &channel, uint64_t ready_ns, uint64_t ns);

    const Costs costs_;
    const uint64_t number_;  // no other has it: threads' times are of one
    std::array<Device, kDevicesMax> devices_;
    uint64_t floor_ns_ = 0;  // no thread is earlier
    uint64_t last_ns_ = 0;   // of anything
};

}  // namespace stepwell::cuda_double
