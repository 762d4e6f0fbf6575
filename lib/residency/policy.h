// SPDX-License-Identifier: Apache-2.0
// The interface that says what is evicted first: the core asks, schedule/ answers. Pure and fast:
// called under the shell's lock for a bounded number of candidates per eviction.
#pragma once

#include "lib/residency/types.h"

namespace stepwell::residency {

class VictimPolicy {
public:
    virtual ~VictimPolicy() = default;
    // How far away the next use of the tensor is, in accesses from now; kNever: not known. Among
    // candidates the farthest known use leaves first; where none is known, the least recently used.
    [[nodiscard]] virtual uint64_t next_use(TensorId tensor) const = 0;

    // True: everything at a place stands in an order by worth, the least leaves first, whatever
    // next_use says; else only the coldest are compared.
    [[nodiscard]] virtual bool plans() const { return false; }
    // Never NaN. Above 0 it stays as long as anything else can leave, and is not written back
    // early. Asked when the tensor was made or used, so it changes only then, or with replan().
    [[nodiscard]] virtual double worth(TensorId, PlaceId) const { return 0; }
    // So much more may a clean block be worth and still leave before a dirty one: what a write-back
    // costs.
    [[nodiscard]] virtual double write_back_worth() const { return 0; }
};

// Knows nothing of the future, so recency decides.
class LeastRecentlyUsed final : public VictimPolicy {
public:
    [[nodiscard]] uint64_t next_use(TensorId) const override { return kNever; }
};

}  // namespace stepwell::residency
