// SPDX-License-Identifier: Apache-2.0
// Parses the script and draws from it. No clock, no state: the same text and the same sequence of
// requests give the same faults.
#include "drivers/fault/script.h"

#include "drivers/common/option_text.h"

namespace stepwell::drivers {

namespace {

constexpr size_t kRulesMax = 256;
constexpr const char *kFaultNames[kFaultKinds] = {
    "eio",  "short", "torn",    "lost",     "misdirect", "flip",
    "hang", "delay", "partial", "throttle", "enospc",
};

struct RateKey {
    const char *key;
    FaultKind kind;
    Direction direction;
};
constexpr RateKey kRateKeys[] = {
    {"read_eio", FaultKind::kEio, Direction::kRead},
    {"write_eio", FaultKind::kEio, Direction::kWrite},
    {"write_enospc", FaultKind::kNoSpace, Direction::kWrite},
    {"flush_eio", FaultKind::kEio, Direction::kFlush},
    {"read_short", FaultKind::kShort, Direction::kRead},
    {"write_short", FaultKind::kShort, Direction::kWrite},
    {"torn_write", FaultKind::kTorn, Direction::kWrite},
    {"lost_write", FaultKind::kLost, Direction::kWrite},
    {"misdirect", FaultKind::kMisdirect, Direction::kWrite},
    {"flip_read", FaultKind::kFlip, Direction::kRead},
    {"hang_read", FaultKind::kHang, Direction::kRead},
    {"hang_write", FaultKind::kHang, Direction::kWrite},
    {"delay_read", FaultKind::kDelay, Direction::kRead},
    {"delay_write", FaultKind::kDelay, Direction::kWrite},
    {"submit_partial", FaultKind::kPartial, Direction::kSubmit},
};

uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
    x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
    return x ^ (x >> 31);
}

uint64_t draw(uint64_t seed, Direction direction, uint64_t number, uint64_t purpose)
{
    return mix(mix(mix(seed) ^ number) ^ (static_cast<uint64_t>(direction) << 32 | purpose));
}

bool parse_direction(std::string_view text, Direction *direction_out)
{
    if (text == "read")
        *direction_out = Direction::kRead;
    else if (text == "write")
        *direction_out = Direction::kWrite;
    else if (text == "flush")
        *direction_out = Direction::kFlush;
    else
        return false;
    return true;
}

// The same kinds as rates have: a read is not torn, a flush does not hang.
bool exists(FaultKind kind, Direction direction)
{
    for (const RateKey &known : kRateKeys)
        if (known.kind == kind && known.direction == direction) return true;
    return false;
}

bool parse_kind(std::string_view text, FaultKind *kind_out)
{
    for (size_t i = 0; i < kFaultKinds; ++i) {
        if (text != kFaultNames[i]) continue;
        *kind_out = static_cast<FaultKind>(i);
        return true;
    }
    return false;
}

}  // namespace

const char *fault_name(FaultKind kind)
{
    return kFaultNames[static_cast<size_t>(kind)];
}

bool FaultScript::add(const Rule &rule)
{
    if (rules_.size() >= kRulesMax || !exists(rule.kind, rule.direction)) return false;
    rules_.push_back(rule);
    return true;
}

// P, at:N, and for a delay one ":NS" more.
bool FaultScript::take_rate(std::string_view key, std::string_view value)
{
    for (const RateKey &known : kRateKeys) {
        if (key != known.key) continue;
        Rule rule = {known.kind, known.direction, false, 0, 0, 0};
        std::string_view first = next_part(&value, ':');
        rule.exact = first == "at";
        if (rule.exact ? !parse_number(next_part(&value, ':'), &rule.number)
                       : !parse_probability(first, &rule.probability))
            return false;
        if (rule.kind == FaultKind::kDelay && !parse_number(next_part(&value, ':'), &rule.delay_ns))
            return false;
        return value.empty() && add(rule);
    }
    return false;
}

bool FaultScript::take_trigger(std::string_view value)
{
    Rule rule = {FaultKind::kEio, Direction::kRead, true, 0, 0, 0};
    if (!parse_direction(next_part(&value, ':'), &rule.direction)) return false;
    if (!parse_number(next_part(&value, ':'), &rule.number)) return false;
    if (!parse_kind(next_part(&value, ':'), &rule.kind)) return false;
    if (rule.kind == FaultKind::kDelay && !parse_number(next_part(&value, ':'), &rule.delay_ns))
        return false;
    return value.empty() && add(rule);
}

bool FaultScript::take(std::string_view key, std::string_view value)
{
    constexpr std::string_view kInnerPrefix = "inner.";
    if (key == "inner") {
        inner_ = value;
        return !value.empty();
    }
    if (key.starts_with(kInnerPrefix)) {
        key.remove_prefix(kInnerPrefix.size());
        inner_options_.append(key).append("=").append(value).append(";");
        return true;
    }
    if (key == "seed") return parse_number(value, &seed_);
    if (key == "throttle_bytes_per_s") return parse_number(value, &throttle_bytes_per_s_);
    if (key == "open_enospc") return parse_switch(value, &open_enospc_);
    if (key == "hang_until") {
        close_releases_ = value == "close";
        return close_releases_ || value == "release";
    }
    return key == "at" ? take_trigger(value) : take_rate(key, value);
}

stw_status FaultScript::parse(const char *text, FaultScript *script_out,
                              stw_driver_error *error_out)
{
    std::string_view rest = text != nullptr ? text : "";
    Option option;
    while (next_option(&rest, &option)) {
        if (script_out->take(option.key, option.value)) continue;
        return unknown_option("fault", option, "its options are listed in docs/drivers.md",
                              error_out);
    }
    return STW_OK;
}

FaultPlan FaultScript::plan(Direction direction, uint64_t number) const
{
    FaultPlan plan;
    plan.random = draw(seed_, direction, number, UINT32_MAX);
    for (const Rule &rule : rules_) {
        if (rule.direction != direction) continue;
        const uint64_t drawn = draw(seed_, direction, number, static_cast<uint64_t>(rule.kind));
        const double uniform = static_cast<double>(drawn >> 11) * 0x1p-53;  // [0, 1)
        if (rule.exact ? rule.number != number : uniform >= rule.probability) continue;
        plan.has_kind[static_cast<size_t>(rule.kind)] = true;
        if (rule.kind == FaultKind::kDelay) plan.delay_ns += rule.delay_ns;
    }
    return plan;
}

}  // namespace stepwell::drivers
