// SPDX-License-Identifier: Apache-2.0
// Touches: accesses of the program to tensors without a view. A fault becomes a fetch on a thread
// of the library, whose view is kept until a step begins or ends, or until it blocks something.
// The core decides which bytes are accessible without a fault.
#pragma once

#include "lib/residency/aliases.h"
#include "lib/runtime/handles/lock.h"

#include <stepwell/fetch.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

namespace stepwell {

class Dispatcher;
class FaultWatch;
class ViewTable;
struct MemoryFault;

// Implements what the threads of the touches need from higher rooms.
class FaultServer {
public:
    virtual ~FaultServer() = default;
    // Makes a block accessible at its address, or inaccessible. Under the runtime's lock.
    virtual bool show_block(residency::PlaceId place, residency::Slot slot, residency::PackId pack,
                            uint32_t index, bool writable) STW_REQUIRES(runtime_lock) = 0;
    virtual void hide_block(residency::PlaceId place, residency::Slot slot) = 0;
    // Its update has done what it does before its verdict.
    [[nodiscard]] virtual bool awaits_verdict(residency::TensorId tensor) const
        STW_REQUIRES(runtime_lock) = 0;
    // On a thread of the touches, with no lock held. The access is retried after it returns.
    virtual Status serve(const MemoryFault &fault) = 0;
};

class Touches final : public residency::Aliases {
public:
    Touches(Dispatcher &dispatch, FaultServer &server);
    ~Touches() override;

    Status open();
    // Faults are not answered any more. Joins the threads; all views must have ended.
    void close();
    void cover(const void *begin, uint64_t bytes);

    bool show(residency::PlaceId place, residency::Slot slot, residency::PackId pack,
              uint32_t index, bool writable) override;
    void hide(residency::PlaceId place, residency::Slot slot) override;

    // Views left open by faults. Call with none of the locks held that releasing them takes.
    [[nodiscard]] bool any() const { return any_.load(std::memory_order_relaxed); }
    // True also while other threads serve faults, which may leave views open.
    [[nodiscard]] bool in_the_way() const;
    // Decides how long a call that finds views in its way tries again. `touches` is null where
    // accesses without a view are not served.
    class Patience {
    public:
        Patience(Touches *touches, residency::Instant deadline)
            : touches_(touches), deadline_(deadline), seen_(touches ? touches->changes() : 0)
        {
        }
        // Ends views of touches, or waits for a moment for those that are about to come: the call
        // looks again. False: there were none, or what has been in the way for so long is the
        // program's, whatever other threads touch.
        [[nodiscard]] bool clear_way();
        void begin_anew() { end_ = 0; }

    private:
        static constexpr uint64_t kNs = 100'000'000;

        Touches *const touches_;
        const residency::Instant deadline_;
        residency::Instant end_ = 0;  // 0: nothing was in the way yet
        uint64_t seen_;               // changes()
    };
    // How long a view stays at least beside a fetch that waits for room.
    static constexpr uint64_t kLeastNs = 500'000;
    // Serialises the faults of one tensor: a second one would wait for the view of the first.
    class Turn {
    public:
        explicit Turn(Touches &touches) : touches_(touches) {}
        Turn(const Turn &) = delete;
        Turn &operator=(const Turn &) = delete;
        ~Turn();
        // False: another one has it still when the time has passed.
        [[nodiscard]] bool take(const stw_tensor *tensor, uint64_t patience_ns);

    private:
        Touches &touches_;
        const stw_tensor *tensor_ = nullptr;  // of which it is this one's turn
    };
    // True if there is a view of the tensor that allows the access, and shows its bytes still. A
    // view that does not is moved to `in_the_way`, for the caller to release.
    bool has(const stw_tensor *tensor, bool writes, bool shown, std::vector<stw_view> *in_the_way);
    // Until nothing that a claim is about to change can be read at an address, except beside a view
    // of the program. Transfers and copies that work there end by themselves; a copy that waits for
    // a fault of its own thread is not waited for, as it may wait for the caller, and no update
    // that waits for its verdict, which the caller may have to give. What shares its block is seen
    // beside others of it: with_shared waits for its change, else it is passed over.
    Status await_concealed(const ViewTable &views, const std::vector<residency::TensorId> &changed,
                           bool with_shared, residency::Instant deadline)
        STW_EXCLUDES(runtime_lock);
    // Tensors whose copy waits for a fault of its thread, and holds them meanwhile. Guarded by the
    // runtime's lock.
    std::vector<residency::TensorId> copies_waiting;
    void keep(const stw_view &view);
    // Those kept since then or before. The caller releases them, then calls released().
    std::vector<stw_view> take(residency::Instant kept_until);
    // When the first of them was kept; kNever: there is none.
    [[nodiscard]] residency::Instant oldest() const;
    void released();
    // Until those that other threads have taken are released.
    void await_released();
    // How often in a row the thread has faulted with the same registers at several addresses, if
    // that goes on for a second: the accesses of one instruction end each other. 0: it gets on.
    [[nodiscard]] uint32_t repeats(const MemoryFault &fault);
    // Counts views kept and taken, to detect that a blocking view has ended since.
    [[nodiscard]] uint64_t changes() const { return changes_.load(); }

private:
    static constexpr size_t kThreadsMax = 256;

    struct Kept {
        stw_view view;
        residency::Instant since;
    };
    // The last faults of a thread, all with these registers.
    struct Repeated {
        pid_t thread = 0;
        uint64_t registers = 0;
        uintptr_t address = 0;  // of the first one
        bool several = false;   // addresses
        uint32_t count = 0;
        uint64_t begin_ns = 0;
        uint64_t last_ns = 0;
    };
    [[nodiscard]] bool is_viewed(const ViewTable &views, residency::TensorId tensor) const
        STW_REQUIRES(runtime_lock);
    [[nodiscard]] bool is_seen(const ViewTable &views, residency::TensorId tensor,
                               bool with_shared) const STW_REQUIRES(runtime_lock);
    bool clear_way();
    [[nodiscard]] bool is_served(const stw_tensor *tensor) const STW_REQUIRES(mutex_);
    Status start_thread() STW_REQUIRES(mutex_);
    void run();

    Dispatcher &dispatch_;
    FaultServer &server_;
    std::unique_ptr<FaultWatch> watch_;
    mutable Mutex mutex_;
    // One for each concurrent fault, and one idle.
    std::vector<std::thread> threads_ STW_GUARDED_BY(mutex_);
    uint32_t idle_ STW_GUARDED_BY(mutex_) = 0;
    bool closing_ STW_GUARDED_BY(mutex_) = false;
    std::vector<const stw_tensor *> served_ STW_GUARDED_BY(mutex_);  // being served
    Condition over_;  // one of these has ended, or views are released
    std::vector<Kept> views_ STW_GUARDED_BY(mutex_);         // in the order in which they were kept
    std::vector<Repeated> repeated_ STW_GUARDED_BY(mutex_);  // of the last threads
    std::atomic<bool> any_{false};
    std::atomic<uint32_t> serving_{0};    // faults
    std::atomic<uint32_t> releasing_{0};  // take() without released() yet
    std::atomic<uint64_t> changes_{0};
};

}  // namespace stepwell
