// SPDX-License-Identifier: Apache-2.0
// Info as JSON. Units are in the keys; the order of keys and entries is fixed.
#include "info.h"

namespace stepwell::cli {

namespace {

Json check_json(const Check &check)
{
    Json json = {{"name", check.name}, {"verdict", check.warn ? "warn" : "ok"}};
    json["facts"] = check.facts;
    json["value"] = check.value;
    json["needed"] = check.needed;
    json["remedy"] = check.remedy.empty() ? Json(nullptr) : Json(check.remedy);
    json["remedy_as_root"] = check.as_root;
    return json;
}

Json driver_json(const Driver &driver)
{
    Json json = {{"name", driver.name}, {"kind", driver.kind}, {"used_for", driver.used_for}};
    json["built_in"] = driver.built_in;
    json["works"] = driver.works ? Json(*driver.works) : Json(nullptr);
    json["reason"] = driver.reason.empty() ? Json(nullptr) : Json(driver.reason);
    if (driver.kind == "memory") {
        json["unified_memory"] = driver.unified ? Json(*driver.unified) : Json(nullptr);
        json["numa_node"] = driver.numa_node ? Json(*driver.numa_node) : Json(nullptr);
        json["register_ns_per_gib"] =
            driver.register_ns_per_gib ? Json(*driver.register_ns_per_gib) : Json(nullptr);
    }
    return json;
}

template <class Entry, class Write> Json list_json(const std::vector<Entry> &list, Write &&write)
{
    Json json = Json::array();
    for (const Entry &entry : list) json.push_back(write(entry));
    return json;
}

Json topology_json(const TopologyNode &node)
{
    Json json = {{"type", node.type}, {"name", node.name}};
    if (node.threads > 0) {
        json["cores"] = node.cores;
        json["threads"] = node.threads;
        json["cache_bytes"] = node.cache_bytes;
    }
    if (node.type == "numa_node") json["memory_bytes"] = node.memory_bytes;
    json["children"] = list_json(node.children, topology_json);
    return json;
}

Json machine_json(const Info &info)
{
    const System &system = info.system;
    return {{"processor", system.processor},
            {"cores", system.cores},
            {"cores_machine", system.cores_machine},
            {"kernel", system.kernel},
            {"memory_bytes", system.memory.total_bytes},
            {"memory_available_bytes", system.memory.available_bytes},
            {"memory_room_bytes", system.room_bytes()},
            {"numa_nodes", system.numa_nodes},
            {"page_bytes", info.page_bytes},
            {"transparent_huge_pages", system.huge_pages.mode},
            {"huge_page_bytes", system.memory.huge_page_bytes},
            {"huge_pages", system.memory.huge_pages},
            {"huge_pages_free", system.memory.huge_pages_free}};
}

Json directory_json(const DirectoryInfo &entry)
{
    const Directory &directory = entry.directory;
    Json json = {{"path", directory.path}};
    json["error"] = directory.error.empty() ? Json(nullptr) : Json(directory.error);
    json["remedy"] = directory.remedy.empty() ? Json(nullptr) : Json(directory.remedy);
    json["checks"] = list_json(entry.checks, check_json);
    json["drivers"] = list_json(entry.drivers, driver_json);
    return json;
}

}  // namespace

std::string info_json(const Info &info)
{
    Json json = {{"format", kInfoFormat}, {"version", info.version}, {"abi", info.abi}};
    json["machine"] = machine_json(info);
    json["topology"] = topology_json(info.topology);
    json["drivers"] = list_json(info.drivers, driver_json);
    json["limits"] = list_json(info.limits, check_json);
    json["paths"] = list_json(info.directories, directory_json);
    json["warnings"] = info.warnings();
    json["errors"] = info.errors();
    // Names of files need not be UTF-8.
    return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace stepwell::cli
