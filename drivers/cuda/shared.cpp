// SPDX-License-Identifier: Apache-2.0
#include "drivers/cuda/shared.h"

#include "drivers/common/edge.h"
#include "drivers/common/option_text.h"

#include <string_view>
#include <vector>

#include <sys/syscall.h>
#include <unistd.h>

namespace stepwell::drivers::cuda {

namespace {

constexpr int kNodesMax = 1024;
constexpr int kPreferred = 1;  // MPOL_PREFERRED

// An attribute that an older driver does not know is 0.
int attribute(const Api &api, int device, int which)
{
    int value = 0;
    return api.device_attribute(&value, which, device) == kSuccess ? value : 0;
}

}  // namespace

stw_status read_options(const stw_memory_options &options, Options *options_out,
                        stw_driver_error *error_out)
{
    std::string_view rest = options.options != nullptr ? options.options : "";
    Option option;
    *options_out = {};
    while (next_option(&rest, &option)) {
        const std::string_view value = option.value;
        const bool unified = option.key == "unified";
        const bool arena = option.key == "arena";
        if (unified && value == "auto")
            options_out->unified = Unified::kAuto;
        else if (unified && value == "on")
            options_out->unified = Unified::kOn;
        else if (unified && value == "off")
            options_out->unified = Unified::kOff;
        else if (arena && value == "shrinks")
            options_out->pieces = Pieces::kBlocks;
        else if (arena && value == "permanent")
            options_out->pieces = Pieces::kLarge;
        else if (arena && value == "registered")
            options_out->pieces = Pieces::kOne;
        else
            return unknown_option(kDriver, option,
                                  "unified=auto|on|off and arena=shrinks|permanent|registered",
                                  error_out);
    }
    return STW_OK;
}

// On a device with memory of its own that is no NUMA node, a shared arena would be host memory:
// only if requested.
stw_status find_sharing(const Api &api, int device, Unified unified, Sharing *sharing_out,
                        stw_driver_error *error_out)
{
    *sharing_out = {};
    if (unified == Unified::kOff) return STW_OK;
    const bool reaches = attribute(api, device, kPageableAccess) != 0;
    const bool same_tables = attribute(api, device, kUsesHostPageTables) != 0;
    const bool integrated = attribute(api, device, kIntegrated) != 0;
    const bool is_node = attribute(api, device, kNumaConfig) == 1;
    if (unified == Unified::kOn && !reaches)
        return fail(error_out, STW_ERROR_UNSUPPORTED, {},
                    "Device %d does not reach the host's memory without copies, so unified=on "
                    "cannot be; leave it out, and bytes from a drive pass through the host tier.",
                    device);
    if (is_node && !integrated) sharing_out->node = attribute(api, device, kNumaId);
    sharing_out->shares =
        reaches && (unified == Unified::kOn || integrated || (same_tables && is_node));
    if (reaches && same_tables && !sharing_out->shares)
        sharing_out->remark =
            "The device reaches the host's memory and its own is no NUMA node, so bytes from a "
            "drive pass through the host tier; unified=on places the tier in the host's memory.";
    return STW_OK;
}

// A preference: with a strict binding the kernel kills the process if the node is full. Pages
// placed on another node are found afterwards.
void SharedArena::bind()
{
    if (node_ < 0 || node_ >= kNodesMax) return;
    constexpr int kBits = 8 * sizeof(unsigned long);
    unsigned long nodes[kNodesMax / kBits] = {};
    nodes[node_ / kBits] = 1ul << (node_ % kBits);
    const Mapping &mapping = memory_.arena.mapping;
    if (syscall(SYS_mbind, mapping.base(), mapping.bytes(), kPreferred, nodes, kNodesMax + 1, 0) !=
        0)
        add_sentence(&memory_.arena.remark, "Binding to the device's NUMA node was refused.");
}

// If the kernel does not say where pages are, no error is assumed.
stw_status SharedArena::check_node(uint32_t first, uint32_t count,
                                   stw_driver_error *error_out) const
{
    if (node_ < 0) return STW_OK;
    std::vector<void *> pages;
    for (uint32_t block = first; block < first + count; ++block)
        pages.push_back(base() + uint64_t{block} * memory_.block_bytes);
    std::vector<int> nodes(count, -1);
    if (syscall(SYS_move_pages, 0, count, pages.data(), nullptr, nodes.data(), 0) != 0)
        return STW_OK;
    uint64_t elsewhere = 0;
    for (const int node : nodes) elsewhere += node >= 0 && node != node_;
    if (elsewhere == 0) return STW_OK;
    const uint64_t needed = uint64_t{count} * memory_.block_bytes;
    return fail(error_out, STW_ERROR_MEMORY, {0, needed, needed - elsewhere * memory_.block_bytes},
                "Of %s for the device's tier NUMA node %d, the device's own memory, has no room "
                "for %s; give the tier a smaller budget.",
                bytes_text(needed).c_str(), node_,
                bytes_text(elsewhere * memory_.block_bytes).c_str());
}

stw_status SharedArena::open(const stw_memory_options &options, int node,
                             stw_driver_error *error_out)
{
    node_ = node;
    memory_.block_bytes = options.block_bytes;
    if (const stw_status status = reserve_arena(kDriver, options, true, &memory_.arena, error_out))
        return status;
    bind();
    if (const stw_status status = populate_arena(kDriver, memory_.arena, error_out)) return status;
    return check_node(0, static_cast<uint32_t>(options.bytes / options.block_bytes), error_out);
}

stw_status SharedArena::give_back(uint32_t first, uint32_t count)
{
    return memory_.give_back(first, count);
}

stw_status SharedArena::take_back(uint32_t first, uint32_t count, stw_driver_error *error_out)
{
    if (const stw_status status = memory_.take_back(kDriver, first, count, error_out))
        return status;
    const stw_status status = check_node(first, count, error_out);
    if (status != STW_OK) memory_.give_back(first, count);
    return status;
}

}  // namespace stepwell::drivers::cuda
