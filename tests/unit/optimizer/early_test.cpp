// SPDX-License-Identifier: Apache-2.0
// Updates before their verdict: whatever the verdict is, and however far they have come by then,
// all tensors have the bits of a step that waited for it.
#include "tests/unit/optimizer/model.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <thread>

namespace stepwell::update::test {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

const Shape kEarlyShapes[] = {
    {30000, STW_F32, STW_F32, 0},
    {20001, STW_BF16, STW_BF16, 0},
    {5, STW_F32, STW_F32, 0},
    {50000, STW_F32, STW_F16, 0},
    {9000, STW_F16, STW_F32, 0},
    {41000, STW_BF16, STW_F32, 0},
    {33001, STW_BF16, STW_BF16, 0, true},
};

Conditions alone(uint64_t seed)
{
    Conditions conditions;
    conditions.seed = seed;
    conditions.alone = true;
    conditions.threads = static_cast<uint32_t>(1 + seed % 3);
    conditions.tier_threads = static_cast<uint32_t>(seed % 4);
    conditions.window_blocks = 3 + seed % 40;
    return conditions;
}

// A random training: what the optimizer does, and the same over whole arrays.
class Training {
public:
    explicit Training(uint64_t seed) : random_(seed), world_(alone(seed))
    {
        for (const Shape &shape : kEarlyShapes) {
            entries_.push_back(world_.add(shape));
            world_.tiers.discard(entries_.back().gradient);
        }
        set_hyper();
    }
    void step()
    {
        const uint64_t room = chance(75) ? UINT64_MAX : 600000;
        world_.tiers.set_older(chance(95), chance(90) ? room : 0);
        for (const Entry &entry : entries_) {
            if (chance(85)) give(entry);
        }
        for (const Entry &entry : entries_) {
            if (chance(5)) write(entry);
        }
        if (chance(20)) set_hyper();
        std::vector<TensorId> early;
        for (const Entry &entry : entries_) {
            if (chance(75)) early.push_back(entry.parameter);
        }
        std::shuffle(early.begin(), early.end(), random_);
        const double scale = chance(50) ? 0.5 : 1.0;
        for (size_t begin = 0; begin < early.size();) {
            const size_t n = std::min<size_t>(1 + random_() % 3, early.size() - begin);
            StepOptions options = early_of(early.data() + begin, static_cast<uint32_t>(n));
            options.gradient_scale = scale;
            ASSERT_EQ(world_.optimizer->step(options, nullptr).code(), STW_OK);
            begin += n;
        }
        if (chance(30)) {
            ASSERT_TRUE(world_.optimizer->wait(UINT64_MAX).ok());
        }
        if (chance(10)) set_hyper();
        judge(chance(10) ? 2.0 * scale : scale);
    }
    void expect_same()
    {
        for (const Entry &entry : entries_) world_.expect_same(entry);
    }
    uint64_t early = 0;
    uint64_t undone = 0;
    uint64_t skipped = 0;

private:
    bool chance(uint32_t percent) { return random_() % 100 < percent; }
    void set_hyper()
    {
        hyper_ = some_hyper();
        hyper_.lr = chance(50) ? 0.01 : 0.02;
        ASSERT_TRUE(world_.optimizer->set_hyper(0, hyper_).ok());
    }
    // By the program: the master follows with the next update.
    void write(const Entry &entry)
    {
        Mirror &mirror = world_.mirrors[entry.parameter];
        mirror.values = world_.random_elements(entry.element_count, entry.parameter_dtype);
        mirror.master.clear();
        world_.tiers.set_bytes(entry.parameter, mirror.values.data());
    }
    void give(const Entry &entry)
    {
        world_.give_gradient(entry);
        given_.insert(entry.parameter);
        broken_.erase(entry.parameter);
        if (!chance(4)) return;
        std::vector<uint8_t> &gradient = world_.mirrors[entry.parameter].gradient;
        const uint16_t infinity = entry.gradient_dtype == STW_BF16 ? 0x7F80 : 0x7C00;
        const uint32_t wide = 0x7F800000;
        const uint64_t bytes = bytes_of(entry.gradient_dtype);
        std::memcpy(gradient.data() + random_() % entry.element_count * bytes,
                    bytes == 4 ? static_cast<const void *>(&wide) : &infinity, bytes);
        world_.tiers.set_bytes(entry.gradient, gradient.data());
        broken_.insert(entry.parameter);
    }
    double norm_of_given(double scale)
    {
        double total = 0.0;
        for (const Entry &entry : entries_) {
            if (given_.count(entry.parameter) == 0) continue;
            std::vector<double> sums(kernels::scan_block_count(entry.element_count));
            kernels::scan_blocks(world_.mirrors[entry.parameter].gradient.data(),
                                 entry.gradient_dtype, entry.element_count, sums.data());
            const double sum = kernels::combine_block_sums(0.0, sums.data(), sums.size());
            total = kernels::combine_block_sums(total, &sum, 1);
        }
        return broken_.empty() ? scale * std::sqrt(total) : kInfinity;
    }
    void judge(double scale)
    {
        const double norm = norm_of_given(scale);
        StepOptions options;
        options.gradient_scale = scale;
        const uint32_t clips = random_() % 4;
        if (clips != 0) options.clip_norm = clips == 1 ? 0.5 * norm + 1e-3 : 2.0 * norm;
        if (!std::isfinite(options.clip_norm)) options.clip_norm = 1.0;
        options.wants_verdict = chance(50);
        if (!broken_.empty()) options.flags |= STW_UPDATE_SKIP_NONFINITE;
        const bool keeps = chance(10);
        if (keeps) options.flags |= STW_UPDATE_KEEP_GRADIENTS;
        const Status status = world_.step_and_wait(options);
        StepResult result;
        const bool skips = !broken_.empty();
        ASSERT_EQ(status.code(), skips ? STW_SKIPPED : STW_OK) << status.sentence();
        ASSERT_EQ(world_.optimizer->result(&result).code(), skips ? STW_SKIPPED : STW_OK);
        // Early updates whose gradients were all empty leave nothing to judge.
        if (has_verdict(options) || !std::isnan(result.norm)) {
            EXPECT_EQ(result.norm, norm);
        }
        EXPECT_EQ(result.without_gradient, entries_.size() - given_.size());
        const double ratio = options.clip_norm / (norm + 1e-6);
        const double coefficient = options.clip_norm > 0.0 && ratio < 1.0 ? ratio : 1.0;
        EXPECT_EQ(result.clip_coefficient, coefficient);
        for (const Entry &entry : entries_) {
            if (given_.count(entry.parameter) == 0 || skips) continue;
            const uint64_t count = ++counts_[entry.parameter];
            world_.expect_update(entry, hyper_, count, scale * coefficient);
            EXPECT_EQ(world_.optimizer->count(entry.parameter).value(), count);
        }
        for (const Entry &entry : entries_) {
            const bool kept = keeps && given_.count(entry.parameter) > 0;
            EXPECT_EQ(world_.tiers.contents(entry.gradient),
                      kept ? Contents::kValid : Contents::kEmpty);
            world_.tiers.discard(entry.gradient);
        }
        given_.clear();
        broken_.clear();
        early += result.early;
        undone += result.undone;
        skipped += skips ? 1 : 0;
    }

