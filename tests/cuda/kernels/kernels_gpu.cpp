// SPDX-License-Identifier: Apache-2.0
// The kernels on a GPU: every launch of gpu_case.h there and by the processor, bit for bit, then
// how near they come to the bandwidth of a copy. For a machine with a GPU and its driver; it needs
// nothing else, not even the CUDA toolkit. The exit status is 1 when a bit differs, 2 on an error.
//
// usage: kernels_gpu [--json FILE] [--elements N] [--rounds N]
#include "tests/cuda/kernels/gpu_case.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace stepwell::drivers::cuda::test {
namespace {

// Launches between two events, so that starting them does not count.
constexpr int kRepeats = 5;

void check(cudaError_t error, const char *what)
{
    if (error == cudaSuccess) return;
    std::fprintf(stderr, "kernels_gpu: %s: %s.\n", what, cudaGetErrorString(error));
    std::exit(2);
}

struct Options {
    const char *json = nullptr;
    uint64_t elements = uint64_t{1} << 25;  // no array of it fits a cache
    uint32_t rounds = 15;
};

class DeviceMemory {
public:
    explicit DeviceMemory(uint64_t bytes) { check(cudaMalloc(&memory_, bytes), "cudaMalloc"); }
    DeviceMemory(const DeviceMemory &) = delete;
    DeviceMemory &operator=(const DeviceMemory &) = delete;
    ~DeviceMemory() { cudaFree(memory_); }
    [[nodiscard]] unsigned char *data() const { return static_cast<unsigned char *>(memory_); }
    [[nodiscard]] uint64_t address() const { return reinterpret_cast<uintptr_t>(memory_); }

private:
    void *memory_ = nullptr;
};

class Gpu {
public:
    Gpu()
    {
        cudaDeviceProp properties = {};
        check(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
        name = properties.name;
        sm_count = static_cast<uint32_t>(properties.multiProcessorCount);
        if (stw_cuda_image_bytes == 0) {
            std::fprintf(stderr, "kernels_gpu: the build had no nvcc, so there is no image.\n");
            std::exit(2);
        }
        check(cudaLibraryLoadData(&library_, stw_cuda_image, nullptr, nullptr, 0, nullptr, nullptr,
                                  0),
              "cudaLibraryLoadData");
        for (uint32_t i = 0; i < kKernels; ++i) {
            check(cudaLibraryGetKernel(&kernels_[i], library_,
                                       kernel_entry(static_cast<Kernel>(i)).name),
                  "cudaLibraryGetKernel");
        }
    }

    void launch(const GpuCase &c, Argument argument) const
    {
        const uint32_t blocks = thread_blocks(c.kernel, c.count, sm_count);
        void *arguments[] = {argument.bytes};
        check(cudaLaunchKernel(
                  reinterpret_cast<const void *>(kernels_[static_cast<uint32_t>(c.kernel)]),
                  dim3(blocks), dim3(kernel_entry(c.kernel).threads), arguments, 0, nullptr),
              "cudaLaunchKernel");
    }

    std::string name;
    uint32_t sm_count = 0;

private:
    cudaLibrary_t library_ = nullptr;
    cudaKernel_t kernels_[kKernels] = {};
};

// Bytes that differ after the same launch on both sides.
uint64_t differing_bytes(const Gpu &gpu, const GpuCase &c, uint64_t seed)
{
    const Arena arena(c);
    std::vector<unsigned char> expected(arena.bytes() + 256);
    const auto misaligned = reinterpret_cast<uintptr_t>(expected.data()) % 256;
    unsigned char *host = expected.data() + (256 - misaligned) % 256;
    arena.fill_any(host, seed);
    const DeviceMemory device(arena.bytes());
    check(cudaMemcpy(device.data(), host, arena.bytes(), cudaMemcpyHostToDevice), "cudaMemcpy");
    gpu.launch(c, arena.argument(device.address()));
    std::vector<unsigned char> found(arena.bytes());
    check(cudaMemcpy(found.data(), device.data(), arena.bytes(), cudaMemcpyDeviceToHost),
          "a kernel, or the copy of what it wrote");
    run_by_processor(c, arena.argument(reinterpret_cast<uintptr_t>(host)), gpu.sm_count);
    uint64_t differing = 0;
    for (uint64_t i = 0; i < arena.bytes(); ++i) differing += host[i] != found[i] ? 1 : 0;
    if (differing != 0) {
        std::printf("%s: %" PRIu64 " bytes differ\n", name_of(c).c_str(), differing);
    }
    return differing;
}

struct Compared {
    uint64_t cases = 0;
    uint64_t bytes = 0;
};

std::map<std::string, Compared> compare_all(const Gpu &gpu)
{
    std::map<std::string, Compared> table;
    uint64_t seed = 1;
    for (const GpuCase &c : all_cases()) {
        Compared &row = table[kernel_entry(c.kernel).name];
        ++row.cases;
        row.bytes += differing_bytes(gpu, c, seed++);
    }
    std::printf("%-22s %8s %16s\n", "kernel", "cases", "bytes differing");
    for (const auto &[name, row] : table) {
        std::printf("%-22s %8" PRIu64 " %16" PRIu64 "\n", name.c_str(), row.cases, row.bytes);
    }
    return table;
}

// ------------------------------------------------------------------------------------- bandwidth

struct Measure {
    const char *name;
    GpuCase launch;
    std::unique_ptr<DeviceMemory> memory = nullptr;
    Argument argument = {};
    uint64_t bytes = 0;
    std::vector<double> rates = {};  // GB/s
};

double median(std::vector<double> values)
{
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

double rate_of(uint64_t bytes, const std::function<void()> &work)
{
    cudaEvent_t begin = nullptr;
    cudaEvent_t end = nullptr;
    check(cudaEventCreate(&begin), "cudaEventCreate");
    check(cudaEventCreate(&end), "cudaEventCreate");
    check(cudaEventRecord(begin), "cudaEventRecord");
    for (int i = 0; i < kRepeats; ++i) work();
    check(cudaEventRecord(end), "cudaEventRecord");
    check(cudaEventSynchronize(end), "the kernels that are measured");
    float milliseconds = 0.0F;
    check(cudaEventElapsedTime(&milliseconds, begin, end), "cudaEventElapsedTime");
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    return static_cast<double>(bytes) * kRepeats / milliseconds * 1e-6;
}

std::vector<Measure> measures(uint64_t elements)
{
    std::vector<Measure> all;
    const auto add = [&](const char *name, Kernel kernel, uint32_t to, uint32_t from,
                         uint32_t states) {
        // For updates a decoupled decay, for sums an addition.
        all.push_back({name, {kernel, to, from, states, elements, 0, 1}});
    };
    add("adamw f32", Kernel::kUpdateAdam, STW_F32, STW_F32, STW_F32);
    add("adamw, gradient and values bf16", Kernel::kUpdateAdam, STW_BF16, STW_BF16, STW_F32);
    add("adamw, all but the master bf16", Kernel::kUpdateAdam, STW_BF16, STW_BF16, STW_BF16);
    add("scan f32", Kernel::kScan, STW_F32, STW_F32, STW_F32);
    add("scan bf16", Kernel::kScan, STW_F32, STW_BF16, STW_F32);
    add("scan f16", Kernel::kScan, STW_F32, STW_F16, STW_F32);
    add("average", Kernel::kAverage, STW_F32, STW_F32, STW_F32);
    add("convert f32 to bf16", Kernel::kConvert, STW_BF16, STW_F32, STW_F32);
    add("convert f16 to bf16", Kernel::kConvert, STW_BF16, STW_F16, STW_F32);
    add("accumulate bf16 into f32", Kernel::kAccumulate, STW_F32, STW_BF16, STW_F32);
    return all;
}
static_assert(kDecayDecoupled == 1 && kAccumulateAdd == 1);

// Memory of its own for each, so that each works on numbers of its dtypes.
void prepare(const Gpu &gpu, Measure &measure)
{
    const Arena arena(measure.launch);
    std::vector<unsigned char> host(arena.bytes());
    arena.fill_ordinary(host.data());
    measure.memory = std::make_unique<DeviceMemory>(arena.bytes());
    check(cudaMemcpy(measure.memory->data(), host.data(), host.size(), cudaMemcpyHostToDevice),
          "cudaMemcpy");
    measure.argument = arena.argument(measure.memory->address());
    measure.bytes = arena.traffic_bytes();
    gpu.launch(measure.launch, measure.argument);
}

// Copies and kernels take turns, so that all see the same clocks and the same temperature.
double measure_all(const Gpu &gpu, const Options &options, std::vector<Measure> &all)
{
    for (Measure &measure : all) prepare(gpu, measure);
    const uint64_t bytes = options.elements * 8;
    const DeviceMemory from(bytes);
    const DeviceMemory to(bytes);
    check(cudaMemset(from.data(), 0x5A, bytes), "cudaMemset");
    const auto copy = [&] {
        check(cudaMemcpyAsync(to.data(), from.data(), bytes, cudaMemcpyDeviceToDevice),
              "cudaMemcpyAsync");
    };
    copy();
    std::vector<double> copies;
    for (uint32_t round = 0; round < options.rounds; ++round) {
        for (Measure &measure : all) {
            copies.push_back(rate_of(2 * bytes, copy));
            measure.rates.push_back(
                rate_of(measure.bytes, [&] { gpu.launch(measure.launch, measure.argument); }));
        }
    }
    return median(copies);
}

void print(const Options &options, const Gpu &gpu, double copy, const std::vector<Measure> &all)
{
    std::printf("\n%s, %u SMs, %" PRIu64 " elements, median of %u\n", gpu.name.c_str(),
                gpu.sm_count, options.elements, options.rounds);
    std::printf("%-38s %8s %8s\n", "", "GB/s", "of copy");
    std::printf("%-38s %8.0f %8.2f\n", "cudaMemcpyAsync, read and written", copy, 1.0);
    for (const Measure &measure : all) {
        const double rate = median(measure.rates);
        std::printf("%-38s %8.0f %8.2f\n", measure.name, rate, rate / copy);
    }
}

void write_json(const Options &options, const Gpu &gpu, uint64_t differing, double copy,
                const std::vector<Measure> &all)
{
    std::FILE *file = std::fopen(options.json, "w");
    if (file == nullptr) {
        std::perror(options.json);
        std::exit(2);
    }
    std::fprintf(file,
                 "{\"device\": \"%s\", \"sm_count\": %u, \"elements\": %" PRIu64
                 ", \"rounds\": %u, \"bytes_differing\": %" PRIu64
                 ", \"copy_gb_per_s\": %.1f, \"kernels\": [",
                 gpu.name.c_str(), gpu.sm_count, options.elements, options.rounds, differing, copy);
    for (const Measure &measure : all) {
        const double rate = median(measure.rates);
        std::fprintf(file, "%s\n  {\"name\": \"%s\", \"gb_per_s\": %.1f, \"of_copy\": %.3f}",
                     &measure == all.data() ? "" : ",", measure.name, rate, rate / copy);
    }
    std::fprintf(file, "\n]}\n");
    std::fclose(file);
}

Options parse(int argc, char **argv)
{
    Options options;
    for (int i = 1; i < argc; i += 2) {
        const std::string name = argv[i];
        const char *value = i + 1 < argc ? argv[i + 1] : nullptr;
        if (value != nullptr && name == "--json") {
            options.json = value;
        } else if (value != nullptr && name == "--elements") {
            options.elements = std::max(1ULL, std::strtoull(value, nullptr, 10));
        } else if (value != nullptr && name == "--rounds") {
            options.rounds = std::max(1U, static_cast<uint32_t>(std::atoi(value)));
        } else {
            std::fprintf(stderr, "usage: kernels_gpu [--json FILE] [--elements N] [--rounds N]\n");
            std::exit(2);
        }
    }
    return options;
}

int run(int argc, char **argv)
{
    const Options options = parse(argc, argv);
    const Gpu gpu;
    uint64_t differing = 0;
    for (const auto &[name, row] : compare_all(gpu)) differing += row.bytes;
    std::vector<Measure> all = measures(options.elements);
    const double copy = measure_all(gpu, options, all);
    print(options, gpu, copy, all);
    if (options.json != nullptr) write_json(options, gpu, differing, copy, all);
    return differing == 0 ? 0 : 1;
}

}  // namespace
}  // namespace stepwell::drivers::cuda::test

int main(int argc, char **argv)
{
    std::setvbuf(stdout, nullptr, _IOLBF, 0);  // the log is complete if it is stopped
    return stepwell::drivers::cuda::test::run(argc, argv);
}
