// SPDX-License-Identifier: Apache-2.0
// What a fetch asks for, and the waiter for its answer.
#pragma once

#include "lib/residency/types.h"
#include "lib/runtime/handles/handles.h"
#include "lib/runtime/handles/release_hint.h"
#include "lib/support/status.h"
#include "lib/support/thread_annotations.h"

#include <stepwell/fetch.h>
#include <stepwell/operation.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace stepwell::observe {
enum class Stall : uint8_t;
}  // namespace stepwell::observe

namespace stepwell::memory {
class CallerMemory;
}  // namespace stepwell::memory

namespace stepwell {

constexpr uint64_t kTimeoutDefaultNs = 300ull * 1000 * 1000 * 1000;

// One requested range. Filled before the fetch, completed by its grant.
struct RequestedRange {
    stw_tensor *tensor = nullptr;
    uint32_t access = STW_READ;
    uint32_t scope = STW_WHOLE;
    uint64_t element_begin = 0;
    uint64_t element_count = 0;
    uint64_t byte_begin = 0;
    uint64_t byte_count = 0;
    residency::PlaceId place = 0;
    residency::TensorId scratch = residency::kNone;  // private buffer, of a REDUCE or a conversion
    uint32_t dtype = 0;                              // of the view; 0: the tensor's
    uint32_t index = 0;                              // of the request in its call
    void *into = nullptr;                            // the caller's memory
    const memory::CallerMemory *caller = nullptr;    // what that is; null: the host's
};
// A fetch makes one on its stack, and GCC clears more than this by `rep stos`, which takes 3 ns.
static_assert(sizeof(RequestedRange) <= 80);

residency::Access access_of(uint32_t access);  // STW_READ .. STW_REDUCE

// In the dtype of the view.
uint64_t view_bytes(const RequestedRange &range);

// A view of the gathered tensor, for which there is a collective.
inline bool is_gathered(const RequestedRange &range)
{
    return range.tensor->sharding && range.scope == STW_WHOLE && range.access != STW_REDUCE &&
           range.tensor->sharding->is_sharded();
}
// The elements are those of the whole tensor, not of the shard that the core knows.
inline bool is_of_ranks(const RequestedRange &range)
{
    return range.tensor->sharding && range.scope == STW_WHOLE &&
           range.tensor->sharding->is_sharded();
}
// Tests the range against [first, first + elements), which may be a shard.
Status elements_outside(const stw_tensor &tensor, uint64_t begin, uint64_t count, uint64_t first,
                        uint64_t elements);
// Includes the padding of a complete buffer that is summed over ranks.
uint64_t sum_bytes(const RequestedRange &range);
// A REDUCE that starts as zeros in the tensor's own dtype. Of several of a tensor in one call only
// the first may be in place.
bool may_sum_in_place(const RequestedRange &range);

// Slots of views that are pinned and not open yet, in the order of the requests.
struct HitChain {
    uint32_t first = residency::kNone;
    uint32_t last = residency::kNone;
};

struct FetchPlan {
    std::vector<RequestedRange> ranges;             // to be pinned
    std::vector<RequestedRange> copied;             // into the caller's memory
    std::vector<RequestedRange> gathered;           // gathered tensors to be pinned
    std::vector<RequestedRange> absent;             // gathered, without bytes for this rank
    uint32_t flags = 0;                             // STW_FETCH_*
    residency::BlockId touched = residency::kNone;  // of an access without a view, see FetchAsked
    int32_t priority = 0;
    uint64_t step = 0;
    uint32_t owner = 0;  // for which thread; 0: the calling one
    uint64_t timeout_ns = 0;
    void *stream = nullptr;  // of views at devices that have streams
};

// This rank takes part but gets no bytes.
inline bool is_absent(const FetchPlan &plan)
{
    return (plan.flags & STW_FETCH_ABSENT) != 0;
}

inline bool is_touch(const FetchPlan &plan)
{
    return plan.touched != residency::kNone;
}

class AnswerListener;
struct Snapshot;

// A use in a declared step. Those of one call are adjacent.
struct DeclaredUse {
    RequestedRange range;
    uint32_t call = 0;
    ReleaseHint release;
    uint64_t compute_ns = 0;  // while the views of the call are held
};

// State of the callback of an operation.
enum class Callback : uint8_t {
    kNone,
    kWanted,  // to be called at the end
    kQueued,  // at its end: waits for the thread, or runs
    kCalled
};

struct Waiter;

// How the program is notified of the end of an operation.
struct EndNotice {
    Callback callback = Callback::kNone;
    int fd = -1;  // an eventfd of the program; -1: none
    stw_done_fn on_done = nullptr;
    void *user = nullptr;
    Waiter *next = nullptr;  // in the queue of callbacks
};

// What a fetch gets of gathered tensors.
struct GatheredPart {
    uint64_t call = 0;  // number in the ledger; 0: none, or answered
    Status status;
    bool refused = false;      // pins are kept until the program gets the error
    bool invalidated = false;  // on all ranks
    std::vector<residency::Grant> grants;
};

struct Waiter {
    Waiter();
    ~Waiter();
    Waiter(const Waiter &) = delete;
    Waiter &operator=(const Waiter &) = delete;

    residency::FetchId fetch = 0;
    // Until it is true, the fields below are guarded by the lock as well.
    bool done STW_GUARDED_BY(runtime_lock) = false;
    bool collected = false;
    Status status;
    std::vector<residency::Grant> grants;
    Condition cv;
    AnswerListener *listener = nullptr;
    void (*call)(Waiter &) = nullptr;  // the library's own: called with no lock held
    void *user = nullptr;
    FetchPlan plan;
    bool asynchronous = false;  // an operation, which outlives the call
    bool cancelled = false;
    bool freed = false;  // the operation, before its callback returned
    uint32_t owner = 0;  // the thread that asked, 0: not known
    stw_operation *operation = nullptr;
    EndNotice notice;                    // for the operation
    std::unique_ptr<Snapshot> snapshot;  // copies of the plan, made before the rest is asked
    GatheredPart whole;                  // gathered before the rest is asked for
    residency::Instant begin = 0;
    residency::Instant deadline = residency::kNever;
    observe::Stall cause;
};

}  // namespace stepwell
