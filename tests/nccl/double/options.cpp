// SPDX-License-Identifier: Apache-2.0
#include "tests/nccl/double/options.h"

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <utility>

namespace stepwell::nccl_double {
namespace {

std::string_view take(std::string_view &rest, char end)
{
    const std::string_view part = rest.substr(0, rest.find(end));
    rest.remove_prefix(part.size() < rest.size() ? part.size() + 1 : rest.size());
    return part;
}

template <class Number> bool parse(std::string_view text, Number &number_out)
{
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number_out);
    return error == std::errc() && end == text.data() + text.size();
}

bool parse_failure(std::string_view text, Failure &failure)
{
    failure.function = take(text, ':');
    return parse(take(text, ':'), failure.nth) && parse(text, failure.code);
}

bool parse_option(std::string_view key, std::string_view value, Options &options)
{
    if (key == "version") return parse(value, options.version);
    if (key == "init") return parse(value, options.init);
    if (key == "launch") return parse(value, options.launch);
    if (key == "fail") return parse_failure(value, options.failures.emplace_back());
    if (key != "notices") return false;
    options.notices = value == "1";
    return options.notices || value == "0";
}

}  // namespace

Options options_of_environment()
{
    const char *given = std::getenv("STW_NCCL_DOUBLE");
    std::string_view text = given != nullptr ? given : "";
    Options options;
    while (!text.empty()) {
        std::string_view value = take(text, ',');
        const std::string_view key = take(value, '=');
        if (parse_option(key, value, options)) continue;
        std::fprintf(stderr, "STW_NCCL_DOUBLE='%s' is not understood.\n", given);
        std::abort();
    }
    return options;
}

int Counts::count(const char *function)
{
    ++calls_[function];
    int code = 0;
    for (Failure &failure : failures_) {
        if (failure.function != function || failure.code == 0) continue;
        if (failure.nth == 0) {
            code = failure.code;
        } else if (--failure.nth == 0) {
            code = std::exchange(failure.code, 0);
        }
    }
    return code;
}

uint64_t Counts::of(std::string_view function) const
{
    const auto found = calls_.find(function);
    return found != calls_.end() ? found->second : 0;
}

}  // namespace stepwell::nccl_double
