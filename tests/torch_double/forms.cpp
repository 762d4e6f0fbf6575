// SPDX-License-Identifier: Apache-2.0
#include "tests/torch_double/forms.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

namespace stepwell::torch_double {

bool has_other_forms(const std::string &name)
{
    return name == "aten::_embedding_bag" || name == "aten::_embedding_bag_forward_only";
}

// The CPU's statistics of a normalization have the type of its parameters, and outside of training
// of batches there are none.
void correct_forms(const c10::OperatorHandle &op, const std::vector<c10::IValue> &arguments,
                   std::vector<c10::IValue> *forms)
{
    const std::string &name = op.schema().name();
    const bool of_batches =
        name.find("batch_norm") != std::string::npos && name.find("backward") == std::string::npos;
    if (!of_batches && name != "aten::native_layer_norm") return;
    const at::ScalarType of_input = arguments[0].toTensor().scalar_type();
    at::ScalarType type = of_input;
    for (const c10::IValue &each : arguments)
        if (each.isTensor() && each.toTensor().defined() && type == of_input)
            type = each.toTensor().scalar_type();
    const auto training = op.schema().argumentIndexWithName("training");
    const bool trains = !training || arguments[static_cast<size_t>(*training)].toBool();
    for (const size_t i : {1, 2}) {
        const at::Tensor form = (*forms)[i].toTensor().to(type);
        (*forms)[i] = of_batches && !trains ? at::empty({0}, form.options()) : form;
    }
}

}  // namespace stepwell::torch_double
