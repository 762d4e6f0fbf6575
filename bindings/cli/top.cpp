// SPDX-License-Identifier: Apache-2.0
// The pages of a process as a table, or as they are. Waits on a descriptor of the process, so that
// its end is seen at once.
#include "top.h"

#include "stats_page.h"
#include "text.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <vector>

#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

namespace stepwell::cli {

namespace {

using SortedJson = nlohmann::json;

constexpr int kPeriodMs = 1000;
constexpr size_t kColumns = 60;
constexpr int kShown = 0;
constexpr int kFailed = 1;

std::string rounded(double value)
{
    if (value == 0) return "0";
    char text[32];
    std::snprintf(text, sizeof text, value >= 100 ? "%.0f" : value >= 10 ? "%.1f" : "%.2f", value);
    return text;
}

// What never ran took no time, and is no "0.00 us".
std::string time_text(double ns)
{
    if (ns == 0) return "-";
    if (ns >= 120e9) return rounded(ns / 60e9) + " min";
    if (ns >= 1e9) return rounded(ns / 1e9) + " s";
    if (ns >= 1e6) return rounded(ns / 1e6) + " ms";
    return rounded(ns / 1e3) + " us";
}

std::string rate_text(const SortedJson &rate, const char *unit)
{
    return rate.is_number() ? rounded(rate.get<double>()) + unit : "-";
}

using Row = std::vector<std::string>;

// The first column to the left, the others to the right.
std::string table_text(const std::vector<Row> &rows)
{
    std::vector<size_t> widths;
    for (const Row &row : rows) {
        widths.resize(std::max(widths.size(), row.size()));
        for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
    }
    std::string text;
    for (const Row &row : rows) {
        std::string line;
        for (size_t i = 0; i < row.size(); ++i) {
            const std::string space(widths[i] - row[i].size(), ' ');
            line += i == 0 ? row[i] + space : "  " + space + row[i];
        }
        text += line + "\n";
    }
    return text;
}

std::string numbered(const std::string &name, uint64_t device)
{
    return device == 0 ? name : name + " " + std::to_string(device);
}

std::string tiers_text(const SortedJson &page)
{
    std::vector<Row> rows = {{"tier", "used", "budget", "peak", "pinned", "evictions"}};
    for (const SortedJson &tier : page.at("tiers"))
        rows.push_back({numbered(tier.at("tier"), tier.at("device")),
                        bytes_text(tier.at("used_bytes")), bytes_text(tier.at("budget_bytes")),
                        bytes_text(tier.at("peak_bytes")), bytes_text(tier.at("pinned_bytes")),
                        std::to_string(tier.at("evictions").get<uint64_t>())});
    return table_text(rows);
}

std::string mib_text(const SortedJson &bytes_per_s)
{
    const bool known = bytes_per_s.is_number() && bytes_per_s.get<double>() > 0;
    return known ? rounded(bytes_per_s.get<double>() / 0x1p20) : "-";
}

std::string links_text(const SortedJson &page)
{
    std::vector<Row> rows = {{"link", "MiB/s now", "measured", "moved", "transfers"}};
    std::string errors;
    for (const SortedJson &link : page.at("links")) {
        const uint64_t bytes = link.at("bytes");
        const uint64_t failed = link.at("errors");
        const std::string name = numbered(link.at("link"), link.at("device"));
        if (failed > 0) errors += name + ": " + std::to_string(failed) + " transfers failed\n";
        if (bytes == 0) continue;
        rows.push_back({name, mib_text(link.at("bytes_per_s")),
                        mib_text(link.at("measured_bytes_per_s")), bytes_text(bytes),
                        std::to_string(link.at("transfers").get<uint64_t>())});
    }
    return (rows.size() > 1 ? table_text(rows) : "nothing has moved over a link\n") + errors;
}

// As many to a line as fit.
std::string list_text(const std::vector<std::string> &items)
{
    std::string text;
    size_t line = 0;
    for (const std::string &item : items) {
        const bool fits = line > 0 && line + 2 + item.size() <= kColumns;
        if (line > 0) text += fits ? ", " : ",\n";
        if (!fits) text += "  ";
        line = fits ? line + 2 + item.size() : 2 + item.size();
        text += item;
    }
    return text.empty() ? "" : text + "\n";
}

std::string waits_text(const SortedJson &page)
{
    const SortedJson &stalls = page.at("stalls");
    if (stalls.at("waits").get<uint64_t>() == 0) return "no fetch has waited\n";
    std::string text = "waited " + time_text(stalls.at("total_ns")) + " in " +
                       std::to_string(stalls.at("waits").get<uint64_t>()) + " waits";
    if (stalls.at("ns_per_s").is_number())
        text += ", now " + rounded(stalls.at("ns_per_s").get<double>() / 1e7) + " % of a thread";
    std::vector<std::string> causes;
    for (const char *cause : {"nvme", "host_device", "collective", "room", "update"}) {
        const double ns = stalls.at(std::string(cause) + "_ns");
        if (ns > 0) causes.push_back(std::string(cause) + " " + time_text(ns));
    }
    return text + "\n" + list_text(causes);
}

std::string phases_text(const SortedJson &page)
{
    std::vector<Row> rows = {{"phase", "step", "took", "waited", "bound", "least"}};
    for (const SortedJson &phase : page.at("phases")) {
        const uint64_t steps = phase.at("steps");
        const std::string step = phase.at("open").get<bool>() ? std::to_string(steps + 1) + " runs"
                                 : steps > 0                  ? std::to_string(steps) + " done"
                                                              : "-";
        rows.push_back({printable(phase.at("name").get<std::string>()), step,
                        time_text(phase.at("last_wall_ns")), time_text(phase.at("last_stall_ns")),
                        time_text(phase.at("last_bound_ns")),
                        time_text(phase.value("last_least_ns", uint64_t{0}))});
    }
    return rows.size() > 1 ? "\n" + table_text(rows) : "";
}

// One look at all runtimes of the process; "" with the sentence in `error`.
std::string look(const TopOptions &options, std::string *error)
{
    const StatsPages pages = read_stats_pages(options.process);
    *error = pages.error;
    std::string text;
    try {
        for (const SortedJson &page : pages.runtimes)
            text += options.json ? page.dump() + "\n" : (text.empty() ? "" : "\n") + top_text(page);
    } catch (const SortedJson::exception &) {
        *error = "The statistics page of process " + std::to_string(options.process) +
                 " lacks what this stepwell looks for; use the stepwell of its library.";
        return "";
    }
    return text;
}

bool show(const std::string &text, bool screen, std::FILE *out)
{
    const std::string whole = (screen ? "\x1b[H\x1b[2J" : "") + text;
    return std::fwrite(whole.data(), 1, whole.size(), out) == whole.size() && std::fflush(out) == 0;
}

// False when the process has ended meanwhile.
bool wait_beside(int process)
{
    pollfd ended{process, POLLIN, 0};
    return poll(&ended, process >= 0 ? 1 : 0, kPeriodMs) == 0;
}

}  // namespace

std::string top_text(const SortedJson &page)
{
    std::string text = printable(page.at("runtime").get<std::string>()) + ", process " +
                       std::to_string(page.at("process").get<uint64_t>()) + ", open for " +
                       time_text(page.at("elapsed_ns")) + "\nStepwell " +
                       printable(page.at("version").get<std::string>()) + "\n\n";
    text += tiers_text(page) + "\n" + links_text(page) + "\n";
    text += "hits " + std::to_string(page.at("hits").get<uint64_t>()) + " (" +
            rate_text(page.at("hits_per_s"), "/s") + "), misses " +
            std::to_string(page.at("misses").get<uint64_t>()) + " (" +
            rate_text(page.at("misses_per_s"), "/s") + ")\n";
    text += waits_text(page);
    text += "now " + std::to_string(page.at("transfers_in_flight").get<uint64_t>()) +
            " transfers in flight, " + std::to_string(page.at("waiting_fetches").get<uint64_t>()) +
            " fetches wait\n" + std::to_string(page.at("updates").get<uint64_t>()) +
            " optimizer steps, " + std::to_string(page.at("errors").get<uint64_t>()) + " errors\n";
    return text + phases_text(page);
}

int run_top(const TopOptions &options, std::FILE *out, std::FILE *err)
{
    const bool screen = !options.once && !options.json && isatty(fileno(out)) == 1;
    const auto number = static_cast<pid_t>(options.process);
    const int process = static_cast<int>(syscall(SYS_pidfd_open, number, 0));
    bool shown = false;
    bool written = true;
    std::string error;
    for (bool lives = true; lives; lives = !options.once && written && wait_beside(process)) {
        const std::string text = look(options, &error);
        if (text.empty()) break;
        shown = true;
        written = show(text, screen, out);
    }
    if (process >= 0) close(process);
    if (!written) {
        std::fprintf(err, "stepwell top: the output could not be written.\n");
        return kFailed;
    }
    if (options.once && shown) return kShown;
    if (shown) {
        const bool there = kill(number, 0) == 0 || errno == EPERM;
        std::fprintf(err, "stepwell top: Process %ju has %s.\n", uintmax_t{options.process},
                     there && !error.empty() ? "closed its runtime" : "ended");
        return kShown;
    }
    std::fprintf(err, "stepwell top: %s\n", error.c_str());
    return kFailed;
}

}  // namespace stepwell::cli
