// SPDX-License-Identifier: Apache-2.0
//
// The ranks that one training goes over, each a process with a part of the states and of every
// batch. ranks_alone.cpp knows one rank, ranks_mpi.cpp those of an MPI job; the rest of the program
// is the same.

#ifndef TRAIN_GPT_RANKS_H
#define TRAIN_GPT_RANKS_H

#include <stepwell/stepwell.h>

#include <cstdint>
#include <string>

namespace train_gpt {

// One thread. Outlives the runtime that its group is given to.
class Ranks {
public:
    // wanted: --ranks. module: of the group's driver, "" where it is installed.
    Ranks(bool wanted, const std::string &module);
    ~Ranks();
    Ranks(const Ranks &) = delete;
    Ranks &operator=(const Ranks &) = delete;

    uint32_t rank() const { return rank_; }
    uint32_t size() const { return size_; }
    stw_group *group() const { return group_; }  // NULL: this process alone
    // Of all ranks' values, in rank order: the same bits on each. All ranks call it.
    double sum(double value) const;

private:
    [[maybe_unused]] bool began_ = false;  // MPI, where it is built with that
    uint32_t rank_ = 0;
    uint32_t size_ = 1;
    stw_group *group_ = nullptr;
};

}  // namespace train_gpt

#endif
