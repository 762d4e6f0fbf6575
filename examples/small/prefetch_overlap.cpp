// SPDX-License-Identifier: Apache-2.0
//
// Reading ahead, with stepwell.hpp: twelve layers of 4 MiB, of which the host tier holds four. Each
// run computes on the layers in order; in the second, the next layer is asked for while this one is
// computed on. Shows: prefetch, phases and steps, where a step's time went.
// usage: prefetch_overlap [DIRECTORY]

#include <stepwell/stepwell.hpp>

#include <cmath>
#include <cstdio>
#include <vector>

namespace {

constexpr size_t kLayers = 12;
constexpr uint64_t kElements = 1 << 20;  // of 2^20 floats: 4 MiB each

stw::Runtime open(const char *directory)
{
    stw_nvme_options nvme = STW_NVME_OPTIONS_INIT;
    nvme.path = directory;
    nvme.budget_bytes = 96u << 20;
    stw_runtime_options options = STW_RUNTIME_OPTIONS_INIT;
    options.nvme = &nvme;
    options.nvme_count = 1;
    options.host_bytes = 20u << 20;
    options.block_bytes = STW_BLOCK_512K;
    return stw::Runtime::open(options).value();
}

// Stands for a layer's arithmetic.
double compute(stw::Span<const float> values)
{
    double sum = 0;
    for (size_t i = 0; i < values.size(); ++i) {
        sum += std::sqrt(static_cast<double>(values[i]) + static_cast<double>(i & 7));
    }
    return sum;
}

// One step over all layers. The sum does not depend on what was prefetched.
double run(stw::Runtime &runtime, const std::vector<stw::Tensor> &layers, const char *name,
           bool ahead)
{
    const stw::Phase phase = stw::Phase::create(runtime, name).value();
    stw::Step step = stw::Step::begin(phase).value();
    double sum = 0;
    for (size_t layer = 0; layer < layers.size(); ++layer) {
        stw::Views views =
            stw::Views::fetch(runtime, {stw::want(layers[layer], STW_READ, STW_TIER_HOST)}).value();
        // A hint: returns at once, and never fails for lack of room.
        if (ahead && layer + 1 < layers.size()) {
            runtime.prefetch({stw::want(layers[layer + 1], STW_READ, STW_TIER_HOST)});
        }
        sum += compute(views[0].as<const float>());
        // FAR: not needed again before all others, so let it leave first.
        views.release(STW_RELEASE_FAR);
    }
    stw_step_stats stats = STW_STEP_STATS_INIT;
    step.end(&stats);
    std::printf("%-8s %6.1f ms, of which waiting %6.1f ms (nvme %.1f); %.1f MiB read\n", name,
                static_cast<double>(stats.wall_ns) / 1e6, static_cast<double>(stats.stall_ns) / 1e6,
                static_cast<double>(stats.stall_nvme_ns) / 1e6,
                static_cast<double>(stats.nvme_read_bytes) / 1048576);
    return sum;
}

}  // namespace

int main(int count, char **words)
{
    try {
        stw::Runtime runtime = open(count > 1 ? words[1] : ".");
        std::vector<stw::Tensor> layers;
        for (size_t layer = 0; layer < kLayers; ++layer) {
            layers.push_back(
                stw::Tensor::create(runtime, nullptr, {kElements}, STW_F32, STW_ROLE_PARAM)
                    .value());
            layers.back().fill(static_cast<double>(layer));
        }
        runtime.drain();  // what was written is on nvme before the clock starts
        const double first = run(runtime, layers, "without", false);
        const double second = run(runtime, layers, "with", true);
        std::printf("the sums are %s\n", first == second ? "equal" : "different");
        return first == second ? 0 : 1;
    } catch (const stw::Error &error) {
        std::fprintf(stderr, "prefetch_overlap: %s\n", error.what());
        return 1;
    }
}
