// SPDX-License-Identifier: Apache-2.0
// cuda.update: a step of AdamW in fp32 whose parameters, gradients and moments are all on a GPU,
// beside a plain copy on the device that moves as many bytes, in turns.
//
// usage: cuda_update --module FILE [--bytes N] [--tensors N] [--rounds N] [--json FILE]
#include "cuda_results.h"
#include "measure.h"
#include "tests/cuda/driver_calls.h"

#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

namespace {

using bench::must;
using bench::now_s;
using stepwell::gpu::Address;
using stepwell::gpu::DriverCalls;

constexpr double kWanted = 0.90;
constexpr int kCannotBeMeasured = 77;
// Parameter and moments are read and written, the gradient is read.
constexpr uint64_t kTrafficOfElement = 7 * sizeof(float);

class Model {
public:
    // `bytes` of parameters, in so many tensors.
    Model(const DriverCalls &calls, stw_runtime *runtime, uint64_t bytes, uint64_t tensors)
        : calls_(calls), runtime_(runtime), elements_(bytes / sizeof(float) / tensors)
    {
        calls_.must(calls_.stream_create(&stream_, 1), "cuStreamCreate");
        stw_policy policy = STW_POLICY_INIT;
        policy.home = STW_TIER_DEVICE;
        stw_optimizer_options options = STW_OPTIMIZER_OPTIONS_INIT;
        options.algorithm = STW_OPTIMIZER_ADAMW;
        options.state_policy = &policy;
        must(stw_optimizer_create(runtime, &options, &optimizer_), "stw_optimizer_create");
        const stw_hyper usual = STW_HYPER_INIT;
        must(stw_optimizer_set_hyper(optimizer_, 0, &usual), "stw_optimizer_set_hyper");
        for (uint64_t i = 0; i < tensors; ++i) {
            parameters_.push_back(
                bench::create_tensor(runtime, nullptr, STW_ROLE_PARAM, elements_, STW_TIER_DEVICE));
            gradients_.push_back(
                bench::create_tensor(runtime, nullptr, STW_ROLE_GRAD, elements_, STW_TIER_DEVICE));
            stw_optimizer_entry entry = STW_OPTIMIZER_ENTRY_INIT;
            entry.parameter = parameters_.back();
            entry.gradient = gradients_.back();
            must(stw_optimizer_add(optimizer_, &entry, 1), "stw_optimizer_add");
        }
        fill(parameters_);
        fill(gradients_);
    }
    ~Model()
    {
        must(stw_optimizer_destroy(optimizer_), "stw_optimizer_destroy");
        destroy(parameters_);
        destroy(gradients_);
        must(stw_stream_forget(runtime_, stream_), "stw_stream_forget");
        calls_.stream_destroy(stream_);
    }
    Model(const Model &) = delete;
    Model &operator=(const Model &) = delete;

    [[nodiscard]] uint64_t traffic_bytes() const
    {
        return elements_ * parameters_.size() * kTrafficOfElement;
    }
    // Seconds until every parameter is updated, for work on a stream.
    double step()
    {
        stw_update_options options = STW_UPDATE_OPTIONS_INIT;
        options.flags = STW_UPDATE_KEEP_GRADIENTS;
        const double begin = now_s();
        must(stw_optimizer_step(optimizer_, &options, nullptr), "stw_optimizer_step");
        for_each_view(parameters_, STW_READ, [](const stw_view &) {});
        calls_.must(calls_.stream_synchronize(stream_), "cuStreamSynchronize");
        return now_s() - begin;
    }

private:
    template <class Use>
    void for_each_view(const std::vector<stw_tensor *> &tensors, uint32_t access, const Use &use)
    {
        stw_fetch_options options = STW_FETCH_OPTIONS_INIT;
        options.stream = stream_;
        for (stw_tensor *tensor : tensors) {
            const auto request = bench::request_of(tensor, access, STW_TIER_DEVICE);
            stw_view view;
            must(stw_fetch(runtime_, &options, &request, 1, &view), "stw_fetch");
            use(view);
            must(stw_release(&view, 1, stream_, 0), "stw_release");
        }
    }
    void fill(const std::vector<stw_tensor *> &tensors)
    {
        constexpr uint32_t kSome = 0x3c23d70a;  // 0.01
        for_each_view(tensors, STW_WRITE, [this](const stw_view &view) {
            calls_.must(calls_.fill(reinterpret_cast<Address>(view.pointer), kSome,
                                    view.bytes / sizeof(uint32_t), stream_),
                        "cuMemsetD32Async");
        });
    }
    static void destroy(const std::vector<stw_tensor *> &tensors)
    {
        must(stw_tensor_destroy(tensors.data(), static_cast<uint32_t>(tensors.size())),
             "stw_tensor_destroy");
    }

