// SPDX-License-Identifier: Apache-2.0
// dlopen, and the table that the one exported symbol of a module returns.
#include "drivers/modules/module.h"

#include "drivers/common/edge.h"
#include "drivers/modules/safe_file.h"
#include "drivers/modules/table.h"

#include <climits>
#include <cstdio>
#include <cstdlib>
#include <fstream>

#include <dlfcn.h>

namespace stepwell::drivers {

namespace {

constexpr size_t kNameMax = 31;  // as stw_device_info has room for
constexpr const char *kEntry = "stw_driver_module_get";
using Entry = const stw_driver_module *(*)();

// From the mappings of the process: the loader may know the library by a path relative to an
// earlier working directory.
std::string beside_the_library()
{
    const auto here = reinterpret_cast<uintptr_t>(&beside_the_library);
    std::ifstream maps("/proc/self/maps");
    for (std::string line; std::getline(maps, line);) {
        unsigned long begin = 0;
        unsigned long end = 0;
        const size_t path = line.find('/');
        if (path == std::string::npos || std::sscanf(line.c_str(), "%lx-%lx", &begin, &end) != 2) {
            continue;
        }
        if (begin <= here && here < end) {
            return line.substr(path, line.rfind('/') - path) + "/stepwell";
        }
    }
    return {};
}

// Paths that dlopen would not take literally.
stw_status check_path(const std::string &path, stw_driver_error *error_out)
{
    if (path.empty() || path[0] != '/')
        return fail(error_out, STW_ERROR_INVALID, {},
                    "'%s' is neither the name of a driver nor an absolute path; a module is never "
                    "looked for in the working directory. Give its path from the root on.",
                    path.c_str());
    if (path.size() >= PATH_MAX)
        return fail(error_out, STW_ERROR_INVALID, {},
                    "A module's path of %zu bytes is too long; it has less than %d.", path.size(),
                    PATH_MAX);
    // dlopen expands $ORIGIN, $LIB and $PLATFORM.
    if (path.find('$') != std::string::npos)
        return fail(error_out, STW_ERROR_INVALID, {},
                    "The module '%s' is not loaded: the dynamic loader would take the '$' in its "
                    "path for something else; move it.",
                    path.c_str());
    return STW_OK;
}

stw_status check_kind(const std::string &path, const Descriptor &file, stw_driver_error *error_out)
{
    char magic[4] = {};
    if (pread(file.get(), magic, sizeof magic, 0) == sizeof magic &&
        std::memcmp(magic, "\177ELF", sizeof magic) == 0)
        return STW_OK;
    return fail(error_out, STW_ERROR_INVALID, {},
                "The module '%s' is not a shared library; give the .so file of a driver.",
                path.c_str());
}

// The table may be of an older or a newer build: nothing but its head is read before that is clear.
stw_status check_table(const std::string &path, const stw_driver_module *table,
                       stw_driver_error *error_out)
{
    if (table == nullptr)
        return fail(error_out, STW_ERROR_UNSUPPORTED, {},
                    "The module '%s' has no driver for this machine.", path.c_str());
    if (table->abi != STW_DRIVER_ABI)
        return fail(error_out, STW_ERROR_UNSUPPORTED, {},
                    "The module '%s' was built for driver ABI %u, and this build has %d; build it "
                    "with the headers of this build.",
                    path.c_str(), table->abi, STW_DRIVER_ABI);
    if (!has_bytes_enough(*table))
        return fail(error_out, STW_ERROR_INVALID, {},
                    "The module '%s' has a table of %u bytes, and of driver ABI %d it has at least "
                    "%u, in whole members; set struct_size to sizeof(stw_driver_module).",
                    path.c_str(), table->struct_size, STW_DRIVER_ABI,
                    TableLimits<stw_driver_module>::kBytesMin);
    const stw_driver_module full = in_full(*table);
    if (full.storage == nullptr && full.memory == nullptr && full.collective == nullptr)
        return fail(error_out, STW_ERROR_INVALID, {},
                    "The module '%s' has neither a storage driver nor a memory or a collective "
                    "driver.",
                    path.c_str());
    return STW_OK;
}

}  // namespace

Module::~Module()
{
    if (handle_ != nullptr) dlclose(handle_);
}

stw_status Module::load(const std::string &path, Module *module_out, stw_driver_error *error_out)
{
    if (const stw_status status = check_path(path, error_out)) return status;
    Descriptor file;
    if (const stw_status status = open_safe_file(path, &file, error_out)) return status;
    if (const stw_status status = check_kind(path, file, error_out)) return status;
    Module module;
    module.handle_ = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (module.handle_ == nullptr) {
        const char *why = dlerror();
        return fail(error_out, STW_ERROR_UNSUPPORTED, {},
                    "The module '%s' does not load here: %s. Install what it needs; ldd lists it.",
                    path.c_str(), why != nullptr ? why : "the dynamic loader gives no reason");
    }
    const auto entry = reinterpret_cast<Entry>(dlsym(module.handle_, kEntry));
    if (entry == nullptr)
        return fail(error_out, STW_ERROR_INVALID, {},
                    "The module '%s' does not export %s, so it is no driver of Stepwell's; "
                    "stepwell/driver.h says what a module exports.",
                    path.c_str(), kEntry);
    const stw_driver_module *table = entry();
    if (const stw_status status = check_table(path, table, error_out)) return status;
    module.table_ = in_full(*table);
    *module_out = std::move(module);
    return STW_OK;
}

const std::string &module_directory()
{
    static const std::string directory = beside_the_library();
    return directory;
}

bool is_module_name(std::string_view name)
{
    return !name.empty() && name.size() <= kNameMax &&
           std::all_of(name.begin(), name.end(), [](char c) {
               return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                      c == '-' || c == '_';
           });
}

std::string module_path(const std::string &directory, const std::string &name)
{
    if (directory.empty()) return {};
    const std::unique_ptr<char, void (*)(void *)> real(realpath(directory.c_str(), nullptr),
                                                       std::free);
    return (real ? real.get() : directory) + "/libstepwell-" + name + ".so";
}

}  // namespace stepwell::drivers
