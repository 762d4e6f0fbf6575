// SPDX-License-Identifier: Apache-2.0
// Tensors by number; what is prepared first, so that nothing can fail once it is taken.
#include "lib/residency/tensor_table.h"
#include "lib/support/growth.h"

#include <algorithm>

namespace stepwell::residency {

bool Tensor::bars(ClaimId mine, bool writes) const
{
    if (mine != 0) return claim() != mine;
    return writes ? !claims.empty() : std::any_of(claims.begin(), claims.end(), is_exclusive);
}

TensorTable::TensorTable(const Places &places) : places_(places)
{
    doors_.reserve(places_.config().tensors_max / kDoorsChunk + 1);
}

// Makes room in the tables for one more, so that nothing can fail once it is taken.
void TensorTable::prepare()
{
    if (!free_.empty()) return;
    const size_t ids = tensors_.size() + 1;
    grow_to_hold(free_, ids);
    if (doors_.size() * kDoorsChunk < ids) doors_.push_back(std::make_unique<Doors[]>(kDoorsChunk));
    tensors_.emplace_back();
    free_.push_back(static_cast<TensorId>(ids - 1));
}

Status TensorTable::check_max() const
{
    if (!free_.empty() || tensors_.size() < places_.config().tensors_max) return {};
    return Status::error(STW_ERROR_LIMIT,
                         "%u tensors exist, as many as tensors_max allows; raise it when opening "
                         "the runtime",
                         places_.config().tensors_max);
}

TensorId TensorTable::take()
{
    const TensorId id = free_.back();
    free_.pop_back();
    return id;
}

uint64_t TensorTable::metadata_bytes() const
{
    return tensors_.bytes() + doors_.size() * kDoorsChunk * sizeof(Doors) +
           free_.capacity() * sizeof(TensorId);
}

uint64_t TensorTable::metadata_growth() const
{
    if (!free_.empty()) return 0;
    const uint64_t bytes = tensors_.growth_bytes() + growth_bytes(free_, tensors_.size() + 1);
    return bytes + (tensors_.size() % kDoorsChunk == 0 ? kDoorsChunk * sizeof(Doors) : 0);
}

uint64_t TensorTable::metadata_bytes_max(uint64_t tensors)
{
    return Table<Tensor>::bytes_max(tensors) + (tensors + kDoorsChunk) * sizeof(Doors) +
           grown_capacity(tensors, tensors + 1) * sizeof(TensorId);
}

}  // namespace stepwell::residency
