// SPDX-License-Identifier: Apache-2.0
// Hits and ends of views past the lock: what the core hears of them, in which order, and what it
// does not hear of where a ring is full.
#include "lib/runtime/handles/views.h"

#include <atomic>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

namespace stepwell {
namespace {

using residency::PlaceId;
using residency::TensorId;

constexpr uint64_t kStep = (uint64_t{3} << 32) | 9;  // the ninth of the third phase
constexpr uint64_t kSerial = 1ull << 40;             // no runtime of this process has that one

class HitsTest : public testing::Test {
protected:
    HitsTest() : table_(16, ++serial_), state_(*table_.thread_state()) {}

    bool hit(TensorId tensor, PlaceId place = 1, uint64_t step = kStep)
    {
        return ViewTable::push_hit(state_, tensor, place, step);
    }
    void end(TensorId tensor, PlaceId place = 1, uint64_t step = kStep)
    {
        ViewTable::push_end(state_, tensor, place, step);
    }
    // "h0 e0": what is heard of now, in order.
    std::string heard()
    {
        std::string words;
        table_.drain_hits([&](const ViewTable::Heard &one) {
            words += words.empty() ? "" : " ";
            words += (one.ended ? 'e' : 'h') + std::to_string(one.tensor);
        });
        return words;
    }
    // No two of these are alike.
    void fill_ring()
    {
        for (TensorId tensor = 100; tensor < 100 + ThreadState::kHits; ++tensor) {
            ASSERT_TRUE(hit(tensor)) << tensor;
        }
    }

