// SPDX-License-Identifier: Apache-2.0
#include "lib/memory/host_pins.h"

#include "lib/support/assert.h"
#include "lib/support/status.h"
#include "lib/support/thread.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <utility>

namespace stepwell::memory {

namespace {

// While it registers, about 0.1 s for a GiB, the driver holds locks that other threads wait for.
constexpr uint64_t kSlabBytes = 64ull << 20;
constexpr uint64_t kPieceBytes = 4ull << 20;  // a smaller piece is tried once more
constexpr uint32_t kFailuresMax = 2;

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
      by_block_(base_, block_bytes_, blocks_)
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
        registrars_.emplace_back();
        registrars_.back().device = device;
        make_slabs(registrars_.back());
        count(registrars_.back(), {0, blocks_});
    }
    by_block_.set_drivers(static_cast<int>(registrars_.size()));
    if (!start_thread(thread_, "stw-registrar", "registration", [this] { run(); }).ok()) {
        MutexLock lock(mutex_);
        stw_driver_error error = STW_DRIVER_ERROR_INIT;
        std::snprintf(error.sentence, sizeof error.sentence, "the system starts no more threads");
        for (Registrar &registrar : registrars_) {
            registrar.asked_again = true;
            for (Slab &slab : registrar.slabs) slab.failures = kFailuresMax;
            for (const Slab &slab : registrar.slabs)
                refuse(registrar, {slab.range.first, 1}, error);
            log_.print(STW_LOG_WARNING, registrar.device.ops->name, "%s",
                       describe(registrar).c_str());
        }
    }
}

// The staging rings come first, as all bytes pass through them, then scratch memory, which programs
// copy themselves, then the blocks.
void HostPins::make_slabs(Registrar &registrar) const
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
    MutexLock lock(mutex_);
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
        MutexLock lock(mutex_);
        stops_ = true;
    }
    changed_.notify_all();
    if (thread_.joinable()) thread_.join();
}

// -------------------------------------------------------------------------------- the thread ----

void HostPins::run()
{
    MutexLock lock(mutex_);
    for (;;) {
        Registrar *registrar = nullptr;
        Range range;
        while (!stops_ && (pauses_ > 0 || !next(&registrar, &range))) changed_.wait(mutex_);
        if (stops_) break;
        if (range.count > 0)
            register_one(*registrar, range);
        else
            say(*registrar);
    }
    for (Registrar &registrar : registrars_)
        if (registrar.warns) say(registrar);
}

// With an empty range: the registrar has a warning to log.
bool HostPins::next(Registrar **registrar_out, Range *range_out)
{
    for (Registrar &registrar : registrars_) {
        *registrar_out = &registrar;
        do {
            for (Slab &slab : registrar.slabs) {
                if (!slab.open) continue;
                if (next_in(registrar, slab, range_out)) return true;
                slab.open = false;
                count(registrar, slab);
            }
        } while (ask_again(registrar));
        *range_out = {};
        if (registrar.warns) return true;
    }
    return false;
}

// A refusal may have been temporary, so refused slabs are tried once more. Only once: a limit of
// the process stays.
bool HostPins::ask_again(Registrar &registrar)
{
    if (std::exchange(registrar.asked_again, true)) return false;
    bool any = false;
    for (Slab &slab : registrar.slabs) {
        if (!slab.refused) continue;
        reopen(registrar, slab);
        any = true;
    }
    return any;
}

// The failures of a refused slab stay counted, so that the next refusal closes it again.
void HostPins::reopen(Registrar &registrar, Slab &slab)
{
    slab.open = true;
    if (std::exchange(slab.refused, false)) --refused_;
    count(registrar, slab);
}

// The first run of blocks that have memory and are not registered.
bool HostPins::next_in(const Registrar &registrar, const Slab &slab, Range *range_out) const
{
    const uint32_t end = slab.range.first + slab.range.count;
    uint32_t first = slab.range.first;
    // A joined registration may begin in the slab before.
    const auto before = registrar.pinned.upper_bound(first);
    if (before != registrar.pinned.begin()) {
        const auto &[begin, count] = *std::prev(before);
        first = std::max(first, begin + count);
    }
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
    while (last < most && !gone_[last] && last - first < slab.piece) ++last;
    *range_out = {first, last - first};
    return true;
}

