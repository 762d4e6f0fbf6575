// SPDX-License-Identifier: Apache-2.0
//
// Several directories, with stepwell.hpp: blocks are striped over all that are named, each with a
// budget of its own, so that drives work side by side. Name one per drive; without arguments two
// are made in the current directory, on one drive, which shows the way and not the speed. Shows:
// arrays of options, budgets that add up, measured bandwidth, a refusal that names the path.
// usage: directories [DIRECTORY...]

#include <stepwell/stepwell.hpp>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

namespace {

constexpr uint64_t kElements = 1 << 23;  // of 2^23 floats: 32 MiB

stw::Runtime open_over(const std::vector<std::string> &directories)
{
    std::vector<stw_nvme_options> nvme;
    for (const std::string &directory : directories) {
        stw_nvme_options one = STW_NVME_OPTIONS_INIT;
        one.path = directory.c_str();
        one.budget_bytes = 48u << 20;  // each may have another one
        nvme.push_back(one);
    }
    stw_runtime_options options = STW_RUNTIME_OPTIONS_INIT;
    options.nvme = nvme.data();
    options.nvme_count = static_cast<uint32_t>(nvme.size());
    options.host_bytes = 8u << 20;
    options.block_bytes = STW_BLOCK_512K;
    return stw::Runtime::open(options).value();
}

void print_link(const stw::Runtime &runtime, const char *name, uint32_t link)
{
    const stw_link_stats stats = runtime.link(link).value();
    std::printf("  %-7s %6.1f MiB, %.0f MB/s over all drives\n", name,
                static_cast<double>(stats.bytes) / 1048576,
                static_cast<double>(stats.measured_bytes_per_s) / 1e6);
}

bool round_trip(const std::vector<std::string> &directories)
{
    stw::Runtime runtime = open_over(directories);
    std::printf("%zu directories, %.1f MiB together\n", directories.size(),
                static_cast<double>(runtime.tier(STW_TIER_NVME).value().budget_bytes) / 1048576);
    stw::Tensor tensor = stw::Tensor::create(runtime, "t", {kElements}).value();
    tensor.fill(5);
    runtime.evict({tensor.get()}, STW_TIER_HOST);  // all of it to the drives
    std::vector<float> values(kElements);
    tensor.read(values.data());
    print_link(runtime, "written", STW_LINK_HOST_TO_NVME);
    print_link(runtime, "read", STW_LINK_NVME_TO_HOST);
    const auto right = std::count(values.begin(), values.end(), 5.0F);
    std::printf("%llu elements are wrong\n", static_cast<unsigned long long>(kElements) -
                                                 static_cast<unsigned long long>(right));
    return static_cast<uint64_t>(right) == kElements;
}

// All of them, or none: nothing is half open, and the sentence names the one.
bool refuses_a_missing_one()
{
    try {
        (void)open_over({".", "no/such/directory"});
    } catch (const stw::Error &error) {
        std::printf("refused: %s\n", error.what());
        return error.code() == STW_ERROR_NOT_FOUND;
    }
    return false;
}

}  // namespace

int main(int count, char **words)
{
    try {
        std::vector<std::string> directories(words + 1, words + count);
        const bool own = directories.empty();
        if (own) directories = {"stepwell-three", "stepwell-four"};
        for (const std::string &directory : directories) {
            if (own) std::filesystem::create_directory(directory);
        }
        const bool good = round_trip(directories);
        for (const std::string &directory : directories) {
            if (own) std::filesystem::remove(directory);  // nothing is left in it
        }
        return good && refuses_a_missing_one() ? 0 : 1;
    } catch (const stw::Error &error) {
        std::fprintf(stderr, "directories: %s\n", error.what());
        return 1;
    }
}
