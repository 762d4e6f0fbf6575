// SPDX-License-Identifier: Apache-2.0
// What every part of the simulation of many ranks shares: its options, the bugs that can be planted
// in it, the journal with the hash of a run, and stamps instead of bytes. One thread.
#pragma once

#include "lib/residency/core.h"
#include "tests/simulation/support.h"

#include <array>
#include <cstdint>
#include <string>

namespace stepwell::ranks {

using namespace residency;
using simulation::Random;

// For %llu.
inline unsigned long long number(uint64_t value)
{
    return value;
}

constexpr uint64_t kBlockBytes = 2ull << 20;
constexpr uint32_t kPieces = 4;  // of a block; tensors end on them
constexpr uint64_t kPieceBytes = kBlockBytes / kPieces;

// Who wrote a piece of a block. Zeros are 0, what nobody wrote has the top bit.
using Stamp = uint32_t;
constexpr Stamp kZeros = 0;
constexpr Stamp kAnything = UINT32_MAX;  // of the model: nobody may rely on it
using Image = std::array<Stamp, kPieces>;

constexpr PlaceId kDevice = 0;
constexpr PlaceId kHost = 1;
constexpr PlaceId kNvme = 2;
constexpr PlaceId kPlaces = 3;

// Mistakes of the shell, made on purpose: each must be found by what is checked.
enum class Plant : uint8_t {
    kNone,
    kLostCompletion,        // the core is never told that a transfer is done
    kFailureIsGood,         // a failed transfer is reported as one that arrived
    kEarlyCompletion,       // a transfer is reported while its bytes are still on their way
    kCollectiveWithoutOne,  // a collective runs although one rank has not come
    kMemoryBeforeRoom,      // a shrink ends while too much is there
    kForgottenPin,          // the last pin of a closed gate goes, and nobody tells the core
    kForgottenDeadline,     // a deadline passes without a tick
    kLeakedView,            // a view is given back by the program, and not to the core
    kForgottenForget,       // a block stays on the disk though the core has given its room away
    kForgottenHint,         // a prefetch ends, and its plan does not hear of it
    kBudgetNotTakenBack,    // a shrink that timed out leaves the place without its room
    kWrongBytes,            // a read from the disk brings something else
};

struct Options {
    uint64_t seed = 1;
    uint32_t steps = 5;         // of the program
    uint32_t check_every = 61;  // events between checks of all that the core keeps; 1: each one
    bool verbose = false;       // every event as a line on stdout
    bool faults = true;
    Plant plant = Plant::kNone;
};

struct Counts {
    uint64_t events = 0;  // that the cores were told
    uint64_t transfers = 0;
    uint64_t grants = 0;
    uint64_t hits = 0;
    uint64_t refusals = 0;
    uint64_t hints = 0;
    uint64_t collectives = 0;
    uint64_t updates = 0;
    uint64_t faults = 0;  // begun
    uint64_t failed_transfers = 0;
    uint64_t shrinks = 0;  // that ended with the smaller budget
    uint64_t shrinks_undone = 0;
    uint64_t deadlocks = 0;
    uint64_t timeouts = 0;
    uint64_t checks = 0;
    void add(const Counts &other);
};

struct Outcome {
    std::string failure;  // empty: every check held
    uint64_t hash = 0;    // of all that happened, in its order
    Instant ended = 0;    // virtual time
    Counts counts;
};

// The first failure of a run; a hash of what happened; lines where they are wanted.
class Journal {
public:
    explicit Journal(bool verbose) : verbose_(verbose) {}

    void fail(const char *format, ...) __attribute__((format(printf, 2, 3)));
    void line(const char *format, ...) __attribute__((format(printf, 2, 3)));
    void mix(uint64_t value)
    {
        hash_ = (hash_ ^ value) * 0x9e3779b97f4a7c15ull;
        hash_ ^= hash_ >> 29;
    }
    [[nodiscard]] bool failed() const { return !failure_.empty(); }
    [[nodiscard]] bool verbose() const { return verbose_; }
    [[nodiscard]] const std::string &failure() const { return failure_; }
    [[nodiscard]] uint64_t hash() const { return hash_; }

    Instant now = 0;
    uint32_t rank = 0;  // of whom the lines are

private:
    const bool verbose_;
    uint64_t hash_ = 0x853c49e6748fea9bull;
    std::string failure_;
};

// The moment at which a planted bug shows: the seed says how many chances go by first.
class Planted {
public:
    Planted(Plant plant, uint64_t seed) : plant_(plant), left_(Random(seed ^ 0x51ed).below(24)) {}
    // A chance for this bug; true when it is to be made now, once in a run.
    bool now(Plant plant)
    {
        if (plant != plant_ || done_) return false;
        done_ = left_ == 0;
        if (left_ > 0) --left_;
        return done_;
    }
    // For those that are made from some moment on.
    bool from_now_on(Plant plant) { return now(plant) || (plant == plant_ && done_); }

private:
    const Plant plant_;
    uint64_t left_;
    bool done_ = false;
};

Outcome run(const Options &options);

}  // namespace stepwell::ranks
