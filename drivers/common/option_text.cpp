// SPDX-License-Identifier: Apache-2.0
// Option text: no locale, no allocation.
#include "drivers/common/option_text.h"

#include "drivers/common/edge.h"

#include <charconv>

namespace stepwell::drivers {

std::string_view next_part(std::string_view *rest, char separator)
{
    const size_t end = rest->find(separator);
    const std::string_view part = rest->substr(0, end);
    *rest = end == std::string_view::npos ? std::string_view() : rest->substr(end + 1);
    return part;
}

bool next_option(std::string_view *rest, Option *option_out)
{
    while (!rest->empty()) {
        std::string_view part = next_part(rest, ';');
        if (part.empty()) continue;  // "a=1;;b=2" and a ';' at the end are harmless
        option_out->key = next_part(&part, '=');
        option_out->value = part;
        return true;
    }
    return false;
}

bool parse_number(std::string_view text, uint64_t *value_out)
{
    const char *end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, *value_out);
    return !text.empty() && error == std::errc() && stop == end;
}

bool parse_probability(std::string_view text, double *value_out)
{
    const char *end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, *value_out);
    return !text.empty() && error == std::errc() && stop == end && *value_out >= 0 &&
           *value_out <= 1;
}

bool parse_switch(std::string_view text, bool *value_out)
{
    *value_out = text == "1";
    return text == "0" || text == "1";
}

stw_status unknown_option(const char *driver, const Option &option, const char *known,
                          stw_driver_error *error_out)
{
    return fail(error_out, STW_ERROR_INVALID, {},
                "The %s driver does not understand the option '%.*s=%.*s'; %s.", driver,
                static_cast<int>(option.key.size()), option.key.data(),
                static_cast<int>(option.value.size()), option.value.data(), known);
}

}  // namespace stepwell::drivers
