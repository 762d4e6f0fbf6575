// SPDX-License-Identifier: Apache-2.0
// Functions of a library that is loaded at run time, by the names that it exports.
#pragma once

#include <dlfcn.h>

namespace stepwell::drivers {

// Remembers the first function that the library lacks.
class Functions {
public:
    explicit Functions(void *handle) : handle_(handle) {}
    template <class Function> void operator()(const char *name, Function **function_out)
    {
        *function_out = reinterpret_cast<Function *>(dlsym(handle_, name));
        if (*function_out == nullptr && lacks_ == nullptr) lacks_ = name;
    }
    const char *lacks() const { return lacks_; }

private:
    void *handle_;
    const char *lacks_ = nullptr;
};

}  // namespace stepwell::drivers
