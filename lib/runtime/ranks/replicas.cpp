// SPDX-License-Identifier: Apache-2.0
// Two groups of one runtime: the ranks that hold the shards of a tensor between them, and the
// ranks of other such groups that hold the same shard. Each agreement goes over the first group
// and then, with its result, over the second; so all ranks of all groups agree.
#include "lib/runtime/ranks/sums.h"

#include "lib/runtime/addresses/addresses.h"
#include "lib/runtime/group/state.h"
#include "lib/runtime/machine/meters.h"
#include "lib/runtime/ranks/collectives.h"
#include "lib/runtime/ranks/memory.h"
#include "lib/runtime/ranks/shards.h"
#include "lib/runtime/ranks/wholes.h"
#include "lib/runtime/recording/grounds.h"
#include "lib/runtime/tensors/buffers.h"
#include "lib/runtime/updates/tiers.h"

#include <algorithm>
#include <utility>

namespace stepwell {

namespace {

SumAgreed agreed_of(const std::vector<collective::Record> &ranks)
{
    SumAgreed agreed;
    agreed.count = UINT64_MAX;
    for (const collective::Record &rank : ranks) {
        agreed.count = std::min(agreed.count, rank.counts[0]);
        // counts[2]: the ranks of another group differed.
        agreed.alike = agreed.alike && rank.counts[1] == ranks[0].counts[1] && rank.counts[2] == 0;
        agreed.given = agreed.given || rank.counts[3] != 0;
    }
    return agreed;
}

}  // namespace

collective::Group *replicas_of(const stw_runtime_options &options)
{
    if (!options.replica_group || !options.replica_group->body) return nullptr;
    collective::Group *replicas = options.replica_group->body.get();
    return replicas->size() > 1 ? replicas : nullptr;
}

// `status` is the result of the group so far. Each of its ranks has its own replicas, so their
// result is then agreed on in the group.
Status Sums::agree_replicas(const stw_runtime_options &options, uint64_t blocks, Status status)
{
    collective::Group &group = *options.group->body;
    const uint64_t block = options.block_bytes ? options.block_bytes : uint64_t{STW_BLOCK_2M};
    const char *name = options.name ? options.name : program_invocation_short_name;
    collective::Record mine = collective::make_record(collective::Kind::kOpen, name);
    mine.spec = uint64_t{group.rank()} << 32 | group.size();
    mine.bytes = blocks * block;
    collective::set_text(mine,
                         format_text("on rank %u of a group of %u with %s for wholes", group.rank(),
                                     group.size(), bytes_text(mine.bytes).c_str()));
    if (!status.ok()) collective::set_status(mine, status);
    std::vector<collective::Record> all;
    status = replicas_of(options)->agree(mine, all);
    collective::Record again = collective::make_record(collective::Kind::kOpen, name);
    collective::set_text(again, "one with replicas");
    if (!status.ok()) collective::set_status(again, status);
    Status together = group.agree(again, all);
    return status.ok() ? together : status;
}

// Before a sum. If a group cannot take part, its replicas get the reason.
Status Sums::agree_sum(collective::Record mine, SumAgreed *agreed)
{
    std::vector<collective::Record> ranks;
    Status status = machine_.ranks->group.agree(mine, ranks);
    *agreed = agreed_of(ranks);
    if (!machine_.ranks->replicas) return status;
    mine.counts[0] = agreed->count;
    mine.counts[2] = agreed->alike ? 0 : 1;
    mine.counts[3] = agreed->given ? 1 : 0;
    if (!status.ok()) collective::set_status(mine, status);
    Status replicas = machine_.ranks->replicas->agree(mine, ranks);
    *agreed = agreed_of(ranks);
    return status.ok() ? replicas : status;
}

// Into `sums`, of which each rank has a part; in place, and complete on each rank, if that is
// `source`.
Status Sums::sum_over_ranks(residency::TensorId tensor, char *source, char *sums, uint64_t elements,
                            uint32_t dtype)
{
    const residency::Instant begin = dispatch_.now();
    const uint64_t before = meters_.rank_totals().bytes;
    STW_TRY(sums == source ? machine_.ranks->group.all_reduce(source, elements, dtype)
                           : machine_.ranks->group.reduce_scatter(source, sums, elements, dtype));
    if (machine_.ranks->replicas)
        STW_TRY(machine_.ranks->replicas->all_reduce(sums, elements, dtype));
    meters_.record_ranks(tensor, begin, before);
    return {};
}

}  // namespace stepwell
