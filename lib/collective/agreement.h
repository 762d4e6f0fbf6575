// SPDX-License-Identifier: Apache-2.0
// What ranks tell each other before a collective: which one it is, of what, and whether they can
// take part. All compare the same records, so all come to the same answer, in the same words. Pure.
#pragma once

#include "lib/support/status.h"

#include <cstdint>
#include <string>

namespace stepwell::collective {

enum class Kind : uint32_t {
    kJoin = 1,     // a group is made
    kOpen = 2,     // a runtime is opened on it
    kGather = 3,   // shards to wholes
    kReduce = 4,   // sums into shards
    kSum = 5,      // sums of replicated tensors
    kVerdict = 6,  // of an optimizer step: norm and overflow
    kStore = 7,    // a store that stays is opened
    kCommit = 8,   // a generation is begun
    kVote = 9      // and each rank's part of it is on its disks, or not
};

// One rank's. Plain bytes, the same layout on all ranks; zero throughout before it is filled.
struct Record {
    Kind kind = Kind::kJoin;
    stw_status status = STW_OK;  // this rank cannot: the others hear why
    uint64_t sequence = 0;       // of the group's collectives
    uint64_t bytes = 0;          // that this rank will give
    uint64_t names = 0;          // hash of the names of all tensors that take part, in order
    uint64_t spec = 0;           // hash of what must be equal: shapes, dtypes, partitions, budgets
    double values[4] = {};       // of a verdict
    uint64_t counts[4] = {};
    char name[128] = {};  // of the first tensor, or of the optimizer
    char text[248] = {};  // the spec in words; with a status, its sentence
};
static_assert(sizeof(Record) == 480);

// Onwards from a hash of what came before, for `names` and `spec`: FNV-1a, where zeros count too.
uint64_t hash_bytes(uint64_t hash, const void *bytes, size_t n);
// And of a name, so that where one ends and the next begins counts as well.
uint64_t hash_name(uint64_t hash, const std::string &name);

Record make_record(Kind kind, const std::string &name);
void set_text(Record &record, const std::string &text);
void set_status(Record &record, const Status &status);

// OK where all ranks are about to do the same and can. ORDER names the first two ranks that differ
// and what each is at; MISMATCH the tensor and both specs; else the first rank's status that is no
// success. The same on each rank, but for the detail's rank: the one of the two that is not `self`.
Status compare(const Record *records, uint32_t size, uint32_t self);

}  // namespace stepwell::collective
