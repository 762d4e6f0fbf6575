// SPDX-License-Identifier: Apache-2.0
// update.memory and update.nvme: AdamW in fp32 by stw_optimizer_step, beside the plain loop.
//
// usage: update --mode memory [--bytes N] [--threads N] [--rounds N]
//        update --mode nvme --dir DIR [--host-bytes N] [--threads N]
//        update --mode split --dir DIR [--threads N]
// memory prints one JSON line a round, plain loop and step interleaved over the same arrays. nvme
// takes commands on stdin: step, quit, and answers each with one JSON line. A step begins and ends
// with every byte on the drive, so it moves all of them: 16 bytes read and 12 written a parameter.
// split prints one JSON line: what such a step of bf16 parameters writes with masters in parts and
// with whole ones, and whether all tensors have the same bits after it.
#include "measure.h"
#include "plain_update.h"

#include <sched.h>

#include <cinttypes>
#include <cstdio>
#include <iostream>

namespace {

using bench::must;

constexpr uint64_t kStateBytes = 12;  // a parameter: itself and its two moments

// One flat model: `tensors` parameters with gradients in one optimizer.
class Model {
public:
    Model(stw_runtime *runtime, uint64_t elements, uint32_t tensors, uint32_t home,
          uint32_t dtype = STW_F32)
        : runtime_(runtime)
    {
        stw_policy policy = STW_POLICY_INIT;
        policy.home = home;
        stw_optimizer_options options = STW_OPTIMIZER_OPTIONS_INIT;
        options.algorithm = STW_OPTIMIZER_ADAMW;
        options.state_policy = &policy;
        must(stw_optimizer_create(runtime, &options, &optimizer_), "stw_optimizer_create");
        for (uint32_t i = 0; i < tensors; ++i) {
            parameters_.push_back(bench::create_tensor(runtime, nullptr, STW_ROLE_PARAM,
                                                       elements / tensors, home, dtype));
            gradients_.push_back(bench::create_tensor(runtime, nullptr, STW_ROLE_GRAD,
                                                      elements / tensors, home, dtype));
            must(stw_tensor_fill(parameters_[i], 1.0, nullptr), "stw_tensor_fill");
            must(stw_tensor_fill(gradients_[i], 1.0, nullptr), "stw_tensor_fill");
            bench::add_to_optimizer(optimizer_, parameters_[i], gradients_[i]);
        }
        stw_hyper hyper = STW_HYPER_INIT;
        hyper.lr = 1e-6;
        hyper.weight_decay = 0.01;
        must(stw_optimizer_set_hyper(optimizer_, 0, &hyper), "stw_optimizer_set_hyper");
    }
    ~Model()
    {
        must(stw_optimizer_destroy(optimizer_), "stw_optimizer_destroy");
        const auto n = static_cast<uint32_t>(parameters_.size());
        must(stw_tensor_destroy(gradients_.data(), n), "stw_tensor_destroy");
        must(stw_tensor_destroy(parameters_.data(), n), "stw_tensor_destroy");
    }
    Model(const Model &) = delete;
    Model &operator=(const Model &) = delete;

    // The whole update, last byte included. Gradients stay, so every step does the same work.
    void step()
    {
        stw_update_options options = STW_UPDATE_OPTIONS_INIT;
        options.flags = STW_UPDATE_WAIT | STW_UPDATE_KEEP_GRADIENTS;
        // Nobody asks for a norm: the gradients are read once, as in the plain loop.
        must(stw_optimizer_step(optimizer_, &options, nullptr), "stw_optimizer_step");
        stw_update_result result = STW_UPDATE_RESULT_INIT;
        must(stw_optimizer_result(optimizer_, &result), "stw_optimizer_result");
        if (result.updated != parameters_.size()) bench::give_up("a parameter was left alone");
    }

    // Contents that are a function of the element alone.
    void write_noise()
    {
        const uint64_t count = info_of(parameters_[0]).elements;
        std::vector<float> noise(count);
        stw_copy_options as_f32 = STW_COPY_OPTIONS_INIT;
        as_f32.dtype = STW_F32;
        uint64_t bits = 1;
        const auto fill = [&](const std::vector<stw_tensor *> &tensors) {
            for (stw_tensor *tensor : tensors) {
                for (float &value : noise) {
                    bits = bits * 6364136223846793005U + 1442695040888963407U;
                    value = static_cast<float>(static_cast<int32_t>(bits >> 32)) * 0x1p-31F;
                }
                must(stw_tensor_write(tensor, noise.data(), &as_f32), "stw_tensor_write");
            }
        };
        fill(parameters_);
        fill(gradients_);
    }

    void make_whole()
    {
        for (size_t i = 0; i < parameters_.size(); ++i) state(i, "master");
    }

