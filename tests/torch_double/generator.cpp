// SPDX-License-Identifier: Apache-2.0
#include "tests/torch_double/generator.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <array>
#include <cstring>

namespace stepwell::torch_double {
namespace {

using State = std::array<uint64_t, 2>;  // seed and offset

// The output function of SplitMix64: neighbours have nothing in common.
uint64_t mixed(uint64_t value)
{
    value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
    value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
    return value ^ (value >> 31);
}

}  // namespace

const at::Generator &LateGenerator::of_device()
{
    static const auto *one = new at::Generator(at::make_generator<LateGenerator>());
    return *one;
}

at::Generator LateGenerator::next()
{
    const std::lock_guard<std::mutex> lock(mutex_);
    return at::make_generator<at::CPUGeneratorImpl>(mixed(mixed(seed_) + offset_++));
}

void LateGenerator::set_current_seed(uint64_t seed)
{
    seed_ = seed;
    offset_ = 0;
}

uint64_t LateGenerator::seed()
{
    set_current_seed(c10::detail::getNonDeterministicRandom());
    return seed_;
}

void LateGenerator::set_state(const c10::TensorImpl &state)
{
    TORCH_CHECK(state.is_cpu() && state.dtype() == caffe2::TypeMeta::Make<uint8_t>() &&
                    state.numel() == sizeof(State) && state.is_contiguous(),
                "late: the state of a generator is ", sizeof(State), " bytes on the CPU");
    State words;
    std::memcpy(words.data(), state.data(), sizeof words);
    seed_ = words[0];
    offset_ = words[1];
}

c10::intrusive_ptr<c10::TensorImpl> LateGenerator::get_state() const
{
    const State words{seed_, offset_};
    at::Tensor state = at::empty({sizeof words}, at::TensorOptions().dtype(at::kByte));
    std::memcpy(state.mutable_data_ptr(), words.data(), sizeof words);
    return state.getIntrusivePtr();
}

LateGenerator *LateGenerator::clone_impl() const
{
    auto *copy = new LateGenerator;
    copy->seed_ = seed_;
    copy->offset_ = offset_;
    return copy;
}

}  // namespace stepwell::torch_double
