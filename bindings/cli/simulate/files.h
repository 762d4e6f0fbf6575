// SPDX-License-Identifier: Apache-2.0
// Model and machine files. docs/simulate.md tells every key. Throws Refused.
#pragma once

#include "located_json.h"

#include "lib/simulate/machine.h"
#include "lib/simulate/model.h"

#include <cmath>
#include <string>

namespace stepwell::cli {

constexpr double kParametersMax = 1e16;
constexpr double kRateMax = 1e16;  // bytes per second

[[nodiscard]] inline uint64_t rounded(double value)
{
    return static_cast<uint64_t>(std::llround(value));
}

simulate::Model parse_model(const Located &root, const std::string &file);
simulate::Machine parse_machine(const Located &root, const std::string &file);
simulate::Model read_model(const std::string &file);
simulate::Machine read_machine(const std::string &file);
// A profile of `stepwell tune`: this host, as far as it was measured. The texts are quantities.
bool is_profile(const Located &root);
simulate::Machine read_profile(const std::string &file, const std::string &gpu_memory,
                               const std::string &gpu_flops);

}  // namespace stepwell::cli
