// SPDX-License-Identifier: Apache-2.0
// stepwell.hpp without exceptions and run-time type information: failures come back as codes. A
// program of its own, since the classes differ from those of a build with exceptions.
#include <stepwell/stepwell.hpp>

#include <cstdio>
#include <cstring>

#if !defined(STW_NO_EXCEPTIONS)
#error "compiled with -fno-exceptions, the header must say so"
#endif

namespace {

int g_failures = 0;

void expect(bool good, const char *claim)
{
    if (good) return;
    std::printf("FAILED: %s (%s)\n", claim, stw::last_error());
    ++g_failures;
}

void failures_are_codes()
{
    stw_runtime_options options = STW_RUNTIME_OPTIONS_INIT;
    stw::Result<stw::Runtime> refused = stw::Runtime::open(options);
    expect(!refused.ok() && refused.code() == STW_ERROR_INVALID, "open without a budget fails");
    expect(std::strlen(stw::last_error()) > 0, "the sentence is there");
    options.host_bytes = 1u << 20;
    options.block_bytes = STW_BLOCK_64K;
    stw::Result<stw::Runtime> opened = stw::Runtime::open(options);
    if (!opened.ok()) return expect(false, "open");
    stw::Runtime runtime = std::move(opened).value();
    {
        stw::Result<stw::Tensor> made = stw::Tensor::create(runtime, "t", {1000});
        if (!made.ok()) return expect(false, "create");
        stw::Tensor tensor = std::move(made).value();
        stw::Result<stw::Views> empty = stw::Views::fetch(runtime, {stw::want(tensor)});
        expect(!empty.ok() && empty.code() == STW_ERROR_EMPTY, "an empty tensor is not read");
        expect(tensor.fill(2).ok(), "fill");
        stw::Result<stw::Views> views = stw::Views::fetch(runtime, {stw::want(tensor)});
        expect(views.ok() && views.value()[0].as<const float>()[999] == 2, "the view shows it");
        expect(runtime.close().code() == STW_ERROR_BUSY, "close with a view open is refused");
        expect(bool(runtime), "and it is still owned");
        expect(!tensor.address(0).ok(), "the host tier gives no address for life");
        stw::Result<stw::TensorRef> found = runtime.find("none");
        expect(found.code() == STW_ERROR_NOT_FOUND, "what is not there is not found");
        expect(runtime.background_error().status == STW_OK, "nothing went wrong behind");
    }
    expect(runtime.close().ok(), "close");
    expect(!runtime, "what was closed is not owned");
    expect(runtime.interrupt().code() == STW_ERROR_CLOSED, "a moved or closed runtime says so");
}

}  // namespace

int main()
{
    failures_are_codes();
    return g_failures == 0 ? 0 : 1;
}
