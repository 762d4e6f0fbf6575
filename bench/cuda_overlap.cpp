// SPDX-License-Identifier: Apache-2.0
// cuda.overlap: a step of matrix products, each with a weight that is fetched from the host while
// those before it are multiplied; beside the longer of the products alone and plain copies of the
// bytes that were moved, measured in turns. The products are made as long as a fetch of a weight,
// twice and half as long. They are those of examples/train_gpt_cuda.
//
// usage: cuda_overlap --module FILE [--width N] [--weights N] [--rounds N] [--json FILE]
#include "cuda_link.h"
#include "cuda_results.h"
#include "measure.h"
#include "tests/cuda/driver_calls.h"

#include "gpu.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <string>
#include <vector>

namespace {

using bench::must;
using bench::now_s;
using train_gpt::gpu::Gpu;
using train_gpt::gpu::Kernel;
using train_gpt::gpu::MatmulArguments;

constexpr double kWanted = 1 / 1.05;
constexpr uint32_t kAhead = 2;    // weights that are on their way while one is multiplied
constexpr uint64_t kRoomFor = 6;  // of them at a time on the device
constexpr uint32_t kRowsMax = 16384;
constexpr uint64_t kSmallBytes = uint64_t{4} << 20;  // a weight of several of the usual blocks

struct Setup {
    std::string module;
    uint32_t width = 0;  // weights are [width, width]
    uint32_t weights = 0;
    uint64_t rounds = 0;
    uint64_t weight_bytes() const { return uint64_t{width} * width * sizeof(float); }
};

// x [rows, width] times weights that are on the device.
class Products {
public:
    Products(Gpu &gpu, const Setup &setup) : gpu_(gpu), width_(setup.width)
    {
        const uint64_t bytes = uint64_t{kRowsMax} * width_ * sizeof(float);
        x_ = gpu.allocate(bytes);
        y_ = gpu.allocate(bytes);
        weight_ = gpu.allocate(setup.weight_bytes());
    }
    ~Products()
    {
        gpu_.wait();
        for (const uint64_t memory : {x_, y_, weight_}) gpu_.free(memory);
    }
    Products(const Products &) = delete;
    Products &operator=(const Products &) = delete;

    void set_rows(uint32_t rows) { rows_ = rows; }
    uint32_t rows() const { return rows_; }
    void multiply(uint64_t weight) const
    {
        MatmulArguments product = {};
        product.a = x_, product.b = weight, product.c = y_;
        product.batches = product.inner = 1;
        product.m = rows_, product.n = product.k = width_;
        product.a_stride = product.b_stride = product.c_stride = width_;
        product.alpha = 1.0F;
        gpu_.launch(Kernel::kMatmul, product, train_gpt::gpu::matmul_blocks(product));
    }
    // Seconds of so many, with a weight that stays.
    double alone(uint32_t count) const
    {
        const double begin = now_s();
        for (uint32_t i = 0; i < count; ++i) multiply(weight_);
        gpu_.wait();
        return now_s() - begin;
    }
    double flops(uint32_t count) const
    {
        return 2.0 * count * rows_ * static_cast<double>(width_) * width_;
    }

private:
    Gpu &gpu_;
    uint32_t width_;
    uint32_t rows_ = 0;
    uint64_t x_ = 0;
    uint64_t y_ = 0;
    uint64_t weight_ = 0;
};

// Weights that rest in the host tier, of which the device has room for a few.
class Weights {
public:
    Weights(Gpu &gpu, const Setup &setup) : gpu_(gpu)
    {
        bench::Budgets budgets;
        budgets.device_driver = setup.module;
        budgets.device_bytes = kRoomFor * setup.weight_bytes();
        if (setup.weight_bytes() < kSmallBytes) budgets.block_bytes = STW_BLOCK_64K;
        budgets.host_bytes = setup.weights * setup.weight_bytes() + (uint64_t{64} << 20);
        runtime_ = bench::open_runtime(budgets);
        const std::vector<float> numbers(uint64_t{setup.width} * setup.width, 0.5F);
        for (uint32_t i = 0; i < setup.weights; ++i) {
            tensors_.push_back(bench::create_tensor(runtime_, nullptr, STW_ROLE_PARAM,
                                                    numbers.size(), STW_TIER_HOST));
            must(stw_tensor_write(tensors_.back(), numbers.data(), nullptr), "stw_tensor_write");
        }
        must(stw_phase_create(runtime_, "overlap", &phase_), "stw_phase_create");
    }
    ~Weights()
    {
        must(stw_phase_destroy(phase_), "stw_phase_destroy");
        must(stw_tensor_destroy(tensors_.data(), count()), "stw_tensor_destroy");
        bench::close_runtime(runtime_);
    }
    Weights(const Weights &) = delete;
    Weights &operator=(const Weights &) = delete;

    uint32_t count() const { return static_cast<uint32_t>(tensors_.size()); }

