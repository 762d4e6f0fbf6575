// SPDX-License-Identifier: Apache-2.0
// Random numbers of the device. As CUDA's, a generator is a seed and an offset: an operation takes
// the next part of the sequence when it is enqueued, and draws when it runs. So what is enqueued in
// one order has the same numbers, however late it runs; they are not those of the CPU's generator.
#pragma once

#include "tests/torch_double/device.h"

#include <ATen/core/Generator.h>

namespace stepwell::torch_double {

class LateGenerator final : public c10::GeneratorImpl {
public:
    LateGenerator() : GeneratorImpl(kDevice, c10::DispatchKeySet(c10::DispatchKey::PrivateUse1)) {}
    static c10::DeviceType device_type() { return kDevice.type(); }
    static const at::Generator &of_device();

    // A generator of the CPU with the numbers of one operation.
    at::Generator next();

    void set_current_seed(uint64_t seed) override;
    uint64_t current_seed() const override { return seed_; }
    uint64_t seed() override;
    void set_offset(uint64_t offset) override { offset_ = offset; }
    uint64_t get_offset() const override { return offset_; }
    void set_state(const c10::TensorImpl &state) override;
    c10::intrusive_ptr<c10::TensorImpl> get_state() const override;

private:
    LateGenerator *clone_impl() const override;

    uint64_t seed_ = c10::default_rng_seed_val;
    uint64_t offset_ = 0;
};

}  // namespace stepwell::torch_double
