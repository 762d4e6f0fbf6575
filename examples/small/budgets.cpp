// SPDX-License-Identifier: Apache-2.0
//
// Budgets changed while the program runs, with stepwell.hpp: a trainer lends its memory to somebody
// else for a while, say to an evaluation between two epochs, and takes it back. Nothing is lost.
// Shows: set_budget down, to nothing, and up again; what is refused, and why.
// usage: budgets [DIRECTORY]

#include <stepwell/stepwell.hpp>

#include <cstdio>
#include <vector>

namespace {

constexpr size_t kLayers = 8;
constexpr uint64_t kElements = 1 << 20;  // of 2^20 floats: 4 MiB each
constexpr uint64_t kMiB = 1 << 20;

stw::Runtime open(const char *directory)
{
    stw_nvme_options nvme = STW_NVME_OPTIONS_INIT;
    nvme.path = directory;
    nvme.budget_bytes = 64 * kMiB;
    stw_runtime_options options = STW_RUNTIME_OPTIONS_INIT;
    options.nvme = &nvme;
    options.nvme_count = 1;
    options.host_bytes = 40 * kMiB;  // the most that the tier can ever have
    options.block_bytes = STW_BLOCK_512K;
    return stw::Runtime::open(options).value();
}

void show(const stw::Runtime &runtime, const char *when)
{
    const stw_tier_stats stats = runtime.tier(STW_TIER_HOST).value();
    std::printf("%-14s budget %2llu MiB, used %2llu MiB\n", when,
                static_cast<unsigned long long>(stats.budget_bytes / kMiB),
                static_cast<unsigned long long>(stats.used_bytes / kMiB));
}

// Reads every layer once; the sum tells whether all bytes are still what they were.
double visit(stw::Runtime &runtime, const std::vector<stw::Tensor> &layers)
{
    double sum = 0;
    for (const stw::Tensor &layer : layers) {
        const stw::Views views =
            stw::Views::fetch(runtime, {stw::want(layer, STW_READ, STW_TIER_HOST)}).value();
        for (const float value : views[0].as<const float>()) sum += static_cast<double>(value);
    }
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
            layers.back().fill(static_cast<double>(layer + 1));
        }
        const double before = visit(runtime, layers);
        show(runtime, "at the start");

        // Half of it: what is too much goes to the disk first, and when the call returns the memory
        // is the system's. The program goes on as before, with more reads.
        runtime.set_budget(STW_TIER_HOST, 16 * kMiB);
        bool equal = visit(runtime, layers) == before;
        show(runtime, "with less");

        // Everything out. A fetch has nowhere to go now, and says so.
        runtime.set_budget(STW_TIER_HOST, 0);
        show(runtime, "asleep");
        try {
            (void)visit(runtime, layers);
            return 1;
        } catch (const stw::Error &error) {
            std::printf("a fetch says: %s\n", error.what());
        }

        runtime.set_budget(STW_TIER_HOST, 40 * kMiB);
        equal = equal && visit(runtime, layers) == before;
        show(runtime, "awake");
        std::printf("the sums are %s\n", equal ? "equal" : "different");
        return equal ? 0 : 1;
    } catch (const stw::Error &error) {
        std::fprintf(stderr, "budgets: %s\n", error.what());
        return 1;
    }
}
