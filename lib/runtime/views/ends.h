// SPDX-License-Identifier: Apache-2.0
// The end of views: read views of resident tensors without the lock, other views by their kind.
#pragma once

#include "lib/memory/streams.h"
#include "lib/runtime/recording/ground.h"
#include "lib/support/status.h"

namespace stepwell {

struct Measured;
class AddressTable;
class PrivateBuffers;
class OwedZeros;
class TensorRegistry;
class StreamOrder;

// Ends the views of one kind that concern several ranks.
class ViewKind {
public:
    virtual ~ViewKind() = default;
    virtual Status end(const ViewSlot &view, ReleaseHint hint) = 0;
};

class ViewEnds final : Grounded {
public:
    ViewEnds(const Ground &ground, AddressTable &addresses, PrivateBuffers &buffers,
             OwedZeros &zeros, TensorRegistry &registry, StreamOrder &streams)
        : Grounded(ground),
          addresses_(addresses),
          buffers_(buffers),
          zeros_(zeros),
          registry_(registry),
          streams_(streams)
    {
    }

    Status release(stw_view *views, uint32_t n, void *stream, ReleaseHint hint);
    [[nodiscard]] Status check_open(const stw_view &view) const;
    [[nodiscard]] uint32_t dtype_of(const stw_view &view) const;  // of an open view
    Status move_to_export(stw_view *view, stw_view *moved_out);
    // followed: by another view of the same call.
    Status release_one(stw_view &view, void *stream, ReleaseHint hint, bool followed = false);
    Status end_view(uint32_t index, ViewSlot &slot, memory::DeviceStreams::Id stream,
                    ReleaseHint hint, bool followed = false);

    // Of gathered tensors, and of sums over ranks.
    void set_ranks(ViewKind &wholes, ViewKind &sums)
    {
        wholes_ = &wholes;
        sums_ = &sums;
    }

private:
    // For a device with streams; for a hit; for a view pinned by the core.
    void end_on_stream(const ViewSlot &slot, memory::DeviceStreams::Id stream, bool followed);
    Status end_hit(uint32_t index, const ViewSlot &slot, ThreadState *state, ReleaseHint hint);
    Status end_pinned(const ViewSlot &view, ReleaseHint hint);
    void end_touches_beside(const stw_tensor &tensor) STW_REQUIRES(runtime_lock);
    Status drop_contents(stw_tensor *tensor, Commands &out, Core &core) STW_REQUIRES(runtime_lock);
    Measured measure_gradient(const ViewSlot &view, ReleaseHint hint);
    Status release_reduce(const ViewSlot &slot, ReleaseHint hint);
    Status release_converted(const ViewSlot &slot, ReleaseHint hint);
    Status release_copy(stw_view &view, ReleaseHint hint);

    AddressTable &addresses_;
    PrivateBuffers &buffers_;
    OwedZeros &zeros_;
    TensorRegistry &registry_;
    StreamOrder &streams_;
    ViewKind *wholes_ = nullptr;  // null: there are no ranks
    ViewKind *sums_ = nullptr;
};

}  // namespace stepwell
