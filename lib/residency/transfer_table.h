// SPDX-License-Identifier: Apache-2.0
// TransferTable: the transfers in flight by number, and how many of them are write-backs.
#pragma once

#include "lib/residency/addresses.h"

#include <unordered_map>
#include <vector>

namespace stepwell::residency {

class TransferTable {
public:
    using Flights = std::unordered_map<TransferId, Flight>;

    TransferTable(Places &places, BlockTable &blocks, const PackTable &packs,
                  const Addresses &addresses);

    void start(Transfer transfer, bool evicts, bool writes_back, Commands &out);
    [[nodiscard]] Flight *find(TransferId id);
    Flight finish(TransferId id);  // one that is in flight
    [[nodiscard]] const Flights &flights() const { return flights_; }
    [[nodiscard]] bool empty() const { return flights_.empty(); }
    [[nodiscard]] uint32_t write_backs() const { return write_backs_; }

    // Of the transfers of the block; queued or not, they are of class kDemand now.
    void promote(BlockId block, Commands &out);
    void promote(const std::vector<Target> &targets, std::vector<TransferId> *promoted);
    void hasten_write_backs(const Fetch &fetch, PlaceId place, Commands &out);
    [[nodiscard]] bool is_rearranging(PlaceId place) const;
    [[nodiscard]] bool is_wanted(PlaceId place) const;

private:
    static constexpr size_t kSpareFlights = 64;

    Flight &new_flight(TransferId id);

    Places &places_;
    BlockTable &blocks_;
    const PackTable &packs_;
    const Addresses &addresses_;
    Flights flights_;
    std::vector<Flights::node_type> spare_;  // of ended transfers, kept for their memory
    TransferId next_ = 1;
    uint32_t write_backs_ = 0;
};

}  // namespace stepwell::residency
