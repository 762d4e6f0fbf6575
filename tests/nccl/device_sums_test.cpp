// SPDX-License-Identifier: Apache-2.0
// Sums on a device in each dtype, what an optimizer step makes of them on all ranks, and groups of
// ranks that hold the same shards.
#include "tests/nccl/ranks_rig.h"

#include <cmath>
#include <limits>

extern "C" {
int cuMemAlloc_v2(uint64_t *address, size_t bytes);
int cuMemFree_v2(uint64_t address);
int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t bytes, void *stream);
}

namespace stepwell {
namespace {

using Does = Kernel::Does;

class DeviceSums : public Ranks {};

// Some that go together, and some that are alone.
constexpr uint64_t kSizes[] = {1, 77, 5'000, 40'001, 1'200'000};

// Of so many digits that a sum of them in 16 bits is rounded.
float part_of(uint32_t rank, uint64_t i)
{
    return 1.0f + static_cast<float>((i * 5 + rank * 29) % 128) / 128;
}

float sum_of(uint32_t ranks, uint64_t i)
{
    float total = 0;
    for (uint32_t rank = 0; rank < ranks; ++rank) total += part_of(rank, i);
    return total;
}

std::string seed_of(const Rank &rank, uint32_t seed)
{
    return "delay_us=100,memory=512M,seed=" + std::to_string(seed * 16 + rank.rank + 1);
}

// In the tensor's dtype each, added in f32, rounded once.
TEST_P(DeviceSums, HalvesAreAddedInSinglesAndRoundedOnce)
{
    run(GetParam(), [](Rank &rank) {
        rank.open(seed_of(rank, 1), 64, 128);
        if (testing::Test::HasFailure()) return;
        for (const uint32_t dtype : {uint32_t{STW_BF16}, uint32_t{STW_F16}}) {
            std::vector<stw_tensor *> gradients;
            const std::string prefix = dtype == STW_BF16 ? "b" : "h";
            for (const uint64_t size : kSizes)
                gradients.push_back(rank.make(prefix + std::to_string(size), size, STW_ROLE_GRAD,
                                              STW_PARTITION_SHARDED, dtype));
            gradients.push_back(
                rank.make(prefix + "all", 999, STW_ROLE_GRAD, STW_PARTITION_REPLICATED, dtype));
            for (stw_tensor *gradient : gradients)
                rank.use(gradient, STW_REDUCE, STW_WHOLE, rank.streams[0], Does::kAdd,
                         [&](uint64_t i) { return part_of(rank.rank, i); });
            for (stw_tensor *gradient : gradients)
                rank.use(gradient, STW_READ, STW_SHARD, rank.streams[1], Does::kCompare,
                         [&](uint64_t i) { return rounded(sum_of(rank.size, i), dtype); });
        }
        rank.end();
    });
}

// By option: a gradient in f32, to which views in 16 bits are added over micro-batches.
TEST_P(DeviceSums, HalvesAreAddedToSinglesWithoutRounding)
{
    run(GetParam(), [](Rank &rank) {
        rank.open(seed_of(rank, 2), 64, 128);
        if (testing::Test::HasFailure()) return;
        for (const uint32_t dtype : {uint32_t{STW_BF16}, uint32_t{STW_F16}}) {
            std::vector<stw_tensor *> gradients;
            const std::string prefix = dtype == STW_BF16 ? "b" : "h";
            for (const uint64_t size : kSizes)
                gradients.push_back(rank.make(prefix + std::to_string(size), size, STW_ROLE_GRAD));
            for (const uint32_t flags : {uint32_t{STW_RELEASE_MORE}, uint32_t{0}})
                for (stw_tensor *gradient : gradients)
                    rank.use(
                        gradient, STW_REDUCE, STW_WHOLE, rank.streams[flags == 0], Does::kAdd,
                        [&](uint64_t i) { return part_of(rank.rank, i); }, flags, dtype);
            for (stw_tensor *gradient : gradients)
                rank.use(gradient, STW_READ, STW_SHARD, rank.streams[0], Does::kCompare,
                         [&](uint64_t i) { return 2 * sum_of(rank.size, i); });
        }
        rank.end();
    });
}

INSTANTIATE_TEST_SUITE_P(Sizes, DeviceSums, testing::Values(1u, 2u, 3u));

// ----------------------------------------------------------------------------------- optimizer --

constexpr uint64_t kElements = 60'001;

float parameter(uint64_t i)
{
    return static_cast<float>(i % 512);
}

// Whole numbers: sums and updates are exact.
float gradient(uint32_t rank, uint64_t i)
{
    return static_cast<float>((i + rank) % 7);
}

double norm_of(uint32_t ranks)
{
    double sum = 0;
    for (uint64_t i = 0; i < kElements; ++i) {
        double total = 0;
        for (uint32_t rank = 0; rank < ranks; ++rank)
            total += static_cast<double>(gradient(rank, i));
        sum += total * total;
    }
    return std::sqrt(sum);
}

class Trainer {
public:
    explicit Trainer(Rank &rank) : rank_(rank)
    {
        stw_optimizer_options options = STW_OPTIMIZER_OPTIONS_INIT;
        stw_optimizer_entry entry = STW_OPTIMIZER_ENTRY_INIT;
        stw_hyper hyper = STW_HYPER_INIT;
        options.algorithm = STW_OPTIMIZER_SGD;
        hyper.lr = 0.5;
        entry.parameter = parameter_ = rank.make("p", kElements, STW_ROLE_PARAM);
        entry.gradient = gradient_ = rank.make("g", kElements, STW_ROLE_GRAD);
        EXPECT_OK(stw_optimizer_create(rank.runtime, &options, &optimizer_));
        EXPECT_OK(stw_optimizer_set_hyper(optimizer_, 0, &hyper));
        EXPECT_OK(stw_optimizer_add(optimizer_, &entry, 1));
        rank.use(parameter_, STW_WRITE, STW_SHARD, rank.streams[0], Does::kSet, parameter);
    }
    ~Trainer() { EXPECT_OK(stw_optimizer_destroy(optimizer_)); }
    Trainer(const Trainer &) = delete;
    Trainer &operator=(const Trainer &) = delete;

