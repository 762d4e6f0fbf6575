// SPDX-License-Identifier: Apache-2.0
// Wraps a storage driver and injects the faults of its script. A lock guards the slots and the
// inner driver's submit; poll waits in the inner driver, outside the lock. Nothing sleeps: a
// delayed or throttled completion is held back until its time by the library's clock.
#include "drivers/fault/fault.h"

#include "drivers/common/edge.h"
#include "drivers/common/mutex.h"
#include "drivers/common/storage_entry.h"
#include "drivers/registry.h"

#include <atomic>
#include <cerrno>
#include <memory>
#include <vector>

namespace stepwell::drivers {

namespace {

constexpr uint64_t kCutUnitMin = 512;   // a device moves whole sectors
constexpr uint64_t kSliceMin = 10'000;  // of waiting, so that a stopped clock does not spin

enum class Stage : uint8_t { kFree, kHung, kToSend, kSent, kHeld };

struct Slot {
    stw_io io;  // as the caller asked it
    FaultPlan plan;
    Stage stage;
    uint64_t inner_bytes;  // as the inner driver is asked
    uint64_t inner_offset_bytes;
    int64_t result;
    uint64_t due_ns;  // of the lent clock
    uint64_t order;   // of becoming held
};

class FaultStorage {
public:
    static constexpr const char *kName = "fault";

    explicit FaultStorage(const stw_services *services) : services_(services) {}
    static stw_status open(const stw_services *services, const stw_storage_options &options,
                           std::unique_ptr<FaultStorage> *storage_out, stw_driver_error *error_out);

    void info(stw_storage_info *info_out) const { give_info(inner_info_, info_out); }
    stw_status submit(const stw_io *ios, uint32_t n, uint32_t *accepted_out);
    uint32_t poll(stw_io_done *done, uint32_t capacity, uint64_t wait_ns);
    void wake();
    stw_status flush();
    stw_status give_back(uint64_t offset_bytes, uint64_t bytes);
    stw_status take_back(uint64_t offset_bytes, uint64_t bytes, stw_driver_error *error_out);
    stw_status close(uint64_t wait_ns);
    void release();
    FaultCounts counts();

private:
    stw_status accept(const stw_io &io, bool *accepted_out) STW_REQUIRES(mutex_);
    void aim(Slot *slot) STW_REQUIRES(mutex_);
    void cut(Slot *slot) STW_REQUIRES(mutex_);
    void aim_elsewhere(Slot *slot) STW_REQUIRES(mutex_);
    uint64_t due(const Slot &slot) STW_REQUIRES(mutex_);
    stw_status send(Slot *slot, bool *sent_out) STW_REQUIRES(mutex_);
    void hold(Slot *slot, int64_t result) STW_REQUIRES(mutex_);
    void finish(const stw_io_done &inner) STW_REQUIRES(mutex_);
    uint32_t take_due(stw_io_done *done, uint32_t capacity, uint64_t *wait_ns_out);
    void pump(uint64_t wait_ns);
    uint32_t unfinished();
    void log_counts();

