// SPDX-License-Identifier: Apache-2.0
// Steps of a trainer with gradient accumulation, layer by layer: parameters w, gradients g, moments
// m and activations a, each layer's of as many blocks as it is told.
#pragma once

#include "tests/unit/schedule/replay_fixture.h"

#include <stepwell/types.h>

#include <random>

namespace stepwell::schedule {

enum class Activations : uint8_t { kOwn, kReused };  // of each micro-batch, or one set for all

struct Training {
    Training(uint32_t layer_count, uint32_t batch_count, uint32_t blocks = 1)
        : layers(layer_count), batches(batch_count), weight_blocks(blocks)
    {
        for (uint32_t i = 0; i < layers; ++i) {
            const std::string number = std::to_string(i);
            weights.push_back(add("w" + number, STW_ROLE_PARAM, blocks));
            grads.push_back(add("g" + number, STW_ROLE_GRAD, blocks));
            moments.push_back(add("m" + number, STW_ROLE_OPTIMIZER_STATE, blocks));
        }
    }

    residency::TensorId add(const std::string &name, uint32_t role, uint32_t blocks)
    {
        specs.emplace_back();
        specs.back().name = name;
        specs.back().role = role;
        specs.back().bytes = blocks * kBlock;
        return static_cast<residency::TensorId>(specs.size() - 1);
    }

    // One call, all of it held while it computes.
    void call(const std::vector<std::pair<residency::TensorId, residency::Access>> &uses,
              uint64_t compute_ns, Lane lane = Lane::kProgram, uint64_t begin = 0,
              uint64_t bytes = 0)
    {
        for (const Act act : {Act::kFetch, Act::kRelease}) {
            for (size_t i = 0; i < uses.size(); ++i) {
                Event event;
                event.act = act;
                event.lane = lane;
                event.tensor = uses[i].first;
                event.access = uses[i].second;
                event.with_next = act == Act::kFetch && i + 1 < uses.size();
                event.byte_begin = begin;
                event.byte_count = bytes ? bytes : specs[event.tensor].bytes;
                if (act == Act::kRelease && i == 0) event.compute_ns = compute_ns;
                step.push_back(event);
            }
        }
    }

    // Each layer writes what the next one reads; the backward reads it again, and sums.
    void train_step(Activations kind)
    {
        using residency::Access;
        std::vector<std::vector<residency::TensorId>> activations(batches);
        for (uint32_t batch = 0; batch < batches; ++batch) {
            for (uint32_t i = 0; i < layers; ++i) {
                const bool reuses = kind == Activations::kReused && batch > 0;
                const std::string name = "a" + std::to_string(batch) + "." + std::to_string(i);
                activations[batch].push_back(reuses ? activations[0][i]
                                                    : add(name, STW_ROLE_OTHER, activation_blocks));
            }
        }
        for (uint32_t batch = 0; batch < batches; ++batch) {
            const std::vector<residency::TensorId> &mine = activations[batch];
            for (uint32_t i = 0; i < layers; ++i) {
                if (i == 0) {
                    call({{weights[i], Access::kRead}, {mine[i], Access::kWrite}}, compute_ns);
                } else {
                    call({{weights[i], Access::kRead},
                          {mine[i - 1], Access::kRead},
                          {mine[i], Access::kWrite}},
                         compute_ns);
                }
            }
            for (uint32_t i = layers; i-- > 0;) {
                const Access sums = batch == 0 ? Access::kWrite : Access::kReadWrite;
                call({{weights[i], Access::kRead}, {mine[i], Access::kRead}, {grads[i], sums}},
                     2 * compute_ns);
                Event dead;
                dead.act = Act::kDiscard;
                dead.tensor = mine[i];
                step.push_back(dead);
            }
        }
    }

    // A piece after the other of each parameter; then its gradient is dead.
    void update(Lane lane, uint32_t pieces = 1)
    {
        using residency::Access;
        for (uint32_t i = 0; i < layers; ++i) {
            const uint64_t bytes = weight_blocks * kBlock / pieces;
            for (uint32_t piece = 0; piece < pieces; ++piece) {
                call({{weights[i], Access::kReadWrite},
                      {grads[i], Access::kRead},
                      {moments[i], Access::kReadWrite}},
                     0, lane, piece * bytes, bytes);
            }
            Event dead;
            dead.act = Act::kDiscard;
            dead.lane = lane;
            dead.tensor = grads[i];
            step.push_back(dead);
        }
    }

    const uint32_t layers;
    const uint32_t batches;
    const uint32_t weight_blocks;
    uint32_t activation_blocks = 1;
    uint64_t compute_ns = 10;
    std::vector<residency::TensorSpec> specs;
    std::vector<residency::TensorId> weights;
    std::vector<residency::TensorId> grads;
    std::vector<residency::TensorId> moments;
    Step step;
};

}  // namespace stepwell::schedule
