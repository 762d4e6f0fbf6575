// SPDX-License-Identifier: Apache-2.0
// The budget of the library's own tables; a tensor that would exceed it is refused.
#pragma once

#include "lib/residency/types.h"
#include "lib/runtime/addresses/metadata_user.h"
#include "lib/runtime/recording/ground.h"
#include "lib/support/status.h"

namespace stepwell {

class AddressTable;

class MetadataBudget final : Grounded {
public:
    MetadataBudget(const Ground &ground, AddressTable &addresses)
        : Grounded(ground), addresses_(addresses)
    {
    }

    Status open_metadata(const stw_runtime_options &options);
    static uint64_t name_bytes(size_t length);
    [[nodiscard]] uint64_t metadata_bytes() const STW_REQUIRES(runtime_lock);
    [[nodiscard]] std::string metadata_text() const STW_REQUIRES(runtime_lock);
    [[nodiscard]] Status metadata_room(const residency::TensorSpec &spec) const
        STW_REQUIRES(runtime_lock);
    void prepare_tables(const residency::TensorSpec &wanted) STW_REQUIRES(runtime_lock);
    // Bytes in use, plus all that is reserved for learned access patterns and for plans.
    [[nodiscard]] uint64_t metadata_taken() const STW_REQUIRES(runtime_lock);
    // Room for the aliases of a tensor with a fixed address, at each device.
    [[nodiscard]] Status alias_room(const residency::TensorSpec &spec) const
        STW_REQUIRES(runtime_lock);
    void add(const MetadataUser &user) { users_.push_back(&user); }
    // Plans have a limit of their own within the budget.
    void set_plans(const MetadataUser &plans) { plans_ = &plans; }

    uint64_t metadata_budget = 0;
    uint64_t plan_bytes_max = 0;  // part of metadata_budget, for plans made and the one being made
    uint64_t handles_bytes STW_GUARDED_BY(runtime_lock) = 0;  // names included

private:
    [[nodiscard]] uint64_t fixed_bytes() const STW_REQUIRES(runtime_lock);
    [[nodiscard]] uint64_t tensor_bytes(uint64_t tensors, bool at_most) const
        STW_REQUIRES(runtime_lock);

    AddressTable &addresses_;
    std::vector<const MetadataUser *> users_;
    const MetadataUser *plans_ = nullptr;
};

}  // namespace stepwell
