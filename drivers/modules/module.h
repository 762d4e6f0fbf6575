// SPDX-License-Identifier: Apache-2.0
// One module: a shared library with drivers. It is checked, loaded, and unloaded if it is refused.
#pragma once

#include <stepwell/driver.h>

#include <string>
#include <string_view>
#include <utility>

namespace stepwell::drivers {

class Module {
public:
    Module() = default;
    Module(Module &&other) noexcept
        : handle_(std::exchange(other.handle_, nullptr)), table_(other.table_)
    {
    }
    Module &operator=(Module &&other) noexcept
    {
        std::swap(handle_, other.handle_);
        std::swap(table_, other.table_);
        return *this;
    }
    ~Module();

    // By an absolute path. No code of the file runs before the file is known to be safe. A refused
    // module is unloaded when this returns.
    static stw_status load(const std::string &path, Module *module_out,
                           stw_driver_error *error_out);

    const stw_storage_ops *storage() const { return table_.storage; }
    const stw_memory_ops *memory() const { return table_.memory; }
    const stw_collective_ops *collective() const { return table_.collective; }
    // Never unloads it: a driver may have threads, and handles in other libraries, that outlive its
    // objects here. The dynamic loader has each file once, however often it is loaded.
    void keep() { handle_ = nullptr; }

private:
    void *handle_ = nullptr;  // of dlopen
    stw_driver_module table_ = {};
};

// The folder in which modules are looked up by name: "stepwell" beside the library itself, and no
// other. "" if /proc is not mounted.
const std::string &module_directory();
// Whether the name is valid in a file name and in text for users.
bool is_module_name(std::string_view name);
// The file of a module of that name. Links in the path of the directory itself are resolved: it
// belongs to the installation, and prefixes like /opt may be links.
std::string module_path(const std::string &directory, const std::string &name);

}  // namespace stepwell::drivers
