// SPDX-License-Identifier: Apache-2.0
#include "lib/collective/shared_reads.h"

#include "lib/collective/process.h"

namespace stepwell::collective {

std::unique_ptr<SharedReads> SharedReads::open(const Node &node, const BoardLimits &limits)
{
    if (!node.board()) return nullptr;
    return std::make_unique<SharedReads>(node, limits);
}

SharedReads::SharedReads(const Node &node, const BoardLimits &limits)
    : node_(node),
      board_(std::make_unique<ReadBoard>(
          node.board(), node.board_block_bytes(), static_cast<uint32_t>(node.ranks().size()),
          node.index(), [&node](uint32_t index) { return node.is_gone(index); }, limits))
{
}

SharedReads::~SharedReads()
{
    // A fork of the rank has no board to withdraw from.
    if (!node_.is_rank()) (void)board_.release();
}

ReadBoard::Found SharedReads::look(const BoardKey &key, bool patient)
{
    return board_->look(key, monotonic_ns(), patient);
}

void SharedReads::offer(const ReadBoard::Found &found, const BoardKey &key, const void *data)
{
    uint64_t awaited = board_->others();
    for (uint32_t index = 0; index < node_.ranks().size(); ++index) {
        if (node_.has_left(index)) awaited &= ~(1ull << index);
    }
    board_->offer(found, key, data, awaited, monotonic_ns());
}

}  // namespace stepwell::collective