// Slabs of tensors come last, and all but the last one have the same size.
HostPins::Slab &HostPins::slab_of(Registrar &registrar, uint32_t block) const
{
    const uint32_t tensors = blocks_ - scratch_blocks_ - staging_blocks_;
    const auto most = std::max<uint32_t>(1, blocks_in(kSlabBytes, block_bytes_));
    const size_t slabs = (tensors + most - 1) / most;
    if (block < tensors) return registrar.slabs[registrar.slabs.size() - slabs + block / most];
    Slab &first = registrar.slabs.front();
    return block - first.range.first < first.range.count ? first : registrar.slabs[1];
}

void HostPins::add(Registrar &registrar, Range range)
{
    registrar.pinned[range.first] = range.count;
    by_block_.note(range.first, range.count, 1);
    bytes_ += bytes_of(range);
    count(registrar, range);
    if (&registrar != &registrars_.front()) return;
    by_block_.set_number(range.first, range.count, ++joins_);
}

void HostPins::register_one(Registrar &registrar, Range range)
{
    const Device device = registrar.device;
    stw_driver_error error = STW_DRIVER_ERROR_INIT;
    busy_ = range;
    mutex_.unlock();
    const uint64_t begin = now_ns_();
    const stw_status code = device.ops->pin_host(device.memory, at(range), bytes_of(range), &error);
    ns_ += now_ns_() - begin;
    mutex_.lock();
    busy_ = {};
    if (code >= 0) {
        slab_of(registrar, range.first).failures = 0;
        add(registrar, range);
    } else {
        refuse(registrar, range, error);
    }
    changed_.notify_all();
}

// Its halves are tried next, or another slab.
void HostPins::refuse(Registrar &registrar, Range range, const stw_driver_error &error)
{
    Slab &slab = slab_of(registrar, range.first);
    const uint32_t least = std::max<uint32_t>(1, blocks_in(kPieceBytes, block_bytes_));
    registrar.reason = error.sentence[0] ? error.sentence : "the driver gives no reason";
    slab.piece = (range.count + 1) / 2;
    if (range.count > least || ++slab.failures < kFailuresMax) return;
    slab.open = false;
    if (!std::exchange(slab.refused, true)) ++refused_;
    count(registrar, slab);
    registrar.warns = registrar.asked_again && !registrar.warned;
}

// For good.
bool HostPins::has_refused(const Registrar &registrar)
{
    return registrar.asked_again && std::any_of(registrar.slabs.begin(), registrar.slabs.end(),
                                                [](const Slab &slab) { return slab.refused; });
}

std::string HostPins::describe(const Registrar &registrar) const
{
    uint64_t pinned = 0;
    for (const auto &[first, count] : registrar.pinned) pinned += count;
    const auto there = static_cast<uint64_t>(std::count(gone_.begin(), gone_.end(), false));
    return format_text(
        "%" PRIu64 " of %" PRIu64 " bytes of the host tier (%.1f %%) are registered with device "
        "%u, and copies of the rest are slower: %s",
        pinned * block_bytes_, there * block_bytes_,
        100 * static_cast<double>(pinned) / static_cast<double>(std::max<uint64_t>(there, 1)),
        registrar.device.device, registrar.reason.c_str());
}

void HostPins::say(Registrar &registrar)
{
    registrar.warns = false;
    registrar.warned = true;
    const std::string remark = describe(registrar);
    const char *const name = registrar.device.ops->name;
    mutex_.unlock();
    log_.print(STW_LOG_WARNING, name, "%s", remark.c_str());
    mutex_.lock();
}

// Counts blocks that have memory, are not registered and may still be.
void HostPins::count(const Registrar &registrar, Slab &slab)
{
    const uint32_t end = slab.range.first + slab.range.count;
    uint32_t to_do = 0;
    if (slab.open || (slab.refused && !registrar.asked_again)) {
        to_do = static_cast<uint32_t>(
            std::count(gone_.begin() + slab.range.first, gone_.begin() + end, false));
        auto each = registrar.pinned.upper_bound(slab.range.first);
        if (each != registrar.pinned.begin()) --each;
        for (; each != registrar.pinned.end() && each->first < end; ++each) {
            const uint32_t begin = std::max(each->first, slab.range.first);
            const uint32_t last = std::min(each->first + each->second, end);
            to_do -= last > begin ? last - begin : 0;
        }
    }
    open_bytes_ += to_do * block_bytes_;
    open_bytes_ -= std::exchange(slab.to_do, to_do) * block_bytes_;
}

