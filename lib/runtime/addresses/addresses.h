// SPDX-License-Identifier: Apache-2.0
// Where bytes are: addresses of packs on devices that map or alias memory, and the only code that
// computes the address of a block, a piece or a view.
#pragma once

#include "lib/runtime/handles/lock.h"
#include "lib/runtime/recording/ground.h"
#include "lib/support/status.h"
#include "lib/update/tiers.h"

namespace stepwell::memory {
class AddressAlias;
}  // namespace stepwell::memory

namespace stepwell {

// The addresses at which a pack is visible.
struct PackAddresses {
    uint32_t blocks = 0;
    void *at[residency::kDevicesMax] = {};  // per device; null: none
    std::unique_ptr<memory::AddressAlias> shown[residency::kDevicesMax];
};

class AddressTable final : Grounded {
public:
    AddressTable(const Ground &ground);
    ~AddressTable();

    [[nodiscard]] uint64_t pack_offset(residency::TensorId tensor) const;
    char *pointer_of(residency::PlaceId place, residency::Slot slot,
                     const residency::Transfer &transfer) const STW_REQUIRES(runtime_lock);
    void *view_pointer(const RequestedRange &range, const residency::Grant &grant) const
        STW_REQUIRES(runtime_lock);
    // The address in the arena, which differs from view_pointer() where the tensor has an alias.
    void *arena_pointer(const RequestedRange &range, const residency::Grant &grant) const
        STW_REQUIRES(runtime_lock);
    memory::AddressAlias *shown_of(const RequestedRange &range, residency::PlaceId place) const;
    void *piece_pointer(const residency::Grant &grant, const update::Piece &piece) const
        STW_REQUIRES(runtime_lock);
    char *bytes_at(residency::TensorId tensor, const residency::Grant &grant);
    Status address_pack(residency::TensorId tensor, stw_tensor *handle) STW_REQUIRES(runtime_lock);
    void release_pack(residency::PackId pack) STW_REQUIRES(runtime_lock);

    [[nodiscard]] const PackAddresses &of_pack(residency::PackId pack) const
        STW_REQUIRES(runtime_lock)
    {
        return packs_[pack];
    }
    // Null: no tensor of the pack has a fixed address there.
    [[nodiscard]] memory::AddressAlias *alias_of(residency::PackId pack,
                                                 residency::PlaceId place) const
        STW_REQUIRES(runtime_lock);
    // Before the tiers are closed.
    void close() STW_REQUIRES(runtime_lock);

    [[nodiscard]] uint64_t metadata_bytes() const STW_REQUIRES(runtime_lock);
    // Bytes by which the table grows to hold that many packs.
    [[nodiscard]] uint64_t growth_bytes(size_t packs) const STW_REQUIRES(runtime_lock);
    void reserve(size_t packs) STW_REQUIRES(runtime_lock);

private:
    [[nodiscard]] bool is_at_address(residency::PlaceId place, residency::BlockId block) const
        STW_REQUIRES(runtime_lock);
    Status show_tensor(residency::TensorId tensor, stw_tensor *handle, residency::PlaceId place)
        STW_REQUIRES(runtime_lock);
    Status show_pack(residency::TensorId tensor, residency::PlaceId place,
                     std::unique_ptr<memory::AddressAlias> *shown_out) STW_REQUIRES(runtime_lock);

    std::vector<PackAddresses> packs_ STW_GUARDED_BY(runtime_lock);
    uint64_t shown_bytes_ STW_GUARDED_BY(runtime_lock) =
        0;  // aliases of packs with a fixed address
};

}  // namespace stepwell
