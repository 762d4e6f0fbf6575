// SPDX-License-Identifier: Apache-2.0
// Claims about the ranks of a host: threads of this process where a rank is only a record, forked
// processes where it has to stop or die.
#include "lib/collective/node.h"
#include "tests/unit/collective/exchange.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sys/syscall.h>
#include <thread>

namespace stepwell::collective {
namespace {

using testing::Exchange;
using testing::ForkedRank;
using ::testing::HasSubstr;

using Joined = std::vector<Result<std::unique_ptr<Node>>>;

HostId host(uint64_t number)
{
    HostId id = this_host();
    id.boot = {number, number};
    id.known = 1;
    return id;
}

// Each rank joins on a thread of its own; `change` may alter its options before.
Joined join_all(uint32_t ranks, const std::function<void(NodeOptions &)> &change)
{
    Exchange exchange(ranks);
    std::vector<std::thread> threads;
    std::vector<std::unique_ptr<Result<std::unique_ptr<Node>>>> results(ranks);
    for (uint32_t rank = 0; rank < ranks; ++rank) {
        threads.emplace_back([&, rank] {
            NodeOptions options;
            options.rank = rank;
            options.ranks = ranks;
            options.exchange = exchange.of(rank);
            options.host = host(1);
            change(options);
            results[rank] = std::make_unique<Result<std::unique_ptr<Node>>>(Node::join(options));
        });
    }
    Joined joined;
    for (uint32_t rank = 0; rank < ranks; ++rank) {
        threads[rank].join();
        joined.push_back(std::move(*results[rank]));
    }
    return joined;
}

TEST(Node, RanksOfOneHostFindEachOther)
{
    const Joined joined =
        join_all(7, [](NodeOptions &options) { options.host = host(options.rank % 3); });
    for (uint32_t rank = 0; rank < 7; ++rank) {
        ASSERT_TRUE(joined[rank].ok());
        const Node &node = *joined[rank].value();
        std::vector<uint32_t> expected;
        for (uint32_t other = rank % 3; other < 7; other += 3) expected.push_back(other);
        EXPECT_EQ(node.ranks(), expected);
        EXPECT_EQ(node.ranks()[node.index()], rank);
    }
}

TEST(Node, NamespacesAndUsersAndUnknownHostsKeepRanksApart)
{
    const Joined joined = join_all(5, [](NodeOptions &options) {
        if (options.rank == 1) ++options.host.process_namespace;
        if (options.rank == 2) ++options.host.mount_namespace;
        if (options.rank == 3) ++options.host.user;
        if (options.rank >= 4) options.host.known = 0;
    });
    for (uint32_t rank = 0; rank < 5; ++rank) {
        ASSERT_TRUE(joined[rank].ok());
        EXPECT_EQ(joined[rank].value()->ranks(), std::vector<uint32_t>{rank});
        EXPECT_EQ(joined[rank].value()->describe((rank + 1) % 5),
                  format_text("rank %u is on another host", (rank + 1) % 5));
    }
}

TEST(Node, EachSeesWhereTheOthersStand)
{
    const Joined joined = join_all(3, [](NodeOptions &) {});
    Node &first = *joined[0].value();
    EXPECT_THAT(first.describe(1), HasSubstr("began no collective"));
    joined[1].value()->stands(17, "gathering 'w'");
    const Standing standing = first.standing(1);
    EXPECT_TRUE(standing.here);
    EXPECT_EQ(standing.life, Life::kRuns);
    EXPECT_EQ(standing.collective, 17u);
    EXPECT_EQ(standing.text, "gathering 'w'");
    EXPECT_EQ(first.describe(1), format_text("rank 1 (process %d) runs; collective 17: gathering "
                                             "'w'",
                                             getpid()));
    joined[2].value()->stands(18, std::string(1000, 'x'));
    EXPECT_EQ(first.standing(2).text, std::string(kStandingBytesMax, 'x'));
}

TEST(Node, ARankThatClosedHasLeft)
{
    Joined joined = join_all(2, [](NodeOptions &) {});
    joined[1].take().reset();
    EXPECT_TRUE(joined[0].value()->standing(1).left);
    EXPECT_THAT(joined[0].value()->describe(1), HasSubstr("closed"));
}

TEST(Node, ATextIsReadWholeWhileItChanges)
{
    const Joined joined = join_all(2, [](NodeOptions &) {});
    Node &writer = *joined[0].value();
    const Node &reader = *joined[1].value();
    std::atomic<bool> ends{false};
    std::thread thread([&] {
        for (uint64_t number = 1; !ends; ++number) {
            writer.stands(number,
                          std::string(number % 100 + 1, static_cast<char>('a' + number % 26)));
        }
    });
    for (uint32_t i = 0; i < 2000; ++i) {
        const Standing standing = reader.standing(0);
        if (standing.collective == 0) continue;
        ASSERT_EQ(standing.text, std::string(standing.collective % 100 + 1,
                                             static_cast<char>('a' + standing.collective % 26)));
    }
    ends = true;
    thread.join();
}

TEST(Node, TheMemoryHasNoNameOnceAllHaveIt)
{
    const Joined joined = join_all(3, [](NodeOptions &) {});
    std::ifstream maps("/proc/self/maps");
    uint32_t found = 0;
    for (std::string line; std::getline(maps, line);) {
        if (line.find("/stepwell-") == std::string::npos) continue;
        ++found;
        EXPECT_THAT(line, HasSubstr("(deleted)"));
    }
    EXPECT_EQ(found, 3u);
}

TEST(Node, MemoryIsOpenedByItsOwnNameAndSizeAlone)
{
    Result<std::unique_ptr<Segment>> made = Segment::create(2);
    ASSERT_TRUE(made.ok()) << made.status().sentence();
    const SegmentName name = made.value()->name();
    EXPECT_TRUE(Segment::open(name, 2).ok());
    EXPECT_EQ(Segment::open(name, 3).status().code(), STW_ERROR_PERMISSION);
    made.take().reset();
    // Gone with the rank that made it: an error of that rank, not of the file system.
    const Status gone = Segment::open(name, 2).status();
    EXPECT_EQ(gone.code(), STW_ERROR_PEER);
    EXPECT_THAT(gone.sentence(), HasSubstr("the rank that made '/stepwell-"));
}

// ----------------------------------------------------------------------------------- failures --

TEST(Node, HostBudgetsAreAddedUpAndRefusedWithTheArithmetic)
{
    const auto asks = [](uint64_t limit) {
        return join_all(4, [limit](NodeOptions &options) {
            options.host = host(options.rank / 3);  // 0, 1, 2 and 3
            options.host_bytes = 100 + options.rank;
            options.node_host_bytes = options.rank == 1 ? limit : 1000;
        });
    };
    const Joined fits = asks(303);
    for (const auto &node : fits) ASSERT_TRUE(node.ok());
    EXPECT_EQ(fits[0].value()->host_bytes(), 303u);
    EXPECT_EQ(fits[3].value()->host_bytes(), 103u);
    Joined refused = asks(302);
    for (auto &node : refused) {
        ASSERT_EQ(node.status().code(), STW_ERROR_BUDGET);
        EXPECT_EQ(node.status().detail()->needed_bytes, 303u);
        EXPECT_EQ(node.status().detail()->free_bytes, 302u);
        EXPECT_STREQ(node.status().sentence(),
                     "The host of rank 0 has 3 ranks, whose host_bytes add up to 303 (100 of rank "
                     "0 + 101 of rank 1 + 102 of rank 2): 1 more than its node_host_bytes, 302; "
                     "give each at most 100.");
    }
}

TEST(Node, WithoutALimitAnyHostBudgetsDo)
{
    for (const auto &node :
         join_all(2, [](NodeOptions &options) { options.host_bytes = UINT64_MAX; })) {
        EXPECT_TRUE(node.ok());
    }
}

TEST(Node, WhatFailsOnOneRankFailsOnAll)
{
    // Rank 2 is told of memory that is not there.
    Joined joined = join_all(4, [](NodeOptions &options) {
        if (options.rank != 2) return;
        auto calls = std::make_shared<uint32_t>(0);
        options.exchange = [calls, inner = options.exchange](const void *record, void *records,
                                                             uint32_t bytes) {
            Status status = inner(record, records, bytes);
            if (++*calls == 2) static_cast<uint8_t *>(records)[8] ^= 1;
            return status;
        };
    });
    EXPECT_THAT(joined[2].status().sentence(), HasSubstr("has ended, or could not join"));
    for (const uint32_t rank : {0u, 1u, 3u}) {
        EXPECT_EQ(joined[rank].status().code(), STW_ERROR_PEER);
        EXPECT_EQ(joined[rank].status().detail()->rank, 2);
        EXPECT_THAT(joined[rank].status().sentence(), HasSubstr("Rank 2 could not join"));
    }
}

TEST(Node, DifferentBuildsAreRefused)
{
    Joined joined = join_all(2, [](NodeOptions &options) {
        if (options.rank == 0) return;
        options.exchange = [inner = options.exchange](const void *record, void *records,
                                                      uint32_t bytes) {
            std::vector<uint64_t> changed(bytes / 8);
            std::memcpy(changed.data(), record, bytes);
            ++changed[0];
            return inner(changed.data(), records, bytes);
        };
    });
    for (auto &node : joined) EXPECT_EQ(node.status().code(), STW_ERROR_MISMATCH);
}

TEST(Node, AnExchangeThatFailsIsPassedOn)
{
    for (uint32_t fails_at = 1; fails_at <= 3; ++fails_at) {
        Joined joined = join_all(2, [fails_at](NodeOptions &options) {
            auto calls = std::make_shared<uint32_t>(0);
            options.exchange = [calls, fails_at, inner = options.exchange](
                                   const void *record, void *records, uint32_t bytes) {
                if (++*calls < fails_at) return inner(record, records, bytes);
                return Status::error(STW_ERROR_PEER, "It failed.");
            };
        });
        for (auto &node : joined) EXPECT_EQ(node.status().code(), STW_ERROR_PEER);
    }
    NodeOptions options;
    options.rank = 3;
    options.ranks = 3;
    EXPECT_EQ(Node::join(options).status().code(), STW_ERROR_INVALID);
}

// ---------------------------------------------------------------------------------- processes --

TEST(NodeOfProcesses, TellsWhoRunsIsStoppedOrGone)
{
    Exchange exchange(3);
    const auto options = [&exchange](uint32_t rank) {
        NodeOptions made;
        made.rank = rank;
        made.ranks = 3;
        made.exchange = exchange.of(rank);
        return made;
    };
    const auto child = [&](uint32_t rank) {
        Result<std::unique_ptr<Node>> node = Node::join(options(rank));
        if (node.ok()) node.value()->stands(rank, "waiting");
        exchange.meet();
        for (;;) pause();
    };
    ForkedRank stopped([&] { child(1); });
    ForkedRank killed([&] { child(2); });
    Result<std::unique_ptr<Node>> joined = Node::join(options(0));
    exchange.meet();
    ASSERT_TRUE(joined.ok()) << joined.status().sentence();
    const Node &node = *joined.value();
    if (!this_host().known) GTEST_SKIP() << "/proc does not tell this host from others";
    ASSERT_EQ(node.ranks(), (std::vector<uint32_t>{0, 1, 2}));
    EXPECT_EQ(node.standing(0).life, Life::kRuns);
    EXPECT_EQ(node.standing(1).life, Life::kRuns);
    stopped.stop();
    killed.end(SIGKILL);
    EXPECT_EQ(node.standing(1).life, Life::kStopped);
    EXPECT_EQ(node.standing(1).text, "waiting");
    EXPECT_EQ(node.standing(2).life, Life::kGone);
    EXPECT_EQ(node.describe(1),
              format_text("rank 1 (process %d) is stopped; collective 1: waiting", stopped.pid()));
    EXPECT_THAT(node.describe(2), HasSubstr("is gone; collective 2: waiting"));
    EXPECT_FALSE(node.standing(2).left);
}

TEST(Process, ALaterOneWithTheSameNumberIsNotTheSame)
{
    ProcessId self = this_process();
    EXPECT_EQ(self.pid, getpid());
    EXPECT_EQ(life_of(self), Life::kRuns);
    ++self.start_ticks;
    EXPECT_EQ(life_of(self), Life::kGone);
    EXPECT_EQ(life_of({self.pid, 0}), Life::kUnknown);
}

TEST(Process, OneThatEndedIsGoneBeforeAnybodyWaitedForIt)
{
    testing::Shared<ProcessId> id;
    siginfo_t info{};
    ForkedRank rank([&id] { *id = this_process(); });
    ASSERT_EQ(waitid(P_PID, static_cast<id_t>(rank.pid()), &info, WEXITED | WNOWAIT), 0);
    EXPECT_EQ(life_of(*id), Life::kGone);
}

TEST(Process, OneWhoseFirstThreadEndedRuns)
{
    testing::Shared<ProcessId> id;
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    ForkedRank rank([&] {
        *id = this_process();
        pthread_t second;
        pthread_create(
            &second, nullptr,
            [](void *fd) -> void * {
                // The first thread is gone when its state says so.
                for (const ProcessId self = this_process();;) {
                    char path[64];
                    char text[256] = {};
                    std::snprintf(path, sizeof path, "/proc/%lld/stat",
                                  static_cast<long long>(self.pid));
                    std::ifstream(path).read(text, sizeof text - 1);
                    const char *end = std::strrchr(text, ')');
                    if (end && end[2] == 'Z') break;
                    sched_yield();
                }
                const char done = 1;
                if (write(*static_cast<int *>(fd), &done, 1) != 1) _exit(1);
                for (;;) pause();
            },
            &ends[1]);
        syscall(SYS_exit, 0);  // of this thread alone; pthread_exit would unwind the test
    });
    char done = 0;
    close(ends[1]);
    ASSERT_EQ(read(ends[0], &done, 1), 1);
    close(ends[0]);
    EXPECT_EQ(life_of(*id), Life::kRuns);
}

TEST(Process, ThisHostIsItself)
{
    const HostId here = this_host();
    if (!here.known) GTEST_SKIP() << "/proc does not tell this host from others";
    EXPECT_TRUE(here.same_as(this_host()));
    EXPECT_NE(here.boot[0], 0u);
    HostId unknown = here;
    unknown.known = 0;
    EXPECT_FALSE(unknown.same_as(unknown));
}

}  // namespace
}  // namespace stepwell::collective
