// SPDX-License-Identifier: Apache-2.0
// Numbers with units, as people write them in files and on a command line.
#include "located_json.h"

#include "formatted.h"

#include "text.h"

#include <charconv>
#include <cmath>

namespace stepwell::cli {
namespace {

struct Scale {
    const char *name;
    double factor;
};

constexpr Scale kBytes[] = {{"B", 1},        {"KB", 1e3},     {"kB", 1e3},     {"MB", 1e6},
                            {"GB", 1e9},     {"TB", 1e12},    {"PB", 1e15},    {"KiB", 0x1p10},
                            {"MiB", 0x1p20}, {"GiB", 0x1p30}, {"TiB", 0x1p40}, {"PiB", 0x1p50}};
constexpr Scale kBytesPerSecond[] = {{"B/s", 1},        {"KB/s", 1e3},       {"kB/s", 1e3},
                                     {"MB/s", 1e6},     {"GB/s", 1e9},       {"TB/s", 1e12},
                                     {"PB/s", 1e15},    {"MiB/s", 0x1p20},   {"GiB/s", 0x1p30},
                                     {"TiB/s", 0x1p40}, {"Mbit/s", 1e6 / 8}, {"Gbit/s", 1e9 / 8}};
constexpr Scale kFlops[] = {{"FLOP", 1},     {"MFLOP", 1e6},  {"GFLOP", 1e9},
                            {"TFLOP", 1e12}, {"PFLOP", 1e15}, {"EFLOP", 1e18}};
constexpr Scale kFlopsPerSecond[] = {{"MFLOPS", 1e6},   {"GFLOPS", 1e9},  {"TFLOPS", 1e12},
                                     {"PFLOPS", 1e15},  {"MFLOP/s", 1e6}, {"GFLOP/s", 1e9},
                                     {"TFLOP/s", 1e12}, {"PFLOP/s", 1e15}};
constexpr Scale kSeconds[] = {{"ns", 1e-9}, {"us", 1e-6}, {"ms", 1e-3}, {"s", 1}};
constexpr Scale kCount[] = {{"", 1}, {"K", 1e3}, {"M", 1e6}, {"B", 1e9}, {"G", 1e9}, {"T", 1e12}};

struct Scales {
    const Scale *begin;
    size_t count;
    const char *example;
};

template <size_t N> Scales scales(const Scale (&list)[N], const char *example)
{
    return {list, N, example};
}

Scales scales_of(Unit unit)
{
    switch (unit) {
    case Unit::kBytes: return scales(kBytes, "32 GB");
    case Unit::kBytesPerSecond: return scales(kBytesPerSecond, "1.6 GB/s");
    case Unit::kFlops: return scales(kFlops, "3.2 TFLOP");
    case Unit::kFlopsPerSecond: return scales(kFlopsPerSecond, "70 TFLOPS");
    case Unit::kSeconds: return scales(kSeconds, "20 us");
    case Unit::kCount: return scales(kCount, "1.5 T");
    }
    return scales(kCount, "1");
}

}  // namespace

bool parse_quantity(std::string_view text, Unit unit, double *value, std::string *why)
{
    const Scales known = scales_of(unit);
    const std::string said = "'" + printable(text) + "'";
    const std::string wanted = std::string("; write it as '") + known.example + "'";
    double number = 0;
    const char *end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, number);
    if (error == std::errc::result_out_of_range) {
        *why = said + " is beyond all numbers that are known here" + wanted;
        return false;
    }
    if (error != std::errc() || !std::isfinite(number)) {
        *why = said + " does not begin with a number" + wanted;
        return false;
    }
    const std::string_view name = trimmed({stop, static_cast<size_t>(end - stop)});
    for (size_t i = 0; i < known.count; ++i) {
        if (name != known.begin[i].name) continue;
        *value = number * known.begin[i].factor;
        return true;
    }
    *why = said +
           (name.empty()            ? " has no unit"
            : name.starts_with(',') ? " has a comma, and a point divides a number here"
                                    : " has a unit that is none here") +
           wanted;
    return false;
}

std::string quantity_text(double value, Unit unit)
{
    const Scales known = scales_of(unit);
    const Scale *best = known.begin;
    for (size_t i = 0; i < known.count; ++i) {
        const Scale &scale = known.begin[i];
        const bool decimal = std::fmod(std::log10(scale.factor), 1) == 0;
        if (decimal && scale.factor <= value && scale.factor > best->factor) best = &scale;
    }
    // Plain numbers are counts, and small enough to be read.
    if (unit == Unit::kCount && value < 1e6) best = known.begin;
    const double scaled = value / best->factor;
    return formatted("%.6g%s%s", scaled, *best->name == '\0' ? "" : " ", best->name);
}

}  // namespace stepwell::cli
