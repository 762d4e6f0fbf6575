// SPDX-License-Identifier: Apache-2.0
// A program on another C++ runtime, libc++ and libc++abi, linked to the library, which brings
// libstdc++. The program throws and catches; memory that it refuses the library is a status there.
#include <stepwell/stepwell.h>

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <new>

namespace {

thread_local bool refusing = false;

int fail(const char *claim)
{
    fprintf(stderr, "not so: %s; %s\n", claim, stw_last_error());
    return 1;
}

bool throws_by_libcxxabi()
{
    Dl_info where = {};
    const bool found = dladdr(dlsym(RTLD_DEFAULT, "__cxa_throw"), &where) != 0;
    return found && strstr(where.dli_fname, "libc++abi.so") != nullptr;
}

bool catches_its_own()
{
    refusing = true;
    try {
        ::operator delete(::operator new(1));
    } catch (const std::bad_alloc &) {
        refusing = false;
        return true;
    }
    refusing = false;
    return false;
}

}  // namespace

// The library's memory as well: its calls of operator new end here.
void *operator new(std::size_t bytes)
{
    void *const memory = refusing ? nullptr : malloc(bytes);
    if (!memory) throw std::bad_alloc();
    return memory;
}

void operator delete(void *memory) noexcept
{
    free(memory);
}

void operator delete(void *memory, std::size_t) noexcept
{
    free(memory);
}

int main()
{
    if (!throws_by_libcxxabi()) return fail("exceptions are libc++abi's");
    if (!catches_its_own()) return fail("the program catches what it throws");

    stw_runtime_options options = STW_RUNTIME_OPTIONS_INIT;
    options.host_bytes = 1u << 20;
    options.block_bytes = STW_BLOCK_64K;
    stw_runtime *runtime = nullptr;
    refusing = true;
    const stw_status refused = stw_runtime_open(&options, &runtime);
    refusing = false;
    if (refused != STW_ERROR_MEMORY) return fail("the library catches what it is refused");
    if (stw_runtime_open(&options, &runtime) != STW_OK) return fail("open");

    stw_tensor_spec spec = STW_TENSOR_SPEC_INIT;
    stw_tensor *tensor = nullptr;
    float value = 0;
    spec.dtype = STW_F32;
    if (stw_tensor_create(runtime, &spec, 1, &tensor) != STW_OK) return fail("create");
    if (stw_tensor_fill(tensor, 3, nullptr) != STW_OK) return fail("fill");
    if (stw_tensor_read(tensor, &value, nullptr) != STW_OK || value != 3) return fail("read");
    if (stw_tensor_destroy(&tensor, 1) != STW_OK) return fail("destroy");
    if (stw_runtime_close(runtime, 0, 0) != STW_OK) return fail("close");
    return catches_its_own() ? 0 : fail("the program still catches what it throws");
}
