// SPDX-License-Identifier: Apache-2.0
// A random program against a model: every job completes once, and what is read without an error is
// what was last written, whatever the storage does. STW_SEED replays.
#include "tests/unit/transfer/rig.h"

#include <cerrno>
#include <random>

namespace stepwell::testing {
namespace {

uint64_t seed()
{
    const char *given = std::getenv("STW_SEED");
    return given != nullptr ? std::strtoull(given, nullptr, 10) : std::random_device{}();
}

constexpr uint32_t kBlocks = 24;

struct Model {
    uint64_t value = 0;  // 0: not in the store
    bool known = false;  // false: a write failed, anything but wrong bytes may come
};

// Faults of every kind, from the disk's own generator. Under the disk's lock.
FakeStorage::Script faults(uint64_t from)
{
    return
        [random = std::mt19937_64(from)](FakeStorage &disk, const stw_io &io) mutable -> int64_t {
            switch (random() % 64) {
            case 0: return -EIO;
            case 1: return -EAGAIN;
            case 2:
            case 3: {
                stw_io part = io;
                part.bytes = random() % io.bytes;
                return part.bytes == 0 ? disk.do_io(io) : disk.do_io(part);
            }
            case 4: {  // on the way in: the medium is right
                const int64_t result = disk.do_io(io);
                if (io.kind == STW_IO_READ) static_cast<uint8_t *>(io.data)[0] ^= 1;
                return result;
            }
            case 5: {  // lost
                if (io.kind == STW_IO_WRITE && random() % 8 == 0)
                    return static_cast<int64_t>(io.bytes);
                return disk.do_io(io);
            }
            default: return disk.do_io(io);
            }
        };
}

void run(uint64_t from, bool device_cpu_access)
{
    std::mt19937_64 random(from);
    std::mt19937_64 orders[2] = {std::mt19937_64(from + 1), std::mt19937_64(from + 2)};
    RigOptions options;
    options.paths = 2;
    options.depth = 1 + static_cast<uint32_t>(random() % 8);
    options.io_bytes = kBlock >> (random() % 3);
    options.device_cpu_access = device_cpu_access;
    options.copy_threads = 2;
    Rig rig(options);
    for (uint32_t i = 0; i < 2; ++i) {
        rig.disks[i].with_lock([&] {
            rig.disks[i].shuffle = &orders[i];
            rig.disks[i].script = faults(from + 10 + i);
            rig.disks[i].accept_max = 1 + static_cast<uint32_t>(random() % 8);
        });
    }
    Model model[kBlocks];
    uint64_t jobs_done = 0;
    uint64_t wrong = 0;
    for (uint32_t round = 1; round <= 40; ++round) {
        std::vector<Job> jobs;
        for (uint32_t block = 0; block < kBlocks; ++block) {
            const uint32_t memory = random() % 2 == 0 ? kDevice : kHost;
            const auto urgency = static_cast<Class>(random() % 4);
            if (random() % 8 == 0) {
                rig.engine->store()->forget(block);
                model[block] = {};
            }
            if (model[block].value == 0 || random() % 2 == 0) {
                model[block].value = round * 1000ull + block;
                rig.fill(memory, block, model[block].value);
                jobs.push_back(rig.write(block, memory, block, urgency));
            } else {
                jobs.push_back(rig.read(block, memory, block, urgency));
            }
        }
        std::shuffle(jobs.begin(), jobs.end(), random);
        rig.submit(jobs);
        for (uint32_t i = 0; i < 6; ++i)
            rig.engine->promote(jobs[random() % jobs.size()].transfer.id);
        jobs_done += jobs.size();
        ASSERT_TRUE(rig.wait_all(jobs_done));
        for (const Job &job : jobs) {
            Model &block = model[job.transfer.block];
            const Status status = rig.result(job.transfer.id);
            if (job.to_memory == kNvme) {
                block.known = status.ok();
                continue;
            }
            if (!status.ok()) continue;
            EXPECT_TRUE(block.known) << "read though its write had failed";
            if (!rig.holds(job.to_memory, job.transfer.block, block.value)) ++wrong;
        }
    }
    EXPECT_EQ(wrong, 0u);
    EXPECT_EQ(rig.doubles(), 0u);
    rig.close();
    EXPECT_EQ(rig.order().size(), jobs_done);
    for (FakeStorage &disk : rig.disks) {
        disk.with_lock([&] {
            EXPECT_EQ(disk.misaligned, 0u);
            EXPECT_LE(disk.in_flight_peak, options.depth);
        });
    }
}

TEST(EngineStress, RandomProgramsNeverReadWrongBytes)
{
    const uint64_t from = seed();
    SCOPED_TRACE("STW_SEED=" + std::to_string(from));
    for (uint64_t i = 0; i < 6; ++i) run(from + i * 1000, i % 2 == 0);
}

// Callbacks submit the next job, so the engine's own threads are among the submitters.
TEST(EngineStress, CallbacksMaySubmit)
{
    struct Chain {
        Rig *rig = nullptr;
        Mutex mutex;
        Condition changed;
        uint32_t left STW_GUARDED_BY(mutex) = 500;
        uint32_t done STW_GUARDED_BY(mutex) = 0;
        uint32_t failed STW_GUARDED_BY(mutex) = 0;
        Engine *engine STW_GUARDED_BY(mutex) = nullptr;
        uint64_t id STW_GUARDED_BY(mutex) = 0;
        uint8_t from[kBlock];
        uint8_t to[kBlock];

        void next(uint32_t n) STW_REQUIRES(mutex)
        {
            for (; n > 0 && left > 0; --n) {
                --left;
                Job job;
                job.transfer.id = ++id;
                job.transfer.kind = TransferKind::kZero;
                job.transfer.bytes = 64;
                job.to_memory = 0;
                job.to_pointer = to + 64 * (id % 1024);
                if (!engine->submit(&job, 1).ok()) ++failed;
            }
            changed.notify_all();
        }
    };
    auto chain = std::make_unique<Chain>();
    FakeMemory memory;
    EngineOptions options;
    options.services = fake_services();
    options.memories.push_back({&FakeMemory::ops(), reinterpret_cast<stw_memory *>(&memory),
                                residency::Tier::kHost, true, "host"});
    options.block_bytes = kBlock;
    options.copy_threads = 2;
    options.jobs_reserved = options.jobs_max = 8;
    options.done_user = chain.get();
    options.done = [](void *user, Completion *list, uint32_t n) {
        auto &to = *static_cast<Chain *>(user);
        MutexLock lock(to.mutex);
        for (uint32_t i = 0; i < n; ++i) to.failed += list[i].status.ok() ? 0 : 1;
        to.done += n;
        to.next(n);
    };
    Result<std::unique_ptr<Engine>> engine = Engine::open(std::move(options));
    ASSERT_TRUE(engine.ok()) << engine.status().sentence();
    {
        MutexLock lock(chain->mutex);
        chain->engine = engine.value().get();
        chain->next(8);
        while (chain->done < 500) chain->changed.wait(chain->mutex);
    }
    EXPECT_TRUE(engine.value()->close(kPatienceNs).ok());
    EXPECT_EQ(memory.zeros, 500u);
    MutexLock lock(chain->mutex);
    EXPECT_EQ(chain->failed, 0u);
}

}  // namespace
}  // namespace stepwell::testing
