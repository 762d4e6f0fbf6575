// SPDX-License-Identifier: Apache-2.0
// The threads that serve faults, and the views that faults left open. A fault that waits for a
// view of another thread must not delay a fault of that thread, so each is served on its own
// thread.
#include "lib/runtime/machine/touches.h"

#include "lib/residency/core.h"
#include "lib/runtime/dispatch/dispatcher.h"
#include "lib/runtime/handles/views.h"
#include "lib/support/fault_handler.h"
#include "lib/support/thread.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

namespace stepwell {

using residency::PlaceId;

namespace {

thread_local bool serves = false;
thread_local uint32_t releases = 0;  // take() without released() yet, by this thread

}  // namespace

Touches::Touches(Dispatcher &dispatch, FaultServer &server) : dispatch_(dispatch), server_(server)
{
}
Touches::~Touches() = default;

void Touches::cover(const void *begin, uint64_t bytes)
{
    watch_->cover(begin, bytes);
}

Status Touches::open()
{
    Result<std::unique_ptr<FaultWatch>> watch = FaultWatch::open();
    if (!watch.ok()) return std::move(watch.status());
    watch_ = watch.take();
    MutexLock lock(mutex_);
    return start_thread();
}

Status Touches::start_thread()
{
    std::thread thread;
    STW_TRY(stepwell::start_thread(thread, "stw-touches", "faults", [this] { run(); }));
    threads_.push_back(std::move(thread));
    ++idle_;
    return {};
}

void Touches::close()
{
    std::vector<std::thread> threads;
    {
        MutexLock lock(mutex_);
        closing_ = true;
        threads.swap(threads_);
    }
    if (watch_) watch_->end(static_cast<uint32_t>(threads.size()));
    for (std::thread &thread : threads) thread.join();
    watch_.reset();
}

void Touches::run()
{
    while (MemoryFault *fault = watch_->take()) {
        {
            MutexLock lock(mutex_);
            --idle_;
            if (idle_ == 0 && !closing_ && threads_.size() < kThreadsMax) (void)start_thread();
        }
        serves = true;
        ++serving_;
        const Status status = server_.serve(*fault);
        --serving_;
        if (!status.ok()) {
            std::strncpy(fault->sentence, status.sentence(), sizeof fault->sentence - 1);
        }
        FaultWatch::answer(fault, status.ok());
        MutexLock lock(mutex_);
        ++idle_;
    }
}

bool Touches::show(PlaceId place, residency::Slot slot, residency::PackId pack, uint32_t index,
                   bool writable)
{
    dispatch_.mutex().assume_held();  // the core calls this under the lock
    return server_.show_block(place, slot, pack, index, writable);
}

void Touches::hide(PlaceId place, residency::Slot slot)
{
    server_.hide_block(place, slot);
}

bool Touches::in_the_way() const
{
    return any() || releasing_.load() > 0 || serving_.load() > (serves ? 1u : 0u);
}

bool Touches::clear_way()
{
    if (!in_the_way()) return false;
    if (!any()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    dispatch_.give_way();
    return true;
}

bool Touches::Patience::clear_way()
{
    if (!touches_) return false;
    const residency::Instant now = Dispatcher::now();
    if (end_ == 0) end_ = std::min(deadline_, now + kNs);
    if (now >= end_) return false;
    const bool ends = touches_->clear_way();
    const uint64_t before = std::exchange(seen_, touches_->changes());
    return ends || seen_ != before;
}

bool Touches::is_served(const stw_tensor *tensor) const
{
    return std::find(served_.begin(), served_.end(), tensor) != served_.end();
}

bool Touches::Turn::take(const stw_tensor *tensor, uint64_t patience_ns)
{
    const residency::Instant end = Dispatcher::now() + patience_ns;
    MutexLock lock(touches_.mutex_);
    while (touches_.is_served(tensor)) {
        if (Dispatcher::now() >= end) return false;
        (void)touches_.over_.wait_until(touches_.mutex_, end);
    }
    touches_.served_.push_back(tensor);
    tensor_ = tensor;
    return true;
}

Touches::Turn::~Turn()
{
    if (!tensor_) return;
    {
        MutexLock lock(touches_.mutex_);
        std::vector<const stw_tensor *> &served = touches_.served_;
        served.erase(std::find(served.begin(), served.end(), tensor_));
    }
    touches_.over_.notify_all();
}

bool Touches::has(const stw_tensor *tensor, bool writes, bool shown,
                  std::vector<stw_view> *in_the_way)
{
    MutexLock lock(mutex_);
    const auto of_it = [&](const Kept &kept) { return kept.view.tensor == tensor; };
    const auto found = std::find_if(views_.begin(), views_.end(), of_it);
    if (found == views_.end()) return false;
    if (shown && (!writes || found->view.access != STW_READ)) return true;
    in_the_way->push_back(found->view);
    views_.erase(found);
    return false;
}

void Touches::keep(const stw_view &view)
{
    MutexLock lock(mutex_);
    views_.push_back({view, Dispatcher::now()});
    any_ = true;
    ++changes_;
}

std::vector<stw_view> Touches::take(residency::Instant kept_until)
{
    MutexLock lock(mutex_);
    ++releasing_;
    ++releases;
    std::vector<stw_view> taken;
    const auto later = std::find_if(views_.begin(), views_.end(),
                                    [&](const Kept &kept) { return kept.since > kept_until; });
    for (auto at = views_.begin(); at != later; ++at) taken.push_back(at->view);
    views_.erase(views_.begin(), later);
    any_ = !views_.empty();
    return taken;
}

residency::Instant Touches::oldest() const
{
    MutexLock lock(mutex_);
    return views_.empty() ? residency::kNever : views_.front().since;
}

// It or another one in its block, by the program or by a copy that waits, and not by an access
// without a view.
bool Touches::is_viewed(const ViewTable &views, residency::TensorId tensor) const
{
    const residency::PackId pack = dispatch_.core.pack_of(tensor);
    for (uint32_t index = 0; index < views.slots_used(); ++index) {
        if (!views.is_open(index)) continue;
        const ViewSlot &view = views.slot(index);
        if (view.touched || view.scratch != residency::kNone) continue;
        if (dispatch_.core.pack_of(view.tensor->id) != pack) continue;
        if (!view.copied || !copies_waiting.empty()) return true;
    }
    return false;
}

bool Touches::is_seen(const ViewTable &views, residency::TensorId tensor, bool with_shared) const
{
    const residency::Core &core = dispatch_.core;
    if (server_.awaits_verdict(tensor)) return false;
    if (core.shares_blocks(tensor)) {
        return with_shared && core.is_barred(tensor, residency::Access::kRead) &&
               !is_viewed(views, tensor);
    }
    return core.is_exposed(tensor, false) && core.is_exposed(tensor, is_viewed(views, tensor));
}

// No interrupt ends it: the call has begun what goes on, and must not be made again.
Status Touches::await_concealed(const ViewTable &views,
                                const std::vector<residency::TensorId> &changed, bool with_shared,
                                residency::Instant deadline)
{
    constexpr uint64_t kLookNs = 1'000'000;  // a fault that begins is no progress
    const std::vector<residency::TensorId> &waiting = copies_waiting;
    MutexLock lock(dispatch_.mutex());
    for (const residency::TensorId tensor : changed) {
        while (is_seen(views, tensor, with_shared)) {
            if (std::find(waiting.begin(), waiting.end(), tensor) != waiting.end()) break;
            const residency::Instant now = dispatch_.now();
            if (now >= deadline) {
                return Status::error(STW_ERROR_TIMEOUT,
                                     "the change of %s has begun and goes on, and its old bytes "
                                     "could be read at its address still when the timeout passed",
                                     tensor_text(dispatch_.core.spec(tensor).name).c_str());
            }
            (void)dispatch_.wait_progress(std::min(deadline, now + kLookNs));
        }
    }
    return {};
}

uint32_t Touches::repeats(const MemoryFault &fault)
{
    constexpr uint32_t kRepeatsMin = 64;
    constexpr uint64_t kForNs = 1'000'000'000;
    constexpr uint64_t kRestNs = 50'000'000;  // a program that comes back to it does other work
    const uint64_t now = Dispatcher::now();
    MutexLock lock(mutex_);
    const auto of_it = [&](const Repeated &at) { return at.thread == fault.thread; };
    auto at = std::find_if(repeated_.begin(), repeated_.end(), of_it);
    if (at == repeated_.end()) {
        if (repeated_.size() == kThreadsMax) repeated_.erase(repeated_.begin());
        at = repeated_.insert(repeated_.end(), Repeated());
    }
    if (at->registers != fault.registers || now - at->last_ns > kRestNs)
        *at = {fault.thread, fault.registers, fault.address, false, 0, now, now};
    ++at->count;
    at->several |= at->address != fault.address;
    at->last_ns = now;
    const bool stuck = at->several && at->count >= kRepeatsMin && now - at->begin_ns >= kForNs;
    return stuck ? at->count : 0;
}

void Touches::released()
{
    ++changes_;
    --releases;
    {
        MutexLock lock(mutex_);
        --releasing_;
    }
    over_.notify_all();
}

void Touches::await_released()
{
    if (releasing_.load() == 0 || releases > 0) return;
    MutexLock lock(mutex_);
    while (releasing_.load() > 0) over_.wait(mutex_);
}

}  // namespace stepwell
