// SPDX-License-Identifier: Apache-2.0
// The world of one stress run: a runtime with small budgets, its tensors, and beside each tensor
// what its elements must be. Opened and closed by the main thread, used by all actors. It knows the
// public C API alone.
#pragma once

#include <stepwell/stepwell.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <shared_mutex>
#include <string>
#include <thread>
#include <vector>

namespace stress {

constexpr uint32_t kBlockBytes = STW_BLOCK_64K;
constexpr uint32_t kSegments = 4;
constexpr uint32_t kActorsMax = 8;
constexpr uint32_t kSharedSmall = 4;  // of the shared tensors, these are smaller than a block
// Far beyond what any of these small transfers takes: a wait that gets here has hung.
constexpr uint64_t kWaitNs = 30ull * 1000000000;

struct Setup {
    const char *name;
    const char *device;  // driver; null: no device tier
    uint32_t device_blocks;
    uint32_t host_blocks;  // 0: no host tier
    uint32_t nvme_blocks;  // 0: no nvme tier
    const char *faults;    // null: a store without faults; else options of the fault driver
    bool errors_allowed;   // the faults surface as errors, and then only as errors
    uint32_t boards;       // 0: without STW_RUNTIME_FAULT_IN
    const char *store;     // null: only scratch, and no commits
};

// What a seed turns on, so that a failure can be narrowed and strict claims can be made.
struct Features {
    bool aborts = false;      // steps end by abort; then nobody calls stw_reduce
    bool holds_more = false;  // nested fetches and views that another thread releases
    bool budgets = false;     // they change, so that a fetch may be refused by the smaller one
    bool interrupts = false;  // end waits of all threads
};

// Any thread writes it through views, alone; the plain members are guarded by the view itself, so a
// writer granted beside a reader is also a data race that the thread sanitizer names.
struct Shared {
    stw_tensor *tensor = nullptr;
    std::string name;
    uint64_t elements = 0;
    bool steady = false;  // never abandoned once written: a part of it may be written blindly
    std::atomic<uint64_t> empties{1};  // odd: may be empty now; +1 when that begins or ends
    float values[kSegments] = {};
};

// One actor changes it, all others read it: every element is equal, and lies between what was there
// before the read began and what may be there when it ended. Values only grow.
struct Owned {
    stw_tensor *tensor = nullptr;
    std::string name;
    uint64_t elements = 0;
    std::atomic<uint64_t> floor{0};
    std::atomic<uint64_t> ceiling{0};
    // Touches see updates that are set back later: the highest that there may ever have been.
    std::atomic<uint64_t> peak{0};
    const volatile float *address = nullptr;  // null: not touched
    // Views that may be open: what they show is read at the address until they end.
    std::atomic<uint32_t> views{0};
    std::atomic<uint64_t> empties{1};  // as in Shared
    // Of World::distrust when the value was last written whole: work behind a call that failed
    // later is known only by its sticky error, which clear_error() takes away from whoever looks
    // next.
    std::atomic<uint64_t> trusted{UINT64_MAX};
};

// Written without a view, each actor its own part, and read by all. The first write to a new one
// may be any actor's, or several at once.
struct Board {
    struct Part {  // as in Owned
        std::atomic<uint64_t> floor{0};
        std::atomic<uint64_t> ceiling{0};
    };
    stw_tensor *tensor = nullptr;
    std::string name;
    uint64_t elements = 0;
    volatile float *address = nullptr;
    Part parts[kActorsMax];
    std::shared_mutex lock;  // alone: it is made anew, or frozen for a while
};

// All of one actor's own: plain tensors, and an optimizer with a few parameters.
struct Estate {
    std::vector<Owned *> plain;
    std::vector<Owned *> parameters;
    std::vector<stw_tensor *> gradients;
    std::vector<uint64_t> summed;  // into each gradient since it was last emptied
    stw_optimizer *optimizer = nullptr;
    stw_phase *phase = nullptr;
};

struct Counters {
    std::atomic<uint64_t> operations{0}, views{0}, busy{0}, budget{0}, empty{0}, failed{0},
        cancelled{0}, updates{0}, repaired{0}, touches{0}, interrupted{0}, commits{0}, budgets{0},
        slowest_ns{0};
};

class World {
public:
    World(const Setup &setup, const char *directory, uint64_t seed, uint32_t actors,
          uint64_t wait_max_ns);
    ~World();
    World(const World &) = delete;
    World &operator=(const World &) = delete;

