// SPDX-License-Identifier: Apache-2.0
// The forms of results. They are those of the meta device, but where the CPU's kernels have others;
// and as some of its kernels are long ways through Python, they are remembered.
#pragma once

#include "tests/torch_double/work.h"

#include <memory>
#include <optional>

namespace stepwell::torch_double {

// The CPU's kernel is to be waited for.
bool has_other_forms(const std::string &name);

// Of what the operation returned for meta tensors, given these arguments.
void correct_forms(const c10::OperatorHandle &op, const std::vector<c10::IValue> &arguments,
                   std::vector<c10::IValue> *forms);

struct Forms {
    // Meta tensors; nothing where the result is an argument.
    std::vector<c10::IValue> results;
    std::vector<std::vector<int64_t>> sizes;  // of the operands, behind the operation
};

// All that forms depend on, as bytes. Nothing: it has arguments of kinds that are not known here.
std::optional<std::string> key_of_forms(const Work &work);
std::shared_ptr<const Forms> remembered_forms(const std::string &key);
void remember_forms(const std::string &key, std::shared_ptr<const Forms> forms);

}  // namespace stepwell::torch_double
