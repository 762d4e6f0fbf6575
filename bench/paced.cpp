// SPDX-License-Identifier: Apache-2.0
// step.paced: training steps whose layers compute by sleeping, as on a device that leaves the cores
// free: real tiers, a real drive and real updates by AdamW, with states of four budgets.
//
// usage: paced --mode pending|backward|clipped|speculated --dir DIR [--dtype f32|bf16]
//              [--layers N] [--elements N] [--layer-us N] [--threads N] [--clips N]
// pending: one step of the optimizer after the backward pass, without a norm; backward: each
// parameter's as its gradient is there; clipped: as pending, with a norm; speculated: as backward,
// with a norm after it. The norm is reached in one step of --clips, 0: in none.
// Takes commands on stdin: "step N" of N training steps, "pace US" for the time of a layer's
// forward, quit; answers each with one JSON line.
#include "measure.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <iostream>
#include <sstream>
#include <utility>

namespace {

using bench::must;

// Of a parameter: itself, its gradient and two moments, in fp32; in bf16 half of the first two, and
// the other half of the master.
constexpr uint64_t kStateBytes[] = {16, 14};
constexpr uint32_t kLookAhead = 2;

// The time line of a device: work begins when its bytes are there and the work before has ended.
class Device {
public:
    void begin() { busy_until_ = std::max(busy_until_, bench::now_s()); }
    void compute(double seconds)
    {
        busy_until_ += seconds;
        computed_ += seconds;
    }
    void wait() const
    {
        const double left = busy_until_ - bench::now_s();
        if (left <= 0) return;
        timespec time = {
            static_cast<time_t>(left),
            static_cast<long>((left - static_cast<double>(static_cast<time_t>(left))) * 1e9)};
        while (clock_nanosleep(CLOCK_MONOTONIC, 0, &time, &time) == EINTR) {}
    }
    [[nodiscard]] double computed() const { return computed_; }

private:
    double busy_until_ = 0;
    double computed_ = 0;
};

// Of the processor, as other threads may have it while a call goes on.
double thread_s()
{
    timespec now{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

class Trainer {
public:
    Trainer(stw_runtime *runtime, std::string mode, bool halves, uint32_t layers, uint64_t elements,
            uint64_t clips)
        : runtime_(runtime),
          mode_(std::move(mode)),
          gradient_bytes_(elements * (halves ? 2 : 4)),
          clips_(clips)
    {
        const uint32_t dtype = halves ? STW_BF16 : STW_F32;
        stw_optimizer_options options = STW_OPTIMIZER_OPTIONS_INIT;
        options.algorithm = STW_OPTIMIZER_ADAMW;
        must(stw_optimizer_create(runtime, &options, &optimizer_), "stw_optimizer_create");
        for (uint32_t i = 0; i < layers; ++i) {
            parameters_.push_back(bench::create_tensor(runtime, nullptr, STW_ROLE_PARAM, elements,
                                                       STW_TIER_DEFAULT, dtype));
            gradients_.push_back(bench::create_tensor(runtime, nullptr, STW_ROLE_GRAD, elements,
                                                      STW_TIER_DEFAULT, dtype));
            must(stw_tensor_fill(parameters_[i], 1.0, nullptr), "stw_tensor_fill");
            bench::add_to_optimizer(optimizer_, parameters_[i], gradients_[i]);
        }
        stw_hyper hyper = STW_HYPER_INIT;
        hyper.lr = 1e-6;
        must(stw_optimizer_set_hyper(optimizer_, 0, &hyper), "stw_optimizer_set_hyper");
        must(stw_phase_create(runtime, "train", &phase_), "stw_phase_create");
    }
    ~Trainer()
    {
        must(stw_runtime_drain(runtime_, 0), "stw_runtime_drain");
        must(stw_phase_destroy(phase_), "stw_phase_destroy");
        must(stw_optimizer_destroy(optimizer_), "stw_optimizer_destroy");
        const auto n = static_cast<uint32_t>(parameters_.size());
        must(stw_tensor_destroy(gradients_.data(), n), "stw_tensor_destroy");
        must(stw_tensor_destroy(parameters_.data(), n), "stw_tensor_destroy");
    }
    Trainer(const Trainer &) = delete;
    Trainer &operator=(const Trainer &) = delete;

    void step(double layer_seconds)
    {
        must(stw_step_begin(phase_), "stw_step_begin");
        const auto layers = static_cast<uint32_t>(parameters_.size());
        for (uint32_t i = 0; i < layers; ++i) forward(i, layer_seconds);
        for (uint32_t i = layers; i-- > 0;) backward(i, 2 * layer_seconds);
        ++steps_;
        if (mode_ != "backward") update(nullptr, 0);
        must(stw_step_end(phase_, nullptr), "stw_step_end");
    }
    [[nodiscard]] double computed() const { return device_.computed(); }
    // A call of the optimizer, the median since the last time.
    double call_s() { return bench::median(std::exchange(calls_s_, {})); }

private:
    void prefetch(uint32_t position)
    {
        const auto layers = static_cast<uint32_t>(parameters_.size());
        if (position >= 2 * layers) return;
        const uint32_t layer = position < layers ? position : 2 * layers - 1 - position;
        const stw_fetch_request request =
            bench::request_of(parameters_[layer], STW_READ, STW_TIER_DEVICE);
        must(stw_prefetch(runtime_, &request, 1), "stw_prefetch");
    }

    void forward(uint32_t layer, double seconds)
    {
        stw_view view = fetched(parameters_[layer], STW_READ);
        prefetch(layer + kLookAhead);
        device_.begin();
        device_.compute(seconds);
        device_.wait();
        must(stw_release(&view, 1, STW_STREAM_HOST, 0), "stw_release");
    }

    void backward(uint32_t layer, double seconds)
    {
        stw_view parameter = fetched(parameters_[layer], STW_READ);
        prefetch(2 * static_cast<uint32_t>(parameters_.size()) - 1 - layer + kLookAhead);
        stw_view gradient = fetched(gradients_[layer], STW_WRITE);
        device_.begin();
        device_.compute(seconds);
        // Written by the processor in place of the device.
        std::memset(gradient.pointer, 0, gradient_bytes_);
        device_.wait();
        must(stw_release(&gradient, 1, STW_STREAM_HOST, 0), "stw_release");
        must(stw_release(&parameter, 1, STW_STREAM_HOST, STW_RELEASE_FAR), "stw_release");
        if (mode_ == "backward" || mode_ == "speculated") update(&parameters_[layer], 1);
    }

    void update(stw_tensor **parameters, uint32_t count)
    {
        stw_update_options options = STW_UPDATE_OPTIONS_INIT;
        options.parameters = parameters;
        options.parameter_count = count;
        // Gradients are zeros: a norm so small is reached by what is added to that of gradients.
        const bool reached = clips_ > 0 && steps_ % clips_ == 0;
        if (mode_ == "clipped" || mode_ == "speculated") options.clip_norm = reached ? 1e-7 : 1.0;
        if (mode_ == "speculated" && parameters) options.flags |= STW_UPDATE_SPECULATE;
        const double begin = thread_s();
        must(stw_optimizer_step(optimizer_, &options, nullptr), "stw_optimizer_step");
        calls_s_.push_back(thread_s() - begin);
    }

    stw_view fetched(stw_tensor *tensor, uint32_t access)
    {
        const stw_fetch_request request = bench::request_of(tensor, access, STW_TIER_DEVICE);
        stw_fetch_options options = STW_FETCH_OPTIONS_INIT;
        options.phase = phase_;
        stw_view view;
        must(stw_fetch(runtime_, &options, &request, 1, &view), "stw_fetch");
        return view;
    }

    stw_runtime *runtime_;
    const std::string mode_;
    const uint64_t gradient_bytes_;
    const uint64_t clips_;
    uint64_t steps_ = 0;
    stw_optimizer *optimizer_ = nullptr;
    stw_phase *phase_ = nullptr;
    std::vector<stw_tensor *> parameters_;
    std::vector<stw_tensor *> gradients_;
    std::vector<double> calls_s_;
    Device device_;
};

uint64_t read_bytes(stw_runtime *runtime)
{
    return bench::link_bytes(runtime, STW_LINK_NVME_TO_HOST) +
           bench::link_bytes(runtime, STW_LINK_NVME_TO_DEVICE);
}

uint64_t written_bytes(stw_runtime *runtime)
{
    return bench::link_bytes(runtime, STW_LINK_HOST_TO_NVME) +
           bench::link_bytes(runtime, STW_LINK_DEVICE_TO_NVME);
}

// Updates of the last step are pending at the end, as those of a step before are at the beginning.
void answer(stw_runtime *runtime, Trainer &trainer, uint64_t steps, double layer_seconds)
{
    trainer.step(layer_seconds);
    const uint64_t read = read_bytes(runtime);
    const uint64_t written = written_bytes(runtime);
    const double computed = trainer.computed();
    const double begin = bench::now_s();
    for (uint64_t i = 0; i < steps; ++i) trainer.step(layer_seconds);
    const double seconds = bench::now_s() - begin;
    const uint64_t read_now = read_bytes(runtime);
    const uint64_t written_now = written_bytes(runtime);
    must(stw_runtime_drain(runtime, 0), "stw_runtime_drain");  // before fio has its turn
    const auto n = static_cast<double>(steps);
    std::printf("{\"what\": \"step\", \"seconds\": %.9f, \"compute_seconds\": %.9f, "
                "\"call_us\": %.1f, \"read_bytes\": %.0f, \"written_bytes\": %.0f}\n",
                seconds / n, (trainer.computed() - computed) / n, trainer.call_s() * 1e6,
                static_cast<double>(read_now - read) / n,
                static_cast<double>(written_now - written) / n);
    std::fflush(stdout);
}

}  // namespace

int main(int argc, char **argv)
{
    const bench::Arguments arguments(argc, argv);
    const std::string mode = arguments.text("mode", "pending");
    if (mode != "pending" && mode != "backward" && mode != "clipped" && mode != "speculated")
        bench::give_up("no such mode: " + mode);
    const auto layers = static_cast<uint32_t>(arguments.number("layers", 24));
    const uint64_t elements = arguments.number("elements", uint64_t{4} << 20);
    const std::string dtype = arguments.text("dtype", "f32");
    if (dtype != "f32" && dtype != "bf16") bench::give_up("no such dtype: " + dtype);
    const bool halves = dtype == "bf16";
    const uint64_t states_bytes = layers * elements * kStateBytes[halves ? 1 : 0];
    bench::Budgets budgets;
    budgets.device_bytes = states_bytes / 4;
    budgets.nvme_bytes = states_bytes * 9 / 4;  // with older contents
    budgets.nvme_path = arguments.text("dir", ".");
    budgets.thread_count = static_cast<uint32_t>(arguments.number("threads", 0));
    double layer_seconds = static_cast<double>(arguments.number("layer-us", 10000)) / 1e6;
    stw_runtime *runtime = bench::open_runtime(budgets);
    {
        Trainer trainer(runtime, mode, halves, layers, elements, arguments.number("clips", 0));
        std::string line;
        while (std::getline(std::cin, line) && line != "quit") {
            std::istringstream words(line);
            std::string command;
            double value = 0;
            words >> command >> value;
            if (command == "pace") {
                layer_seconds = value / 1e6;
                std::printf("{\"what\": \"pace\"}\n");
                std::fflush(stdout);
            } else if (command == "step") {
                answer(runtime, trainer, static_cast<uint64_t>(value), layer_seconds);
            } else {
                bench::give_up("no such command: " + line);
            }
        }
    }
    bench::close_runtime(runtime);
    return 0;
}
