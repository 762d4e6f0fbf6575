// SPDX-License-Identifier: Apache-2.0
// Accesses to addresses of tensors without a view: each fault becomes a fetch.
#pragma once

#include "lib/runtime/dispatch/hook.h"
#include "lib/runtime/machine/touches.h"
#include "lib/runtime/recording/ground.h"

namespace stepwell {

class AddressTable;
class Sleepers;
class ViewEnds;
class Fetches;

class Faults final : public DispatchHook, public FaultServer, Grounded {
public:
    Faults(const Ground &ground, AddressTable &addresses, ViewEnds &ends, Sleepers &sleepers,
           Fetches &fetches)
        : Grounded(ground),
          addresses_(addresses),
          ends_(ends),
          sleepers_(sleepers),
          fetches_(fetches)
    {
    }

    void give_way() override;
    void unlocked() override;
    [[nodiscard]] residency::Instant due() const override STW_REQUIRES(runtime_lock);

private:
    void end_views(residency::Instant kept_until);
    bool show_block(residency::PlaceId place, residency::Slot slot, residency::PackId pack,
                    uint32_t index, bool writable) override STW_REQUIRES(runtime_lock);
    void hide_block(residency::PlaceId place, residency::Slot slot) override;
    [[nodiscard]] bool awaits_verdict(residency::TensorId tensor) const override
        STW_REQUIRES(runtime_lock);
    stw_tensor *tensor_at(uintptr_t address, residency::PlaceId *place_out)
        STW_REQUIRES(runtime_lock);
    Status serve(const MemoryFault &fault) override;
    bool interrupted_since(residency::Instant begin);
    bool is_waited_for(uint32_t owner, const stw_tensor *tensor);
    // touched: the block of the access.
    Status fetch_touched(const RequestedRange &range, residency::BlockId touched, uint32_t owner);
    bool is_shown(const RequestedRange &range) STW_EXCLUDES(runtime_lock);
    bool shows(const RequestedRange &range, residency::BlockId touched) STW_EXCLUDES(runtime_lock);
    Status fetch_or_fill(const RequestedRange &range, residency::BlockId touched, uint32_t owner);

    AddressTable &addresses_;
    ViewEnds &ends_;
    Sleepers &sleepers_;
    Fetches &fetches_;
};

}  // namespace stepwell
