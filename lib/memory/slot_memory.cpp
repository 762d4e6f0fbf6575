// SPDX-License-Identifier: Apache-2.0
#include "lib/memory/slot_memory.h"

#include "lib/memory/driver_error.h"
#include "lib/memory/driver_reason.h"

#include <algorithm>
#include <chrono>
#include <thread>

namespace stepwell::memory {

using residency::Slot;

namespace {

constexpr std::chrono::milliseconds kLookAgain{1};  // whether a capture is over

}  // namespace

SlotMemory::SlotMemory(const stw_memory_ops *ops, stw_memory *memory, DeviceStreams *streams,
                       uint32_t slots, std::string device)
    : ops_(ops),
      memory_(memory),
      streams_(streams),
      slots_(slots),
      device_(std::move(device)),
      lacks_(slots, 0),
      gone_(std::make_unique<std::atomic<uint32_t>[]>(slots))
{
}

void SlotMemory::set_lacks(Slot slot, bool lacks)
{
    if (lacks_[slot] == static_cast<uint8_t>(lacks)) return;
    lacks_[slot] = lacks;
    lacks ? ++lacking_ : --lacking_;
}

// What has not begun and is called off costs nothing: the memory is where it was.
void SlotMemory::queue(Slot slot, bool gives)
{
    MutexLock lock(mutex_);
    const auto last = std::find_if(steps_.rbegin(), steps_.rend(),
                                   [slot](const Step &step) { return step.slot == slot; });
    const bool undoes = last != steps_.rend() && !last->begun && last->gives != gives;
    bool lacks = !gives;
    if (undoes) {
        lacks = !gives && last->lacked;
        steps_.erase(std::next(last).base());
    } else {
        steps_.push_back({slot, gives, false, lacks_[slot] != 0});
    }
    set_lacks(slot, lacks);
}

Status SlotMemory::settle(const std::function<Status()> &go_on)
{
    MutexLock working(working_);
    for (;;) {
        Status status = work(go_on);
        if (status.code() != STW_ERROR_BUSY) return status;
        STW_TRY(go_on());
        std::this_thread::sleep_for(kLookAgain);
    }
}

Status SlotMemory::await(SlotRange slots)
{
    if (lacking_.load(std::memory_order_acquire) == 0) return {};
    const auto lacks = [&] {
        MutexLock lock(mutex_);
        return std::any_of(lacks_.begin() + slots.first, lacks_.begin() + slots.first + slots.count,
                           [](uint8_t each) { return each != 0; });
    };
    if (!lacks()) return {};
    uint32_t tries = 0;
    MutexLock working(working_);
    STW_TRY(work([&]() -> Status {
        if (++tries < kTriesMax) return {};
        return Status::error(STW_ERROR_TIMEOUT,
                             "memory of %s that goes to another block is still in use by work on "
                             "its streams",
                             device_.c_str());
    }));
    // What found no memory then may find some now.
    for (Slot slot = slots.first; lacks() && slot < slots.first + slots.count; ++slot) {
        {
            MutexLock lock(mutex_);
            if (!lacks_[slot]) continue;
        }
        STW_TRY(take_back(slot));
    }
    return {};
}

Status SlotMemory::work(const std::function<Status()> &go_on)
{
    for (;;) {
        Step step;
        {
            MutexLock lock(mutex_);
            if (steps_.empty()) return {};
            steps_.front().begun = true;
            step = steps_.front();
        }
        Status status = do_step(step, go_on);
        MutexLock lock(mutex_);
        if (!status.ok() && step.gives) {
            steps_.front().begun = false;  // nothing has changed
            return status;
        }
        steps_.pop_front();
        if (!status.ok()) return status;
    }
}

Status SlotMemory::do_step(const Step &step, const std::function<Status()> &go_on)
{
    if (!step.gives) return take_back(step.slot);
    const SlotRange slots{step.slot, 1};
    // The driver waits for both directions, so one of them will do: the one that brings nothing.
    STW_TRY(streams_->copies_behind(slots, STW_COPIES_OUT));
    for (;;) {
        const stw_status code = ops_->give_back(memory_, step.slot, 1);
        if (code >= 0) {
            ++gone_[step.slot];
            streams_->forget(slots);
            return {};
        }
        if (code != STW_ERROR_TIMEOUT) return cannot_give(code);
        STW_TRY(go_on());
    }
}

Status SlotMemory::cannot_give(stw_status code) const
{
    stw_memory_info info{};
    info.struct_size = sizeof info;
    ops_->info(memory_, &info);
    const bool says_why = code == STW_ERROR_UNSUPPORTED && info.remark[0];
    return Status::error(code, "the memory of %s cannot be given back: %s", device_.c_str(),
                         says_why ? info.remark : driver_reason(ops_, memory_, code).c_str());
}

Status SlotMemory::take_back(Slot slot)
{
    stw_driver_error error = STW_DRIVER_ERROR_INIT;
    const stw_status code = ops_->take_back(memory_, slot, 1, &error);
    if (code < 0)
        return from_driver(code, error, "a part of the budget has no memory behind it now");
    MutexLock lock(mutex_);
    set_lacks(slot, false);
    return {};
}

}  // namespace stepwell::memory
