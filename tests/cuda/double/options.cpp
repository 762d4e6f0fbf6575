// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda/double/options.h"

#include <charconv>
#include <string>

namespace stepwell::cuda_double {
namespace {

// Up to the separator, which is taken too.
std::string_view take(std::string_view &text, char separator)
{
    const size_t end = text.find(separator);
    const std::string_view part = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    return part;
}

bool parse_number(std::string_view text, uint64_t &number_out)
{
    unsigned shift = 0;
    if (!text.empty()) {
        switch (text.back()) {
        case 'K': shift = 10; break;
        case 'M': shift = 20; break;
        case 'G': shift = 30; break;
        default: break;
        }
    }
    if (shift > 0) text.remove_suffix(1);
    uint64_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (text.empty() || error != std::errc() || end != text.data() + text.size()) return false;
    if (number > UINT64_MAX >> shift) return false;
    number_out = number << shift;
    return true;
}

bool parse_failure(std::string_view text, Failure &failure_out)
{
    failure_out.entry = entry_by_name(std::string(take(text, ':')).c_str());
    uint64_t code = 0;
    if (!parse_number(take(text, ':'), failure_out.nth) || !parse_number(text, code)) return false;
    failure_out.code = static_cast<int>(code);
    return failure_out.entry != Entry::kCount && failure_out.code > 0;
}

bool parse_attribute(std::string_view text, std::map<int, int> &attributes)
{
    uint64_t which = 0, value = 0;
    if (!parse_number(take(text, ':'), which) || !parse_number(text, value)) return false;
    if (which == 0 || which > kAttributesMax || value > INT32_MAX) return false;
    attributes[static_cast<int>(which)] = static_cast<int>(value);
    return true;
}

bool parse_cost(std::string_view text, Costs &costs)
{
    const struct {
        std::string_view key;
        uint64_t *value;
    } keys[] = {
        {"up_mb_per_s", &costs.up_mb_per_s},
        {"down_mb_per_s", &costs.down_mb_per_s},
        {"device_mb_per_s", &costs.device_mb_per_s},
        {"copy_ns", &costs.copy_ns},
        {"kernel_ns", &costs.kernel_ns},
        {"event_ns", &costs.event_ns},
        {"copy_call_ns", &costs.copy_call_ns},
        {"launch_call_ns", &costs.launch_call_ns},
        {"event_call_ns", &costs.event_call_ns},
        {"wake_ns", &costs.wake_ns},
        {"create_ns", &costs.create_ns},
        {"map_ns", &costs.map_ns},
        {"access_ns", &costs.access_ns},
        {"unmap_ns", &costs.unmap_ns},
        {"register_mb_per_s", &costs.register_mb_per_s},
    };
    const std::string_view key = take(text, ':');
    for (const auto &each : keys)
        if (each.key == key) return parse_number(text, *each.value) && *each.value <= kCostMax;
    return false;
}

}  // namespace

std::optional<Options> parse_options(std::string_view text)
{
    Options options;
    const struct {
        std::string_view key;
        uint64_t *value;
        uint64_t max;
    } keys[] = {
        {"seed", &options.seed, UINT64_MAX},
        {"delay_us", &options.delay_us, 1'000'000},
        {"devices", &options.devices, kDevicesMax},
        {"memory", &options.memory, uint64_t{1} << 40},
        {"driver", &options.driver, 99999},
        {"unified", &options.unified, 1},
        {"busy", &options.busy, 1},
        {"queue", &options.queue, UINT64_MAX},
        {"register_max", &options.register_max, UINT64_MAX},
        {"batch_max", &options.batch_max, UINT64_MAX},
        {"exit", &options.exit, 255},
    };
    while (!text.empty()) {
        std::string_view value = take(text, ',');
        const std::string_view key = take(value, '=');
        if (key == "fail") {
            if (!parse_failure(value, options.failures.emplace_back())) return std::nullopt;
            continue;
        }
        if (key == "attribute") {
            if (!parse_attribute(value, options.attributes)) return std::nullopt;
            continue;
        }
        if (key == "cost") {
            if (!parse_cost(value, options.costs)) return std::nullopt;
            continue;
        }
        bool known = false;
        for (const auto &each : keys) {
            if (each.key != key) continue;
            known = parse_number(value, *each.value) && *each.value <= each.max;
        }
        if (!known) return std::nullopt;
    }
    return options;
}

int FailurePlan::next(Entry entry)
{
    int code = 0;
    for (Failure &failure : failures_) {
        if (failure.entry != entry || failure.code == 0) continue;
        if (failure.nth == 0) {
            if (code == 0) code = failure.code;
        } else if (--failure.nth == 0) {
            if (code == 0) code = failure.code;
            failure.code = 0;  // spent
        }
    }
    return code;
}

}  // namespace stepwell::cuda_double
