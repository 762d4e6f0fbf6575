// SPDX-License-Identifier: Apache-2.0
// What every part of the simulation shares: a random source that is the same everywhere, the
// journal of a run, and the memories with a stamp for every piece of a block instead of its bytes.
// One thread. Knows nothing of the core's inside.
#pragma once

#include "lib/residency/core.h"

#include <array>
#include <cstdint>
#include <cstdio>
#include <map>
#include <string>
#include <vector>

namespace stepwell::simulation {

using namespace residency;

constexpr uint64_t kBlockBytes = 4096;
constexpr uint64_t kPieceBytes = 64;
constexpr uint32_t kPieces = kBlockBytes / kPieceBytes;

// The contents of a piece: who wrote it. Zeros are 0, garbage has the top bit.
using Stamp = uint32_t;
constexpr Stamp kZeros = 0;
constexpr Stamp kAnything = UINT32_MAX;  // of the model: nobody may rely on it
using Image = std::array<Stamp, kPieces>;

// splitmix64: distributions of the standard library differ between implementations.
class Random {
public:
    explicit Random(uint64_t seed) : state_(seed) {}
    uint64_t next()
    {
        uint64_t z = (state_ += 0x9e3779b97f4a7c15ull);
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
        return z ^ (z >> 31);
    }
    uint64_t below(uint64_t end) { return end ? next() % end : 0; }
    uint64_t between(uint64_t first, uint64_t last) { return first + below(last - first + 1); }
    bool chance(uint64_t percent) { return below(100) < percent; }
    bool per_million(uint64_t rate) { return below(1000000) < rate; }

private:
    uint64_t state_;
};

// The first failure of a run, and what led to it: lines are kept only when asked, since a failed
// seed can be run again. The ring is bounded.
class Journal {
public:
    explicit Journal(bool keep) : keep_(keep) {}

    void fail(const char *format, ...) __attribute__((format(printf, 2, 3)))
    {
        if (!failure_.empty()) return;
        va_list arguments;
        va_start(arguments, format);
        failure_ = format_text_list(format, arguments);
        va_end(arguments);
        line("FAILED: %s", failure_.c_str());
    }
    void line(const char *format, ...) __attribute__((format(printf, 2, 3)))
    {
        if (!keep_) return;
        va_list arguments;
        va_start(arguments, format);
        lines_[count_++ % kLines] = format_text_list(format, arguments);
        va_end(arguments);
    }
    [[nodiscard]] bool failed() const { return !failure_.empty(); }
    [[nodiscard]] const std::string &failure() const { return failure_; }
    [[nodiscard]] std::string text() const
    {
        std::string all;
        for (uint64_t i = count_ > kLines ? count_ - kLines : 0; i < count_; i++) {
            all += lines_[i % kLines] + "\n";
        }
        return all;
    }

private:
    static constexpr uint64_t kLines = 4000;
    bool keep_;
    uint64_t count_ = 0;
    std::array<std::string, kLines> lines_;
    std::string failure_;
};

class Memories {
public:
    explicit Memories(const Config &config)
    {
        for (const PlaceConfig &place : config.places) {
            slots_.emplace_back(place.tier == Tier::kNvme ? 0 : place.blocks);
            for (Image &image : slots_.back()) scramble(image);
        }
    }
    Image &slot(PlaceId place, Slot slot) { return slots_[place][slot]; }
    // Never the same twice: what is read without having been written is seen.
    void scramble(Image &image)
    {
        for (Stamp &stamp : image) stamp = garbage();
    }
    Stamp garbage() { return 0x80000000u | (++garbage_ & 0x7ffffffeu); }
    Stamp fresh() { return ++fresh_; }

    std::map<BlockId, Image> nvme;

private:
    std::vector<std::vector<Image>> slots_;
    Stamp garbage_ = 0;
    Stamp fresh_ = 0;
};

}  // namespace stepwell::simulation
