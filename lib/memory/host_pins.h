// SPDX-License-Identifier: Apache-2.0
// The host tier's memory, registered with the drivers of devices slab by slab on a thread of its
// own: memory that is not registered yet, or was refused, is copied through a buffer of the driver.
// No copy of the library crosses the border of a registration: slabs are whole blocks.
//
// A driver may refuse a piece for its size, for a limit of the kernel, or temporarily: halves of it
// are tried, then the next slab, and refused slabs once more at the end.
//
// A view that a program copies itself must be in one registration: join() makes one of several
// while no work uses them.
//
// Memory is unregistered before it is given back to the system: a device that kept its pages would
// write to them unnoticed. Must not know why memory is given back.
#pragma once

#include <stepwell/driver.h>

#include "lib/memory/registered_blocks.h"
#include "lib/observe/log.h"
#include "lib/support/thread_annotations.h"

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace stepwell::memory {

class HostPins {
public:
    struct Device {
        const stw_memory_ops *ops = nullptr;  // with STW_MEMORY_STREAMS; borrowed, as the memory
        stw_memory *memory = nullptr;
        uint32_t device = 0;
    };
    struct Options {
        char *base = nullptr;
        uint64_t bytes = 0;
        uint64_t block_bytes = 0;
        // From the end: parts that are never given back, each of which is used as one piece.
        uint64_t staging_bytes = 0;
        uint64_t scratch_bytes = 0;
        std::vector<Device> devices;
        observe::Log *log = nullptr;  // borrowed
        std::function<uint64_t()> now_ns;
    };
    struct Stats {
        uint64_t bytes = 0;       // registered now
        uint64_t open_bytes = 0;  // still to be
        uint64_t ns = 0;          // of all registering so far
        uint64_t refused = 0;     // slabs, in part or all
    };

    // Starts the thread. Nothing is registered when it returns.
    explicit HostPins(Options options);
    ~HostPins();  // no copy is in flight
    HostPins(const HostPins &) = delete;
    HostPins &operator=(const HostPins &) = delete;

    // Ends the thread after its present slab. Once; nothing is registered after that.
    void stop();

    // Called around the start of copies between the tier and a device, into it or out of it: ranges
    // are unregistered only after these copies. `mark`: the driver's, recorded after them; null:
    // none was started, or they are over. One device and direction at a time per thread.
    void begin(const stw_memory *memory, bool into) STW_NO_THREAD_ANALYSIS;
    void end(const stw_memory *memory, bool into, const uint64_t *mark) STW_NO_THREAD_ANALYSIS;
    // Between the two: this block is registered, with all drivers.
    [[nodiscard]] bool is_registered(const void *pointer) const
    {
        return by_block_.is_registered(pointer);
    }
    // The same for the block before it, in the same registration: no copy may cross a border.
    [[nodiscard]] bool is_joined(const void *pointer) const { return by_block_.is_joined(pointer); }

    // Whether a program may copy from or to the blocks in one call: they are in one registration,
    // or in none. No lock.
    [[nodiscard]] bool are_joined(uint32_t first, uint32_t count) const
    {
        return by_block_.are_joined(first, count);
    }
    // Puts the blocks into one registration. Registrations of any of them end for a moment; they
    // must lie within `quiet`, where the program makes no copies. Waits for copies of the library.
    // If a registration extends beyond `quiet`, nothing changes; if the driver refuses, slabs are
    // registered again as before.
    struct Range {
        uint32_t first = 0;
        uint32_t count = 0;
    };
    [[nodiscard]] Range registered_with(Range blocks) const;
    void join(Range blocks, Range quiet);

    // While one exists, nothing is registered.
    class Pause {
    public:
        explicit Pause(HostPins *pins);
        ~Pause();
        Pause(const Pause &) = delete;
        Pause &operator=(const Pause &) = delete;

    private:
        HostPins *const pins_;  // null: there are none
    };
    // Unregisters blocks of the tier and all that is registered with them. Copies from and to them
    // are over when this returns. Waits for devices, not for the library's locks.
    void release(uint32_t first, uint32_t count);
    // As release, and the blocks are not registered again before back().
    void gone(uint32_t first, uint32_t count);
    void back(uint32_t first, uint32_t count);

    [[nodiscard]] Stats stats() const;
    // "", or a sentence about refused memory of this device.
    [[nodiscard]] std::string remark(uint32_t device) const;

private:
    struct Slab {
        Range range;
        bool open = true;             // something in it may have to be registered
        bool refused = false;         // and was not, and is not asked for any more
        uint32_t piece = UINT32_MAX;  // blocks of a call: what was refused is halved
        uint32_t failures = 0;        // of the smallest pieces, one behind the other
        uint32_t to_do = 0;           // blocks that may still be registered
    };
    // The first device of each driver registers for all of them.
    struct Registrar {
        Device device;
        std::map<uint32_t, uint32_t> pinned;  // count by first
        std::vector<Slab> slabs;
        bool asked_again = false;  // for what was refused
        std::string reason;        // of the last refusal
        bool warns = false;        // of what stays refused, when the rest is registered
        bool warned = false;       // once
    };
    struct Copies {
        stw_memory *memory = nullptr;
        const stw_memory_ops *ops = nullptr;
        bool into = false;
        Mutex mutex;
        std::optional<uint64_t> last STW_GUARDED_BY(mutex);  // mark
    };

    void run();
    bool next(Registrar **registrar_out, Range *range_out) STW_REQUIRES(mutex_);
    bool next_in(const Registrar &registrar, const Slab &slab, Range *range_out) const
        STW_REQUIRES(mutex_);
    void register_one(Registrar &registrar, Range range) STW_REQUIRES(mutex_);
    void refuse(Registrar &registrar, Range range, const stw_driver_error &error)
        STW_REQUIRES(mutex_);
    bool ask_again(Registrar &registrar) STW_REQUIRES(mutex_);
    void say(Registrar &registrar) STW_REQUIRES(mutex_);
    void count(const Registrar &registrar, Slab &slab) STW_REQUIRES(mutex_);
    void count(Registrar &registrar, Range range) STW_REQUIRES(mutex_);
    void add(Registrar &registrar, Range range) STW_REQUIRES(mutex_);
    [[nodiscard]] Slab &slab_of(Registrar &registrar, uint32_t block) const STW_REQUIRES(mutex_);
    [[nodiscard]] std::string describe(const Registrar &registrar) const STW_REQUIRES(mutex_);
    static bool has_refused(const Registrar &registrar);
    void reopen(Registrar &registrar, Slab &slab) STW_REQUIRES(mutex_);
    [[nodiscard]] Range extent(Range blocks) const STW_REQUIRES(mutex_);
    [[nodiscard]] bool is_busy(Range range) const STW_REQUIRES(mutex_);
    void drop(Range range) STW_REQUIRES(mutex_);
    void unpin(Registrar &registrar, Range range) STW_REQUIRES(mutex_);
    // The analysis knows no locks of all that are in a list.
    void hold_copies() STW_REQUIRES(mutex_) STW_NO_THREAD_ANALYSIS;  // and waits for them
    void resume_copies() STW_REQUIRES(mutex_) STW_NO_THREAD_ANALYSIS;
    void make_slabs(Registrar &registrar) const;
    [[nodiscard]] uint64_t bytes_of(Range range) const { return range.count * block_bytes_; }
    [[nodiscard]] void *at(Range range) const { return base_ + range.first * block_bytes_; }
    Copies *copies_of(const stw_memory *memory, bool into);

    char *const base_;
    const uint64_t block_bytes_;
    const uint32_t blocks_;
    const uint32_t scratch_blocks_;
    const uint32_t staging_blocks_;
    observe::Log &log_;
    const std::function<uint64_t()> now_ns_;
    std::deque<Copies> copies_;  // constant but for what is in them

    // Held while something is registered no more; before those of copies.
    mutable Mutex mutex_;
    Condition changed_;
    std::vector<Registrar> registrars_ STW_GUARDED_BY(mutex_);  // constant but for what is in them
    std::vector<bool> gone_ STW_GUARDED_BY(mutex_);
    RegisteredBlocks by_block_;  // fewer only under the locks of copies
    uint32_t joins_ STW_GUARDED_BY(mutex_) = 0;
    uint32_t join_max_ STW_GUARDED_BY(mutex_) = UINT32_MAX;  // blocks: more were refused
    Range busy_ STW_GUARDED_BY(mutex_);                      // being registered, without the lock
    uint32_t pauses_ STW_GUARDED_BY(mutex_) = 0;
    bool stops_ STW_GUARDED_BY(mutex_) = false;
    std::atomic<uint64_t> bytes_{0};
    std::atomic<uint64_t> open_bytes_{0};
    std::atomic<uint64_t> ns_{0};
    std::atomic<uint64_t> refused_{0};
    std::thread thread_;
};

}  // namespace stepwell::memory
