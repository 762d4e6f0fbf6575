// SPDX-License-Identifier: Apache-2.0
// Info for a reader: a section per subject, a line per value, the remedy below what needs one.
#include "info.h"
#include "text.h"

#include <algorithm>

namespace stepwell::cli {

namespace {

constexpr size_t kNameColumns = 17;

std::string line(const char *name, const std::string &value)
{
    return "  " + padded(name, kNameColumns) + value + "\n";
}

std::string remedy_line(const std::string &remedy, bool as_root)
{
    return std::string("          ") + (as_root ? "as root: " : "remedy: ") + remedy + "\n";
}

std::string check_text(const Check &check)
{
    std::string value = check.value;
    if (value.ends_with('.')) value.pop_back();  // a sentence of the library's
    std::string text = std::string(check.warn ? "  warn  " : "  ok    ") +
                       padded(check.title, kNameColumns) + value + "; needed: " + check.needed +
                       "\n";
    if (!check.remedy.empty()) text += remedy_line(check.remedy, check.as_root);
    return text;
}

std::string driver_text(const Driver &driver)
{
    const char *verdict = !driver.works ? "  -     " : *driver.works ? "  ok    " : "  warn  ";
    std::string text = verdict + padded(driver.name, kNameColumns) + driver.used_for;
    if (driver.unified)
        text += *driver.unified ? "; unified memory: shares the host's, no host tier between"
                                : "; memory of its own: bytes pass through the host tier";
    if (driver.unified && !*driver.unified && driver.name == "cuda")
        text += ", GPUDirect Storage is not used";
    text += "\n";
    if (driver.numa_node)
        text += "          near NUMA node " + std::to_string(*driver.numa_node) + "\n";
    if (driver.register_ns_per_gib)
        text += "          registering host memory takes " +
                std::to_string(*driver.register_ns_per_gib / 1'000'000) + " ms per GiB\n";
    if (!driver.reason.empty()) text += "          " + printable(driver.reason) + "\n";
    return text;
}

std::string topology_text(const TopologyNode &node, const std::string &indent)
{
    std::string text = indent + node.type;
    for (char &c : text)
        if (c == '_') c = ' ';
    if (!node.name.empty()) text += " " + node.name;
    if (node.threads > 0)
        text += ": " + std::to_string(node.cores) + " cores, " + std::to_string(node.threads) +
                " threads";
    if (node.cache_bytes > 0) text += ", " + bytes_text(node.cache_bytes) + " of cache";
    if (node.memory_bytes > 0) text += ": " + bytes_text(node.memory_bytes);
    text += "\n";
    for (const TopologyNode &child : node.children) text += topology_text(child, indent + "  ");
    return text;
}

std::string machine_text(const Info &info)
{
    const System &system = info.system;
    const Memory &memory = system.memory;
    return "machine\n" +
           line("processor", system.processor.empty() ? "not named" : system.processor) +
           line("cores", std::to_string(system.cores) + " of " +
                             std::to_string(system.cores_machine) + " given to this process") +
           line("memory", bytes_text(memory.total_bytes) + ", " +
                              bytes_text(memory.available_bytes) + " available, " +
                              bytes_text(system.room_bytes()) + " to this process") +
           line("NUMA nodes", std::to_string(system.numa_nodes)) +
           line("pages", bytes_text(info.page_bytes) + "; transparent huge pages: " +
                             (system.huge_pages.mode.empty() ? "none" : system.huge_pages.mode)) +
           line("kernel", "Linux " + system.kernel);
}

std::string directory_text(const DirectoryInfo &entry)
{
    const Directory &directory = entry.directory;
    std::string text = "\ndirectory " + printable(directory.path) + "\n";
    if (!directory.error.empty()) {
        text += "  error " + directory.error + "\n";
        if (!directory.remedy.empty()) text += remedy_line(directory.remedy, false);
        return text;
    }
    for (const Check &check : entry.checks) text += check_text(check);
    return text;
}

}  // namespace

std::string info_text(const Info &info)
{
    std::string text = "stepwell " + info.version + ", ABI " + std::to_string(info.abi) + "\n\n";
    text += machine_text(info);
    text += "\ntopology\n" + topology_text(info.topology, "  ");
    const auto is_module = [](const Driver &driver) { return !driver.built_in; };
    const bool modules = std::any_of(info.drivers.begin(), info.drivers.end(), is_module);
    text += modules ? "\ndrivers, built in\n" : "\ndrivers, all built in\n";
    for (const Driver &driver : info.drivers)
        if (driver.built_in) text += driver_text(driver);
    if (modules) text += "\ndrivers in " + printable(module_directory()) + "\n";
    for (const Driver &driver : info.drivers)
        if (!driver.built_in) text += driver_text(driver);
    text += "\nlimits\n";
    for (const Check &check : info.limits) text += check_text(check);
    for (const DirectoryInfo &entry : info.directories) text += directory_text(entry);
    const auto count = [](uint64_t n, const char *what) {
        return std::to_string(n) + " " + what + (n == 1 ? "" : "s");
    };
    text += "\n" + count(info.warnings(), "warning") + ", " + count(info.errors().size(), "error") +
            "\n";
    return text;
}

}  // namespace stepwell::cli
