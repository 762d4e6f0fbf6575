// SPDX-License-Identifier: Apache-2.0
// Reads of complete tensors, contributions to gradients, and gradients whose memory the program
// hands over; also over ranks.
#pragma once

#include "lib/residency/types.h"
#include "lib/runtime/handles/lock.h"
#include "lib/runtime/recording/ground.h"
#include "lib/support/status.h"

#include <stepwell/copy.h>

#include <map>

namespace stepwell::memory {
class CallerMemory;
}  // namespace stepwell::memory
namespace stepwell::update {
struct Accumulation;
}  // namespace stepwell::update

namespace stepwell {

struct Adopted;
class Placement;
class PrivateBuffers;
class OwedZeros;
class ViewEnds;
class Sleepers;
class TierAccess;
class ChunkCopies;
class Snapshots;
class Collectives;
class Sums;
class Fetches;

class Reductions final : Grounded {
public:
    Reductions(const Ground &ground, Placement &placement, PrivateBuffers &buffers,
               OwedZeros &zeros, ViewEnds &ends, Sleepers &sleepers, TierAccess &pieces,
               ChunkCopies &chunks, Snapshots &snapshots, Collectives &collectives, Sums &sums,
               Fetches &fetches)
        : Grounded(ground),
          placement_(placement),
          buffers_(buffers),
          zeros_(zeros),
          ends_(ends),
          sleepers_(sleepers),
          pieces_(pieces),
          chunks_(chunks),
          snapshots_(snapshots),
          collectives_(collectives),
          sums_(sums),
          fetches_(fetches)
    {
    }

    Status read(stw_tensor *tensor, void *destination, const stw_copy_options &options);
    Status reduce(stw_tensor *gradient, const void *local, const stw_reduce_options &options);
    Status adopt(stw_tensor *gradient, const void *local, const stw_reduce_options &options,
                 stw_deleter_fn deleter, void *user);

    // The bytes at that place that stw_reduce_adopt() holds: their deleters have not run yet.
    [[nodiscard]] uint64_t adopted_at(residency::PlaceId place) const STW_REQUIRES(runtime_lock);
    // The memory of a contribution was given back.
    void give_adopted(const memory::CallerMemory &memory, uint64_t bytes);

private:
    [[nodiscard]] uint64_t adopted_max(const memory::CallerMemory &memory) const
        STW_REQUIRES(runtime_lock);
    Status take_adopted(const stw_tensor &gradient, const memory::CallerMemory &memory,
                        uint64_t bytes, uint64_t timeout_ns);
    Status start_adopted(update::Accumulation &work, std::unique_ptr<Adopted> &mine);
    Status adopt_here(stw_tensor *gradient, update::Accumulation &work,
                      std::unique_ptr<Adopted> &mine);
    Status adopt_on_ranks(stw_tensor *gradient, update::Accumulation &work, bool more,
                          std::unique_ptr<Adopted> &mine);
    Status check_whole(const stw_tensor &tensor, uint32_t tier, const char *instead) const;
    Status read_whole(stw_tensor *tensor, void *destination, collective::Range asked,
                      const stw_copy_options &options);
    Status reduce_over_ranks(stw_tensor *gradient, const void *local,
                             const stw_reduce_options &options);

    Placement &placement_;
    PrivateBuffers &buffers_;
    OwedZeros &zeros_;
    ViewEnds &ends_;
    Sleepers &sleepers_;
    TierAccess &pieces_;
    ChunkCopies &chunks_;
    Snapshots &snapshots_;
    Collectives &collectives_;
    Sums &sums_;
    Fetches &fetches_;
    std::map<residency::PlaceId, uint64_t> adopted_ STW_GUARDED_BY(runtime_lock);
};

}  // namespace stepwell
