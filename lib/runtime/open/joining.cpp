// SPDX-License-Identifier: Apache-2.0
// How a runtime joins its group: what ranks agree on before anything is opened, and what the ranks
// of one host share.
#include "lib/runtime/open/runtime.h"

#include "lib/collective/disk_share.h"
#include "lib/collective/node.h"
#include "lib/runtime/group/processors.h"
#include "lib/runtime/group/state.h"
#include "lib/runtime/ranks/sums.h"

#include <algorithm>
#include <cerrno>
#include <cstring>

namespace stepwell {
namespace {

// The least of all ranks, in blocks.
Status agree_blocks(const stw_runtime_options &options, uint64_t bucket_blocks,
                    uint64_t *blocks_out)
{
    const uint64_t block = options.block_bytes ? options.block_bytes : uint64_t{STW_BLOCK_2M};
    uint64_t budget = options.host_bytes;
    for (uint32_t i = options.device_count; i-- > 0;) {
        if (options.devices[i].budget_bytes >= block) budget = options.devices[i].budget_bytes;
    }
    budget -= std::min(budget, bucket_blocks * block);
    const uint64_t wanted = options.whole_bytes ? options.whole_bytes : budget / 2;
    const char *name = options.name ? options.name : program_invocation_short_name;
    collective::Record mine = collective::make_record(collective::Kind::kOpen, name);
    mine.counts[0] = wanted / block;
    mine.spec = block;
    collective::set_text(mine, "one with blocks of " + bytes_text(block));
    if (wanted / block == 0 || wanted >= budget) {
        collective::set_status(
            mine, Status::error(STW_ERROR_INVALID,
                                "whole_bytes is %s of the nearest tier's budget of %s; it takes at "
                                "least a block of %s and leaves one",
                                bytes_text(wanted).c_str(), bytes_text(budget).c_str(),
                                bytes_text(block).c_str()));
    }
    std::vector<collective::Record> all;
    STW_TRY(options.group->body->agree(mine, all));
    *blocks_out = UINT64_MAX;
    for (const collective::Record &rank : all) {
        *blocks_out = std::min(*blocks_out, rank.counts[0]);
    }
    return {};
}

}  // namespace

// Before the core is made: the part of the nearest tier that every rank can spare for gathered
// tensors.
Status Runtime::agree_wholes(const stw_runtime_options &options, uint64_t *blocks_out)
{
    *blocks_out = 0;
    if (!options.group || !options.group->body || options.group->body->size() == 1) return {};
    Status status = agree_blocks(options, bucket_blocks(options), blocks_out);
    return replicas_of(options) ? Sums::agree_replicas(options, *blocks_out, std::move(status))
                                : status;
}

// Before memory is taken: the ranks of this host find each other and sum up the host memory they
// want.
Status Runtime::join_ranks(const stw_runtime_options &options, uint64_t whole_blocks)
{
    if (whole_blocks == 0) return {};
    {
        MutexLock lock(dispatch.mutex());
        machine.ranks = std::make_unique<Ranks>(dispatch.core, options.group,
                                                machine.tiers.nearest(), whole_blocks);
    }
    connect_ranks();
    machine.ranks->replicas = replicas_of(options);
    collective::Group &group = machine.ranks->group;
    collective::NodeOptions node;
    node.rank = group.rank();
    node.ranks = group.size();
    node.host_bytes = options.host_bytes;
    node.node_host_bytes = options.node_host_bytes;
    node.processors = own_processors();
    node.exchange = [&group](const void *record, void *records, uint32_t bytes) {
        return group.exchange(record, records, bytes);
    };
    Result<std::unique_ptr<collective::Node>> joined = collective::Node::join(node);
    if (!joined.ok()) return std::move(joined.status());
    machine.ranks->node = joined.take();
    group.set_witness(
        [node = machine.ranks->node.get()](uint32_t rank) { return node->describe(rank); });
    return machine.ranks->replicas ? join_host(std::move(node)) : Status();
}

// Groups of replicas may share a host, with its budget and disks. Ranks are numbered group by
// group.
Status Runtime::join_host(collective::NodeOptions node)
{
    collective::Group &group = machine.ranks->group;
    collective::Group &replicas = *machine.ranks->replicas;
    node.rank = replicas.rank() * group.size() + group.rank();
    node.ranks = replicas.size() * group.size();
    node.exchange = [&](const void *record, void *records, uint32_t bytes) -> Status {
        std::vector<char> mine(size_t{group.size()} * bytes);
        std::vector<char> theirs(size_t{replicas.size()} * bytes);
        STW_TRY(group.exchange(record, mine.data(), bytes));
        for (uint32_t rank = 0; rank < group.size(); ++rank) {
            STW_TRY(replicas.exchange(&mine[size_t{rank} * bytes], theirs.data(), bytes));
            for (uint32_t other = 0; other < replicas.size(); ++other) {
                const size_t at = size_t{other} * group.size() + rank;
                std::memcpy(static_cast<char *>(records) + at * bytes,
                            &theirs[size_t{other} * bytes], bytes);
            }
        }
        return {};
    };
    Result<std::unique_ptr<collective::Node>> joined = collective::Node::join(node);
    if (!joined.ok()) return std::move(joined.status());
    machine.ranks->host = joined.take();
    return {};
}

// Disks that several ranks of this host use are shared fairly between them.
void Runtime::share_disks(const stw_runtime_options &options, transfer::EngineOptions *engine)
{
    if (!machine.ranks || options.nvme_count == 0) return;
    std::vector<uint64_t> disks;
    for (uint32_t i = 0; i < options.nvme_count; ++i) {
        disks.push_back(collective::disk_of(options.nvme[i].path));
    }
    collective::Node &node = machine.ranks->host ? *machine.ranks->host : *machine.ranks->node;
    machine.ranks->disks = collective::DiskShares::open(node, disks);
    if (!machine.ranks->disks) return;
    engine->share_user = machine.ranks->disks.get();
    engine->may_send = [](void *user, uint32_t path, uint64_t bytes) {
        return static_cast<collective::DiskShares *>(user)->take(path, bytes);
    };
    engine->rests = [](void *user, uint32_t path) {
        static_cast<collective::DiskShares *>(user)->rest(path);
    };
}

// After storage was closed.
void Runtime::leave_ranks()
{
    if (!machine.ranks) return;
    machine.ranks->group.set_witness(nullptr);
    machine.ranks->disks.reset();
    machine.ranks->host.reset();
    machine.ranks->node.reset();
}

// A runtime of one rank has none of these hooks. Called before the runtime's threads start, which
// read them without the lock.
void Runtime::connect_ranks()
{
    using Kind = Collective::Kind;
    ranks.collectives.add(Kind::kGather, ranks.wholes.runner());
    ranks.collectives.add(Kind::kKeep, ranks.wholes.runner());
    ranks.collectives.add(Kind::kReduce, ranks.sums.runner());
    ranks.collectives.add(Kind::kVerdict, ranks.sums.runner());
    ranks.collectives.add(Kind::kCommit, durable.commits);
    views.sleepers.set_work(ranks.collectives);
    tensors.registry.set_shards(ranks.wholes);
    views.ends.set_ranks(ranks.wholes.views(), ranks.sums.views());
    {
        MutexLock lock(dispatch.mutex());
        dispatch.loop.add(machine.ranks->queue.gathers);
    }
    dispatch.add(ranks.wholes);
    dispatch.add(ranks.collectives);
}

}  // namespace stepwell
