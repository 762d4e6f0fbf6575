// SPDX-License-Identifier: Apache-2.0
// Accesses to addresses of tensors without a view: a fault becomes a fetch.
#pragma once

#include "lib/runtime/dispatch/dispatcher.h"
#include "lib/runtime/machine/machine.h"
#include "lib/runtime/machine/touches.h"

namespace stepwell {

class ViewTable;
class HandleTable;
class AccessRecorder;
class AddressTable;
class BackgroundErrors;
class ViewEnds;
class ChunkCopies;
class Fetches;

class Faults final : public DispatchHook, public FaultServer {
public:
    Faults(Dispatcher &dispatch, HandleTable &handles, ViewTable &views, Machine &machine,
           AccessRecorder &recorder, AddressTable &addresses, BackgroundErrors &errors,
           ViewEnds &ends, ChunkCopies &chunks, Fetches &fetches)
        : dispatch_(dispatch),
          handles_(handles),
          views_(views),
          machine_(machine),
          recorder_(recorder),
          addresses_(addresses),
          errors_(errors),
          ends_(ends),
          chunks_(chunks),
          fetches_(fetches)
    {
    }
    Faults(const Faults &) = delete;
    Faults &operator=(const Faults &) = delete;

    void give_way() override;

private:
    bool show_block(residency::PlaceId place, residency::Slot slot, residency::PackId pack,
                    uint32_t index, bool writable) override STW_REQUIRES(runtime_lock);
    void hide_block(residency::PlaceId place, residency::Slot slot) override;
    stw_tensor *tensor_at(uintptr_t address, residency::PlaceId *place_out)
        STW_REQUIRES(runtime_lock);
    Status serve(const MemoryFault &fault) override;
    Status fetch_touched(const Range &range);

    Dispatcher &dispatch_;
    HandleTable &handles_;
    ViewTable &views_;
    Machine &machine_;
    AccessRecorder &recorder_;
    AddressTable &addresses_;
    BackgroundErrors &errors_;
    ViewEnds &ends_;
    ChunkCopies &chunks_;
    Fetches &fetches_;
};

}  // namespace stepwell
