// SPDX-License-Identifier: Apache-2.0
// Opening, closing and abandoning the engine. The opening or closing thread.
#include "lib/transfer/engine.h"

#include "lib/support/thread.h"
#include "lib/transfer/parts.h"
#include "lib/transfer/storage_thread.h"

#include <algorithm>
#include <cstring>
#include <new>

namespace stepwell::transfer {

namespace {

constexpr uint64_t kIoBytes = 1ull << 20;  // of one request, by default
constexpr uint64_t kStoreCloseNs = 1'000'000'000;

}  // namespace

// ---------------------------------------------------------------------------------------- open --

Engine::Parts::Parts(EngineOptions given) : options(std::move(given))
{
    store = std::move(options.store);
}

Engine::Parts::~Parts() = default;

Status Engine::Parts::check_options()
{
    const uint64_t block_bytes = options.block_bytes;
    if (options.services == nullptr || options.done == nullptr || block_bytes == 0 ||
        options.memories.size() > kMemoriesMax || options.copy_threads > kCopyThreadsMax ||
        options.jobs_max > kJobsMax || options.jobs_reserved > options.jobs_max) {
        return Status::error(STW_ERROR_INVALID, "The transfer engine's options are incomplete or "
                                                "past their maxima.");
    }
    options.copy_threads = std::max(options.copy_threads, 1u);
    bool staged = false;
    for (const Memory &memory : options.memories) staged = staged || !memory.storage_reaches();
    if (store == nullptr) return {};
    if (store->block_bytes() != block_bytes) {
        return Status::error(STW_ERROR_INVALID, "The store's blocks have another size.");
    }
    if (staged && (options.staging == nullptr || options.staging_read_blocks < 2 ||
                   options.staging_write_blocks < 2)) {
        return Status::error(STW_ERROR_INVALID,
                             "A device that storage cannot reach needs staging: two rings of at "
                             "least 2 blocks of %s in host memory.",
                             bytes_text(block_bytes).c_str());
    }
    for (uint32_t i = 0; i < store->paths(); ++i) {
        const uint64_t alignment = store->info(i).alignment_bytes;
        store->set_requests(i, requests_of(i, true), requests_of(i, false));
        if (staged && reinterpret_cast<uintptr_t>(options.staging) % alignment != 0) {
            return Status::error(STW_ERROR_INVALID, "The staging memory is not aligned.");
        }
    }
    return {};
}

// Sizes and depth that the store has measured as best for the path, limited by the driver and the
// block size; 0: the engine's default.
store::Requests Engine::Parts::requests_of(uint32_t path, bool reads) const
{
    const stw_storage_info &info = store->info(path);
    const uint64_t usual = options.io_bytes == 0 ? kIoBytes : options.io_bytes;
    store::Requests requests = store->requests(path, reads);
    if (requests.bytes == 0) requests.bytes = usual;
    requests.bytes = std::min(requests.bytes, options.block_bytes);
    requests.bytes = requests.bytes / info.alignment_bytes * info.alignment_bytes;
    requests.bytes = std::max<uint64_t>(requests.bytes, info.alignment_bytes);
    if (requests.depth == 0) requests.depth = info.queue_depth;
    requests.depth = std::min(requests.depth, info.queue_depth);
    return requests;
}

void Engine::Parts::prepare()
{
    MutexLock lock(mutex);
    pool.reserve(options.jobs_reserved, options.jobs_max);
    for (uint32_t i = options.staging_read_blocks; i > 0; --i) read_ring.push_back(i - 1);
    for (uint32_t i = options.staging_write_blocks; i > 0; --i) {
        write_ring.push_back(options.staging_read_blocks + i - 1);
    }
    for (uint32_t i = 0; store != nullptr && i < store->paths(); ++i) {
        paths.push_back(std::make_unique<PathQueues>());
        storage_threads.push_back(std::make_unique<StorageThread>(*this, i));
    }
    lanes.push_back(std::make_unique<CopyLane>());
    for (const Memory &memory : options.memories) {
        const bool starts = options.order != nullptr && memory.has_streams();
        lanes_of.push_back(starts ? static_cast<uint32_t>(lanes.size()) : 0);
        for (int i = 0; starts && i < 2; ++i) {
            lanes.push_back(std::make_unique<CopyLane>());
            lanes.back()->started.tasks.reserve(uint64_t{kStartedMax} * kBatchMax);
            lane_threads.push_back({lanes.back().get(), false});
            lane_threads.push_back({lanes.back().get(), true});
        }
    }
    for (uint32_t i = 0; i < options.copy_threads; ++i)
        lane_threads.push_back({lanes.front().get(), false});
    threads.reserve(storage_threads.size() + lane_threads.size() + 1);
}

// The engine may have been deleted when its last thread ends: a thread has what it needs by value.
template <typename Run> Status Engine::Parts::start(const char *name, Run run)
{
    {
        MutexLock lock(mutex);
        ++threads_alive;
    }
    std::thread thread;
    Status status;
    try {
        status = start_thread(thread, name, "transfers", std::move(run));
    } catch (const std::bad_alloc &) {
        MutexLock lock(mutex);
        --threads_alive;
        throw;
    }
    if (status.ok()) {
        threads.push_back(std::move(thread));
        return {};
    }
    MutexLock lock(mutex);
    --threads_alive;
    return status;
}

Status Engine::Parts::start_threads()
{
    for (const std::unique_ptr<StorageThread> &thread : storage_threads) {
        STW_TRY(start("stw-storage", [at = thread.get()] { at->main(); }));
    }
    for (const LaneThread &thread : lane_threads) {
        CopyLane *const lane = thread.lane;
        if (thread.arrives) {
            STW_TRY(start("stw-arrive", [this, lane] { arrive_main(*lane); }));
        } else {
            STW_TRY(start("stw-copy", [this, lane] { copy_main(*lane); }));
        }
    }
    const auto is_direct = [](const Memory &memory) { return memory.direct; };
    if (store != nullptr &&
        std::any_of(options.memories.begin(), options.memories.end(), is_direct))
        STW_TRY(start("stw-order", [this] { order_main(); }));
    return {};
}

void Engine::Parts::stop_threads()
{
    {
        MutexLock lock(mutex);
        stopping = true;
        wake_all();
    }
    for (std::thread &thread : threads) thread.join();
    threads.clear();
}

void Engine::Parts::thread_gone()
{
    bool last = false;
    {
        MutexLock lock(mutex);
        --threads_alive;
        last = abandoned && threads_alive == 0;
    }
    if (last) delete this;
}

Result<std::unique_ptr<Engine>> Engine::open(EngineOptions options)
{
    auto parts = std::make_unique<Parts>(std::move(options));
    STW_TRY(parts->check_options());
    parts->prepare();
    // All checks and allocations come before the first thread, except for the sentence of a
    // failure.
    auto engine = std::unique_ptr<Engine>(new Engine(nullptr));
    Status started;
    try {
        started = parts->start_threads();
    } catch (const std::bad_alloc &) {
        parts->stop_threads();
        throw;
    }
    if (!started.ok()) {
        parts->stop_threads();
        return started;
    }
    engine->parts_ = parts.release();
    return engine;
}

// --------------------------------------------------------------------------------------- close --

void Engine::Parts::take_waiting(std::vector<Task *> &waiting)
{
    const auto untouched = [](const Task &task) { return !task.begun; };
    const auto take = [&waiting](Task &task) { waiting.push_back(&task); };
    for (const std::unique_ptr<PathQueues> &path : paths) {
        path->reads.drain(untouched, take);
        path->staged_reads.drain(untouched, take);
        path->writes.drain(untouched, take);
    }
    for (const std::unique_ptr<CopyLane> &lane : lanes) {
        lane->staged_writes.drain(untouched, take);
        lane->copies.drain(untouched, take);
    }
    ordering.drain(untouched, take);
}

void Engine::Parts::cancel(const std::vector<Task *> &waiting)
{
    Outbox outbox;
    for (Task *task : waiting) {
        if (task->status.ok()) {
            task->status = Status::error(STW_ERROR_CLOSED,
                                         "The transfer of block %u had not begun when the "
                                         "runtime was closed.",
                                         task->job.transfer.block);
        }
        finish(*task, outbox);
    }
    flush(outbox);
}

Status Engine::Parts::close(uint64_t timeout_ns)
{
    if (closed) return {};
    const uint64_t now_ns = wait_clock_ns();
    const uint64_t until_ns = timeout_ns > INT64_MAX - now_ns ? INT64_MAX : now_ns + timeout_ns;
    std::vector<Task *> waiting;
    {
        MutexLock lock(mutex);
        closing = true;
        take_waiting(waiting);
    }
    cancel(waiting);
    {
        MutexLock lock(mutex);
        while (pool.used() > 0 || callbacks > 0) {
            if (changed.wait_until(mutex, until_ns)) continue;
            if (pool.used() == 0 && callbacks == 0) break;
            return Status::error(STW_ERROR_TIMEOUT,
                                 "%u transfers were still in flight after %llu ms; their memory "
                                 "stays theirs until they complete.",
                                 pool.used(),
                                 static_cast<unsigned long long>(timeout_ns / 1'000'000));
        }
    }
    stop_threads();
    closed = true;
    if (store == nullptr) return {};
    Status status = store->close(kStoreCloseNs);
    MutexLock lock(mutex);
    storage_threads.clear();
    paths.clear();
    store.reset();
    return status;
}

void Engine::Parts::abandon()
{
    std::vector<Task *> waiting;
    {
        MutexLock lock(mutex);
        closing = true;
        muted = true;
        take_waiting(waiting);
    }
    cancel(waiting);
    bool in_flight = false;
    {
        MutexLock lock(mutex);
        while (callbacks > 0) changed.wait(mutex);
        in_flight = pool.used() > 0;
        if (in_flight) {
            for (std::thread &thread : threads) thread.detach();
            abandoned = true;
        }
    }
    if (in_flight) return;
    stop_threads();
    delete this;
}

Engine::~Engine()
{
    if (!parts_) return;  // its threads did not start
    if (parts_->closed) {
        delete parts_;
    } else {
        parts_->abandon();
    }
}

// -------------------------------------------------------------------------------------- facade --

Status Engine::submit(const Job *jobs, uint32_t n)
{
    return parts_->submit(jobs, n);
}

void Engine::promote(residency::TransferId id)
{
    parts_->promote(id);
}

Status Engine::close(uint64_t timeout_ns)
{
    return parts_->close(timeout_ns);
}

void Engine::expect_bandwidth(Link link, uint32_t memory, uint64_t bytes_per_s)
{
    parts_->hops.expect(link, memory, bytes_per_s);
}

LinkStats Engine::link_stats(Link link, uint32_t memory) const
{
    return parts_->hops.stats(link, memory);
}

uint32_t Engine::jobs_in_flight() const
{
    MutexLock lock(parts_->mutex);
    return parts_->pool.used();
}

std::string Engine::describe_in_flight(uint32_t lines_max) const
{
    return parts_->describe(lines_max);
}

uint64_t Engine::metadata_bytes() const
{
    MutexLock lock(parts_->mutex);
    uint64_t bytes = parts_->pool.metadata_bytes() + sizeof(Parts);
    if (parts_->store != nullptr) bytes += parts_->store->metadata_bytes();
    return bytes;
}

store::Store *Engine::store()
{
    return parts_->store.get();
}

}  // namespace stepwell::transfer
