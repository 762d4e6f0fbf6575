// SPDX-License-Identifier: Apache-2.0
// TensorLocks: many readers or one writer per tensor, and one place at a time for a block that is
// written. Locks are taken for all requests of a fetch at once, or for none. The locks themselves
// are counts in the tensors and blocks.
#pragma once

#include "lib/residency/gates.h"

#include <string>

namespace stepwell::residency {

class TensorLocks {
public:
    TensorLocks(const Places &places, TensorTable &tensors, BlockTable &blocks, PackTable &packs,
                Gates &gates)
        : places_(places), tensors_(tensors), blocks_(blocks), packs_(packs), gates_(gates)
    {
    }

    [[nodiscard]] Status check_request(const FetchAsked &asked) const;
    [[nodiscard]] PlaceId choose_cpu_place(const Request &request) const;
    bool may_lock(Fetch &fetch);
    [[nodiscard]] Status conflict_within(const Fetch &fetch) const;
    [[nodiscard]] Status readable(const Fetch &fetch) const;
    [[nodiscard]] bool is_overtaken(const Fetch &fetch) const;  // which may_lock() refused
    void lock(Fetch &fetch);
    // An access without a view, whose tensor was claimed while it was brought.
    [[nodiscard]] bool was_claimed_since(const Fetch &fetch) const;
    void unlock(const Request &request, PlaceId place, ClaimId claim);
    // Null: of a fetch that was answered.
    [[nodiscard]] bool waits_for_claim(const Fetch *fetch, TensorId tensor) const;
    [[nodiscard]] Status busy_refusal(const Fetch &fetch) const;
    [[nodiscard]] std::string describe_conflict(const Fetch &fetch) const;

private:
    static bool waits_for_claim(const Fetch &fetch, const Tensor &tensor, bool writes);
    bool conflicts_with(const Fetch &fetch, const Request &request, PlaceId place);
    bool gates_in_the_way(TensorId tensor, const Fetch &fetch, const Request &request,
                          PlaceId place);
    void follow_neighbour(Fetch &fetch, size_t index);

    const Places &places_;
    TensorTable &tensors_;
    BlockTable &blocks_;
    PackTable &packs_;
    Gates &gates_;
};

}  // namespace stepwell::residency
