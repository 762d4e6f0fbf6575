// SPDX-License-Identifier: Apache-2.0
// An engine over storage and memories that tests control: a device (index 0) and a host (index 1),
// each an array of blocks; jobs by number; completions collected as they come. The test's thread
// submits, engine threads call back.
#pragma once

#include "lib/transfer/engine.h"
#include "tests/unit/transfer/fake_storage.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <deque>
#include <map>

namespace stepwell::testing {

using residency::Class;
using residency::TransferKind;
using transfer::Completion;
using transfer::Engine;
using transfer::EngineOptions;
using transfer::Job;
using transfer::kNvme;
using transfer::Link;

constexpr uint32_t kDevice = 0;
constexpr uint32_t kHost = 1;
constexpr uint64_t kBlock = 65536;

// Memory that counts what is done to it and fails when told to.
struct FakeMemory {
    std::atomic<uint32_t> copies{0};
    std::atomic<uint32_t> zeros{0};
    std::atomic<uint32_t> maps{0};
    std::atomic<stw_status> status{STW_OK};
    Mutex gate;  // each copy passes through it: a test that holds it holds up the copies

    static FakeMemory &self(stw_memory *memory) { return *reinterpret_cast<FakeMemory *>(memory); }
    static stw_status copy(stw_memory *memory, void *to, const void *from, uint64_t bytes)
    {
        MutexLock lock(self(memory).gate);
        ++self(memory).copies;
        if (self(memory).status < 0) return self(memory).status;
        std::memmove(to, from, bytes);
        return STW_OK;
    }
    static stw_status zero(stw_memory *memory, void *to, uint64_t bytes)
    {
        ++self(memory).zeros;
        std::memset(to, 0, bytes);
        return self(memory).status;
    }
    static stw_status map(stw_memory *memory, uint32_t, void *)
    {
        ++self(memory).maps;
        return self(memory).status;
    }
    static const stw_memory_ops &ops()
    {
        static const stw_memory_ops table = [] {
            stw_memory_ops made{};
            made.struct_size = sizeof made;
            made.name = "fake";
            made.capabilities = STW_MEMORY_HOST_ACCESS | STW_MEMORY_CAN_MAP;
            made.copy = copy;
            made.zero = zero;
            made.map = map;
            return made;
        }();
        return table;
    }
};

// Nothing waits for anything.
class NoWork : public transfer::CopyOrdering {
public:
    Status before(uint32_t, const void *, uint64_t, bool, bool) override { return {}; }
    bool waits(uint32_t, const void *, uint64_t, bool, bool) override { return false; }
    void hold(uint32_t, bool) override {}
    void let_go(uint32_t, bool, const uint64_t *) override {}
    bool registered(const void *) override { return true; }
    bool joined(const void *) override { return true; }
    uint64_t started(uint32_t, const void *, uint64_t, uint64_t) override { return 1; }
    Status map_alias(const Job &) override { return {}; }
    void ordered(residency::TransferId) override {}
    void arrived(uint32_t, const void *, uint64_t, uint64_t) override {}
    Status await(uint32_t, const void *, uint64_t, bool) override { return {}; }
};

struct RigOptions {
    uint32_t paths = 1;
    uint32_t depth = 32;
    uint32_t alignment = 512;
    uint32_t blocks = 64;  // of the store, and of each memory
    bool device_cpu_access = true;
    bool device_direct = false;
    uint32_t ring_blocks = 2;
    uint64_t io_bytes = 0;
    store::Requests reads = {};  // of every path
    store::Requests writes = {};
    uint32_t copy_threads = 1;
    uint32_t retries_max = 2;
    uint32_t jobs_max = 4096;
    void (*span)(void *, const transfer::Span &) = nullptr;
    void *span_user = nullptr;
    bool (*may_send)(void *, uint32_t path, uint64_t bytes) = nullptr;
    void (*rests)(void *, uint32_t path) = nullptr;
    void *share_user = nullptr;
    transfer::CopyOrdering *order = nullptr;
};

class Rig {
public:
    explicit Rig(const RigOptions &options)
    {
        for (uint32_t i = 0; i < options.paths; ++i) {
            disks.emplace_back(options.depth, options.alignment);
        }
        for (uint32_t i = 0; i < 2; ++i) arenas_[i] = aligned(options.blocks);
        store::StoreOptions store;
        store.services = fake_services();
        store.block_bytes = kBlock;
        store.blocks = options.blocks;
        store.queue_depth = options.depth;
        for (FakeStorage &disk : disks) {
            store.paths.push_back({&FakeStorage::ops(),
                                   "/disk" + std::to_string(store.paths.size()), disk.options(),
                                   0});
        }
        Result<std::unique_ptr<store::Store>> opened = store::Store::open(store);
        EXPECT_TRUE(opened.ok()) << opened.status().sentence();
        for (FakeStorage &disk : disks) {
            disk.with_lock([&] {
                disk.log.clear();
                disk.in_flight_peak = 0;
            });
        }
        for (uint32_t i = 0; i < options.paths; ++i) {
            opened.value()->set_requests(i, options.reads, options.writes);
        }
        open_engine(options, opened.take());
    }

    ~Rig()
    {
        engine.reset();
        for (uint8_t *arena : arenas_) std::free(arena);
    }

