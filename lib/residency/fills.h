// SPDX-License-Identifier: Apache-2.0
// Fills: starts the transfer that brings a block what a fetch needs of it, or joins one that is
// under way, and chooses another source when one failed. Owns nothing.
#pragma once

#include "lib/residency/occupancy.h"
#include "lib/residency/transfer_table.h"

#include <string>

namespace stepwell::residency {

class Fills {
public:
    Fills(Places &places, const TensorTable &tensors, BlockTable &blocks, const PackTable &packs,
          const Addresses &addresses, TransferTable &transfers, Occupancy &occupancy)
        : places_(places),
          tensors_(tensors),
          blocks_(blocks),
          packs_(packs),
          addresses_(addresses),
          transfers_(transfers),
          occupancy_(occupancy)
    {
    }

    [[nodiscard]] bool satisfied(const Target &target) const;
    void start(Fetch &fetch, Target &target, Commands &out);
    void note_failure(Fetch &fetch, Target &target, const Flight &failed, const Status &status);

private:
    [[nodiscard]] const std::string &hurt_name(const Fetch &fetch, const Target &target) const;

    Places &places_;
    const TensorTable &tensors_;
    BlockTable &blocks_;
    const PackTable &packs_;
    const Addresses &addresses_;
    TransferTable &transfers_;
    Occupancy &occupancy_;
};

}  // namespace stepwell::residency
