// SPDX-License-Identifier: Apache-2.0
// The pools behind the handles and the fork counter. Constant-initialised: nothing runs at load.
#include "lib/runtime/handles/handles.h"

#include "lib/collective/group.h"
#include "lib/runtime/handles/views.h"
#include "lib/support/assert.h"

#include <pthread.h>

stw_runtime::stw_runtime() : assertions(std::make_unique<stepwell::AssertionLog>()) {}
stw_runtime::~stw_runtime() = default;

stw_group::stw_group() = default;
stw_group::~stw_group() = default;

namespace stepwell {
namespace {

pthread_once_t watch_once = PTHREAD_ONCE_INIT;

void after_fork_in_child()
{
    fork_epoch.fetch_add(1, std::memory_order_relaxed);
}

}  // namespace

std::atomic<uint64_t> fork_epoch{1};

constinit Pool<stw_runtime> runtime_pool(4096, 0x53545752);
constinit Pool<stw_tensor> tensor_pool(16u << 20, 0x53545754);
constinit Pool<stw_group> group_pool(4096, 0x53545747);
constinit Pool<stw_phase> phase_pool(65536, 0x53545750);
constinit Pool<stw_optimizer> optimizer_pool(65536, 0x5354574f);
constinit Pool<stw_operation> operation_pool(1u << 20, 0x53545741);

namespace {

// Where the library is unloaded, or its process ends, in which what is open stays usable.
__attribute__((destructor)) void unload()
{
    if (runtime_pool.live() > 0 || group_pool.live() > 0) return;
    unload_thread_states();
    runtime_pool.unload();
    tensor_pool.unload();
    group_pool.unload();
    phase_pool.unload();
    optimizer_pool.unload();
    operation_pool.unload();
}

}  // namespace

void watch_forks()
{
    pthread_once(&watch_once, [] { pthread_atfork(nullptr, nullptr, after_fork_in_child); });
}

}  // namespace stepwell
