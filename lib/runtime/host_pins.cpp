// SPDX-License-Identifier: Apache-2.0
#include "lib/runtime/host_pins.h"

#include "lib/support/assert.h"
#include "lib/support/signals.h"
#include "lib/support/status.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <system_error>
#include <utility>

namespace stepwell {

namespace {

constexpr uint64_t kSlabBytes = 256ull << 20;

uint32_t blocks_in(uint64_t bytes, uint64_t block_bytes)
{
    return static_cast<uint32_t>(bytes / block_bytes);
}

}  // namespace

HostPins::HostPins(Options options)
    : base_(options.base),
      block_bytes_(options.block_bytes),
      blocks_(blocks_in(options.bytes, options.block_bytes)),
      scratch_blocks_(blocks_in(options.scratch_bytes, options.block_bytes)),
      staging_blocks_(blocks_in(options.staging_bytes, options.block_bytes)),
      log_(*options.log),
      now_ns_(std::move(options.now_ns)),
      gone_(blocks_),
      registered_(std::make_unique<std::atomic<int>[]>(blocks_)),
      begins_(std::make_unique<std::atomic<int>[]>(blocks_))
{
    for (const Device &device : options.devices) {
        for (const bool into : {true, false}) {
            copies_.emplace_back();
            copies_.back().ops = device.ops;
            copies_.back().memory = device.memory;
            copies_.back().into = into;
        }
        const bool known =
            std::any_of(registrars_.begin(), registrars_.end(),
                        [&](const Registrar &other) { return other.device.ops == device.ops; });
        if (known) continue;
        registrars_.push_back({device, {}, {}, 0, ""});
        make_slabs(registrars_.back());
    }
    open_bytes_ = registrars_.size() * options.bytes;
    const SignalsBlocked signals;
    try {
        thread_ = std::thread([this] { run(); });
    } catch (const std::system_error &) {
        const std::lock_guard<std::mutex> lock(mutex_);
        stw_driver_error error = STW_DRIVER_ERROR_INIT;
        std::snprintf(error.sentence, sizeof error.sentence, "the system starts no more threads");
        for (Registrar &registrar : registrars_) {
            refuse(registrar, error);
            log_.print(STW_LOG_WARNING, registrar.device.ops->name, "%s", registrar.remark.c_str());
        }
    }
}

// What everything passes through first, then what programs copy by themselves, then the blocks.
void HostPins::make_slabs(Registrar &registrar)
{
    const uint32_t tensors = blocks_ - scratch_blocks_ - staging_blocks_;
    if (staging_blocks_ > 0)
        registrar.slabs.push_back({{blocks_ - staging_blocks_, staging_blocks_}, true});
    if (scratch_blocks_ > 0) registrar.slabs.push_back({{tensors, scratch_blocks_}, true});
    const auto most = std::max<uint32_t>(1, blocks_in(kSlabBytes, block_bytes_));
    for (uint32_t first = 0; first < tensors; first += most)
        registrar.slabs.push_back({{first, std::min(most, tensors - first)}, true});
}

HostPins::~HostPins()
{
    stop();
    const std::lock_guard<std::mutex> lock(mutex_);
    for (Registrar &registrar : registrars_) {
        for (const auto &[first, count] : registrar.pinned) {
            const Range range = {first, count};
            registrar.device.ops->unpin_host(registrar.device.memory, at(range), bytes_of(range));
        }
    }
}

void HostPins::stop()
{
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        stops_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
}

// -------------------------------------------------------------------------------- the thread ----

void HostPins::run()
{
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
        Registrar *registrar = nullptr;
        Range range;
        changed_.wait(lock, [&] { return stops_ || (pauses_ == 0 && next(&registrar, &range)); });
        if (stops_) return;
        register_one(lock, *registrar, range);
    }
}

bool HostPins::next(Registrar **registrar_out, Range *range_out)
{
    for (Registrar &registrar : registrars_) {
        for (Slab &slab : registrar.slabs) {
            if (!slab.open || registrar.refused > 0) continue;
            *registrar_out = &registrar;
            if (next_in(registrar, slab, range_out)) return true;
            slab.open = false;
        }
    }
    return false;
}

