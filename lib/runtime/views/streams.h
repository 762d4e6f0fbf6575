// SPDX-License-Identifier: Apache-2.0
// The order of work on devices with streams when a view is opened and when it ends.
#pragma once

#include "lib/memory/streams.h"
#include "lib/runtime/recording/ground.h"
#include "lib/support/status.h"

#include <functional>

namespace stepwell {

class AddressTable;

class StreamOrder final : Grounded {
public:
    StreamOrder(const Ground &ground, AddressTable &addresses)
        : Grounded(ground), addresses_(addresses)
    {
    }

    // INVALID: not a stream of a device of this runtime. At a place: STW_STREAM_HOST is INVALID
    // too if the place has streams.
    Status check_stream(void *stream);
    Status forget_stream(void *stream);
    Status check_stream_at(residency::PlaceId place, void *stream);
    // The pin continues in `moved_out`, which counts as an export; `view` and its copies are
    // invalid. The stream is ordered after the work of the view's own.
    Status begin_export(const stw_view &view, void *stream);
    Status show_range(const RequestedRange &range, residency::PlaceId place,
                      memory::SlotRange slots);
    bool is_ordered(uint32_t index, const RequestedRange &range, memory::DeviceStreams::Id stream);
    void join_registrations(const RequestedRange &range, const residency::Grant &grant);
    [[nodiscard]] bool is_joined(const RequestedRange &range) const;
    // For work that no caller could repeat: retries while a stream records a graph, until the
    // default timeout has passed.
    Status when_not_busy(const std::function<Status()> &order) const;
    Status begin_whole(const RequestedRange &range, const residency::Grant &grant, void *stream);
    Status stream_id(residency::PlaceId place, void *stream, memory::DeviceStreams::Id *id_out);
    [[nodiscard]] memory::SlotRange slots_of(const ViewSlot &view) const;

private:
    AddressTable &addresses_;
};

}  // namespace stepwell
