// SPDX-License-Identifier: Apache-2.0
// This rank's shards, in pieces: fetched for collectives, copied, hinted.
#pragma once

#include "lib/residency/types.h"
#include "lib/runtime/recording/ground.h"
#include "lib/support/status.h"

namespace stepwell {

class AddressTable;
class GroupMemory;

class Shards final : Grounded {
public:
    Shards(const Ground &ground, AddressTable &addresses, GroupMemory &group_memory)
        : Grounded(ground), addresses_(addresses), group_memory_(group_memory)
    {
    }

    Status take_pieces(Waiter &waiter, residency::FetchAsked &asked);
    void give_pieces(const Waiter &waiter, const residency::FetchAsked &asked, bool abandon);
    Status copy_shard(const stw_tensor &tensor, residency::ClaimId claim, uint64_t begin,
                      uint64_t bytes, char *memory, bool writes);
    Status read_shard(const stw_tensor &tensor, residency::ClaimId claim, uint64_t begin,
                      uint64_t count, char *memory);
    void cancel_hints(residency::ClaimId claim, Commands &out) STW_REQUIRES(runtime_lock);

private:
    Status piece_of_shard(const stw_tensor &tensor, residency::FetchAsked asked, Waiter &waiter,
                          residency::FetchAsked *asked_out);
    void hint_shards();

    AddressTable &addresses_;
    GroupMemory &group_memory_;
};

}  // namespace stepwell
