// SPDX-License-Identifier: Apache-2.0
#include "cuda_results.h"

#include "measure.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>

namespace bench {

namespace {

// {"name": ..., "ratio": ..., "spread": [...], "pairs": ...; what follows is the caller's.
std::string begin_of(const std::string &name, double value, const char *unit,
                     const std::string &against, const std::vector<double> &ratios)
{
    char text[512];
    std::snprintf(text, sizeof text,
                  "{\"name\": \"%s\", \"value\": %.4g, \"unit\": \"%s\", \"against\": \"%s\", "
                  "\"ratio\": %.3g, \"spread\": [%.3g, %.3g], \"pairs\": %zu",
                  name.c_str(), value, unit, against.c_str(), median(ratios),
                  *std::min_element(ratios.begin(), ratios.end()),
                  *std::max_element(ratios.begin(), ratios.end()), ratios.size());
    return text;
}

}  // namespace

void Results::rate(const std::string &name, uint64_t bytes, const std::string &against,
                   double wanted, const std::vector<Pair> &pairs)
{
    std::vector<double> ours, theirs, ratios;
    for (const Pair &pair : pairs) {
        ours.push_back(static_cast<double>(bytes) / pair.ours / 1e9);
        theirs.push_back(static_cast<double>(bytes) / pair.reference / 1e9);
        ratios.push_back(pair.reference / pair.ours);
    }
    char rest[128];
    std::snprintf(rest, sizeof rest,
                  ", \"reference_value\": %.4g, \"bytes\": %" PRIu64
                  ", \"wanted\": %.3g, \"ok\": %s}",
                  median(theirs), bytes, wanted, median(ratios) >= wanted ? "true" : "false");
    add(begin_of(name, median(ours), "GB/s", against, ratios) + rest);
}

void Results::time(const std::string &name, const std::vector<double> &ns, double wanted_ns,
                   uint64_t driver_calls)
{
    std::vector<double> ratios;
    for (const double one : ns) ratios.push_back(wanted_ns / one);
    char rest[128];
    std::snprintf(
        rest, sizeof rest,
        ", \"reference_value\": %.4g, \"driver_calls\": %" PRIu64 ", \"wanted\": 1, \"ok\": %s}",
        wanted_ns, driver_calls, median(ratios) >= 1 && driver_calls == 0 ? "true" : "false");
    char limit[64];
    std::snprintf(limit, sizeof limit, "the limit of %.0f ns; %" PRIu64 " driver calls", wanted_ns,
                  driver_calls);
    add(begin_of(name, median(ns), "ns", limit, ratios) + rest);
}

void Results::step(const std::string &name, const std::string &against, double wanted, bool ok,
                   const std::vector<Pair> &pairs)
{
    std::vector<double> ours, bounds, ratios;
    for (const Pair &pair : pairs) {
        ours.push_back(pair.ours * 1e3);
        bounds.push_back(pair.reference * 1e3);
        ratios.push_back(pair.reference / pair.ours);
    }
    char rest[128];
    std::snprintf(rest, sizeof rest, ", \"reference_value\": %.4g, \"wanted\": %.3g, \"ok\": %s}",
                  median(bounds), wanted, ok && median(ratios) >= wanted ? "true" : "false");
    add(begin_of(name, median(ours), "ms", against, ratios) + rest);
}

void Results::plain(const std::string &name, double value, const char *unit, double wanted,
                    Limit limit)
{
    const bool most = limit == Limit::kAtMost;
    const double ratio = most ? wanted / value : value / wanted;
    char against[64];
    std::snprintf(against, sizeof against, "at %s %.4g", most ? "most" : "least", wanted);
    add(begin_of(name, value, unit, against, {ratio}) +
        (ratio >= 1 ? ", \"wanted\": 1, \"ok\": true}" : ", \"wanted\": 1, \"ok\": false}"));
}

void Results::add(const std::string &line)
{
    lines_.push_back(line);
    std::printf("%s\n", line.c_str());
    std::fflush(stdout);
    if (!path_.empty()) write();
}

void Results::write() const
{
    std::FILE *file = std::fopen(path_.c_str(), "w");
    if (file == nullptr) give_up("'" + path_ + "' cannot be written; name another file");
    std::fprintf(file, "{\"results\": [");
    for (size_t i = 0; i < lines_.size(); ++i)
        std::fprintf(file, "%s\n  %s", i == 0 ? "" : ",", lines_[i].c_str());
    std::fprintf(file, "\n]}\n");
    if (std::fclose(file) != 0) give_up("'" + path_ + "' cannot be written to its end");
}

}  // namespace bench
