// SPDX-License-Identifier: Apache-2.0
// Threads of the program that wait for a fetch: the cause of the wait, and which fetch is refused
// when they wait for each other.
#pragma once

#include "lib/runtime/dispatch/hook.h"
#include "lib/runtime/recording/ground.h"

namespace stepwell::observe {
enum class Stall : uint8_t;
}  // namespace stepwell::observe

namespace stepwell {

// Work that must be done on threads of the program while they wait.
class CallerWork {
public:
    virtual ~CallerWork() = default;
    // Waiting threads call work_one().
    [[nodiscard]] virtual bool works_here() const = 0;
    // False: nothing to do now.
    virtual bool work_one() STW_REQUIRES(runtime_lock) = 0;
    // Nothing is under way that will release by itself what it holds.
    [[nodiscard]] virtual bool is_idle() const STW_REQUIRES(runtime_lock) = 0;
    virtual void notify() STW_REQUIRES(runtime_lock) = 0;
};

class Sleepers final : public DispatchHook, Grounded {
public:
    Sleepers(const Ground &ground) : Grounded(ground) {}

    bool waits_for_itself(const Waiter &waiter, std::string *tensor_out) STW_REQUIRES(runtime_lock);
    [[nodiscard]] observe::Stall cause_of(const Waiter &waiter) const STW_REQUIRES(runtime_lock);
    // The stall is charged to the tensor.
    void await(Waiter &waiter, residency::TensorId tensor);
    void sleep_on(Waiter &waiter, residency::Instant deadline, bool until_answered)
        STW_REQUIRES(runtime_lock);
    // BUSY if the waiter's fetch waits for the verdict of a speculative update that this thread is
    // to give.
    [[nodiscard]] Status own_verdict(const Waiter &waiter) const STW_REQUIRES(runtime_lock);
    [[nodiscard]] Status tell_waiting(Status status);
    void log_timeout(const Status &status);
    std::string describe_views(uint32_t lines_max) STW_REQUIRES(runtime_lock);
    [[nodiscard]] bool reads_lent(uint32_t flags, const stw_tensor *tensor) const;
    Status self_wait(stw_tensor *tensor, residency::Access access, uint32_t owner,
                     uint32_t flags = 0);
    // The tensors of which the thread holds views; those that touches keep are not among them.
    [[nodiscard]] std::vector<const stw_tensor *> viewed_by(uint32_t owner) const;
    [[nodiscard]] bool goes_ahead(const Waiter &waiter, residency::TensorId tensor) const
        STW_REQUIRES(runtime_lock);
    [[nodiscard]] bool has_own_view(const Waiter &waiter, const stw_tensor *tensor) const;
    void sleep_follows(residency::FetchId before, residency::FetchId after)
        STW_REQUIRES(runtime_lock);

    void set_work(CallerWork &work) { work_ = &work; }
    [[nodiscard]] bool works_here() const { return work_ && work_->works_here(); }
    void before_unlock() override STW_REQUIRES(runtime_lock);
    // Something other than an event may have made a wait one without an end.
    void look_again() STW_REQUIRES(runtime_lock);

private:
    void break_deadlocks() STW_REQUIRES(runtime_lock);
    void await_others(Waiter &waiter) STW_REQUIRES(runtime_lock);
    std::vector<residency::Held> held_by_sleepers() STW_REQUIRES(runtime_lock);

    CallerWork *work_ = nullptr;  // null: there are no ranks
    // Threads of the program in sleep_on().
    std::vector<residency::Sleeper> asleep_ STW_GUARDED_BY(runtime_lock);
};

}  // namespace stepwell
