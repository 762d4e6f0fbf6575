// SPDX-License-Identifier: Apache-2.0
// The pipeline: claims at the call, the window, who comes first, waits that end, and close.
#include "model.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

namespace stepwell::update::test {
namespace {

using Event = FakeTiers::Event;

// Tensors in the order of the first event of this kind.
std::vector<TensorId> first_events(World &world, Event::Kind kind)
{
    std::vector<TensorId> order;
    for (const Event &event : world.tiers.events()) {
        if (event.kind != kind) continue;
        if (std::find(order.begin(), order.end(), event.tensor) == order.end()) {
            order.push_back(event.tensor);
        }
    }
    return order;
}

std::vector<Entry> add_some(World &world, int n, uint64_t elements)
{
    std::vector<Entry> entries;
    for (int i = 0; i < n; ++i) entries.push_back(world.add({elements, STW_F32, STW_F32, 0}));
    return entries;
}

// An update thread may ask for it, after the call.
void await_fetch(World &world, TensorId tensor)
{
    const auto is_it = [&](const Event &event) {
        return event.kind == Event::kFetch && event.tensor == tensor;
    };
    for (;; std::this_thread::yield()) {
        const std::vector<Event> events = world.tiers.events();
        if (std::any_of(events.begin(), events.end(), is_it)) return;
    }
}

TEST(Pipeline, ClaimsAreTakenBeforeTheCallReturns)
{
    World world({});
    const std::vector<Entry> entries = add_some(world, 3, 9000);
    world.tiers.pause();
    ASSERT_TRUE(world.optimizer->step({}, nullptr).ok());
    for (const Entry &entry : entries) {
        for (const TensorId tensor :
             {entry.parameter, entry.gradient, entry.states[0], entry.states[1]}) {
            EXPECT_TRUE(world.tiers.claimed(tensor));
            EXPECT_TRUE(world.pipeline->pending(tensor));
        }
    }
    world.tiers.resume();
}

TEST(Pipeline, ATensorIsGivenBackWithItsOwnLastChunk)
{
    World world({});
    const std::vector<Entry> entries = add_some(world, 2, 9000);
    world.tiers.open_view(entries[1].states[0]);  // the second cannot go on
    ASSERT_TRUE(world.optimizer->step({}, nullptr).ok());
    while (world.pipeline->pending(entries[0].parameter)) std::this_thread::yield();
    EXPECT_FALSE(world.tiers.claimed(entries[0].parameter));
    EXPECT_EQ(world.tiers.contents(entries[0].gradient), Contents::kEmpty);
    EXPECT_TRUE(world.tiers.claimed(entries[1].parameter));
    EXPECT_TRUE(world.optimizer->pending());
    world.tiers.close_view(entries[1].states[0]);
    ASSERT_TRUE(world.optimizer->wait(UINT64_MAX).ok());
}

// One call each, however many tensors: of the runtime it takes the one lock.
TEST(Pipeline, AnUpdateGivesAllOfItsTensorsBackAtOnce)
{
    World world({});
    (void)add_some(world, 3, 9000);
    ASSERT_TRUE(world.optimizer->step({}, nullptr).ok());
    ASSERT_TRUE(world.optimizer->wait(UINT64_MAX).ok());
    EXPECT_EQ(world.tiers.unclaims(), 3U);
}

StepOptions only(const Entry &entry)
{
    StepOptions options;
    options.parameters = &entry.parameter;
    options.parameter_count = 1;
    return options;
}

// As gradients complete in backward: no step waits for another's parameter, each has the
// hyper-parameters of its call, and the bits are those of one step after the other.
TEST(Pipeline, StepsOverOtherParametersGoOnSideBySide)
{
    World world({});
    const std::vector<Entry> entries = add_some(world, 4, 9000);
    std::vector<stw_hyper> hypers;
    world.tiers.pause();
    for (const Entry &entry : entries) {
        hypers.push_back(some_hyper());
        hypers.back().lr *= static_cast<double>(hypers.size());
        ASSERT_TRUE(world.optimizer->set_hyper(0, hypers.back()).ok());
        ASSERT_TRUE(world.optimizer->step(only(entry), nullptr).ok());
        EXPECT_TRUE(world.tiers.claimed(entry.parameter));
    }
    EXPECT_EQ(world.optimizer->set_count(entries[0].parameter, 7).code(), STW_ERROR_BUSY);
    EXPECT_EQ(world.optimizer->result(nullptr).code(), STW_PENDING);
    world.tiers.resume();
    ASSERT_TRUE(world.optimizer->wait(UINT64_MAX).ok());
    EXPECT_FALSE(world.optimizer->pending());
    StepResult last;
    EXPECT_TRUE(world.optimizer->result(&last).ok());
    EXPECT_EQ(last.updated, 1u);
    for (size_t i = 0; i < entries.size(); ++i) {
        world.expect_update(entries[i], hypers[i], 1, 1.0);
        world.expect_same(entries[i]);
        EXPECT_EQ(world.optimizer->count(entries[i].parameter).take(), 1u);
    }
}

TEST(Pipeline, AStepWaitsForThoseWithItsParametersOrAVerdict)
{
    World world({});
    const std::vector<Entry> entries = add_some(world, 3, 9000);
    world.tiers.open_view(entries[0].states[0]);
    ASSERT_TRUE(world.optimizer->step(only(entries[0]), nullptr).ok());
    EXPECT_TRUE(world.optimizer->may_begin(only(entries[1])));
    const auto waits = [&](StepOptions options) {
        EXPECT_FALSE(world.optimizer->may_begin(options));
        options.timeout_ns = 1000;
        EXPECT_EQ(world.optimizer->step(options, nullptr).code(), STW_ERROR_TIMEOUT);
    };
    waits(only(entries[0]));
    waits({});
    StepOptions clips = only(entries[1]);
    clips.clip_norm = 1.0;
    waits(clips);
    // Waited for alone, to its last byte.
    ASSERT_TRUE(world.step_and_wait(only(entries[1])).ok());
    EXPECT_TRUE(world.optimizer->pending());
    world.tiers.close_view(entries[0].states[0]);
    ASSERT_TRUE(world.optimizer->wait(UINT64_MAX).ok());
    world.give_gradient(entries[1]);
    world.tiers.open_view(entries[1].states[0]);
    ASSERT_TRUE(world.optimizer->step(clips, nullptr).ok());
    waits(only(entries[2]));
    world.tiers.close_view(entries[1].states[0]);
    ASSERT_TRUE(world.optimizer->wait(UINT64_MAX).ok());
}

// Each parameter in a step, and one more, of none: the result is the last call's.
TEST(Pipeline, AFailureIsThatOfItsOwnStep)
{
    World world({});
    const std::vector<Entry> entries = add_some(world, 2, 9000);
    world.tiers.refuse(entries[0].states[0], 0, STW_ERROR_IO);
    world.tiers.pause();
    ASSERT_TRUE(world.optimizer->step(only(entries[0]), nullptr).ok());
    StepOptions none;
    none.parameters = &entries[0].parameter;
    ASSERT_TRUE(world.optimizer->step(none, nullptr).ok());
    EXPECT_TRUE(world.optimizer->result(nullptr).ok());
    world.tiers.resume();
    ASSERT_TRUE(world.step_and_wait(only(entries[1])).ok());
    ASSERT_TRUE(world.optimizer->wait(UINT64_MAX).ok());
    EXPECT_EQ(world.tiers.missed(entries[0].parameter).code(), STW_ERROR_IO);
    EXPECT_EQ(world.optimizer->count(entries[0].parameter).take(), 0u);
    EXPECT_EQ(world.optimizer->count(entries[1].parameter).take(), 1u);
}

TEST(Pipeline, WindowNeverExceedsItsBytes)
{
    for (const uint64_t blocks : {4u, 9u, 17u, 40u}) {
        Conditions conditions;
        conditions.window_blocks = blocks;
        World world(conditions);
        add_some(world, 4, 30000);
        StepOptions options;
        options.clip_norm = 1.0;
        ASSERT_TRUE(world.step_and_wait(options).ok());
        EXPECT_LE(world.tiers.pinned_peak_bytes(), blocks * kBlockBytes);
        EXPECT_LE(world.pipeline->stats().window_peak_bytes, blocks * kBlockBytes);
        EXPECT_EQ(world.pipeline->stats().window_bytes, 0u);
    }
}

TEST(Pipeline, WindowIsUsed)
{
    Conditions conditions;
    conditions.window_blocks = 24;  // of chunks of 4: five, and one for who waits
    World world(conditions);
    add_some(world, 1, 100000);
    world.tiers.pause();
    ASSERT_TRUE(world.optimizer->step({}, nullptr).ok());
    world.tiers.wait_asked(1);  // the first alone, see Job
    world.tiers.resume();
    ASSERT_TRUE(world.optimizer->wait(UINT64_MAX).ok());
    EXPECT_EQ(world.pipeline->stats().window_peak_bytes, 20 * kBlockBytes);
}

TEST(Pipeline, UpdatesComeInTheOrderOfEntries)
{
    Conditions conditions;
    conditions.threads = 1;
    conditions.tier_threads = 0;
    World world(conditions);
    const std::vector<Entry> entries = add_some(world, 6, 9000);
    ASSERT_TRUE(world.step_and_wait().ok());
    std::vector<TensorId> expected;
    for (const Entry &entry : entries) expected.push_back(entry.parameter);
    EXPECT_EQ(first_events(world, Event::kFetch), expected);
}

// One thread, and a window of one chunk.
Conditions one_chunk()
{
    Conditions conditions;
    conditions.threads = 1;
    conditions.window_blocks = 4;
    return conditions;
}

// The next forward pass begins with what the backward pass ended with.
TEST(Pipeline, TheLatestCallIsUpdatedFirst)
{
    World world(one_chunk());
    const std::vector<Entry> entries = add_some(world, 5, 9000);
    world.tiers.pause();
    ASSERT_TRUE(world.optimizer->step(only(entries[0]), nullptr).ok());
    world.tiers.wait_asked(1);  // it has begun, and ends first
    const TensorId two[] = {entries[1].parameter, entries[2].parameter};
    StepOptions both;
    both.parameters = two;
    both.parameter_count = 2;
    ASSERT_TRUE(world.optimizer->step(both, nullptr).ok());
    ASSERT_TRUE(world.optimizer->step(only(entries[3]), nullptr).ok());
    ASSERT_TRUE(world.optimizer->step(only(entries[4]), nullptr).ok());
    world.tiers.resume();
    ASSERT_TRUE(world.optimizer->wait(UINT64_MAX).ok());
    std::vector<TensorId> fetched;
    for (const Event &event : world.tiers.events()) {
        if (event.kind != Event::kFetch) continue;
        EXPECT_EQ(event.urgency, residency::Class::kHint) << "prefetches are needed sooner";
        const bool again = !fetched.empty() && fetched.back() == event.tensor;
        if (!again) fetched.push_back(event.tensor);
    }
    const std::vector<TensorId> expected = {entries[0].parameter, entries[4].parameter,
                                            entries[3].parameter, entries[1].parameter,
                                            entries[2].parameter};
    EXPECT_EQ(fetched, expected);
}

struct Gate {
    std::atomic<bool> entered{false};
    std::atomic<bool> open{false};
};

stw_status wait_at_gate(void *user, const stw_update_chunk *)
{
    Gate &gate = *static_cast<Gate *>(user);
    gate.entered = true;
    while (!gate.open) std::this_thread::yield();
    return STW_OK;
}

// An optimizer of one tensor, whose update is held at the gate.
std::unique_ptr<Optimizer> add_held(World &world, Gate &gate)
{
    stw_custom_update waits{};
    waits.update = wait_at_gate;
    waits.user = &gate;
    auto held = Optimizer::create(*world.pipeline, STW_OPTIMIZER_CUSTOM, &waits).take();
    World::give_hyper(*held);
    Entry one = world.make({100, STW_F32, STW_F32, 0});
    one.state_count = 0;
    EXPECT_TRUE(held->add(&one, 1).ok());
    return held;
}

// It would spend the program's time on the core, the engine and the lookahead.
TEST(Pipeline, ACallAsksForNothingAndLeavesThatToAnUpdateThread)
{
    Gate gate;
    Conditions conditions;
    conditions.threads = 1;
    World world(conditions);
    auto busy = add_held(world, gate);
    ASSERT_TRUE(busy->step({}, nullptr).ok());
    while (!gate.entered) std::this_thread::yield();
    const std::vector<Entry> entries = add_some(world, 3, 9000);
    const uint32_t before = world.tiers.fetches();
    ASSERT_TRUE(world.optimizer->step({}, nullptr).ok());
    EXPECT_EQ(world.tiers.fetches(), before);
    gate.open = true;
    ASSERT_TRUE(world.optimizer->wait(UINT64_MAX).ok());
    ASSERT_TRUE(busy->wait(UINT64_MAX).ok());
}

bool update_threads_sleep()
{
    for (const auto &task : std::filesystem::directory_iterator("/proc/self/task")) {
        std::string name;
        std::ifstream(task.path() / "comm") >> name;
        if (name != "stw-update") continue;
        std::string number;
        std::string state;
        std::ifstream(task.path() / "stat") >> number >> name >> state;
        if (state != "S") return false;
    }
    return true;
}

// A call whose wake is left to a transfer's end.
std::vector<Entry> call_while_bytes_move(World &world)
{
    const std::vector<Entry> entries = add_some(world, 1, 9000);
    world.tiers.set_moves(true);
    while (!update_threads_sleep()) std::this_thread::yield();
    EXPECT_TRUE(world.optimizer->step({}, nullptr).ok());
    for (int i = 0; i < 1000; ++i) std::this_thread::yield();
    EXPECT_EQ(world.tiers.fetches(), 0u) << "the program's thread woke another one";
    return entries;
}

TEST(Pipeline, ACallLeavesTheWakeToTheEndOfATransfer)
{
    World world({});
    call_while_bytes_move(world);
    world.pipeline->transfers_ended();
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (world.tiers.fetches() == 0 && std::chrono::steady_clock::now() < end)
        std::this_thread::yield();
    EXPECT_GT(world.tiers.fetches(), 0u);
}

TEST(Pipeline, WhoWaitsWaitsForNoTransferBeforeTheWork)
{
    {
        World world({});
        call_while_bytes_move(world);
        ASSERT_TRUE(world.optimizer->wait(UINT64_MAX).ok());
    }
    World world({});
    const std::vector<Entry> entries = call_while_bytes_move(world);
    world.pipeline->prefer(entries[0].parameter);
    while (world.pipeline->pending(entries[0].parameter)) std::this_thread::yield();
}

// Whichever the thread finds first: a chunk's work may take long, and the drive would rest.
TEST(Pipeline, WhatACallLeavesIsAskedForBeforeTheWorkOnAChunk)
{
    for (int round = 0; round < 100; ++round) {
        Gate gate;
        Conditions conditions;
        conditions.threads = 1;
        World world(conditions);
        auto busy = add_held(world, gate);
        add_some(world, 1, 100);
        world.tiers.pause();
        ASSERT_TRUE(busy->step({}, nullptr).ok());
        world.tiers.wait_asked(1);
        const uint32_t before = world.tiers.fetches();
        ASSERT_TRUE(world.optimizer->step({}, nullptr).ok());
        world.tiers.resume();
        const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10);
        while (world.tiers.fetches() == before && std::chrono::steady_clock::now() < end)
            std::this_thread::yield();
        EXPECT_GT(world.tiers.fetches(), before) << "round " << round;
        gate.open = true;
        ASSERT_TRUE(world.optimizer->wait(UINT64_MAX).ok());
        ASSERT_TRUE(busy->wait(UINT64_MAX).ok());
        if (HasFailure()) return;
    }
}

TEST(Pipeline, PreferredTensorComesNext)
{
    World world(one_chunk());
    const std::vector<Entry> entries = add_some(world, 5, 9000);
    world.tiers.pause();
    ASSERT_TRUE(world.optimizer->step({}, nullptr).ok());
    world.tiers.wait_asked(1);  // of the first
    world.pipeline->prefer(entries[3].parameter);
    world.pipeline->prefer(entries[4].states[0]);
    world.pipeline->prefer(9999);  // nobody's
    world.tiers.resume();
    ASSERT_TRUE(world.optimizer->wait(UINT64_MAX).ok());
    const std::vector<TensorId> expected = {entries[0].parameter, entries[3].parameter,
                                            entries[4].parameter, entries[1].parameter,
                                            entries[2].parameter};
    EXPECT_EQ(first_events(world, Event::kFetch), expected);
    for (const Event &event : world.tiers.events()) {
        if (event.kind != Event::kFetch) continue;
        const bool preferred =
            event.tensor == entries[3].parameter || event.tensor == entries[4].parameter;
        EXPECT_EQ(event.urgency == residency::Class::kDemand, preferred);
    }
}

// An open view must not let the chunks of its tensor fill the window.
TEST(Pipeline, ATensorInUseDoesNotStopTheOthers)
{
    Conditions conditions;
    conditions.window_blocks = 12;
    World world(conditions);
    const std::vector<Entry> entries = add_some(world, 3, 90000);
    world.tiers.open_view(entries[0].parameter);
    ASSERT_TRUE(world.optimizer->step({}, nullptr).ok());
    while (world.pipeline->pending(entries[1].parameter) ||
           world.pipeline->pending(entries[2].parameter)) {
        std::this_thread::yield();
    }
    EXPECT_TRUE(world.pipeline->pending(entries[0].parameter));
    world.tiers.close_view(entries[0].parameter);
    ASSERT_TRUE(world.optimizer->wait(UINT64_MAX).ok());
    for (const Entry &entry : entries) {
        world.expect_update(entry, STW_HYPER_INIT, 1, 1.0);
        world.expect_same(entry);
    }
}

// What is waited for needs its gradient, which a sum has before it; with a clip also the verdict,
// and so the scan.
void prefer_behind_a_sum(double clip_norm)
{
    World world(one_chunk());
    const std::vector<Entry> entries = add_some(world, 2, 9000);
    auto other = Optimizer::create(*world.pipeline, STW_OPTIMIZER_ADAMW, nullptr).take();
    World::give_hyper(*other);
    const Entry last = world.make({9000, STW_F32, STW_F32, 0});
    ASSERT_TRUE(other->add(&last, 1).ok());
    Accumulation sum;
    sum.gradient = last.gradient;
    sum.scratch = world.tiers.create(36000, 0, false);
    sum.gradient_dtype = sum.scratch_dtype = STW_F32;
    sum.element_count = sum.gradient_elements = 9000;
    world.tiers.set_bytes(sum.scratch, world.random_elements(9000, STW_F32).data());
    world.tiers.pause();
    ASSERT_TRUE(world.optimizer->step({}, nullptr).ok());
    world.tiers.wait_asked(1);
    ASSERT_TRUE(world.pipeline->accumulate(sum).ok());
    StepOptions options;
    options.clip_norm = clip_norm;
    ASSERT_TRUE(other->step(options, nullptr).ok());
    world.pipeline->prefer(last.parameter);
    world.tiers.resume();
    ASSERT_TRUE(world.pipeline->drain(UINT64_MAX).ok());
    const std::vector<TensorId> expected = {entries[0].parameter, last.gradient, last.parameter,
                                            entries[1].parameter};
    EXPECT_EQ(first_events(world, Event::kFetch), expected);
}

TEST(Pipeline, PreferenceReachesTheSumsBefore)
{
    prefer_behind_a_sum(0.0);
}

TEST(Pipeline, PreferenceReachesWhatTheVerdictWaitsFor)
{
    prefer_behind_a_sum(1.0);
}

TEST(Pipeline, SecondStepWaitsForTheFirst)
{
    World world({});
    const Entry entry = world.add({9000, STW_F32, STW_F32, 0});
    world.tiers.pause();
    StepOptions options;
    options.flags = STW_UPDATE_KEEP_GRADIENTS;
    ASSERT_TRUE(world.optimizer->step(options, nullptr).ok());
    options.timeout_ns = 1;
    EXPECT_EQ(world.optimizer->step(options, nullptr).code(), STW_ERROR_TIMEOUT);
    EXPECT_EQ(world.optimizer->add(&entry, 1).code(), STW_ERROR_BUSY);
    EXPECT_EQ(world.optimizer->set_count(entry.parameter, 9).code(), STW_ERROR_BUSY);
    options.timeout_ns = UINT64_MAX;
    std::thread second([&] { EXPECT_TRUE(world.optimizer->step(options, nullptr).ok()); });
    world.tiers.wait_asked(1);
    world.tiers.resume();
    second.join();
    ASSERT_TRUE(world.optimizer->wait(UINT64_MAX).ok());
    EXPECT_EQ(world.optimizer->count(entry.parameter).value(), 2u);
    world.expect_update(entry, STW_HYPER_INIT, 1, 1.0);
    world.expect_update(entry, STW_HYPER_INIT, 2, 1.0);
    world.expect_same(entry);
}

TEST(Pipeline, HyperParametersAreThoseOfTheCall)
{
    World world({});
    const Entry entry = world.add({9000, STW_F32, STW_F32, 0});
    world.tiers.pause();
    ASSERT_TRUE(world.optimizer->step({}, nullptr).ok());
    ASSERT_TRUE(world.optimizer->set_hyper(0, some_hyper()).ok());  // for the next step
    world.tiers.resume();
    ASSERT_TRUE(world.optimizer->wait(UINT64_MAX).ok());
    world.expect_update(entry, STW_HYPER_INIT, 1, 1.0);
    world.expect_same(entry);
}

TEST(Pipeline, ATimeoutEndsTheCallAndNotTheStep)
{
    World world({});
    const Entry entry = world.add({9000, STW_F32, STW_F32, 0});
    world.tiers.pause();
    StepOptions options;
    options.wants_verdict = true;
    options.timeout_ns = 1000;
    const Status status = world.optimizer->step(options, nullptr);
    EXPECT_EQ(status.code(), STW_ERROR_TIMEOUT);
    EXPECT_NE(std::string(status.sentence()).find("updates and sums were under way"),
              std::string::npos);
    EXPECT_TRUE(world.tiers.claimed(entry.parameter));
    EXPECT_EQ(world.pipeline->drain(1000).code(), STW_ERROR_TIMEOUT);
    world.tiers.resume();
    ASSERT_TRUE(world.optimizer->wait(UINT64_MAX).ok());
    world.expect_update(entry, STW_HYPER_INIT, 1, 1.0);
    world.expect_same(entry);
}

TEST(Pipeline, AnInterruptThatComesLateEndsNoWaitThatBeganAfterIt)
{
    World world({});
    const Entry entry = world.add({9000, STW_F32, STW_F32, 0});
    world.tiers.pause();
    ASSERT_TRUE(world.optimizer->step({}, nullptr).ok());
    const uint64_t before = wait_clock_ns() - 1;
    std::atomic<bool> ended{false};
    std::thread late([&] {
        while (!ended) world.pipeline->interrupt(before);
    });
    EXPECT_EQ(world.optimizer->wait(20'000'000).code(), STW_ERROR_TIMEOUT);
    EXPECT_EQ(world.pipeline->drain(20'000'000).code(), STW_ERROR_TIMEOUT);
    ended = true;
    late.join();
    world.tiers.resume();
    ASSERT_TRUE(world.optimizer->wait(UINT64_MAX).ok());
    world.expect_update(entry, STW_HYPER_INIT, 1, 1.0);
}

TEST(Pipeline, InterruptEndsTheWait)
{
    World world({});
    const Entry entry = world.add({9000, STW_F32, STW_F32, 0});
    world.tiers.pause();
    std::atomic<bool> ended{false};
    std::thread waiting([&] {
        EXPECT_EQ(world.step_and_wait().code(), STW_ERROR_INTERRUPTED);
        ended = true;
    });
    world.tiers.wait_asked(1);
    // Until one came after it began to wait.
    while (!ended) world.pipeline->interrupt(wait_clock_ns());
    waiting.join();
    world.tiers.resume();
    ASSERT_TRUE(world.optimizer->wait(UINT64_MAX).ok());  // an old interrupt is over
    world.expect_update(entry, STW_HYPER_INIT, 1, 1.0);
    world.expect_same(entry);
}

TEST(Pipeline, CloseReportsWhatIsNotUpdatedAndFailsWhatHasBegun)
{
    Conditions conditions;
    conditions.window_blocks = 4;
    conditions.threads = 1;
    World world(conditions);
    const std::vector<Entry> entries = add_some(world, 3, 30000);
    world.tiers.pause();
    ASSERT_TRUE(world.optimizer->step({}, nullptr).ok());
    world.tiers.wait_asked(1);
    EXPECT_EQ(world.pipeline->close(1000).code(), STW_ERROR_TIMEOUT);  // one is in flight
    EXPECT_EQ(world.optimizer->set_count(entries[0].parameter, 1).code(), STW_ERROR_BUSY);
    world.tiers.resume();
    ASSERT_TRUE(world.pipeline->close(UINT64_MAX).ok());
    EXPECT_FALSE(world.optimizer->pending());
    EXPECT_EQ(world.tiers.fetches(), 1u);
    for (size_t i = 0; i < entries.size(); ++i) {
        // Of the others no byte has changed.
        EXPECT_EQ(world.tiers.failed(entries[i].parameter), i == 0 ? STW_ERROR_CLOSED : STW_OK);
        EXPECT_FALSE(world.tiers.claimed(entries[i].parameter));
    }
    EXPECT_EQ(world.failures.size(), 3u);
    EXPECT_EQ(world.optimizer->step({}, nullptr).code(), STW_ERROR_CLOSED);
}

TEST(Pipeline, CloseEndsAStepThatHasNoVerdictYet)
{
    World world({});
    const std::vector<Entry> entries = add_some(world, 3, 30000);
    world.tiers.open_view(entries[1].gradient);
    StepOptions options;
    options.clip_norm = 1.0;
    ASSERT_TRUE(world.optimizer->step(options, nullptr).ok());
    await_fetch(world, entries[1].gradient);
    EXPECT_EQ(world.pipeline->close(1000).code(), STW_ERROR_TIMEOUT);
    world.tiers.close_view(entries[1].gradient);
    ASSERT_TRUE(world.pipeline->close(UINT64_MAX).ok());
    EXPECT_EQ(world.optimizer->result(nullptr).code(), STW_ERROR_CLOSED);
    for (const Entry &entry : entries) {
        world.expect_same(entry);
        EXPECT_FALSE(world.tiers.claimed(entry.parameter));
    }
}

TEST(Pipeline, CountsWhatItMoves)
{
    World world({});
    world.add({8192, STW_BF16, STW_F32, 0});
    StepOptions options;
    options.clip_norm = 1.0;
    ASSERT_TRUE(world.step_and_wait(options).ok());
    const PipelineStats stats = world.pipeline->stats();
    EXPECT_EQ(stats.scanned_bytes, 8192u * 4);
    EXPECT_EQ(stats.read_bytes, 8192u * (2 + 4 + 4 + 4 + 4));
    EXPECT_EQ(stats.written_bytes, 8192u * (2 + 4 + 4 + 4));
    EXPECT_GT(stats.busy_ns, 0u);
    EXPECT_EQ(stats.failures, 0u);
    EXPECT_EQ(stats.jobs, 0u);
}

// Two optimizers, sums, skips, refusals and preferences at once, on every kind of timing: nothing
// hangs, every claim is given back, and the contract is kept.
TEST(Pipeline, RandomWorkAlwaysEnds)
{
    for (uint64_t seed = 1; seed <= 40; ++seed) {
        SCOPED_TRACE("seed " + std::to_string(seed));
        Conditions conditions;
        conditions.seed = seed;
        conditions.threads = static_cast<uint32_t>(1 + seed % 4);
        conditions.tier_threads = static_cast<uint32_t>(seed % 3);
        conditions.window_blocks = 1 + seed % 30;
        World world(conditions);
        auto other = Optimizer::create(*world.pipeline, STW_OPTIMIZER_ADAM, nullptr).take();
        World::give_hyper(*other);
        std::vector<Entry> entries = add_some(world, 5, 10000 + seed);
        const Entry lone = world.make({20000, STW_F16, STW_BF16, 64});
        ASSERT_TRUE(other->add(&lone, 1).ok());
        entries.push_back(lone);
        for (const Entry &entry : entries)
            if (world.random() % 2 == 0) world.move_home(entry);
        for (int step = 0; step < 4; ++step) {
            for (const Entry &entry : entries) {
                const uint64_t dice = world.random() % 8;
                if (dice == 0) {
                    world.tiers.refuse(entry.gradient, world.random() % 20000, STW_ERROR_IO);
                }
                if (dice == 1) world.devices.fail_start();
                if (dice == 2) world.devices.fail_scan();
                if (dice > 4) continue;
                Accumulation sum;
                sum.gradient = entry.gradient;
                sum.gradient_dtype = entry.gradient_dtype;
                sum.scratch = world.tiers.create(entry.element_count * 4, 0, false);
                sum.scratch_dtype = STW_F32;
                sum.element_count = sum.gradient_elements = entry.element_count;
                const auto values = world.random_elements(entry.element_count, STW_F32);
                world.tiers.set_bytes(sum.scratch, values.data());
                ASSERT_TRUE(world.pipeline->accumulate(sum).ok());
            }
            StepOptions options;
            options.clip_norm = world.random() % 2 == 0 ? 1.0 : 0.0;
            options.flags = world.random() % 2 == 0 ? uint32_t{STW_UPDATE_SKIP_NONFINITE} : 0u;
            // Failures are part of the program; what counts is that each call comes back.
            for (const Entry &entry : entries) {
                if (&entry == &entries.back() || world.random() % 2 == 0) continue;
                (void)world.optimizer->step(only(entry), nullptr).code();
            }
            (void)world.optimizer->step(options, nullptr).code();
            (void)other->step(options, nullptr).code();
            world.pipeline->prefer(entries[world.random() % entries.size()].parameter);
        }
        ASSERT_TRUE(world.pipeline->drain(UINT64_MAX).ok());
        for (const Entry &entry : entries) {
            EXPECT_FALSE(world.tiers.claimed(entry.parameter));
            EXPECT_FALSE(world.tiers.claimed(entry.gradient));
        }
        EXPECT_FALSE(world.optimizer->pending() || other->pending());
        EXPECT_EQ(world.pipeline->stats().window_bytes, 0u);
    }
}

}  // namespace
}  // namespace stepwell::update::test
