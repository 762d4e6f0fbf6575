// SPDX-License-Identifier: Apache-2.0
//
// One rank: what a program without MPI has.

#include "ranks.h"

#include "must.h"

namespace train_gpt {

Ranks::Ranks(bool wanted, const std::string &)
{
    if (wanted)
        give_up("this program was built without MPI, so it has one rank; leave out --ranks, or run "
                "train_gpt_mpi, which is built where Meson finds libopenmpi-dev");
}

Ranks::~Ranks() = default;

double Ranks::sum(double value) const
{
    return value;
}

}  // namespace train_gpt
