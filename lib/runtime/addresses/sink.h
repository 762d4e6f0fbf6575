// SPDX-License-Identifier: Apache-2.0
// Carries out what the residency core commands: submits transfers to the engine, commits and
// decommits memory, turns completed transfers into events.
#pragma once

#include "lib/residency/command_loop.h"
#include "lib/runtime/handles/lock.h"
#include "lib/runtime/recording/ground.h"

struct stw_driver_error;

namespace stepwell::transfer {
struct Completion;
struct Job;
struct Span;
}  // namespace stepwell::transfer

namespace stepwell {

class AddressTable;

// A higher room with tables by pack.
class PackObserver {
public:
    virtual ~PackObserver() = default;
    virtual void pack_freed(residency::PackId pack) STW_REQUIRES(runtime_lock) = 0;
};

class TransferSink final : public residency::CommandSink, Grounded {
public:
    TransferSink(const Ground &ground, AddressTable &addresses)
        : Grounded(ground), addresses_(addresses)
    {
    }

    // Called by the command loop.
    void forget(const residency::Forget &forget) override;
    void swap_memory(std::vector<residency::Swap> &swaps) override;
    void pack_freed(residency::PackId pack) override STW_REQUIRES(runtime_lock);
    void submit(std::vector<residency::Transfer> &transfers, Commands &out) override
        STW_REQUIRES(runtime_lock);
    void promote(residency::TransferId transfer) override;
    void failed(const residency::BackgroundError &error) override STW_REQUIRES(runtime_lock);

    // Decommits and recommits the memory of free slots. Any thread.
    stw_status give_back(residency::PlaceId place, residency::Slot first, uint32_t count);
    stw_status take_back(residency::PlaceId place, residency::Slot first, uint32_t count,
                         stw_driver_error *error);
    // For tensors that were never used. Allocates nothing.
    void forget_unused(const Commands &out) STW_REQUIRES(runtime_lock);

    // Called by the engine; `user` is the sink.
    static void engine_done(void *user, transfer::Completion *list, uint32_t n);
    static void engine_span(void *user, const transfer::Span &span);

    [[nodiscard]] residency::Instant now() const override;
    void add(PackObserver &observer) { observers_.push_back(&observer); }

private:
    transfer::Job job_of(const residency::Transfer &transfer) const STW_REQUIRES(runtime_lock);
    void end_transfers(const transfer::Completion *list, uint32_t n) STW_EXCLUDES(runtime_lock);

    AddressTable &addresses_;
    std::vector<PackObserver *> observers_;
};

}  // namespace stepwell
