// SPDX-License-Identifier: Apache-2.0
#include "bench.h"

#include "cgroup.h"
#include "raw_drive.h"
#include "text.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <thread>

#include <nlohmann/json.hpp>

namespace stepwell::cli {

namespace {

constexpr size_t kRounds = 7;
constexpr uint64_t kHits = 200'000;
constexpr double kHitLimitNs = 100;  // what docs/performance.md promises
constexpr uint64_t kParameters = 8 << 20;
constexpr uint64_t kBytesAParameter = 28;  // AdamW: reads 16, writes 12

// A runtime with a host tier alone.
class HostRuntime {
public:
    explicit HostRuntime(uint64_t host_bytes)
    {
        stw_runtime_options options = STW_RUNTIME_OPTIONS_INIT;
        options.name = "stepwell bench";
        options.host_bytes = host_bytes;
        must(stw_runtime_open(&options, &runtime_));
    }
    ~HostRuntime() { stw_runtime_close(runtime_, STW_CLOSE_DEFERRED, 0); }
    HostRuntime(const HostRuntime &) = delete;
    HostRuntime &operator=(const HostRuntime &) = delete;

    stw_tensor *tensor(uint32_t role, uint64_t elements)
    {
        stw_tensor_spec spec = STW_TENSOR_SPEC_INIT;
        spec.role = role;
        spec.dtype = STW_F32;
        spec.dimensions = 1;
        spec.shape[0] = elements;
        stw_tensor *made = nullptr;
        must(stw_tensor_create(runtime_, &spec, 1, &made));
        const std::vector<float> values(elements, 0.5F);
        must(stw_tensor_write(made, values.data(), nullptr));
        return made;
    }
    stw_runtime *runtime() { return runtime_; }

private:
    stw_runtime *runtime_ = nullptr;
};

// Ours and the reference in turn, the other one first every other time.
void rounds(BenchRow *row, bool times, const std::function<double()> &ours,
            const std::function<double()> &reference)
{
    std::vector<double> mine;
    std::vector<double> theirs;
    std::vector<double> ratios;
    for (size_t round = 0; round < kRounds; ++round) {
        if (round % 2 == 1) theirs.push_back(reference());
        mine.push_back(ours());
        if (round % 2 == 0) theirs.push_back(reference());
        ratios.push_back(times ? theirs.back() / mine.back() : mine.back() / theirs.back());
    }
    row->value = median(mine);
    row->reference_value = median(theirs);
    row->ratio = figure_of(ratios);
}

std::vector<BenchRow> bench_nvme(const BenchOptions &options, const Progress &progress)
{
    const double seconds = options.seconds / 60;  // of a pass; there are four in seven rounds
    RawDrive raw(options.directory.real_path, options.bytes);
    raw.find_best();
    TierOptions wanted;
    wanted.directories = {options.directory.real_path};
    wanted.usual_profile = true;
    wanted.bytes = options.bytes;
    Tier tier(wanted);
    tier.write(options.seconds / 10);
    BenchRow read = {"nvme.read", "GB/s", 0, "raw reads, " + raw.setting(true), 0, {}};
    BenchRow write = {"nvme.write", "GB/s", 0, "raw overwrites, " + raw.setting(false), 0, {}};
    progress("nvme: reads", 0.4);
    rounds(
        &read, false, [&] { return tier.read(seconds).read_rate() / 1e9; },
        [&] { return raw.read(seconds) / 1e9; });
    progress("nvme: writes", 0.6);
    rounds(
        &write, false, [&] { return tier.write(seconds).write_rate() / 1e9; },
        [&] { return raw.write(seconds) / 1e9; });
    return {read, write};
}

BenchRow bench_hit()
{
    HostRuntime memory(16 << 20);
    stw_tensor *tensor = memory.tensor(STW_ROLE_PARAM, 1 << 18);
    stw_fetch_options options = STW_FETCH_OPTIONS_INIT;
    stw_fetch_request request = STW_FETCH_REQUEST_INIT;
    request.tensor = tensor;
    request.access = STW_READ;
    request.tier = STW_TIER_HOST;
    const auto hit_ns = [&] {
        stw_view view;
        const double begin = now_s();
        for (uint64_t i = 0; i < kHits; ++i) {
            must(stw_fetch(memory.runtime(), &options, &request, 1, &view));
            must(stw_release(&view, 1, STW_STREAM_HOST, 0));
        }
        return (now_s() - begin) * 1e9 / static_cast<double>(kHits);
    };
    hit_ns();
    BenchRow row = {"fetch.hit", "ns", 0, "the limit", 0, {}};
    rounds(&row, true, hit_ns, [] { return kHitLimitNs; });
    return row;
}

// Bytes read and written a second, by as many threads as update.
double copy_rate(std::vector<char> *from, std::vector<char> *to)
{
    const size_t n = update_threads(read_cgroups("").processor);
    const size_t part = from->size() / n;
    const double begin = now_s();
    std::vector<std::thread> threads;
    for (size_t i = 0; i < n; ++i)
        threads.emplace_back(
            [=] { std::memcpy(to->data() + i * part, from->data() + i * part, part); });
    for (std::thread &thread : threads) thread.join();
    return 2 * static_cast<double>(part * n) / (now_s() - begin);
}

BenchRow bench_update()
{
    HostRuntime memory(4 * kParameters * sizeof(float) + (64 << 20));
    stw_optimizer_options options = STW_OPTIMIZER_OPTIONS_INIT;
    options.algorithm = STW_OPTIMIZER_ADAMW;
    stw_optimizer *optimizer = nullptr;
    const stw_hyper hyper = STW_HYPER_INIT;
    must(stw_optimizer_create(memory.runtime(), &options, &optimizer));
    must(stw_optimizer_set_hyper(optimizer, 0, &hyper));
    stw_optimizer_entry entry = STW_OPTIMIZER_ENTRY_INIT;
    entry.parameter = memory.tensor(STW_ROLE_PARAM, kParameters);
    entry.gradient = memory.tensor(STW_ROLE_GRAD, kParameters);
    must(stw_optimizer_add(optimizer, &entry, 1));
    const auto step = [&] {
        stw_update_options update = STW_UPDATE_OPTIONS_INIT;
        update.flags = STW_UPDATE_WAIT | STW_UPDATE_KEEP_GRADIENTS;
        const double begin = now_s();
        must(stw_optimizer_step(optimizer, &update, nullptr));
        return static_cast<double>(kBytesAParameter * kParameters) / (now_s() - begin) / 1e9;
    };
    step();  // the first one also makes the states
    std::vector<char> from(128 << 20, 1);
    std::vector<char> to(128 << 20, 2);
    BenchRow row = {"update.memory", "GB/s", 0, "memory copies, as many threads", 0, {}};
    rounds(&row, false, step, [&] { return copy_rate(&from, &to) / 1e9; });
    must(stw_optimizer_destroy(optimizer));
    return row;
}

std::string short_number(double value)
{
    char text[32];
    std::snprintf(text, sizeof text, "%.3g", value);
    return text;
}

}  // namespace

std::vector<BenchRow> run_bench(const BenchOptions &options, const Progress &progress)
{
    progress("nvme: the drive itself", 0);
    std::vector<BenchRow> rows = bench_nvme(options, progress);
    progress("fetch", 0.8);
    rows.push_back(bench_hit());
    progress("update", 0.9);
    rows.push_back(bench_update());
    return rows;
}

std::string bench_text(const std::vector<BenchRow> &rows)
{
    std::vector<std::vector<std::string>> cells = {
        {"bench", "value", "reference", "against", "ratio", "spread"}};
    for (const BenchRow &row : rows)
        cells.push_back({row.name, short_number(row.value) + " " + row.unit,
                         short_number(row.reference_value), row.reference,
                         short_number(row.ratio.median),
                         short_number(row.ratio.least) + " - " + short_number(row.ratio.most)});
    std::vector<size_t> widths(cells[0].size());
    for (const auto &line : cells)
        for (size_t i = 0; i < line.size(); ++i) widths[i] = std::max(widths[i], line[i].size());
    std::string text;
    for (const auto &line : cells) {
        std::string shown;
        for (size_t i = 0; i < line.size(); ++i) {
            shown += line[i] + std::string(widths[i] - line[i].size(), ' ');
            if (i + 1 < line.size()) shown += "  ";
        }
        text += std::string(shown, 0, shown.find_last_not_of(' ') + 1) + "\n";
    }
    return text + "ratio: ours over the reference, higher is better, median of " +
           std::to_string(rows.front().ratio.rounds) + " rounds\n";
}

std::string bench_json(const std::vector<BenchRow> &rows)
{
    using Json = nlohmann::ordered_json;
    Json json = {
        {"format", kBenchFormat}, {"version", stw_version_string()}, {"results", Json::array()}};
    for (const BenchRow &row : rows)
        json["results"].push_back({{"name", row.name},
                                   {"unit", row.unit},
                                   {"value", row.value},
                                   {"reference", row.reference},
                                   {"reference_value", row.reference_value},
                                   {"ratio", row.ratio.median},
                                   {"spread", {row.ratio.least, row.ratio.most}},
                                   {"rounds", row.ratio.rounds}});
    return json.dump(2) + "\n";
}

}  // namespace stepwell::cli
