// SPDX-License-Identifier: Apache-2.0
// The library's own tables: counted, and a tensor that would take them past their budget refused.
// They lie in ordinary memory whatever tiers there are, so their budget is beside the tiers'.
#include "lib/runtime/runtime.h"
#include "lib/support/growth.h"

namespace stepwell {
namespace {

constexpr uint64_t kNameBytes = 32;         // of a tensor's name, for the derived budget
constexpr uint64_t kNameCopies = 3;         // handle, core, list of names
constexpr uint64_t kNameNodeBytes = 96;     // of the list of names, with the allocator's share
constexpr uint64_t kOtherBytes = 8u << 20;  // what is in flight: transfers, fetches, operations

}  // namespace

uint64_t Runtime::name_bytes(size_t length)
{
    return length == 0 ? 0 : kNameNodeBytes + kNameCopies * (length + 1);
}

// Under the lock. The table of views counts whole: it may become that by hits, which ask nobody.
uint64_t Runtime::metadata_bytes() const
{
    uint64_t streams = 0;
    for (const memory::Tier &place : tiers_) {
        if (place.streams) streams += place.streams->metadata_bytes();
        if (place.slot_memory) streams += place.slot_memory->metadata_bytes();
    }
    return streams + dispatch_.core.metadata_bytes() + engine_->metadata_bytes() +
           timeline_->metadata_bytes() + trace_.metadata_bytes() + views_.metadata_bytes() +
           shown_bytes_ + handles_bytes_ + handles_.metadata_bytes() +
           pack_addresses_.capacity() * sizeof(PackAddresses) + steps_.metadata_bytes() +
           stalls_.metadata_bytes() + lookahead_bytes_ + plans_bytes() +
           (scratch_ ? scratch_->metadata_bytes() : 0) +
           (has_policy() ? policy_bytes(dispatch_.core.tensor_ids()) : 0);
}

// If 0: the worst case that the other limits allow, learned order of accesses included.
Status Runtime::open_metadata(const stw_runtime_options &options)
{
    MutexLock lock(dispatch_.mutex());
    const uint64_t fixed = metadata_bytes();
    if (options.metadata_bytes == 0) {
        plan_bytes_max_ = 2 * dispatch_.core.metadata_bytes_max() + schedule::Trace::kBytesMax;
        metadata_budget_ =
            fixed + dispatch_.core.metadata_bytes_max() + schedule::Trace::kBytesMax +
            plan_bytes_max_ +
            uint64_t{dispatch_.core.tensors_max()} * (sizeof(stw_tensor) + name_bytes(kNameBytes) +
                                                      sizeof(void *) + sizeof(PackAddresses)) +
            policy_bytes(dispatch_.core.tensors_max()) + kOtherBytes;
        return {};
    }
    metadata_budget_ = options.metadata_bytes;
    plan_bytes_max_ = metadata_budget_ / 16;
    trace_.set_limit(metadata_budget_ / 4 - plan_bytes_max_);
    if (fixed <= metadata_budget_ - metadata_budget_ / 4) return {};
    Status status = Status::error(
        STW_ERROR_BUDGET,
        "the tables for these budgets have no room before the first tensor: %s needed (%s of them "
        "for views_max); metadata_bytes %s; raise it to %s or more, or lower views_max",
        bytes_text(fixed).c_str(), bytes_text(views_.metadata_bytes()).c_str(),
        sum_text({{metadata_budget_ / 4, "kept for the learned order of accesses"},
                  {metadata_budget_ - metadata_budget_ / 4, "for tables"}})
            .c_str(),
        bytes_text(fixed + fixed / 3 + 1).c_str());
    status.mutable_detail().needed_bytes = fixed + fixed / 3 + 1;
    status.mutable_detail().free_bytes = metadata_budget_;
    return status;
}

// Under the lock: what the tables may take, as a sum.
std::string Runtime::metadata_text() const
{
    const uint64_t taken = metadata_taken();
    const uint64_t order = trace_.limit() + plan_bytes_max_;
    return sum_text({{taken - order, "used"},
                     {order, "kept for the learned order of accesses"},
                     {metadata_budget_ - std::min(metadata_budget_, taken), "free"}});
}

// Under the lock: may a tensor more be made? Asked before anything is.
Status Runtime::metadata_room(const residency::TensorSpec &spec) const
{
    const uint64_t blocks =
        dispatch_.core.block_ids() + (spec.bytes + block_bytes_ - 1) / block_bytes_;
    const uint64_t growth = dispatch_.core.metadata_growth(spec) + sizeof(stw_tensor) +
                            name_bytes(spec.name.size()) +
                            handles_.growth_bytes(dispatch_.core.tensor_ids() + 1) +
                            growth_bytes(pack_addresses_, dispatch_.core.pack_ids() + 1) +
                            (has_policy() ? policy_bytes(1) : 0) +
                            (engine_->store() ? engine_->store()->growth_bytes(blocks) : 0);
    const uint64_t taken = metadata_taken();
    const uint64_t free = metadata_budget_ - std::min(metadata_budget_, taken);
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

// So that nothing is left to be refused once the core has the tensor.
void Runtime::prepare_tables(const residency::TensorSpec &wanted)
{
    handles_.reserve(dispatch_.core.tensor_ids() + 1);
    grow_to_hold(pack_addresses_, dispatch_.core.pack_ids() + 1);
    const uint64_t blocks = (wanted.bytes + block_bytes_ - 1) / block_bytes_;
    if (engine_->store()) engine_->store()->reserve_ids(dispatch_.core.block_ids() + blocks);
}

}  // namespace stepwell
