// SPDX-License-Identifier: Apache-2.0
// The option text of a driver, "key=value;key=value", cut into its parts. The driver defines the
// keys; an unknown key is refused, never skipped.
#pragma once

#include <stepwell/driver.h>

#include <cstdint>
#include <string_view>

namespace stepwell::drivers {

struct Option {
    std::string_view key;
    std::string_view value;  // empty if there is no '='
};

// Takes the next option off the front of *rest; false at the end.
bool next_option(std::string_view *rest, Option *option_out);
// The part of *rest before `separator`, taken off its front.
std::string_view next_part(std::string_view *rest, char separator);
bool parse_number(std::string_view text, uint64_t *value_out);
// 0 to 1.
bool parse_probability(std::string_view text, double *value_out);
// "0" or "1".
bool parse_switch(std::string_view text, bool *value_out);
// INVALID; `known` lists the keys that the driver has.
stw_status unknown_option(const char *driver, const Option &option, const char *known,
                          stw_driver_error *error_out);

}  // namespace stepwell::drivers
