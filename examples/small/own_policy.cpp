// SPDX-License-Identifier: Apache-2.0
//
// A policy of one's own in C++: what a program knows of its order, as a function object. Twelve
// tensors are read in turn through a device that holds eight; the policy knows which of them comes
// next. Shows: stepwell.hpp, a policy with a state of its own. usage: own_policy_cpp [DIRECTORY]
#include <stepwell/stepwell.hpp>

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <map>
#include <thread>
#include <vector>

namespace {

constexpr uint32_t kTensors = 12;
constexpr uint64_t kFloats = 1 << 17;  // half a MiB: one block
constexpr int kRounds = 10;

// The farther away its turn, the sooner it leaves. Called on a thread of the library, so what it
// looks at is either constant or atomic.
struct FarthestTurn {
    std::map<const stw_tensor *, uint32_t> turns;
    std::atomic<uint32_t> now{0};

    void operator()(uint32_t, uint32_t, const stw_victim *victims, uint32_t n, double *scores_out)
    {
        for (uint32_t i = 0; i < n; ++i) {
            const auto found = turns.find(victims[i].tensor);
            if (found == turns.end()) continue;  // 0: the default order
            scores_out[i] = -double((found->second + kTensors - now.load()) % kTensors);
        }
    }
};

uint64_t bytes_read(const stw::Runtime &runtime)
{
    return runtime.link(STW_LINK_NVME_TO_DEVICE).value().bytes;
}

uint64_t read_in_turn(stw::Runtime &runtime, const std::vector<stw::Tensor> &tensors,
                      FarthestTurn &policy)
{
    const uint64_t before = bytes_read(runtime);
    for (int round = 0; round < kRounds; ++round) {
        for (uint32_t i = 0; i < kTensors; ++i) {
            policy.now = i;
            stw::Views views = stw::Views::fetch(runtime, {stw::want(tensors[i])}).value();
            if (views[0].as<const float>()[kFloats - 1] != float(i)) throw stw::Error({});
        }
    }
    return bytes_read(runtime) - before;
}

}  // namespace

int main(int count, char **words)
try {
    stw_device_options device = STW_DEVICE_OPTIONS_INIT;
    device.budget_bytes = 4u << 20;
    stw_nvme_options nvme = STW_NVME_OPTIONS_INIT;
    nvme.path = count > 1 ? words[1] : ".";
    nvme.budget_bytes = 32u << 20;
    stw_runtime_options options = STW_RUNTIME_OPTIONS_INIT;
    options.devices = &device, options.device_count = 1;
    options.nvme = &nvme, options.nvme_count = 1;
    options.block_bytes = STW_BLOCK_512K;

    FarthestTurn policy;  // before the runtime, so that it outlives it
    stw::Runtime runtime = stw::Runtime::open(options).value();
    std::vector<stw::Tensor> tensors;
    for (uint32_t i = 0; i < kTensors; ++i) {
        tensors.push_back(stw::Tensor::create(runtime, nullptr, {kFloats}).value());
        tensors.back().fill(i);
        policy.turns[tensors.back().get()] = i;
    }
    const uint64_t by_recency = read_in_turn(runtime, tensors, policy);

    runtime.set_victim_policy(policy);
    while (runtime.tier(STW_TIER_DEVICE).value().policy_calls == 0) std::this_thread::yield();
    const uint64_t by_policy = read_in_turn(runtime, tensors, policy);
    runtime.remove_victim_policy();

    std::printf("by recency %.1f MiB, by own policy %.1f MiB read from the disk\n",
                double(by_recency) / 1048576, double(by_policy) / 1048576);
    return by_policy < by_recency ? 0 : 1;
} catch (const stw::Error &error) {
    std::fprintf(stderr, "own_policy: %s\n", error.what());
    return 1;
}
