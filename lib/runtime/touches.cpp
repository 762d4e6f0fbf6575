// SPDX-License-Identifier: Apache-2.0
// Faults served: which tensor, a fetch of it, and who keeps the view. One that waits for a view of
// another thread must not keep that thread's own fault waiting, so there is a thread for each.
#include "lib/runtime/touches.h"

#include "lib/runtime/runtime.h"
#include "lib/support/signals.h"

#include <algorithm>
#include <cstring>
#include <system_error>
#include <utility>

namespace stepwell {

using residency::PlaceId;

namespace {

thread_local bool serves = false;

}  // namespace

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
    const SignalsBlocked signals;
    try {
        threads_.emplace_back([this] { run(); });
    } catch (const std::system_error &error) {
        return Status::os_error(STW_ERROR_LIMIT, error.code().value(), "no thread for faults");
    }
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
        const Status status = runtime_.serve_touch(*fault);
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
    runtime_.dispatch_.mutex().assume_held();  // by the core, which is called under it
    return runtime_.show_block(place, slot, pack, index, writable);
}

void Touches::hide(PlaceId place, residency::Slot slot)
{
    runtime_.hide_block(place, slot);
}

bool Touches::in_the_way() const
{
    return any() || releasing_.load() > 0 || serving_.load() > (serves ? 1u : 0u);
}

bool Touches::is_served(const stw_tensor *tensor) const
{
    return std::find(served_.begin(), served_.end(), tensor) != served_.end();
}

Touches::Turn::Turn(Touches &touches, const stw_tensor *tensor) : touches_(touches), tensor_(tensor)
{
    MutexLock lock(touches_.mutex_);
    while (touches_.is_served(tensor_)) touches_.over_.wait(touches_.mutex_);
    touches_.served_.push_back(tensor_);
}

Touches::Turn::~Turn()
{
    {
        MutexLock lock(touches_.mutex_);
        std::vector<const stw_tensor *> &served = touches_.served_;
        served.erase(std::find(served.begin(), served.end(), tensor_));
    }
    touches_.over_.notify_all();
}

bool Touches::has(const stw_tensor *tensor, bool writes, std::vector<stw_view> *in_the_way)
{
    MutexLock lock(mutex_);
    const auto of_it = [&](const stw_view &view) { return view.tensor == tensor; };
    const auto found = std::find_if(views_.begin(), views_.end(), of_it);
    if (found == views_.end()) return false;
    if (!writes || found->access != STW_READ) return true;
    in_the_way->push_back(*found);
    views_.erase(found);
    return false;
}

void Touches::keep(const stw_view &view)
{
    MutexLock lock(mutex_);
    views_.push_back(view);
    any_ = true;
    ++changes_;
}

std::vector<stw_view> Touches::take()
{
    MutexLock lock(mutex_);
    ++releasing_;
    any_ = false;
    return std::exchange(views_, {});
}

void Touches::released()
{
    ++changes_;
    --releasing_;
}

// ---------------------------------------------------------------------------------- the runtime --

Status Runtime::open_touches(const stw_runtime_options &options)
{
    if ((options.flags & STW_RUNTIME_FAULT_IN) == 0) return {};
    if (options.group || options.replica_group) {
        return Status::error(STW_ERROR_UNSUPPORTED,
                             "options.flags has STW_RUNTIME_FAULT_IN, and options.group is given: "
                             "what all ranks fetch together no fault of one can; open the runtime "
                             "without one of them");
    }
    const bool any = std::any_of(tiers_.begin(), tiers_.end(), [](const memory::Tier &place) {
        return place.memory && (place.ops->capabilities & STW_MEMORY_CAN_PROTECT) != 0;
    });
    if (!any) {
        return Status::error(STW_ERROR_UNSUPPORTED,
                             "options.flags has STW_RUNTIME_FAULT_IN, and no device tier has "
                             "addresses whose access can be limited; use the driver cpu, or leave "
                             "the flag out");
    }
    touches_ = std::make_unique<Touches>(*this);
    STW_TRY(touches_->open());
    const MutexLock lock(dispatch_.mutex());
    dispatch_.core.set_aliases(touches_.get());
    return {};
}

bool Runtime::show_block(PlaceId place, residency::Slot slot, residency::PackId pack,
                         uint32_t index, bool writable)
{
    const memory::Tier &at = tiers_[place];
    char *address = static_cast<char *>(pack_addresses_[pack].at[place]) + index * block_bytes_;
    return at.ops->map_as(at.memory, slot, address, writable) == STW_OK;
}

void Runtime::hide_block(PlaceId place, residency::Slot slot)
{
    const memory::Tier &at = tiers_[place];
    (void)at.ops->home(at.memory, slot);
}

