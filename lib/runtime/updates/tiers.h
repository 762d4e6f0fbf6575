// SPDX-License-Identifier: Apache-2.0
// The tiers as the update pipeline sees them: claims, and pieces wherever an update can work on
// them.
#pragma once

#include "lib/runtime/recording/ground.h"
#include "lib/update/tiers.h"

namespace stepwell {

class AddressTable;
class PrivateBuffers;
class Sleepers;
class DeviceUpdates;

// Whether updates of n tensors could be set back with these budgets, by place, in blocks. Older
// contents are read to the host tier, unless it has no budget or their policy does not allow it, as
// it does for `to_host` of them; the others are wherever they were updated.
[[nodiscard]] bool may_undo(const memory::TierSet &tiers, const std::vector<uint64_t> &rooms,
                            uint32_t n, uint32_t to_host);

class TierAccess final : public update::Tiers, Grounded {
public:
    TierAccess(const Ground &ground, AddressTable &addresses, PrivateBuffers &buffers,
               Sleepers &sleepers, DeviceUpdates &device_updates)
        : Grounded(ground),
          addresses_(addresses),
          buffers_(buffers),
          sleepers_(sleepers),
          device_updates_(device_updates)
    {
    }

    residency::ClaimId claim(const residency::TensorId *tensors, uint32_t n) override;
    void lend(residency::ClaimId claim, residency::TensorId tensor) override;
    void judge(
        const std::vector<std::pair<residency::ClaimId, residency::TensorId>> &written) override;
    void unclaim(residency::ClaimId claim, const residency::TensorId *tensors, uint32_t n,
                 uint64_t emptied) override;
    void fail(residency::TensorId tensor, const Status &cause) override;
    void miss(residency::TensorId tensor, const Status &cause) override;
    void empty(residency::TensorId tensor) override;
    void versions(residency::ClaimId claim, const residency::TensorId *tensors, uint32_t n,
                  uint64_t *versions_out) override;
    residency::Contents contents(residency::TensorId tensor) override;
    uint64_t version(residency::TensorId tensor) override;
    residency::TensorId make_older(residency::TensorId tensor, bool copied) override;
    void drop_older(residency::TensorId older) override;
    bool keep_older(const residency::TensorId *tensors, const residency::TensorId *older,
                    uint32_t n, uint64_t taken, update::OlderCopies *copies_out) override;
    void fetch(residency::ClaimId claim, const update::Piece *pieces, uint32_t n,
               residency::PlaceId place, residency::Class urgency, update::FetchDone done,
               void *user) override;
    void release(uint64_t ticket, uint64_t far_pieces) override;
    [[nodiscard]] bool moves() override;
    void updates_wait() override;
    residency::ClaimId claim_alone(residency::TensorId tensor);
    // Empties the tensor under the claim, and ends this, when what had the tensor before has ended:
    // earlier claims, views, hints.
    void empty_behind(residency::ClaimId claim, residency::TensorId tensor);
    // Tensors that are still to be emptied so, by no thread of the program.
    uint32_t emptying STW_GUARDED_BY(runtime_lock) = 0;

    [[nodiscard]] uint64_t block_bytes() const override;
    [[nodiscard]] uint64_t pack_offset(residency::TensorId tensor) const override;

private:
    residency::ClaimId take_claim(residency::ClaimKind kind, const residency::TensorId *tensors,
                                  uint32_t n) STW_REQUIRES(runtime_lock);

    AddressTable &addresses_;
    PrivateBuffers &buffers_;
    Sleepers &sleepers_;
    DeviceUpdates &device_updates_;
};

}  // namespace stepwell
