// SPDX-License-Identifier: Apache-2.0
// Tensors of the program: handles, names, shapes, fixed addresses.
#include "lib/runtime/tensors/registry.h"

#include "lib/report/report.h"
#include "lib/residency/core.h"
#include "lib/runtime/addresses/addresses.h"
#include "lib/runtime/addresses/metadata.h"
#include "lib/runtime/addresses/sink.h"
#include "lib/runtime/group/state.h"
#include "lib/runtime/recording/grounds.h"
#include "lib/runtime/recording/recorder.h"
#include "lib/runtime/restored/restored.h"
#include "lib/runtime/tensors/placement.h"
#include "lib/support/assert.h"
#include "lib/update/pipeline.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>

namespace stepwell {

using residency::PlaceId;
using residency::TensorId;

namespace {

// FNV-1a, since ranks with different standard libraries must agree.
uint64_t hash_of(const std::string &text)
{
    uint64_t hash = 0xcbf29ce484222325;
    for (const char at : text) hash = (hash ^ static_cast<uint8_t>(at)) * 0x100000001b3;
    return hash;
}

// Describes a tensor in words that are equal on all ranks and in later processes. `kind`: its
// partition.
std::string spec_words(uint32_t dtype, uint32_t dimensions, const uint64_t *shape, const char *kind,
                       uint64_t multiple)
{
    std::string words = report::dtype_name(dtype);
    words += " [";
    for (uint32_t i = 0; i < dimensions; ++i) {
        words += (i > 0 ? ", " : "") + std::to_string(shape[i]);
    }
    words += "] ";
    words += kind;
    if (multiple > 1) words += " by multiples of " + std::to_string(multiple);
    return words;
}

Status wrong_name(const char *name, const char *why)
{
    Status status = Status::error(STW_ERROR_INVALID, "the tensor name '%.300s' %s", name, why);
    return status;
}

// Elements and bytes of a shape, with overflow checks.
Status measure(const stw_tensor_spec &spec, uint64_t *elements_out, uint64_t *bytes_out)
{
    const uint32_t bits = stw_dtype_bits(spec.dtype);
    const char *name = spec.name ? spec.name : "";
    if (bits == 0) {
        return Status::error(STW_ERROR_INVALID, "%s: dtype %u is not known",
                             tensor_text(name).c_str(), spec.dtype);
    }
    if (spec.dimensions > STW_DIMENSIONS_MAX) {
        return Status::error(STW_ERROR_INVALID, "%s has %u dimensions, at most %d",
                             tensor_text(name).c_str(), spec.dimensions, STW_DIMENSIONS_MAX);
    }
    uint64_t elements = 1;
    for (uint32_t i = 0; i < spec.dimensions; ++i) {
        if (__builtin_mul_overflow(elements, spec.shape[i], &elements)) {
            return Status::error(STW_ERROR_INVALID,
                                 "%s: the product of its shape overflows 64 bits at "
                                 "dimension %u",
                                 tensor_text(name).c_str(), i);
        }
    }
    constexpr uint64_t kBytesMax = 1ull << 46;
    uint64_t bytes = 0;
    if (__builtin_mul_overflow(elements, bits / 8, &bytes) || bytes > kBytesMax) {
        return Status::error(STW_ERROR_INVALID, "%s: %llu elements of %u bits are more than %s",
                             tensor_text(name).c_str(), static_cast<unsigned long long>(elements),
                             bits, bytes_text(kBytesMax).c_str());
    }
    *elements_out = elements;
    *bytes_out = bytes;
    return {};
}

}  // namespace

// A fixed address must be possible at every device.
Status TensorRegistry::check_fixed_address(const stw_tensor_spec &spec,
                                           const Sharding *sharding) const
{
    const char *name = spec.name ? spec.name : "";
    bool any = false;
    for (PlaceId place = 0; place < machine_.tiers.host(); ++place) {
        const memory::Tier &at = machine_.tiers[place];
        if (!at.memory) continue;
        any = true;
        if (!at.maps && !at.aliases) {
            return Status::error(STW_ERROR_UNSUPPORTED,
                                 "%s asks for a fixed address, and device %u (driver "
                                 "'%s') has none to give",
                                 tensor_text(name).c_str(), at.device, at.driver.c_str());
        }
        if (!at.maps && sharding && sharding->is_sharded()) {
            return Status::error(STW_ERROR_INVALID,
                                 "%s asks for a fixed address and is sharded over "
                                 "ranks: gathered tensors at device %u are in memory that "
                                 "collectives use by its own address; make it LOCAL or REPLICATED",
                                 tensor_text(name).c_str(), at.device);
        }
        const Ranks *ranks = machine_.ranks.get();
        if (ranks && ranks->registered && ranks->place == place && at.aliases_runs) {
            return Status::error(STW_ERROR_INVALID,
                                 "%s asks for a fixed address, and the memory of "
                                 "device %u is registered with the group of ranks, which uses it "
                                 "by its own address; the device option arena=shrinks leaves it "
                                 "unregistered",
                                 tensor_text(name).c_str(), at.device);
        }
    }
    if (any) return {};
    return Status::error(STW_ERROR_UNSUPPORTED,
                         "%s asks for a fixed address, and there is no device tier",
                         tensor_text(name).c_str());
}

// Partitions the tensor over ranks; null if it belongs to this process alone.
Status TensorRegistry::shard_one(const stw_tensor_spec &spec, uint64_t elements,
                                 std::unique_ptr<Sharding> *sharding_out) const
{
    const char *name = spec.name ? spec.name : "";
    if (spec.group && (!machine_.ranks || spec.group != machine_.ranks->handle)) {
        return Status::error(STW_ERROR_UNSUPPORTED,
                             "%s: spec.group is not the runtime's; tensors of another "
                             "group live in a runtime that is opened on it",
                             tensor_text(name).c_str());
    }
    if (!machine_.ranks) return {};
    collective::PartitionSpec wanted;
    switch (spec.partition) {
    case STW_PARTITION_SHARDED: wanted.mode = collective::Mode::kSharded; break;
    case STW_PARTITION_REPLICATED: wanted.mode = collective::Mode::kReplicated; break;
    case STW_PARTITION_LOCAL: wanted.mode = collective::Mode::kLocal; break;
    default: wanted.mode = collective::default_mode(spec.role, elements); break;
    }
    if (wanted.mode == collective::Mode::kLocal) return {};
    if (!*name) return wrong_name(name, "is empty; tensors of several ranks need a name");
    wanted.elements = elements;
    wanted.element_bits = stw_dtype_bits(spec.dtype);
    wanted.ranks = machine_.ranks->group.size();
    wanted.multiple = spec.partition_multiple;
    Result<collective::Partition> partition = collective::make_partition(wanted);
    if (!partition.ok()) return std::move(partition.status());
    auto sharding = std::make_unique<Sharding>();
    sharding->partition = partition.value();
    sharding->multiple = spec.partition_multiple;
    sharding->shard = wanted.mode == collective::Mode::kSharded
                          ? partition.value().shard(machine_.ranks->group.rank())
                          : collective::Range{0, elements};
    const char *kind = wanted.mode == collective::Mode::kSharded ? "sharded" : "replicated";
    sharding->words =
        spec_words(spec.dtype, spec.dimensions, spec.shape, kind, spec.partition_multiple);
    sharding->spec = hash_of(sharding->words);
    *sharding_out = std::move(sharding);
    return {};
}

std::string TensorRegistry::words_of(const stw_tensor &tensor) const
{
    if (tensor.sharding) return tensor.sharding->words;
    return spec_words(tensor.dtype, tensor.dimensions, tensor.shape, "local", 0);
}

namespace {

// Before other threads can find the handle.
void fill_handle(const stw_tensor_spec &spec, uint64_t elements, uint64_t bytes,
                 std::unique_ptr<Sharding> sharding, stw_tensor *tensor)
{
    tensor->name = spec.name ? spec.name : "";
    tensor->flags = spec.flags;
    tensor->elements = elements;
    tensor->bytes = bytes;
    tensor->capacity_bytes = bytes;
    tensor->shard_begin = sharding ? sharding->shard.begin : 0;
    tensor->sharding = std::move(sharding);
    tensor->dtype = spec.dtype;
    tensor->element_bits = stw_dtype_bits(spec.dtype);
    tensor->role = spec.role;
    tensor->dimensions = spec.dimensions;
    std::copy(std::begin(spec.shape), std::end(spec.shape), std::begin(tensor->shape));
}

}  // namespace

Status TensorRegistry::fill_spec(const stw_tensor_spec &spec, const Sharding *sharding,
                                 uint64_t elements, residency::TensorSpec *wanted) const
{
    wanted->align_bytes = spec.align_bytes ? spec.align_bytes : 256;
    wanted->role = spec.role;
    wanted->neighbour = spec.neighbour;
    // A tensor without elements can be read before it is written.
    wanted->reads_zero = (spec.flags & STW_TENSOR_ZERO) != 0 || elements == 0;
    wanted->read_only = (spec.flags & STW_TENSOR_READ_ONLY) != 0;
    wanted->guarded = (spec.flags & STW_TENSOR_NO_ADDRESS) == 0;
    wanted->no_packing = (spec.flags & STW_TENSOR_OWN_BLOCKS) != 0;
    if (spec.flags & STW_TENSOR_FIXED_ADDRESS) STW_TRY(check_fixed_address(spec, sharding));
    STW_TRY(placement_.to_policy(spec.policy, spec.role, &wanted->policy));
    STW_TRY(restored_.check_durable(spec, wanted->policy));
    wanted->durable = (spec.flags & STW_TENSOR_DURABLE) != 0;
    return {};
}

Status TensorRegistry::create_one(const stw_tensor_spec &spec, stw_tensor **tensor_out)
{
    uint64_t elements = 0;
    uint64_t bytes = 0;
    STW_TRY(measure(spec, &elements, &bytes));
    const char *name = spec.name ? spec.name : "";
    if (std::strlen(name) > 255) return wrong_name(name, "is longer than 255 bytes");
    std::unique_ptr<Sharding> sharding;
    STW_TRY(shard_one(spec, elements, &sharding));
    if (sharding) elements = sharding->shard.count;
    if (sharding) bytes = elements * (stw_dtype_bits(spec.dtype) / 8);
    residency::TensorSpec wanted;
    wanted.name = name;
    wanted.bytes = std::max<uint64_t>(bytes, 1);
    STW_TRY(fill_spec(spec, sharding.get(), elements, &wanted));
    std::string words;  // to compare with what is stored
    if (wanted.durable) {
        words = sharding ? sharding->words
                         : spec_words(spec.dtype, spec.dimensions, spec.shape, "local", 0);
    }
    const auto give = [](stw_tensor *unused) {
        unused->sharding.reset();
        unused->name.clear();
        tensor_pool.give(unused);
    };
    std::unique_ptr<stw_tensor, decltype(give)> tensor(tensor_pool.take(), give);
    if (!tensor) {
        return Status::error(STW_ERROR_LIMIT,
                             "this process has as many tensors as there are handles for, %u; "
                             "destroy tensors that are not needed",
                             tensor_pool.objects_max());
    }
    fill_handle(spec, elements, bytes, std::move(sharding), tensor.get());
    Status status;
    {
        MutexLock lock(dispatch_.mutex());
        status = register_tensor(wanted, words, tensor.get());
    }
    if (!status.ok()) {
        status.mutable_detail().tensor = name;
        return status;
    }
    *tensor_out = tensor.release();
    return {};
}

// Creates the core's tensor, its addresses and its entries in the tables. All memory that may be
// refused is allocated before the core has the tensor.
Status TensorRegistry::register_tensor(const residency::TensorSpec &wanted,
                                       const std::string &words, stw_tensor *tensor)
{
    const auto take_name_back = [this](stw_tensor *unused)
                                    STW_REQUIRES(runtime_lock) { names_.erase(unused->name); };
    std::unique_ptr<stw_tensor, decltype(take_name_back)> named(nullptr, take_name_back);
    if (!tensor->name.empty()) {
        if (!names_.emplace(tensor->name, tensor).second)
            return Status::error(STW_ERROR_EXISTS, "a tensor named '%s' exists",
                                 tensor->name.c_str());
        named.reset(tensor);
    }
    const Status room = metadata_.metadata_room(wanted);
    if (room.ok()) metadata_.prepare_tables(wanted);
    Result<TensorId> made =
        room.ok() ? restored_.make_tensor(wanted, words, tensor) : Result<TensorId>(room);
    if (!made.ok()) {
        Status status = std::move(made.status());
        ErrorDetail &detail = status.mutable_detail();
        detail.sentence =
            format_text("%s (%s) cannot be created: %s", tensor_text(wanted.name).c_str(),
                        bytes_text(wanted.bytes).c_str(), detail.sentence.c_str());
        return status;
    }
    const TensorId id = made.value();
    Status status;
    if (tensor->flags & STW_TENSOR_FIXED_ADDRESS) status = metadata_.alias_room(wanted);
    if (status.ok()) status = addresses_.address_pack(id, tensor);
    if (!status.ok()) {
        Commands out;
        (void)dispatch_.core.destroy(id, out);
        sink_.forget_unused(out);
        restored_.take_restored(wanted.name, false);
        return status;
    }
    tensor->id = id;
    tensor->runtime = machine_.handle;
    tensor->doors = &dispatch_.core.door(id, 0);
    TensorNotes &notes = tensor->notes;
    notes.created_ns = dispatch_.now();
    placement_.count_trained(wanted, tensor);
    handles_.insert(tensor);
    errors_.forget(id);
    (void)named.release();
    metadata_.handles_bytes += sizeof(stw_tensor) + metadata_.name_bytes(wanted.name.size());
    return {};
}

Status TensorRegistry::create_tensors(const stw_tensor_spec *specs, uint32_t n,
                                      stw_tensor **tensors_out)
{
    const auto spec_at = [specs](uint32_t i) {
        const char *at = reinterpret_cast<const char *>(specs) + size_t{i} * specs[0].struct_size;
        stw_tensor_spec spec{};
        std::memcpy(&spec, at, std::min<size_t>(specs[0].struct_size, sizeof spec));
        return spec;
    };
    if (n == 1) return create_one(spec_at(0), tensors_out);  // there is nothing to undo
    std::vector<stw_tensor *> made;
    made.reserve(n);
    Commands undone;  // the undo must not allocate
    undone.freed_packs.reserve(n);
    const auto create_all = [&]() -> Status {
        for (uint32_t i = 0; i < n; ++i) {
            stw_tensor *tensor = nullptr;
            STW_TRY(create_one(spec_at(i), &tensor));
            made.push_back(tensor);
        }
        return {};
    };
    const auto undo = [&] {
        MutexLock lock(dispatch_.mutex());
        for (stw_tensor *tensor : made) {
            if (tensor->notes.restored) restored_.take_restored(tensor->name, false);
            unregister_tensor(tensor, undone);
        }
        sink_.forget_unused(undone);
    };
    Status status;
    try {
        status = create_all();
    } catch (const std::bad_alloc &) {
        undo();
        throw;
    }
    if (status.ok()) {
        std::copy(made.begin(), made.end(), tensors_out);
    } else {
        undo();
    }
    return status;
}

void TensorRegistry::expect(uint64_t tensors)
{
    MutexLock lock(dispatch_.mutex());
    const uint64_t least = names_.size() + tensors;
    const double room =
        static_cast<double>(names_.bucket_count()) * static_cast<double>(names_.max_load_factor());
    if (static_cast<double>(least) > room) names_.reserve(std::max(least, 2 * names_.size()));
}

Status TensorRegistry::destroy_tensors(stw_tensor *const *tensors, uint32_t n)
{
    return destroy_held(tensors, n, nullptr);
}

// An optimizer's tensors can be destroyed only by it.
Status TensorRegistry::destroy_held(stw_tensor *const *tensors, uint32_t n,
                                    const TensorHolder *holder)
{
    dispatch_.give_way();
    std::vector<stw_tensor *> sorted(tensors, tensors + n);
    std::sort(sorted.begin(), sorted.end());
    const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
    if (twice != sorted.end()) {
        return Status::error(STW_ERROR_INVALID, "%s is given twice in one call",
                             tensor_text((*twice)->name).c_str());
    }
    if (shards_) STW_TRY(shards_->await_gathers(tensors, n));
    Status status;
    dispatch_.act([&](Core &core, Commands &out) STW_REQUIRES(runtime_lock) {
        for (uint32_t i = 0; i < n && status.ok(); ++i) {
            const TensorHolder *body = tensors[i]->notes.holder;
            if (body && body != holder) {
                status = Status::error(STW_ERROR_BUSY,
                                       "%s belongs to optimizer '%s'; destroy that first",
                                       tensor_text(tensors[i]->name).c_str(), body->name.c_str());
            } else {
                status = core.may_destroy(tensors[i]->id, out);
            }
            if (status.ok() && shards_) status = shards_->may_unshard(*tensors[i], out);
        }
        for (uint32_t i = 0; i < n && status.ok() && shards_; ++i) {
            shards_->unshard(*tensors[i], out);
        }
        for (uint32_t i = 0; i < n && status.ok(); ++i) unregister_tensor(tensors[i], out);
    });
    return status;
}

void TensorRegistry::unregister_tensor(stw_tensor *tensor, Commands &out)
{
    const TensorNotes &notes = tensor->notes;
    if (notes.trained) placement_.trained_bytes -= dispatch_.core.spec(tensor->id).bytes;
    for (memory::AddressAlias *shown : tensor->shown) {
        if (shown) shown->end();
    }
    const Status status = dispatch_.core.destroy(tensor->id, out);
    STW_ASSERT(status.ok());
    handles_.erase(tensor);
    errors_.forget(tensor->id);
    const auto named = names_.find(tensor->name);
    if (named != names_.end() && named->second == tensor) names_.erase(named);
    tensor->runtime = nullptr;
    tensor->sharding.reset();
    metadata_.handles_bytes -= sizeof(stw_tensor) + metadata_.name_bytes(tensor->name.size());
    std::string().swap(tensor->name);  // frees it; the handle's memory stays
    tensor_pool.give(tensor);
}

Status TensorRegistry::find_tensor(const char *name, stw_tensor **tensor_out)
{
    MutexLock lock(dispatch_.mutex());
    const auto found = names_.find(name);
    if (found == names_.end()) {
        return Status::error(STW_ERROR_NOT_FOUND, "there is no tensor named '%.300s'", name);
    }
    *tensor_out = found->second;
    return {};
}

TensorId TensorRegistry::find_id(std::string_view name) const
{
    MutexLock lock(dispatch_.mutex());
    const auto found = names_.find(name);
    return found != names_.end() ? found->second->id : residency::kNone;
}

Status TensorRegistry::next_tensor(stw_tensor *previous, stw_tensor **next_out)
{
    MutexLock lock(dispatch_.mutex());
    *next_out = previous ? previous->notes.next : handles_.first();
    return {};
}

Status TensorRegistry::tensor_info(stw_tensor *tensor, stw_tensor_info *info_out)
{
    MutexLock lock(dispatch_.mutex());
    stw_tensor_info info{};
    info.struct_size = std::min<uint32_t>(info_out->struct_size, sizeof info);
    residency::Contents contents = dispatch_.core.contents(tensor->id);
    if (contents == residency::Contents::kEmpty && dispatch_.core.spec(tensor->id).reads_zero)
        contents = residency::Contents::kValid;
    info.state = static_cast<uint32_t>(contents);
    info.restored = tensor->notes.restored ? 1 : 0;
    info.dtype = tensor->dtype;
    info.role = tensor->role;
    info.dimensions = tensor->dimensions;
    const uint32_t mask = dispatch_.core.residence(tensor->id);
    for (PlaceId place = 0; place <= machine_.tiers.nvme(); ++place) {
        if (!(mask & (1u << place))) continue;
        info.residence |= 1u << (static_cast<uint32_t>(machine_.tiers[place].kind) - 1);
    }
    std::copy(std::begin(tensor->shape), std::end(tensor->shape), std::begin(info.shape));
    info.partition = STW_PARTITION_LOCAL;
    info.elements = tensor->elements;
    info.shard_elements = tensor->elements;
    info.shard_bytes = tensor->bytes;
    info.whole_bytes = tensor->bytes;
    if (const Sharding *sharding = tensor->sharding.get()) {
        info.partition = sharding->is_sharded() ? uint32_t{STW_PARTITION_SHARDED}
                                                : uint32_t{STW_PARTITION_REPLICATED};
        info.elements = sharding->elements();
        info.shard_begin = sharding->shard.begin;
        info.shard_bytes = sharding->partition.shard_bytes();
        info.whole_bytes = sharding->elements() * (tensor->element_bits / 8);
    }
    info.version = dispatch_.core.version(tensor->id);
    for (uint32_t index = 0; index < views_.slots_used(); ++index) {
        info.open_views += views_.is_open(index) && views_.slot(index).tensor == tensor;
    }
    info.name = tensor->name.c_str();
    info.frozen = (tensor->flags & STW_TENSOR_READ_ONLY) != 0 ? 1 : 0;
    std::memcpy(info_out, &info, std::min<size_t>(info_out->struct_size, sizeof info));
    return {};
}

Status TensorRegistry::set_policy(stw_tensor *tensor, const stw_policy &policy)
{
    residency::Policy wanted;
    STW_TRY(placement_.to_policy(&policy, tensor->role, &wanted));
    stw_tensor_spec spec = STW_TENSOR_SPEC_INIT;
    spec.name = tensor->name.c_str();
    spec.flags = tensor->flags;
    STW_TRY(restored_.check_durable(spec, wanted));
    MutexLock lock(dispatch_.mutex());
    ++policies_changed;
    return dispatch_.core.set_policy(tensor->id, wanted);
}

Status TensorRegistry::freeze(stw_tensor *tensor, bool frozen)
{
    dispatch_.give_way();
    MutexLock lock(dispatch_.mutex());
    if (const TensorHolder *body = tensor->notes.holder) {
        const auto &held = body->held;
        if (frozen && std::find(held.begin(), held.end(), tensor) == held.end()) {
            return Status::error(STW_ERROR_INVALID,
                                 "%s is a state of optimizer '%s', which writes it; freeze "
                                 "its parameter instead",
                                 tensor_text(tensor->name).c_str(), body->name.c_str());
        }
    }
    if (frozen && machine_.pipeline->verdict_from(tensor->id)) {
        return Status::error(STW_ERROR_BUSY,
                             "%s was updated speculatively, and its verdict writes it; take a "
                             "step without STW_UPDATE_SPECULATE first, or one with "
                             "STW_UPDATE_REJECT",
                             tensor_text(tensor->name).c_str());
    }
    const uint32_t flags = tensor->flags & ~uint32_t{STW_TENSOR_READ_ONLY};
    const bool durable = (flags & STW_TENSOR_DURABLE) != 0;
    STW_TRY(durable ? restored_.freeze_durable(tensor->id, frozen)
                    : dispatch_.core.freeze(tensor->id, frozen));
    tensor->flags = flags | (frozen ? STW_TENSOR_READ_ONLY : 0);
    return {};
}

Status TensorRegistry::reshape(stw_tensor *tensor, const uint64_t *shape, uint32_t dimensions)
{
    dispatch_.give_way();
    if (tensor->sharding) {
        return Status::error(STW_ERROR_UNSUPPORTED,
                             "%s belongs to several ranks, and its shards are made for the "
                             "shape it was created with; only local tensors can be reshaped",
                             tensor_text(tensor->name).c_str());
    }
    if (tensor->flags & STW_TENSOR_DURABLE) {
        return Status::error(STW_ERROR_UNSUPPORTED,
                             "%s is durable and is restored with the shape that it was "
                             "created with; durable tensors cannot be reshaped",
                             tensor_text(tensor->name).c_str());
    }
    stw_tensor_spec spec = STW_TENSOR_SPEC_INIT;
    spec.name = tensor->name.c_str();
    spec.dtype = tensor->dtype;
    spec.dimensions = dimensions;
    std::copy(shape, shape + std::min<uint32_t>(dimensions, 8), spec.shape);
    uint64_t elements = 0;
    uint64_t bytes = 0;
    STW_TRY(measure(spec, &elements, &bytes));
    if (bytes > tensor->capacity_bytes) {
        return Status::error(STW_ERROR_INVALID,
                             "%s was created with %s and cannot be reshaped to %s",
                             tensor_text(tensor->name).c_str(),
                             bytes_text(tensor->capacity_bytes).c_str(), bytes_text(bytes).c_str());
    }
    // In one event with the discard: an optimizer may be about to take the tensor.
    Status status;
    dispatch_.act([&](Core &core, Commands &out) STW_REQUIRES(runtime_lock) {
        recorder_.drain_hits();
        if (const TensorHolder *body = tensor->notes.holder) {
            status = Status::error(STW_ERROR_BUSY,
                                   "%s belongs to optimizer '%s', whose entries and "
                                   "states have its elements; destroy that first, or use another "
                                   "tensor",
                                   tensor_text(tensor->name).c_str(), body->name.c_str());
            return;
        }
        status = drop_contents(tensor, out, core);
        if (!status.ok()) return;
        recorder_.note_discard(schedule::Lane::kProgram, tensor->id);
        tensor->elements = elements;
        tensor->bytes = bytes;
        tensor->dimensions = dimensions;
        std::copy(std::begin(spec.shape), std::end(spec.shape), std::begin(tensor->shape));
    });
    return status;
}

Status TensorRegistry::drop_contents(stw_tensor *tensor, Commands &out, Core &core)
{
    STW_TRY(restored_.check_thawed(*tensor));
    if (shards_) {
        STW_TRY(shards_->write_shards(tensor, out));
        shards_->drop_partial(tensor->id, out);
    }
    STW_TRY(core.discard(tensor->id, out));
    errors_.forget(tensor->id);
    return {};
}

Status TensorRegistry::discard(stw_tensor *const *tensors, uint32_t n)
{
    dispatch_.give_way();
    if (shards_) STW_TRY(shards_->await_gathers(tensors, n));
    Status first;
    dispatch_.act([&](Core &core, Commands &out) STW_REQUIRES(runtime_lock) {
        recorder_.drain_hits();
        for (uint32_t i = 0; i < n; ++i) {
            Status status = drop_contents(tensors[i], out, core);
            if (status.ok()) recorder_.note_discard(schedule::Lane::kProgram, tensors[i]->id);
            if (first.ok() && !status.ok()) first = std::move(status);
        }
    });
    return first;
}

Status TensorRegistry::advise(stw_tensor *const *tensors, uint32_t n, uint32_t advice)
{
    dispatch_.act([&](Core &core, Commands &out) STW_REQUIRES(runtime_lock) {
        for (uint32_t i = 0; i < n; ++i) {
            core.advise(tensors[i]->id, static_cast<residency::Advice>(advice), out);
        }
    });
    return {};
}

Status TensorRegistry::tensor_address(stw_tensor *tensor, uint32_t device, void **pointer_out,
                                      uint64_t *bytes_out)
{
    if (tensor->flags & STW_TENSOR_NO_ADDRESS) {
        return Status::error(STW_ERROR_UNSUPPORTED,
                             "%s was created with STW_TENSOR_NO_ADDRESS; create it without",
                             tensor_text(tensor->name).c_str());
    }
    const bool there = machine_.tiers.is_device(device) && machine_.tiers[device].memory &&
                       (machine_.tiers[device].maps || tensor->shown[device]);
    if (!there && machine_.tiers.is_device(device) && machine_.tiers[device].aliases) {
        return Status::error(STW_ERROR_UNSUPPORTED,
                             "device %u gives addresses only to tensors with "
                             "STW_TENSOR_FIXED_ADDRESS, which %s does not have",
                             device, tensor_text(tensor->name).c_str());
    }
    if (!there) {
        return Status::error(STW_ERROR_UNSUPPORTED, "device %u gives tensors no addresses", device);
    }
    *pointer_out = tensor->addresses[device];
    *bytes_out = tensor->bytes;
    if (machine_.tiers[device].maps && tensor->sharding && tensor->sharding->is_sharded()) {
        // The gathered tensor has an address of its own; the tensor's own pack is this rank's
        // shard.
        MutexLock lock(dispatch_.mutex());
        STW_TRY(shards_->make_whole(*tensor));
        *pointer_out =
            addresses_.of_pack(dispatch_.core.pack_of(tensor->sharding->whole)).at[device];
        *bytes_out = tensor->sharding->elements() * (tensor->element_bits / 8);
    }
    return {};
}

Status TensorRegistry::change_shards(stw_tensor *tensor)
{
    if (!tensor->sharding || !shards_) return {};
    Status status;
    dispatch_.act([&](Core &, Commands &out)
                      STW_REQUIRES(runtime_lock) { status = shards_->write_shards(tensor, out); });
    return status;
}

}  // namespace stepwell
