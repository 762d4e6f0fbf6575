// SPDX-License-Identifier: Apache-2.0
// A small machine and a small model for tests.
#pragma once

#include "lib/simulate/simulate.h"

namespace stepwell::simulate {

inline uint32_t bit(Route route)
{
    return 1u << static_cast<uint32_t>(route);
}

// Two nodes of four GPUs, two on a switch; the drive reads or writes.
inline Machine small_machine()
{
    Machine machine;
    machine.nodes = 2;
    machine.gpus_per_node = 4;
    machine.gpus_per_switch = 2;
    machine.gpus_per_socket = 4;
    machine.device_bytes = 4ull << 30;
    machine.device_bytes_per_s = 900e9;
    machine.peak_flops_per_s = 10e12;
    machine.achieved_flops_per_s = 5e12;
    machine.host_bytes = 16ull << 30;
    machine.host_bytes_per_s = 50e9;
    machine.nvme_bytes = 400ull << 30;
    const uint32_t drive = bit(Route::kNvmeToHost) | bit(Route::kHostToNvme);
    machine.links = {
        {"nvme", drive, 4e9, 1, 100'000, Per::kNode},
        {"in", bit(Route::kHostToDevice), 6e9, 1, 10'000, Per::kGpu},
        {"out", bit(Route::kDeviceToHost), 6e9, 1, 10'000, Per::kGpu},
        {"switch", bit(Route::kHostToDevice), 7e9, 1, 0, Per::kSwitch},
    };
    machine.collectives = {50e9, 10e9, 20'000};
    return machine;
}

inline Model small_model(uint64_t layers, uint64_t hidden)
{
    Model model;
    model.name = "small";
    model.is_transformer = true;
    model.transformer = {layers, hidden, 16, 512, 4, 1};
    model.layers = transformer_layers(model.transformer);
    model.working_bytes = transformer_working_bytes(model.transformer);
    return model;
}

}  // namespace stepwell::simulate