    // Of the parameters, their masters and moments.
    std::vector<char> bytes()
    {
        std::vector<char> all;
        for (size_t i = 0; i < parameters_.size(); ++i) {
            for (stw_tensor *tensor : {parameters_[i], state(i, "master"), state(i, "exp_avg"),
                                       state(i, "exp_avg_sq")}) {
                const size_t at = all.size();
                all.resize(at + info_of(tensor).whole_bytes);
                must(stw_tensor_read(tensor, all.data() + at, nullptr), "stw_tensor_read");
            }
        }
        return all;
    }

    // Seconds of the plain loop over the very arrays the step works on.
    double plain_seconds(uint32_t threads)
    {
        double seconds = 0;
        for (size_t i = 0; i < parameters_.size(); ++i) {
            stw_fetch_request requests[4] = {
                bench::request_of(parameters_[i], STW_READ_WRITE, STW_TIER_HOST),
                bench::request_of(state(i, "exp_avg"), STW_READ_WRITE, STW_TIER_HOST),
                bench::request_of(state(i, "exp_avg_sq"), STW_READ_WRITE, STW_TIER_HOST),
                bench::request_of(gradients_[i], STW_READ, STW_TIER_HOST),
            };
            stw_fetch_options options = STW_FETCH_OPTIONS_INIT;
            stw_view views[4];
            must(stw_fetch(runtime_, &options, requests, 4, views), "stw_fetch");
            const bench::UpdateArrays arrays = {
                static_cast<float *>(views[0].pointer), static_cast<float *>(views[1].pointer),
                static_cast<float *>(views[2].pointer),
                static_cast<const float *>(views[3].pointer), views[0].element_count};
            seconds += bench::plain_update_seconds(arrays, threads);
            must(stw_release(views, 4, STW_STREAM_HOST, 0), "stw_release");
        }
        return seconds;
    }

private:
    static stw_tensor_info info_of(stw_tensor *tensor)
    {
        stw_tensor_info info{};
        info.struct_size = sizeof info;
        must(stw_tensor_info_get(tensor, &info), "stw_tensor_info_get");
        return info;
    }
    stw_tensor *state(size_t index, const char *name)
    {
        stw_tensor *tensor = nullptr;
        must(stw_optimizer_state(optimizer_, parameters_[index], name, &tensor),
             "stw_optimizer_state");
        return tensor;
    }

    stw_runtime *runtime_;
    stw_optimizer *optimizer_ = nullptr;
    std::vector<stw_tensor *> parameters_;
    std::vector<stw_tensor *> gradients_;
};

uint32_t threads_of(const bench::Arguments &arguments)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    const bool known = sched_getaffinity(0, sizeof set, &set) == 0;
    return static_cast<uint32_t>(
        arguments.number("threads", known ? static_cast<uint64_t>(CPU_COUNT(&set)) : 1));
}

void measure_memory(const bench::Arguments &arguments)
{
    // Of the four arrays. Not a power of two: at strides of 256 MiB some processors take the lines
    // of different arrays for each other, and a plain loop does a seventh of what it can.
    const uint64_t bytes = arguments.number("bytes", uint64_t{1032} << 20);
    const uint64_t elements = bytes / (kStateBytes + sizeof(float));
    bench::Budgets budgets;
    budgets.host_bytes = bytes + bytes / 8 + (uint64_t{64} << 20);
    budgets.thread_count = threads_of(arguments);
    stw_runtime *runtime = bench::open_runtime(budgets);
    {
        Model model(runtime, elements, 1, STW_TIER_HOST);
        model.step();
        model.plain_seconds(budgets.thread_count);
        for (uint64_t i = 0; i < arguments.number("rounds", 7); ++i) {
            const double plain = model.plain_seconds(budgets.thread_count);
            const double begin = bench::now_s();
            model.step();
            const double ours = bench::now_s() - begin;
            std::printf("{\"what\": \"update\", \"parameters\": %" PRIu64 ", \"threads\": %" PRIu32
                        ", \"plain_seconds\": %.9f, \"step_seconds\": %.9f}\n",
                        elements, budgets.thread_count, plain, ours);
        }
    }
    bench::close_runtime(runtime);
}

// The plain loop over arrays in ordinary memory: seconds a parameter, for the memory bound.
double memory_seconds_per_parameter(uint32_t threads)
{
    constexpr uint64_t kElements = uint64_t{16} << 20;
    std::vector<float> arrays[4];
    for (std::vector<float> &array : arrays) array.assign(kElements, 1.0F);
    const bench::UpdateArrays plain = {arrays[0].data(), arrays[1].data(), arrays[2].data(),
                                       arrays[3].data(), kElements};
    return bench::plain_update_seconds(plain, threads) / kElements;
}