    Services services_;
    FaultScript script_;
    const stw_storage_ops *ops_ = nullptr;  // static
    stw_storage *inner_ = nullptr;          // closed by close, when nothing is in flight
    stw_storage_info inner_info_ = {};
    uint64_t cut_unit_bytes_ = kCutUnitMin;
    std::vector<stw_io_done> inner_done_;  // of the polling thread
    std::atomic<bool> woken_{false};
    Mutex mutex_;
    std::vector<Slot> slots_ STW_GUARDED_BY(mutex_);
    std::array<uint64_t, kDirections> numbers_ STW_GUARDED_BY(mutex_) = {};
    uint64_t order_ STW_GUARDED_BY(mutex_) = 0;
    uint64_t device_free_ns_ STW_GUARDED_BY(mutex_) = 0;  // of the throttled device
    FaultCounts counts_ STW_GUARDED_BY(mutex_);
};

stw_status FaultStorage::open(const stw_services *services, const stw_storage_options &options,
                              std::unique_ptr<FaultStorage> *storage_out,
                              stw_driver_error *error_out)
{
    auto storage = std::make_unique<FaultStorage>(services);
    FaultScript &script = storage->script_;
    if (const stw_status status = FaultScript::parse(options.options, &script, error_out))
        return status;
    if (const stw_status status = find_driver(script.inner().c_str(), &storage->ops_, error_out))
        return status;
    if (options.name != nullptr && (storage->ops_->capabilities & STW_STORAGE_CAN_KEEP) == 0)
        return fail(error_out, STW_ERROR_UNSUPPORTED, {},
                    "The driver %s, which fault wraps at '%s', keeps no file with a name ('%s').",
                    storage->ops_->name, options.path, options.name);
    if (script.open_enospc())
        return fail(error_out, STW_ERROR_NO_SPACE, {ENOSPC, options.bytes, 0},
                    "'%s' cannot reserve %s (injected by the fault driver).", options.path,
                    bytes_text(options.bytes).c_str());
    stw_storage_options inner = options;
    inner.struct_size = sizeof inner;
    inner.options = script.inner_options().c_str();
    storage->inner_info_.struct_size = sizeof(stw_storage_info);
    // All memory is allocated before the inner driver is opened: nothing can fail after it.
    inner.queue_depth = queue_depth_of(options);
    storage->inner_done_.resize(inner.queue_depth);
    {
        MutexLock lock(storage->mutex_);
        storage->slots_.resize(inner.queue_depth);
    }
    if (const stw_status status =
            storage->ops_->open(services, &inner, &storage->inner_, error_out))
        return status;
    storage->ops_->info(storage->inner_, &storage->inner_info_);
    storage->cut_unit_bytes_ =
        std::max<uint64_t>(kCutUnitMin, storage->inner_info_.alignment_bytes);
    *storage_out = std::move(storage);
    return STW_OK;
}

// Short and torn: a prefix of whole units, at least one. One unit cannot be cut.
void FaultStorage::cut(Slot *slot)
{
    const uint64_t units = (slot->io.bytes - 1) / cut_unit_bytes_;
    if (units == 0) return;
    slot->inner_bytes = (1 + slot->plan.random % units) * cut_unit_bytes_;
    counts_.count(slot->plan.has(FaultKind::kTorn) ? FaultKind::kTorn : FaultKind::kShort);
}

void FaultStorage::aim_elsewhere(Slot *slot)
{
    const uint64_t unit = std::max<uint64_t>(1, inner_info_.alignment_bytes);
    const uint64_t places = (inner_info_.bytes - slot->io.bytes) / unit + 1;
    if (places < 2) return;  // the file has no other place for it
    const uint64_t place = slot->plan.random % places;
    const uint64_t wrong = place * unit == slot->io.offset_bytes ? (place + 1) % places : place;
    slot->inner_offset_bytes = wrong * unit;
    counts_.count(FaultKind::kMisdirect);
}

void FaultStorage::aim(Slot *slot)
{
    const FaultPlan &plan = slot->plan;
    slot->inner_bytes = slot->io.bytes;
    slot->inner_offset_bytes = slot->io.offset_bytes;
    if (plan.has(FaultKind::kShort) || plan.has(FaultKind::kTorn)) cut(slot);
    if (plan.has(FaultKind::kMisdirect)) aim_elsewhere(slot);
}

uint64_t FaultStorage::due(const Slot &slot)
{
    const uint64_t rate = script_.throttle_bytes_per_s();
    uint64_t due_ns = 0;
    if (slot.plan.has(FaultKind::kDelay)) {
        due_ns = services_.now_ns() + slot.plan.delay_ns;
        counts_.count(FaultKind::kDelay);
    }
    if (rate == 0) return due_ns;
    const double busy_ns = static_cast<double>(slot.io.bytes) * 1e9 / static_cast<double>(rate);
    device_free_ns_ =
        std::max(device_free_ns_, services_.now_ns()) + static_cast<uint64_t>(busy_ns);
    counts_.count(FaultKind::kThrottle);
    return std::max(due_ns, device_free_ns_);
}

void FaultStorage::hold(Slot *slot, int64_t result)
{
    slot->stage = Stage::kHeld;
    slot->result = result;
    slot->order = order_++;
}

// Requests that never reach the inner driver are held at once; all others are sent to it.
stw_status FaultStorage::send(Slot *slot, bool *sent_out)
{
    *sent_out = true;
    if (slot->plan.has(FaultKind::kEio)) {
        counts_.count(FaultKind::kEio);
        hold(slot, -EIO);
        return STW_OK;
    }
    if (slot->plan.has(FaultKind::kNoSpace)) {
        counts_.count(FaultKind::kNoSpace);
        hold(slot, -ENOSPC);
        return STW_OK;
    }
    if (slot->plan.has(FaultKind::kLost)) {
        counts_.count(FaultKind::kLost);
        hold(slot, static_cast<int64_t>(slot->io.bytes));
        return STW_OK;
    }
    stw_io inner = slot->io;
    inner.tag = static_cast<uint64_t>(slot - slots_.data());
    inner.bytes = slot->inner_bytes;
    inner.offset_bytes = slot->inner_offset_bytes;
    uint32_t accepted = 0;
    const stw_status status = ops_->submit(inner_, &inner, 1, &accepted);
    *sent_out = accepted == 1;
    slot->stage = accepted == 1 ? Stage::kSent : Stage::kToSend;
    return status;
}

stw_status FaultStorage::accept(const stw_io &io, bool *accepted_out)
{
    *accepted_out = false;
    Slot *slot = nullptr;
    for (Slot &candidate : slots_)
        if (candidate.stage == Stage::kFree) slot = &candidate;
    if (slot == nullptr) return STW_OK;
    if (!request_is_valid(io, inner_info_.alignment_bytes, inner_info_.bytes))
        return STW_ERROR_INVALID;
    const Direction direction = io.kind == STW_IO_READ ? Direction::kRead : Direction::kWrite;
    uint64_t &number = numbers_[static_cast<size_t>(direction)];
    slot->io = io;
    slot->plan = script_.plan(direction, number);
    const FaultCounts before = counts_;
    const uint64_t device_free_before_ns = device_free_ns_;
    aim(slot);
    slot->due_ns = due(*slot);
    if (slot->plan.has(FaultKind::kHang)) {
        counts_.count(FaultKind::kHang);
        slot->stage = Stage::kHung;
        *accepted_out = true;
    } else if (const stw_status status = send(slot, accepted_out); !*accepted_out) {
        // Not accepted: the next request gets its number, faults and time.
        slot->stage = Stage::kFree;
        counts_ = before;
        device_free_ns_ = device_free_before_ns;
        return status;
    }
    ++number;
    return STW_OK;
}

stw_status FaultStorage::submit(const stw_io *ios, uint32_t n, uint32_t *accepted_out)
{
    *accepted_out = 0;
    stw_status status = STW_OK;
    uint32_t accepted = 0;
    {
        MutexLock lock(mutex_);
        const FaultPlan plan =
            script_.plan(Direction::kSubmit, numbers_[static_cast<size_t>(Direction::kSubmit)]++);
        uint32_t most = n;
        if (plan.has(FaultKind::kPartial) && n > 1) {
            most = static_cast<uint32_t>(1 + plan.random % (n - 1));
            counts_.count(FaultKind::kPartial);
        }
        for (bool taken = true; accepted < most; accepted += taken) {
            status = accept(ios[accepted], &taken);
            if (status != STW_OK || !taken) break;
        }
    }
    *accepted_out = accepted;
    // A poll that waits in the inner driver does not notice requests held outside it.
    if (accepted > 0) ops_->wake(inner_);
    return status;
}

void FaultStorage::finish(const stw_io_done &inner)
{
    Slot *slot = &slots_[inner.tag];
    int64_t result = inner.result;
    // A torn write reports success for all bytes.
    if (slot->plan.has(FaultKind::kTorn) && result == static_cast<int64_t>(slot->inner_bytes))
        result = static_cast<int64_t>(slot->io.bytes);
    if (slot->plan.has(FaultKind::kFlip) && result > 0) {
        const uint64_t bit = slot->plan.random % (static_cast<uint64_t>(result) * 8);
        static_cast<uint8_t *>(slot->io.data)[bit / 8] ^= static_cast<uint8_t>(1u << (bit % 8));
        counts_.count(FaultKind::kFlip);
    }
    hold(slot, result);
}

// Waits in the inner driver and collects its completions. Requests that it did not accept before
// are sent first.
void FaultStorage::pump(uint64_t wait_ns)
{
    {
        MutexLock lock(mutex_);
        for (Slot &slot : slots_) {
            if (slot.stage != Stage::kToSend) continue;
            bool sent = false;
            if (send(&slot, &sent) != STW_OK && !sent) hold(&slot, -EIO);
        }
    }
    const uint32_t n =
        ops_->poll(inner_, inner_done_.data(), static_cast<uint32_t>(inner_done_.size()), wait_ns);
    MutexLock lock(mutex_);
    for (uint32_t i = 0; i < n; ++i) finish(inner_done_[i]);
}

// Returns the completions that are due, oldest first, and the time until the next one.
uint32_t FaultStorage::take_due(stw_io_done *done, uint32_t capacity, uint64_t *wait_ns_out)
{
    MutexLock lock(mutex_);
    const uint64_t now_ns = services_.now_ns();
    uint32_t n = 0;
    while (n < capacity) {
        Slot *first = nullptr;
        *wait_ns_out = UINT64_MAX;
        for (Slot &slot : slots_) {
            if (slot.stage != Stage::kHeld) continue;
            if (slot.due_ns > now_ns) {
                *wait_ns_out = std::min(*wait_ns_out, slot.due_ns - now_ns);
                continue;
            }
            if (first == nullptr || slot.order < first->order) first = &slot;
        }
        if (first == nullptr) return n;
        done[n++] = {first->io.tag, first->result};
        first->stage = Stage::kFree;
    }
    return n;
}

uint32_t FaultStorage::poll(stw_io_done *done, uint32_t capacity, uint64_t wait_ns)
{
    if (capacity == 0) return 0;
    const Deadline deadline = Deadline::after(wait_ns);
    bool last = false;
    for (;;) {
        uint64_t due_ns = UINT64_MAX;
        const uint32_t n = take_due(done, capacity, &due_ns);
        if (n > 0 || last) return n;
        const uint64_t remaining_ns = wait_ns == 0 ? 0 : deadline.remaining_ns();
        last =
            remaining_ns == 0 || (wait_ns > 0 && woken_.exchange(false, std::memory_order_acq_rel));
        pump(last ? 0 : std::min(remaining_ns, std::max(due_ns, kSliceMin)));
    }
}

void FaultStorage::wake()
{
    woken_.store(true, std::memory_order_release);
    ops_->wake(inner_);
}

stw_status FaultStorage::flush()
{
    {
        MutexLock lock(mutex_);
        uint64_t &number = numbers_[static_cast<size_t>(Direction::kFlush)];
        if (script_.plan(Direction::kFlush, number++).has(FaultKind::kEio)) {
            counts_.count(FaultKind::kEio);
            return STW_ERROR_SYNC;
        }
    }
    return ops_->flush(inner_);
}

void FaultStorage::release()
{
    {
        MutexLock lock(mutex_);
        for (Slot &slot : slots_)
            if (slot.stage == Stage::kHung) slot.stage = Stage::kToSend;
    }
    ops_->wake(inner_);
}

FaultCounts FaultStorage::counts()
{
    MutexLock lock(mutex_);
    return counts_;
}

stw_status FaultStorage::give_back(uint64_t offset_bytes, uint64_t bytes)
{
    if (ops_->give_back == nullptr) return STW_ERROR_UNSUPPORTED;
    return ops_->give_back(inner_, offset_bytes, bytes);
}

stw_status FaultStorage::take_back(uint64_t offset_bytes, uint64_t bytes,
                                   stw_driver_error *error_out)
{
    return ops_->take_back(inner_, offset_bytes, bytes, error_out);
}

// A completion that is held back counts as in flight.
uint32_t FaultStorage::unfinished()
{
    MutexLock lock(mutex_);
    const uint64_t now_ns = services_.now_ns();
    uint32_t n = 0;
    for (const Slot &slot : slots_)
        n += slot.stage != Stage::kFree && !(slot.stage == Stage::kHeld && slot.due_ns <= now_ns);
    return n;
}

stw_status FaultStorage::close(uint64_t wait_ns)
{
    const Deadline deadline = Deadline::after(wait_ns);
    if (script_.close_releases()) release();
    bool last = false;
    while (unfinished() > 0) {
        if (last) return STW_ERROR_TIMEOUT;
        const uint64_t remaining_ns = wait_ns == 0 ? 0 : deadline.remaining_ns();
        last = remaining_ns == 0;
        constexpr uint64_t kSlice = 1'000'000;  // held completions come due while nothing arrives
        pump(std::min(remaining_ns, kSlice));
    }
    const stw_status status = ops_->close(inner_, deadline.remaining_ns());
    if (status != STW_OK) return status;
    log_counts();
    return STW_OK;
}

void FaultStorage::log_counts()
{
    const FaultCounts injected = counts();
    std::string line =
        "injected into " + script_.inner() + " with seed " + std::to_string(script_.seed()) + ":";
    bool any = false;
    for (size_t i = 0; i < kFaultKinds; ++i) {
        if (injected.of_kind[i] == 0) continue;
        line += std::string(any ? ", " : " ") + fault_name(static_cast<FaultKind>(i)) + " " +
                std::to_string(injected.of_kind[i]);
        any = true;
    }
    services_.log(kLogInfo, kName, any ? line : line + " nothing");
}

}  // namespace

constinit const stw_storage_ops kFaultStorage = StorageEntry<FaultStorage>::table(
    STW_STORAGE_CAN_WRAP | STW_STORAGE_CAN_SHRINK | STW_STORAGE_CAN_KEEP);

void fault_release(stw_storage *storage)
{
    StorageEntry<FaultStorage>::from(storage)->release();
}

FaultCounts fault_counts(stw_storage *storage)
{
    return StorageEntry<FaultStorage>::from(storage)->counts();
}

}  // namespace stepwell::drivers