void HostPins::count(Registrar &registrar, Range range)
{
    const uint32_t end = range.first + range.count;
    for (uint32_t block = range.first; block < end;) {
        Slab &slab = slab_of(registrar, block);
        count(registrar, slab);
        block = slab.range.first + slab.range.count;
    }
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

// With the first driver.
HostPins::Range HostPins::extent(Range blocks) const
{
    Range whole = blocks;
    for (const auto &[first, count] : registrars_.front().pinned) {
        if (first >= blocks.first + blocks.count || first + count <= blocks.first) continue;
        const uint32_t end = std::max(whole.first + whole.count, first + count);
        whole.first = std::min(whole.first, first);
        whole.count = end - whole.first;
    }
    return whole;
}

HostPins::Range HostPins::registered_with(Range blocks) const
{
    MutexLock lock(mutex_);
    return extent(blocks);
}

bool HostPins::is_busy(Range range) const
{
    return busy_.first < range.first + range.count && range.first < busy_.first + busy_.count;
}

// After a refusal the thread registers the slabs as before.
void HostPins::join(Range blocks, Range quiet)
{
    MutexLock lock(mutex_);
    Registrar &registrar = registrars_.front();
    while (is_busy(blocks)) changed_.wait(mutex_);
    const Range whole = extent(blocks);
    const bool inside =
        whole.first >= quiet.first && whole.first + whole.count <= quiet.first + quiet.count;
    if (stops_ || pauses_ > 0 || !inside || whole.count > join_max_) return;
    if (are_joined(blocks.first, blocks.count)) return;
    drop(whole);
    stw_driver_error error = STW_DRIVER_ERROR_INIT;
    const Device device = registrar.device;
    const uint64_t begin = now_ns_();
    const stw_status code = device.ops->pin_host(device.memory, at(whole), bytes_of(whole), &error);
    ns_ += now_ns_() - begin;
    if (code >= 0)
        add(registrar, whole);
    else
        join_max_ = whole.count - 1;
    changed_.notify_all();
}

// No copy begins, and those that did are over. A lost device makes no copies any more.
void HostPins::hold_copies()
{
    for (Copies &copies : copies_) copies.mutex.lock();
    for (Copies &copies : copies_)
        if (copies.last) (void)copies.ops->wait(copies.memory, *copies.last);
}

void HostPins::resume_copies()
{
    for (Copies &copies : copies_) copies.mutex.unlock();
}

// ----------------------------------------------------------------------------------- budgets ----

HostPins::Pause::Pause(HostPins *pins) : pins_(pins)
{
    if (pins_ == nullptr) return;
    MutexLock lock(pins_->mutex_);
    ++pins_->pauses_;
}

HostPins::Pause::~Pause()
{
    if (pins_ == nullptr) return;
    {
        MutexLock lock(pins_->mutex_);
        --pins_->pauses_;
    }
    pins_->changed_.notify_all();
}

void HostPins::release(uint32_t first, uint32_t count)
{
    MutexLock lock(mutex_);
    drop({first, count});
}

void HostPins::gone(uint32_t first, uint32_t count)
{
    STW_ASSERT(first + count <= blocks_);
    MutexLock lock(mutex_);
    drop({first, count});
    for (uint32_t block = first; block < first + count; ++block) gone_[block] = true;
    for (Registrar &registrar : registrars_) this->count(registrar, Range{first, count});
}

void HostPins::back(uint32_t first, uint32_t count)
{
    {
        MutexLock lock(mutex_);
        for (uint32_t block = first; block < first + count; ++block) {
            if (!gone_[block]) continue;
            gone_[block] = false;
            for (Registrar &registrar : registrars_) reopen(registrar, slab_of(registrar, block));
        }
    }
    changed_.notify_all();
}

// Ends all registrations with one of the blocks; their other blocks are registered again later.
void HostPins::drop(Range range)
{
    const uint32_t end = range.first + range.count;
    while (is_busy(range)) changed_.wait(mutex_);
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
    hold_copies();
    by_block_.note(range.first, range.count, -1);
    registrar.device.ops->unpin_host(registrar.device.memory, at(range), bytes_of(range));
    resume_copies();
    registrar.pinned.erase(range.first);
    bytes_ -= bytes_of(range);
    for (uint32_t block = range.first; block < range.first + range.count; ++block)
        reopen(registrar, slab_of(registrar, block));
    if (&registrar == &registrars_.front()) by_block_.set_number(range.first, range.count, 0);
    changed_.notify_all();
}

// ------------------------------------------------------------------------------------- stats ----

HostPins::Stats HostPins::stats() const
{
    return {bytes_.load(), open_bytes_.load(), ns_.load(), refused_.load()};
}

std::string HostPins::remark(uint32_t device) const
{
    MutexLock lock(mutex_);
    for (const Registrar &registrar : registrars_)
        if (registrar.device.device == device && has_refused(registrar)) return describe(registrar);
    return "";
}

}  // namespace stepwell::memory