void measure_nvme(const bench::Arguments &arguments)
{
    constexpr uint32_t kTensors = 8;
    constexpr uint64_t kBlockElements = 524288;  // tensors of whole blocks: no padding to count
    bench::Budgets budgets;
    budgets.host_bytes = arguments.number("host-bytes", uint64_t{256} << 20);
    budgets.thread_count = threads_of(arguments);
    budgets.nvme_path = arguments.text("dir", ".");
    const uint64_t states_bytes = 4 * budgets.host_bytes;
    const uint64_t group = kTensors * kBlockElements;
    const uint64_t elements = (states_bytes / kStateBytes + group - 1) / group * group;
    budgets.nvme_bytes = elements * (kStateBytes + 4) * 17 / 16 + (uint64_t{64} << 20);
    stw_runtime *runtime = bench::open_runtime(budgets);
    {
        Model model(runtime, elements, kTensors, STW_TIER_NVME);
        const auto all_out = [&] {
            must(stw_evict(runtime, nullptr, 0, STW_TIER_HOST, 0, 0), "stw_evict");
        };
        all_out();
        std::string command;
        while (std::getline(std::cin, command) && command != "quit") {
            if (command != "step") bench::give_up("no such command: " + command);
            const uint64_t read = bench::link_bytes(runtime, STW_LINK_NVME_TO_HOST);
            const uint64_t written = bench::link_bytes(runtime, STW_LINK_HOST_TO_NVME);
            const double begin = bench::now_s();
            model.step();
            all_out();
            const double seconds = bench::now_s() - begin;
            std::printf("{\"what\": \"step\", \"parameters\": %" PRIu64
                        ", \"seconds\": %.9f, \"read_bytes\": %" PRIu64
                        ", \"written_bytes\": %" PRIu64 ", \"memory_seconds\": %.9f}\n",
                        elements, seconds, bench::link_bytes(runtime, STW_LINK_NVME_TO_HOST) - read,
                        bench::link_bytes(runtime, STW_LINK_HOST_TO_NVME) - written,
                        memory_seconds_per_parameter(budgets.thread_count) *
                            static_cast<double>(elements));
            std::fflush(stdout);
        }
    }
    bench::close_runtime(runtime);
}

// The first step makes the states; the second one's bytes are counted.
uint64_t split_step(const bench::Arguments &arguments, uint64_t elements, bool whole,
                    std::vector<char> *bytes_out)
{
    bench::Budgets budgets;
    budgets.host_bytes = uint64_t{128} << 20;
    budgets.thread_count = threads_of(arguments);
    budgets.nvme_path = arguments.text("dir", ".");
    budgets.nvme_bytes = elements * 20 + (uint64_t{128} << 20);
    stw_runtime *runtime = bench::open_runtime(budgets);
    uint64_t written = 0;
    {
        Model model(runtime, elements, 2, STW_TIER_NVME, STW_BF16);
        if (whole) model.make_whole();
        model.write_noise();
        for (int step = 0; step < 2; ++step) {
            must(stw_evict(runtime, nullptr, 0, STW_TIER_HOST, 0, 0), "stw_evict");
            written = bench::link_bytes(runtime, STW_LINK_HOST_TO_NVME);
            model.step();
            must(stw_evict(runtime, nullptr, 0, STW_TIER_HOST, 0, 0), "stw_evict");
            written = bench::link_bytes(runtime, STW_LINK_HOST_TO_NVME) - written;
        }
        *bytes_out = model.bytes();
    }
    bench::close_runtime(runtime);
    return written;
}

void measure_split(const bench::Arguments &arguments)
{
    constexpr uint64_t kElements = uint64_t{32} << 20;  // whole blocks of every tensor
    std::vector<char> parts;
    std::vector<char> whole;
    const uint64_t parts_bytes = split_step(arguments, kElements, false, &parts);
    const uint64_t whole_bytes = split_step(arguments, kElements, true, &whole);
    std::printf("{\"what\": \"split\", \"parameters\": %" PRIu64 ", \"parts_bytes\": %" PRIu64
                ", \"whole_bytes\": %" PRIu64 ", \"same\": %s}\n",
                kElements, parts_bytes, whole_bytes, parts == whole ? "true" : "false");
}

}  // namespace

int main(int argc, char **argv)
{
    const bench::Arguments arguments(argc, argv);
    const std::string mode = arguments.text("mode", "memory");
    if (mode == "memory")
        measure_memory(arguments);
    else if (mode == "nvme")
        measure_nvme(arguments);
    else if (mode == "split")
        measure_split(arguments);
    else
        bench::give_up("no such mode: " + mode);
    return 0;
}
