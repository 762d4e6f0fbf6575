// SPDX-License-Identifier: Apache-2.0
// Read views of resident tensors, without the lock, an allocation or a system call.
#pragma once

#include "lib/residency/types.h"
#include "lib/runtime/recording/ground.h"
#include "lib/support/status.h"

namespace stepwell::memory {
struct Tier;
}  // namespace stepwell::memory

namespace stepwell {

struct HitChain;
class StreamOrder;
class ViewEnds;

class HitPath final : Grounded {
public:
    HitPath(const Ground &ground, StreamOrder &streams, ViewEnds &ends)
        : Grounded(ground), streams_(streams), ends_(ends)
    {
    }

    // False: not a hit. The caller then fetches the regular way.
    bool fetch_hit(const RequestedRange &range, uint64_t step, void *stream, stw_view *view_out);
    static constexpr uint32_t kHitsAtOnceMax = 16;
    bool fetch_hits(const RequestedRange *ranges, uint32_t n, uint64_t step, void *stream,
                    stw_view *views_out);
    // Hits of any number of ranges: pinned one by one, opened once all are pinned.
    bool add_hit(HitChain *chain, const RequestedRange &range, uint64_t step);
    void open_hits(const HitChain &chain, stw_view *views_out);
    void undo_hits(const HitChain &chain);
    static void describe_view(const RequestedRange &range, const memory::Tier &place, void *pointer,
                              uint64_t cookie, stw_view *view_out);

private:
    uint32_t pin_hit(const RequestedRange &range, uint64_t step);
    uint32_t pin_hit_on(const RequestedRange &range, uint64_t step, void *stream);
    void undo_hit(uint32_t index);
    void open_hit(uint32_t index, const RequestedRange &range, uint64_t step, stw_view *view_out);
    void push_after_drain(ThreadState &state, residency::TensorId tensor, residency::PlaceId place,
                          uint64_t step);

    StreamOrder &streams_;
    ViewEnds &ends_;
};

}  // namespace stepwell
