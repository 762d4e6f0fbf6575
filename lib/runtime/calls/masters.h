// SPDX-License-Identifier: Apache-2.0
// Copies between the fp32 masters of an optimizer and the caller's memory. A master in parts is
// joined and split on the way, and stays in parts. On the thread that calls.
#pragma once

#include "lib/runtime/recording/ground.h"
#include "lib/support/status.h"

#include <stepwell/copy.h>

namespace stepwell {

class ChunkCopies;
class OptimizerTable;
class Reductions;
class Sleepers;
class Snapshots;
struct KeptMaster;

class Masters final : Grounded {
public:
    Masters(const Ground &ground, OptimizerTable &optimizers, Sleepers &sleepers,
            ChunkCopies &chunks, Snapshots &snapshots, Reductions &reductions)
        : Grounded(ground),
          optimizers_(optimizers),
          sleepers_(sleepers),
          chunks_(chunks),
          snapshots_(snapshots),
          reductions_(reductions)
    {
    }

    Status read(stw_optimizer *optimizer, stw_tensor *parameter, float *destination,
                const stw_copy_options &options);
    Status write(stw_optimizer *optimizer, stw_tensor *parameter, const float *source,
                 const stw_copy_options &options);

private:
    Status prepare(stw_optimizer *optimizer, stw_tensor *parameter, stw_copy_options *options,
                   collective::Range *part_out, KeptMaster *kept_out);
    Status read_parts(stw_tensor *parameter, const KeptMaster &kept, float *destination,
                      collective::Range part, uint64_t timeout_ns);
    Status write_parts(const KeptMaster &kept, const float *source, collective::Range part,
                       uint64_t timeout_ns);
    Status remake(stw_tensor *parameter, const KeptMaster &kept, const stw_copy_options &options);

    OptimizerTable &optimizers_;
    Sleepers &sleepers_;
    ChunkCopies &chunks_;
    Snapshots &snapshots_;
    Reductions &reductions_;
};

}  // namespace stepwell