// The first run of blocks that are there and not registered.
bool HostPins::next_in(const Registrar &registrar, const Slab &slab, Range *range_out) const
{
    const uint32_t end = slab.range.first + slab.range.count;
    uint32_t first = slab.range.first;
    for (;;) {
        while (first < end && gone_[first]) ++first;
        if (first >= end) return false;
        const auto pinned = registrar.pinned.find(first);
        if (pinned == registrar.pinned.end()) break;
        first += pinned->second;
    }
    const auto behind = registrar.pinned.upper_bound(first);
    const uint32_t most = behind == registrar.pinned.end() ? end : std::min(end, behind->first);
    uint32_t last = first;
    while (last < most && !gone_[last]) ++last;
    *range_out = {first, last - first};
    return true;
}

void HostPins::register_one(std::unique_lock<std::mutex> &lock, Registrar &registrar, Range range)
{
    const Device device = registrar.device;
    stw_driver_error error = STW_DRIVER_ERROR_INIT;
    busy_ = range;
    lock.unlock();
    const uint64_t begin = now_ns_();
    const stw_status code = device.ops->pin_host(device.memory, at(range), bytes_of(range), &error);
    ns_ += now_ns_() - begin;
    lock.lock();
    busy_ = {};
    if (code >= 0) {
        registrar.pinned[range.first] = range.count;
        note(range, 1);
        bytes_ += bytes_of(range);
        open_bytes_ -= bytes_of(range);
    } else {
        refuse(registrar, error);
        const std::string remark = registrar.remark;
        lock.unlock();
        log_.print(STW_LOG_WARNING, device.ops->name, "%s", remark.c_str());
        lock.lock();
    }
    changed_.notify_all();
}

// What refuses one slab refuses the next: it is asked no more, and says so once.
void HostPins::refuse(Registrar &registrar, const stw_driver_error &error)
{
    uint64_t pinned = 0;
    for (const auto &[first, count] : registrar.pinned) pinned += count;
    const auto there = static_cast<uint64_t>(std::count(gone_.begin(), gone_.end(), false));
    registrar.refused =
        static_cast<uint64_t>(std::count_if(registrar.slabs.begin(), registrar.slabs.end(),
                                            [](const Slab &slab) { return slab.open; }));
    refused_ += registrar.refused;
    open_bytes_ -= (there - pinned) * block_bytes_;
    registrar.remark = format_text(
        "%" PRIu64 " of %" PRIu64 " bytes of the host tier are not registered with device %u, so "
        "copies are slower: %s",
        (there - pinned) * block_bytes_, there * block_bytes_, registrar.device.device,
        error.sentence[0] ? error.sentence : "the driver gives no reason");
}

// ------------------------------------------------------------------------------------ copies ----

HostPins::Copies *HostPins::copies_of(const stw_memory *memory, bool into)
{
    for (Copies &copies : copies_)
        if (copies.memory == memory && copies.into == into) return &copies;
    return nullptr;
}

void HostPins::begin(const stw_memory *memory, bool into)
{
    if (Copies *copies = copies_of(memory, into)) copies->mutex.lock();
}

void HostPins::end(const stw_memory *memory, bool into, const uint64_t *mark)
{
    Copies *copies = copies_of(memory, into);
    if (copies == nullptr) return;
    if (mark != nullptr) copies->last = *mark;
    copies->mutex.unlock();
}

void HostPins::note(Range range, int change)
{
    begins_[range.first].fetch_add(change, std::memory_order_relaxed);
    for (uint32_t block = range.first; block < range.first + range.count; ++block)
        registered_[block].fetch_add(change, std::memory_order_release);
}

uint64_t HostPins::block_of(const void *pointer) const
{
    return static_cast<uint64_t>(static_cast<const char *>(pointer) - base_) / block_bytes_;
}

bool HostPins::is_registered(uint64_t block) const
{
    return block < blocks_ && registered_[block].load(std::memory_order_acquire) ==
                                  static_cast<int>(registrars_.size());
}

