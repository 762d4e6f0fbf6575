// SPDX-License-Identifier: Apache-2.0
// The budget of the library's own tables; a tensor that would exceed it is refused. The tables lie
// in ordinary memory whatever tiers there are, so their budget is separate from the tiers'.
#include "lib/runtime/addresses/metadata.h"

#include "lib/memory/scratch.h"
#include "lib/observe/timeline.h"
#include "lib/residency/core.h"
#include "lib/runtime/addresses/addresses.h"
#include "lib/runtime/recording/grounds.h"
#include "lib/runtime/recording/recorder.h"
#include "lib/support/growth.h"
#include "lib/transfer/engine.h"

namespace stepwell {
namespace {

constexpr uint64_t kNameBytes = 32;         // average of a tensor, for the derived budget
constexpr uint64_t kNameCopies = 2;         // handle, core
constexpr uint64_t kNameNodeBytes = 72;     // in the list of names, with the allocator's overhead
constexpr uint64_t kOtherBytes = 8u << 20;  // in flight: transfers, fetches, operations

}  // namespace

uint64_t MetadataBudget::name_bytes(size_t length)
{
    return length == 0 ? 0 : kNameNodeBytes + kNameCopies * (length + 1);
}

// The table of views counts in full: hits fill it without asking.
uint64_t MetadataBudget::metadata_bytes() const
{
    return fixed_bytes() + recorder_.trace.metadata_bytes() +
           (plans_ ? plans_->metadata_bytes() : 0);
}

uint64_t MetadataBudget::metadata_taken() const
{
    return fixed_bytes() + recorder_.trace.limit() + plan_bytes_max;
}

// All but learned access patterns and plans, which have limits of their own.
uint64_t MetadataBudget::fixed_bytes() const
{
    uint64_t bytes = 0;
    for (const memory::Tier &place : machine_.tiers) {
        if (place.streams) bytes += place.streams->metadata_bytes();
        if (place.slot_memory) bytes += place.slot_memory->metadata_bytes();
    }
    if (machine_.scratch) bytes += machine_.scratch->metadata_bytes();
    for (const MetadataUser *user : users_) bytes += user->metadata_bytes();
    return bytes + dispatch_.core.metadata_bytes() + machine_.engine->metadata_bytes() +
           machine_.timeline->metadata_bytes() + views_.metadata_bytes() +
           addresses_.metadata_bytes() + handles_bytes + handles_.metadata_bytes() +
           recorder_.stalls.metadata_bytes();
}

uint64_t MetadataBudget::tensor_bytes(uint64_t tensors, bool at_most) const
{
    uint64_t bytes = 0;
    for (const MetadataUser *user : users_) bytes += user->tensor_bytes(tensors, at_most);
    return bytes;
}

// With metadata_bytes 0: the worst case that the other limits allow, learned access patterns
// included.
Status MetadataBudget::open_metadata(const stw_runtime_options &options)
{
    MutexLock lock(dispatch_.mutex());
    const uint64_t fixed = metadata_bytes();
    if (options.metadata_bytes == 0) {
        plan_bytes_max = 2 * dispatch_.core.metadata_bytes_max() + schedule::Trace::kBytesMax;
        metadata_budget =
            fixed + dispatch_.core.metadata_bytes_max() + schedule::Trace::kBytesMax +
            plan_bytes_max +
            uint64_t{dispatch_.core.tensors_max()} * (sizeof(stw_tensor) + name_bytes(kNameBytes) +
                                                      sizeof(void *) + sizeof(PackAddresses)) +
            tensor_bytes(dispatch_.core.tensors_max(), true) + kOtherBytes;
        return {};
    }
    metadata_budget = options.metadata_bytes;
    plan_bytes_max = metadata_budget / 16;
    recorder_.trace.set_limit(metadata_budget / 4 - plan_bytes_max);
    if (fixed <= metadata_budget - metadata_budget / 4) return {};
    Status status = Status::error(
        STW_ERROR_BUDGET,
        "the tables for these budgets have no room before the first tensor: %s needed (%s of them "
        "for views_max); metadata_bytes %s; raise it to %s or more, or lower views_max",
        bytes_text(fixed).c_str(), bytes_text(views_.metadata_bytes()).c_str(),
        sum_text({{metadata_budget / 4, "kept for the learned order of accesses"},
                  {metadata_budget - metadata_budget / 4, "for tables"}})
            .c_str(),
        bytes_text(fixed + fixed / 3 + 1).c_str());
    status.mutable_detail().needed_bytes = fixed + fixed / 3 + 1;
    status.mutable_detail().free_bytes = metadata_budget;
    return status;
}

std::string MetadataBudget::metadata_text() const
{
    const uint64_t taken = metadata_taken();
    const uint64_t order = recorder_.trace.limit() + plan_bytes_max;
    return sum_text({{taken - order, "used"},
                     {order, "kept for the learned order of accesses"},
                     {metadata_budget - std::min(metadata_budget, taken), "free"}});
}

// Called before anything of the tensor is made.
Status MetadataBudget::metadata_room(const residency::TensorSpec &spec) const
{
    const uint64_t blocks =
        dispatch_.core.block_ids() + (spec.bytes + machine_.block_bytes - 1) / machine_.block_bytes;
    const uint64_t growth =
        dispatch_.core.metadata_growth(spec) + sizeof(stw_tensor) + name_bytes(spec.name.size()) +
        handles_.growth_bytes(dispatch_.core.tensor_ids() + 1) +
        addresses_.growth_bytes(dispatch_.core.pack_ids() + 1) + tensor_bytes(1, false) +
        (machine_.engine->store() ? machine_.engine->store()->growth_bytes(blocks) : 0);
    const uint64_t taken = metadata_taken();
    const uint64_t free = metadata_budget - std::min(metadata_budget, taken);
    if (growth <= free) return {};
    Status status = Status::error(
        STW_ERROR_BUDGET,
        "the tables of the library have no room for it: %s needed; metadata_bytes %s; raise it "
        "when opening the runtime, or make fewer and larger tensors",
        bytes_text(growth).c_str(), metadata_text().c_str());
    status.mutable_detail().needed_bytes = growth;
    status.mutable_detail().free_bytes = free;
    return status;
}

// Allocates here, so that nothing can be refused once the core has the tensor.
void MetadataBudget::prepare_tables(const residency::TensorSpec &wanted)
{
    handles_.reserve(dispatch_.core.tensor_ids() + 1);
    addresses_.reserve(dispatch_.core.pack_ids() + 1);
    const uint64_t blocks = (wanted.bytes + machine_.block_bytes - 1) / machine_.block_bytes;
    if (machine_.engine->store())
        machine_.engine->store()->reserve_ids(dispatch_.core.block_ids() + blocks);
}

Status MetadataBudget::alias_room(const residency::TensorSpec &spec) const
{
    const uint64_t blocks = (spec.bytes + machine_.block_bytes - 1) / machine_.block_bytes;
    uint64_t bytes = 0;
    for (const memory::Tier &place : machine_.tiers) {
        if (place.memory && place.aliases)
            bytes += memory::AddressAlias::metadata_bytes(static_cast<uint32_t>(blocks));
    }
    if (bytes == 0 || metadata_taken() + bytes <= metadata_budget) return {};
    return Status::error(STW_ERROR_BUDGET,
                         "the tables of the library have no room for the address of %s: "
                         "%s needed; metadata_bytes %s; raise it when opening the "
                         "runtime",
                         tensor_text(spec.name).c_str(), bytes_text(bytes).c_str(),
                         metadata_text().c_str());
}

}  // namespace stepwell
