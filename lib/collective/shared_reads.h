// SPDX-License-Identifier: Apache-2.0
// This rank's part in reads that the ranks of a host share: the board in their memory, with the
// clock and the lives of their processes. Any thread.
#pragma once

#include "lib/collective/node.h"
#include "lib/collective/read_board.h"

#include <memory>

namespace stepwell::collective {

class SharedReads {
public:
    // The node outlives it. Null where it has no board.
    static std::unique_ptr<SharedReads> open(const Node &node, const BoardLimits &limits = {});
    SharedReads(const Node &node, const BoardLimits &limits);
    // Withdraws what it reads: before the node goes, and once nobody asks.
    ~SharedReads();
    SharedReads(const SharedReads &) = delete;
    SharedReads &operator=(const SharedReads &) = delete;

    // As of ReadBoard.
    ReadBoard::Found look(const BoardKey &key, bool patient);
    bool copy(const ReadBoard::Found &found, const BoardKey &key, void *data)
    {
        return board_->copy(found, key, data);
    }
    void let_go(const ReadBoard::Found &found) { board_->let_go(found); }
    // To all that have not left.
    void offer(const ReadBoard::Found &found, const BoardKey &key, const void *data);
    void withdraw(const ReadBoard::Found &found) { board_->withdraw(found); }

private:
    const Node &node_;
    std::unique_ptr<ReadBoard> board_;
};

}  // namespace stepwell::collective
