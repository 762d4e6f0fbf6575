// SPDX-License-Identifier: Apache-2.0
// Slots move between a thread and the table in batches, so the lock is taken once in 32 views.
#include "lib/runtime/handles/views.h"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

namespace stepwell {
namespace {

constexpr uint32_t kBatch = ThreadState::kSlots / 2;
constexpr uint32_t kStatesPerThread = 16;  // runtimes in which a thread can have hits at once

constinit Pool<ThreadState> states(8192, 0x53545748);

// The last runtime that this thread used; plain data, so reading it needs no initialisation check.
struct Cache {
    uint64_t runtime_serial;
    ThreadState *state;
};
thread_local Cache cache{0, nullptr};

// All states of this thread, for its end.
struct Registered {
    struct Entry {
        uint64_t runtime_serial;
        ThreadState *state;
    };
    std::array<Entry, kStatesPerThread> entries{};
};
thread_local Registered *registered = nullptr;

pthread_key_t key;
std::atomic<bool> has_key{false};
pthread_once_t key_once = PTHREAD_ONCE_INIT;

// At the end of a thread: its states may be used by another thread of the same runtime.
void thread_ends(void *memory)
{
    auto *mine = static_cast<Registered *>(memory);
    for (const Registered::Entry &entry : mine->entries) {
        if (!entry.state) continue;
        if (entry.state->runtime_serial.load() == entry.runtime_serial) {
            entry.state->thread_lives.store(false);
        }
    }
    delete mine;
}

Registered *registry()
{
    if (registered) return registered;
    pthread_once(&key_once, [] { has_key = pthread_key_create(&key, thread_ends) == 0; });
    registered = new (std::nothrow) Registered();
    if (registered && has_key) pthread_setspecific(key, registered);
    return registered;
}

}  // namespace

// Threads that go on and have used the library end without it.
void unload_thread_states()
{
    if (has_key.exchange(false)) pthread_key_delete(key);
    delete std::exchange(registered, nullptr);
    cache = {0, nullptr};
    states.unload();
}

ViewTable::ViewTable(uint32_t views_max, uint64_t runtime_serial)
    : views_max_(views_max), runtime_serial_(runtime_serial)
{
    const size_t bytes = sizeof(ViewSlot) * views_max;
    void *memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) throw std::bad_alloc();
    slots_ = static_cast<ViewSlot *>(memory);
    free_.reserve(views_max);
}

ViewTable::~ViewTable()
{
    MutexLock lock(mutex_);
    for (ThreadState *state : states_) {
        state->runtime_serial.store(0);
        states.give(state);
    }
    munmap(slots_, sizeof(ViewSlot) * views_max_);
}

ThreadState *ViewTable::thread_state()
{
    if (__builtin_expect(cache.runtime_serial == runtime_serial_, 1)) return cache.state;
    return register_thread();
}

ThreadState *ViewTable::register_thread()
{
    Registered *mine = registry();
    if (!mine) return nullptr;
    Registered::Entry *vacant = nullptr;
    for (Registered::Entry &entry : mine->entries) {
        if (entry.state && entry.runtime_serial == runtime_serial_) {
            cache = {runtime_serial_, entry.state};
            return entry.state;
        }
        const bool gone = entry.state && entry.state->runtime_serial.load() != entry.runtime_serial;
        if (!entry.state || gone) vacant = &entry;
    }
    if (!vacant) return nullptr;
    MutexLock lock(mutex_);
    ThreadState *state = nullptr;
    for (ThreadState *left : states_) {
        if (left->thread_lives.load()) continue;
        state = left;
        break;
    }
    if (!state) {
        states_.reserve(states_.size() + 1);
        state = states.take();
        if (!state) return nullptr;
        state->slot_count = 0;
        state->hits_head.store(0);
        state->hits_tail.store(0);
        states_.push_back(state);
    }
    state->number = ++threads_seen_;
    state->thread_id.store(static_cast<int>(syscall(SYS_gettid)));
    state->thread_lives.store(true);
    state->runtime_serial.store(runtime_serial_);
    *vacant = {runtime_serial_, state};
    cache = {runtime_serial_, state};
    return state;
}

uint32_t ViewTable::number_of(int thread_id)
{
    MutexLock lock(mutex_);
    for (const ThreadState *state : states_) {
        if (state->thread_lives.load() && state->thread_id.load() == thread_id)
            return state->number;
    }
    return 0;
}

residency::TensorId ViewTable::copied_by(int thread_id)
{
    MutexLock lock(mutex_);
    for (const ThreadState *state : states_) {
        if (state->thread_lives.load() && state->thread_id.load() == thread_id)
            return state->copied.load();
    }
    return residency::kNone;
}

uint32_t ViewTable::take_one()
{
    if (!free_.empty()) {
        const uint32_t index = free_.back();
        free_.pop_back();
        return index;
    }
    const uint32_t used = used_.load(std::memory_order_relaxed);
    if (used == views_max_) return residency::kNone;
    new (&slots_[used]) ViewSlot();
    used_.store(used + 1, std::memory_order_release);
    return used;
}

uint32_t ViewTable::take_more(ThreadState *state)
{
    MutexLock lock(mutex_);
    const uint32_t index = take_one();
    // Takes a batch for later calls, but only while enough remain for other threads.
    while (state && index != residency::kNone && state->slot_count < kBatch &&
           (free_.size() > kBatch || used_.load() + 4 * kBatch < views_max_)) {
        const uint32_t more = take_one();
        if (more == residency::kNone) break;
        state->slots[state->slot_count++] = more;
    }
    return index;
}

void ViewTable::give_some(ThreadState *state, uint32_t slot)
{
    MutexLock lock(mutex_);
    free_.push_back(slot);
    while (state && state->slot_count > kBatch) free_.push_back(state->slots[--state->slot_count]);
}

bool ViewTable::is_open(uint32_t index) const
{
    return (slots_[index].serial.load(std::memory_order_acquire) & 1) != 0;
}

uint32_t ViewTable::open_views() const
{
    uint32_t count = 0;
    for (uint32_t index = 0; index < slots_used(); ++index) count += is_open(index);
    return count;
}

}  // namespace stepwell
