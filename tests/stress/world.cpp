// SPDX-License-Identifier: Apache-2.0
// Opening, closing and watching of a stress run. The watchdog is the one thread that may end a
// process whose actors hang.
#include "world.h"

#include <cinttypes>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <unistd.h>

namespace stress {
namespace {

constexpr uint64_t kBlockElements = kBlockBytes / sizeof(float);
constexpr auto kHangs = std::chrono::seconds(60);

// The caller's own element-wise kernel: whole numbers, so that every order gives the same bits.
stw_status add_gradient(void *, const stw_update_chunk *chunk)
{
    auto *values = static_cast<float *>(chunk->values);
    const auto *gradient = static_cast<const float *>(chunk->gradient);
    for (uint64_t i = 0; i < chunk->element_count; ++i) values[i] += gradient[i];
    return STW_OK;
}

}  // namespace

World::World(const Setup &with, const char *directory, uint64_t from, uint32_t count,
             uint64_t wait_max_ns)
    : setup(with), seed(from), actors(count), directory_(directory), wait_max_ns_(wait_max_ns)
{
    features.aborts = (seed & 1) != 0;
    features.holds_more = seed % 3 != 0;
    features.budgets = seed % 4 > 1;
    features.interrupts = seed % 5 > 2;
    if (setup.store) store_ = setup.store + ("-" + std::to_string(getpid()));
    open();
    make_tensors();
    watchdog_ = std::thread([this] { watch(); });
}

World::~World()
{
    for (Shared *tensor : shared) delete tensor;
    for (Owned *tensor : sums) delete tensor;
    for (Board *board : boards) delete board;
    for (Estate &estate : estates) {
        for (Owned *tensor : estate.plain) delete tensor;
        for (Owned *tensor : estate.parameters) delete tensor;
    }
}

stw_status World::open_with(stw_nvme_options *nvme, uint32_t flags)
{
    stw_device_options device = STW_DEVICE_OPTIONS_INIT;
    device.driver = setup.device;
    device.budget_bytes = uint64_t{setup.device_blocks} * kBlockBytes;
    stw_runtime_options options = STW_RUNTIME_OPTIONS_INIT;
    options.name = "stress";
    if (setup.device) options.devices = &device, options.device_count = 1;
    if (setup.nvme_blocks) options.nvme = nvme, options.nvme_count = 1;
    options.host_bytes = uint64_t{setup.host_blocks} * kBlockBytes;
    options.thread_count = 2;
    options.timeout_ns = kWaitNs;
    options.log_level = STW_LOG_INFO;
    options.log = [](void *, uint32_t, const char *topic, const char *line) {
        // STW_STRESS_DEADLOCKS: who waited for whom when a fetch gave way, too.
        const bool deadlock = !std::strcmp(topic, "deadlock");
        if (deadlock && !std::getenv("STW_STRESS_DEADLOCKS")) return;
        if (!deadlock && std::strcmp(topic, "timeout") != 0) return;
        std::fprintf(stderr, "stress: %s\n", line);
    };
    options.tensors_max = 1024;
    options.block_bytes = kBlockBytes;
    options.flags = flags | (setup.boards ? STW_RUNTIME_FAULT_IN : 0);
    if (setup.store) options.store_name = store_.c_str();
    return stw_runtime_open(&options, &runtime);
}

void World::open()
{
    stw_nvme_options nvme = STW_NVME_OPTIONS_INIT;
    const auto faults_of = [&](uint64_t tries) {
        return std::string(setup.faults ? setup.faults : "") +
               ";seed=" + std::to_string(seed + (tries << 32));
    };
    std::string faults = faults_of(0);
    nvme.path = directory_.c_str();
    nvme.budget_bytes = uint64_t{setup.nvme_blocks} * kBlockBytes;
    if (setup.faults) {
        nvme.driver = "fault";
        nvme.driver_options = faults.c_str();
    }
    // A fault may hit the superblock.
    stw_status status = open_with(&nvme, 0);
    const uint64_t tries_max = setup.errors_allowed ? 100 : 0;
    for (uint64_t tries = 1; status < 0 && tries < tries_max; ++tries) {
        faults = faults_of(tries);
        nvme.driver_options = faults.c_str();
        status = open_with(&nvme, 0);
    }
    if (status < 0) {
        std::fprintf(stderr, "stress: %s: %s\n", setup.name, stw_last_error());
        std::exit(1);
    }
    const uint32_t tiers[] = {STW_TIER_DEVICE, STW_TIER_HOST, STW_TIER_NVME};
    for (uint32_t i = 0; i < 3; ++i) {
        stw_tier_stats stats = STW_TIER_STATS_INIT;
        if (stw_tier_stats_get(runtime, tiers[i], 0, &stats) == STW_OK)
            opened_blocks_[i] = stats.budget_bytes / kBlockBytes;
    }
}

stw_tensor *World::make_tensor(const std::string &name, uint64_t elements, uint32_t role,
                               uint32_t flags)
{
    stw_tensor_spec spec = STW_TENSOR_SPEC_INIT;
    spec.name = name.c_str();
    spec.role = role;
    spec.flags = flags;
    spec.dtype = STW_F32;
    spec.dimensions = 1;
    spec.shape[0] = elements;
    stw_tensor *tensor = nullptr;
    if (stw_tensor_create(runtime, &spec, 1, &tensor) < 0) fail("create: %s", stw_last_error());
    return tensor;
}

Owned *World::make_owned(const std::string &name, uint64_t elements, uint32_t role)
{
    auto *owned = new Owned();
    owned->name = name;
    owned->elements = elements;
    uint32_t flags = setup.store && role != STW_ROLE_GRAD ? STW_TENSOR_DURABLE : 0;
    // What shares a block is touched beside others of it, also before its update.
    const bool touched = setup.boards && (role == STW_ROLE_PARAM || role == STW_ROLE_GRAD);
    if (touched) flags |= STW_TENSOR_OWN_BLOCKS;
    owned->tensor = make_tensor(name, elements, role, flags);
    if (touched) owned->address = address_of(owned->tensor);
    return owned;
}

float *World::address_of(stw_tensor *tensor)
{
    void *address = nullptr;
    uint64_t bytes = 0;
    if (stw_tensor_address(tensor, 0, &address, &bytes) < 0) fail("address: %s", stw_last_error());
    return static_cast<float *>(address);
}

void World::make_board(Board &board)
{
    const uint32_t flags = STW_TENSOR_OWN_BLOCKS | (setup.store ? STW_TENSOR_DURABLE : 0);
    board.tensor = make_tensor(board.name, board.elements, STW_ROLE_OTHER, flags);
    board.address = address_of(board.tensor);
    for (Board::Part &part : board.parts) part.floor = 0, part.ceiling = 0;
}

void World::make_tensors()
{
    uint64_t state = seed ^ 0x7465736e6f72ull;
    // From one element to five blocks, most not a whole number of them.
    const uint64_t sizes[] = {7,
                              1000,
                              3000,
                              kBlockElements / 2,
                              kBlockElements,
                              kBlockElements + 13,
                              2 * kBlockElements + 4001,
                              3 * kBlockElements,
                              5 * kBlockElements - 1};
    const uint32_t roles[] = {STW_ROLE_PARAM, STW_ROLE_OTHER, STW_ROLE_ACTIVATION};
    for (uint32_t i = 0; i < 9; ++i) {
        auto *tensor = new Shared();
        tensor->name = "shared." + std::to_string(i);
        tensor->elements = sizes[i];
        tensor->steady = next_random(&state) % 3 != 0;
        tensor->tensor = make_tensor(tensor->name, sizes[i], roles[next_random(&state) % 3]);
        shared.push_back(tensor);
    }
    for (uint32_t i = 0; i < 2; ++i) {
        sums.push_back(make_owned("sum." + std::to_string(i),
                                  i == 0 ? 500 : kBlockElements + kBlockElements / 2,
                                  STW_ROLE_GRAD));
    }
    for (uint32_t i = 0; i < setup.boards; ++i) {
        auto *board = new Board();
        board->name = "board." + std::to_string(i);
        board->elements = (1 + next_random(&state) % 12) * kBlockElements - i;
        make_board(*board);
        boards.push_back(board);
    }
    estates.resize(actors + 1);  // the clerk's is empty
    for (uint32_t actor = 0; actor < actors; ++actor) make_estate(actor, &state);
}

void World::make_estate(uint32_t actor, uint64_t *state)
{
    Estate &mine = estates[actor];
    const std::string prefix = "actor" + std::to_string(actor) + ".";
    for (uint32_t i = 0; i < 2; ++i) {
        const uint64_t elements = 1 + next_random(state) % (i == 0 ? 4000 : 3 * kBlockElements);
        mine.plain.push_back(make_owned(prefix + std::to_string(i), elements,
                                        i == 0 ? STW_ROLE_CACHE : STW_ROLE_OTHER));
    }
    stw_optimizer_options options = STW_OPTIMIZER_OPTIONS_INIT;
    stw_custom_update custom = {sizeof(stw_custom_update), 0, nullptr, add_gradient, nullptr};
    options.algorithm = STW_OPTIMIZER_CUSTOM;
    options.name = prefix.c_str();
    options.custom = &custom;
    const stw_hyper usual = STW_HYPER_INIT;
    if (stw_optimizer_create(runtime, &options, &mine.optimizer) < 0 ||
        stw_optimizer_set_hyper(mine.optimizer, 0, &usual) < 0) {
        fail("optimizer: %s", stw_last_error());
    }
    for (uint32_t i = 0; i < 2; ++i) {
        const uint64_t elements = 1 + next_random(state) % (i == 0 ? 2000 : 2 * kBlockElements);
        const std::string name = prefix + "w" + std::to_string(i);
        mine.parameters.push_back(make_owned(name, elements, STW_ROLE_PARAM));
        mine.gradients.push_back(make_tensor(name + ".grad", elements, STW_ROLE_GRAD));
        mine.summed.push_back(0);
        stw_optimizer_entry entry = STW_OPTIMIZER_ENTRY_INIT;
        entry.parameter = mine.parameters[i]->tensor;
        entry.gradient = mine.gradients[i];
        if (stw_optimizer_add(mine.optimizer, &entry, 1) < 0) fail("add: %s", stw_last_error());
    }
    if (stw_phase_create(runtime, prefix.c_str(), &mine.phase) < 0) {
        fail("phase: %s", stw_last_error());
    }
}

bool World::is_fault(stw_status status) const
{
    return setup.errors_allowed && (status == STW_ERROR_IO || status == STW_ERROR_CHECKSUM);
}

void World::clear_errors()
{
    // Odd while errors go: what fails meanwhile may be told to nobody.
    std::lock_guard<std::mutex> lock(clears_mutex_);
    distrust.fetch_add(1);
    if (stw_runtime_clear_error(runtime) < 0) fail("clear_error: %s", stw_last_error());
    distrust.fetch_add(1);
}

void World::check_budgets()
{
    const uint32_t tiers[] = {STW_TIER_DEVICE, STW_TIER_HOST, STW_TIER_NVME};
    const uint32_t blocks[] = {setup.device_blocks, setup.host_blocks, setup.nvme_blocks};
    for (uint32_t i = 0; i < 3; ++i) {
        if (blocks[i] == 0) continue;
        const uint32_t tier = tiers[i];
        stw_tier_stats stats = STW_TIER_STATS_INIT;
        if (stw_tier_stats_get(runtime, tier, 0, &stats) < 0) fail("stats: %s", stw_last_error());
        // The peak may be of a larger budget.
        const bool above = stats.peak_bytes > stats.budget_bytes && !features.budgets;
        if (stats.used_bytes > stats.budget_bytes || above) {
            fail("tier %u uses %" PRIu64 " (peak %" PRIu64 ") of a budget of %" PRIu64, tier,
                 stats.used_bytes, stats.peak_bytes, stats.budget_bytes);
        }
    }
}

// Down to three quarters of what it was opened with.
void World::change_budget(uint64_t random)
{
    const uint32_t tiers[] = {STW_TIER_DEVICE, STW_TIER_HOST, STW_TIER_NVME};
    const uint32_t which = random % 3;
    const uint64_t most = opened_blocks_[which];
    if (most == 0 || (which == 2 && setup.store)) return;
    const uint64_t wanted = most - random / 3 % (most / 4 + 1);
    const uint64_t begin = now_ns();
    const stw_status status =
        stw_tier_set_budget(runtime, tiers[which], 0, wanted * kBlockBytes, kWaitNs);
    check_time("a change of a budget", begin);
    const bool interrupted = status == STW_ERROR_INTERRUPTED && features.interrupts;
    const bool refused = status == STW_ERROR_BUDGET || status == STW_ERROR_BUSY;
    if (status < 0 && !interrupted && !refused && !is_fault(status))
        fail("budget of %" PRIu64 " blocks for tier %u: %s", wanted, which, stw_last_error());
    if (status == STW_OK) counters.budgets.fetch_add(1);
}

void World::interrupt()
{
    counters.interrupted.fetch_add(1);
    if (stw_runtime_interrupt(runtime) < 0) fail("interrupt: %s", stw_last_error());
}

uint64_t World::now_ns()
{
    timespec time{};
    clock_gettime(CLOCK_MONOTONIC, &time);
    return static_cast<uint64_t>(time.tv_sec) * 1000000000u + static_cast<uint64_t>(time.tv_nsec);
}

void World::check_time(const char *what, uint64_t begin_ns)
{
    const uint64_t took = now_ns() - begin_ns;
    uint64_t slowest = counters.slowest_ns.load();
    while (took > slowest && !counters.slowest_ns.compare_exchange_weak(slowest, took)) {}
    if (took > wait_max_ns_)
        fail("%s took %.3f s, at most %.3f are allowed", what, static_cast<double>(took) / 1e9,
             static_cast<double>(wait_max_ns_) / 1e9);
}

void World::watch()
{
    uint64_t before[kActorsMax] = {};
    std::unique_lock<std::mutex> lock(watch_mutex_);
    for (;;) {
        if (watch_wakes_.wait_for(lock, kHangs, [this] { return watch_ends_; })) return;
        for (uint32_t i = 0; i < actors; ++i) {
            const uint64_t now = progress[i].load();
            hangs_ = now == before[i] && now != UINT64_MAX;
            if (hangs_) fail("actor %u hangs", i);
            before[i] = now;
        }
    }
}

void World::print_report()
{
    const std::string path = "stress-report-" + std::to_string(getpid()) + ".json";
    if (stw_report_write(runtime, path.c_str()) < 0) return;
    if (FILE *file = std::fopen(path.c_str(), "r")) {
        char line[4096];
        while (std::fgets(line, sizeof line, file)) std::fputs(line, stderr);
        std::fclose(file);
    }
    unlink(path.c_str());
}

void World::fail(const char *format, ...)
{
    static std::atomic<bool> failed{false};
    if (failed.exchange(true)) {
        // Another thread is telling; the process ends with it.
        for (;;) pause();
    }
    char text[2048];
    va_list list;
    va_start(list, format);
    std::vsnprintf(text, sizeof text, format, list);
    va_end(list);
    std::fprintf(stderr, "stress: FAILED in '%s', STW_SEED=%" PRIu64 ": %s\n", setup.name, seed,
                 text);
    // abort() leaves the stacks of all threads to a debugger, _exit() nothing.
    if (std::getenv("STW_STRESS_ABORT")) std::abort();
    if (hangs_) {
        alarm(10);  // the report needs the lock that may be what hangs
        print_report();
    }
    std::fflush(nullptr);
    _exit(1);
}

void World::leave_parcel(const Parcel &parcel)
{
    {
        std::lock_guard<std::mutex> lock(parcels_mutex_);
        parcels_.push_back(parcel);
    }
    parcels_wake_.notify_all();
}

void World::wake_clerk()
{
    // Under the lock: else the clerk could look at the count, then sleep through the call.
    std::lock_guard<std::mutex> lock(parcels_mutex_);
    parcels_wake_.notify_all();
}

bool World::wait_parcel(Parcel *parcel_out, const std::atomic<uint32_t> &running)
{
    std::unique_lock<std::mutex> lock(parcels_mutex_);
    parcels_wake_.wait(lock, [&] { return !parcels_.empty() || running.load() == 0; });
    if (parcels_.empty()) return false;
    *parcel_out = parcels_.back();
    parcels_.pop_back();
    return true;
}

}  // namespace stress