    uint8_t *at(uint32_t memory, uint32_t slot) { return arenas_[memory] + slot * kBlock; }
    // Fills a block with bytes that only this value has.
    void fill(uint32_t memory, uint32_t slot, uint64_t value)
    {
        std::mt19937_64 random(value);
        for (uint64_t i = 0; i < kBlock; i += 8) {
            const uint64_t word = random();
            std::memcpy(at(memory, slot) + i, &word, 8);
        }
    }
    bool holds(uint32_t memory, uint32_t slot, uint64_t value, uint64_t bytes = kBlock)
    {
        std::mt19937_64 random(value);
        for (uint64_t i = 0; i < bytes; i += 8) {
            const uint64_t word = random();
            const uint64_t part = std::min<uint64_t>(8, bytes - i);
            if (std::memcmp(at(memory, slot) + i, &word, part) != 0) return false;
        }
        return true;
    }

    Job job(uint32_t block, uint32_t from, uint32_t from_slot, uint32_t to, uint32_t to_slot,
            Class urgency = Class::kPlanned)
    {
        Job made;
        made.transfer.id = ++last_id;
        made.transfer.block = block;
        made.transfer.urgency = urgency;
        made.transfer.bytes = kBlock;
        made.from_memory = from;
        made.to_memory = to;
        if (from != kNvme) made.from_pointer = at(from, from_slot);
        if (to != kNvme) made.to_pointer = at(to, to_slot);
        return made;
    }
    Job write(uint32_t block, uint32_t memory, uint32_t slot, Class urgency = Class::kIdle)
    {
        return job(block, memory, slot, kNvme, 0, urgency);
    }
    Job read(uint32_t block, uint32_t memory, uint32_t slot, Class urgency = Class::kPlanned)
    {
        return job(block, kNvme, 0, memory, slot, urgency);
    }

    uint64_t submit(const Job &one)
    {
        const Status status = engine->submit(&one, 1);
        EXPECT_TRUE(status.ok()) << status.sentence();
        return one.transfer.id;
    }
    void submit(const std::vector<Job> &jobs)
    {
        const Status status = engine->submit(jobs.data(), static_cast<uint32_t>(jobs.size()));
        EXPECT_TRUE(status.ok()) << status.sentence();
    }
    // The completion of that job, waited for.
    Status result(uint64_t id)
    {
        const uint64_t until_ns = wait_clock_ns() + kPatienceNs;
        MutexLock lock(mutex_);
        while (results_.count(id) == 0) {
            if (changed_.wait_until(mutex_, until_ns)) continue;
            return Status::error(STW_ERROR_TIMEOUT, "no completion of job %llu",
                                 static_cast<unsigned long long>(id));
        }
        return results_[id];
    }
    Status run(const Job &one) { return result(submit(one)); }
    bool wait_all(uint64_t n)
    {
        const uint64_t until_ns = wait_clock_ns() + kPatienceNs;
        MutexLock lock(mutex_);
        while (order_.size() < n) {
            if (!changed_.wait_until(mutex_, until_ns)) return false;
        }
        return true;
    }
    std::vector<uint64_t> order()
    {
        MutexLock lock(mutex_);
        return order_;
    }
    uint64_t doubles()
    {
        MutexLock lock(mutex_);
        return doubles_;
    }
    void close()
    {
        const Status status = engine->close(kPatienceNs);
        EXPECT_TRUE(status.ok()) << status.sentence();
    }

    std::deque<FakeStorage> disks;
    FakeMemory memories[2];
    std::unique_ptr<Engine> engine;
    uint64_t last_id = 0;

private:
    static uint8_t *aligned(uint32_t blocks)
    {
        auto *memory = static_cast<uint8_t *>(std::aligned_alloc(4096, blocks * kBlock));
        std::memset(memory, 0xEE, blocks * kBlock);
        return memory;
    }

    void open_engine(const RigOptions &options, std::unique_ptr<store::Store> store)
    {
        EngineOptions made;
        made.services = fake_services();
        made.store = std::move(store);
        made.memories.push_back({&FakeMemory::ops(), reinterpret_cast<stw_memory *>(&memories[0]),
                                 residency::Tier::kDevice, options.device_cpu_access, "device 0",
                                 options.device_direct});
        made.memories.push_back({&FakeMemory::ops(), reinterpret_cast<stw_memory *>(&memories[1]),
                                 residency::Tier::kHost, true, "host"});
        made.block_bytes = kBlock;
        arenas_[2] = aligned(2 * options.ring_blocks);
        made.staging = arenas_[2];
        made.staging_read_blocks = made.staging_write_blocks = options.ring_blocks;
        made.copy_threads = options.copy_threads;
        made.retries_max = options.retries_max;
        made.io_bytes = options.io_bytes;
        made.jobs_reserved = 16;
        made.jobs_max = options.jobs_max;
        made.done = [](void *self, Completion *list, uint32_t n) {
            static_cast<Rig *>(self)->done(list, n);
        };
        made.done_user = this;
        made.span = options.span;
        made.span_user = options.span_user;
        made.may_send = options.may_send;
        made.rests = options.rests;
        made.share_user = options.share_user;
        made.order = options.order;
        Result<std::unique_ptr<Engine>> opened = Engine::open(std::move(made));
        EXPECT_TRUE(opened.ok()) << opened.status().sentence();
        if (opened.ok()) engine = opened.take();
    }

    void done(Completion *list, uint32_t n)
    {
        MutexLock lock(mutex_);
        for (uint32_t i = 0; i < n; ++i) {
            order_.push_back(list[i].id);
            if (!results_.emplace(list[i].id, std::move(list[i].status)).second) ++doubles_;
        }
        changed_.notify_all();
    }

    uint8_t *arenas_[3] = {};
    Mutex mutex_;
    Condition changed_;
    std::map<uint64_t, Status> results_ STW_GUARDED_BY(mutex_);
    std::vector<uint64_t> order_ STW_GUARDED_BY(mutex_);
    uint64_t doubles_ STW_GUARDED_BY(mutex_) = 0;
};

}  // namespace stepwell::testing
