// SPDX-License-Identifier: Apache-2.0
// The suite over MPI, run under mpirun: the ranks are those of MPI_COMM_WORLD. And what only MPI
// has: communicators of the program's, threads, its beginning and its end.
// usage: ranks-mpi MODULE THREADS [GTEST OPTION]...; THREADS: multiple, single, or none, where MPI
// is not initialised at all.
#include "tests/conformance/ranks/ranks.h"

#include "drivers/registry.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <sched.h>

#define OMPI_SKIP_MPICXX  1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

namespace conformance::ranks {

const stw_collective_ops *driver = nullptr;

namespace {

bool finalized = false;
MPI_Comm test_comm = MPI_COMM_NULL;  // of the suite's own words

stw_status open_at(MPI_Fint handle, uint64_t timeout_ns, stw_collective **group_out,
                   stw_driver_error *error_out)
{
    stw_collective_options options = {};
    options.struct_size = sizeof options;
    options.mpi_comm = handle;
    options.timeout_ns = timeout_ns;
    return driver->open(nullptr, &options, group_out, error_out);
}

}  // namespace

stw_status open_group(stw_collective **group_out, stw_driver_error *error_out)
{
    return open_at(0, kWaitNs, group_out, error_out);
}

void meet()
{
    MPI_Barrier(test_comm);
}

namespace {

class Mpi : public Ranks {
protected:
    // Refused, with a sentence that has these words.
    void refuses(MPI_Fint handle, stw_status status, const char *words)
    {
        stw_collective *group = nullptr;
        stw_driver_error error = STW_DRIVER_ERROR_INIT;
        EXPECT_EQ(open_at(handle, kWaitNs, &group, &error), status);
        EXPECT_NE(std::strstr(error.sentence, words), nullptr) << error.sentence;
        EXPECT_EQ(group, nullptr);
    }
};

TEST_F(Mpi, AGroupIsOfItsCommunicator)
{
    MPI_Comm comm = MPI_COMM_NULL;
    const int backwards = static_cast<int>(size_ - 1 - rank_);
    MPI_Comm_split(MPI_COMM_WORLD, 0, backwards, &comm);
    stw_collective *group = nullptr;
    ASSERT_EQ(open_at(MPI_Comm_c2f(comm), kWaitNs, &group, &error_), STW_OK) << error_.sentence;
    // It is a duplicate: the program's own may go.
    MPI_Comm_free(&comm);
    stw_collective_info info = {};
    info.struct_size = sizeof info;
    driver->info(group, &info);
    EXPECT_EQ(info.rank, static_cast<uint32_t>(backwards));
    std::vector<uint32_t> ranks(size_);
    uint64_t work = 0;
    ASSERT_EQ(driver->exchange(group, &rank_, ranks.data(), sizeof rank_, &work), STW_OK);
    ASSERT_EQ(wait(group, work, &error_), STW_OK) << error_.sentence;
    for (uint32_t i = 0; i < size_; ++i) EXPECT_EQ(ranks[i], size_ - 1 - i);
    EXPECT_EQ(driver->close(group, kWaitNs), STW_OK);
}

TEST_F(Mpi, ACommunicatorThatIsNoneIsRefused)
{
    refuses(MPI_Comm_c2f(MPI_COMM_NULL), STW_ERROR_INVALID, "names no communicator");
    MPI_Comm comm = MPI_COMM_NULL;
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    const MPI_Fint handle = MPI_Comm_c2f(comm);
    MPI_Comm_free(&comm);
    refuses(handle, STW_ERROR_INVALID, "or one that was freed");
}

TEST_F(Mpi, WhatTheEngineDoesNotTakeIsRefused)
{
    stw_collective_options options = {};
    options.struct_size = sizeof options;
    options.communicator = this;
    stw_collective *group = nullptr;
    EXPECT_EQ(driver->open(nullptr, &options, &group, &error_), STW_ERROR_INVALID);
    EXPECT_NE(std::strstr(error_.sentence, "MPI_Comm_c2f"), nullptr) << error_.sentence;
    options.communicator = nullptr;
    options.struct_size -= 8;
    EXPECT_EQ(driver->open(nullptr, &options, &group, &error_), STW_ERROR_INVALID);
}

TEST_F(Mpi, AnOpenThatARankDoesNotJoinTimesOut)
{
    if (size_ == 1) GTEST_SKIP() << "one rank waits for nobody";
    MPI_Comm comm = MPI_COMM_NULL;
    MPI_Comm_dup(MPI_COMM_WORLD, &comm);
    stw_collective *group = nullptr;
    if (rank_ == 0) {
        EXPECT_EQ(open_at(MPI_Comm_c2f(comm), 20'000'000, &group, &error_), STW_ERROR_TIMEOUT);
        EXPECT_NE(std::strstr(error_.sentence, "Not all"), nullptr) << error_.sentence;
    }
    meet();
    // What it began ends when the others come.
    if (rank_ != 0) {
        EXPECT_EQ(open_at(MPI_Comm_c2f(comm), kWaitNs, &group, &error_), STW_OK) << error_.sentence;
        if (group != nullptr) driver->close(group, kWaitNs);
    }
    meet();
}

TEST_F(Mpi, CallsMayComeFromAnyThread)
{
    stw_collective_info info = {};
    info.struct_size = sizeof info;
    driver->info(group_, &info);
    EXPECT_EQ(info.caller_thread, 0u);
    EXPECT_STREQ(info.remark, "");
}

// 2 GiB and more of each rank, counts that an int does not hold.
TEST_F(Mpi, ShardsMayBeLargerThanAnIntCounts)
{
    const char *wanted = std::getenv("STW_TEST_SHARD_BYTES");
    if (wanted == nullptr)
        GTEST_SKIP() << "set STW_TEST_SHARD_BYTES, 2200000001 for example; each rank needs as many "
                        "times that as there are ranks";
    const uint64_t bytes = std::strtoull(wanted, nullptr, 10);
    std::vector<char> whole(size_ * bytes);
    const auto byte_of = [](uint64_t rank, uint64_t i) {
        return static_cast<char>(i ^ (i >> 20) ^ (rank * 91));
    };
    char *own = whole.data() + rank_ * bytes;
    for (uint64_t i = 0; i < bytes; ++i) own[i] = byte_of(rank_, i);
    uint64_t work = 0;
    ASSERT_EQ(driver->all_gather(group_, own, whole.data(), bytes, nullptr, &work), STW_OK);
    ASSERT_EQ(wait(work), STW_OK) << error_.sentence;
    uint64_t wrong = 0;
    for (uint64_t rank = 0; rank < size_; ++rank)
        for (uint64_t i = 0; i < bytes; ++i) wrong += whole[rank * bytes + i] != byte_of(rank, i);
    EXPECT_EQ(wrong, 0u);
}

class MpiSingle : public Mpi {};

TEST_F(MpiSingle, WithoutThreadsCallsComeFromTheCallersAlone)
{
    stw_collective_info info = {};
    info.struct_size = sizeof info;
    driver->info(group_, &info);
    EXPECT_EQ(info.caller_thread, 1u);
    EXPECT_NE(std::strstr(info.remark, "MPI_THREAD_MULTIPLE"), nullptr) << info.remark;
    const char record = 'x';
    std::vector<char> records(size_);
    uint64_t work = 0;
    ASSERT_EQ(driver->exchange(group_, &record, records.data(), 1, &work), STW_OK);
    ASSERT_EQ(wait(work), STW_OK) << error_.sentence;
}

// Ends MPI, so it is a run of its own.
class MpiEnd : public Mpi {};

TEST_F(MpiEnd, AfterFinalizeEverythingIsRefusedInASentence)
{
    const char record = 'x';
    std::vector<char> records(size_);
    uint64_t work = 0;
    ASSERT_EQ(driver->exchange(group_, &record, records.data(), 1, &work), STW_OK);
    ASSERT_EQ(wait(work), STW_OK) << error_.sentence;
    ASSERT_EQ(driver->exchange(group_, &record, records.data(), 1, &work), STW_OK);
    MPI_Finalize();
    finalized = true;
    EXPECT_EQ(driver->poll(group_, work, &error_), STW_ERROR_CLOSED);
    EXPECT_NE(std::strstr(error_.sentence, "MPI_Finalize was called"), nullptr) << error_.sentence;
    EXPECT_EQ(driver->exchange(group_, &record, records.data(), 1, &work), STW_ERROR_CLOSED);
    stw_collective *part = nullptr;
    EXPECT_EQ(driver->split(group_, 0, 0, kWaitNs, &part, &error_), STW_ERROR_CLOSED);
    EXPECT_EQ(driver->close(group_, kWaitNs), STW_ERROR_CLOSED);
    group_ = nullptr;
    refuses(0, STW_ERROR_UNSUPPORTED, "MPI does not begin again");
}

// A process that no mpirun started, and that does not know of MPI.
TEST(MpiNone, WithoutMpiOpenSaysWhatToCall)
{
    stw_collective *group = nullptr;
    stw_driver_error error = STW_DRIVER_ERROR_INIT;
    EXPECT_EQ(open_at(0, kWaitNs, &group, &error), STW_ERROR_UNSUPPORTED);
    EXPECT_NE(std::strstr(error.sentence, "call MPI_Init_thread"), nullptr) << error.sentence;
    EXPECT_EQ(group, nullptr);
}

// Rank 0 prints everything, the others what failed.
class FailuresAlone : public testing::EmptyTestEventListener {
    void OnTestPartResult(const testing::TestPartResult &result) override
    {
        if (!result.failed()) return;
        int rank = 0;
        if (!finalized) MPI_Comm_rank(MPI_COMM_WORLD, &rank);
        std::fprintf(stderr, "rank %d: %s:%d: %s\n", rank,
                     result.file_name() != nullptr ? result.file_name() : "?", result.line_number(),
                     result.message());
    }
};

int run(const char *module, const char *threads)
{
    const bool with_mpi = std::strcmp(threads, "none") != 0;
    int rank = 0, provided = 0;
    if (with_mpi) {
        MPI_Init_thread(nullptr, nullptr,
                        std::strcmp(threads, "single") == 0 ? MPI_THREAD_SINGLE
                                                            : MPI_THREAD_MULTIPLE,
                        &provided);
        MPI_Comm_dup(MPI_COMM_WORLD, &test_comm);
        MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    }
    stw_driver_error error = STW_DRIVER_ERROR_INIT;
    if (stepwell::drivers::find_driver(module, &driver, &error) != STW_OK) {
        std::fprintf(stderr, "ranks-mpi: %s\n", error.sentence);
        return 2;
    }
    if (rank != 0) {
        auto &listeners = testing::UnitTest::GetInstance()->listeners();
        delete listeners.Release(listeners.default_result_printer());
        listeners.Append(new FailuresAlone);
    }
    const int result = RUN_ALL_TESTS();
    if (with_mpi && !finalized) MPI_Finalize();
    return result;
}

}  // namespace
}  // namespace conformance::ranks

int main(int count, char **words)
{
    testing::InitGoogleTest(&count, words);
    if (count != 3) {
        std::fprintf(stderr, "usage: ranks-mpi MODULE multiple|single|none [GTEST OPTION]...\n");
        return 2;
    }
    return conformance::ranks::run(words[1], words[2]);
}
