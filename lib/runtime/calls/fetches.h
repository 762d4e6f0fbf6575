// SPDX-License-Identifier: Apache-2.0
// Fetches that are not hits: what is asked of the core, and how its answer becomes views.
#pragma once

#include "lib/runtime/dispatch/hook.h"
#include "lib/runtime/recording/ground.h"

#include <atomic>

namespace stepwell {

class AddressTable;
class Placement;
class PrivateBuffers;
class OwedZeros;
class TensorRegistry;
class StreamOrder;
class Sleepers;
class HitPath;
class Snapshots;
class Prefetcher;
class Wholes;

class Fetches final : public DispatchHook, public AnswerListener, Grounded {
public:
    Fetches(const Ground &ground, AddressTable &addresses, Placement &placement,
            PrivateBuffers &buffers, OwedZeros &zeros, TensorRegistry &registry,
            StreamOrder &streams, Sleepers &sleepers, HitPath &hits, Snapshots &snapshots,
            Prefetcher &prefetcher, Wholes &wholes)
        : Grounded(ground),
          addresses_(addresses),
          placement_(placement),
          buffers_(buffers),
          zeros_(zeros),
          registry_(registry),
          streams_(streams),
          sleepers_(sleepers),
          hits_(hits),
          snapshots_(snapshots),
          prefetcher_(prefetcher),
          wholes_(wholes)
    {
    }

    Status fetch(FetchPlan plan, stw_view *views_out);
    Status fits(const std::vector<RequestedRange> &ranges);
    Status prefetch(const std::vector<RequestedRange> &ranges);
    Status share(const stw_view &view, stw_view *view_out);
    Status evict(stw_tensor *const *tensors, uint32_t n, residency::PlaceId place,
                 uint64_t timeout_ns);
    Status start_fetch(Waiter &waiter);
    Status sticky_errors(const FetchPlan &plan);
    Status finish_fetch(Waiter &waiter, stw_view *views_out);
    void undo_grants(const FetchPlan &plan, const std::vector<residency::Grant> &grants);

    // For a fetch that may wait for views that the library keeps: they end when the lock is
    // released.

    bool refused(residency::Refused &refused, Commands &out) override STW_REQUIRES(runtime_lock);
    void answered(Waiter &waiter) override STW_REQUIRES(runtime_lock);

private:
    void list_blocks(stw_tensor *const *tensors, uint32_t n, residency::PlaceId place,
                     std::vector<residency::BlockId> *blocks) const;
    [[nodiscard]] std::string name_at(residency::BlockId block) const STW_REQUIRES(runtime_lock);
    bool ask_privately(residency::Refused &refused, Commands &out) STW_REQUIRES(runtime_lock);
    residency::FetchAsked asked_of(const Waiter &waiter) const;
    void ask(Waiter &waiter, Commands &out) STW_REQUIRES(runtime_lock);
    Status prepare_fetch(Waiter &waiter);
    Status prepare_reduces(FetchPlan &plan);
    void count_pinning_views(ErrorDetail &detail);
    Status take_slots(size_t wanted, std::vector<uint32_t> &slots);
    Status fill_views(Waiter &waiter, stw_view *views_out);
    // The addresses of what was granted: in the view, and in the arena.
    struct Located {
        void *pointer = nullptr;
        const void *there = nullptr;
    };
    Located locate(const RequestedRange &range, const residency::Grant &grant, const Waiter &waiter)
        STW_REQUIRES(runtime_lock);
    void open_view(uint32_t slot, const RequestedRange &range, const residency::Grant &grant,
                   const Located &located, const Waiter &waiter, stw_view *views_out);
    Status start_sum(const RequestedRange &range, const residency::Grant &grant);
    Status begin_streams(const Waiter &waiter);
    Status fetch_once(FetchPlan plan, stw_view *views_out);

    AddressTable &addresses_;
    Placement &placement_;
    PrivateBuffers &buffers_;
    OwedZeros &zeros_;
    TensorRegistry &registry_;
    StreamOrder &streams_;
    Sleepers &sleepers_;
    HitPath &hits_;
    Snapshots &snapshots_;
    Prefetcher &prefetcher_;
    Wholes &wholes_;
};

}  // namespace stepwell
