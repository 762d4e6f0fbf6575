// SPDX-License-Identifier: Apache-2.0
// What a seed decides before a run: the machine, the tensors, and the program that every rank runs.
// The programs cannot wait for themselves across ranks: all ranks of a group make the same
// collectives in the same order, and an update that waits for one holds nothing. Within a rank, the
// shell breaks what waits for itself.
#pragma once

#include "lib/schedule/replay/machine.h"
#include "lib/schedule/trace/step.h"
#include "tests/ranks/links.h"

#include <vector>

namespace stepwell::ranks {

constexpr uint32_t kRanksMax = 8;
constexpr uint32_t kPhases = 2;
constexpr uint32_t kUsesMax = 3;

struct TensorPlan {
    TensorSpec spec;
    bool written = false;  // before the first step
    bool passing = false;  // made and destroyed by the program
};

struct Use {
    uint32_t tensor = 0;  // in Setup::tensors
    Access access = Access::kRead;
    PlaceId place = kDevice;
};

enum class What : uint8_t {
    kBeginStep,
    kEndStep,
    kFetch,
    kRelease,
    kCompute,
    kCollective,
    kUpdate,       // claims its tensors; the update lane does the work
    kWaitUpdates,  // nothing is held here
    kCreate,
    kDestroy,
    kDiscard,
};

struct Op {
    What what = What::kCompute;
    uint32_t handle = 0;  // of a fetch and its release
    uint32_t uses_count = 0;
    std::array<Use, kUsesMax> uses{};
    Instant ns = 0;
    uint32_t phase = 0;
    bool in_group = false;  // a collective of the rank's group, not of all
    bool waits_room = true;
    bool empties = false;  // an update that uses its last tensor up
    schedule::Hint hint = schedule::Hint::kNone;
};

struct Setup {
    uint32_t ranks = 2;
    uint32_t group_ranks = 2;
    Config config;
    Links::Setups links;
    std::vector<TensorPlan> tensors;
    std::vector<Op> program;
    uint32_t handles = 0;
    uint32_t faults_max = 0;
    uint32_t fault_gap_us = 0;
    uint32_t loader_gap_us = 100;
    std::array<schedule::Step, kPhases> templates;  // the program's lane, by place in `tensors`
    schedule::Machine machine;                      // for policies that plan
};

Setup choose_setup(const Options &options, Random &random);
void write_program(const Options &options, Random &random, Setup *setup);
std::string describe(const Setup &setup);

}  // namespace stepwell::ranks
