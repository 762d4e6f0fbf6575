// SPDX-License-Identifier: Apache-2.0
// Opening and closing: budgets into blocks, tiers behind their drivers, store, engine, threads.
// What fails half way leaves nothing open and no file behind.
#include "lib/collective/bucket.h"
#include "lib/memory/driver_error.h"
#include "lib/runtime/optimizers.h"
#include "lib/runtime/phases.h"
#include "lib/runtime/ranks.h"
#include "lib/runtime/runtime.h"
#include "lib/runtime/scoring.h"
#include "lib/support/assert.h"

#include "drivers/registry.h"

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

constexpr uint32_t kStagingBlocks = 4;  // per direction
constexpr uint64_t kAddressBytes = 1ull << 42;

std::atomic<uint64_t> serials{0};

uint64_t block_bytes_of(const stw_runtime_options &options)
{
    return options.block_bytes ? options.block_bytes : uint64_t{STW_BLOCK_2M};
}

// `option`: where the driver was named.
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

// Before anything is made: the core is told what each device can do. A tier without a budget is not
// opened, and its driver not asked for.
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

// One that is not found is absent: its tier has no budget.
bool device_can(const stw_device_options &device, uint64_t capability)
{
    const stw_memory_ops *ops = nullptr;
    return drivers::find_driver(driver_of(device), &ops, nullptr) != STW_OK ||
           (ops->capabilities & capability) != 0;
}

// Of drivers whose devices differ. What cannot be told is told by the open that follows.
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

// Rings are needed where storage cannot reach a device's memory by itself.
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

// `stored`: blocks of the nvme tier; `copies`: of what is durable.
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
    // Wholes are at the nearest tier, where the program computes.
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
    // The end of the nearest tier, where that is a device whose memory collectives work on.
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
    config.places.push_back(nvme);
    return config;
}

// For the tensors of one device. Each has its room promised in some tier, so together they are
// never larger than the budgets; and first fit spreads them over no more than that room times the
// binary digits of the largest (Robson 1977). Past 4 TiB twice the room must do: a process has 128.
uint64_t address_bytes_of(const residency::Config &config)
{
    uint64_t blocks = 0;
    for (const residency::PlaceConfig &place : config.places) blocks += place.blocks;
    const uint64_t spread = blocks * (1 + static_cast<uint64_t>(std::bit_width(blocks)));
    return std::min(spread, std::max(kAddressBytes / config.block_bytes, 2 * blocks)) *
           config.block_bytes;
}

// A failing disk may fail every block: so many lines of a topic in a second, the rest is counted.
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

// Before tables are made, which have an entry for each block. How much of a machine's memory a tier
// can have is for its driver to say.
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
    constexpr uint64_t kAddressable = uint64_t{1} << 47;  // of one process, whatever a device has
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

// A group has one runtime, whose calls are the order of its collectives.
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

// Of the nearest tier's budget, where that is a device whose memory the group's engine takes: the
// bucket of small tensors, what ranks give and the sums of that.
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
    for (uint32_t i = 0; i < options.nvme_count; ++i) stored += store_blocks(options, i);
    const uint32_t copies = options.store_name ? 1 + generations_kept(options) : 1;
    return config_of(options, whole_blocks, bucket_blocks, stored, copies);
}

Runtime::Runtime(const stw_runtime_options &options, stw_runtime *handle, uint64_t whole_blocks)
    : handle_(handle),
      serial_(serials.fetch_add(1) + 1),
      name_(options.name ? options.name : program_invocation_short_name),
      block_bytes_(block_bytes_of(options)),
      preset_(options.preset),
      operations_max_(options.operations_max ? options.operations_max : 4096),
      log_relay_(options.log && (options.flags & STW_RUNTIME_FAULT_IN) != 0
                     ? std::make_unique<observe::LogRelay>(options.log, options.log_user)
                     : nullptr),
      tiers_(options.device_count),
      dispatch_(tiers_config(options, whole_blocks, bucket_blocks(options)), *this,
                log_options(options, log_relay_.get()),
                options.timeout_ns ? options.timeout_ns : kTimeoutDefaultNs),
      views_(options.views_max ? options.views_max : 65536, serial_)
{
    dispatch_.add(*this);
    dispatch_.add_answers();
    plans_ = (options.flags & STW_RUNTIME_NO_PLAN) == 0;
    if (plans_) dispatch_.core.set_victim_policy(&planned_);
    services_.struct_size = sizeof services_;
    services_.abi = STW_DRIVER_ABI;
    services_.user = this;
    services_.now_ns = [](void *user) { return static_cast<Runtime *>(user)->dispatch_.now(); };
    services_.log = [](void *user, uint32_t level, const char *topic, const char *line) {
        static_cast<Runtime *>(user)->dispatch_.log.line(level, topic, line);
    };
    opened_ns_ = dispatch_.now();
    update_blocks_.assign(options.device_count + 2, 0);
    for (uint32_t i = 0; i < options.device_count; ++i)
        update_blocks_[i] = options.devices[i].budget_bytes / block_bytes_;
}

