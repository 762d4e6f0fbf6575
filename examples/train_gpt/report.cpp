// SPDX-License-Identifier: Apache-2.0
//
// Progress, closing table and JSON. One thread, between steps and after them.

#include "report.h"

#include "must.h"

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>

namespace train_gpt {

namespace {

constexpr double kMiB = 0x1p20;
constexpr uint64_t kOverheadBytes = uint64_t{48} << 20;  // code, text, OpenBLAS, the runtime's own
constexpr const char *kLinkNames[kLinks] = {
    "nvme>host", "host>nvme", "host>device", "device>host", "nvme>device", "device>nvme", "ranks"};
constexpr const char *kTierNames[3] = {"device", "host", "nvme"};
constexpr const char *kStallNames[kStalls] = {"nvme",   "host_device", "room",
                                              "update", "ranks",       "other"};

// The kernel's own figure for the most memory this process has had.
uint64_t peak_resident_bytes()
{
    std::FILE *file = std::fopen("/proc/self/status", "r");
    if (file == nullptr) return 0;
    char line[256];
    uint64_t kib = 0;
    while (std::fgets(line, sizeof(line), file) != nullptr)
        if (std::sscanf(line, "VmHWM: %" SCNu64, &kib) == 1) break;
    std::fclose(file);
    return kib * 1024;
}

// The first step is recorded and the second is the first planned one; with few steps all count.
size_t first_counted(size_t steps)
{
    return steps > 4 ? 2 : 0;
}

void add_stalls(const stw_step_stats &stats, double *stall_seconds)
{
    constexpr uint32_t kOther = kStalls - 1;
    const uint64_t named[kOther] = {stats.stall_nvme_ns, stats.stall_host_device_ns,
                                    stats.stall_room_ns, stats.stall_update_ns,
                                    stats.stall_collective_ns};
    uint64_t sum = 0;
    for (uint32_t cause = 0; cause < kOther; ++cause) {
        stall_seconds[cause] += static_cast<double>(named[cause]) * 1e-9;
        sum += named[cause];
    }
    if (stats.stall_ns > sum)
        stall_seconds[kOther] += static_cast<double>(stats.stall_ns - sum) * 1e-9;
}

void summarise_links(stw_runtime *runtime, const std::vector<StepRecord> &records, size_t first,
                     Summary &summary)
{
    for (uint32_t link = 0; link < kLinks; ++link) {
        const stw_link_stats stats = link_stats(runtime, link + 1);
        LinkSummary &to = summary.links[link];
        to.name = kLinkNames[link];
        to.bytes = stats.bytes;
        to.bytes_per_second = stats.measured_bytes_per_s;
        for (size_t i = first; i < records.size(); ++i)
            to.bytes_per_step += static_cast<double>(records[i].link_bytes[link]) /
                                 static_cast<double>(records.size() - first);
        if (to.bytes_per_second != 0)
            to.seconds_per_step = to.bytes_per_step / static_cast<double>(to.bytes_per_second);
        if (to.seconds_per_step > summary.bound_seconds) {
            summary.bound_seconds = to.seconds_per_step;
            summary.bound_by = to.name;
        }
    }
}

class JsonFile {
public:
    explicit JsonFile(const std::string &path) : file_(std::fopen(path.c_str(), "w")) {}
    ~JsonFile()
    {
        if (file_ != nullptr) std::fclose(file_);
    }
    JsonFile(const JsonFile &) = delete;
    JsonFile &operator=(const JsonFile &) = delete;