    void add(uint32_t as_rank, float more = 0)
    {
        rank_.use(gradient_, STW_REDUCE, STW_WHOLE, rank_.streams[0], Does::kAdd, [&](uint64_t i) {
            return gradient(as_rank, i) + (i == kElements / 3 ? more : 0);
        });
    }
    stw_status step(double clip_norm, stw_update_result *result_out)
    {
        stw_update_options options = STW_UPDATE_OPTIONS_INIT;
        options.flags = STW_UPDATE_SKIP_NONFINITE | STW_UPDATE_WAIT;
        options.clip_norm = clip_norm;
        return stw_optimizer_step(optimizer_, &options, result_out);
    }
    void expect_parameters(const std::function<float(uint64_t)> &value)
    {
        rank_.use(parameter_, STW_READ, STW_WHOLE, rank_.streams[1], Does::kCompare, value);
    }

private:
    Rank &rank_;
    stw_optimizer *optimizer_ = nullptr;
    stw_tensor *parameter_ = nullptr;
    stw_tensor *gradient_ = nullptr;
};

float updated(uint32_t ranks, uint64_t i)
{
    float sum = 0;
    for (uint32_t rank = 0; rank < ranks; ++rank) sum += gradient(rank, i);
    return parameter(i) - 0.5f * sum;
}

TEST_P(DeviceSums, AnOptimizerStepsByTheNormOfAllRanks)
{
    run(GetParam(), [](Rank &rank) {
        rank.open(seed_of(rank, 3), 24, 128);
        if (testing::Test::HasFailure()) return;
        {
            Trainer trainer(rank);
            stw_update_result result = STW_UPDATE_RESULT_INIT;
            const double norm = norm_of(rank.size);
            trainer.add(rank.rank);
            ASSERT_OK(trainer.step(2 * norm, &result));
            EXPECT_DOUBLE_EQ(result.norm, norm);
            EXPECT_EQ(result.clip_coefficient, 1.0);
            trainer.expect_parameters([&](uint64_t i) { return updated(rank.size, i); });
            trainer.add(rank.rank);
            ASSERT_OK(trainer.step(norm / 4, &result));
            EXPECT_DOUBLE_EQ(result.clip_coefficient, norm / 4 / (result.norm + 1e-6));
        }
        rank.end();
    });
}

// The last of a gradient as memory of the program's, which the library frees.
TEST_P(DeviceSums, AdoptedMemoryOfTheDeviceIsSummedAsAViewIs)
{
    run(GetParam(), [](Rank &rank) {
        rank.open(seed_of(rank, 6), 24, 128);
        if (testing::Test::HasFailure()) return;
        struct Loan {
            void *context;
            uint64_t address;
        } loan{};
        ASSERT_EQ(cuDevicePrimaryCtxRetain(&loan.context, rank.program_device), 0);
        const auto freed = [](void *user) {  // on a thread of the library
            const auto *mine = static_cast<const Loan *>(user);
            EXPECT_EQ(cuCtxSetCurrent(mine->context), 0);
            EXPECT_EQ(cuMemFree_v2(mine->address), 0);
            EXPECT_EQ(cuCtxSetCurrent(nullptr), 0);
        };
        for (const uint64_t size : kSizes) {
            stw_tensor *gradient = rank.make("g" + std::to_string(size), size, STW_ROLE_GRAD);
            rank.use(
                gradient, STW_REDUCE, STW_WHOLE, rank.streams[0], Does::kAdd,
                [&](uint64_t i) { return part_of(rank.rank, i); }, STW_RELEASE_MORE);
            std::vector<float> values(size);
            for (uint64_t i = 0; i < size; ++i) values[i] = part_of(rank.rank, i);
            ASSERT_EQ(cuMemAlloc_v2(&loan.address, size * 4), 0);
            ASSERT_EQ(cuMemcpyHtoDAsync_v2(loan.address, values.data(), size * 4, rank.streams[1]),
                      0);
            void *const there = reinterpret_cast<void *>(loan.address);
            stw_reduce_options options = STW_REDUCE_OPTIONS_INIT;
            options.tier = STW_TIER_DEVICE, options.stream = rank.streams[1];
            if (rank.size > 1) {
                EXPECT_EQ(stw_reduce(gradient, there, &options), STW_ERROR_UNSUPPORTED);
                EXPECT_NE(std::string(stw_last_error()).find("or call stw_reduce_adopt"),
                          std::string::npos)
                    << stw_last_error();
            }
            ASSERT_OK(stw_reduce_adopt(gradient, there, &options, freed, &loan));
            rank.use(gradient, STW_READ, STW_SHARD, rank.streams[0], Does::kCompare,
                     [&](uint64_t i) { return 2 * sum_of(rank.size, i); });
            ASSERT_OK(stw_runtime_drain(rank.runtime, 0));
            stw_tensor_info info = {};
            info.struct_size = sizeof info;
            ASSERT_OK(stw_tensor_info_get(gradient, &info));
            if (info.shard_elements == size) continue;  // this rank has all of it
            EXPECT_EQ(stw_tensor_read(gradient, values.data(), nullptr), STW_ERROR_UNSUPPORTED);
            EXPECT_NE(std::string(stw_last_error()).find("or read STW_SHARD"), std::string::npos)
                << stw_last_error();
        }
        // A rank without a gradient takes part, where the group works at a device too.
        stw_tensor *none = rank.make("none", 40'000, STW_ROLE_GRAD);
        if (rank.rank == 0) {
            rank.use(none, STW_REDUCE, STW_WHOLE, rank.streams[0], Does::kAdd,
                     [](uint64_t i) { return part_of(0, i); });
        } else {
            ASSERT_OK(stw_reduce(none, nullptr, nullptr));
        }
        rank.use(none, STW_READ, STW_SHARD, rank.streams[0], Does::kCompare,
                 [](uint64_t i) { return part_of(0, i); });
        cuDevicePrimaryCtxRelease_v2(rank.program_device);
        rank.end();
    });
}

TEST_P(DeviceSums, AnOverflowOfOneRankIsSkippedOnAll)
{
    run(GetParam(), [](Rank &rank) {
        rank.open(seed_of(rank, 4), 24, 128);
        if (testing::Test::HasFailure()) return;
        {
            Trainer trainer(rank);
            stw_update_result result = STW_UPDATE_RESULT_INIT;
            const float infinity = std::numeric_limits<float>::infinity();
            trainer.add(rank.rank, rank.rank == rank.size - 1 ? infinity : 0);
            EXPECT_EQ(trainer.step(0, &result), STW_SKIPPED) << stw_last_error();
            EXPECT_EQ(result.nonfinite, 1u);
            EXPECT_EQ(result.skipped, 1u);
            trainer.expect_parameters(parameter);
        }
        rank.end();
    });
}

// ------------------------------------------------------------------------------------ replicas --

// 0 and 1 hold shards between them, and so do 2 and 3; 0 and 2 hold the same ones, and 1 and 3.
TEST_F(DeviceSums, ReplicasSumOverBothGroups)
{
    run(4, [](Rank &rank) {
        rank.begin_alone(seed_of(rank, 5));
        const uint32_t node = rank.rank / 2, place = rank.rank % 2;
        const auto part = [](uint32_t number) { return static_cast<char>(number); };
        ASSERT_OK(rank.join(place, 2, part(1 + node), &rank.group));
        ASSERT_OK(rank.join(node, 2, part(4 + place), &rank.replicas));
        ASSERT_OK(rank.try_open(24, kBucketBlocks + 24 + 128));
        stw_tensor *large = rank.make("large", 1'200'000, STW_ROLE_GRAD);
        stw_tensor *all = rank.make("all", 999, STW_ROLE_GRAD, STW_PARTITION_REPLICATED);
        for (stw_tensor *tensor : {large, all})
            rank.use(tensor, STW_REDUCE, STW_WHOLE, rank.streams[0], Does::kAdd,
                     [&](uint64_t i) { return gradient(rank.rank, i); });
        const auto sum = [](uint64_t i) {
            return gradient(0, i) + gradient(1, i) + gradient(2, i) + gradient(3, i);
        };
        for (stw_tensor *tensor : {large, all})
            rank.use(tensor, STW_READ, STW_SHARD, rank.streams[1], Does::kCompare, sum);
        {
            Trainer trainer(rank);
            stw_update_result result = STW_UPDATE_RESULT_INIT;
            trainer.add(rank.rank);
            ASSERT_OK(trainer.step(0, &result));
            EXPECT_DOUBLE_EQ(result.norm, norm_of(4));
            trainer.expect_parameters([](uint64_t i) { return updated(4, i); });
            // Of one rank: both groups hear of it.
            trainer.add(rank.rank, rank.rank == 3 ? std::numeric_limits<float>::infinity() : 0);
            EXPECT_EQ(trainer.step(0, &result), STW_SKIPPED) << stw_last_error();
        }
        rank.end();
    });
}

}  // namespace
}  // namespace stepwell