Runtime::~Runtime()
{
    if (touches_) touches_->close();
    scratch_.reset();
    if (group_) group_->body->give();
    if (replica_group_) replica_group_->body->give();
    pins_.reset();
    for (PackAddresses &pack : pack_addresses_) {
        for (const auto &shown : pack.shown) {
            if (shown) shown->leave();
        }
    }
    pack_addresses_.clear();
    tiers_.close();
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
    find_budgets(options, nvme.data());
    uint64_t whole_blocks = 0;
    STW_TRY(agree_wholes(options, &whole_blocks));
    std::unique_ptr<Runtime> runtime(new Runtime(options, handle, whole_blocks));
    Status status;
    try {
        status = runtime->join_ranks(options, whole_blocks);
        if (status.ok()) status = runtime->open_tiers(options);
        if (status.ok()) status = runtime->open_ranks();
    } catch (const std::bad_alloc &) {
        status = Status::error(STW_ERROR_MEMORY, "no memory for the tables of the runtime '%s'",
                               runtime->name_.c_str());
    }
    if (!status.ok()) {
        (void)runtime->close_tiers(runtime->timeout(0));
        return status;
    }
    runtime->group_ = group.keep();
    runtime->replica_group_ = replicas.keep();
    return runtime.release();
}

Status Runtime::open_memory(PlaceId place, const char *driver, memory::TierOptions asked)
{
    STW_TRY(find_driver(driver, "the driver of a tier", &asked.ops));
    asked.block_bytes = block_bytes_;
    return tiers_.opening(place).open(services_, asked, dispatch_.log);
}

Status Runtime::open_tiers(const stw_runtime_options &options)
{
    for (uint32_t i = 0; i < options.device_count; ++i) {
        memory::Tier &tier = tiers_.opening(static_cast<PlaceId>(i));
        tier.ordinal = options.devices[i].ordinal;
        tier.direct = shares_host(options, i);
        const char *text = options.devices[i].driver_options;
        tier.options = text ? text : "";
    }
    staging_blocks_ = staging_blocks_of(options);
    staging_bytes_ = staging_blocks_ * block_bytes_;
    const uint64_t host_blocks = options.host_bytes / block_bytes_;
    if (staging_blocks_ > 0 && host_blocks <= staging_blocks_) {
        return Status::error(STW_ERROR_INVALID,
                             "host_bytes is %s, but a device that storage cannot reach needs %s of "
                             "staging and at least one block more in the host tier",
                             bytes_text(options.host_bytes).c_str(),
                             bytes_text(staging_bytes_).c_str());
    }
    const uint64_t scratch_blocks = scratch_blocks_of(options);
    if (scratch_blocks > 0 && host_blocks <= staging_blocks_ + scratch_blocks) {
        return Status::error(STW_ERROR_INVALID,
                             "host_bytes is %s, but host_scratch_bytes keeps %s of it, staging %s, "
                             "and the host tier needs at least one block of %s more",
                             bytes_text(options.host_bytes).c_str(),
                             bytes_text(options.host_scratch_bytes).c_str(),
                             bytes_text(staging_bytes_).c_str(), bytes_text(block_bytes_).c_str());
    }
    if (log_relay_) STW_TRY(log_relay_->start());
    // The store before the memory: a full disk is told before gigabytes were touched.
    profile::Tuning tuning(options, dispatch_.log, services_);
    std::unique_ptr<store::Store> store;
    STW_TRY(open_store(options, tuning, &store));
    if (store) tiers_.add_nvme();
    STW_TRY(open_memories(options));
    STW_TRY(open_touches(options));
    open_scratch(scratch_blocks * block_bytes_);
    pin_host_memory();
    Result<std::unique_ptr<observe::Timeline>> timeline = observe::Timeline::open();
    if (!timeline.ok()) return std::move(timeline.status());
    timeline_ = timeline.take();
    {
        MutexLock lock(dispatch_.mutex());
        steps_.open();
    }
    STW_TRY(open_engine(options, std::move(store)));
    expect_bandwidths(tuning);
    profile_ = tuning.take_report();
    STW_TRY(open_metadata(options));
    STW_TRY(open_update(options.thread_count));
    open_stats();
    return dispatch_.start_timer();
}