    // All released, drained, destroyed; tier statistics say so. Fails the run otherwise.
    void finish();

    // The message, how to replay it, the report; then ends the process: threads may hang.
    [[noreturn]] void fail(const char *format, ...) __attribute__((format(printf, 2, 3)));

    // Errors that an injected fault explains.
    [[nodiscard]] bool is_fault(stw_status status) const;
    // Takes every sticky error away; what failed behind a call is not trusted from then on.
    void clear_errors();
    // Every tier within its budget at this moment.
    void check_budgets();
    // One of the tiers gets another budget. Any thread.
    void change_budget(uint64_t random);
    void interrupt();
    // Fails the run if a call, which began at that time of now_ns(), took longer than any may.
    void check_time(const char *what, uint64_t begin_ns);
    [[nodiscard]] static uint64_t now_ns();
    // With nothing in it; alone.
    void make_board(Board &board);
    [[nodiscard]] uint64_t part_begin(const Board &board, uint32_t part) const
    {
        return board.elements * part / actors;
    }

    const Setup &setup;
    const uint64_t seed;
    const uint32_t actors;
    Features features;
    stw_runtime *runtime = nullptr;
    std::vector<Shared *> shared;
    std::vector<Owned *> sums;  // any actor reduces into them
    std::vector<Estate> estates;
    std::vector<Board *> boards;
    std::atomic<Board *> newest_board{nullptr};
    // Shared from a speculative step to its verdict: an abort would set it back.
    std::shared_mutex verdicts;
    std::atomic<uint64_t> distrust{0};
    std::atomic<uint64_t> progress[kActorsMax] = {};
    Counters counters;

    // A read view that its fetcher left to the clerk.
    struct Parcel {
        stw_view view{};
        Shared *tensor = nullptr;
    };
    void leave_parcel(const Parcel &parcel);
    // False when no actor runs any more and nothing is left to do.
    bool wait_parcel(Parcel *parcel_out, const std::atomic<uint32_t> &running);
    void wake_clerk();

private:
    void open();
    void make_tensors();
    stw_status open_with(stw_nvme_options *nvme, uint32_t flags);
    stw_tensor *make_tensor(const std::string &name, uint64_t elements, uint32_t role,
                            uint32_t flags = 0);
    Owned *make_owned(const std::string &name, uint64_t elements, uint32_t role);
    void make_estate(uint32_t actor, uint64_t *state);
    float *address_of(stw_tensor *tensor);
    // finish.cpp
    struct Kept {
        std::string name;
        uint64_t elements;
        uint32_t role;
        uint32_t flags;
        std::vector<float> values;  // none: it is EMPTY
    };
    void keep(stw_tensor *tensor, const std::string &name, uint64_t elements, uint32_t role,
              uint32_t flags);
    void keep_owned(const Owned &owned, uint32_t role);
    void keep_board(const Board &board);
    void commit_last();
    void destroy_all();
    void check_empty();
    void check_generation();

    void watch();
    void print_report();

    const std::string directory_;
    std::string store_;  // its name, of this process
    const uint64_t wait_max_ns_;
    uint64_t opened_blocks_[3] = {};  // of the device, host and nvme tier: their largest budgets
    std::vector<Kept> kept_;          // of the last generation
    std::mutex clears_mutex_;
    std::mutex parcels_mutex_;
    std::condition_variable parcels_wake_;
    std::vector<Parcel> parcels_;
    std::thread watchdog_;
    std::mutex watch_mutex_;
    std::condition_variable watch_wakes_;
    bool watch_ends_ = false;
    bool hangs_ = false;  // the watchdog's
};

// splitmix64: one line of state, the same on every machine.
inline uint64_t next_random(uint64_t *state)
{
    uint64_t z = (*state += 0x9e3779b97f4a7c15ull);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

}  // namespace stress
