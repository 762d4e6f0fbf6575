// SPDX-License-Identifier: Apache-2.0
#include "drivers/mpi/reducer.h"

#include "drivers/mpi/sum.h"

#include <algorithm>

namespace stepwell::drivers {

namespace {

constexpr uint64_t kScratchBytes = 8 << 20;
constexpr uint64_t kPieceBytesMin = 4 << 10;
constexpr uint64_t kPieceBytesMax = 1 << 20;

}  // namespace

void Reducer::open(const Ranks &ranks)
{
    ranks_ = ranks;
    const uint64_t others = ranks.size - 1;
    const uint64_t fair = kScratchBytes / kLanes / std::max<uint64_t>(others, 1);
    piece_bytes_ = std::clamp(fair & ~(kPieceBytesMin - 1), kPieceBytesMin, kPieceBytesMax);
    scratch_ = std::make_unique_for_overwrite<char[]>(kLanes * others * piece_bytes_);
    parts_.resize(ranks.size);
    for (uint64_t i = 0; i < kLanes; ++i) {
        lanes_[i].requests.reserve(2 * others);
        lanes_[i].scratch = scratch_.get() + i * others * piece_bytes_;
    }
}

void Reducer::begin(const Reduction &reduction)
{
    reduction_ = reduction;
    element_bytes_ = summed_element_bytes(reduction.dtype);
    piece_elements_ = piece_bytes_ / element_bytes_;
    const uint64_t chunk_elements = piece_elements_ * (reduction_.to_all ? ranks_.size : 1);
    chunks_ = reduction.elements / chunk_elements + (reduction.elements % chunk_elements != 0);
    busy_ = true;
    for (uint64_t i = 0; i < kLanes; ++i) {
        lanes_[i].chunk = i;
        lanes_[i].tag = reduction.tag + 2 * static_cast<int>(i);
        collect(lanes_[i]);
    }
}

// The part of a chunk that `rank` sums: the same on all ranks.
Reducer::Part Reducer::part_of(uint64_t chunk, uint32_t rank) const
{
    if (!reduction_.to_all) {
        const uint64_t begin = chunk * piece_elements_;
        return {rank * reduction_.elements + begin,
                std::min(piece_elements_, reduction_.elements - begin)};
    }
    const uint64_t first = chunk * piece_elements_ * ranks_.size;
    const uint64_t elements = std::min(piece_elements_ * ranks_.size, reduction_.elements - first);
    const uint64_t each = (elements + ranks_.size - 1) / ranks_.size;
    const uint64_t begin = std::min(rank * each, elements);
    return {first + begin, std::min(each, elements - begin)};
}

void Reducer::collect(Lane &lane)
{
    if (lane.chunk >= chunks_) {
        lane.stage = Stage::kOver;
        return;
    }
    lane.stage = Stage::kCollect;
    const uint64_t own_bytes = part_of(lane.chunk, ranks_.rank).elements * element_bytes_;
    char *slot = lane.scratch;
    // Each rank begins with its neighbour, so that not all send to the same rank.
    for (uint32_t step = 1; step < ranks_.size; ++step) {
        const uint32_t from = (ranks_.rank + ranks_.size - step) % ranks_.size;
        if (own_bytes > 0) lane.requests.receive(ranks_, slot, own_bytes, from, lane.tag);
        slot += piece_bytes_;
    }
    for (uint32_t step = 1; step < ranks_.size; ++step) {
        const uint32_t to = (ranks_.rank + step) % ranks_.size;
        const Part part = part_of(lane.chunk, to);
        if (part.elements > 0)
            lane.requests.send(ranks_, reduction_.from + part.begin * element_bytes_,
                               part.elements * element_bytes_, to, lane.tag);
    }
}

void Reducer::add(Lane &lane)
{
    const Part own = part_of(lane.chunk, ranks_.rank);
    char *slot = lane.scratch;
    for (uint32_t step = 1; step < ranks_.size; ++step, slot += piece_bytes_)
        parts_[(ranks_.rank + ranks_.size - step) % ranks_.size] = slot;
    parts_[ranks_.rank] = reduction_.from + own.begin * element_bytes_;
    const uint64_t at = reduction_.to_all ? own.begin : lane.chunk * piece_elements_;
    add_in_rank_order(reduction_.dtype, reduction_.to + at * element_bytes_, parts_.data(),
                      ranks_.size, own.elements);
}

// The sends of the pieces are complete, so the sums may overwrite them.
void Reducer::spread(Lane &lane)
{
    lane.stage = Stage::kSpread;
    const Part own = part_of(lane.chunk, ranks_.rank);
    for (uint32_t step = 1; step < ranks_.size; ++step) {
        const uint32_t from = (ranks_.rank + ranks_.size - step) % ranks_.size;
        const Part part = part_of(lane.chunk, from);
        if (part.elements > 0)
            lane.requests.receive(ranks_, reduction_.to + part.begin * element_bytes_,
                                  part.elements * element_bytes_, from, lane.tag + 1);
    }
    for (uint32_t step = 1; step < ranks_.size && own.elements > 0; ++step)
        lane.requests.send(ranks_, reduction_.to + own.begin * element_bytes_,
                           own.elements * element_bytes_, (ranks_.rank + step) % ranks_.size,
                           lane.tag + 1);
}

void Reducer::advance(Lane &lane)
{
    if (lane.stage == Stage::kOver || !lane.requests.advance()) return;
    if (lane.requests.error() != MPI_SUCCESS) {
        error_ = lane.requests.error();
        return;
    }
    if (lane.stage == Stage::kCollect) {
        add(lane);
        if (reduction_.to_all) return spread(lane);
    }
    lane.chunk += kLanes;
    collect(lane);
}

bool Reducer::advance()
{
    bool over = true;
    for (Lane &lane : lanes_) {
        advance(lane);
        over = over && lane.stage == Stage::kOver;
    }
    if (error_ != MPI_SUCCESS) return true;
    if (over) busy_ = false;
    return over;
}

}  // namespace stepwell::drivers
