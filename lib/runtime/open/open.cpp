// SPDX-License-Identifier: Apache-2.0
// Opening: budgets into blocks, drivers, tiers, store, engine, threads. A failure leaves nothing
// open and no new file.
#include "lib/collective/bucket.h"
#include "lib/memory/driver_error.h"
#include "lib/memory/scratch.h"
#include "lib/residency/core.h"
#include "lib/runtime/dispatch/waiter.h"
#include "lib/runtime/group/processors.h"
#include "lib/runtime/group/state.h"
#include "lib/runtime/open/runtime.h"
#include "lib/runtime/planning/pause.h"
#include "lib/runtime/recording/phase.h"
#include "lib/runtime/updates/body.h"
#include "lib/runtime/victims/scoring.h"
#include "lib/support/assert.h"
#include "lib/support/limits.h"

#include "drivers/registry.h"
#include "lib/transfer/stream_ordering.h"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cinttypes>
#include <cstring>
#include <ctime>
#include <new>
#include <utility>

namespace stepwell {
namespace {

using residency::PlaceId;
using residency::Tier;

constexpr uint32_t kStagingBlocks = 4;  // in each direction
constexpr uint64_t kAddressBytes = 1ull << 42;

std::atomic<uint64_t> serials{0};

uint64_t block_bytes_of(const stw_runtime_options &options)
{
    return options.block_bytes ? options.block_bytes : uint64_t{STW_BLOCK_2M};
}

// `option` names the option in errors.
template <class Ops>
Status find_driver(const char *driver, const std::string &option, const Ops **ops_out)
{
    stw_driver_error error = STW_DRIVER_ERROR_INIT;
    const stw_status code = drivers::find_driver(driver, ops_out, &error);
    return code == STW_OK ? Status() : memory::from_driver(code, error, option.c_str());
}

const char *driver_of(const stw_device_options &device)
{
    return device.driver ? device.driver : "cpu";
}

// Before the core is made, which needs to know what each device can do. A tier without a budget is
// not opened, so its driver is not looked up.
Status find_device_drivers(const stw_runtime_options &options)
{
    for (uint32_t i = 0; i < options.device_count; ++i) {
        const stw_memory_ops *ops = nullptr;
        if (options.devices[i].budget_bytes == 0) continue;
        STW_TRY(
            find_driver(driver_of(options.devices[i]), format_text("devices[%u].driver", i), &ops));
    }
    return {};
}

// True if the driver is not found: the device then has no budget.
bool device_can(const stw_device_options &device, uint64_t capability)
{
    const stw_memory_ops *ops = nullptr;
    return drivers::find_driver(driver_of(device), &ops, nullptr) != STW_OK ||
           (ops->capabilities & capability) != 0;
}

// For drivers whose devices differ. False on an error, which the open that follows reports.
bool shares_host(const stw_runtime_options &options, uint32_t index)
{
    const stw_device_options &device = options.devices[index];
    const stw_memory_ops *ops = nullptr;
    const uint64_t block = block_bytes_of(options);
    if (device.budget_bytes == 0 || drivers::find_driver(driver_of(device), &ops, nullptr) < 0 ||
        (ops->capabilities & STW_MEMORY_MAY_SHARE) == 0) {
        return false;
    }
    stw_memory_options asked{};
    asked.struct_size = sizeof asked;
    asked.ordinal = device.ordinal;
    asked.bytes = device.budget_bytes / block * block;
    asked.block_bytes = static_cast<uint32_t>(block);
    asked.options = device.driver_options;
    uint32_t shares = 0;
    return ops->shares_host(&asked, &shares) == STW_OK && shares != 0;
}

// Staging is needed if storage cannot reach a device's memory directly.
uint32_t staging_blocks_of(const stw_runtime_options &options)
{
    if (options.nvme_count == 0) return 0;
    for (uint32_t i = 0; i < options.device_count; ++i) {
        const stw_device_options &device = options.devices[i];
        if (device.budget_bytes > 0 && !device_can(device, STW_MEMORY_HOST_ACCESS) &&
            !shares_host(options, i)) {
            return 2 * kStagingBlocks;
        }
    }
    return 0;
}

uint64_t scratch_blocks_of(const stw_runtime_options &options)
{
    const uint64_t block = block_bytes_of(options);
    return options.host_scratch_bytes / block + (options.host_scratch_bytes % block != 0);
}

// `stored`: blocks of the nvme tier; `copies`: of each durable block.
residency::Config config_of(const stw_runtime_options &options, uint64_t whole_blocks,
                            uint64_t bucket_blocks, uint64_t stored, uint32_t copies)
{
    residency::Config config;
    config.block_bytes = block_bytes_of(options);
    config.tensors_max = options.tensors_max ? options.tensors_max : 131072;
    const uint64_t block = config.block_bytes;
    for (uint32_t i = 0; i < options.device_count; ++i) {
        residency::PlaceConfig place;
        place.tier = Tier::kDevice;
        place.device = i;
        place.blocks = static_cast<uint32_t>(options.devices[i].budget_bytes / block);
        place.cpu_access = device_can(options.devices[i], STW_MEMORY_HOST_ACCESS);
        place.direct = !place.cpu_access && shares_host(options, i);
        place.maps = device_can(options.devices[i], STW_MEMORY_CAN_MAP);
        config.places.push_back(place);
    }
    // Gathered tensors are at the nearest tier, where the program computes.
    uint64_t wholes = whole_blocks;
    for (residency::PlaceConfig &place : config.places) {
        if (place.blocks == 0) continue;
        place.whole_blocks = static_cast<uint32_t>(std::exchange(wholes, 0));
    }
    residency::PlaceConfig host;
    const uint64_t kept = staging_blocks_of(options) + scratch_blocks_of(options);
    const uint64_t blocks = options.host_bytes / block;
    host.blocks = static_cast<uint32_t>(blocks > kept ? blocks - kept : 0);
    host.aside_bytes = kept * block;
    host.cpu_access = true;
    host.whole_blocks = static_cast<uint32_t>(wholes);
    config.places.push_back(host);
    // The bucket takes the end of the nearest tier, if that is a device whose memory collectives
    // use.
    for (residency::PlaceConfig &place : config.places) {
        if (place.blocks == 0) continue;
        place.blocks -= std::min(place.blocks, static_cast<uint32_t>(bucket_blocks));
        place.aside_bytes += bucket_blocks * block;
        break;
    }
    residency::PlaceConfig nvme;
    nvme.tier = Tier::kNvme;
    nvme.blocks = static_cast<uint32_t>(std::min<uint64_t>(stored, residency::kNone - 1));
    config.durable_copies = copies;
    config.room_farthest = (options.flags & STW_RUNTIME_ROOM_FARTHEST) != 0;
    config.places.push_back(nvme);
    return config;
}

// For the tensors of one device. Each has room reserved in some tier, so their sum is within the
// budgets; first fit needs at most that sum times the binary digits of the largest tensor (Robson
// 1977). Past 4 TiB twice the sum must do: a process has 128.
uint64_t address_bytes_of(const residency::Config &config)
{
    uint64_t blocks = 0;
    for (const residency::PlaceConfig &place : config.places) blocks += place.blocks;
    const uint64_t spread = blocks * (1 + static_cast<uint64_t>(std::bit_width(blocks)));
    return std::min(spread, std::max(kAddressBytes / config.block_bytes, 2 * blocks)) *
           config.block_bytes;
}

// A failing disk may fail every block: logs at most this many lines of a topic a second, and
// counts the others.
observe::LogOptions log_options(const stw_runtime_options &options, observe::LogRelay *relay)
{
    observe::LogOptions log;
    log.callback = relay ? observe::LogRelay::line : options.log;
    log.user = relay ? relay : options.log_user;
    log.level = options.log_level ? options.log_level : uint32_t{STW_LOG_WARNING};
    log.lines_per_window = 100;
    log.now_ns = [](void *) -> uint64_t {
        timespec time{};
        clock_gettime(CLOCK_MONOTONIC, &time);
        return static_cast<uint64_t>(time.tv_sec) * 1000000000ull +
               static_cast<uint64_t>(time.tv_nsec);
    };
    return log;
}

// Before tables are made, which have an entry for each block. The driver limits the part of the
// machine's memory that a tier can have.
Status check_size(const std::string &what, uint64_t bytes, uint64_t block, uint64_t most)
{
    if (bytes > 0 && bytes < block) {
        return Status::error(STW_ERROR_INVALID,
                             "%s is %" PRIu64 " bytes, less than one block of %s; give a block at "
                             "least, or 0 for no such tier",
                             what.c_str(), bytes, bytes_text(block).c_str());
    }
    if (bytes <= most) return {};
    Status status =
        Status::error(STW_ERROR_MEMORY,
                      "%s is %" PRIu64 " bytes (%s), and this machine has %s of memory for it; "
                      "state how much of that the tier may take",
                      what.c_str(), bytes, bytes_text(bytes).c_str(), bytes_text(most).c_str());
    status.mutable_detail().needed_bytes = bytes;
    status.mutable_detail().free_bytes = most;
    return status;
}

Status check_sizes(const stw_runtime_options &options)
{
    constexpr uint64_t kAddressable = uint64_t{1} << 47;  // by one process, on any device
    const auto own = static_cast<uint64_t>(sysconf(_SC_PHYS_PAGES)) *
                     static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    const uint64_t block = block_bytes_of(options);
    STW_TRY(check_size("options.host_bytes", options.host_bytes, block, own));
    for (uint32_t i = 0; i < options.device_count; ++i) {
        const bool elsewhere = device_can(options.devices[i], STW_MEMORY_STREAMS);
        STW_TRY(check_size("options.devices[" + std::to_string(i) + "].budget_bytes",
                           options.devices[i].budget_bytes, block, elsewhere ? kAddressable : own));
    }
    return {};
}

// A group serves one runtime, whose calls order its collectives.
class GroupHold {
public:
    ~GroupHold()
    {
        if (group_) group_->body->give();
    }
    Status take(stw_group *group)
    {
        if (!group || !group->body) return {};
        if (!group->body->take()) {
            return Status::error(STW_ERROR_BUSY,
                                 "the group has a runtime already; split it, and open each runtime "
                                 "on a group of its own");
        }
        group_ = group;
        return {};
    }
    stw_group *keep() { return std::exchange(group_, nullptr); }

private:
    stw_group *group_ = nullptr;
};

}  // namespace

// Blocks of the nearest tier for the bucket of small tensors (what a rank contributes, and the
// sums), if that tier is a device whose memory the group's engine takes.
uint64_t Runtime::bucket_blocks(const stw_runtime_options &options)
{
    const stw_group *group = options.group;
    if (!group || !group->body || group->body->size() == 1 || !group->body->stream()) return 0;
    const uint64_t block = block_bytes_of(options);
    for (uint32_t i = 0; i < options.device_count; ++i) {
        if (options.devices[i].budget_bytes == 0) continue;
        if (!device_can(options.devices[i], STW_MEMORY_STREAMS)) return 0;
        return (2 * collective::kBucketBytes + block - 1) / block;
    }
    return 0;
}

residency::Config Runtime::tiers_config(const stw_runtime_options &options, uint64_t whole_blocks,
                                        uint64_t bucket_blocks)
{
    uint64_t stored = 0;
    for (uint32_t i = 0; i < options.nvme_count; ++i)
        stored += DurableOpen::store_blocks(options, i);
    const uint32_t copies = options.store_name ? 1 + DurableOpen::generations_kept(options) : 1;
    return config_of(options, whole_blocks, bucket_blocks, stored, copies);
}

Runtime::Runtime(const stw_runtime_options &options, stw_runtime *handle, uint64_t whole_blocks)
    : log_relay_(options.log && (options.flags & STW_RUNTIME_FAULT_IN) != 0
                     ? std::make_unique<observe::LogRelay>(options.log, options.log_user)
                     : nullptr),
      machine(options.name ? options.name : program_invocation_short_name, handle,
              block_bytes_of(options), options.device_count),
      view_table(options.views_max ? options.views_max : 65536, serials.fetch_add(1) + 1),
      dispatch(tiers_config(options, whole_blocks, bucket_blocks(options)), addresses.sink,
               log_options(options, log_relay_.get()),
               options.timeout_ns ? options.timeout_ns : kTimeoutDefaultNs),
      tensors{
          .placement{ground, options.preset},
          .buffers{ground, addresses.table, addresses.metadata, tensors.placement, addresses.sink},
          .zeros{ground},
          .registry{ground, addresses.table, addresses.metadata, addresses.sink, restored,
                    tensors.placement}},
      calls{.fetches{ground, addresses.table, tensors.placement, tensors.buffers, tensors.zeros,
                     tensors.registry, views.streams, views.sleepers, views.hits, copies.snapshots,
                     planning.prefetcher, ranks.wholes},
            .operations{ground, tensors.buffers, views.streams, views.sleepers, copies.snapshots,
                        ranks.collectives, ranks.wholes, calls.fetches,
                        options.operations_max ? options.operations_max : 4096},
            .reductions{ground, tensors.placement, tensors.buffers, tensors.zeros, views.ends,
                        views.sleepers, updates.pieces, copies.chunks, copies.snapshots,
                        ranks.collectives, ranks.sums, calls.fetches},
            .steps{ground, tensors.placement, views.streams, views.ends, updates.pieces,
                   planning.plans, planning.prefetcher, victims, ranks.wholes, meters, optimizers},
            .faults{ground, addresses.table, views.ends, views.sleepers, calls.fetches}}
{
    add_hooks();
    recorder.enabled = (options.flags & STW_RUNTIME_NO_PLAN) == 0;
    if (recorder.enabled) dispatch.core.set_victim_policy(&recorder.planned);
    machine.services.struct_size = sizeof machine.services;
    machine.services.abi = STW_DRIVER_ABI;
    machine.services.user = this;
    machine.services.now_ns = [](void *user) {
        return static_cast<Runtime *>(user)->dispatch.now();
    };
    machine.services.log = [](void *user, uint32_t level, const char *topic, const char *line) {
        static_cast<Runtime *>(user)->dispatch.log.line(level, topic, line);
    };
    machine.opened_ns = dispatch.now();
    tensors.placement.update_blocks.assign(options.device_count + 2, 0);
    for (uint32_t i = 0; i < options.device_count; ++i)
        tensors.placement.update_blocks[i] = options.devices[i].budget_bytes / machine.block_bytes;
}

// The order of add() is the order in which hooks handle an event.
void Runtime::add_hooks()
{
    dispatch.add(calls.fetches);  // before the answers: it may ask again with a private buffer
    dispatch.add_answers();
    dispatch.add(planning.prefetcher);
    dispatch.add(victims);
    dispatch.add(calls.steps);
    dispatch.add(views.sleepers);
    dispatch.add(copies.snapshots);
    dispatch.add(optimizers);
    dispatch.add(calls.faults);
    dispatch.add(report.page);
    addresses.metadata.add(planning.prefetcher);
    addresses.metadata.add(victims);
    addresses.metadata.add(calls.steps);
    addresses.metadata.set_plans(planning.plans);
    addresses.sink.add(restored);
}

Runtime::~Runtime()
{
    if (machine.touches) machine.touches->close();
    machine.scratch.reset();
    if (group_) group_->body->give();
    if (replica_group_) replica_group_->body->give();
    machine.pins.reset();
    addresses.table.close();
    machine.tiers.close();
}

Result<Runtime *> Runtime::open(const stw_runtime_options &asked, stw_runtime *handle)
{
    watch_forks();
    stw_runtime_options options = asked;
    std::vector<stw_nvme_options> nvme(asked.nvme, asked.nvme + asked.nvme_count);
    options.nvme = nvme.data();
    STW_TRY(check_sizes(options));
    STW_TRY(find_device_drivers(options));
    GroupHold group;
    GroupHold replicas;
    STW_TRY(group.take(options.group));
    STW_TRY(replicas.take(options.replica_group));
    DurableOpen::find_budgets(options, nvme.data());
    uint64_t whole_blocks = 0;
    STW_TRY(agree_wholes(options, &whole_blocks));
    std::unique_ptr<Runtime> runtime(new Runtime(options, handle, whole_blocks));
    Status status;
    try {
        status = runtime->join_ranks(options, whole_blocks);
        if (status.ok()) status = runtime->open_tiers(options);
        if (status.ok() && runtime->machine.ranks) status = runtime->ranks.collectives.open_ranks();
    } catch (const std::bad_alloc &) {
        status = Status::error(STW_ERROR_MEMORY, "no memory for the tables of the runtime '%s': %s",
                               runtime->machine.name.c_str(), limits_text().text);
    }
    if (!status.ok()) {
        (void)runtime->close_tiers(runtime->dispatch.timeout(0));
        return status;
    }
    runtime->group_ = group.keep();
    runtime->replica_group_ = replicas.keep();
    return runtime.release();
}

Status Runtime::open_memory(PlaceId place, const char *driver, memory::TierOptions asked)
{
    STW_TRY(find_driver(driver, "the driver of a tier", &asked.ops));
    asked.block_bytes = machine.block_bytes;
    return machine.tiers.opening(place).open(machine.services, asked, dispatch.log);
}

Status Runtime::open_tiers(const stw_runtime_options &options)
{
    for (uint32_t i = 0; i < options.device_count; ++i) {
        memory::Tier &tier = machine.tiers.opening(static_cast<PlaceId>(i));
        tier.ordinal = options.devices[i].ordinal;
        tier.direct = shares_host(options, i);
        const char *text = options.devices[i].driver_options;
        tier.options = text ? text : "";
    }
    machine.staging_blocks = staging_blocks_of(options);
    machine.staging_bytes = machine.staging_blocks * machine.block_bytes;
    const uint64_t host_blocks = options.host_bytes / machine.block_bytes;
    if (machine.staging_blocks > 0 && host_blocks <= machine.staging_blocks) {
        return Status::error(STW_ERROR_INVALID,
                             "host_bytes is %s, but a device that storage cannot reach needs %s of "
                             "staging and at least one block more in the host tier",
                             bytes_text(options.host_bytes).c_str(),
                             bytes_text(machine.staging_bytes).c_str());
    }
    const uint64_t scratch_blocks = scratch_blocks_of(options);
    if (scratch_blocks > 0 && host_blocks <= machine.staging_blocks + scratch_blocks) {
        return Status::error(
            STW_ERROR_INVALID,
            "host_bytes is %s, but host_scratch_bytes keeps %s of it, staging %s, "
            "and the host tier needs at least one block of %s more",
            bytes_text(options.host_bytes).c_str(), bytes_text(options.host_scratch_bytes).c_str(),
            bytes_text(machine.staging_bytes).c_str(), bytes_text(machine.block_bytes).c_str());
    }
    if (log_relay_) STW_TRY(log_relay_->start());
    // The store before the memory: a full disk is reported before gigabytes are touched.
    profile::Tuning tuning(options, dispatch.log, machine.services);
    std::unique_ptr<store::Store> store;
    STW_TRY(open_store(options, tuning, &store));
    if (store) machine.tiers.add_nvme();
    STW_TRY(open_memories(options));
    STW_TRY(open_touches(options));
    machine.open_scratch(scratch_blocks * machine.block_bytes);
    pin_host_memory();
    Result<std::unique_ptr<observe::Timeline>> timeline = observe::Timeline::open();
    if (!timeline.ok()) return std::move(timeline.status());
    machine.timeline = timeline.take();
    {
        MutexLock lock(dispatch.mutex());
        calls.steps.history.open();
    }
    STW_TRY(open_engine(options, std::move(store)));
    planning.plans.expect_bandwidths(tuning);
    report.reporter.profile = tuning.take_report();
    STW_TRY(addresses.metadata.open_metadata(options));
    STW_TRY(optimizers.open_update(options.thread_count));
    report.page.open();
    return dispatch.start_timer();
}

Status Runtime::open_devices(const stw_runtime_options &options, bool streams)
{
    for (uint32_t i = 0; i < options.device_count; ++i) {
        const uint64_t blocks = options.devices[i].budget_bytes / machine.block_bytes;
        if (blocks == 0 || device_can(options.devices[i], STW_MEMORY_STREAMS) != streams) continue;
        memory::TierOptions asked;
        asked.bytes = blocks * machine.block_bytes;
        asked.address_bytes = address_bytes_of(tiers_config(options, 0, 0));
        STW_TRY(open_memory(static_cast<PlaceId>(i), driver_of(options.devices[i]), asked));
    }
    return {};
}

// Devices with streams first, as they determine the NUMA node of the host's memory; then the host,
// which reserves no addresses, so a refusal by it costs little.
Status Runtime::open_memories(const stw_runtime_options &options)
{
    const uint64_t host_blocks = options.host_bytes / machine.block_bytes;
    STW_TRY(open_devices(options, true));
    if (host_blocks > 0) {
        memory::TierOptions asked;
        asked.bytes = host_blocks * machine.block_bytes;
        asked.near_node = machine.tiers.near_node();
        STW_TRY(open_memory(machine.tiers.host(), "host", asked));
    }
    STW_TRY(open_devices(options, false));
    machine.tiers.opened();
    if (!machine.tiers[machine.tiers.nearest()].memory) {
        return Status::error(STW_ERROR_INVALID,
                             "neither a device nor the host tier has a budget of one block (%s); "
                             "set host_bytes or a device's budget_bytes",
                             bytes_text(machine.block_bytes).c_str());
    }
    return {};
}

Status Runtime::store_options(const stw_runtime_options &options, const profile::Tuning &tuning,
                              store::StoreOptions *store_out)
{
    store::StoreOptions &store = *store_out;
    store.services = &machine.services;
    store.block_bytes = machine.block_bytes;
    for (uint32_t i = 0; i < options.nvme_count; ++i) {
        const stw_nvme_options &nvme = options.nvme[i];
        store::PathOptions path;
        path.path = nvme.path;
        path.driver_options = nvme.driver_options ? nvme.driver_options : "";
        path.blocks = DurableOpen::store_blocks(options, i);
        if (nvme.budget_bytes == 0 && (options.flags & STW_RUNTIME_RESUME) != 0) {
            return Status::error(STW_ERROR_NOT_FOUND,
                                 "nvme[%u] has no budget, and '%s' has no file of the store '%s' "
                                 "that says what it was made with; set budget_bytes",
                                 i, nvme.path, options.store_name);
        }
        if (path.blocks == 0) {
            return Status::error(STW_ERROR_INVALID,
                                 "nvme[%u] ('%s') has a budget of %s, less than a superblock%s and "
                                 "one block of %s",
                                 i, nvme.path, bytes_text(nvme.budget_bytes).c_str(),
                                 options.store_name && i == 0 ? ", the generations" : "",
                                 bytes_text(machine.block_bytes).c_str());
        }
        store.blocks += path.blocks;
        path.queue_depth = nvme.queue_depth;
        STW_TRY(find_driver(nvme.driver ? nvme.driver : tuning.driver(i),
                            format_text("nvme[%u].driver", i), &path.ops));
        // If aio cannot work (O_DIRECT refused, no slots left), posix can; a driver that the
        // program named is not replaced.
        if (!nvme.driver) path.fallback = drivers::storage_driver("posix");
        tuning.choose(i, path);
        store.paths.push_back(std::move(path));
    }
    return {};
}

Status Runtime::open_store(const stw_runtime_options &options, profile::Tuning &tuning,
                           std::unique_ptr<store::Store> *store_out)
{
    Status status = tuning.find();
    store::StoreOptions store;
    if (status.ok()) status = store_options(options, tuning, &store);
    if (options.store_name) {
        STW_TRY(durable.opening.open_durable(options, store, std::move(status), store_out));
    } else {
        STW_TRY(std::move(status));
        if (options.nvme_count == 0) return {};
        Result<std::unique_ptr<store::Store>> opened = store::Store::open(store);
        if (!opened.ok()) return std::move(opened.status());
        *store_out = opened.take();
    }
    tuning.settle(**store_out);
    for (uint32_t i = 0; i < options.nvme_count; ++i) {
        const std::string &remark = (*store_out)->remark(i);
        if (remark.empty()) continue;
        dispatch.log.print(STW_LOG_WARNING, "store", "'%s': %s", options.nvme[i].path,
                           remark.c_str());
    }
    return {};
}

Status Runtime::open_engine(const stw_runtime_options &from, std::unique_ptr<store::Store> store)
{
    transfer::EngineOptions options;
    share_disks(from, &options);
    options.services = &machine.services;
    options.store = std::move(store);
    for (PlaceId place = 0; place <= machine.tiers.host(); ++place) {
        const memory::Tier &at = machine.tiers[place];
        const std::string name = at.kind == Tier::kHost ? std::string("the host tier")
                                                        : format_text("device %u", at.device);
        // a tier without a budget needs no staging
        const bool direct = at.cpu_access || !at.memory;
        options.memories.push_back({at.ops, at.memory, at.kind, direct, name, at.direct});
    }
    options.block_bytes = machine.block_bytes;
    if (machine.staging_blocks > 0) {
        const memory::Tier &host = machine.tiers[machine.tiers.host()];
        options.staging = host.base + (host.info().bytes - machine.staging_bytes);
        options.staging_read_blocks = machine.staging_blocks / 2;
        options.staging_write_blocks = machine.staging_blocks / 2;
    }
    options.done = addresses.sink.engine_done;
    options.done_user = &addresses.sink;
    options.span = addresses.sink.engine_span;
    options.span_user = &addresses.sink;
    open_ordering();
    options.order = machine.ordering.get();
    Result<std::unique_ptr<transfer::Engine>> opened = transfer::Engine::open(std::move(options));
    if (!opened.ok()) return std::move(opened.status());
    machine.engine = opened.take();
    return {};
}

Status Runtime::open_touches(const stw_runtime_options &options)
{
    if ((options.flags & STW_RUNTIME_FAULT_IN) == 0) return {};
    if (options.group || options.replica_group) {
        return Status::error(STW_ERROR_UNSUPPORTED,
                             "options.flags has STW_RUNTIME_FAULT_IN, and options.group is given: "
                             "a fault on one rank cannot fetch what all ranks fetch together; "
                             "open the runtime without one of them");
    }
    const bool any =
        std::any_of(machine.tiers.begin(), machine.tiers.end(), [](const memory::Tier &place) {
            return place.memory && (place.ops->capabilities & STW_MEMORY_CAN_PROTECT) != 0;
        });
    if (!any) {
        return Status::error(STW_ERROR_UNSUPPORTED,
                             "options.flags has STW_RUNTIME_FAULT_IN, and no device tier has "
                             "addresses whose access can be limited; use the driver cpu, or leave "
                             "the flag out");
    }
    machine.touches = std::make_unique<Touches>(dispatch, calls.faults);
    STW_TRY(machine.touches->open());
    const MutexLock lock(dispatch.mutex());
    dispatch.core.set_aliases(machine.touches.get());
    return {};
}

// So that copies between the host tier and a device with streams need no bounce buffer.
void Runtime::pin_host_memory()
{
    const memory::Tier &host = machine.tiers[machine.tiers.host()];
    if (!host.memory) return;
    memory::HostPins::Options options;
    for (const memory::Tier &place : machine.tiers)
        if (place.streams) options.devices.push_back({place.ops, place.memory, place.device});
    if (options.devices.empty()) return;
    options.base = host.base;
    options.bytes = host.info().bytes;
    options.block_bytes = machine.block_bytes;
    options.staging_bytes = machine.staging_bytes;
    options.scratch_bytes = machine.scratch ? machine.scratch->usage().bytes : 0;
    options.log = &dispatch.log;
    options.now_ns = [this] { return dispatch.now(); };
    machine.pins = std::make_unique<memory::HostPins>(std::move(options));
}

// The order of copies and streams, and its questions to the core.
void Runtime::open_ordering()
{
    transfer::StreamOrdering::Options options;
    options.tiers = &machine.tiers;
    options.pins = &machine.pins;
    options.log = &dispatch.log;
    options.ordered = [this](residency::TransferId transfer) {
        dispatch.act([&](Core &core, Commands &out)
                         STW_REQUIRES(runtime_lock) { core.transfer_ordered(transfer, out); });
    };
    options.run_of = [this](const residency::Transfer &transfer) {
        const MutexLock lock(dispatch.mutex());
        return dispatch.core.run_of(transfer.block, transfer.to);
    };
    machine.ordering = std::make_unique<transfer::StreamOrdering>(std::move(options));
}

}  // namespace stepwell