// Under the lock. Behind the end of a tensor the rest of its block is counted as its own.
stw_tensor *Runtime::tensor_at(uintptr_t address, PlaceId *place_out)
{
    stw_tensor *nearest = nullptr;
    uintptr_t begin = 0;
    for (stw_tensor *tensor = handles_.first(); tensor; tensor = tensor->notes.next) {
        const PackAddresses &pack = pack_addresses_[dispatch_.core.pack_of(tensor->id)];
        for (PlaceId place = 0; place < tiers_.host(); ++place) {
            const auto whole = reinterpret_cast<uintptr_t>(pack.at[place]);
            const auto own = reinterpret_cast<uintptr_t>(tensor->addresses[place]);
            const bool inside = own != 0 && own <= address &&
                                address - whole < pack.blocks * block_bytes_ && own > begin;
            if (!inside) continue;
            nearest = tensor;
            begin = own;
            *place_out = place;
        }
    }
    return nearest;
}

Status Runtime::serve_touch(const MemoryFault &fault)
try {
    Range range;
    bool writes = fault.writes;
    {
        const MutexLock lock(dispatch_.mutex());
        range.tensor = tensor_at(fault.address, &range.place);
        if (!range.tensor) {
            return Status::error(STW_ERROR_INVALID,
                                 "address 0x%llx is no tensor's any more, and was touched",
                                 static_cast<unsigned long long>(fault.address));
        }
        const auto own = reinterpret_cast<uintptr_t>(range.tensor->addresses[range.place]);
        const residency::TensorBlocks blocks = dispatch_.core.blocks_of(range.tensor->id);
        const auto block = static_cast<residency::BlockId>(
            blocks.first + (blocks.offset + (fault.address - own)) / block_bytes_);
        // Where the processor does not say: what can be read faults because it is written.
        writes |= !FaultWatch::kSaysWrites && dispatch_.core.is_mapped(block, range.place);
        TensorNotes &notes = range.tensor->notes;
        ++(writes ? notes.write_touches : notes.read_touches);
    }
    range.access = writes ? STW_READ_WRITE : STW_READ;
    range.element_begin = range.tensor->shard_begin;
    range.element_count = range.tensor->elements;
    range.byte_count = range.tensor->bytes;
    Status status;
    if (range.tensor->flags & STW_TENSOR_NO_ADDRESS) {
        status = Status::error(STW_ERROR_INVALID, "it has STW_TENSOR_NO_ADDRESS");
    } else if (writes && (range.tensor->flags & STW_TENSOR_READ_ONLY) != 0) {
        status = Status::error(STW_ERROR_INVALID, "it is read-only");
    } else {
        status = fetch_touched(range);
    }
    // What was never written is written now, and its other bytes must be nobody else's.
    if (status.code() == STW_ERROR_EMPTY && writes) {
        stw_copy_options options = STW_COPY_OPTIONS_INIT;
        status = fill(range.tensor, 0.0, options);
        if (status.ok()) status = fetch_touched(range);
    }
    if (status.ok()) return status;
    status = Status::error(status.code(),
                           "tensor '%s' was %s at its address 0x%llx without a view, and cannot "
                           "be fetched for that: %s",
                           range.tensor->name.c_str(), writes ? "written" : "read",
                           static_cast<unsigned long long>(fault.address), status.sentence());
    dispatch_.act([&](Core &, Commands &)
                      STW_REQUIRES(runtime_lock) { errors_.add(range.tensor->id, status); });
    return status;
} catch (const std::bad_alloc &) {
    return Status::error(STW_ERROR_MEMORY, "no memory to serve a touch without a view");
}

Status Runtime::fetch_touched(const Range &range)
{
    const Touches::Turn turn(*touches_, range.tensor);
    std::vector<stw_view> weaker;
    if (touches_->has(range.tensor, range.access != STW_READ, &weaker)) return {};
    if (!weaker.empty()) (void)release(weaker.data(), 1, STW_STREAM_SYNCED, 0);
    FetchPlan plan;
    plan.ranges.push_back(range);
    plan.step = current_step();  // whose own views would be waited for in vain
    plan.flags = STW_FETCH_HAND_OVER;
    plan.beside_readers = true;  // a program may write memory of which it holds a READ view
    stw_view view{};
    residency::FetchId before = 0;
    {
        const MutexLock lock(dispatch_.mutex());
        before = dispatch_.core.last_fetch();
    }
    STW_TRY(fetch(std::move(plan), &view));
    views_.slot(ViewTable::index_of(view.cookie)).step = 0;  // nobody fetched it
    touches_->keep(view);
    // A fetch that was asked for in the meantime could not end this view, so end it here. An older
    // one waits for a view of the program: for that this view would end, and be made, again and
    // again.
    dispatch_.act([&](Core &core, Commands &) STW_REQUIRES(runtime_lock) {
        if (core.is_awaited(range.tensor->id, before)) touches_give_way_.store(true);
    });
    return {};
}

void Runtime::release_touches()
{
    if (!touches_ || !touches_->any()) return;
    std::vector<stw_view> views = touches_->take();
    (void)release(views.data(), static_cast<uint32_t>(views.size()), STW_STREAM_SYNCED, 0);
    touches_->released();
}

}  // namespace stepwell
