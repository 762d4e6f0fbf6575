// SPDX-License-Identifier: Apache-2.0
// What one rank does in training steps, as concurrent lanes of operations: it computes, sums,
// updates. An operation starts when its lane reaches it and its predecessors are done; of the
// updates that were called and may start, that of the parameter which is used next. What is
// gathered or prefetched, and when, is not part of the program: ranks decide that as a runtime
// does (collectives.cpp, ahead.cpp). Pure.
#pragma once

#include "lib/simulate/layout.h"

#include <array>
#include <vector>

namespace stepwell::simulate {

enum class LaneId : uint8_t {
    kCompute,
    kSum,
    kAfter,        // discards after the verdict, and waits for the end of all updates
    kUpdateFetch,  // these two in the order that the world chooses
    kUpdate
};
constexpr uint32_t kLanes = 5;

enum class What : uint8_t {
    kFetch,
    kRelease,
    kCompute,
    kGather,   // a tile's parameters are fetched, gathered
    kLetGo,    // and released
    kSum,      // queues the sum of its gradient
    kSummed,   // waits for the next of these sums
    kUpdate,   // a tile is to be updated: later fetches get the result. Its fetch is the next one
    kDiscard,  // of a tensor that nobody uses, such as a gradient when its update is final
    kDrain,
    kStepBegins
};

// Why the GPU waits.
enum class Cause : uint8_t { kNone, kParameters, kCollectives, kCheckpoints, kGradients, kUpdate };
constexpr uint32_t kCauses = 6;
const char *cause_name(Cause cause);

struct Use {
    TensorId tensor = residency::kNone;
    residency::Access access = residency::Access::kRead;
    PlaceId place = kDevicePlace;
};

using OpId = uint32_t;
constexpr OpId kNoOp = UINT32_MAX;

struct Op {
    What what = What::kCompute;
    LaneId lane = LaneId::kCompute;
    Cause cause = Cause::kNone;
    bool far = false;      // of a release: evicted first and written back now
    bool discard = false;  // of a release: contents are dead
    std::array<OpId, 3> after = {kNoOp, kNoOp, kNoOp};
    bool again = false;            // of an update: its first result is not used; of a sum: it adds
    std::array<Use, 4> uses = {};  // of a fetch or a release
    uint8_t use_count = 0;
    uint64_t duration_ns = 0;   // of a computation
    uint64_t memory_bytes = 0;  // of an update: host memory that it reads and writes
    uint32_t tile = 0;          // that is gathered, summed or updated
    uint32_t step = 0;          // of an update's fetch
    uint32_t at_once = 0;       // the same: updates that have room in host memory
    bool ends = false;          // the update, whose operations are consecutive
};

struct Schedule {
    bool overlap = true;          // fetch, gather and sum ahead of and beside the computation
    bool exposed_update = false;  // instead of the model's: all between two steps, as in the paper
    uint32_t missed_step = UINT32_MAX;  // whose speculated updates are made again
};

struct Program {
    std::vector<Op> ops;
    std::array<std::vector<OpId>, kLanes> lanes;  // but for those of updates
    uint64_t compute_ns = 0;                      // of a step
    uint32_t ahead_max = 0;                       // tensors gathered before they are fetched
    std::vector<uint64_t> gather_ns;              // by tile
    std::vector<uint64_t> sum_ns;
};

// That many steps, and the begin of one more.
Program write_program(const Layout &layout, const Model &model, const Machine &machine,
                      const Schedule &schedule, uint32_t steps);

// All ranks that hold slices gather the tensor; or, the other way, sum into their slices.
uint64_t collective_ns(const Machine &machine, const Layout &layout, uint32_t model_parallel,
                       uint64_t whole_bytes);

}  // namespace stepwell::simulate
