// SPDX-License-Identifier: Apache-2.0
//
// stepwell/hpp/tensor.hpp: tensors with an owner.
#ifndef STEPWELL_HPP_TENSOR_HPP
#define STEPWELL_HPP_TENSOR_HPP

#include <stepwell/hpp/owner.hpp>
#include <stepwell/hpp/runtime.hpp>
#include <stepwell/hpp/tensor_ref.hpp>

#include <cstdint>
#include <initializer_list>

namespace stw {

namespace detail {

struct DestroyTensor {
    stw_status operator()(stw_tensor *tensor) const noexcept
    {
        return stw_tensor_destroy(&tensor, 1);
    }
};

}  // namespace detail

/// One tensor; destroyed with its owner (its views must have ended, its optimizer too). Its calls
/// are those of TensorRef, to which it converts implicitly.
class Tensor : public detail::Owner<stw_tensor, detail::DestroyTensor>,
               public detail::TensorCalls<Tensor> {
public:
    using Owner::Owner;
    /// Takes no memory. Never blocks. Errors: as stw_tensor_create().
    static Result<Tensor> create(const Runtime &runtime, const stw_tensor_spec &spec)
    {
        stw_tensor *tensor = nullptr;
        const stw_status code = stw_tensor_create(runtime.get(), &spec, 1, &tensor);
        if (code < 0) return Result<Tensor>(code);
        return Tensor(tensor);
    }
    /// The short form: name, shape and dtype, role, and STW_TENSOR_DURABLE or other flags.
    static Result<Tensor> create(const Runtime &runtime, const char *name,
                                 std::initializer_list<uint64_t> shape, uint32_t dtype = STW_F32,
                                 uint32_t role = STW_ROLE_OTHER, uint32_t flags = 0)
    {
        stw_tensor_spec spec = STW_TENSOR_SPEC_INIT;
        spec.name = name;
        spec.dtype = dtype;
        spec.role = role;
        spec.flags = flags;
        // Too many dimensions: the library refuses the number, the rest is not read.
        spec.dimensions = static_cast<uint32_t>(shape.size());
        uint32_t i = 0;
        for (const uint64_t extent : shape) {
            if (i < STW_DIMENSIONS_MAX) spec.shape[i++] = extent;
        }
        return create(runtime, spec);
    }
    operator TensorRef() const noexcept { return TensorRef(get()); }
    /// BUSY while views or an optimizer hold it; then it is still owned.
    Status destroy() { return Status(close_now()); }
};

}  // namespace stw

#endif  // STEPWELL_HPP_TENSOR_HPP
