// SPDX-License-Identifier: Apache-2.0
// An operation of PyTorch that is enqueued: the CPU's kernel, run by the double when its stream
// comes to it, on the bytes that it said it would touch.
#pragma once

#include "tests/torch_double/device.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <memory>
#include <string>
#include <vector>

namespace stepwell::torch_double {

inline bool is_late(const at::Tensor &tensor)
{
    return tensor.defined() && tensor.device().type() == kDevice.type();
}
inline Address address_of(const at::Tensor &tensor)
{
    return reinterpret_cast<Address>(tensor.numel() > 0 ? tensor.const_data_ptr() : nullptr);
}

// A tensor as a kernel gets it: an address and a form, and nothing that keeps its memory.
struct Operand {
    explicit Operand(const at::Tensor &of, bool writes);

    uint64_t bytes() const { return bytes_of(sizes, strides, dtype); }
    // From the first element to the end of the last.
    static uint64_t bytes_of(c10::IntArrayRef sizes, c10::IntArrayRef strides,
                             at::ScalarType dtype);
    // What a kernel touches: runs of bytes, or where these are many the whole extent.
    void add_ranges(std::vector<stw_double_range> *ranges_out) const;
    at::Tensor on_host(stw_double_alias_of alias) const;

    Address address = 0;
    std::vector<int64_t> sizes, strides;
    at::ScalarType dtype;
    bool conjugated, negative, writes;
    // Only a result goes there: the kernel gets an empty tensor in its place, whose storage it can
    // resize, and that is copied.
    bool is_result = false;
    at::Tensor host;  // of the CPU: its value when the work was enqueued
};

// Where tensors stand among the arguments of an operation: their numbers among the operands, -1 for
// none. A place holds one tensor, a list, or a list of optional ones.
struct Place {
    enum Kind { kTensor, kList, kOptionals };
    size_t argument;
    Kind kind;
    std::vector<int> numbers;

    c10::IValue filled(const std::vector<at::Tensor> &tensors) const;
};

struct Work {
    Work(const c10::OperatorHandle &of) : op(of), name(of.schema().name()) {}

    c10::OperatorHandle op;
    std::string name;
    std::vector<c10::IValue> arguments;
    std::vector<Place> places;
    std::vector<Operand> operands;
    std::vector<int> results;  // operand that holds each tensor of the result; -1: none
    std::vector<c10::IValue> *returned_out = nullptr;  // for a caller who waits
};

// The tensors of a result, in order.
std::vector<at::Tensor> tensors_of(const std::vector<c10::IValue> &values);

// On the current stream.
void enqueue(std::unique_ptr<Work> work);

// What went wrong in work that ran late is thrown by a later call, as CUDA does.
void throw_failure();

}  // namespace stepwell::torch_double
