// SPDX-License-Identifier: Apache-2.0
// A C++17 program outside of the tree: stepwell.hpp, its owners and its exceptions.
#include <stepwell/stepwell.hpp>

int main()
{
    stw_runtime_options options = STW_RUNTIME_OPTIONS_INIT;
    options.host_bytes = 1u << 20;
    options.block_bytes = STW_BLOCK_64K;
    const stw::Runtime runtime = stw::Runtime::open(options).value();
    stw::Tensor tensor = stw::Tensor::create(runtime, "t", {1000}).value();
    try {
        (void)stw::Views::fetch(runtime, {stw::want(tensor)});
        return 1;  // it was never written
    } catch (const stw::Error &error) {
        if (error.code() != STW_ERROR_EMPTY) return 1;
    }
    tensor.fill(2);
    const stw::Views views = stw::Views::fetch(runtime, {stw::want(tensor)}).value();
    return views[0].as<const float>()[999] == 2 ? 0 : 1;
}
