// SPDX-License-Identifier: Apache-2.0
// Devices that reach the host's memory through its page tables, or have no other (GH200, GB10), and
// an arena that device, CPU and drives all reach. It is memory of the system's: a drive reads into
// it as into any other, which into memory that CUDA manages it cannot be counted on to do, and its
// pages can go back. Where the device's memory is a NUMA node, they are of that node.
#pragma once

#include <stepwell/driver.h>

#include "drivers/common/arena.h"
#include "drivers/cuda/library.h"

#include <string>

namespace stepwell::drivers::cuda {

constexpr const char *kDriver = "cuda";

enum class Unified : uint8_t { kAuto, kOn, kOff };
// Of an arena whose memory can be placed: a handle for each block, which can go back
// (arena=shrinks), few large ones (permanent), or one, which other ranks may know (registered).
enum class Pieces : uint8_t { kBlocks, kLarge, kOne };

struct Options {
    Unified unified = Unified::kAuto;
    Pieces pieces = Pieces::kBlocks;
};

struct Sharing {
    bool shares = false;
    int node = -1;       // of the device's own memory; -1: it has none
    std::string remark;  // why not, where one might have thought so
};

stw_status read_options(const stw_memory_options &options, Options *options_out,
                        stw_driver_error *error_out);
// Whether the arena is the CPU's too. UNSUPPORTED: it was asked for, and cannot be.
stw_status find_sharing(const Api &api, int device, Unified unified, Sharing *sharing_out,
                        stw_driver_error *error_out);

// Any thread, several at once for different blocks.
class SharedArena {
public:
    stw_status open(const stw_memory_options &options, int node, stw_driver_error *error_out);
    stw_status give_back(uint32_t first, uint32_t count);
    stw_status take_back(uint32_t first, uint32_t count, stw_driver_error *error_out);
    char *base() const { return memory_.arena.mapping.base(); }
    bool huge_pages() const { return memory_.arena.huge_pages; }
    const std::string &remark() const { return memory_.arena.remark; }

private:
    void bind();
    stw_status check_node(uint32_t first, uint32_t count, stw_driver_error *error_out) const;

    ArenaMemory memory_;
    int node_ = -1;
};

}  // namespace stepwell::drivers::cuda
