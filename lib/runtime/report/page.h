// SPDX-License-Identifier: Apache-2.0
// The page of statistics that `stepwell top` reads.
#pragma once

#include "lib/runtime/dispatch/hook.h"
#include "lib/runtime/recording/ground.h"

namespace stepwell {

class OptimizerTable;
class Reporter;
class Meters;

struct Stats;

class StatsPublisher final : public DispatchHook, Grounded {
public:
    StatsPublisher(const Ground &ground, OptimizerTable &optimizers, Reporter &reporter,
                   Meters &meters);

    // If the system refuses the page, there is none.
    void open();
    ~StatsPublisher() override;
    [[nodiscard]] residency::Instant due() const override STW_REQUIRES(runtime_lock)
    {
        return stats_due_ns_;
    }
    void on_timer(residency::Instant now) override;

private:
    void publish_stats();

    OptimizerTable &optimizers_;
    Reporter &reporter_;
    Meters &meters_;
    // After open() used by the timer's thread only.
    std::unique_ptr<Stats> stats_;  // null: there is no page
    residency::Instant stats_due_ns_ = residency::kNever;
};

}  // namespace stepwell
