// SPDX-License-Identifier: Apache-2.0
// Tensors of the program: handles, names, shapes, policies.
#pragma once

#include "lib/residency/types.h"
#include "lib/runtime/handles/lock.h"
#include "lib/runtime/recording/ground.h"
#include "lib/support/status.h"

#include <string_view>
#include <unordered_map>

struct stw_tensor_info;

namespace stepwell {

struct Sharding;
struct TensorHolder;
class AddressTable;
class MetadataBudget;
class TransferSink;
class RestoredTensors;
class Placement;

// A room that keeps more than the shard of a tensor of several ranks.
class ShardObserver {
public:
    virtual ~ShardObserver() = default;
    // Blocks until no collective uses the tensors.
    virtual Status await_gathers(stw_tensor *const *tensors, uint32_t n) = 0;
    virtual Status make_whole(stw_tensor &tensor) STW_REQUIRES(runtime_lock) = 0;
    // may_unshard() checks whether all of it can be destroyed; unshard() does it.
    virtual Status may_unshard(const stw_tensor &tensor, Commands &out)
        STW_REQUIRES(runtime_lock) = 0;
    virtual void unshard(stw_tensor &tensor, Commands &out) STW_REQUIRES(runtime_lock) = 0;
    // The shards are about to change, and not through their gathered tensor.
    virtual Status write_shards(stw_tensor *tensor, Commands &out) STW_REQUIRES(runtime_lock) = 0;
    virtual void drop_partial(residency::TensorId tensor, Commands &out)
        STW_REQUIRES(runtime_lock) = 0;
};

class TensorRegistry final : Grounded {
public:
    TensorRegistry(const Ground &ground, AddressTable &addresses, MetadataBudget &metadata,
                   TransferSink &sink, RestoredTensors &restored, Placement &placement)
        : Grounded(ground),
          addresses_(addresses),
          metadata_(metadata),
          sink_(sink),
          restored_(restored),
          placement_(placement)
    {
    }

    Status create_tensors(const stw_tensor_spec *specs, uint32_t n, stw_tensor **tensors_out);
    Status destroy_tensors(stw_tensor *const *tensors, uint32_t n);
    Status find_tensor(const char *name, stw_tensor **tensor_out);
    // kNone: there is none of this name.
    [[nodiscard]] residency::TensorId find_id(std::string_view name) const
        STW_EXCLUDES(runtime_lock);
    Status next_tensor(stw_tensor *previous, stw_tensor **next_out);
    // So many more are about to be created: their names are entered without moving the others.
    void expect(uint64_t tensors) STW_EXCLUDES(runtime_lock);
    Status tensor_info(stw_tensor *tensor, stw_tensor_info *info_out);
    Status set_policy(stw_tensor *tensor, const stw_policy &policy);
    Status freeze(stw_tensor *tensor, bool frozen);
    Status reshape(stw_tensor *tensor, const uint64_t *shape, uint32_t dimensions);
    Status discard(stw_tensor *const *tensors, uint32_t n);
    // The one door of discards by the program, also by the release of a view.
    Status drop_contents(stw_tensor *tensor, Commands &out, Core &core) STW_REQUIRES(runtime_lock);
    Status advise(stw_tensor *const *tensors, uint32_t n, uint32_t advice);
    Status tensor_address(stw_tensor *tensor, uint32_t device, void **pointer_out,
                          uint64_t *bytes_out);
    Status destroy_held(stw_tensor *const *tensors, uint32_t n, const TensorHolder *holder)
        STW_EXCLUDES(runtime_lock);
    [[nodiscard]] std::string words_of(const stw_tensor &tensor) const;
    void unregister_tensor(stw_tensor *tensor, Commands &out) STW_REQUIRES(runtime_lock);

    uint64_t policies_changed STW_GUARDED_BY(runtime_lock) = 0;

    void set_shards(ShardObserver &shards) { shards_ = &shards; }
    // Call before shards are written directly.
    Status change_shards(stw_tensor *tensor);

private:
    // Fills all but name and bytes.
    Status fill_spec(const stw_tensor_spec &spec, const Sharding *sharding, uint64_t elements,
                     residency::TensorSpec *wanted) const;
    Status create_one(const stw_tensor_spec &spec, stw_tensor **tensor_out);
    Status shard_one(const stw_tensor_spec &spec, uint64_t elements,
                     std::unique_ptr<Sharding> *sharding_out) const;
    Status register_tensor(const residency::TensorSpec &wanted, const std::string &words,
                           stw_tensor *tensor) STW_REQUIRES(runtime_lock);
    Status check_fixed_address(const stw_tensor_spec &spec, const Sharding *sharding) const;

    AddressTable &addresses_;
    MetadataBudget &metadata_;
    TransferSink &sink_;
    RestoredTensors &restored_;
    Placement &placement_;
    ShardObserver *shards_ = nullptr;  // null: there are no ranks
    // The keys are in the handles.
    std::unordered_map<std::string_view, stw_tensor *> names_ STW_GUARDED_BY(runtime_lock);
};

}  // namespace stepwell
