// SPDX-License-Identifier: Apache-2.0
// Addresses: which blocks programs see at the addresses of tensors while they hold no view. Owns no
// table, only the pointer to the interface of the shell that maps (aliases.h); replicas say what is
// mapped.
#pragma once

#include "lib/residency/aliases.h"
#include "lib/residency/pack_table.h"

namespace stepwell::residency {

class Addresses {
public:
    Addresses(Places &places, const TensorTable &tensors, BlockTable &blocks,
              const PackTable &packs)
        : places_(places), tensors_(tensors), blocks_(blocks), packs_(packs)
    {
    }

    void set_aliases(Aliases *aliases) { aliases_ = aliases; }
    [[nodiscard]] bool guards(BlockId block, PlaceId place) const;
    bool show_targets(const Fetch &fetch);
    void protect(BlockId block, PlaceId place);
    void hide(BlockId block, PlaceId place);
    void clear(BlockId block, PlaceId place);
    [[nodiscard]] bool shows(BlockId block, PlaceId place, bool writable) const;
    // A view of another thread shows the block already, so the access needs no fetch.
    [[nodiscard]] bool shows_touched(const Fetch &fetch) const;
    void conceal(TensorId tensor);
    void conceal_asked(const Fetch &fetch);
    // It is to be concealed, and can be read at its address still. viewed: the end of a view
    // conceals what only this view has.
    [[nodiscard]] bool is_exposed(TensorId tensor, bool viewed) const;

private:
    [[nodiscard]] bool is_viewed(const Tensor &tensor) const
    {
        const uint32_t others = tensor.passed ? 0 : tensor.touched;
        return tensor.readers + (tensor.writer ? 1 : 0) > others;
    }

    Places &places_;
    const TensorTable &tensors_;
    BlockTable &blocks_;
    const PackTable &packs_;
    Aliases *aliases_ = nullptr;
};

}  // namespace stepwell::residency
