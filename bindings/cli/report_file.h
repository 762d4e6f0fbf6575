// SPDX-License-Identifier: Apache-2.0
// The library's report of a runtime, by way of a file that is gone when this returns, whatever
// signal ends the process meanwhile (but for one that cannot be held back).
#pragma once

#include <stepwell/stepwell.h>

#include <string>

namespace stepwell::cli {

// "" with the sentence why in `error_out`.
std::string read_report(stw_runtime *runtime, std::string *error_out);

}  // namespace stepwell::cli
