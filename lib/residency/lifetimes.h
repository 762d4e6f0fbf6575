// SPDX-License-Identifier: Apache-2.0
// Lifetimes: makes tensors and destroys them, and changes what holds for a tensor as a whole: its
// policy, whether it is frozen, its contents. Owns the set of tensors whose zeros must be written.
#pragma once

#include "lib/residency/fetch_runner.h"
#include "lib/residency/promises.h"

#include <set>

namespace stepwell::residency {

class Lifetimes {
public:
    Lifetimes(Places &places, TensorTable &tensors, BlockTable &blocks, PackTable &packs,
              Promises &promises, Gates &gates, RecencyLists &recency, VictimOrder &order,
              Occupancy &occupancy, const FetchQueue &fetches, WriteBack &write_back,
              FetchRunner &runner)
        : places_(places),
          tensors_(tensors),
          blocks_(blocks),
          packs_(packs),
          promises_(promises),
          gates_(gates),
          recency_(recency),
          order_(order),
          occupancy_(occupancy),
          fetches_(fetches),
          write_back_(write_back),
          runner_(runner)
    {
    }

    Result<TensorId> create(TensorSpec spec);
    Result<TensorId> restore(TensorSpec spec, const Stored &stored);
    Status destroy(TensorId tensor, Commands &out);
    Status may_destroy(TensorId tensor, Commands &out);
    void free_pack(PackId pack, Commands &out);
    void settle(const std::vector<PackId> &moved, Commands &out);

    Status discard(TensorId tensor, Commands &out);
    void drop_contents(TensorId tensor, Commands &out);
    void fail(TensorId tensor, const Status &cause);
    void miss(TensorId tensor, const Status &cause);
    void mark_valid(TensorId tensor);
    // Empty ones that read as zeros: these have to be written before the next use.
    [[nodiscard]] const std::set<TensorId> &owed_zeros() const { return owed_zeros_; }
    void give_zeros(TensorId tensor) { owed_zeros_.erase(tensor); }

    Status set_policy(TensorId tensor, const Policy &policy);
    Status freeze(TensorId tensor, bool frozen);
    void advise(TensorId tensor, Advice advice, Commands &out);

private:
    Result<PackId> new_pack(const TensorSpec &spec, const PackKey &key, bool shared, bool open);
    TensorId take_tensor(TensorSpec &&spec, PackId pack, uint64_t offset);
    void bury(PackId pack, Commands &out);
    void drop_hints(TensorId tensor, Commands &out);

    Places &places_;
    TensorTable &tensors_;
    BlockTable &blocks_;
    PackTable &packs_;
    Promises &promises_;
    Gates &gates_;
    RecencyLists &recency_;
    VictimOrder &order_;
    Occupancy &occupancy_;
    const FetchQueue &fetches_;
    WriteBack &write_back_;
    FetchRunner &runner_;
    std::set<TensorId> owed_zeros_;
};

}  // namespace stepwell::residency