Status Runtime::open_devices(const stw_runtime_options &options, bool streams)
{
    for (uint32_t i = 0; i < options.device_count; ++i) {
        const uint64_t blocks = options.devices[i].budget_bytes / block_bytes_;
        if (blocks == 0 || device_can(options.devices[i], STW_MEMORY_STREAMS) != streams) continue;
        memory::TierOptions asked;
        asked.bytes = blocks * block_bytes_;
        asked.address_bytes = address_bytes_of(tiers_config(options, 0, 0));
        STW_TRY(open_memory(static_cast<PlaceId>(i), driver_of(options.devices[i]), asked));
    }
    return {};
}

// First those that know where the host's memory should be, then the host: it reserves no addresses,
// so what it refuses has cost little.
Status Runtime::open_memories(const stw_runtime_options &options)
{
    const uint64_t host_blocks = options.host_bytes / block_bytes_;
    STW_TRY(open_devices(options, true));
    if (host_blocks > 0) {
        memory::TierOptions asked;
        asked.bytes = host_blocks * block_bytes_;
        asked.near_node = tiers_.near_node();
        STW_TRY(open_memory(tiers_.host(), "host", asked));
    }
    STW_TRY(open_devices(options, false));
    tiers_.opened();
    if (!tiers_[tiers_.nearest()].memory) {
        return Status::error(STW_ERROR_INVALID,
                             "neither a device nor the host tier has a budget of one block (%s); "
                             "set host_bytes or a device's budget_bytes",
                             bytes_text(block_bytes_).c_str());
    }
    return {};
}

Status Runtime::store_options(const stw_runtime_options &options, const profile::Tuning &tuning,
                              store::StoreOptions *store_out)
{
    store::StoreOptions &store = *store_out;
    store.services = &services_;
    store.block_bytes = block_bytes_;
    for (uint32_t i = 0; i < options.nvme_count; ++i) {
        const stw_nvme_options &nvme = options.nvme[i];
        store::PathOptions path;
        path.path = nvme.path;
        path.driver_options = nvme.driver_options ? nvme.driver_options : "";
        path.blocks = store_blocks(options, i);
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
                                 bytes_text(block_bytes_).c_str());
        }
        store.blocks += path.blocks;
        path.queue_depth = nvme.queue_depth;
        STW_TRY(find_driver(nvme.driver ? nvme.driver : tuning.driver(i),
                            format_text("nvme[%u].driver", i), &path.ops));
        // Where aio cannot work (O_DIRECT refused, no slots left), posix can; a driver that was
        // named is the caller's decision.
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
        STW_TRY(open_durable(options, store, std::move(status), store_out));
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
        dispatch_.log.print(STW_LOG_WARNING, "store", "'%s': %s", options.nvme[i].path,
                            remark.c_str());
    }
    return {};
}

