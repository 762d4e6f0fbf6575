// SPDX-License-Identifier: Apache-2.0
// Where the results of the CPU's kernels have other forms than those of the meta device, which are
// the forms of CUDA's.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <string>
#include <vector>

namespace stepwell::torch_double {

// The CPU's kernel is to be waited for.
bool has_other_forms(const std::string &name);

// Of what the operation returned for meta tensors, given these arguments.
void correct_forms(const c10::OperatorHandle &op, const std::vector<c10::IValue> &arguments,
                   std::vector<c10::IValue> *forms);

}  // namespace stepwell::torch_double
