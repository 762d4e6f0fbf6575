// SPDX-License-Identifier: Apache-2.0
// The objects behind the C handles. What a hit needs comes first and is written once, before the
// handle is given out; everything else of a tensor is in the residency core, under its id.
#pragma once

#include "lib/collective/group.h"
#include "lib/residency/gate.h"
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

namespace stepwell::memory {
class AddressAlias;
}  // namespace stepwell::memory

namespace stepwell {

class Runtime;
struct Waiter;

// An optimizer: tensors that it updates or made are not destroyed before it.
struct TensorHolder {
    std::string name;
    // Parameters and gradients, what it made left out.
    std::vector<stw_tensor *> held STW_GUARDED_BY(runtime_lock);
};

// What changes of a tensor while it lives, beside what the core has. Under the runtime's lock.
struct TensorNotes {
    stw_tensor *previous = nullptr;  // in order of creation
    stw_tensor *next = nullptr;
    uint64_t serial = 0;         // counts creations; the order of stw_tensor_next
    uint64_t last_use = 0;       // number of the access, 0: none
    uint64_t created_ns = 0;     // what happened to its number before was another tensor's
    bool moved = false;          // since it was last used, as the core knows
    bool restored = false;       // the contents came from a generation
    bool kept = false;           // a generation has contents of it
    uint64_t contributions = 0;  // to sums in it, since it was made
    uint64_t read_touches = 0;   // faults at its address
    uint64_t write_touches = 0;
    bool trained = false;            // counted in Placement::trained_bytes
    TensorHolder *holder = nullptr;  // it cannot be destroyed meanwhile
};

enum class Life : uint32_t { kOpen = 0, kDeferred = 1, kClosed = 2 };

}  // namespace stepwell

struct stw_runtime {
    std::atomic<uint32_t> tag{0};
    std::atomic<stepwell::Life> life{stepwell::Life::kClosed};
    std::atomic<uint64_t> fork_epoch{0};
    stepwell::Runtime *body = nullptr;    // gone when closed
    std::atomic<uint32_t> interrupts{0};  // calls of stw_runtime_interrupt, under way
    // After a deferred close: releases under way. The last one ends the runtime.
    stepwell::Mutex deferred_mutex;
    uint32_t deferred_releases STW_GUARDED_BY(deferred_mutex) = 0;
};

struct stw_tensor {
    std::atomic<uint32_t> tag{0};
    stepwell::residency::TensorId id = 0;
    stw_runtime *runtime = nullptr;
    stepwell::residency::Door *doors = nullptr;  // per place; in the core, lives with the runtime
    uint64_t elements = 0;
    uint64_t bytes = 0;
    void *addresses[stepwell::residency::kDevicesMax] = {};  // for life, where a device maps
    stepwell::memory::AddressAlias *shown[stepwell::residency::kDevicesMax] = {};  // the runtime's
    uint32_t dtype = 0;
    uint32_t element_bits = 0;
    std::unique_ptr<stepwell::Sharding> sharding;  // null: of this process alone
    uint64_t shard_begin = 0;                      // of the tensor's elements, those before ours
    // --- not of a hit ---
    std::string name;
    uint32_t role = 0;
    std::atomic<uint32_t> flags{0};  // READ_ONLY changes under the runtime's lock
    uint32_t dimensions = 0;
    uint64_t shape[8] = {};
    uint64_t capacity_bytes = 0;  // as created; reshape may use less
    stepwell::TensorNotes notes STW_GUARDED_BY(stepwell::runtime_lock);
};

struct stw_group {
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

// Process-wide; handles outlive their runtime as memory, not as objects.
extern Pool<stw_runtime> runtime_pool;
extern Pool<stw_tensor> tensor_pool;
extern Pool<stw_group> group_pool;
extern Pool<stw_phase> phase_pool;
extern Pool<stw_optimizer> optimizer_pool;
extern Pool<stw_operation> operation_pool;

// +1 in every child of fork, so that a runtime knows it was opened in another process.
extern std::atomic<uint64_t> fork_epoch;
void watch_forks();

}  // namespace stepwell