    // Seconds of a step of products; bytes_out: what was moved in it.
    double step(const Products &products, uint64_t *bytes_out)
    {
        const uint64_t before = bytes_moved();
        const double begin = now_s();
        must(stw_step_begin(phase_), "stw_step_begin");
        for (uint32_t i = 0; i < std::min(kAhead, count()); ++i) prefetch(i);
        for (uint32_t i = 0; i < count(); ++i) {
            stw_fetch_options options = STW_FETCH_OPTIONS_INIT;
            options.stream = gpu_.stream();
            options.phase = phase_;
            const auto request = bench::request_of(tensors_[i], STW_READ, STW_TIER_DEVICE);
            stw_view view;
            must(stw_fetch(runtime_, &options, &request, 1, &view), "stw_fetch");
            if (i + kAhead < count()) prefetch(i + kAhead);
            products.multiply(reinterpret_cast<uintptr_t>(view.pointer));
            must(stw_release(&view, 1, gpu_.stream(), STW_RELEASE_FAR), "stw_release");
        }
        gpu_.wait();
        must(stw_step_end(phase_, nullptr), "stw_step_end");
        const double seconds = now_s() - begin;
        *bytes_out = bytes_moved() - before;
        return seconds;
    }

private:
    void prefetch(uint32_t index)
    {
        const auto request = bench::request_of(tensors_[index], STW_READ, STW_TIER_DEVICE);
        must(stw_prefetch(runtime_, &request, 1), "stw_prefetch");
    }
    uint64_t bytes_moved() const
    {
        stw_link_stats stats = STW_LINK_STATS_INIT;
        must(stw_link_stats_get(runtime_, STW_LINK_HOST_TO_DEVICE, 0, &stats),
             "stw_link_stats_get");
        return stats.bytes;
    }

    Gpu &gpu_;
    stw_runtime *runtime_ = nullptr;
    stw_phase *phase_ = nullptr;
    std::vector<stw_tensor *> tensors_;
};

// Rows that make a product take so many seconds.
uint32_t rows_for(Products &products, double seconds)
{
    constexpr uint32_t kProbe = 512;
    constexpr uint32_t kProducts = 4;
    products.set_rows(kProbe);
    products.alone(kProducts);  // the first ones are slower
    const double of_probe = products.alone(kProducts) / kProducts;
    const double rows = std::round(kProbe * seconds / of_probe);
    return static_cast<uint32_t>(std::clamp(rows, 1.0, static_cast<double>(kRowsMax)));
}

void measure(const Setup &setup, const bench::CudaLink &link, Weights &weights, Products &products,
             const char *name, bench::Results *results)
{
    std::vector<bench::Pair> pairs;
    double compute = 0, transfer = 0;
    for (uint64_t round = 0; round < setup.rounds + 2; ++round) {
        bench::Pair pair;
        uint64_t bytes = 0;
        const auto ours = [&] { pair.ours = weights.step(products, &bytes); };
        if (round % 2 == 0) ours();
        compute = products.alone(weights.count());
        const double of_weight = link.up(setup.weight_bytes());
        if (round % 2 == 1) ours();
        transfer =
            of_weight * static_cast<double>(bytes) / static_cast<double>(setup.weight_bytes());
        pair.reference = std::max(compute, transfer);
        if (round >= 2) pairs.push_back(pair);  // the first step is recorded, the second planned
    }
    char against[160];
    std::snprintf(against, sizeof against,
                  "the longer of products of %u rows, %.3g ms at %.3g TFLOP/s, and copies, %.3g ms",
                  products.rows(), compute * 1e3, products.flops(weights.count()) / compute / 1e12,
                  transfer * 1e3);
    results->step(name, against, kWanted, true, pairs);
}

}  // namespace

int main(int argc, char **argv)
{
    const bench::Arguments arguments(argc, argv);
    Setup setup;
    setup.module = arguments.text("module", "");
    setup.width = static_cast<uint32_t>(arguments.number("width", 4096));
    setup.weights = static_cast<uint32_t>(arguments.number("weights", 24));
    setup.rounds = arguments.number("rounds", 9);
    if (setup.module.empty()) bench::give_up("--module FILE names libstepwell-cuda.so");
    if (setup.width == 0 || setup.weights == 0 || setup.rounds == 0)
        bench::give_up("--width, --weights and --rounds are 1 or more");

    const stepwell::gpu::DriverCalls calls = stepwell::gpu::open_driver();
    {
        Gpu gpu(0);
        const bench::CudaLink link(calls, setup.weight_bytes());
        Products products(gpu, setup);
        Weights weights(gpu, setup);
        bench::Results results(arguments.text("json", ""));
        link.up(setup.weight_bytes());
        const double fetch = link.up(setup.weight_bytes());
        const struct {
            const char *name;
            double fetches;  // that a product lasts
        } cases[] = {{"cuda.overlap.even", 1.0},
                     {"cuda.overlap.compute", 2.0},
                     {"cuda.overlap.copies", 0.5}};
        for (const auto &one : cases) {
            products.set_rows(rows_for(products, one.fetches * fetch));
            measure(setup, link, weights, products, one.name, &results);
        }
    }
    stepwell::gpu::close_driver(calls);
    return 0;
}