    static inline uint64_t serial_ = kSerial;
    ViewTable table_;
    ThreadState &state_;
};

TEST_F(HitsTest, AreHeardOfOnceWithPhasePlaceAndThread)
{
    constexpr TensorId kLargest = residency::kNone - 1;
    ASSERT_TRUE(hit(kLargest, residency::kPlacesMax - 1, ((uint64_t{1} << 24) - 1) << 32));
    end(kLargest, residency::kPlacesMax - 1, ((uint64_t{1} << 24) - 1) << 32);
    uint32_t count = 0;
    table_.drain_hits([&](const ViewTable::Heard &one) {
        EXPECT_EQ(one.tensor, kLargest);
        EXPECT_EQ(one.place, residency::kPlacesMax - 1);
        EXPECT_EQ(one.phase, (1u << 24) - 1);
        EXPECT_EQ(one.thread, state_.number);
        EXPECT_EQ(one.ended, count++ == 1);
    });
    EXPECT_EQ(count, 2u);
    EXPECT_EQ(heard(), "");
}

TEST_F(HitsTest, AreHeardOfInTheirOrder)
{
    hit(0);
    hit(1);
    end(0);
    hit(2);
    end(1);
    end(2);
    EXPECT_EQ(heard(), "h0 h1 e0 h2 e1 e2");
}

TEST_F(HitsTest, OnWhatWasHitJustBeforeAreLeftOutAndSoAreTheirEnds)
{
    for (int i = 0; i < 3; ++i) {
        hit(0);
        end(0);
    }
    EXPECT_EQ(heard(), "h0 e0");
    hit(1);
    hit(1);  // two views at once
    end(1);
    end(1);
    EXPECT_EQ(heard(), "h1 e1");
}

TEST_F(HitsTest, OfAnotherTensorPlaceOrPhaseAreTold)
{
    hit(0);
    hit(0, 2);
    hit(0, 2, uint64_t{4} << 32);
    hit(1, 2, uint64_t{4} << 32);
    EXPECT_EQ(heard(), "h0 h0 h0 h1");
    end(0);
    end(0, 2);
    end(0, 2, uint64_t{4} << 32);
    end(1, 2, uint64_t{4} << 32);
    EXPECT_EQ(heard(), "e0 e0 e0 e1");
}

TEST_F(HitsTest, OnWhatWasUsedAMomentAgoAreTold)
{
    hit(0);
    hit(1);
    end(1);
    end(0);
    hit(0);
    end(0);
    EXPECT_EQ(heard(), "h0 h1 e1 e0 h0 e0");
}

// What was heard of may be in a new step since.
TEST_F(HitsTest, AreToldAnewOnceTheLastOneWasHeardOf)
{
    hit(0);
    EXPECT_EQ(heard(), "h0");
    hit(0);
    EXPECT_EQ(heard(), "h0");
    end(0);
    EXPECT_EQ(heard(), "e0");
    end(0);
    EXPECT_EQ(heard(), "e0");
}

TEST_F(HitsTest, AreRefusedWhereTheRingIsFullAndItsEndsGoUntold)
{
    fill_ring();
    EXPECT_FALSE(hit(1));
    end(1);
    EXPECT_TRUE(hit(100 + ThreadState::kHits - 1)) << "which adds nothing";
    TensorId expected = 100;
    table_.drain_hits([&](const ViewTable::Heard &one) {
        EXPECT_EQ(one.tensor, expected++);
        EXPECT_FALSE(one.ended);
    });
    EXPECT_EQ(expected, 100 + ThreadState::kHits);
    EXPECT_TRUE(hit(1));
    end(1);
    EXPECT_EQ(heard(), "h1 e1");
}

TEST_F(HitsTest, OfOneThatWasRefusedTheEndAloneIsHeard)
{
    fill_ring();
    ASSERT_FALSE(hit(1));
    (void)heard();
    end(1);
    hit(2);
    EXPECT_EQ(heard(), "e1 h2");
}

TEST_F(HitsTest, GoOnWhereTheCountersBeginAgain)
{
    state_.hits_head = UINT32_MAX - 2;
    state_.hits_tail = UINT32_MAX - 2;
    for (TensorId tensor = 0; tensor < 3; ++tensor) {
        hit(tensor);
        end(tensor);
        hit(tensor);  // left out
    }
    EXPECT_LT(state_.hits_tail, 10u);
    EXPECT_EQ(heard(), "h0 e0 h1 e1 h2 e2");
    fill_ring();
    EXPECT_FALSE(hit(1));
}

// What several threads have pushed, while others listen.
class Listener {
public:
    void listen(ViewTable &table)
    {
        table.drain_hits([&](const ViewTable::Heard &one) { hear(one); });
    }
    void expect_all(size_t threads, TensorId each) const
    {
        EXPECT_EQ(of_.size(), threads);
        for (const auto &[thread, mine] : of_) EXPECT_EQ(mine.next, each) << thread;
    }

private:
    struct Of {
        TensorId next = 0;  // hits come in this order, and none is missing
        TensorId ended = 0;
    };
    void hear(const ViewTable::Heard &one)
    {
        Of &mine = of_[one.thread];
        if (one.ended) {
            EXPECT_GE(one.tensor, mine.ended);
            EXPECT_LT(one.tensor, mine.next) << "an end before its hit";
            mine.ended = one.tensor + 1;
        } else {
            EXPECT_EQ(one.tensor, mine.next);
            mine.next = one.tensor + 1;
        }
        EXPECT_EQ(one.place, one.tensor % residency::kPlacesMax);
        EXPECT_EQ(one.phase, one.tensor % 5 + 1);
    }
    std::map<uint32_t, Of> of_;
};

TEST_F(HitsTest, OfSeveralThreadsComeFromEachInItsOrder)
{
    constexpr size_t kThreads = 4;
    constexpr TensorId kEach = 20'000;
    std::atomic<size_t> busy{kThreads};
    std::vector<std::thread> threads;
    for (size_t i = 0; i < kThreads; ++i) {
        threads.emplace_back([&] {
            ThreadState &mine = *table_.thread_state();
            for (TensorId tensor = 0; tensor < kEach; ++tensor) {
                const auto place = static_cast<PlaceId>(tensor % residency::kPlacesMax);
                const uint64_t step = (uint64_t{tensor % 5 + 1} << 32) | tensor;
                while (!ViewTable::push_hit(mine, tensor, place, step)) std::this_thread::yield();
                ViewTable::push_end(mine, tensor, place, step);
            }
            --busy;
        });
    }
    Listener listener;
    while (busy > 0) listener.listen(table_);
    for (std::thread &thread : threads) thread.join();
    listener.listen(table_);
    listener.expect_all(kThreads, kEach);
}

}  // namespace
}  // namespace stepwell