    std::mt19937_64 random_;
    World world_;
    std::vector<Entry> entries_;
    stw_hyper hyper_{};
    std::map<TensorId, uint64_t> counts_;
    std::set<TensorId> given_;   // with a gradient
    std::set<TensorId> broken_;  // which is not finite
};

TEST(EarlyUpdate, HasTheBitsOfAStepThatWaits)
{
    uint64_t early = 0;
    uint64_t undone = 0;
    uint64_t skipped = 0;
    for (uint64_t seed = 1; seed <= 60 && !HasFatalFailure(); ++seed) {
        SCOPED_TRACE(seed);
        Training training(seed);
        for (int step = 0; step < 10 && !HasFatalFailure(); ++step) training.step();
        training.expect_same();
        early += training.early;
        undone += training.undone;
        skipped += training.skipped;
        ASSERT_FALSE(HasNonfatalFailure());
    }
    EXPECT_GT(early, 200u);
    EXPECT_GT(undone, 100u);
    EXPECT_GT(skipped, 20u);
}

struct TwoParameters {
    explicit TwoParameters(uint64_t seed = 1) : world(alone(seed))
    {
        for (Entry &entry : entries) entry = world.add({20000, STW_F32, STW_F32, 0});
    }
    Status early(uint32_t which, uint32_t flags = 0)
    {
        StepOptions options = early_of(&entries[which].parameter, 1);
        options.flags |= flags;
        return world.optimizer->step(options, nullptr);
    }
    World world;
    Entry entries[2];
};

TEST(EarlyUpdate, CallsThatItCannotBeAreRefused)
{
    TwoParameters two;
    StepResult result;
    StepOptions options = early_of(&two.entries[0].parameter, 1);
    options.wants_verdict = true;
    EXPECT_EQ(two.world.optimizer->step(options, &result).code(), STW_ERROR_INVALID);
    EXPECT_EQ(two.early(0, STW_UPDATE_WAIT).code(), STW_ERROR_INVALID);
    EXPECT_EQ(two.early(0, STW_UPDATE_MEASURE).code(), STW_ERROR_INVALID);
    ASSERT_TRUE(two.early(0).ok());
    const Status again = two.early(0);
    EXPECT_EQ(again.code(), STW_ERROR_INVALID);
    EXPECT_NE(std::string(again.sentence()).find("waits for its verdict"), std::string::npos);
    const TensorId both[] = {two.entries[1].parameter, two.entries[0].parameter};
    const Status with_another = two.world.optimizer->step(early_of(both, 2), nullptr);
    EXPECT_EQ(with_another.code(), STW_ERROR_INVALID);
    EXPECT_STREQ(with_another.sentence(), again.sentence());
    const Status with_all = two.world.optimizer->step(early_of(nullptr, 0), nullptr);
    EXPECT_STREQ(with_all.sentence(), again.sentence());
    // Neither may the verdict leave it out, nor only measure.
    StepOptions other;
    other.parameters = &two.entries[1].parameter;
    other.parameter_count = 1;
    EXPECT_EQ(two.world.step_and_wait(other).code(), STW_ERROR_INVALID);
    StepOptions measures;
    measures.flags = STW_UPDATE_MEASURE;
    EXPECT_EQ(two.world.optimizer->step(measures, &result).code(), STW_ERROR_INVALID);
    EXPECT_EQ(two.world.optimizer->set_count(two.entries[0].parameter, 3).code(), STW_ERROR_BUSY);
    EXPECT_EQ(two.world.optimizer->count(two.entries[0].parameter).value(), 0u);
    ASSERT_TRUE(two.world.step_and_wait({}, &result).ok());
    EXPECT_EQ(result.updated, 2u);
    for (const Entry &entry : two.entries) {
        two.world.expect_update(entry, STW_HYPER_INIT, 1, 1.0);
        two.world.expect_same(entry);
    }
}

// It is nobody's business but the verdict's: neither a drain nor a close waits for that.
TEST(EarlyUpdate, ADrainDoesNotWaitForAVerdict)
{
    TwoParameters two;
    ASSERT_TRUE(two.early(0).ok());
    EXPECT_TRUE(two.world.pipeline->drain(UINT64_MAX).ok());
    EXPECT_TRUE(two.world.optimizer->pending());
    EXPECT_TRUE(two.world.tiers.claimed(two.entries[0].parameter));
    EXPECT_EQ(two.world.tiers.unclaims(), 0u);
    ASSERT_TRUE(two.world.step_and_wait().ok());
}

// Only the parameter is lent, and only once it is updated.
TEST(EarlyUpdate, ItsParameterIsLentUntilTheVerdictChangesIt)
{
    for (const bool undone : {false, true}) {
        TwoParameters two;
        FakeTiers &tiers = two.world.tiers;
        const TensorId parameter = two.entries[0].parameter;
        tiers.pause();
        ASSERT_TRUE(two.early(0).ok());
        EXPECT_FALSE(tiers.lent(parameter));
        tiers.resume();
        ASSERT_TRUE(two.world.optimizer->wait(UINT64_MAX).ok());
        EXPECT_TRUE(tiers.lent(parameter));
        EXPECT_FALSE(tiers.lent(two.entries[0].gradient));
        EXPECT_FALSE(tiers.lent(two.entries[0].states[0]));
        tiers.open_view(parameter);
        StepOptions options;
        options.clip_norm = undone ? 0.5 : 1e9;
        options.wants_verdict = true;
        StepResult result;
        ASSERT_TRUE(two.world.optimizer->step(options, &result).ok());
        EXPECT_EQ(result.undone, undone ? 1u : 0u);
        EXPECT_EQ(two.world.pipeline->undoes(parameter), undone) << "known with the verdict";
        tiers.close_view(parameter);
        ASSERT_TRUE(two.world.optimizer->wait(UINT64_MAX).ok());
        EXPECT_FALSE(tiers.lent(parameter));
        two.world.expect_update(two.entries[0], STW_HYPER_INIT, 1, result.clip_coefficient);
        two.world.expect_same(two.entries[0]);
    }
}

// A call that waited for the parameter before its verdict was asked for waits for all its scans.
TEST(EarlyUpdate, ItsVerdictIsUrgentForWhoWaitsAlready)
{
    TwoParameters two;
    two.world.tiers.pause();
    ASSERT_TRUE(two.early(0).ok());
    two.world.pipeline->prefer(two.entries[0].parameter);
    StepOptions options;
    options.clip_norm = 1e9;
    ASSERT_TRUE(two.world.optimizer->step(options, nullptr).ok());
    two.world.tiers.resume();
    ASSERT_TRUE(two.world.optimizer->wait(UINT64_MAX).ok());
    uint32_t scans = 0;
    for (const FakeTiers::Event &event : two.world.tiers.events()) {
        if (event.kind != FakeTiers::Event::kFetch || event.tensor != two.entries[1].gradient)
            continue;
        EXPECT_EQ(event.urgency, residency::Class::kDemand);
        ++scans;
    }
    EXPECT_GT(scans, 0u);
}

// Neither does it wait for what cannot begin before the verdict.
TEST(EarlyUpdate, ADrainLeavesWhatComesAfterAVerdict)
{
    TwoParameters two;
    ASSERT_TRUE(two.early(0).ok());
    ASSERT_TRUE(two.world.pipeline->drain(UINT64_MAX).ok());
    const Entry &entry = two.entries[0];
    const std::vector<float> zeros(entry.element_count, 0.0f);
    Accumulation sum;
    sum.gradient = entry.gradient;
    sum.gradient_dtype = sum.scratch_dtype = STW_F32;
    sum.element_count = sum.gradient_elements = entry.element_count;
    sum.memory = zeros.data();
    ASSERT_TRUE(two.world.pipeline->accumulate(sum).ok());
    ASSERT_TRUE(two.early(1).ok());
    EXPECT_TRUE(two.world.pipeline->drain(UINT64_MAX).ok());
    EXPECT_TRUE(two.world.optimizer->pending());
    StepOptions options;
    options.flags = STW_UPDATE_KEEP_GRADIENTS;
    ASSERT_TRUE(two.world.step_and_wait(options).ok());
    EXPECT_TRUE(two.world.pipeline->drain(UINT64_MAX).ok());
    two.world.expect_update(entry, STW_HYPER_INIT, 1, 1.0);
    two.world.expect_same(entry);
}

TEST(EarlyUpdate, ACloseEndsWhatHasNoVerdict)
{
    for (uint64_t seed = 1; seed <= 12; ++seed) {
        TwoParameters two(seed);
        if (seed % 3 == 0) two.world.tiers.pause_after(seed % 5);
        ASSERT_TRUE(two.early(0).ok());
        if (seed % 3 == 1) {
            ASSERT_TRUE(two.early(1).ok());
        }
        if (seed % 3 == 2) {
            ASSERT_TRUE(two.world.pipeline->drain(UINT64_MAX).ok());
        }
        two.world.tiers.resume();
        ASSERT_TRUE(two.world.pipeline->close(UINT64_MAX).ok());
        EXPECT_FALSE(two.world.optimizer->pending());
        EXPECT_FALSE(two.world.tiers.claimed(two.entries[0].parameter));
        EXPECT_FALSE(two.world.failures.empty());
        EXPECT_EQ(two.world.failures[0].code, STW_ERROR_CLOSED);
    }
}

// Verdicts that missed leave the scan to the next one, which never comes.
TEST(EarlyUpdate, ACloseEndsWhatIsLeftToItsVerdict)
{
    TwoParameters two;
    for (int i = 0; i < 7; ++i) {
        for (const Entry &entry : two.entries) two.world.give_gradient(entry);
        ASSERT_TRUE(two.early(0).ok());
        StepOptions options;
        options.clip_norm = 1.0;
        ASSERT_TRUE(two.world.step_and_wait(options).ok());
    }
    for (const Entry &entry : two.entries) two.world.give_gradient(entry);
    const uint64_t scanned = two.world.pipeline->stats().scanned_bytes;
    ASSERT_TRUE(two.early(0).ok());
    ASSERT_TRUE(two.world.pipeline->drain(UINT64_MAX).ok());
    EXPECT_EQ(two.world.pipeline->stats().scanned_bytes, scanned);
    ASSERT_TRUE(two.world.pipeline->close(UINT64_MAX).ok());
    EXPECT_FALSE(two.world.optimizer->pending());
    EXPECT_FALSE(two.world.tiers.claimed(two.entries[0].parameter));
    ASSERT_FALSE(two.world.failures.empty());
    EXPECT_EQ(two.world.failures[0].code, STW_ERROR_CLOSED);
}

// Its gradient is kept for the verdict, and so is the reason.
TEST(EarlyUpdate, WhatCannotBeReadIsTheVerdictsError)
{
    TwoParameters two;
    two.world.tiers.refuse(two.entries[0].gradient, 50, STW_ERROR_CHECKSUM);
    ASSERT_TRUE(two.early(0).ok());
    ASSERT_TRUE(two.early(1).ok());
    ASSERT_TRUE(two.world.optimizer->wait(UINT64_MAX).ok());
    StepOptions options;
    options.clip_norm = 1.0;
    EXPECT_EQ(two.world.step_and_wait(options).code(), STW_ERROR_CHECKSUM);
    for (const Entry &entry : two.entries) {
        two.world.expect_same(entry);  // nothing was updated, or not for long
        EXPECT_EQ(two.world.tiers.contents(entry.gradient), Contents::kValid);
    }
    ASSERT_TRUE(two.world.step_and_wait().ok());
    for (const Entry &entry : two.entries) {
        two.world.expect_update(entry, STW_HYPER_INIT, 1, 1.0);
        two.world.expect_same(entry);
    }
}

// The verdict takes a parameter over while the scan of its gradient ends, which makes the decision.
TEST(EarlyUpdate, AVerdictMayComeAtTheEndOfAScan)
{
    World world(alone(1));
    const Entry entry = world.add({1000, STW_F32, STW_F32, 0});
    const std::vector<float> infinities(1000, std::numeric_limits<float>::infinity());
    world.tiers.set_bytes(entry.gradient, infinities.data());
    StepOptions options;
    options.flags = STW_UPDATE_SKIP_NONFINITE | STW_UPDATE_KEEP_GRADIENTS;
    options.timeout_ns = uint64_t{60} * 1'000'000'000;
    std::atomic<uint32_t> turns{0};
    for (uint32_t i = 0; i < 20000; ++i) {
        ASSERT_TRUE(world.optimizer->step(early_of(&entry.parameter, 1), nullptr).ok());
        for (turns = 0; turns < i % 5000; ++turns) {}  // so that it comes at any point of it
        ASSERT_EQ(world.step_and_wait(options).code(), STW_SKIPPED) << i;
    }
}

// Where nobody asks for a verdict, the others are updated all the same.
TEST(EarlyUpdate, WhatCannotBeReadDropsNoOther)
{
    TwoParameters two;
    two.world.tiers.refuse(two.entries[0].gradient, 50, STW_ERROR_CHECKSUM);
    ASSERT_TRUE(two.early(0).ok());
    ASSERT_TRUE(two.early(1).ok());
    ASSERT_TRUE(two.world.optimizer->wait(UINT64_MAX).ok());
    two.world.tiers.refuse(two.entries[0].gradient, 60, STW_ERROR_IO);
    EXPECT_EQ(two.world.step_and_wait().code(), STW_ERROR_IO);
    EXPECT_EQ(two.world.tiers.missed(two.entries[0].parameter).code(), STW_ERROR_IO);
    two.world.expect_same(two.entries[0]);
    two.world.expect_update(two.entries[1], STW_HYPER_INIT, 1, 1.0);
    two.world.expect_same(two.entries[1]);
}

// A failed update fails its parameter, early or not; another one's verdict is its own.
TEST(EarlyUpdate, AFailureFailsItsParameterAlone)
{
    TwoParameters two;
    two.world.tiers.refuse(two.entries[0].states[0], 50000, STW_ERROR_IO);
    ASSERT_TRUE(two.early(0).ok());
    ASSERT_TRUE(two.early(1).ok());
    ASSERT_TRUE(two.world.optimizer->wait(UINT64_MAX).ok());
    EXPECT_EQ(two.world.tiers.failed(two.entries[0].parameter), STW_ERROR_IO);
    EXPECT_TRUE(two.world.tiers.claimed(two.entries[0].gradient)) << "the norm has it";
    StepResult result;
    EXPECT_EQ(two.world.step_and_wait({}, &result).code(), STW_ERROR_IO);
    two.world.expect_update(two.entries[1], STW_HYPER_INIT, 1, 1.0);
    two.world.expect_same(two.entries[1]);
    EXPECT_EQ(two.world.tiers.failed(two.entries[0].parameter), STW_ERROR_IO);
}

// What cannot be set back has contents that no verdict accepted, from its first block on.
TEST(EarlyUpdate, WhatCannotBeUndoneFails)
{
    for (const bool skips : {false, true}) {
        TwoParameters two;
        ASSERT_TRUE(two.early(0).ok());
        ASSERT_TRUE(two.world.optimizer->wait(UINT64_MAX).ok());
        two.world.tiers.refuse(two.entries[0].states[0], 0, STW_ERROR_IO);
        StepOptions options;
        options.clip_norm = 0.5;
        if (skips) {
            two.world.tiers.refuse(two.entries[1].gradient, 0, STW_ERROR_CHECKSUM);
        }
        EXPECT_EQ(two.world.step_and_wait(options).code(),
                  skips ? STW_ERROR_CHECKSUM : STW_ERROR_IO);
        EXPECT_EQ(two.world.tiers.failed(two.entries[0].parameter), STW_ERROR_IO);
        for (uint32_t i = 0; i < two.entries[0].state_count; ++i)
            EXPECT_EQ(two.world.tiers.failed(two.entries[0].states[i]), STW_ERROR_IO);
    }
}

// Though it still runs.
TEST(EarlyUpdate, CountsFromItsVerdictOn)
{
    TwoParameters two(39);  // with a window that holds both
    const TensorId parameter = two.entries[0].parameter;
    two.world.tiers.open_view(two.entries[0].states[0]);
    ASSERT_TRUE(two.early(0).ok());
    const auto is_update = [parameter](const FakeTiers::Event &event) {
        return event.kind == FakeTiers::Event::kFetch && event.tensor == parameter;
    };
    for (bool begun = false; !begun; std::this_thread::yield()) {
        const std::vector<FakeTiers::Event> events = two.world.tiers.events();
        begun = std::any_of(events.begin(), events.end(), is_update);
    }
    EXPECT_EQ(two.world.optimizer->count(parameter).value(), 0u);
    StepOptions options;
    options.wants_verdict = true;
    StepResult result;
    ASSERT_TRUE(two.world.optimizer->step(options, &result).ok());
    EXPECT_EQ(two.world.optimizer->count(parameter).value(), 1u);
    two.world.tiers.close_view(two.entries[0].states[0]);
    ASSERT_TRUE(two.world.optimizer->wait(UINT64_MAX).ok());
    EXPECT_EQ(two.world.optimizer->count(parameter).value(), 1u);
    ASSERT_TRUE(two.world.optimizer->result(&result).ok());
    EXPECT_EQ(result.early, 1u);
}

// The call ends, and the verdict comes all the same.
TEST(EarlyUpdate, AVerdictGoesOnWithoutItsCall)
{
    TwoParameters two;
    ASSERT_TRUE(two.early(0).ok());
    ASSERT_TRUE(two.world.optimizer->wait(UINT64_MAX).ok());
    two.world.tiers.pause();
    StepOptions options;
    options.clip_norm = 0.5;
    options.wants_verdict = true;
    options.timeout_ns = 1000;
    StepResult result;
    EXPECT_EQ(two.world.optimizer->step(options, &result).code(), STW_ERROR_TIMEOUT);
    EXPECT_EQ(two.world.optimizer->result(&result).code(), STW_PENDING);
    two.world.tiers.resume();
    ASSERT_TRUE(two.world.optimizer->wait(UINT64_MAX).ok());
    ASSERT_TRUE(two.world.optimizer->result(&result).ok());
    EXPECT_EQ(result.undone, 1u);
    for (const Entry &entry : two.entries) {
        two.world.expect_update(entry, STW_HYPER_INIT, 1, result.clip_coefficient);
        two.world.expect_same(entry);
    }
}

// Where the clip is reached often, parameters are not updated twice but once, behind the verdict.
TEST(EarlyUpdate, StopsWhereTheClipIsOftenReached)
{
    TwoParameters two;
    uint64_t undone = 0;
    uint64_t early = 0;
    const auto step = [&](double clip) {
        for (const Entry &entry : two.entries) two.world.give_gradient(entry);
        ASSERT_TRUE(two.early(0).ok());
        ASSERT_TRUE(two.early(1).ok());
        ASSERT_TRUE(two.world.optimizer->wait(UINT64_MAX).ok());
        StepOptions options;
        options.clip_norm = clip;
        StepResult result;
        ASSERT_TRUE(two.world.step_and_wait(options, &result).ok());
        undone += result.undone;
        early += result.early;
    };
    for (int i = 0; i < 10; ++i) step(1.0);
    EXPECT_EQ(undone, 14u) << "two parameters in seven steps, and none after these";
    for (int i = 0; i < 54; ++i) step(1e9);
    EXPECT_EQ(early, 0u);
    for (int i = 0; i < 8; ++i) step(1e9);
    EXPECT_GE(early, 2u) << "these steps were long ago";
    EXPECT_EQ(undone, 14u);
}

// What room there is for copies of older contents goes to every second or third parameter, not to
// those that come first, from the second round on.
TEST(EarlyUpdate, RoomForCopiesIsSpread)
{
    constexpr uint32_t kParameters = 20;
    constexpr uint64_t kElements = 30000;
    constexpr uint64_t kCopied = 3 * 4 * kElements;  // a parameter and its two states
    World world(alone(1));
    std::vector<Entry> entries;
    for (uint32_t i = 0; i < kParameters; ++i)
        entries.push_back(world.add({kElements, STW_F32, STW_F32, 0}));
    std::vector<bool> early;
    const auto round = [&](uint64_t copies) {
        world.tiers.set_older(true, copies * kCopied);
        early.clear();
        for (const Entry &entry : entries) {
            world.give_gradient(entry);
            const StepOptions options = early_of(&entry.parameter, 1);
            ASSERT_TRUE(world.optimizer->step(options, nullptr).ok());
            ASSERT_TRUE(world.optimizer->wait(UINT64_MAX).ok());
            early.push_back(world.tiers.lent(entry.parameter));
        }
        ASSERT_TRUE(world.step_and_wait().ok());
    };
    const auto count = [&] { return std::count(early.begin(), early.end(), true); };
    const auto longest_pending = [&] {
        uint32_t longest = 0;
        uint32_t run = 0;
        for (const bool one : early) longest = std::max(longest, run = one ? 0 : run + 1);
        return longest;
    };
    round(8);
    EXPECT_EQ(count(), 8);
    EXPECT_EQ(longest_pending(), 12U) << "first come, as nothing is known";
    for (int i = 0; i < 5; ++i) {
        round(8);
        EXPECT_EQ(count(), 8);
        EXPECT_LE(longest_pending(), 3U);
    }
    for (const uint64_t copies : {14, 5, 20, 0, 1, 10}) {
        round(copies);
        round(copies);
        EXPECT_EQ(count(), copies);
        EXPECT_LE(longest_pending(), copies == 0 ? 20 : kParameters / copies + 1) << copies;
    }
}

TEST(EarlyUpdate, OlderTensorsGoWithTheOptimizer)
{
    TwoParameters two;
    two.world.tiers.set_older(false, UINT64_MAX);
    ASSERT_TRUE(two.early(0).ok());
    EXPECT_EQ(two.world.tiers.olders(), 0u);
    two.world.tiers.set_older(true, UINT64_MAX);
    ASSERT_TRUE(two.early(1).ok());
    EXPECT_EQ(two.world.tiers.olders(), 3u);
    ASSERT_TRUE(two.world.step_and_wait().ok());
    two.world.optimizer.reset();
    EXPECT_EQ(two.world.tiers.olders(), 0u);
}

}  // namespace
}  // namespace stepwell::update::test
