// SPDX-License-Identifier: Apache-2.0
// Touches: what the program does at the addresses of tensors without a view. A fault becomes a
// fetch on a thread of the library, whose view is kept until a step begins or ends, or until it is
// in the way of somebody. Which bytes are seen without a fault is the core's to say.
#pragma once

#include "lib/runtime/dispatch/dispatcher.h"
#include "lib/support/fault_handler.h"

#include <stepwell/fetch.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

namespace stepwell {

// Serves what the library is asked for by accesses without a view.
class FaultServer {
public:
    virtual ~FaultServer() = default;
    // Under the runtime's lock: maps a block at its address, and no longer.
    virtual bool show_block(residency::PlaceId place, residency::Slot slot, residency::PackId pack,
                            uint32_t index, bool writable) STW_REQUIRES(runtime_lock) = 0;
    virtual void hide_block(residency::PlaceId place, residency::Slot slot) = 0;
    // On a thread of the touches, with no lock held: the access succeeds once this has.
    virtual Status serve(const MemoryFault &fault) = 0;
};

class Touches final : public residency::Aliases {
public:
    Touches(Dispatcher &dispatch, FaultServer &server) : dispatch_(dispatch), server_(server) {}

    Status open();
    // No fault is answered any more. Joins the threads; the views must be gone.
    void close();
    void cover(const void *begin, uint64_t bytes) { watch_->cover(begin, bytes); }

    bool show(residency::PlaceId place, residency::Slot slot, residency::PackId pack,
              uint32_t index, bool writable) override;
    void hide(residency::PlaceId place, residency::Slot slot) override;

    // Views that faults left open. None of the caller's locks is held where they are released.
    [[nodiscard]] bool any() const { return any_.load(std::memory_order_relaxed); }
    // Or there may soon be some, of faults that other threads serve.
    [[nodiscard]] bool in_the_way() const;
    // Faults of one tensor are served one after the other, or the second would wait for the view
    // of the first.
    class Turn {
    public:
        Turn(Touches &touches, const stw_tensor *tensor);
        Turn(const Turn &) = delete;
        Turn &operator=(const Turn &) = delete;
        ~Turn();

    private:
        Touches &touches_;
        const stw_tensor *const tensor_;
    };
    // A view of the tensor that lets it be used so is there. Of one that does not, the caller gets
    // it to release.
    bool has(const stw_tensor *tensor, bool writes, std::vector<stw_view> *in_the_way);
    void keep(const stw_view &view);
    std::vector<stw_view> take();  // and then released()
    void released();
    // Counts views that came or went: one that was in the way may be gone when that is asked.
    [[nodiscard]] uint64_t changes() const { return changes_.load(); }

private:
    static constexpr size_t kThreadsMax = 256;

    [[nodiscard]] bool is_served(const stw_tensor *tensor) const STW_REQUIRES(mutex_);
    Status start_thread() STW_REQUIRES(mutex_);
    void run();

    Dispatcher &dispatch_;
    FaultServer &server_;
    std::unique_ptr<FaultWatch> watch_;
    Mutex mutex_;
    // As many as there are faults at once, and one that waits.
    std::vector<std::thread> threads_ STW_GUARDED_BY(mutex_);
    uint32_t idle_ STW_GUARDED_BY(mutex_) = 0;
    bool closing_ STW_GUARDED_BY(mutex_) = false;
    std::vector<const stw_tensor *> served_ STW_GUARDED_BY(mutex_);  // now
    Condition over_;                                                 // of one of these
    std::vector<stw_view> views_ STW_GUARDED_BY(mutex_);
    std::atomic<bool> any_{false};
    std::atomic<uint32_t> serving_{0};    // faults
    std::atomic<uint32_t> releasing_{0};  // calls of take() without their released()
    std::atomic<uint64_t> changes_{0};
};

}  // namespace stepwell
