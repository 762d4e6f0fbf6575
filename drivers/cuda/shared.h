// SPDX-License-Identifier: Apache-2.0
// Devices that access host memory through its page tables, or have no memory of their own (GH200,
// GB10), and an arena that device, CPU and drives all access. It is system memory: drives read into
// it as into any other, which is not certain for memory that CUDA manages, and its pages can be
// given back. If the device's memory is a NUMA node, the pages are of that node.
#pragma once

#include <stepwell/driver.h>

#include "drivers/common/arena.h"
#include "drivers/cuda/library.h"

#include <string>

namespace stepwell::drivers::cuda {

constexpr const char *kDriver = "cuda";

enum class Unified : uint8_t { kAuto, kOn, kOff };
// Handles of an arena whose memory can be placed: one for each block, which can be given back
// (arena=shrinks), few large ones (permanent), or a single one, which a group of ranks may register
// (registered).
enum class Pieces : uint8_t { kBlocks, kLarge, kOne };

struct Options {
    Unified unified = Unified::kAuto;
    Pieces pieces = Pieces::kBlocks;
};

struct Sharing {
    bool shares = false;
    int node = -1;       // of the device's own memory; -1: it has none
    std::string remark;  // why not, if the device could be expected to
};

stw_status read_options(const stw_memory_options &options, Options *options_out,
                        stw_driver_error *error_out);
// Whether the CPU accesses the arena too. UNSUPPORTED: requested, and impossible here.
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
