// SPDX-License-Identifier: Apache-2.0
// Masters in parts: updates have the bits of whole masters, whatever rounding leaves open, and the
// parts become the master when somebody asks for it.
#include "tests/unit/optimizer/model.h"

namespace stepwell::update::test {
namespace {

constexpr uint64_t kPartsElements =
    30001;  // several blocks of each tensor, and a last byte of one bit
const Shape kInParts{kPartsElements, STW_BF16, STW_BF16, 1024, true};

class MasterParts : public testing::Test {
protected:
    void begin(const Conditions &setup = {})
    {
        world = std::make_unique<World>(setup);
        entry = world->add(kInParts);
        hyper = some_hyper(setup.algorithm);
        ASSERT_TRUE(world->optimizer->set_hyper(0, hyper).ok());
    }
    void train(uint64_t first, uint64_t last)
    {
        for (uint64_t step = first; step <= last; ++step) {
            ASSERT_TRUE(world->step_and_wait().ok());
            world->expect_update(entry, hyper, step, 1.0);
            world->expect_same(entry);
            world->give_gradient(entry);
        }
    }
    // As the runtime does when the program asks for the master.
    Status join()
    {
        const TensorId master = world->tiers.create(kPartsElements * 4, 2048, false);
        bool begun = false;
        const Status status =
            world->optimizer->join_master(entry.parameter, master, UINT64_MAX, &begun);
        EXPECT_TRUE(begun);
        EXPECT_EQ(world->tiers.contents(entry.low), Contents::kEmpty);
        EXPECT_EQ(world->tiers.contents(entry.open), Contents::kEmpty);
        entry.master = master;
        entry.low = entry.open = kNone;
        return status;
    }

    std::unique_ptr<World> world;
    Entry entry;
    stw_hyper hyper{};
};

// A rate that is a power of two, beside values and gradients of 8 bits: a master is a tie often.
TEST_F(MasterParts, KeepsMastersThatAreTies)
{
    Conditions setup;
    setup.algorithm = STW_OPTIMIZER_SGD;
    begin(setup);
    hyper.weight_decay = hyper.momentum = hyper.dampening = 0;
    hyper.lr = 0x1p-6;
    ASSERT_TRUE(world->optimizer->set_hyper(0, hyper).ok());
    train(1, 4);
    uint64_t open = 0;
    for (const uint8_t bits : world->tiers.bytes(entry.open)) open += std::popcount(bits);
    EXPECT_GT(open, 100u);  // of random masters one in 131,072 is
}

TEST_F(MasterParts, BecomesAMasterThatTheNextUpdateTakes)
{
    for (const double decay : {0.0, 0.9}) {
        Conditions setup;
        setup.average_decay = decay;
        begin(setup);
        train(1, 2);
        ASSERT_TRUE(join().ok());
        world->expect_same(entry);
        train(3, 4);
        const std::vector<TensorId> tensors = world->optimizer->tensors(entry.parameter);
        EXPECT_EQ(tensors.size(), decay == 0.0 ? 5u : 6u);
        EXPECT_EQ(tensors[2], entry.master);
    }
}

TEST_F(MasterParts, HasNoMasterBeforeTheFirstUpdate)
{
    begin();
    ASSERT_TRUE(join().ok());
    EXPECT_EQ(world->tiers.contents(entry.master), Contents::kEmpty);
    // One that is written counts.
    std::vector<float> &master = world->mirrors[entry.parameter].master;
    master.assign(kPartsElements, 0.3F);
    world->tiers.set_bytes(entry.master, master.data());
    train(1, 2);
}

TEST_F(MasterParts, StartsAnewFromAParameterThatWasWritten)
{
    for (const bool joins : {false, true}) {
        begin();
        train(1, 1);
        Mirror &mirror = world->mirrors[entry.parameter];
        mirror.values = world->random_elements(kPartsElements, STW_BF16);
        kernels::convert(mirror.master.data(), STW_F32, mirror.values.data(), STW_BF16,
                         kPartsElements);
        world->tiers.set_bytes(entry.parameter, mirror.values.data());
        if (joins) {
            ASSERT_TRUE(join().ok());
            world->expect_same(entry);
        }
        train(2, 3);
    }
}

TEST_F(MasterParts, KeepsTheResultOfTheLastStep)
{
    begin();
    StepResult before;
    StepOptions options;
    options.wants_verdict = true;
    ASSERT_TRUE(world->step_and_wait(options, &before).ok());
    ASSERT_TRUE(join().ok());
    StepResult after;
    ASSERT_TRUE(world->optimizer->result(&after).ok());
    EXPECT_EQ(after.norm, before.norm);
    EXPECT_EQ(after.updated, 1u);
    EXPECT_EQ(world->optimizer->count(entry.parameter).value(), 1u);
}

TEST_F(MasterParts, FailsAMasterWhosePartsCannotBeRead)
{
    begin();
    train(1, 1);
    world->tiers.refuse(entry.low, 20000, STW_ERROR_IO);
    ASSERT_TRUE(join().ok());
    EXPECT_EQ(world->tiers.failed(entry.master), STW_ERROR_IO);
    ASSERT_EQ(world->failures.size(), 1u);
    EXPECT_EQ(world->failures[0].tensor, entry.master);
}

// The parts of a parameter that was written mean nothing any more.
TEST_F(MasterParts, NeedNotBeReadableOnceTheParameterWasWritten)
{
    for (const bool joins : {false, true}) {
        begin();
        train(1, 1);
        Mirror &mirror = world->mirrors[entry.parameter];
        mirror.values = world->random_elements(kPartsElements, STW_BF16);
        mirror.master.clear();
        world->tiers.set_bytes(entry.parameter, mirror.values.data());
        world->tiers.refuse(entry.low, 0, STW_ERROR_CHECKSUM);
        if (joins) {
            ASSERT_TRUE(join().ok());
        }
        train(2, 3);
        EXPECT_TRUE(world->failures.empty());
    }
}

// A master that could not be made is made of the parameter that is written then.
TEST_F(MasterParts, AMasterThatFailedIsMadeOfAParameterThatIsWritten)
{
    begin();
    train(1, 1);
    world->tiers.refuse(entry.low, 20000, STW_ERROR_IO);
    ASSERT_TRUE(join().ok());
    EXPECT_EQ(world->step_and_wait().code(), STW_ERROR_IO);
    Mirror &mirror = world->mirrors[entry.parameter];
    mirror.values = world->random_elements(kPartsElements, STW_BF16);
    mirror.master.clear();
    world->tiers.set_bytes(entry.parameter, mirror.values.data());
    train(2, 3);
}

// A block of bits is that of many chunks, and goes when the last of them is through.
TEST_F(MasterParts, WritesABlockOfPartsBackOnce)
{
    begin();
    train(1, 1);
    EXPECT_EQ(world->tiers.far_releases(entry.open), 1u);
    EXPECT_EQ(world->tiers.far_releases(entry.low),
              (kPartsElements * 2 + kInParts.pack_offset + 512) / kBlockBytes + 1);
}

}  // namespace
}  // namespace stepwell::update::test