    std::FILE *get() const { return file_; }
    bool close()
    {
        const bool good = std::ferror(file_) == 0;
        const bool closed = std::fclose(file_) == 0;
        file_ = nullptr;
        return good && closed;
    }

private:
    std::FILE *file_;
};

std::string cannot_write(const std::string &path)
{
    return "cannot write " + path + ": " + std::strerror(errno);
}

void json_steps(std::FILE *file, const std::vector<StepRecord> &records)
{
    std::fprintf(file, "\"steps\":[");
    for (size_t i = 0; i < records.size(); ++i) {
        const StepRecord &record = records[i];
        std::fprintf(file,
                     "%s\n{\"step\":%zu,\"loss\":%.9g,\"norm\":%.9g,\"learning_rate\":%.9g,"
                     "\"seconds\":%.6f,\"verdict_seconds\":%.6f,\"stall_seconds\":%.6f,"
                     "\"planned\":%s",
                     i == 0 ? "" : ",", i + 1, record.loss, record.norm, record.learning_rate,
                     record.seconds, record.verdict_seconds,
                     static_cast<double>(record.stats.stall_ns) * 1e-9,
                     record.stats.planned != 0 ? "true" : "false");
        for (uint32_t link = 0; link < kLinks; ++link)
            std::fprintf(file, ",\"%s\":%" PRIu64, kLinkNames[link], record.link_bytes[link]);
        std::fprintf(file, "}");
    }
    std::fprintf(file, "],\n");
}

void json_table(std::FILE *file, const Summary &summary)
{
    std::fprintf(file, "\"tiers\":{");
    for (uint32_t tier = 0; tier < 3; ++tier)
        std::fprintf(file, "%s\"%s\":{\"budget_bytes\":%" PRIu64 ",\"peak_bytes\":%" PRIu64 "}",
                     tier == 0 ? "" : ",", kTierNames[tier], summary.tiers[tier].budget_bytes,
                     summary.tiers[tier].peak_bytes);
    std::fprintf(file, "},\n\"links\":{");
    for (uint32_t link = 0; link < kLinks; ++link) {
        const LinkSummary &from = summary.links[link];
        std::fprintf(file,
                     "%s\n\"%s\":{\"bytes\":%" PRIu64 ",\"bytes_per_step\":%.0f,"
                     "\"bytes_per_second\":%" PRIu64 ",\"seconds_per_step\":%.6f}",
                     link == 0 ? "" : ",", from.name, from.bytes, from.bytes_per_step,
                     from.bytes_per_second, from.seconds_per_step);
    }
    std::fprintf(file, "},\n\"stall_seconds_per_step\":{");
    for (uint32_t cause = 0; cause < kStalls; ++cause)
        std::fprintf(file, "%s\"%s\":%.6f", cause == 0 ? "" : ",", kStallNames[cause],
                     summary.stall_seconds[cause]);
    std::fprintf(file, "},\n");
}

}  // namespace

double median(std::vector<double> values)
{
    if (values.empty()) return 0.0;
    std::sort(values.begin(), values.end());
    const size_t middle = values.size() / 2;
    return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2.0;
}

void print_progress(const Options &options, uint32_t step, const StepRecord &record)
{
    const double rows = static_cast<double>(options.batch) * options.sequence;
    std::printf("step %4u/%u  loss %.4f  norm %6.3f  %6.0f tokens/s", step + 1, options.steps,
                record.loss, record.norm, rows / record.seconds);
    const char *before = "  MiB:";
    for (uint32_t link = 0; link < kLinks; ++link) {
        if (record.link_bytes[link] == 0) continue;
        std::printf("%s %s %.1f", before, kLinkNames[link],
                    static_cast<double>(record.link_bytes[link]) / kMiB);
        before = ",";
    }
    std::printf("  stall %.0f ms\n", static_cast<double>(record.stats.stall_ns) * 1e-6);
    std::fflush(stdout);
}

Summary summarise(stw_runtime *runtime, const Options &options,
                  const std::vector<StepRecord> &records, const Arithmetic &arithmetic)
{
    Summary summary = {};
    const size_t first = first_counted(records.size());
    summary.steps_counted = static_cast<uint32_t>(records.size() - first);
    summary.bound_seconds = options.compute_seconds;
    summary.bound_by = options.compute_seconds > 0.0 ? "compute" : "nothing";
    std::vector<double> seconds;
    for (size_t i = first; i < records.size(); ++i) {
        seconds.push_back(records[i].seconds);
        summary.verdict_seconds += records[i].verdict_seconds / summary.steps_counted;
        add_stalls(records[i].stats, summary.stall_seconds);
    }
    for (double &stall : summary.stall_seconds) stall /= std::max(1u, summary.steps_counted);
    summary.step_seconds = median(seconds);
    summarise_links(runtime, records, first, summary);

    for (uint32_t tier = 0; tier < 3; ++tier) {
        const bool exists[3] = {options.device_bytes != 0, options.host_bytes != 0,
                                !options.nvme.empty()};
        summary.tiers[tier] = STW_TIER_STATS_INIT;
        if (exists[tier])
            must(stw_tier_stats_get(runtime, STW_TIER_DEVICE + tier, 0, &summary.tiers[tier]));
    }
    summary.activation_bytes = arithmetic.activation_bytes();
    if (arithmetic.on_processor())
        summary.resident_limit_bytes =
            options.device_bytes + options.host_bytes + summary.activation_bytes + kOverheadBytes;
    summary.peak_resident_bytes = peak_resident_bytes();
    return summary;
}

void print_summary(const Options &options, const Summary &summary)
{
    std::printf("\n%-12s %12s %12s\n", "tier", "budget MiB", "peak MiB");
    for (uint32_t tier = 0; tier < 3; ++tier)
        if (summary.tiers[tier].budget_bytes != 0)
            std::printf("%-12s %12.1f %12.1f\n", kTierNames[tier],
                        static_cast<double>(summary.tiers[tier].budget_bytes) / kMiB,
                        static_cast<double>(summary.tiers[tier].peak_bytes) / kMiB);

    std::printf("\n%-12s %12s %12s %12s %12s\n", "link", "MiB", "MiB/step", "MiB/s", "ms/step");
    for (const LinkSummary &link : summary.links)
        if (link.bytes != 0)
            std::printf("%-12s %12.1f %12.1f %12.1f %12.1f\n", link.name,
                        static_cast<double>(link.bytes) / kMiB, link.bytes_per_step / kMiB,
                        static_cast<double>(link.bytes_per_second) / kMiB,
                        link.seconds_per_step * 1e3);

    std::printf("\nstep         %.1f ms, median of %u\n", summary.step_seconds * 1e3,
                summary.steps_counted);
    if (options.compute_seconds > 0.0)
        std::printf("bound        %.1f ms, set by %s: %.1f %% of the step\n",
                    summary.bound_seconds * 1e3, summary.bound_by,
                    100.0 * summary.bound_seconds / summary.step_seconds);
    else
        std::printf("bound        %.1f ms by the links alone (%s); --compute-seconds adds the "
                    "step in memory\n",
                    summary.bound_seconds * 1e3, summary.bound_by);
    if (options.compute_seconds > summary.step_seconds)
        std::printf("             above the step: in memory it was timed by --compute-seconds, "
                    "while the machine was slower\n");
    std::printf("stall/step   nvme %.1f ms, host and device %.1f, room %.1f, update %.1f, ranks "
                "%.1f, other %.1f\n",
                summary.stall_seconds[0] * 1e3, summary.stall_seconds[1] * 1e3,
                summary.stall_seconds[2] * 1e3, summary.stall_seconds[3] * 1e3,
                summary.stall_seconds[4] * 1e3, summary.stall_seconds[5] * 1e3);
    std::printf("             and %.1f ms for the norm of all gradients, which the clip needs\n",
                summary.verdict_seconds * 1e3);
    if (summary.resident_limit_bytes == 0) return;
    std::printf("resident     peak %.1f MiB; device %.1f + host %.1f + activations %.1f + 48 = "
                "%.1f MiB: %s\n",
                static_cast<double>(summary.peak_resident_bytes) / kMiB,
                static_cast<double>(options.device_bytes) / kMiB,
                static_cast<double>(options.host_bytes) / kMiB,
                static_cast<double>(summary.activation_bytes) / kMiB,
                static_cast<double>(summary.resident_limit_bytes) / kMiB,
                summary.peak_resident_bytes <= summary.resident_limit_bytes ? "within" : "OVER");
}

LossFile::~LossFile()
{
    if (file_ != nullptr) std::fclose(file_);
}

std::string LossFile::open(const std::string &path)
{
    path_ = path;
    file_ = std::fopen(path.c_str(), "w");
    return file_ != nullptr ? "" : cannot_write(path);
}

std::string LossFile::add(double loss)
{
    if (file_ == nullptr) return "";
    const bool written = std::fprintf(file_, "%a\n", loss) > 0 && std::fflush(file_) == 0;
    return written ? "" : cannot_write(path_);
}

std::string check_outputs(const Options &options)
{
    for (const std::string *path :
         {&options.losses_path, &options.json_path, &options.timeline_path, &options.report_path}) {
        if (path->empty()) continue;
        const bool there = access(path->c_str(), F_OK) == 0;
        std::FILE *file = std::fopen(path->c_str(), "a");
        if (file == nullptr) return cannot_write(*path);
        std::fclose(file);
        if (!there) std::remove(path->c_str());
    }
    return "";
}

std::string write_json(const std::string &path, const Options &options, const ModelSize &size,
                       const std::vector<StepRecord> &records, const Summary &summary)
{
    JsonFile file(path);
    if (file.get() == nullptr) return cannot_write(path);
    std::fprintf(file.get(),
                 "{\"rank\":%u,\"ranks\":%u,\"own_state_bytes\":%" PRIu64 ",\"parameters\":%" PRIu64
                 ",\"state_bytes\":%" PRIu64 ",\"checkpoint_bytes\":%" PRIu64
                 ",\"flops_per_step\":%.0f,\"rows\":%u,\"micro_batches\":%u,\"order\":\"%s\","
                 "\"threads\":%u,\"seed\":%" PRIu64 ",\n",
                 summary.rank, summary.ranks, summary.own_state_bytes, size.parameters,
                 size.state_bytes, size.checkpoint_bytes, size.flops_per_step,
                 options.batch * options.sequence, options.micro_batches, options.order.c_str(),
                 options.threads, options.seed);
    json_steps(file.get(), records);
    json_table(file.get(), summary);
    std::fprintf(file.get(),
                 "\"steps_counted\":%u,\"step_seconds\":%.6f,\"compute_seconds\":%.6f,"
                 "\"bound_seconds\":%.6f,\"bound_by\":\"%s\",\"verdict_seconds\":%.6f,\n"
                 "\"activation_bytes\":%" PRIu64 ",\"peak_resident_bytes\":%" PRIu64
                 ",\"resident_limit_bytes\":%" PRIu64 "}\n",
                 summary.steps_counted, summary.step_seconds, options.compute_seconds,
                 summary.bound_seconds, summary.bound_by, summary.verdict_seconds,
                 summary.activation_bytes, summary.peak_resident_bytes,
                 summary.resident_limit_bytes);
    return file.close() ? "" : cannot_write(path);
}

}  // namespace train_gpt
