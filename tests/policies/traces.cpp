// SPDX-License-Identifier: Apache-2.0
// Traces are put together from layers: what one of them has, and who uses it when.
#include "tests/policies/traces.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace stepwell::schedule {
namespace {

using residency::Access;
using residency::TensorId;

struct Layer {
    std::vector<TensorId> params;
    std::vector<TensorId> grads;
    std::vector<TensorId> states;
};

class Maker {
public:
    Maker(const char *name, uint64_t seed) : draws(seed) { trace.name = name; }

    TensorId tensor(Role role, uint64_t blocks)
    {
        residency::TensorSpec spec;
        spec.name = "t" + std::to_string(trace.tensors.size());
        spec.bytes = blocks * kTraceBlockBytes;
        spec.role = static_cast<uint32_t>(role);
        trace.tensors.push_back(spec);
        return static_cast<TensorId>(trace.tensors.size() - 1);
    }
    // Layers alike, but for a first and a last one of another size.
    std::vector<Layer> layers(bool grads, bool states)
    {
        std::vector<Layer> made(draws.between(8, 24));
        const uint64_t width = draws.between(1, 3);
        for (size_t i = 0; i < made.size(); ++i) {
            const bool edge = i == 0 || i + 1 == made.size();
            const uint64_t scale = edge ? draws.between(1, 3) : 1;
            for (const uint64_t part : {3, 1, 4}) {
                const uint64_t blocks = part * width * scale;
                made[i].params.push_back(tensor(Role::kParam, blocks));
                if (grads) made[i].grads.push_back(tensor(Role::kGrad, 2 * blocks));
                for (int k = 0; states && k < 3; ++k) {
                    made[i].states.push_back(tensor(Role::kState, 2 * blocks));
                }
            }
        }
        return made;
    }

    void fetch(TensorId tensor, Access access, bool with_next = false)
    {
        Event event;
        event.tensor = tensor;
        event.access = access;
        event.with_next = with_next;
        step.push_back(event);
    }
    void release(TensorId tensor, Hint hint = Hint::kNone)
    {
        Event event;
        event.act = Act::kRelease;
        event.tensor = tensor;
        event.hint = hint;
        event.compute_ns = 1000000;
        step.push_back(event);
    }
    void read(const std::vector<TensorId> &tensors)
    {
        for (const TensorId tensor : tensors) fetch(tensor, Access::kRead);
        for (const TensorId tensor : tensors) release(tensor);
    }
    void forward(const std::vector<Layer> &layers)
    {
        for (const Layer &layer : layers) read(layer.params);
    }
    // `first` of those that sum into the same gradients.
    void backward(const std::vector<Layer> &layers, bool first)
    {
        for (size_t i = layers.size(); i > 0; --i) {
            const Layer &layer = layers[i - 1];
            for (const TensorId param : layer.params) fetch(param, Access::kRead);
            for (size_t k = 0; k < layer.grads.size(); ++k) {
                fetch(layer.grads[k], first ? Access::kWrite : Access::kReadWrite);
                release(layer.grads[k]);
            }
            for (const TensorId param : layer.params) release(param);
        }
    }
    void update(const std::vector<Layer> &layers)
    {
        for (const Layer &layer : layers) {
            for (size_t k = 0; k < layer.params.size(); ++k) {
                std::vector<TensorId> changed = {layer.params[k]};
                for (size_t s = 0; s < 3; ++s) changed.push_back(layer.states[3 * k + s]);
                fetch(layer.grads[k], Access::kRead);
                for (const TensorId tensor : changed) fetch(tensor, Access::kReadWrite);
                for (const TensorId tensor : changed) release(tensor);
                release(layer.grads[k], Hint::kDiscard);
            }
        }
    }
    void end_step()
    {
        trace.steps.push_back(std::move(step));
        step.clear();
    }

    Workload trace;
    Draws draws;
    Step step;
};

// Each layer's experts, most wanted first.
std::vector<double> popularities(size_t experts, double skew)
{
    std::vector<double> weights(experts);
    for (size_t i = 0; i < experts; ++i) {
        weights[i] = std::pow(static_cast<double>(i + 1), -skew);
    }
    return weights;
}

}  // namespace

uint64_t Workload::blocks() const
{
    return std::accumulate(tensors.begin(), tensors.end(), uint64_t{0},
                           [](uint64_t sum, const residency::TensorSpec &spec) {
                               return sum + spec.bytes / kTraceBlockBytes;
                           });
}

Workload zigzag_trace(uint64_t seed)
{
    Maker maker("zigzag", seed);
    const std::vector<Layer> layers = maker.layers(false, false);
    maker.forward(layers);
    maker.backward(layers, true);
    maker.end_step();
    return std::move(maker.trace);
}

Workload cyclic_trace(uint64_t seed)
{
    Maker maker("cyclic", seed);
    const std::vector<Layer> layers = maker.layers(true, true);
    for (const Layer &layer : layers) {
        for (const TensorId grad : layer.grads) {
            maker.fetch(grad, Access::kWrite);
            maker.release(grad);
        }
    }
    maker.update(layers);
    maker.end_step();
    return std::move(maker.trace);
}

