// SPDX-License-Identifier: Apache-2.0
// What a runtime opened: tiers, and what moves, orders and updates bytes in them. Constant from
// the end of open to close; parts that need a lock have their own.
#pragma once

#include "lib/memory/tiers.h"

#include <stepwell/driver.h>

#include <cstdint>
#include <memory>
#include <string>

namespace stepwell::memory {
class HostPins;
class Scratch;
}  // namespace stepwell::memory
namespace stepwell::observe {
class Timeline;
}  // namespace stepwell::observe
namespace stepwell::transfer {
class Engine;
class StreamOrdering;
}  // namespace stepwell::transfer
namespace stepwell::update {
class Pipeline;
}  // namespace stepwell::update

namespace stepwell {

class Touches;
struct Ranks;

struct Machine {
    Machine(std::string runtime_name, stw_runtime *runtime_handle, uint64_t bytes_of_block,
            uint32_t devices);
    ~Machine();
    Machine(const Machine &) = delete;
    Machine &operator=(const Machine &) = delete;

    // ---- scratch memory of the program, in the host tier ---------------------------------------
    void open_scratch(uint64_t bytes);
    Result<void *> take_scratch(uint64_t bytes, uint64_t align_bytes);
    Status give_scratch(void *pointer);
    [[nodiscard]] uint64_t scratch_pieces() const;
    // Staging and scratch memory, in the host tier.
    [[nodiscard]] uint64_t kept_bytes() const;

    const std::string name;  // of the runtime
    stw_runtime *const handle;
    const uint64_t block_bytes;
    residency::Instant opened_ns = 0;
    stw_services services{};
    std::unique_ptr<observe::Timeline> timeline;
    memory::TierSet tiers;
    uint64_t staging_bytes = 0;
    uint32_t staging_blocks = 0;
    std::unique_ptr<memory::Scratch> scratch;  // in the host tier's memory; null: none
    std::unique_ptr<transfer::StreamOrdering> ordering;
    std::unique_ptr<transfer::Engine> engine;
    std::unique_ptr<Touches> touches;  // null: accesses without a view are undefined
    // Null: no device has streams, or there is no host tier.
    std::unique_ptr<memory::HostPins> pins;
    std::unique_ptr<Ranks> ranks;                // null: one rank
    std::unique_ptr<update::Pipeline> pipeline;  // outlives the optimizers that use it
};

}  // namespace stepwell
