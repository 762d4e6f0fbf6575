// SPDX-License-Identifier: Apache-2.0
// Copies from the caller's memory into tensors, a chunk at a time.
#pragma once

#include "lib/residency/types.h"
#include "lib/runtime/recording/ground.h"
#include "lib/support/status.h"

#include <functional>

namespace stepwell {

struct ChunkFetch;
struct Copy;
class AddressTable;
class RestoredTensors;
class Placement;
class OwedZeros;
class TensorRegistry;
class Sleepers;
class TierAccess;

class ChunkCopies final : Grounded {
public:
    ChunkCopies(const Ground &ground, AddressTable &addresses, RestoredTensors &restored,
                Placement &placement, OwedZeros &zeros, TensorRegistry &registry,
                Sleepers &sleepers, TierAccess &pieces)
        : Grounded(ground),
          addresses_(addresses),
          restored_(restored),
          placement_(placement),
          zeros_(zeros),
          registry_(registry),
          sleepers_(sleepers),
          pieces_(pieces)
    {
    }

    // INVALID unless the dtypes are equal (or `dtype` is 0) or both convert.
    static Status check_dtype(const stw_tensor *tensor, uint32_t dtype);
    Status write(stw_tensor *tensor, const void *source, const stw_copy_options &options);
    Status fill(stw_tensor *tensor, double value, const stw_copy_options &options);
    Status resolve_copy(const stw_tensor &tensor, const stw_copy_options &options,
                        collective::Range *asked_out, collective::Range *part_out) const;

    // Calls body(pointer, element_begin, count) for each piece of the range that lies in one
    // block. With `exclusive` the tensor is claimed, so that no other thread sees a partial write.
    using ChunkBody = std::function<Status(void *chunk, uint64_t begin, uint64_t count)>;
    Status each_chunk(stw_tensor *tensor, residency::Access access, bool exclusive,
                      uint64_t element_begin, uint64_t element_count, uint64_t timeout_ns,
                      const ChunkBody &body);

private:
    [[nodiscard]] uint64_t chunk_elements(const Copy &copy, uint64_t at) const;
    void ask_chunk(ChunkFetch &chunk, Copy &copy);
    void *chunk_pointer(const ChunkFetch &chunk, const Copy &copy);
    void release_chunk(const ChunkFetch &chunk, const Copy &copy);

    AddressTable &addresses_;
    RestoredTensors &restored_;
    Placement &placement_;
    OwedZeros &zeros_;
    TensorRegistry &registry_;
    Sleepers &sleepers_;
    TierAccess &pieces_;
};

}  // namespace stepwell
