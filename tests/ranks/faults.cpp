// SPDX-License-Identifier: Apache-2.0
// Faults of a run: one after the other, each over after a while, none any more when the programs
// are over.
#include "tests/ranks/rank.h"

namespace stepwell::ranks {
namespace {

// A link of each instance serves neighbours; its faults are those of all of them.
enum Kind : uint32_t { kSlowLink, kDiskReads, kDiskWrites, kSlowRank };

}  // namespace

stw_status World::choose_fault(uint32_t rank, const Transfer &transfer)
{
    if (transfer.kind != TransferKind::kMove) return STW_OK;
    Disturbance::Disk &disk = disturbance.disks[links_.instance_of(kDiskRead, rank)];
    if (transfer.from == kNvme) {
        if (disk.reads_fail > 0) {
            --disk.reads_fail;
            return STW_ERROR_IO;
        }
        return disk.all_reads_fail ? STW_ERROR_IO : STW_OK;
    }
    if (transfer.to == kNvme) {
        if (disk.writes_fail > 0) {
            --disk.writes_fail;
            return STW_ERROR_IO;
        }
        return disk.all_writes_fail ? STW_ERROR_IO : STW_OK;
    }
    if (disturbance.copies_fail[rank] == 0) return STW_OK;
    --disturbance.copies_fail[rank];
    return STW_ERROR_DEVICE;
}

void World::begin_fault()
{
    if (!program_runs() || counts.faults == setup.faults_max) return;
    const Instant gap = random.between(1, 2 * setup.fault_gap_us) * 1000;
    wake(now() + gap, Wake::kFault, 0);
    ++counts.faults;
    const uint64_t kind = random.below(100);
    if (kind < 20) {
        slow_link();
    } else if (kind < 45) {
        fail_disk();
    } else if (kind < 58) {
        delay_rank();
    } else if (kind < 64) {
        fail_copy();
    } else {
        Rank &rank = *ranks_[random.below(setup.ranks)];
        kind < 90 ? rank.change_budget() : kind < 96 ? rank.cancel_some() : rank.forgive();
        rank.go_on();
    }
}

void World::slow_link()
{
    Heal heal;
    heal.kind = kSlowLink;
    heal.link = static_cast<LinkKind>(random.below(kLinkKinds));
    heal.rank = static_cast<uint32_t>(random.below(setup.ranks));
    const double factor = static_cast<double>(random.between(10, 100));
    links_.set_slow(heal.link, heal.rank, factor);
    heals_.push_back(heal);
    journal.line("link %d of rank %u is %.0f times slower", heal.link, heal.rank, factor);
    wake(now() + random.between(500, 20000) * 1000, Wake::kHeal, 0, heals_.size() - 1);
}

void World::fail_disk()
{
    const auto rank = static_cast<uint32_t>(random.below(setup.ranks));
    const uint32_t index = links_.instance_of(kDiskRead, rank);
    Disturbance::Disk &disk = disturbance.disks[index];
    const bool reads = random.chance(50);
    const bool once = random.chance(50);
    journal.line("disk %u fails %s %s", index, once ? "some" : "all", reads ? "reads" : "writes");
    if (once) {
        (reads ? disk.reads_fail : disk.writes_fail) = static_cast<uint32_t>(random.between(1, 3));
        return;
    }
    (reads ? disk.all_reads_fail : disk.all_writes_fail) = true;
    Heal heal;
    heal.kind = reads ? kDiskReads : kDiskWrites;
    heal.rank = index;
    heals_.push_back(heal);
    wake(now() + random.between(200, 8000) * 1000, Wake::kHeal, 0, heals_.size() - 1);
}

void World::delay_rank()
{
    const auto rank = static_cast<uint32_t>(random.below(setup.ranks));
    const Instant until = now() + random.between(500, 30000) * 1000;
    if (random.chance(50)) {
        journal.line("rank %u stops", rank);
        disturbance.stopped_until[rank] = until;
        return;
    }
    disturbance.slowness[rank] = static_cast<double>(random.between(2, 30));
    journal.line("rank %u computes %.0f times slower", rank, disturbance.slowness[rank]);
    Heal heal;
    heal.kind = kSlowRank;
    heal.rank = rank;
    heals_.push_back(heal);
    wake(until, Wake::kHeal, 0, heals_.size() - 1);
}

void World::fail_copy()
{
    const auto rank = static_cast<uint32_t>(random.below(setup.ranks));
    const bool hangs = random.chance(50);
    journal.line("a transfer of rank %u %s", rank, hangs ? "hangs" : "between memories fails");
    ++(hangs ? disturbance.hangs : disturbance.copies_fail)[rank];
}

void World::end_fault(uint64_t number)
{
    const Heal heal = heals_[number];
    journal.line("fault %llu is over", static_cast<unsigned long long>(number));
    switch (heal.kind) {
    case kSlowLink: links_.set_slow(heal.link, heal.rank, 1); break;
    case kDiskReads: disturbance.disks[heal.rank].all_reads_fail = false; break;
    case kDiskWrites: disturbance.disks[heal.rank].all_writes_fail = false; break;
    default: disturbance.slowness[heal.rank] = 1; break;
    }
}

void World::heal_all()
{
    for (uint64_t i = 0; i < heals_.size(); ++i) end_fault(i);
    disturbance.disks.fill({});
    disturbance.copies_fail.fill(0);
    disturbance.hangs.fill(0);
}

}  // namespace stepwell::ranks
