// SPDX-License-Identifier: Apache-2.0
// The loop of all ranks, and the end of a run.
#include "tests/ranks/world.h"

#include "lib/support/assert.h"
#include "tests/ranks/rank.h"

#include <cstdarg>
#include <cstdio>

namespace stepwell::ranks {
namespace {

constexpr uint64_t kEventsMax = 1'000'000;  // of one run; more is a run without an end
constexpr uint32_t kRoundsMax = 64;

}  // namespace

void Counts::add(const Counts &other)
{
    events += other.events;
    transfers += other.transfers;
    grants += other.grants;
    hits += other.hits;
    refusals += other.refusals;
    hints += other.hints;
    collectives += other.collectives;
    updates += other.updates;
    faults += other.faults;
    failed_transfers += other.failed_transfers;
    shrinks += other.shrinks;
    shrinks_undone += other.shrinks_undone;
    deadlocks += other.deadlocks;
    timeouts += other.timeouts;
    checks += other.checks;
}

void Journal::fail(const char *format, ...)
{
    if (failed()) return;
    va_list arguments;
    va_start(arguments, format);
    failure_ = format_text_list(format, arguments);
    va_end(arguments);
    line("FAILED: %s", failure_.c_str());
}

void Journal::line(const char *format, ...)
{
    if (!verbose_) return;
    va_list arguments;
    va_start(arguments, format);
    const std::string text = format_text_list(format, arguments);
    va_end(arguments);
    std::printf("%12llu ns  rank %u  %s\n", static_cast<unsigned long long>(now), rank,
                text.c_str());
}

World::World(const Options &wanted)
    : options(wanted),
      random(wanted.seed),
      setup(choose_setup(wanted, random)),
      journal(wanted.verbose),
      planted(wanted.plant, wanted.seed),
      links_(setup.links, setup.ranks),
      fabric_(setup.ranks, setup.group_ranks, journal, planted),
      running_(setup.ranks)
{
    disturbance.slowness.fill(1);
    for (uint32_t rank = 0; rank < setup.ranks; ++rank) {
        ranks_.push_back(std::make_unique<Rank>(*this, rank, random.next()));
    }
}

World::~World() = default;

void World::wake(Instant at, Wake what, uint32_t rank, uint64_t number)
{
    if (!queue_.push(at, what, static_cast<uint8_t>(rank), number)) {
        journal.fail("the run has too many events, or goes on for too long");
        return;
    }
    owed_ += what != Wake::kPlan;
}

void World::submit(uint32_t rank, Sent *flight)
{
    const Transfer &transfer = flight->transfer;
    std::array<LinkKind, 2> path{};
    uint32_t length = 0;
    if (transfer.from == kNvme) path[length++] = kDiskRead;
    if (transfer.from == kDevice) path[length++] = kFromDevice;
    if (transfer.to == kDevice && length < 2) path[length++] = kToDevice;
    if (transfer.to == kNvme) path[length++] = kDiskWrite;
    started_.clear();
    flight->job = links_.submit(rank, transfer.id, path, length, transfer.bytes, transfer.urgency,
                                now(), random, &started_);
    for (const Links::Moved &at : started_) wake(at.at, Wake::kLink, rank, at.job);
}

void World::end_of_link(uint32_t job)
{
    const uint32_t rank = links_.rank_of(job);
    const TransferId transfer = links_.transfer_of(job);
    started_.clear();
    const bool over = links_.arrive(job, now(), random, &started_);
    for (const Links::Moved &at : started_) {
        wake(at.at, Wake::kLink, links_.rank_of(at.job), at.job);
    }
    journal.rank = rank;
    if (!over) return;
    ranks_[rank]->transfer_ends(transfer);
    ranks_[rank]->go_on();
}

void World::arrive(uint32_t rank, Collective::Lane lane, bool in_group, Instant takes)
{
    const Fabric::Ran ran = fabric_.arrive(rank, lane, in_group, takes);
    journal.line("comes to collective %llu of communicator %u%s",
                 static_cast<unsigned long long>(ran.number), ran.communicator,
                 ran.runs ? ", which runs" : "");
    if (!ran.runs) return;
    const bool right = ran.sum == fabric_.expected(ran.communicator, ran.number);
    for (const uint32_t member : fabric_.members(ran.communicator)) {
        // One that has not come meets it when it does.
        if (fabric_.came(ran.communicator, member) <= ran.number) continue;
        const uint64_t of = static_cast<uint64_t>(lane) * 2 + static_cast<uint64_t>(right);
        wake(now() + takes + random.below(2000), Wake::kCollective, member, of);
    }
}

void World::handle(const Wakeup &wakeup)
{
    journal.now = wakeup.at();
    journal.rank = wakeup.rank;
    journal.mix(journal.now ^ (uint64_t{wakeup.rank} << 56) ^
                (static_cast<uint64_t>(wakeup.what) << 48));
    Rank &rank = *ranks_[wakeup.rank];
    switch (wakeup.what) {
    case Wake::kLink: end_of_link(static_cast<uint32_t>(wakeup.number)); return;
    case Wake::kFault: begin_fault(); return;
    case Wake::kHeal: end_fault(wakeup.number); return;
    case Wake::kCollective:
        rank.collective_over(static_cast<Collective::Lane>(wakeup.number / 2),
                             (wakeup.number & 1) != 0);
        break;
    default: rank.wake(wakeup.what, wakeup.number); break;
    }
    rank.go_on();
}

void World::go_until_quiet()
{
    // A plan may wish to be asked for ever; nobody waits for that.
    while (owed_ > 0 && !journal.failed()) {
        const Wakeup next = queue_.take();
        owed_ -= next.what != Wake::kPlan;
        handle(next);
        if (++handled_ > kEventsMax) fail_endless();
    }
}

void World::fail_endless()
{
    for (const auto &rank : ranks_) {
        if (!rank->is_through()) journal.fail("does not end: %s", rank->describe().c_str());
    }
    journal.fail("the run does not end");
}

// Faults are over and nobody asks for anything any more.
void World::finish()
{
    heal_all();
    for (const auto &rank : ranks_) {
        if (!rank->is_through()) {
            journal.fail("waits for ever: %s", rank->describe().c_str());
        }
        if (!journal.failed()) rank->begin_finish();
        go_until_quiet();
    }
    for (const auto &rank : ranks_) {
        uint32_t round = 0;
        while (!journal.failed() && !rank->write_back()) {
            go_until_quiet();
            if (++round > kRoundsMax) journal.fail("what is dirty is never written back");
        }
        go_until_quiet();
        for (bool done = false; !done && !journal.failed();) {
            rank->read_back(&done);
            go_until_quiet();
        }
        if (!journal.failed()) rank->destroy_all();
        go_until_quiet();
        if (!journal.failed()) rank->check_empty();
    }
}

Outcome World::run()
{
    journal.line("%s", describe(setup).c_str());
    for (const auto &rank : ranks_) rank->start();
    if (setup.faults_max > 0) wake(random.below(setup.fault_gap_us * 1000), Wake::kFault, 0);
    go_until_quiet();
    if (!journal.failed()) finish();
    char text[256];
    if (assertion_failures(text, sizeof text) > 0) journal.fail("%s", text);
    Outcome outcome;
    outcome.failure = journal.failure();
    outcome.hash = journal.hash();
    outcome.ended = journal.now;
    for (const auto &rank : ranks_) counts.events += rank->told();
    outcome.counts = counts;
    return outcome;
}

Outcome run(const Options &options)
{
    World world(options);
    return world.run();
}

}  // namespace stepwell::ranks
