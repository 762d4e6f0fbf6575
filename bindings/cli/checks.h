// SPDX-License-Identifier: Apache-2.0
// Facts into verdicts: what a value should be, whether it is, and the command that makes it so.
// Pure. A warning says that something will be slower, smaller or refused; it is no error.
#pragma once

#include "directory.h"
#include "drivers.h"
#include "system.h"

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

namespace stepwell::cli {

using Json = nlohmann::ordered_json;

struct Check {
    std::string name;   // of JSON: "aio_slots"
    std::string title;  // of text: "aio slots"
    Json facts;         // numbers with their units in the keys; null is "no limit"
    std::string value;  // the same for a reader
    std::string needed;
    bool warn = false;
    std::string remedy;  // a command, or what to do where none does it; "" if all is well
    bool as_root = false;
};

// `directories`: how many the nvme tier would have.
std::vector<Check> check_limits(const System &system, uint64_t directories);
std::vector<Check> check_directory(const Directory &directory, const Chosen &chosen);

}  // namespace stepwell::cli
