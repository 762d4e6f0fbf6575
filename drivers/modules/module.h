// SPDX-License-Identifier: Apache-2.0
// One module: a shared library with drivers in it, checked, loaded, unloaded when it is refused.
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

    // By an absolute path. Nothing of the file runs before it was found safe. What is refused was
    // unloaded when this returns.
    static stw_status load(const std::string &path, Module *module_out,
                           stw_driver_error *error_out);

    const stw_storage_ops *storage() const { return table_.storage; }
    const stw_memory_ops *memory() const { return table_.memory; }
    const stw_collective_ops *collective() const { return table_.collective; }
    // For good: a driver may have threads, and a handle of its own in other libraries, that outlive
    // what the library knows of it. The dynamic loader has each file once, however often it is
    // loaded.
    void keep() { handle_ = nullptr; }

private:
    void *handle_ = nullptr;  // of dlopen
    stw_driver_module table_ = {};
};

// Where names are looked for: the folder "stepwell" beside the library itself, and nowhere else. ""
// where /proc is not mounted.
const std::string &module_directory();
// The name is fit for a file name and for every place that shows it.
bool is_module_name(std::string_view name);
// The file of a module of that name. Links on the way to the directory itself are resolved: it is
// ours, and prefixes like /opt may be links.
std::string module_path(const std::string &directory, const std::string &name);

}  // namespace stepwell::drivers
