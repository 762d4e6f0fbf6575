// SPDX-License-Identifier: Apache-2.0
// Other orders of a step: what is found, and that no order is made which computes something else.
#include "lib/schedule/advice/reorder.h"
#include "lib/schedule/advice/weave.h"
#include "tests/unit/schedule/training_fixture.h"

#include <algorithm>
#include <map>
#include <set>

namespace stepwell::schedule {
namespace {

using residency::Access;
using residency::TensorId;

// The tensors of the program's fetches, those of the update in brackets.
std::string order(const Training &training, const Step &step)
{
    std::string words;
    for (const Event &event : step) {
        if (event.act != Act::kFetch) continue;
        const std::string name = event.tensor < training.specs.size()
                                     ? training.specs[event.tensor].name
                                     : "new" + std::to_string(event.tensor);
        words += words.empty() ? "" : " ";
        words += event.lane == Lane::kUpdate ? "(" + name + ")" : name;
    }
    return words;
}

// What each fetch of a tensor that it does not overwrite finds there: the number of the write
// before it. Equal for two orders that compute the same.
std::map<size_t, uint64_t> findings(const Step &step, const std::vector<uint64_t> &names)
{
    std::map<TensorId, uint64_t> contents;
    std::map<size_t, uint64_t> found;
    for (size_t i = 0; i < step.size(); ++i) {
        const Event &event = step[i];
        if (event.act != Act::kFetch) continue;
        if (event.access != Access::kWrite) found[names[i]] = contents[event.tensor];
        if (event.access != Access::kRead) contents[event.tensor] = names[i] + 1;
    }
    return found;
}

TEST(Group, TheMicroBatchesOfALayerGoTogetherAndEachHasItsOwnActivations)
{
    Training training(2, 2);
    training.train_step(Activations::kOwn);
    const std::optional<Order> grouped = group_micro_batches(training.specs, training.step);
    ASSERT_TRUE(grouped);
    EXPECT_EQ(grouped->times, 2u);
    EXPECT_EQ(order(training, training.step), "w0 a0.0 w1 a0.0 a0.1 w1 a0.1 g1 w0 a0.0 g0 "
                                              "w0 a1.0 w1 a1.0 a1.1 w1 a1.1 g1 w0 a1.0 g0");
    EXPECT_EQ(order(training, grouped->step), "w0 a0.0 w0 a1.0 w1 a0.0 a0.1 w1 a1.0 a1.1 "
                                              "w1 a0.1 g1 w1 a1.1 g1 w0 a0.0 g0 w0 a1.0 g0");
    EXPECT_EQ(grouped->specs.size(), training.specs.size());
}

TEST(Group, BuffersThatEachMicroBatchWritesAnewAreNeededOncePerMicroBatch)
{
    Training training(3, 4);
    training.train_step(Activations::kReused);
    const std::optional<Order> grouped = group_micro_batches(training.specs, training.step);
    ASSERT_TRUE(grouped);
    EXPECT_EQ(grouped->times, 4u);
    EXPECT_EQ(grouped->specs.size(), training.specs.size() + 3 * 3);
    std::set<TensorId> used;
    for (const Event &event : grouped->step) used.insert(event.tensor);
    EXPECT_EQ(used.size() + training.moments.size(), grouped->specs.size());
}

TEST(Group, TheUpdateStaysOutside)
{
    Training training(2, 3);
    training.train_step(Activations::kOwn);
    training.update(Lane::kProgram);
    const std::optional<Order> grouped = group_micro_batches(training.specs, training.step);
    ASSERT_TRUE(grouped);
    EXPECT_EQ(grouped->times, 3u);
    const std::string before = order(training, training.step);
    const std::string after = order(training, grouped->step);
    const std::string update = "w0 g0 m0 w1 g1 m1";
    EXPECT_EQ(before.substr(before.size() - update.size()), update);
    EXPECT_EQ(after.substr(after.size() - update.size()), update);
}

TEST(Group, AnUpdateBesideTheProgramKeepsItsPlaceBehindWhatItNeeds)
{
    Training training(3, 2);
    training.update(Lane::kUpdate);  // of the step before, beside the first micro-batch
    training.train_step(Activations::kOwn);
    const std::optional<Order> grouped = group_micro_batches(training.specs, training.step);
    ASSERT_TRUE(grouped);
    const std::string words = order(training, grouped->step);
    for (const char *layer : {"0", "1", "2"}) {
        const std::string name(layer);
        EXPECT_LT(words.find("(w" + name), words.find(" w" + name)) << words;
        EXPECT_LT(words.find("(g" + name), words.find(" g" + name)) << words;
    }
}

TEST(Group, WhereEachMicroBatchUpdatesWhatTheNextOneReadsNothingIsGrouped)
{
    Training training(3, 1);
    for (uint32_t i = 0; i < 4; ++i) {
        training.train_step(Activations::kReused);
        training.update(Lane::kProgram);
    }
    const std::optional<Order> grouped = group_micro_batches(training.specs, training.step);
    EXPECT_FALSE(grouped) << order(training, grouped->step);
}

TEST(Group, AViewThatIsHeldAcrossMicroBatchesKeepsThemWhole)
{
    Training training(2, 4);
    training.specs.emplace_back();
    training.specs.back().bytes = kBlock;
    const auto held = static_cast<TensorId>(training.specs.size() - 1);
    use(training.step, held);
    const Event release = training.step.back();
    training.step.pop_back();
    training.train_step(Activations::kOwn);
    training.step.push_back(release);
    EXPECT_FALSE(group_micro_batches(training.specs, training.step));
}

TEST(Group, AStepThatDoesNotRepeatItselfGivesNothing)
{
    Training training(6, 1);
    training.train_step(Activations::kOwn);
    training.update(Lane::kProgram);
    EXPECT_FALSE(group_micro_batches(training.specs, training.step));
    EXPECT_FALSE(group_micro_batches({}, {}));
    // There and back: layers alike, but never the same ones at the same places.
    Step step;
    for (TensorId i = 0; i < 8; ++i) use(step, i);
    for (TensorId i = 8; i-- > 0;) use(step, i);
    EXPECT_FALSE(group_micro_batches(tensors_of(std::vector<uint32_t>(8, 1)), step));
}

TEST(Reverse, TheUpdateOfTheProgramGoesBackwardsAndAllElseStays)
{
    Training training(3, 1);
    training.train_step(Activations::kOwn);
    const std::string forward = order(training, training.step);
    training.update(Lane::kProgram);
    const std::optional<Order> reversed = reverse_update(training.specs, training.step);
    ASSERT_TRUE(reversed);
    EXPECT_EQ(reversed->times, 3u);
    EXPECT_EQ(order(training, reversed->step), forward + " w2 g2 m2 w1 g1 m1 w0 g0 m0");
}

TEST(Reverse, TheUpdateBesideTheProgramGoesBackwardsBehindTheGradients)
{
    Training training(3, 1);
    training.train_step(Activations::kOwn);
    const std::string forward = order(training, training.step);
    training.update(Lane::kUpdate);
    const std::optional<Order> reversed = reverse_update(training.specs, training.step);
    ASSERT_TRUE(reversed);
    EXPECT_EQ(order(training, reversed->step),
              forward + " (w2) (g2) (m2) (w1) (g1) (m1) (w0) (g0) (m0)");
}

TEST(Reverse, PassesOfAnUpdateStayOneBehindTheOtherAndPiecesOfAParameterInOrder)
{
    Training training(3, 1);
    training.train_step(Activations::kOwn);
    const size_t before = training.step.size();
    for (TensorId i = 0; i < 3; ++i) {
        use(training.step, training.grads[i], 0, Access::kRead, Lane::kUpdate);
    }
    training.update(Lane::kUpdate, 2);
    const std::optional<Order> reversed = reverse_update(training.specs, training.step);
    ASSERT_TRUE(reversed);
    const Step tail(reversed->step.begin() + static_cast<std::ptrdiff_t>(before),
                    reversed->step.end());
    EXPECT_EQ(order(training, tail),
              "(g2) (g1) (g0) (w2) (g2) (m2) (w2) (g2) (m2) (w1) (g1) (m1) (w1) (g1) (m1) "
              "(w0) (g0) (m0) (w0) (g0) (m0)");
    EXPECT_EQ(tail[6].byte_begin, 0u);
    EXPECT_GT(tail[12].byte_begin, 0u);
}

TEST(Reverse, ABackwardThatUpdatesWhatItPassesIsNoOptimizer)
{
    Step step;
    std::vector<residency::TensorSpec> specs = tensors_of(std::vector<uint32_t>(6, 1));
    for (TensorId i = 0; i < 6; ++i) use(step, i);
    for (TensorId i = 6; i-- > 0;) use(step, i, 0, Access::kReadWrite);
    EXPECT_FALSE(reverse_update(specs, step));
    for (residency::TensorSpec &spec : specs) spec.role = STW_ROLE_PARAM;
    EXPECT_FALSE(reverse_update(specs, step));
}

TEST(Weave, AnOrderThatCannotBeIsRefused)
{
    Step step;
    use(step, 0, 0, Access::kWrite);
    use(step, 0, 0, Access::kReadWrite, Lane::kUpdate);
    use(step, 1, 0, Access::kReadWrite, Lane::kUpdate);
    use(step, 1);
    std::array<EventList, kLanes> lanes = lanes_of(step);
    EXPECT_EQ(weave(step, lanes)->size(), step.size());
    std::rotate(lanes[0].begin(), lanes[0].begin() + 2, lanes[0].end());
    EXPECT_FALSE(weave(step, lanes)) << "1 is read before 0 is written, and updated behind it";
}

// Random programs of parts that depend on each other: whatever order comes out finds the same.
TEST(Group, NoOrderFindsOtherContents)
{
    uint32_t grouped_some = 0;
    for (uint32_t seed = 0; seed < 400; ++seed) {
        std::mt19937 random(seed);
        const auto below = [&](uint32_t n) { return static_cast<uint32_t>(random() % n); };
        const uint32_t tensors = 3 + below(6);
        std::vector<residency::TensorSpec> specs = tensors_of(std::vector<uint32_t>(tensors, 1));
        const uint32_t turns = 2 + below(3);
        std::vector<std::pair<TensorId, Access>> turn;
        for (uint32_t i = 0; i < 2 + below(7); ++i) {
            const Access access[] = {Access::kRead, Access::kRead, Access::kRead, Access::kWrite,
                                     Access::kReadWrite};
            turn.emplace_back(below(tensors), access[below(5)]);
        }
        Step step;
        const auto add_some = [&] {
            for (uint32_t i = below(3); i > 0; --i) {
                const bool update = below(2) == 0;
                use(step, below(tensors), 0, below(2) ? Access::kRead : Access::kReadWrite,
                    update ? Lane::kUpdate : Lane::kProgram);
            }
        };
        add_some();
        for (uint32_t i = 0; i < turns; ++i) {
            for (const auto &[tensor, access] : turn) use(step, tensor, 0, access);
        }
        add_some();
        // Named by their time to compute, so that each is known again wherever it goes.
        for (size_t i = 0; i < step.size(); ++i) step[i].compute_ns = i;
        const auto names_of = [](const Step &of) {
            std::vector<uint64_t> names;
            for (const Event &event : of) names.push_back(event.compute_ns);
            return names;
        };
        for (const bool reverse : {false, true}) {
            std::optional<Order> other =
                reverse ? reverse_update(specs, step) : group_micro_batches(specs, step);
            if (!other) continue;
            grouped_some += !reverse;
            SCOPED_TRACE("seed " + std::to_string(seed) + (reverse ? ", reversed" : ", grouped"));
            ASSERT_EQ(other->step.size(), step.size());
            if (!reverse) {
                EXPECT_EQ(findings(other->step, names_of(other->step)),
                          findings(step, names_of(step)));
            }
        }
    }
    EXPECT_GT(grouped_some, 20u);
}

}  // namespace
}  // namespace stepwell::schedule
