// SPDX-License-Identifier: Apache-2.0
// What double.py calls.
#include "tests/torch_double/fallback.h"
#include "tests/torch_double/generator.h"
#include "tests/torch_double/products.h"

#include <cstdio>

using namespace stepwell::torch_double;

extern "C" {

// The handle of the current stream, as CUDA has it.
__attribute__((visibility("default"))) void *late_current_stream()
{
    return current_handle();
}

__attribute__((visibility("default"))) int late_is_forked()
{
    return is_forked();
}

__attribute__((visibility("default"))) void late_set_seed(uint64_t seed)
{
    at::Generator generator = LateGenerator::of_device();
    generator.set_current_seed(seed);
}

__attribute__((visibility("default"))) void late_get_state(uint64_t *seed_out, uint64_t *offset_out)
{
    *seed_out = LateGenerator::of_device().current_seed();
    *offset_out = LateGenerator::of_device().get<LateGenerator>()->get_offset();
}

__attribute__((visibility("default"))) void late_set_state(uint64_t seed, uint64_t offset)
{
    at::Generator generator = LateGenerator::of_device();
    generator.set_current_seed(seed);
    generator.get<LateGenerator>()->set_offset(offset);
}

__attribute__((visibility("default"))) void late_set_rate(double flops_per_s)
{
    set_rate(flops_per_s);
}

// How many operations were enqueued since the last call; the names of those that waited, in lines.
__attribute__((visibility("default"))) uint64_t late_take_counts(char *waited_out, size_t capacity)
{
    const Counts counts = take_counts();
    std::string lines;
    for (const std::string &name : counts.waited) lines += name + "\n";
    std::snprintf(waited_out, capacity, "%s", lines.c_str());
    return counts.late;
}
}
