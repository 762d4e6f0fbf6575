// SPDX-License-Identifier: Apache-2.0
// Optimizers of the program: creates their states as tensors with names, and records the optimizer
// of each parameter. Arithmetic, order and streaming are in lib/update.
#include "lib/runtime/optimizers/table.h"

#include "lib/collective/node.h"
#include "lib/residency/core.h"
#include "lib/runtime/addresses/sink.h"
#include "lib/runtime/group/processors.h"
#include "lib/runtime/group/state.h"
#include "lib/runtime/recording/grounds.h"
#include "lib/runtime/recording/recorder.h"
#include "lib/runtime/restored/restored.h"
#include "lib/runtime/tensors/placement.h"
#include "lib/runtime/tensors/registry.h"
#include "lib/runtime/tensors/zeros.h"
#include "lib/runtime/updates/body.h"
#include "lib/runtime/updates/devices.h"
#include "lib/runtime/updates/tiers.h"
#include "lib/runtime/views/sleepers.h"
#include "lib/support/assert.h"
#include "lib/support/growth.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <utility>

namespace stepwell {

using residency::PlaceId;
namespace {

bool lie_alike(const stw_tensor &a, const stw_tensor &b)
{
    if (!a.sharding || !b.sharding) return !a.sharding && !b.sharding;
    const collective::Partition &first = a.sharding->partition;
    const collective::Partition &second = b.sharding->partition;
    return first.mode == second.mode && first.shard_elements == second.shard_elements &&
           first.elements == second.elements;
}

Status mismatch(const stw_tensor *parameter, const char *why)
{
    Status status =
        Status::error(STW_ERROR_MISMATCH, "%s: %s", parameter_text(parameter->name).c_str(), why);
    status.mutable_detail().tensor = parameter->name;
    return status;
}

}  // namespace

OptimizerTable::OptimizerTable(const Ground &ground, Placement &placement, OwedZeros &zeros,
                               RestoredTensors &restored, TransferSink &sink,
                               TensorRegistry &registry, Sleepers &sleepers,
                               Collectives &collectives, Wholes &wholes, Sums &sums,
                               DeviceUpdates &devices, TierAccess &pieces)
    : Grounded(ground),
      placement_(placement),
      zeros_(zeros),
      restored_(restored),
      sink_(sink),
      registry_(registry),
      sleepers_(sleepers),
      collectives_(collectives),
      wholes_(wholes),
      sums_(sums),
      devices_(devices),
      pieces_(pieces)
{
}
OptimizerTable::~OptimizerTable() = default;

// `asked` 0: this rank's share of the host's processors.
Status OptimizerTable::open_update(uint32_t asked)
{
    UpdateThreads threads{asked, "as asked for, thread_count"};
    if (asked == 0 && machine_.ranks) {
        const collective::Node &node =
            machine_.ranks->host ? *machine_.ranks->host : *machine_.ranks->node;
        threads = stepwell::update_threads(node.processors(), node.index());
    } else if (asked == 0) {
        threads = stepwell::update_threads({own_processors()}, 0);
    }
    update::PipelineOptions options;
    options.tiers = &pieces_;
    options.thread_count = std::min(threads.count, update::kThreadsMax);
    options.latest_first = !machine_.ranks;
    {
        MutexLock lock(dispatch_.mutex());
        options.window_bytes = placement_.update_window();
        options.device_windows = placement_.device_windows();
    }
    if (!options.device_windows.empty()) options.devices = &devices_;
    options.failed_user = this;
    options.failed = [](void *user, residency::TensorId tensor, const Status &cause) {
        auto *self = static_cast<OptimizerTable *>(user);
        MutexLock lock(self->dispatch_.mutex());
        self->errors_.add(tensor, cause);
    };
    options.span_user = this;
    options.span = [](void *user, uint64_t start_ns, uint64_t end_ns, residency::TensorId tensor) {
        observe::Span span;
        span.start_ns = start_ns;
        span.end_ns = end_ns;
        span.kind = observe::SpanKind::kUpdate;
        span.id = tensor;
        static_cast<OptimizerTable *>(user)->machine_.timeline->record(span);
    };
    update_threads = options.thread_count;
    update_threads_why = std::move(threads.why);
    Result<std::unique_ptr<update::Pipeline>> opened = update::Pipeline::open(options);
    if (!opened.ok()) return std::move(opened.status());
    machine_.pipeline = opened.take();
    return {};
}

namespace {

// Copies the names, which end with the call.
void take_custom(const stw_custom_update &custom, OptimizerBody *body)
{
    body->custom = custom;
    for (uint32_t i = 0; i < custom.state_count; ++i) {
        body->custom_names.emplace_back(custom.state_names[i]);
    }
    for (const std::string &name : body->custom_names) {
        body->custom_pointers.push_back(name.c_str());
    }
    body->custom.state_names = body->custom_pointers.data();
}

}  // namespace

Status OptimizerTable::create_optimizer(const stw_optimizer_options &options,
                                        stw_optimizer **optimizer_out)
{
    const bool narrow = options.state_dtype == STW_BF16 && !options.custom;
    if (options.state_dtype != 0 && options.state_dtype != STW_F32 && !narrow) {
        return Status::error(STW_ERROR_UNSUPPORTED,
                             "states of dtype %u are not supported here; moments are kept in f32 "
                             "or bf16, those of a custom update in f32",
                             options.state_dtype);
    }
    auto body = std::make_unique<OptimizerBody>();
    body->algorithm = options.algorithm;
    if (narrow) body->state_dtype = STW_BF16;
    body->has_average = options.ema_decay != 0.0;
    const double decay = options.ema_decay + 0.0;  // turns -0.0 into 0.0 for the hash
    body->shared_hash = collective::hash_bytes(options.algorithm, &decay, sizeof decay);
    update::TorchOrder torch_order;
    if ((options.flags & STW_OPTIMIZER_TORCH_ORDER) != 0) {
        torch_order = {options.square_root, options.square_root_mode, options.square_root_threads};
        const bool given = options.square_root != nullptr;
        body->shared_hash = collective::hash_bytes(body->shared_hash, &given, sizeof given);
    }
    body->name = options.name ? options.name : "optimizer";
    body->durable = (options.flags & STW_OPTIMIZER_DURABLE) != 0;
    if (body->durable && !restored_.durable) {
        return Status::error(STW_ERROR_INVALID,
                             "optimizer '%s' is durable, and the runtime keeps nothing: open it "
                             "with a store_name",
                             body->name.c_str());
    }
    if (options.custom) {
        if (options.custom->state_count > update::kStatesMax) {
            return Status::error(STW_ERROR_LIMIT, "a custom update has at most %u states, not %u",
                                 update::kStatesMax, options.custom->state_count);
        }
        take_custom(*options.custom, body.get());
    }
    if (options.state_policy) {
        body->has_policy = true;
        std::memcpy(&body->policy, options.state_policy,
                    std::min<size_t>(options.state_policy->struct_size, sizeof body->policy));
    }
    Result<std::unique_ptr<update::Optimizer>> made = update::Optimizer::create(
        *machine_.pipeline, options.algorithm, options.custom ? &body->custom : nullptr,
        options.ema_decay, torch_order);
    if (!made.ok()) return std::move(made.status());
    body->optimizer = made.take();
    MutexLock lock(dispatch_.mutex());
    grow_to_hold(bodies, bodies.size() + 1);
    stw_optimizer *optimizer = optimizer_pool.take();
    if (!optimizer) return Status::error(STW_ERROR_LIMIT, "no handle for another optimizer");
    optimizer->runtime = machine_.handle;
    optimizer->index = static_cast<uint32_t>(bodies.size());
    body->handle = optimizer;
    bodies.push_back(std::move(body));
    placement_.expect_updates();
    *optimizer_out = optimizer;
    return {};
}

// Other threads may grow the list; bodies do not move.
OptimizerBody &OptimizerTable::body_of(const stw_optimizer *optimizer)
{
    MutexLock lock(dispatch_.mutex());
    return *bodies[optimizer->index];
}

std::vector<stw_tensor *> OptimizerTable::held_by(const OptimizerBody &body) const
{
    MutexLock lock(dispatch_.mutex());
    return body.held;
}

Status OptimizerTable::destroy_optimizer(stw_optimizer *optimizer)
{
    OptimizerBody &body = body_of(optimizer);
    if (const char *parameter = body.optimizer->awaits_verdict()) {
        return Status::error(STW_ERROR_BUSY,
                             "%s of optimizer '%s' was updated speculatively; take a step without "
                             "STW_UPDATE_SPECULATE, its verdict",
                             parameter_text(parameter).c_str(), body.name.c_str());
    }
    if (body.optimizer->pending()) {
        return Status::error(STW_ERROR_BUSY,
                             "optimizer '%s' has a step under way; wait for it with "
                             "stw_runtime_drain",
                             body.name.c_str());
    }
    // All states or none: if a view of one is open it is BUSY, and nothing has changed.
    std::vector<stw_tensor *> states;
    for (const auto &[key, state] : body.states) states.push_back(state.tensor);
    if (!states.empty()) {
        STW_TRY(registry_.destroy_held(states.data(), static_cast<uint32_t>(states.size()), &body));
    }
    {
        MutexLock changes(body.changes);
        body.optimizer.reset();
        body.states.clear();
    }
    MutexLock lock(dispatch_.mutex());
    for (stw_tensor *tensor : body.held) {
        TensorHolder *&holder = tensor->notes.holder;
        if (holder == &body) holder = nullptr;
    }
    body.held.clear();
    body.handle = nullptr;
    // A gradient may be in several optimizers.
    for (const std::unique_ptr<OptimizerBody> &other : bodies) {
        for (stw_tensor *tensor : other->held) {
            TensorHolder *&holder = tensor->notes.holder;
            if (!holder) holder = other.get();
        }
    }
    optimizer_pool.give(optimizer);
    return {};
}

stw_tensor *OptimizerTable::find_state(const OptimizerBody &body, const stw_tensor *parameter,
                                       std::string_view name)
{
    const auto found = body.states.find({parameter->id, name});
    return found != body.states.end() ? found->second.tensor : nullptr;
}

// An existing one if another entry for the same parameter made it.
Status OptimizerTable::make_state(OptimizerBody &body, stw_tensor *parameter, const char *name,
                                  const StateForm &form, residency::PlaceId home,
                                  residency::TensorId *id_out)
{
    if (const stw_tensor *state = find_state(body, parameter, name)) {
        *id_out = state->id;
        return {};
    }
    stw_tensor_spec spec = STW_TENSOR_SPEC_INIT;
    std::string full;
    if (!parameter->name.empty()) {
        full.reserve(body.name.size() + parameter->name.size() + std::strlen(name) + 2);
        full.append(body.name).append(".").append(parameter->name).append(".").append(name);
        spec.name = full.c_str();
    }
    spec.role = STW_ROLE_OPTIMIZER_STATE;
    spec.dtype = form.dtype;
    spec.dimensions = parameter->dimensions;
    std::copy(std::begin(parameter->shape), std::end(parameter->shape), std::begin(spec.shape));
    if (form.reads_zero) spec.flags = STW_TENSOR_ZERO;
    if (body.durable) spec.flags |= STW_TENSOR_DURABLE;
    // Partitioned like its parameter, so that their shards match.
    spec.partition = STW_PARTITION_LOCAL;
    if (const Sharding *sharding = parameter->sharding.get()) {
        spec.partition = sharding->is_sharded() ? uint32_t{STW_PARTITION_SHARDED}
                                                : uint32_t{STW_PARTITION_REPLICATED};
        spec.partition_multiple = sharding->multiple;
    }
    if (form.is_bits) {  // of this rank's elements
        spec.dimensions = 1;
        spec.shape[0] = (parameter->elements + 7) / 8;
        spec.partition = STW_PARTITION_LOCAL;
        spec.partition_multiple = 0;
    }
    {
        MutexLock lock(dispatch_.mutex());
        spec.neighbour = dispatch_.core.spec(parameter->id).neighbour;
    }
    stw_policy on_device = STW_POLICY_INIT;
    if (body.has_policy) spec.policy = &body.policy;
    if (home != residency::kNoPlace) {
        on_device.home = STW_TIER_DEVICE;
        on_device.home_device = machine_.tiers[home].device;
        spec.policy = &on_device;
    }
    OwnedStates made;  // its memory is allocated before there is a tensor
    OwnedState &state = made[{parameter->id, name}];
    state.parameter = parameter;
    STW_TRY(create_tensors(&spec, 1, &state.tensor, &body));
    state.number = body.states_made++;
    {
        MutexLock lock(dispatch_.mutex());
        state.tensor->notes.holder = &body;
    }
    *id_out = state.tensor->id;
    body.states.merge(made);
    return {};
}

Status OptimizerTable::check_entry(const OptimizerBody &body,
                                   const stw_optimizer_entry &entry) const
{
    const stw_tensor *parameter = entry.parameter;
    const stw_tensor *gradient = entry.gradient;
    if (body.durable && parameter->name.empty()) {
        return mismatch(parameter, "its optimizer is durable, and states are found again by the "
                                   "name of their parameter, which has none");
    }
    if (!update::is_float(parameter->dtype) || !update::is_float(gradient->dtype)) {
        return mismatch(parameter, "parameters and gradients are f32, f16 or bf16");
    }
    if (parameter->elements != gradient->elements) {
        return mismatch(parameter, "its gradient has another number of elements");
    }
    if (!lie_alike(*parameter, *gradient)) {
        return mismatch(parameter, "its gradient is cut over the ranks in another way; create both "
                                   "with the same partition and partition_multiple");
    }
    if (parameter->flags & STW_TENSOR_READ_ONLY) {
        return mismatch(parameter, "it is read-only; leave frozen parameters out");
    }
    MutexLock lock(dispatch_.mutex());
    const TensorHolder *holder = parameter->notes.holder;
    if (holder && holder != &body) {
        return Status::error(STW_ERROR_EXISTS, "%s is in another optimizer",
                             parameter_text(parameter->name).c_str());
    }
    return {};
}

// This rank's part of an entry, in elements of the shard.
collective::Range OptimizerTable::own_part(const stw_optimizer_entry &entry) const
{
    const stw_tensor &parameter = *entry.parameter;
    const Sharding *sharding = parameter.sharding.get();
    const uint64_t all = sharding ? sharding->elements() : parameter.elements;
    collective::Range part{entry.element_begin, entry.element_count ? entry.element_count : all};
    if (!sharding || !sharding->is_sharded()) return part;
    part = sharding->partition.part(machine_.ranks->group.rank(), part);
    part.begin = part.count > 0 ? part.begin - parameter.shard_begin : 0;
    return part;
}

// Makes the entry of the update layer, and the states that its parameter lacks.
Status OptimizerTable::make_entry(OptimizerBody &body, const stw_optimizer_entry &entry,
                                  update::Entry *entry_out)
{
    STW_TRY(check_entry(body, entry));
    update::Entry out;
    out.parameter = entry.parameter->id;
    out.gradient = entry.gradient->id;
    out.parameter_dtype = entry.parameter->dtype;
    out.gradient_dtype = entry.gradient->dtype;
    out.state_dtype = body.state_dtype;
    out.group = entry.parameter_group;
    const collective::Range part = own_part(entry);
    out.element_begin = part.begin;
    out.element_count = part.count;
    // A replicated parameter counts once in the norm.
    const Sharding *sharding = entry.parameter->sharding.get();
    out.counted = !sharding || sharding->is_sharded() || machine_.ranks->group.rank() == 0;
    out.handle = entry.parameter;
    out.name = entry.parameter->name.c_str();
    const stw_hyper hyper = body.optimizer->hyper(entry.parameter_group);
    const update::StateNames names = update::state_names(
        body.algorithm, hyper, body.custom_names.empty() ? nullptr : &body.custom);
    const bool has_master = entry.parameter->dtype != STW_F32;
    const uint64_t bytes_each = (has_master ? 4 : 0) + (body.has_average ? 4 : 0) +
                                names.count * update::element_bytes(body.state_dtype);
    const residency::PlaceId home = home_of_states(body, bytes_each * entry.parameter->elements);
    const StateForm wide{STW_F32};
    if (has_master && home == residency::kNoPlace && may_split(body, entry, out)) {
        const StateForm bits{STW_U8, false, true};
        STW_TRY(make_state(body, entry.parameter, kMasterLow, {STW_BF16}, home, &out.low));
        STW_TRY(make_state(body, entry.parameter, kMasterOpen, bits, home, &out.open));
    } else if (has_master) {
        STW_TRY(make_state(body, entry.parameter, "master", wide, home, &out.master));
    }
    if (body.has_average) {
        STW_TRY(make_state(body, entry.parameter, "ema", wide, home, &out.average));
    }
    out.state_count = names.count;
    for (uint32_t state = 0; state < names.count; ++state) {
        STW_TRY(make_state(body, entry.parameter, names.names[state], {body.state_dtype, true},
                           home, &out.states[state]));
    }
    *entry_out = out;
    return {};
}

// Whether the master is kept as what its parameter lacks. It is not where a generation would hold
// the parts, which other ranks could not be given, where it is the program's kernel or a device
// that reads it, and where a chunk could end within a byte of bits.
bool OptimizerTable::may_split(const OptimizerBody &body, const stw_optimizer_entry &entry,
                               const update::Entry &made) const
{
    const stw_tensor *parameter = entry.parameter;
    if (find_state(body, parameter, "master")) return false;
    if (find_state(body, parameter, kMasterLow)) return true;
    if (parameter->dtype != STW_BF16 || body.durable || body.custom.update) return false;
    if (made.element_count == 0 || made.element_count != parameter->elements) return false;
    residency::Policy policy;
    const bool known =
        placement_
            .to_policy(body.has_policy ? &body.policy : nullptr, STW_ROLE_OPTIMIZER_STATE, &policy)
            .ok();
    if (!known || machine_.tiers[policy.home].updates_with(body.algorithm)) return false;
    const auto in_bytes_of_bits = [&](const stw_tensor *tensor) {
        return pieces_.pack_offset(tensor->id) % (8 * update::element_bytes(tensor->dtype)) == 0;
    };
    return in_bytes_of_bits(parameter) && in_bytes_of_bits(entry.gradient);
}

Status OptimizerTable::take_parameters(OptimizerBody &body, const stw_optimizer_entry *entries,
                                       uint32_t n)
{
    std::vector<update::Entry> wanted;
    wanted.reserve(n);
    {
        MutexLock lock(dispatch_.mutex());
        std::vector<stw_tensor *> &now_held = body.held;
        grow_to_hold(now_held, now_held.size() + 2 * size_t{n});
    }
    std::vector<stw_tensor *> held;
    held.reserve(2 * size_t{n});
    std::set<uint32_t> shared_groups;
    uint64_t shared_hash = body.shared_hash;
    const auto *at = reinterpret_cast<const char *>(entries);
    for (uint32_t i = 0; i < n; ++i, at += entries[0].struct_size) {
        stw_optimizer_entry entry{};
        std::memcpy(&entry, at, std::min<size_t>(entries[0].struct_size, sizeof entry));
        update::Entry made;
        STW_TRY(make_entry(body, entry, &made));
        // Empty tensors, and on some ranks small ones, have no elements to update here.
        if (made.element_count > 0) wanted.push_back(made);
        held.push_back(entry.parameter);
        held.push_back(entry.gradient);
        if (!entry.parameter->sharding) continue;
        const uint64_t part[] = {entry.parameter_group, entry.element_begin, entry.element_count};
        shared_hash = collective::hash_bytes(
            collective::hash_name(shared_hash, entry.parameter->name), part, sizeof part);
        shared_groups.insert(entry.parameter_group);
    }
    if (!wanted.empty()) {
        STW_TRY(body.optimizer->add(wanted.data(), static_cast<uint32_t>(wanted.size())));
    }
    for (const update::Entry &entry : wanted) {
        const auto *parameter = static_cast<const stw_tensor *>(entry.handle);
        if (!body.durable) break;
        if (const uint64_t count = restored_.restored_count(body.name + "." + parameter->name)) {
            STW_TRY(body.optimizer->set_count(entry.parameter, count));
        }
    }
    body.shared_groups.merge(shared_groups);
    body.shared_hash = shared_hash;
    MutexLock lock(dispatch_.mutex());
    for (stw_tensor *tensor : held) {
        tensor->notes.holder = &body;
        body.held.push_back(tensor);
    }
    return {};
}

// Only states of the number `keep` and later ones, which were never used.
void OptimizerTable::forget_states(OptimizerBody &body, uint64_t keep, Commands &out)
{
    MutexLock lock(dispatch_.mutex());
    std::erase_if(body.states, [&](const auto &entry) STW_REQUIRES(runtime_lock) {
        if (entry.second.number < keep) return false;
        stw_tensor *state = entry.second.tensor;
        if (state->notes.restored) restored_.take_restored(state->name, false);
        registry_.unregister_tensor(state, out);
        return true;
    });
    sink_.forget_unused(out);
}

Status OptimizerTable::add_parameters(stw_optimizer *optimizer, const stw_optimizer_entry *entries,
                                      uint32_t n)
{
    OptimizerBody &body = body_of(optimizer);
    MutexLock changes(body.changes);
    const uint64_t states_before = body.states_made;
    Commands undone;  // the undo must not allocate
    undone.freed_packs.reserve(size_t{n} * (update::kStatesMax + 2));
    Status status;
    try {
        registry_.expect(uint64_t{n} * 4);
        status = take_parameters(body, entries, n);
    } catch (const std::bad_alloc &) {
        forget_states(body, states_before, undone);
        throw;
    }
    if (!status.ok()) forget_states(body, states_before, undone);
    return status;
}

Status OptimizerTable::set_hyper(stw_optimizer *optimizer, uint32_t group, const stw_hyper &hyper)
{
    return body_of(optimizer).optimizer->set_hyper(group, hyper);
}

Status OptimizerTable::optimizer_state(stw_optimizer *optimizer, stw_tensor *parameter,
                                       const char *state, stw_tensor **tensor_out)
{
    OptimizerBody &body = body_of(optimizer);
    MutexLock changes(body.changes);
    const std::string_view name = state;
    const bool is_part = name == kMasterLow || name == kMasterOpen;
    if (stw_tensor *owned = is_part ? nullptr : find_state(body, parameter, name)) {
        *tensor_out = owned;
        return {};
    }
    if (name == "master" && find_state(body, parameter, kMasterLow))
        return join_master(body, parameter, tensor_out);
    return Status::error(STW_ERROR_NOT_FOUND, "%s has no state '%.100s' here",
                         parameter_text(parameter->name).c_str(), state);
}

// From now on the parameter has a whole master, which the program may use like any tensor.
Status OptimizerTable::join_master(OptimizerBody &body, stw_tensor *parameter,
                                   stw_tensor **tensor_out)
{
    const uint64_t states_before = body.states_made;
    Commands undone;  // the undo must not allocate
    undone.freed_packs.reserve(1);
    residency::TensorId master = residency::kNone;
    STW_TRY(make_state(body, parameter, "master", {STW_F32}, residency::kNoPlace, &master));
    bool begun = false;
    const Status status =
        body.optimizer->join_master(parameter->id, master, dispatch_.timeout(0), &begun);
    if (!begun) {
        forget_states(body, states_before, undone);
        return sleepers_.tell_waiting(Status(status));
    }
    *tensor_out = find_state(body, parameter, "master");
    if (status.ok()) drop_parts(body, parameter);
    return {};  // who uses it waits for what is not there yet
}

void OptimizerTable::drop_parts(OptimizerBody &body, const stw_tensor *parameter)
{
    for (const char *name : {kMasterLow, kMasterOpen}) {
        const auto part = body.states.find({parameter->id, name});
        stw_tensor *tensor = part->second.tensor;
        if (!registry_.destroy_held(&tensor, 1, &body).ok()) continue;  // goes with the optimizer
        body.states.erase(part);
    }
}

Status OptimizerTable::kept_master(stw_optimizer *optimizer, stw_tensor *parameter,
                                   uint64_t timeout_ns, KeptMaster *kept_out)
{
    OptimizerBody &body = body_of(optimizer);
    MutexLock changes(body.changes);
    bool updated_here = false;
    STW_TRY(find_parameter(body, parameter, &updated_here));
    KeptMaster kept{find_state(body, parameter, "master"), find_state(body, parameter, kMasterLow),
                    find_state(body, parameter, kMasterOpen)};
    if (!kept.whole && !kept.low) {
        return Status::error(STW_ERROR_NOT_FOUND, "%s has no master here: it is in f32 itself",
                             parameter_text(parameter->name).c_str());
    }
    if (updated_here) {
        Result<bool> remade =
            body.optimizer->remakes_master(parameter->id, dispatch_.timeout(timeout_ns));
        if (!remade.ok()) return sleepers_.tell_waiting(std::move(remade.status()));
        kept.is_remade = remade.value();
    }
    *kept_out = kept;
    return {};
}

namespace {

// Empty where the text does not begin and end like this.
std::string_view between(std::string_view begin, std::string_view text, std::string_view end)
{
    const bool fits =
        text.size() > begin.size() + end.size() && text.starts_with(begin) && text.ends_with(end);
    return fits ? text.substr(begin.size(), text.size() - begin.size() - end.size()) : "";
}

}  // namespace

Status OptimizerTable::find_tensor(const char *name, stw_tensor **tensor_out)
{
    Status status = registry_.find_tensor(name, tensor_out);
    if (status.code() != STW_ERROR_NOT_FOUND) return status;
    std::vector<OptimizerBody *> all;
    {
        MutexLock lock(dispatch_.mutex());
        for (const auto &body : bodies) {
            if (body->handle) all.push_back(body.get());
        }
    }
    for (OptimizerBody *body : all) {
        MutexLock changes(body->changes);
        const std::string_view parameter = between(body->name + ".", name, ".master");
        const auto low = body->states.find({registry_.find_id(parameter), kMasterLow});
        if (low == body->states.end() || low->second.parameter->name != parameter) continue;
        return join_master(*body, low->second.parameter, tensor_out);
    }
    return status;
}

// `updated_here` is false for an empty parameter, and for a small one whose elements are all on
// other ranks.
Status OptimizerTable::find_parameter(const OptimizerBody &body, const stw_tensor *parameter,
                                      bool *updated_here) const
{
    *updated_here = body.optimizer->has(parameter->id);
    if (*updated_here) return {};
    MutexLock lock(dispatch_.mutex());
    const std::vector<stw_tensor *> &held = body.held;
    for (size_t i = 0; i < held.size(); i += 2) {
        if (held[i] == parameter) return {};
    }
    return Status::error(STW_ERROR_NOT_FOUND, "%s is no parameter of optimizer '%s'",
                         tensor_text(parameter->name).c_str(), body.name.c_str());
}

Status OptimizerTable::get_count(stw_optimizer *optimizer, stw_tensor *parameter,
                                 uint64_t *count_out)
{
    const OptimizerBody &body = body_of(optimizer);
    bool updated_here = false;
    STW_TRY(find_parameter(body, parameter, &updated_here));
    *count_out = 0;
    if (!updated_here) return {};
    Result<uint64_t> count = body.optimizer->count(parameter->id);
    if (!count.ok()) return std::move(count.status());
    *count_out = count.value();
    return {};
}

Status OptimizerTable::set_count(stw_optimizer *optimizer, stw_tensor *parameter, uint64_t count)
{
    OptimizerBody &body = body_of(optimizer);
    bool updated_here = false;
    STW_TRY(find_parameter(body, parameter, &updated_here));
    return updated_here ? body.optimizer->set_count(parameter->id, count) : Status();
}

void OptimizerTable::interrupted(residency::Instant at)
{
    if (machine_.pipeline) machine_.pipeline->interrupt(at);
}

// In the order of parameters, states go to the device while they and what is trained there fit
// into half of its budget; the other half is for activations and working room. Depends only on the
// order of calls.
PlaceId OptimizerTable::home_of_states(const OptimizerBody &body, uint64_t bytes)
{
    const memory::Tier &nearest = machine_.tiers[machine_.tiers.nearest()];
    const bool is_ours = nearest.updates_with(body.algorithm);
    if (placement_.preset != STW_PRESET_AUTO || body.has_policy || machine_.ranks || !is_ours)
        return residency::kNoPlace;
    MutexLock lock(dispatch_.mutex());
    const uint64_t half =
        dispatch_.core.budget_blocks(machine_.tiers.nearest()) / 2 * machine_.block_bytes;
    return placement_.trained_bytes + bytes <= half ? machine_.tiers.nearest()
                                                    : PlaceId{residency::kNoPlace};
}

}  // namespace stepwell