Workload accumulation_trace(uint64_t seed)
{
    Maker maker("accumulation", seed);
    const std::vector<Layer> layers = maker.layers(true, true);
    const uint64_t batches = maker.draws.between(2, 4);
    for (uint64_t i = 0; i < batches; ++i) {
        maker.forward(layers);
        maker.backward(layers, i == 0);
    }
    maker.update(layers);
    maker.end_step();
    return std::move(maker.trace);
}

Workload alternation_trace(uint64_t seed)
{
    Maker maker("alternation", seed);
    const std::vector<Layer> layers = maker.layers(true, true);
    const uint64_t batches = maker.draws.between(1, 3);
    maker.forward(layers);
    maker.backward(layers, true);
    maker.update(layers);
    for (uint64_t i = 0; i < batches; ++i) maker.forward(layers);
    maker.end_step();
    return std::move(maker.trace);
}

Workload mixed_trace(uint64_t seed)
{
    Maker maker("mixed", seed);
    Draws &draws = maker.draws;
    const uint64_t tensors = draws.between(60, 120);
    for (uint64_t i = 0; i < tensors; ++i) {
        const uint64_t blocks = uint64_t{1} << draws.below(6);
        maker.tensor(static_cast<Role>(draws.below(3)), blocks + draws.below(blocks));
    }
    // Each is used one to four times a step, and written in some of these.
    std::vector<TensorId> order;
    for (TensorId tensor = 0; tensor < tensors; ++tensor) {
        for (uint64_t uses = draws.between(1, 4); uses > 0; --uses) order.push_back(tensor);
    }
    for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[draws.below(i)]);
    for (const TensorId tensor : order) {
        maker.fetch(tensor, draws.below(3) == 0 ? Access::kReadWrite : Access::kRead);
        maker.release(tensor);
    }
    maker.end_step();
    return std::move(maker.trace);
}

Workload experts_trace(uint64_t seed, size_t steps)
{
    Maker maker("experts", seed);
    maker.trace.repeats = false;
    Draws &draws = maker.draws;
    const size_t layers = draws.between(12, 24);
    const size_t experts = 16;
    const size_t wanted = 3;
    const double skew = 1.1 + 0.1 * draws.unit();
    const std::vector<double> weights = popularities(experts, skew);
    const uint64_t blocks = draws.between(4, 8);
    std::vector<std::vector<TensorId>> ranks(layers);  // by popularity
    for (std::vector<TensorId> &layer : ranks) {
        for (size_t i = 0; i < experts; ++i) layer.push_back(maker.tensor(Role::kExpert, blocks));
        for (size_t i = experts; i > 1; --i) std::swap(layer[i - 1], layer[draws.below(i)]);
    }
    for (size_t step = 0; step < steps; ++step) {
        for (std::vector<TensorId> &layer : ranks) {
            if (draws.below(10) == 0) {
                const size_t at = draws.below(experts - 1);
                std::swap(layer[at], layer[at + 1]);
            }
            std::vector<double> left = weights;
            for (size_t i = 0; i < wanted; ++i) {
                double at = draws.unit() * std::accumulate(left.begin(), left.end(), 0.0);
                size_t expert = 0;
                while (expert + 1 < experts && at >= left[expert]) at -= left[expert++];
                left[expert] = 0;
                maker.read({layer[expert]});
            }
        }
        maker.end_step();
    }
    return std::move(maker.trace);
}

Machine trace_machine(const Workload &trace, uint32_t percent)
{
    const uint64_t blocks = trace.blocks();
    uint64_t largest = 0;  // of what is held at once
    for (const Step &step : trace.steps) {
        uint64_t held = 0;
        for (const Event &event : step) {
            const uint64_t bytes = trace.tensors[event.tensor].bytes;
            if (event.act == Act::kFetch) held += bytes / kTraceBlockBytes;
            largest = std::max(largest, held);
            if (event.act == Act::kRelease) held -= bytes / kTraceBlockBytes;
        }
    }
    Machine machine;
    machine.config.block_bytes = kTraceBlockBytes;
    machine.config.tensors_max = static_cast<uint32_t>(trace.tensors.size());
    residency::PlaceConfig device;
    device.tier = residency::Tier::kDevice;
    device.blocks = static_cast<uint32_t>(std::max(largest, blocks * percent / 100));
    device.maps = device.cpu_access = true;
    residency::PlaceConfig disk;
    disk.tier = residency::Tier::kNvme;
    disk.blocks = static_cast<uint32_t>(blocks);
    machine.config.places = {device, disk};
    Link in;
    in.from = 1;
    in.to = 0;
    in.bytes_per_s = 3e9;
    in.latency_ns = 80000;
    in.depth = 16;
    Link out = in;
    std::swap(out.from, out.to);
    machine.links = {in, out};
    return machine;
}

}  // namespace stepwell::schedule
