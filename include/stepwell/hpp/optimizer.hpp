// SPDX-License-Identifier: Apache-2.0
//
// stepwell/hpp/optimizer.hpp: optimizers, their states and step counts.
#ifndef STEPWELL_HPP_OPTIMIZER_HPP
#define STEPWELL_HPP_OPTIMIZER_HPP

#include <stepwell/hpp/runtime.hpp>
#include <stepwell/hpp/tensor.hpp>

#include <cstdint>
#include <utility>
#include <vector>

namespace stw {

/// An optimizer; owns its states. Parameters and gradients must outlive it.
///
/// The destructor waits for a step under way (with the runtime's default timeout), since an
/// optimizer in the middle of one cannot be destroyed.
class Optimizer {
public:
    Optimizer() noexcept = default;
    Optimizer(const Optimizer &) = delete;
    Optimizer &operator=(const Optimizer &) = delete;
    Optimizer(Optimizer &&other) noexcept
        : runtime_(other.runtime_), optimizer_(std::exchange(other.optimizer_, nullptr))
    {
    }
    Optimizer &operator=(Optimizer &&other) noexcept
    {
        Optimizer taken(std::move(other));
        std::swap(runtime_, taken.runtime_);
        std::swap(optimizer_, taken.optimizer_);
        return *this;
    }
    ~Optimizer()
    {
        if (!optimizer_) return;
        if (stw_optimizer_destroy(optimizer_) != STW_ERROR_BUSY) return;
        (void)stw_runtime_drain(runtime_, 0);
        (void)stw_optimizer_destroy(optimizer_);
    }

    static Result<Optimizer> create(const Runtime &runtime, const stw_optimizer_options &options)
    {
        Optimizer made;
        made.runtime_ = runtime.get();
        const stw_status code = stw_optimizer_create(runtime.get(), &options, &made.optimizer_);
        if (code < 0) return Result<Optimizer>(code);
        return made;
    }
    stw_optimizer *get() const noexcept { return optimizer_; }
    explicit operator bool() const noexcept { return optimizer_ != nullptr; }
    /// BUSY while a step is under way; then it is still owned. Never blocks.
    Status destroy()
    {
        if (!optimizer_) return Status();
        const stw_status code = stw_optimizer_destroy(optimizer_);
        if (code != STW_ERROR_BUSY) optimizer_ = nullptr;
        return Status(code);
    }
    /// Adds a parameter and its gradient. Never blocks.
    Status add(TensorRef parameter, TensorRef gradient, uint32_t parameter_group = 0)
    {
        stw_optimizer_entry entry = STW_OPTIMIZER_ENTRY_INIT;
        entry.parameter_group = parameter_group;
        entry.parameter = parameter.get();
        entry.gradient = gradient.get();
        return Status(stw_optimizer_add(optimizer_, &entry, 1));
    }
    /// Adds several, also parts of packed parameters: all or none.
    Status add(const std::vector<stw_optimizer_entry> &entries)
    {
        const auto n = static_cast<uint32_t>(entries.size());
        return Status(stw_optimizer_add(optimizer_, entries.data(), n));
    }
    /// For the next step on. Never blocks.
    Status set_hyper(uint32_t parameter_group, const stw_hyper &hyper)
    {
        return Status(stw_optimizer_set_hyper(optimizer_, parameter_group, &hyper));
    }
    /// Returns at once: the update goes on after the call.
    Status step(const stw_update_options &options = STW_UPDATE_OPTIONS_INIT)
    {
        return Status(stw_optimizer_step(optimizer_, &options, nullptr));
    }
    /// Blocks until the verdict (norm, skip) is known; the update goes on after the call.
    Status step(const stw_update_options &options, stw_update_result *result_out)
    {
        return Status(stw_optimizer_step(optimizer_, &options, result_out));
    }
    /// The verdict of the last step: STW_OK, STW_SKIPPED, or STW_PENDING, which leaves `result_out`
    /// as it is. Never blocks.
    Status result(stw_update_result *result_out) const
    {
        return Status(stw_optimizer_result(optimizer_, result_out));
    }
    /// A state of a parameter ("exp_avg", ...); owned by the optimizer.
    Result<TensorRef> state(TensorRef parameter, const char *name) const
    {
        stw_tensor *tensor = nullptr;
        const stw_status code = stw_optimizer_state(optimizer_, parameter.get(), name, &tensor);
        if (code < 0) return Result<TensorRef>(code);
        return TensorRef(tensor);
    }
    /// Copies the fp32 values that the next update starts from; the master stays as it is kept.
    Status read_master(TensorRef parameter, void *destination,
                       const stw_copy_options &options = STW_COPY_OPTIONS_INIT) const
    {
        return Status(
            stw_optimizer_read_master(optimizer_, parameter.get(), destination, &options));
    }
    /// Sets the master, and the parameter to the nearest values of its dtype.
    Status write_master(TensorRef parameter, const void *source,
                        const stw_copy_options &options = STW_COPY_OPTIONS_INIT)
    {
        return Status(stw_optimizer_write_master(optimizer_, parameter.get(), source, &options));
    }
    /// The number of updates of this parameter, which bias correction uses.
    Result<uint64_t> count(TensorRef parameter) const
    {
        uint64_t count = 0;
        const stw_status code = stw_optimizer_get_count(optimizer_, parameter.get(), &count);
        if (code < 0) return Result<uint64_t>(code);
        return count;
    }
    Status set_count(TensorRef parameter, uint64_t count)
    {
        return Status(stw_optimizer_set_count(optimizer_, parameter.get(), count));
    }

private:
    stw_runtime *runtime_ = nullptr;
    stw_optimizer *optimizer_ = nullptr;
};

}  // namespace stw

#endif  // STEPWELL_HPP_OPTIMIZER_HPP