Status Runtime::open_engine(const stw_runtime_options &from, std::unique_ptr<store::Store> store)
{
    transfer::EngineOptions options;
    share_disks(from, &options);
    options.services = &services_;
    options.store = std::move(store);
    for (PlaceId place = 0; place <= tiers_.host(); ++place) {
        const memory::Tier &at = tiers_[place];
        const std::string name = at.kind == Tier::kHost ? std::string("the host tier")
                                                        : format_text("device %u", at.device);
        // A tier without a budget needs no staging either.
        const bool direct = at.cpu_access || !at.memory;
        options.memories.push_back({at.ops, at.memory, at.kind, direct, name, at.direct});
    }
    options.block_bytes = block_bytes_;
    if (staging_blocks_ > 0) {
        const memory::Tier &host = tiers_[tiers_.host()];
        options.staging = host.base + (host.info().bytes - staging_bytes_);
        options.staging_read_blocks = staging_blocks_ / 2;
        options.staging_write_blocks = staging_blocks_ / 2;
    }
    options.done = engine_done;
    options.done_user = this;
    options.span = engine_span;
    options.span_user = this;
    open_ordering();
    options.order = ordering_.get();
    Result<std::unique_ptr<transfer::Engine>> opened = transfer::Engine::open(std::move(options));
    if (!opened.ok()) return std::move(opened.status());
    engine_ = opened.take();
    return {};
}

// First what may still use memory (kernels, I/O), then threads, then the memory itself.
Status Runtime::close_tiers(uint64_t timeout_ns)
{
    close_ranks();
    if (touches_) touches_->close();
    if (pins_) pins_->stop();
    if (pipeline_) STW_TRY(tell_waiting(pipeline_->close(timeout_ns)));
    stop_copier();
    planner_.stop();
    dispatch_.stop_timer();
    close_durable(timeout_ns);
    if (engine_) STW_TRY(engine_->close(timeout_ns));
    leave_ranks();
    stop_callbacks();
    return {};
}

Status Runtime::close(uint64_t timeout_ns, bool deferred)
{
    const residency::Instant deadline = dispatch_.now() + dispatch_.timeout(timeout_ns);
    release_touches();
    uint32_t open = 0;
    uint64_t pieces = 0;
    {
        MutexLock lock(dispatch_.mutex());
        do {  // callbacks may make operations while they are waited for
            open = views_.open_views();
            pieces = scratch_pieces();
            if ((open + pieces > 0 && !deferred) || operations_ > 0) {
                return Status::error(STW_ERROR_BUSY,
                                     "the runtime '%s' has %u open views, %u operations and %llu "
                                     "pieces of stw_host_alloc; release and free them first, or "
                                     "close with STW_CLOSE_DEFERRED%s%s",
                                     name_.c_str(), open, operations_,
                                     static_cast<unsigned long long>(pieces),
                                     open > 0 ? "; views: " : "", describe_views(8).c_str());
            }
            STW_TRY(await_callbacks(deadline));
        } while (operations_ > 0 || views_.open_views() != open || scratch_pieces() != pieces);
    }
    if (open + pieces > 0) {
        STW_TRY(end_policy(timeout_ns));
        // Views outlive it, collectives do not: the program may end their engine as soon as this
        // returns. What was called for before is done, as far as the other ranks come to it.
        (void)drain_ranks(dispatch_.now(), deadline);
        close_ranks();
        dispatch_.log.silence();
        if (log_relay_) log_relay_->silence();
        return Status::remark(STW_PENDING);
    }
    Status error = drain(timeout_ns);
    if (error.code() == STW_ERROR_TIMEOUT || error.code() == STW_ERROR_INTERRUPTED) return error;
    STW_TRY(end_policy(timeout_ns));
    STW_TRY(close_tiers(dispatch_.timeout(timeout_ns)));
    if (log_relay_) log_relay_->stop();
    MutexLock lock(dispatch_.mutex());  // nobody else is left
    for (stw_tensor *tensor = handles_.clear(); tensor;) {
        stw_tensor *next = tensor->notes.next;
        tensor->runtime = nullptr;
        tensor->sharding.reset();
        std::string().swap(tensor->name);  // the handle's memory stays, what it owns goes
        tensor_pool.give(tensor);
        tensor = next;
    }
    for (const std::unique_ptr<Phase> &phase : phases_) {
        if (phase->handle) phase_pool.give(phase->handle);
    }
    for (const std::unique_ptr<OptimizerBody> &optimizer : optimizers_) {
        if (optimizer->handle) optimizer_pool.give(optimizer->handle);
    }
    return error;
}

}  // namespace stepwell
