// SPDX-License-Identifier: Apache-2.0
//
// Several threads, with stepwell.hpp: four of them take twelve tensors of 2 MiB from a list, on a
// device that holds two at a time, and count what they did in a tensor that all of them write.
// Shows: waiting for the room that other threads' views take, many readers or one writer, an
// exception that leaves its thread. usage: threads [DIRECTORY]

#include <stepwell/stepwell.hpp>

#include <atomic>
#include <cstdio>
#include <future>
#include <vector>

namespace {

constexpr size_t kThreads = 4;
constexpr size_t kTensors = 12;
constexpr uint64_t kElements = 1 << 19;  // of 2^19 floats: 2 MiB each

stw::Runtime open(const char *directory)
{
    stw_device_options device = STW_DEVICE_OPTIONS_INIT;
    device.budget_bytes = 5u << 20;  // two of them, and the counter
    stw_nvme_options nvme = STW_NVME_OPTIONS_INIT;
    nvme.path = directory;
    nvme.budget_bytes = 64u << 20;
    stw_runtime_options options = STW_RUNTIME_OPTIONS_INIT;
    options.devices = &device;
    options.device_count = 1;
    options.nvme = &nvme;
    options.nvme_count = 1;
    options.host_bytes = 4u << 20;
    options.block_bytes = STW_BLOCK_512K;
    return stw::Runtime::open(options).value();
}

// An owner of views belongs to one thread at a time; runtime and tensors may be used by all.
stw::Views fetch(const stw::Runtime &runtime, stw::TensorRef tensor, uint32_t access)
{
    stw_fetch_options options = STW_FETCH_OPTIONS_INIT;
    // Without it, a fetch whose room the others' views take is refused at once.
    options.flags = STW_FETCH_WAIT_ROOM;
    return stw::Views::fetch(runtime, {stw::want(tensor, access)}, &options).value();
}

// What one thread does: the sum over the tensors that it took.
double work(const stw::Runtime &runtime, const std::vector<stw::Tensor> &tensors,
            stw::TensorRef counter, std::atomic<size_t> &next)
{
    double sum = 0;
    for (size_t mine = next++; mine < tensors.size(); mine = next++) {
        {
            // Ends before the next fetch: who holds nothing while waiting is in nobody's way.
            const stw::Views views = fetch(runtime, tensors[mine], STW_READ);
            for (const float value : views[0].as<const float>()) sum += value;
        }
        // A writer is alone: the fetches of the other threads wait for its end.
        const stw::Views views = fetch(runtime, counter, STW_READ_WRITE);
        ++views[0].as<int64_t>()[0];
    }
    return sum;
}

bool run(const char *directory)
{
    const stw::Runtime runtime = open(directory);
    std::vector<stw::Tensor> tensors;
    for (size_t i = 0; i < kTensors; ++i) {
        tensors.push_back(stw::Tensor::create(runtime, nullptr, {kElements}).value());
        tensors.back().fill(static_cast<double>(i));
    }
    stw::Tensor counter = stw::Tensor::create(runtime, "counter", {1}, STW_I64).value();
    int64_t counted = 0;
    counter.write(&counted);

    std::atomic<size_t> next{0};
    std::vector<std::future<double>> threads;
    for (size_t i = 0; i < kThreads; ++i) {
        threads.push_back(
            std::async(std::launch::async, [&] { return work(runtime, tensors, counter, next); }));
    }
    double sum = 0;
    for (std::future<double> &thread : threads) sum += thread.get();  // or its stw::Error
    counter.read(&counted);
    const double expected = static_cast<double>(kElements * kTensors * (kTensors - 1) / 2);
    std::printf("%d tensors counted by %d threads; sum %.0f, expected %.0f\n",
                static_cast<int>(counted), static_cast<int>(kThreads), sum, expected);
    return counted == static_cast<int64_t>(kTensors) && sum == expected;
}

}  // namespace

int main(int count, char **words)
{
    try {
        return run(count > 1 ? words[1] : ".") ? 0 : 1;
    } catch (const stw::Error &error) {
        std::fprintf(stderr, "threads: %s\n", error.what());
        return 1;
    }
}
