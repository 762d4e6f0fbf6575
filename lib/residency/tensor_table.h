// SPDX-License-Identifier: Apache-2.0
// TensorTable: the tensors by number, the numbers that are free, and the doors of each tensor (its
// gates, one per place), which threads of the program read without the core's lock.
#pragma once

#include "lib/residency/gate.h"
#include "lib/residency/model.h"
#include "lib/residency/places.h"
#include "lib/support/growth.h"
#include "lib/support/table.h"

#include <memory>
#include <vector>

namespace stepwell::residency {

class TensorTable {
public:
    explicit TensorTable(const Places &places);

    Tensor &operator[](TensorId tensor) { return tensors_[tensor]; }
    const Tensor &operator[](TensorId tensor) const { return tensors_[tensor]; }
    [[nodiscard]] size_t size() const { return tensors_.size(); }
    [[nodiscard]] Door &door(TensorId tensor, PlaceId place) const
    {
        return doors_[tensor / kDoorsChunk][tensor % kDoorsChunk].at[place];
    }
    [[nodiscard]] Gate &gate(TensorId tensor, PlaceId place) const
    {
        return door(tensor, place).gate;
    }

    [[nodiscard]] Status check_max() const;
    void prepare();
    // Over what was prepared: nothing here can fail.
    TensorId take();
    void give(TensorId tensor) { free_.push_back(tensor); }

    [[nodiscard]] uint64_t metadata_bytes() const;
    [[nodiscard]] uint64_t metadata_growth() const;  // by one tensor more
    [[nodiscard]] static uint64_t metadata_bytes_max(uint64_t tensors);

private:
    static constexpr uint32_t kDoorsChunk = 512;  // tensors whose doors are allocated at once

    const Places &places_;
    Table<Tensor> tensors_;
    std::vector<TensorId> free_;
    std::vector<std::unique_ptr<Doors[]>> doors_;  // in chunks that never move
};

}  // namespace stepwell::residency
