// SPDX-License-Identifier: Apache-2.0
#include "drivers.h"

#include "directory.h"
#include "report_file.h"
#include "text.h"

#include <stepwell/stepwell.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <string_view>
#include <thread>
#include <tuple>

#include <dlfcn.h>

#include <nlohmann/json.hpp>

namespace stepwell::cli {

namespace {

constexpr uint64_t kProbeBytes = 16 << 20;  // of a memory driver: a few blocks
constexpr uint64_t kSecond = 1'000'000'000;
constexpr uint64_t kRegisterBytes = 256 << 20;  // of the host tier: a slab

struct Known {
    const char *name;
    const char *used_for;
    const char *options;
};
constexpr Known kDevices[] = {
    {"cpu", "device tier", nullptr},
    {"cpu-discrete", "device tier, as if behind a bus", nullptr},
};
constexpr Known kStorage[] = {
    {"aio", "nvme tier", nullptr},
    {"posix", "nvme tier where aio cannot work", nullptr},
    {"fault", "tests: breaks another storage driver", "inner=posix"},
};

stw_runtime_options small_options()
{
    stw_runtime_options options = STW_RUNTIME_OPTIONS_INIT;
    options.name = "stepwell info";
    options.thread_count = 1;
    options.timeout_ns = 10 * kSecond;
    options.tensors_max = 16;
    options.views_max = 16;
    options.operations_max = 16;
    return options;
}

// "" or why not; look(runtime) is called in between.
std::string open_and_look(const stw_runtime_options &options,
                          const std::function<void(stw_runtime *)> &look)
{
    stw_runtime *runtime = nullptr;
    if (stw_runtime_open(&options, &runtime) < 0) return stw_last_error();
    look(runtime);
    if (stw_runtime_close(runtime, 0, 0) < 0) return stw_last_error();
    return "";
}

// The entry of a report's "drivers" that has this kind.
std::optional<Chosen> parse_entry(const std::string &text, const char *kind)
{
    const auto report = nlohmann::json::parse(text, nullptr, false);
    if (!report.is_object() || !report.contains("drivers") || !report["drivers"].is_array())
        return std::nullopt;
    for (const auto &driver : report["drivers"]) {
        if (!driver.is_object() || driver.value("kind", "") != kind) continue;
        Chosen entry;
        entry.driver = driver.value("name", "");
        entry.remark = driver.value("remark", "");
        entry.file_system = driver.value("file_system", "");
        entry.queue_depth = driver.value("queue_depth", uint64_t{0});
        return entry;
    }
    return std::nullopt;
}

// Where the library's report cannot be had, the remark says why.
Chosen read_entry(stw_runtime *runtime, const char *kind)
{
    Chosen unknown;
    const std::string text = read_report(runtime, &unknown.remark);
    if (text.empty()) return unknown;
    if (auto entry = parse_entry(text, kind)) return *entry;
    unknown.remark = "The report of the library does not name the driver.";
    return unknown;
}

// The host tier is registered by a thread of the library's: looked at until it is over.
void measure_registration(stw_device_options device, Driver *driver)
{
    stw_runtime_options options = small_options();
    options.devices = &device;
    options.device_count = 1;
    options.host_bytes = kRegisterBytes;
    (void)open_and_look(options, [&](stw_runtime *runtime) {
        const auto report =
            nlohmann::json::parse(read_report(runtime, &driver->reason), nullptr, false);
        if (report.is_object() && report.contains("drivers") && !report["drivers"].empty()) {
            const int node = report["drivers"][0].value("numa_node", -1);
            if (node >= 0) driver->numa_node = node;
        }
        const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
        stw_tier_stats stats = STW_TIER_STATS_INIT;
        do {
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
            if (stw_tier_stats_get(runtime, STW_TIER_HOST, 0, &stats) < 0) return;
        } while (stats.registering_bytes > 0 && std::chrono::steady_clock::now() < until);
        if (stats.registered_bytes == kRegisterBytes)
            driver->register_ns_per_gib = stats.registered_ns * ((1ull << 30) / kRegisterBytes);
    });
}

// With whatever tier of memory the options have.
void try_memory(const stw_runtime_options &options, Driver *driver)
{
    std::string remark;
    stw_device_info info = {};
    info.struct_size = sizeof info;
    driver->reason = open_and_look(options, [&](stw_runtime *runtime) {
        driver->works = true;
        remark = read_entry(runtime, "memory").remark;
        if (options.device_count > 0 && stw_device_info_get(runtime, 0, &info) >= 0)
            driver->unified = (info.flags & STW_DEVICE_UNIFIED) != 0;
    });
    if (driver->reason.empty()) driver->reason = remark;
    if ((info.flags & STW_DEVICE_STREAMS) != 0) measure_registration(options.devices[0], driver);
}

Driver try_device(const Known &known)
{
    stw_device_options device = STW_DEVICE_OPTIONS_INIT;
    device.driver = known.name;
    device.budget_bytes = kProbeBytes;
    stw_runtime_options options = small_options();
    options.devices = &device;
    options.device_count = 1;
    Driver driver = {known.name, "memory", known.used_for, false, "", std::nullopt};
    try_memory(options, &driver);
    return driver;
}

Driver try_host()
{
    stw_runtime_options options = small_options();
    options.host_bytes = kProbeBytes;
    Driver driver = {"host", "memory", "host tier", false, "", std::nullopt};
    try_memory(options, &driver);
    return driver;
}

// name: nullptr leaves the choice to the library.
std::string try_storage(const std::string &path, const char *name, const char *driver_options,
                        const std::function<void(stw_runtime *)> &look)
{
    stw_nvme_options nvme = STW_NVME_OPTIONS_INIT;
    nvme.path = path.c_str();
    nvme.budget_bytes = kStoreBytesMin;
    nvme.driver = name;
    nvme.driver_options = driver_options;
    stw_device_options device = STW_DEVICE_OPTIONS_INIT;
    device.budget_bytes = kStoreBytesMin;
    stw_runtime_options options = small_options();
    options.block_bytes = STW_BLOCK_64K;
    options.devices = &device;
    options.device_count = 1;
    options.nvme = &nvme;
    options.nvme_count = 1;
    return open_and_look(options, look);
}

std::vector<Driver> look_at_module(const std::string &path, const std::string &name)
{
    stw_driver_info info = {};
    info.struct_size = sizeof info;
    std::string reason;
    if (stw_driver_info_get(path.c_str(), &info) < 0)
        reason = stw_last_error();
    else if (name != info.name)
        reason = "'" + path + "' calls its driver '" + std::string(info.name) +
                 "', so its path alone finds it.";
    if (!reason.empty()) return {{name, "module", "", false, reason, std::nullopt, false}};
    std::vector<Driver> drivers;
    if ((info.kinds & STW_DRIVER_MEMORY) != 0) {
        drivers.push_back(try_device({path.c_str(), "device tier", nullptr}));
        drivers.back().name = name;
        drivers.back().built_in = false;
    }
    if ((info.kinds & STW_DRIVER_STORAGE) != 0)
        drivers.push_back({name, "storage", "nvme tier", std::nullopt,
                           "loads here; not tried, since only its author knows on what",
                           std::nullopt, false});
    if ((info.kinds & STW_DRIVER_COLLECTIVE) != 0)
        drivers.push_back({name, "collective", "groups of ranks", std::nullopt,
                           "loads here; not tried, since a group needs its other ranks",
                           std::nullopt, false});
    return drivers;
}

}  // namespace

std::optional<Chosen> parse_report(const std::string &text)
{
    return parse_entry(text, "storage");
}

std::vector<Driver> try_memory_drivers()
{
    std::vector<Driver> drivers;
    for (const Known &known : kDevices) drivers.push_back(try_device(known));
    drivers.push_back(try_host());
    return drivers;
}

std::vector<Driver> untried_storage_drivers()
{
    std::vector<Driver> drivers;
    for (const Known &known : kStorage)
        drivers.push_back({known.name, "storage", known.used_for, std::nullopt,
                           "not tried: name a directory on the drive (stepwell info DIRECTORY)",
                           std::nullopt});
    return drivers;
}

const std::string &module_directory()
{
    static const std::string directory = [] {
        Dl_info library{};
        std::error_code failed;
        if (!dladdr(reinterpret_cast<void *>(&stw_version_string), &library)) return std::string();
        return std::string(std::filesystem::canonical(library.dli_fname, failed).parent_path() /
                           "stepwell");
    }();
    return directory;
}

std::vector<Driver> find_modules(const std::string &directory)
{
    constexpr std::string_view kBefore = "libstepwell-", kBehind = ".so";
    std::vector<Driver> drivers;
    std::error_code error;
    const std::filesystem::path real = std::filesystem::canonical(directory, error);
    if (error) return drivers;  // nobody has installed any
    for (std::filesystem::directory_iterator at(real, error), end; !error && at != end;
         at.increment(error)) {
        const std::string file = at->path().filename();
        if (!file.starts_with(kBefore) || !file.ends_with(kBehind)) continue;
        const std::string name =
            file.substr(kBefore.size(), file.size() - kBefore.size() - kBehind.size());
        const std::vector<Driver> found = look_at_module(at->path(), name);
        drivers.insert(drivers.end(), found.begin(), found.end());
    }
    std::sort(drivers.begin(), drivers.end(), [](const Driver &one, const Driver &other) {
        return std::tie(one.name, one.kind) < std::tie(other.name, other.kind);
    });
    return drivers;
}

StorageDrivers try_storage_drivers(const std::string &path)
{
    StorageDrivers result;
    const std::string none = try_storage(path, nullptr, nullptr, [&](stw_runtime *runtime) {
        result.chosen = read_entry(runtime, "storage");
    });
    if (!none.empty()) result.chosen.remark = none;
    for (const Known &known : kStorage) {
        Driver driver = {known.name, "storage", known.used_for, false, "", std::nullopt};
        driver.reason = try_storage(path, known.name, known.options,
                                    [&](stw_runtime *) { driver.works = true; });
        result.drivers.push_back(std::move(driver));
    }
    return result;
}

}  // namespace stepwell::cli