bool HostPins::is_registered(const void *pointer) const
{
    return is_registered(block_of(pointer));
}

// Where a range begins is written before that it is registered.
bool HostPins::is_joined(const void *pointer) const
{
    const uint64_t block = block_of(pointer);
    return block > 0 && is_registered(block) && is_registered(block - 1) &&
           begins_[block].load(std::memory_order_relaxed) == 0;
}

// Under the locks of all copies. A device that is lost copies nothing any more.
void HostPins::await_copies()
{
    for (Copies &copies : copies_)
        if (copies.last) (void)copies.ops->wait(copies.memory, *copies.last);
}

// ----------------------------------------------------------------------------------- budgets ----

HostPins::Pause::Pause(HostPins *pins) : pins_(pins)
{
    if (pins_ == nullptr) return;
    const std::lock_guard<std::mutex> lock(pins_->mutex_);
    ++pins_->pauses_;
}

HostPins::Pause::~Pause()
{
    if (pins_ == nullptr) return;
    {
        const std::lock_guard<std::mutex> lock(pins_->mutex_);
        --pins_->pauses_;
    }
    pins_->changed_.notify_all();
}

void HostPins::release(uint32_t first, uint32_t count)
{
    std::unique_lock<std::mutex> lock(mutex_);
    drop(lock, {first, count});
}

void HostPins::gone(uint32_t first, uint32_t count)
{
    STW_ASSERT(first + count <= blocks_);
    std::unique_lock<std::mutex> lock(mutex_);
    drop(lock, {first, count});
    for (uint32_t block = first; block < first + count; ++block) {
        if (gone_[block]) continue;
        gone_[block] = true;
        for (const Registrar &registrar : registrars_)
            if (registrar.refused == 0) open_bytes_ -= block_bytes_;
    }
}

void HostPins::back(uint32_t first, uint32_t count)
{
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        for (uint32_t block = first; block < first + count; ++block) {
            if (!gone_[block]) continue;
            gone_[block] = false;
            for (Registrar &registrar : registrars_) {
                if (registrar.refused > 0) continue;
                open_bytes_ += block_bytes_;
                for (Slab &slab : registrar.slabs)
                    slab.open |= block - slab.range.first < slab.range.count;
            }
        }
    }
    changed_.notify_all();
}

// All that is registered with one of the blocks goes; the rest of it comes back.
void HostPins::drop(std::unique_lock<std::mutex> &lock, Range range)
{
    const uint32_t end = range.first + range.count;
    changed_.wait(lock,
                  [&] { return busy_.first >= end || busy_.first + busy_.count <= range.first; });
    for (Registrar &registrar : registrars_) {
        auto entry = registrar.pinned.upper_bound(range.first);
        if (entry != registrar.pinned.begin()) --entry;
        while (entry != registrar.pinned.end() && entry->first < end) {
            const Range pinned = {entry->first, entry->second};
            ++entry;
            if (pinned.first + pinned.count > range.first) unpin(registrar, pinned);
        }
    }
}

void HostPins::unpin(Registrar &registrar, Range range)
{
    for (Copies &copies : copies_) copies.mutex.lock();
    await_copies();
    note(range, -1);
    registrar.device.ops->unpin_host(registrar.device.memory, at(range), bytes_of(range));
    for (Copies &copies : copies_) copies.mutex.unlock();
    registrar.pinned.erase(range.first);
    bytes_ -= bytes_of(range);
    if (registrar.refused == 0) open_bytes_ += bytes_of(range);
    for (Slab &slab : registrar.slabs)
        slab.open |= range.first - slab.range.first < slab.range.count;
    changed_.notify_all();
}

// ------------------------------------------------------------------------------------- stats ----

HostPins::Stats HostPins::stats() const
{
    return {bytes_.load(), open_bytes_.load(), ns_.load(), refused_.load()};
}

std::string HostPins::remark(uint32_t device) const
{
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const Registrar &registrar : registrars_)
        if (registrar.device.device == device) return registrar.remark;
    return "";
}

}  // namespace stepwell
