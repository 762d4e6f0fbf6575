// SPDX-License-Identifier: Apache-2.0
#include "lib/runtime/addresses/addresses.h"

#include "lib/residency/core.h"
#include "lib/runtime/dispatch/waiter.h"
#include "lib/runtime/machine/touches.h"
#include "lib/runtime/recording/grounds.h"
#include "lib/support/growth.h"

namespace stepwell {

using residency::PlaceId;
using residency::TensorId;

AddressTable::AddressTable(const Ground &ground) : Grounded(ground) {}
AddressTable::~AddressTable() = default;

uint64_t AddressTable::pack_offset(residency::TensorId tensor) const
{
    MutexLock lock(dispatch_.mutex());
    return dispatch_.core.pack_offset(tensor);
}

void *AddressTable::piece_pointer(const residency::Grant &grant, const update::Piece &piece) const
{
    const memory::Tier &at = machine_.tiers[grant.place];
    const residency::TensorBlocks blocks = dispatch_.core.blocks_of(piece.tensor);
    const auto block = static_cast<residency::BlockId>(
        blocks.first + (blocks.offset + piece.byte_begin) / machine_.block_bytes);
    if (!at.maps || !is_at_address(grant.place, block)) {
        return at.base + static_cast<uint64_t>(grant.slot) * machine_.block_bytes +
               grant.slot_offset;
    }
    const residency::PackId pack = dispatch_.core.pack_of(piece.tensor);
    return static_cast<char *>(packs_[pack].at[grant.place]) +
           dispatch_.core.pack_offset(piece.tensor) + piece.byte_begin;
}

// All tensors of a pack that have a fixed address have the pack's.
Status AddressTable::show_tensor(TensorId id, stw_tensor *handle, PlaceId place)
{
    std::unique_ptr<memory::AddressAlias> &shown = packs_[dispatch_.core.pack_of(id)].shown[place];
    if (!shown) STW_TRY(show_pack(id, place, &shown));
    handle->shown[place] = shown.get();
    handle->addresses[place] = shown->address() + dispatch_.core.pack_offset(id);
    return {};
}

Status AddressTable::show_pack(TensorId id, PlaceId place,
                               std::unique_ptr<memory::AddressAlias> *shown_out)
try {
    const memory::Tier &at = machine_.tiers[place];
    const uint32_t blocks = dispatch_.core.pack_blocks(id);
    const uint64_t bytes = memory::AddressAlias::metadata_bytes(blocks);
    auto shown = std::make_unique<memory::AddressAlias>(at.ops, at.memory, at.streams.get(),
                                                        at.slot_memory.get(), machine_.block_bytes,
                                                        at.aliases_runs, at.alias_totals.get());
    const stw_status code = shown->reserve(blocks);
    if (code < 0) {
        return Status::error(code, "device %u has no fixed address of %s for %s: %s", at.device,
                             bytes_text(blocks * machine_.block_bytes).c_str(),
                             tensor_text(dispatch_.core.spec(id).name).c_str(),
                             code == STW_ERROR_UNSUPPORTED && !at.remark.empty()
                                 ? at.remark.c_str()
                                 : stw_status_string(code));
    }
    shown_bytes_ += bytes;
    *shown_out = std::move(shown);
    return {};
} catch (const std::bad_alloc &) {
    return Status::error(STW_ERROR_MEMORY, "no memory for the address of a tensor");
}

// Addresses of the pack on every device that maps; the handle is null for the library's own
// tensors. Allocates nothing after prepare_tables().
Status AddressTable::address_pack(TensorId id, stw_tensor *handle)
{
    const residency::PackId pack = dispatch_.core.pack_of(id);
    if (pack >= packs_.size()) packs_.resize(pack + 1);
    PackAddresses &addresses = packs_[pack];
    const uint64_t bytes = dispatch_.core.pack_blocks(id) * machine_.block_bytes;
    addresses.blocks = dispatch_.core.pack_blocks(id);
    for (PlaceId place = 0; place < machine_.tiers.host(); ++place) {
        const memory::Tier &at = machine_.tiers[place];
        if (handle) {  // the handle is reused
            handle->shown[place] = nullptr;
            handle->addresses[place] = nullptr;
        }
        if (handle && at.memory && at.aliases && (handle->flags & STW_TENSOR_FIXED_ADDRESS))
            STW_TRY(show_tensor(id, handle, place));
        if (!at.memory || !at.maps) continue;
        if (!addresses.at[place]) {
            const stw_status code = at.ops->reserve_address(at.memory, bytes, &addresses.at[place]);
            if (code != STW_OK) {
                return Status::error(code,
                                     "no range of addresses of %s is left on device %u for %s; "
                                     "destroy tensors that are not needed",
                                     bytes_text(bytes).c_str(), at.device,
                                     tensor_text(dispatch_.core.spec(id).name).c_str());
            }
            if (machine_.touches) machine_.touches->cover(addresses.at[place], bytes);
        }
        if (handle) {
            handle->addresses[place] =
                static_cast<char *>(addresses.at[place]) + dispatch_.core.pack_offset(id);
        }
    }
    return {};
}

void AddressTable::release_pack(residency::PackId pack)
{
    if (pack >= packs_.size()) return;
    for (PlaceId place = 0; place < machine_.tiers.host(); ++place) {
        const memory::Tier &at = machine_.tiers[place];
        if (const memory::AddressAlias *shown = packs_[pack].shown[place].get())
            shown_bytes_ -= shown->metadata_bytes();
        void *address = packs_[pack].at[place];
        if (!address) continue;
        at.ops->release_address(at.memory, address, packs_[pack].blocks * machine_.block_bytes);
    }
    packs_[pack] = PackAddresses();
}

memory::AddressAlias *AddressTable::alias_of(residency::PackId pack, PlaceId place) const
{
    return pack < packs_.size() ? packs_[pack].shown[place].get() : nullptr;
}

void AddressTable::close()
{
    for (PackAddresses &pack : packs_) {
        for (const auto &shown : pack.shown) {
            if (shown) shown->leave();
        }
    }
    packs_.clear();
}

// Null: the range is accessible only in the arena. This includes parts of a tensor that is aliased
// as one run, which only the library itself asks for.
memory::AddressAlias *AddressTable::shown_of(const RequestedRange &range, PlaceId place) const
{
    if (!machine_.tiers[place].aliases || range.scratch != residency::kNone) return nullptr;
    memory::AddressAlias *shown = range.tensor->shown[place];
    return shown && shown->shows(range.byte_count == range.tensor->bytes) ? shown : nullptr;
}

char *AddressTable::pointer_of(PlaceId place, residency::Slot slot,
                               const residency::Transfer &transfer) const
{
    const memory::Tier &at = machine_.tiers[place];
    if (!at.maps || !is_at_address(place, transfer.block))
        return at.base + static_cast<uint64_t>(slot) * machine_.block_bytes;
    return static_cast<char *>(packs_[transfer.pack].at[place]) + transfer.pack_offset;
}

// For places that map. A block that is not guarded is mapped by its transfer.
bool AddressTable::is_at_address(PlaceId place, residency::BlockId block) const
{
    return !dispatch_.core.guards(block, place) || dispatch_.core.is_mapped(block, place);
}

char *AddressTable::bytes_at(residency::TensorId tensor, const residency::Grant &grant)
{
    update::Piece piece;
    piece.tensor = tensor;
    MutexLock lock(dispatch_.mutex());
    return static_cast<char *>(piece_pointer(grant, piece));
}

void *AddressTable::view_pointer(const RequestedRange &range, const residency::Grant &grant) const
{
    if (shown_of(range, grant.place))
        return static_cast<char *>(range.tensor->addresses[grant.place]) + range.byte_begin;
    return arena_pointer(range, grant);
}

void *AddressTable::arena_pointer(const RequestedRange &range, const residency::Grant &grant) const
{
    const memory::Tier &at = machine_.tiers[grant.place];
    if (!at.maps) {
        return at.base + static_cast<uint64_t>(grant.slot) * machine_.block_bytes +
               grant.slot_offset;
    }
    if (range.scratch == residency::kNone) {
        return static_cast<char *>(range.tensor->addresses[grant.place]) + range.byte_begin;
    }
    return packs_[dispatch_.core.pack_of(range.scratch)].at[grant.place];
}

uint64_t AddressTable::metadata_bytes() const
{
    return shown_bytes_ + packs_.capacity() * sizeof(PackAddresses);
}

uint64_t AddressTable::growth_bytes(size_t packs) const
{
    return stepwell::growth_bytes(packs_, packs);
}

void AddressTable::reserve(size_t packs)
{
    grow_to_hold(packs_, packs);
}

}  // namespace stepwell
