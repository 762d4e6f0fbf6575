// SPDX-License-Identifier: Apache-2.0
//
// The first program, with stepwell.hpp: a tensor of 16 MiB, used piece by piece through a host tier
// of 8 MiB; what does not fit rests in a file on nvme. Shows: owners, views as spans, ranges, a
// refusal as an exception. usage: fetch_release [DIRECTORY]

#include <stepwell/stepwell.hpp>

#include <cstdio>

namespace {

constexpr uint64_t kPieces = 16;
constexpr uint64_t kPiece = 1 << 18;  // of 2^18 floats: 1 MiB each

stw::Runtime open(const char *directory)
{
    // Budgets are hard. The file is made in the directory, without a name, and goes with us.
    stw_nvme_options nvme = STW_NVME_OPTIONS_INIT;
    nvme.path = directory;
    nvme.budget_bytes = 64u << 20;
    stw_runtime_options options = STW_RUNTIME_OPTIONS_INIT;
    options.nvme = &nvme;
    options.nvme_count = 1;
    options.host_bytes = 8u << 20;
    options.block_bytes = STW_BLOCK_512K;
    return stw::Runtime::open(options).value();
}

bool run(const char *directory)
{
    // In the order of use: destructors give back in the opposite one.
    const stw::Runtime runtime = open(directory);
    const stw::Tensor tensor = stw::Tensor::create(runtime, "numbers", {kPieces, kPiece}).value();

    // Write it, one piece after the other. The view ends with its scope, and the bytes may leave.
    for (uint64_t piece = 0; piece < kPieces; ++piece) {
        const stw::Views views =
            stw::Views::fetch(runtime,
                              {stw::want(tensor, STW_WRITE, STW_TIER_HOST, piece * kPiece, kPiece)})
                .value();
        for (float &value : views[0].as<float>()) value = static_cast<float>(piece);
    }
    const stw_tier_stats host = runtime.tier(STW_TIER_HOST).value();
    std::printf("16 MiB written; the host tier used %.1f of its %.1f MiB\n",
                static_cast<double>(host.peak_bytes) / 1048576,
                static_cast<double>(host.budget_bytes) / 1048576);

    // Read it back: pieces that left come from nvme, their checksums verified on the way.
    double sum = 0;
    for (uint64_t piece = 0; piece < kPieces; ++piece) {
        const stw::Views views =
            stw::Views::fetch(runtime,
                              {stw::want(tensor, STW_READ, STW_TIER_HOST, piece * kPiece, kPiece)})
                .value();
        for (const float value : views[0].as<const float>()) sum += value;
    }
    const double expected = static_cast<double>(kPiece * kPieces * (kPieces - 1) / 2);
    std::printf("sum of all elements: %.0f, expected %.0f\n", sum, expected);

    // What cannot fit is refused, with the arithmetic: in the sentence, and as numbers.
    try {
        (void)stw::Views::fetch(runtime, {stw::want(tensor, STW_READ, STW_TIER_HOST)});
        return false;
    } catch (const stw::Error &error) {
        std::printf("all of it at once: %s\n", error.what());
        if (error.code() != STW_ERROR_BUDGET) return false;
    }
    return sum == expected;
}

}  // namespace

int main(int count, char **words)
{
    try {
        return run(count > 1 ? words[1] : ".") ? 0 : 1;
    } catch (const stw::Error &error) {
        std::fprintf(stderr, "fetch_release: %s\n", error.what());
        return 1;
    }
}
