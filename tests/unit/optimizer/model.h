// SPDX-License-Identifier: Apache-2.0
// What the tests share: parameters with random contents in fake tiers, and what a step must make of
// them, computed by one call of the kernel over whole arrays.
#pragma once

#include "fake_devices.h"
#include "fake_tiers.h"
#include "lib/update/kernels/kernels.h"
#include "lib/update/optimizer.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace stepwell::update::test {

constexpr uint64_t kBlockBytes = 16 * 1024;

inline uint32_t bytes_of(uint32_t dtype)
{
    return dtype == STW_F32 ? 4 : 2;
}

struct Shape {
    uint64_t elements = 0;
    uint32_t dtype = STW_F32;
    uint32_t gradient_dtype = STW_F32;
    uint64_t pack_offset = 0;  // of the parameter; the others' differ from it
    bool splits = false;       // its master is in parts
};

// A parameter's bytes, kept beside the tiers.
struct Mirror {
    std::vector<uint8_t> values;
    std::vector<uint8_t> gradient;
    std::vector<float> master;
    std::vector<float> average;
    std::vector<float> states[2];  // rounded as they are kept
};

struct Conditions {
    uint64_t seed = 1;
    uint32_t threads = 3;
    uint32_t tier_threads = 3;
    uint64_t window_blocks = 24;
    uint32_t algorithm = STW_OPTIMIZER_ADAMW;
    const stw_custom_update *custom = nullptr;
    double average_decay = 0.0;
    uint32_t state_dtype = STW_F32;
    uint64_t device_window_blocks = 16;
    bool alone = false;  // all tensors begin a block
};

constexpr PlaceId kDevice = 1;  // the one of the tests that computes

struct Failure {
    TensorId tensor;
    stw_status code;
};

class World {
public:
    explicit World(const Conditions &setup)
        : random(setup.seed),
          tiers(kBlockBytes, setup.seed, setup.tier_threads),
          devices(tiers),
          setup_(setup)
    {
        PipelineOptions options;
        options.tiers = &tiers;
        options.devices = &devices;
        options.device_windows = {{kDevice, setup.device_window_blocks * kBlockBytes}};
        options.thread_count = setup.threads;
        options.window_bytes = setup.window_blocks * kBlockBytes;
        options.latest_first = true;
        options.failed = [](void *user, TensorId tensor, const Status &cause) {
            World &world = *static_cast<World *>(user);
            MutexLock lock(world.failures_mutex);
            world.failures.push_back({tensor, cause.code()});
        };
        options.failed_user = this;
        auto opened = Pipeline::open(options);
        EXPECT_TRUE(opened.ok());
        pipeline = opened.take();
        auto made =
            Optimizer::create(*pipeline, setup.algorithm, setup.custom, setup.average_decay);
        EXPECT_TRUE(made.ok());
        optimizer = made.take();
        give_hyper(*optimizer);
    }
    ~World()
    {
        EXPECT_TRUE(optimizer == nullptr || optimizer->wait(UINT64_MAX).ok());
        optimizer.reset();
        EXPECT_TRUE(pipeline->close(UINT64_MAX).ok());
        EXPECT_EQ(tiers.faults(), "");
        EXPECT_EQ(devices.faults(), "");
    }

    // Groups of tests that set none of their own.
    static void give_hyper(Optimizer &to)
    {
        const stw_hyper usual = STW_HYPER_INIT;
        for (uint32_t group = 0; group < 8; ++group) {
            EXPECT_TRUE(to.set_hyper(group, usual).ok());
        }
    }

