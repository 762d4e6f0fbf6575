// SPDX-License-Identifier: Apache-2.0
// Claims about closing, hung requests and engines that are left behind.
#include "tests/unit/transfer/rig.h"

namespace stepwell::testing {
namespace {

TEST(EngineClose, AnIdleEngineClosesAndRefusesMore)
{
    Rig rig({.paths = 2});
    rig.close();
    rig.close();
    const Job job = rig.job(0, kHost, 0, kDevice, 0);
    EXPECT_EQ(rig.engine->submit(&job, 1).code(), STW_ERROR_CLOSED);
    EXPECT_TRUE(rig.disks[1].wait_closed());
}

TEST(EngineClose, HungRequestsTimeOutAndTheirLateEndIsHarmless)
{
    Rig rig({.depth = 2});
    FakeStorage &disk = rig.disks[0];
    disk.with_lock([&] { disk.by_hand = true; });
    std::vector<Job> jobs;
    for (uint32_t i = 0; i < 5; ++i) jobs.push_back(rig.write(i, kHost, i));
    rig.submit(jobs);
    ASSERT_TRUE(disk.wait_pending(2));
    const std::string lines = rig.engine->describe_in_flight(2);
    EXPECT_NE(lines.find("transfer 1: block 0"), std::string::npos) << lines;
    EXPECT_NE(lines.find("and 3 more"), std::string::npos) << lines;

    Status status = rig.engine->close(1'000'000);
    EXPECT_EQ(status.code(), STW_ERROR_TIMEOUT);
    // The two with the device are in flight, and as many made ready behind them.
    EXPECT_NE(std::string(status.sentence()).find("transfers were still in flight"),
              std::string::npos)
        << status.sentence();
    const uint32_t hung = rig.engine->jobs_in_flight();
    EXPECT_GE(hung, 2u);
    EXPECT_LE(hung, 4u);
    EXPECT_EQ(rig.result(jobs[4].transfer.id).code(), STW_ERROR_CLOSED) << "had not begun";

    disk.complete(2);
    disk.with_lock([&] { disk.by_hand = false; });
    EXPECT_TRUE(rig.result(jobs[0].transfer.id).ok());
    rig.close();
    EXPECT_EQ(rig.order().size(), 5u);
    EXPECT_EQ(rig.doubles(), 0u);
}

TEST(EngineClose, AnAbandonedEngineCallsNobodyAndFreesItselfAtTheEnd)
{
    Rig rig({.paths = 2, .depth = 1});
    for (FakeStorage &disk : rig.disks) disk.with_lock([&] { disk.by_hand = true; });
    std::vector<Job> jobs;
    for (uint32_t i = 0; i < 8; ++i) jobs.push_back(rig.write(i, kHost, i));
    rig.submit(jobs);
    for (FakeStorage &disk : rig.disks) ASSERT_TRUE(disk.wait_pending(1));
    EXPECT_EQ(rig.engine->close(0).code(), STW_ERROR_TIMEOUT);
    const size_t told = rig.order().size();
    rig.engine.reset();
    for (FakeStorage &disk : rig.disks) {
        disk.complete(1);
        disk.with_lock([&] { disk.by_hand = false; });
    }
    for (FakeStorage &disk : rig.disks) EXPECT_TRUE(disk.wait_closed());
    EXPECT_EQ(rig.order().size(), told);
}

TEST(EngineClose, ManyEnginesOpenAndCloseUnderWork)
{
    for (uint32_t round = 0; round < 50; ++round) {
        Rig rig({.paths = 2, .copy_threads = 2});
        std::vector<Job> jobs;
        for (uint32_t i = 0; i < 20; ++i) {
            jobs.push_back(rig.write(i, kHost, i));
            jobs.push_back(rig.job(20 + i, kHost, i, kDevice, i));
        }
        rig.submit(jobs);
        rig.close();
        EXPECT_EQ(rig.order().size(), 40u);
        for (const Job &job : jobs) {
            const Status status = rig.result(job.transfer.id);
            EXPECT_TRUE(status.ok() || status.code() == STW_ERROR_CLOSED) << status.sentence();
        }
    }
}

}  // namespace
}  // namespace stepwell::testing