    const DriverCalls &calls_;
    stw_runtime *runtime_;
    const uint64_t elements_;
    void *stream_ = nullptr;
    stw_optimizer *optimizer_ = nullptr;
    std::vector<stw_tensor *> parameters_;
    std::vector<stw_tensor *> gradients_;
};

// A copy of half of the bytes, each of which is read and written.
class Copy {
public:
    Copy(const DriverCalls &calls, uint64_t traffic) : calls_(calls), bytes_(traffic / 2)
    {
        calls_.must(calls_.stream_create(&stream_, 1), "cuStreamCreate");
        calls_.must(calls_.memory_alloc(&from_, bytes_), "cuMemAlloc");
        calls_.must(calls_.memory_alloc(&to_, bytes_), "cuMemAlloc");
    }
    ~Copy()
    {
        calls_.memory_free(from_);
        calls_.memory_free(to_);
        calls_.stream_destroy(stream_);
    }
    Copy(const Copy &) = delete;
    Copy &operator=(const Copy &) = delete;
    double run() const
    {
        const double begin = now_s();
        calls_.must(calls_.copy_inside(to_, from_, bytes_, stream_), "cuMemcpyDtoDAsync");
        calls_.must(calls_.stream_synchronize(stream_), "cuStreamSynchronize");
        return now_s() - begin;
    }

private:
    const DriverCalls &calls_;
    const uint64_t bytes_;
    void *stream_ = nullptr;
    Address from_ = 0;
    Address to_ = 0;
};

}  // namespace

int main(int argc, char **argv)
{
    const bench::Arguments arguments(argc, argv);
    const std::string module = arguments.text("module", "");
    const uint64_t bytes = arguments.number("bytes", uint64_t{1} << 30);
    const uint64_t tensors = arguments.number("tensors", 32);
    const uint64_t rounds = arguments.number("rounds", 15);
    if (module.empty()) bench::give_up("--module FILE names libstepwell-cuda.so");

    const DriverCalls calls = stepwell::gpu::open_driver();
    bench::Budgets budgets;
    budgets.device_driver = module;
    budgets.device_bytes = 4 * bytes + bytes / 4 + (uint64_t{16} << 20);
    // What may be evicted is promised room there, though nothing is.
    budgets.host_bytes = 4 * bytes + (uint64_t{64} << 20);
    stw_runtime *runtime = bench::open_runtime(budgets);
    stw_device_info info = {};
    info.struct_size = sizeof info;
    must(stw_device_info_get(runtime, 0, &info), "stw_device_info_get");
    if ((info.flags & STW_DEVICE_UPDATES) == 0) {
        std::printf("this device computes no updates: the module has no kernels for it\n");
        bench::close_runtime(runtime);
        stepwell::gpu::close_driver(calls);
        return kCannotBeMeasured;
    }
    bench::Results results(arguments.text("json", ""));
    {
        Model model(calls, runtime, bytes, tensors);
        const Copy copy(calls, model.traffic_bytes());
        std::vector<bench::Pair> pairs;
        for (uint64_t i = 0; i <= rounds; ++i) {
            bench::Pair pair;
            if (i % 2 == 1) pair.reference = copy.run();
            pair.ours = model.step();
            if (i % 2 == 0) pair.reference = copy.run();
            if (i > 0) pairs.push_back(pair);  // the first one warms up
        }
        results.rate("cuda.update", model.traffic_bytes(), "cuMemcpyDtoDAsync", kWanted, pairs);
    }
    bench::close_runtime(runtime);
    stepwell::gpu::close_driver(calls);
    return 0;
}
