// SPDX-License-Identifier: Apache-2.0
// Foresight: what will be fetched next, by what followed the last time.
#include "lib/gathering/foresight.h"

#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace stepwell::gathering {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::vector<WholeId> next(const Foresight &foresight, uint32_t count)
{
    std::vector<Foresight::Coming> coming;
    foresight.coming(count, coming);
    std::vector<WholeId> wholes;
    for (const Foresight::Coming &one : coming) wholes.push_back(one.whole);
    return wholes;
}

// The parameters of a step: layers of so many tensors each, every layer computed again before its
// gradients.
std::vector<WholeId> step_of(uint32_t layers, uint32_t tensors)
{
    std::vector<WholeId> step(layers * tensors);
    std::iota(step.begin(), step.end(), 0);
    for (uint32_t layer = layers; layer-- > 0;) {
        for (uint32_t i = 0; i < tensors; ++i) step.push_back(layer * tensors + i);
        for (uint32_t i = tensors; i-- > 0;) step.push_back(layer * tensors + i);
    }
    return step;
}

TEST(Foresight, NothingIsForeseenThatNeverWas)
{
    Foresight foresight;
    for (const WholeId whole : {0, 1, 2, 3}) {
        EXPECT_THAT(next(foresight, 4), IsEmpty());
        foresight.fetched(whole, false);
    }
}

TEST(Foresight, TheThirdStepIsKnownFromItsFirstFetchOn)
{
    for (const uint32_t tensors : {1u, 2u, 4u}) {
        const std::vector<WholeId> step = step_of(6, tensors);
        Foresight foresight;
        for (int i = 0; i < 2; ++i)
            for (const WholeId whole : step) foresight.fetched(whole, false);
        for (size_t at = 0; at < step.size(); ++at) {
            foresight.fetched(step[at], false);
            std::vector<WholeId> comes;
            for (size_t i = 1; i <= 3; ++i) comes.push_back(step[(at + i) % step.size()]);
            EXPECT_EQ(next(foresight, 3), comes) << tensors << " tensors, fetch " << at;
        }
    }
}

// A layer begins in both passes alike and goes on in two ways; neither makes the other forget.
TEST(Foresight, ALayerThatIsComputedAgainIsNotTakenForItsForwardPass)
{
    const std::vector<WholeId> step = step_of(4, 3);
    Foresight foresight;
    for (int i = 0; i < 2; ++i)
        for (const WholeId whole : step) foresight.fetched(whole, false);
    for (const WholeId whole : {0, 1, 2}) foresight.fetched(whole, false);
    EXPECT_THAT(next(foresight, 2), ElementsAre(3u, 4u));
    for (const WholeId whole : {3, 4, 5, 6, 7, 8, 9, 10, 11, 9, 10, 11})
        foresight.fetched(whole, false);
    EXPECT_THAT(next(foresight, 3), ElementsAre(11u, 10u, 9u));
}

TEST(Foresight, OneOtherFetchCostsItTwo)
{
    Foresight foresight;
    for (int step = 0; step < 2; ++step)
        for (WholeId whole = 0; whole < 8; ++whole) foresight.fetched(whole, false);
    foresight.fetched(0, false);
    foresight.fetched(1, false);
    foresight.fetched(100, false);
    EXPECT_THAT(next(foresight, 2), IsEmpty());
    foresight.fetched(2, false);
    EXPECT_THAT(next(foresight, 2), IsEmpty());
    foresight.fetched(3, false);
    EXPECT_THAT(next(foresight, 2), ElementsAre(4u, 5u));
}

TEST(Foresight, ItStopsBeforeWhatIsChangedFirst)
{
    Foresight foresight;
    for (int step = 0; step < 2; ++step)
        for (WholeId whole = 0; whole < 4; ++whole) foresight.fetched(whole, whole == 2);
    foresight.fetched(0, false);
    EXPECT_THAT(next(foresight, 4), ElementsAre(1u));
    foresight.fetched(1, false);
    EXPECT_THAT(next(foresight, 4), IsEmpty());
    foresight.fetched(2, true);
    EXPECT_THAT(next(foresight, 2), ElementsAre(3u, 0u));
}

TEST(Foresight, WhatItRemembersIsBounded)
{
    Foresight foresight(64);
    for (int step = 0; step < 20; ++step)
        for (WholeId whole = 0; whole < 20; ++whole) foresight.fetched(whole, false);
    EXPECT_THAT(next(foresight, 2), ElementsAre(0u, 1u));
    // Of a step that is longer it knows nothing, and says nothing.
    for (int step = 0; step < 3; ++step)
        for (WholeId whole = 0; whole < 100; ++whole) foresight.fetched(whole, false);
    EXPECT_THAT(next(foresight, 2), IsEmpty());
}

}  // namespace
}  // namespace stepwell::gathering
