/* SPDX-License-Identifier: Apache-2.0 */
/* Runtimes and tensors of a claim: small blocks, values that tell where they belong. */
#ifndef STEPWELL_TESTS_MULTIRANK_TENSORS_H
#define STEPWELL_TESTS_MULTIRANK_TENSORS_H

#include "tests/multirank/world.h"

enum { BLOCK = 65536 };

/* With blocks of 64 KiB, so many of them for wholes and 24 more on the device. */
stw_runtime *open_on(stw_group *group, const struct member *member, uint64_t whole_blocks);
/* The same over a drive with these faults (options of the driver "fault"). */
stw_runtime *open_faulty(stw_group *group, const struct member *member, uint64_t whole_blocks,
                         const char *faults);
/* Closes and destroys both. */
void end(stw_runtime *runtime, stw_group *group, struct member *member);

/* One dimension of f32. */
stw_tensor_spec spec_of(const char *name, uint64_t elements, uint32_t role, uint32_t partition);
stw_tensor *make_as(stw_runtime *runtime, const stw_tensor_spec *spec);
stw_tensor *make(stw_runtime *runtime, const char *name, uint64_t elements, uint32_t role,
                 uint32_t partition);
stw_view fetch(stw_runtime *runtime, stw_tensor *tensor, uint32_t access, uint32_t scope);
void let_go(stw_view *view, uint32_t flags);
uint64_t collectives(stw_runtime *runtime);

/* Group 0 has STW_HYPER_INIT. */
stw_optimizer *optimizer_make(stw_runtime *runtime, uint32_t algorithm);
void optimizer_add(stw_optimizer *optimizer, stw_tensor *parameter, stw_tensor *gradient);

float value_of(uint64_t element, uint32_t salt);
void write_shard(stw_runtime *runtime, stw_tensor *tensor, uint32_t salt);
void expect_values(const stw_view *view, uint64_t elements, uint32_t salt);
void expect_whole(stw_runtime *runtime, stw_tensor *tensor, uint64_t elements, uint32_t salt);

#endif