    // Gradients and parameters have random contents; nothing else has.
    Entry make(const Shape &shape, bool with_momentum = true)
    {
        const bool has_master = shape.dtype != STW_F32;
        Entry entry;
        const auto create = [&](uint32_t dtype, uint64_t more, bool zeros) {
            return tiers.create(shape.elements * bytes_of(dtype),
                                setup_.alone ? 0 : shape.pack_offset + more, zeros);
        };
        entry.parameter = create(shape.dtype, 0, false);
        entry.gradient = create(shape.gradient_dtype, 256, false);
        if (shape.splits) {
            entry.low = create(STW_BF16, 512, false);
            entry.open = tiers.create((shape.elements + 7) / 8, shape.pack_offset + 576, false);
        } else if (has_master) {
            entry.master = create(STW_F32, 512, false);
        }
        if (setup_.average_decay != 0.0) entry.average = create(STW_F32, 640, false);
        stw_hyper hyper = STW_HYPER_INIT;
        hyper.momentum = with_momentum ? 0.9 : 0.0;
        entry.state_count =
            setup_.custom != nullptr
                ? setup_.custom->state_count
                : kernels::state_count(static_cast<kernels::Algorithm>(setup_.algorithm), hyper);
        for (uint32_t i = 0; i < entry.state_count; ++i) {
            entry.states[i] = create(setup_.state_dtype, 768 + 256 * i, true);
        }
        entry.parameter_dtype = shape.dtype;
        entry.gradient_dtype = shape.gradient_dtype;
        entry.state_dtype = setup_.state_dtype;
        entry.element_count = shape.elements;
        Mirror &mirror = mirrors[entry.parameter];
        mirror.values = random_elements(shape.elements, shape.dtype);
        tiers.set_bytes(entry.parameter, mirror.values.data());
        for (auto &state : mirror.states) state.assign(shape.elements, 0.0F);
        give_gradient(entry);
        return entry;
    }
    Entry add(const Shape &shape)
    {
        const Entry entry = make(shape);
        const Status status = optimizer->add(&entry, 1);
        EXPECT_TRUE(status.ok()) << status.sentence();
        return entry;
    }
    // What stays of it from step to step is at home on the device.
    void move_home(const Entry &entry)
    {
        for (const TensorId tensor :
             {entry.parameter, entry.gradient, entry.master, entry.low, entry.open, entry.average})
            if (tensor != kNone) devices.move_home(tensor, kDevice);
        for (uint32_t i = 0; i < entry.state_count; ++i) {
            devices.move_home(entry.states[i], kDevice);
        }
    }
    void give_gradient(const Entry &entry)
    {
        Mirror &mirror = mirrors[entry.parameter];
        mirror.gradient = random_elements(mirror.values.size() / bytes_of(entry.parameter_dtype),
                                          entry.gradient_dtype);
        tiers.set_bytes(entry.gradient, mirror.gradient.data());
    }
    std::vector<uint8_t> random_elements(uint64_t n, uint32_t dtype)
    {
        std::normal_distribution<float> normal(0.0F, 1.0F);
        std::vector<float> wide(n);
        for (float &value : wide) value = normal(random);
        std::vector<uint8_t> bytes(n * bytes_of(dtype));
        kernels::convert(bytes.data(), dtype, wide.data(), STW_F32, n);
        return bytes;
    }
    // One call over whole arrays, part of `entry`.
    void expect_update(const Entry &entry, const stw_hyper &hyper, uint64_t step, double scale)
    {
        Mirror &mirror = mirrors[entry.parameter];
        const bool has_master = entry.parameter_dtype != STW_F32;
        if (has_master && mirror.master.empty()) {
            mirror.master.resize(mirror.values.size() / 2);
            kernels::convert(mirror.master.data(), STW_F32, mirror.values.data(),
                             entry.parameter_dtype, mirror.master.size());
        }
        const uint64_t at = entry.element_begin;
        kernels::Chunk chunk{};
        chunk.values = mirror.values.data() + at * bytes_of(entry.parameter_dtype);
        chunk.values_dtype = entry.parameter_dtype;
        chunk.gradient_dtype = entry.gradient_dtype;
        chunk.master = has_master ? mirror.master.data() + at : static_cast<float *>(chunk.values);
        chunk.gradient = mirror.gradient.data() + at * bytes_of(entry.gradient_dtype);
        for (uint32_t i = 0; i < 2; ++i) chunk.states[i] = mirror.states[i].data() + at;
        chunk.count = entry.element_count;
        const auto algorithm = static_cast<kernels::Algorithm>(setup_.algorithm);
        const auto *before = has_master ? mirror.master.data()
                                        : reinterpret_cast<const float *>(mirror.values.data());
        const uint64_t elements = mirror.values.size() / bytes_of(entry.parameter_dtype);
        if (mirror.average.empty()) mirror.average.assign(before, before + elements);
        kernels::update_chunk(algorithm, kernels::make_coefficients(algorithm, hyper, step, scale),
                              chunk);
        for (uint32_t i = 0; setup_.state_dtype == STW_BF16 && i < entry.state_count; ++i) {
            round_state(mirror.states[i].data() + at, chunk.count, {at, step, i});
        }
        kernels::average(mirror.average.data() + at, chunk.master, chunk.count,
                         setup_.average_decay);
    }
    static void round_state(float *state, uint64_t count, const kernels::Draw &draw)
    {
        std::vector<uint16_t> narrow(count);
        kernels::narrow_state(narrow.data(), state, count, draw);
        kernels::convert(state, STW_F32, narrow.data(), STW_BF16, count);
    }
    static bool equal(const std::vector<uint8_t> &a, const void *b)
    {
        return std::memcmp(a.data(), b, a.size()) == 0;
    }
    // Parameter, master and states are what the mirror has, to the bit.
    void expect_same(const Entry &entry)
    {
        const Mirror &mirror = mirrors[entry.parameter];
        EXPECT_TRUE(equal(tiers.bytes(entry.parameter), mirror.values.data()));
        if (entry.master != kNone && !mirror.master.empty()) {
            EXPECT_TRUE(equal(tiers.bytes(entry.master), mirror.master.data()));
        }
        if (entry.low != kNone && !mirror.master.empty()) {
            const std::vector<float> master = joined(entry);
            EXPECT_EQ(std::memcmp(master.data(), mirror.master.data(), master.size() * 4), 0);
        }
        if (entry.average != kNone && !mirror.average.empty()) {
            EXPECT_TRUE(equal(tiers.bytes(entry.average), mirror.average.data()));
        }
        for (uint32_t i = 0; i < entry.state_count; ++i) {
            std::vector<uint8_t> expected(mirror.states[i].size() * bytes_of(setup_.state_dtype));
            kernels::convert(expected.data(), setup_.state_dtype, mirror.states[i].data(), STW_F32,
                             mirror.states[i].size());
            EXPECT_TRUE(equal(tiers.bytes(entry.states[i]), expected.data())) << i;
        }
    }
    // The master of an entry that has it in parts.
    std::vector<float> joined(const Entry &entry)
    {
        std::vector<uint8_t> values = tiers.bytes(entry.parameter);
        std::vector<uint8_t> low = tiers.bytes(entry.low);
        std::vector<uint8_t> open = tiers.bytes(entry.open);
        std::vector<float> master(values.size() / 2);
        kernels::merge_master(master.data(), reinterpret_cast<uint16_t *>(values.data()),
                              {reinterpret_cast<uint16_t *>(low.data()), open.data()},
                              master.size());
        return master;
    }
    Status step_and_wait(StepOptions options = {}, StepResult *result = nullptr)
    {
        options.flags |= STW_UPDATE_WAIT;
        return optimizer->step(options, result);
    }

    std::mt19937_64 random;
    FakeTiers tiers;
    FakeDevices devices;
    std::map<TensorId, Mirror> mirrors;
    Mutex failures_mutex;
    std::vector<Failure> failures;  // read when nothing is pending
    std::unique_ptr<Pipeline> pipeline;
    std::unique_ptr<Optimizer> optimizer;

private:
    const Conditions setup_;
};

inline stw_hyper some_hyper(uint32_t algorithm = STW_OPTIMIZER_ADAMW)
{
    stw_hyper hyper = STW_HYPER_INIT;
    hyper.lr = 0.013;
    hyper.weight_decay = 0.07;
    if (algorithm == STW_OPTIMIZER_SGD) {
        hyper.momentum = 0.9;
        hyper.dampening = 0.1;
    }
    return hyper;
}

inline StepOptions early_of(const TensorId *parameters, uint32_t n)
{
    StepOptions options;
    options.flags = STW_UPDATE_SPECULATE;
    options.parameters = parameters;
    options.parameter_count = n;
    return options;
}

}  // namespace stepwell::update::test
