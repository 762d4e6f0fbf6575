// SPDX-License-Identifier: Apache-2.0
// The objects behind the C handles. Fields that a hit needs come first and are written once,
// before the handle is given out; everything else about a tensor is in the residency core, under
// its id.
#pragma once

#include "lib/residency/types.h"
#include "lib/runtime/handles/lock.h"
#include "lib/runtime/handles/pool.h"
#include "lib/runtime/handles/sharding.h"
#include "lib/support/thread_annotations.h"

#include <stepwell/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace stepwell::collective {
class Group;
}  // namespace stepwell::collective
namespace stepwell::memory {
class AddressAlias;
}  // namespace stepwell::memory
namespace stepwell::residency {
struct Door;
}  // namespace stepwell::residency

namespace stepwell {

class AssertionLog;
class Runtime;
struct Waiter;

// An optimizer. Tensors that it updates or made cannot be destroyed before it.
struct TensorHolder {
    std::string name;
    // Parameters and gradients, without the states that it made.
    std::vector<stw_tensor *> held STW_GUARDED_BY(runtime_lock);
};

// What changes during a tensor's life, in addition to the core's tables. Guarded by the runtime's
// lock.
struct TensorNotes {
    stw_tensor *previous = nullptr;  // in order of creation
    stw_tensor *next = nullptr;
    uint64_t serial = 0;         // counts creations; the order of stw_tensor_next
    uint64_t last_use = 0;       // number of the access; 0: none
    uint64_t created_ns = 0;     // events of its id before then belong to another tensor
    bool moved = false;          // since its last use
    bool restored = false;       // the contents came from a generation
    bool kept = false;           // a generation has contents of it
    uint64_t contributions = 0;  // to sums in it
    uint64_t read_touches = 0;   // faults at its address
    uint64_t write_touches = 0;
    bool trained = false;            // counted in Placement::trained_bytes
    TensorHolder *holder = nullptr;  // it cannot be destroyed before
};

enum class Life : uint32_t { kOpen = 0, kDeferred = 1, kClosed = 2 };

}  // namespace stepwell

struct stw_runtime {
    stw_runtime();
    ~stw_runtime();

    std::atomic<uint32_t> tag{0};
    std::atomic<stepwell::Life> life{stepwell::Life::kClosed};
    std::atomic<uint64_t> fork_epoch{0};
    stepwell::Runtime *body = nullptr;    // null once closed
    std::atomic<uint32_t> interrupts{0};  // calls of stw_runtime_interrupt() under way
    const std::unique_ptr<stepwell::AssertionLog> assertions;  // its threads' failed ones
    // After a deferred close: releases under way. The last one destroys the runtime.
    stepwell::Mutex deferred_mutex;
    uint32_t deferred_releases STW_GUARDED_BY(deferred_mutex) = 0;
};

struct stw_tensor {
    std::atomic<uint32_t> tag{0};
    stepwell::residency::TensorId id = 0;
    stw_runtime *runtime = nullptr;
    stepwell::residency::Door *doors = nullptr;  // by place; owned by the core
    uint64_t elements = 0;
    uint64_t bytes = 0;
    void *addresses[stepwell::residency::kDevicesMax] = {};  // constant, where a device maps
    stepwell::memory::AddressAlias *shown[stepwell::residency::kDevicesMax] = {};  // of the runtime
    uint32_t dtype = 0;
    uint32_t element_bits = 0;
    std::unique_ptr<stepwell::Sharding> sharding;  // null: of this process alone
    uint64_t shard_begin = 0;                      // elements of the tensor before this shard
    // --- not used by hits ---
    std::string name;
    uint32_t role = 0;
    std::atomic<uint32_t> flags{0};  // READ_ONLY changes under the runtime's lock
    uint32_t dimensions = 0;
    uint64_t shape[8] = {};
    uint64_t capacity_bytes = 0;  // as created; a reshape may use less
    stepwell::TensorNotes notes STW_GUARDED_BY(stepwell::runtime_lock);
};

struct stw_group {
    stw_group();
    ~stw_group();
    std::atomic<uint32_t> tag{0};
    std::unique_ptr<stepwell::collective::Group> body;  // null: this process alone
    std::string id;                                     // of GroupIds
    std::atomic<uint64_t> fork_epoch{0};
};

struct stw_phase {
    std::atomic<uint32_t> tag{0};
    stw_runtime *runtime = nullptr;
    uint32_t index = 0;
};

struct stw_optimizer {
    std::atomic<uint32_t> tag{0};
    stw_runtime *runtime = nullptr;
    uint32_t index = 0;
};

struct stw_operation {
    std::atomic<uint32_t> tag{0};
    stw_runtime *runtime = nullptr;
    stepwell::Waiter *waiter = nullptr;
};

namespace stepwell {

using Tensor = ::stw_tensor;

// Process-wide. The memory of handles outlives their runtime; the objects do not.
extern Pool<stw_runtime> runtime_pool;
extern Pool<stw_tensor> tensor_pool;
extern Pool<stw_group> group_pool;
extern Pool<stw_phase> phase_pool;
extern Pool<stw_optimizer> optimizer_pool;
extern Pool<stw_operation> operation_pool;

// Incremented in every child of fork, so that a runtime detects that another process opened it.
extern std::atomic<uint64_t> fork_epoch;
void watch_forks();

}  // namespace stepwell
