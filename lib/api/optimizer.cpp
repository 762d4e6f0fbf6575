// SPDX-License-Identifier: Apache-2.0
// optimizer.h at the boundary.
#include "lib/api/check.h"

#include <cmath>

using namespace stepwell;
using namespace stepwell::api;

namespace {

Status check_custom(const stw_optimizer_options &options)
{
    if (options.algorithm != STW_OPTIMIZER_CUSTOM) {
        if (!options.custom) return {};
        return Status::error(STW_ERROR_INVALID,
                             "options.custom is set but algorithm is not STW_OPTIMIZER_CUSTOM");
    }
    if (!options.custom || options.custom->struct_size < sizeof(stw_custom_update) ||
        !options.custom->update) {
        return Status::error(STW_ERROR_INVALID,
                             "STW_OPTIMIZER_CUSTOM needs options.custom with an update function");
    }
    if (options.custom->state_count > 0 && !options.custom->state_names) {
        return Status::error(STW_ERROR_INVALID, "custom.state_names is null");
    }
    for (uint32_t i = 0; i < options.custom->state_count; ++i) {
        if (options.custom->state_names[i] && *options.custom->state_names[i]) continue;
        return Status::error(STW_ERROR_INVALID, "custom.state_names[%u] is empty", i);
    }
    return {};
}

Status check_torch_order(const stw_optimizer_options &options)
{
    const bool narrow = options.state_dtype != 0 && options.state_dtype != STW_F32;
    if (options.square_root_threads && !options.square_root) {
        return Status::error(STW_ERROR_INVALID, "options.square_root_threads is set without "
                                                "square_root, whose threads it is about");
    }
    if ((options.flags & STW_OPTIMIZER_TORCH_ORDER) == 0) {
        if (!options.square_root && options.square_root_mode == 0) return {};
        return Status::error(STW_ERROR_INVALID,
                             "options.square_root or its mode is set without "
                             "STW_OPTIMIZER_TORCH_ORDER, and nothing else uses it");
    }
    if (options.algorithm == STW_OPTIMIZER_LION || options.algorithm == STW_OPTIMIZER_CUSTOM) {
        return Status::error(STW_ERROR_INVALID,
                             "STW_OPTIMIZER_TORCH_ORDER is set for %s; torch.optim has AdamW, "
                             "Adam, SGD and Adagrad, so leave the flag out",
                             options.algorithm == STW_OPTIMIZER_LION ? "Lion" : "a custom update");
    }
    if (!narrow) return {};
    return Status::error(STW_ERROR_INVALID,
                         "STW_OPTIMIZER_TORCH_ORDER is set with states of dtype %u; torch.optim "
                         "keeps those of fp32 parameters in F32, so leave one of the two out",
                         options.state_dtype);
}

Status check_ema(const stw_optimizer_options &options)
{
    if (!(options.ema_decay >= 0.0 && options.ema_decay < 1.0)) {
        return Status::error(STW_ERROR_INVALID,
                             "options.ema_decay is %g; it is above 0 and below 1, as 0.999, or 0 "
                             "for no average",
                             options.ema_decay);
    }
    const uint32_t named = options.custom ? options.custom->state_count : 0;
    for (uint32_t i = 0; options.ema_decay != 0.0 && i < named; ++i) {
        if (std::strcmp(options.custom->state_names[i], "ema") != 0) continue;
        return Status::error(STW_ERROR_INVALID,
                             "custom.state_names[%u] is \"ema\", the state that options.ema_decay "
                             "makes; give it another name",
                             i);
    }
    return {};
}

Status check_entry(const stw_optimizer *optimizer, const stw_optimizer_entry &from)
{
    stw_optimizer_entry entry{};
    STW_TRY(take(&entry, &from, "entry"));
    STW_TRY(enter(entry.parameter));
    STW_TRY(enter(entry.gradient));
    if (entry.parameter->runtime != optimizer->runtime ||
        entry.gradient->runtime != optimizer->runtime) {
        return Status::error(STW_ERROR_INVALID, "entry of %s: another runtime's tensor",
                             parameter_text(entry.parameter->name).c_str());
    }
    uint64_t end = 0;
    if (__builtin_add_overflow(entry.element_begin, entry.element_count, &end) ||
        end > entry.parameter->elements) {
        return Status::error(STW_ERROR_INVALID, "entry of %s: its range is outside",
                             parameter_text(entry.parameter->name).c_str());
    }
    return {};
}

Status check_parameter(const stw_optimizer *optimizer, const stw_tensor *parameter)
{
    STW_TRY(enter(parameter));
    if (parameter->runtime == optimizer->runtime) return {};
    return Status::error(STW_ERROR_INVALID, "%s is of another runtime",
                         parameter_text(parameter->name).c_str());
}

Status take_master_copy(const stw_optimizer *optimizer, const stw_tensor *parameter,
                        const void *memory, const stw_copy_options *from, stw_copy_options *options)
{
    STW_TRY(enter(optimizer));
    STW_TRY(check_parameter(optimizer, parameter));
    STW_TRY(take_copy(parameter, from, options));
    STW_TRY(check_host_memory(parameter, options->tier, options->device, options->stream));
    if (memory || parameter->elements == 0) return {};
    return Status::error(STW_ERROR_INVALID, "the memory for the master of %s is null",
                         parameter_text(parameter->name).c_str());
}

Status check_number(double value, const char *name)
{
    if (!std::isnan(value) && value >= 0.0) return {};
    return Status::error(STW_ERROR_INVALID, "%s is %g; it is 0 or a positive number", name, value);
}

}  // namespace

stw_status stw_optimizer_create(stw_runtime *runtime, const stw_optimizer_options *options,
                                stw_optimizer **optimizer_out)
{
    return guard([&]() -> Status {
        STW_TRY(enter(runtime));
        if (!optimizer_out) return Status::error(STW_ERROR_INVALID, "optimizer_out is null");
        stw_optimizer_options copy{};
        STW_TRY(take(&copy, options, "options"));
        STW_TRY(check_flags(copy.flags, STW_OPTIMIZER_DURABLE | STW_OPTIMIZER_TORCH_ORDER,
                            "options.flags"));
        STW_TRY(check_custom(copy));
        STW_TRY(check_torch_order(copy));
        STW_TRY(check_ema(copy));
        return runtime->body->optimizers.create_optimizer(copy, optimizer_out);
    });
}

stw_status stw_optimizer_destroy(stw_optimizer *optimizer)
{
    return guard([&]() -> Status {
        STW_TRY(enter(optimizer));
        return optimizer->runtime->body->optimizers.destroy_optimizer(optimizer);
    });
}

stw_status stw_optimizer_add(stw_optimizer *optimizer, const stw_optimizer_entry *entries,
                             uint32_t n)
{
    return guard([&]() -> Status {
        STW_TRY(enter(optimizer));
        if (!entries || n == 0) return Status::error(STW_ERROR_INVALID, "no entries are given");
        for (uint32_t i = 0; i < n; ++i) STW_TRY(check_entry(optimizer, element(entries, i)));
        return optimizer->runtime->body->optimizers.add_parameters(optimizer, entries, n);
    });
}

stw_status stw_optimizer_set_hyper(stw_optimizer *optimizer, uint32_t parameter_group,
                                   const stw_hyper *hyper)
{
    return guard([&]() -> Status {
        STW_TRY(enter(optimizer));
        stw_hyper copy{};
        STW_TRY(take(&copy, hyper, "hyper"));
        STW_TRY(check_flags(copy.flags, STW_HYPER_NESTEROV | STW_HYPER_MAXIMIZE, "hyper.flags"));
        return optimizer->runtime->body->optimizers.set_hyper(optimizer, parameter_group, copy);
    });
}

stw_status stw_optimizer_state(stw_optimizer *optimizer, stw_tensor *parameter, const char *state,
                               stw_tensor **tensor_out)
{
    return guard([&]() -> Status {
        STW_TRY(enter(optimizer));
        STW_TRY(check_parameter(optimizer, parameter));
        if (!state || !tensor_out) {
            return Status::error(STW_ERROR_INVALID, "state or tensor_out is null");
        }
        return optimizer->runtime->body->optimizers.optimizer_state(optimizer, parameter, state,
                                                                    tensor_out);
    });
}

stw_status stw_optimizer_read_master(stw_optimizer *optimizer, stw_tensor *parameter,
                                     void *destination, const stw_copy_options *options)
{
    return guard([&]() -> Status {
        stw_copy_options copy{};
        STW_TRY(take_master_copy(optimizer, parameter, destination, options, &copy));
        return optimizer->runtime->body->masters.read(optimizer, parameter,
                                                      static_cast<float *>(destination), copy);
    });
}

stw_status stw_optimizer_write_master(stw_optimizer *optimizer, stw_tensor *parameter,
                                      const void *source, const stw_copy_options *options)
{
    return guard([&]() -> Status {
        stw_copy_options copy{};
        STW_TRY(take_master_copy(optimizer, parameter, source, options, &copy));
        return optimizer->runtime->body->masters.write(optimizer, parameter,
                                                       static_cast<const float *>(source), copy);
    });
}

stw_status stw_optimizer_get_count(stw_optimizer *optimizer, stw_tensor *parameter,
                                   uint64_t *count_out)
{
    return guard([&]() -> Status {
        STW_TRY(enter(optimizer));
        STW_TRY(check_parameter(optimizer, parameter));
        if (!count_out) return Status::error(STW_ERROR_INVALID, "count_out is null");
        return optimizer->runtime->body->optimizers.get_count(optimizer, parameter, count_out);
    });
}

stw_status stw_optimizer_set_count(stw_optimizer *optimizer, stw_tensor *parameter, uint64_t count)
{
    return guard([&]() -> Status {
        STW_TRY(enter(optimizer));
        STW_TRY(check_parameter(optimizer, parameter));
        return optimizer->runtime->body->optimizers.set_count(optimizer, parameter, count);
    });
}

stw_status stw_optimizer_step(stw_optimizer *optimizer, const stw_update_options *options,
                              stw_update_result *result_out)
{
    return guard([&]() -> Status {
        STW_TRY(enter(optimizer));
        stw_update_options copy = STW_UPDATE_OPTIONS_INIT;
        if (options) STW_TRY(take(&copy, options, "options"));
        STW_TRY(check_flags(copy.flags,
                            STW_UPDATE_SKIP_NONFINITE | STW_UPDATE_KEEP_GRADIENTS |
                                STW_UPDATE_WAIT | STW_UPDATE_MEASURE | STW_UPDATE_SPECULATE |
                                STW_UPDATE_REJECT,
                            "options.flags"));
        STW_TRY(check_number(copy.clip_norm, "options.clip_norm"));
        STW_TRY(check_number(copy.norm_type, "options.norm_type"));
        if (std::isnan(copy.gradient_scale)) {
            return Status::error(STW_ERROR_INVALID, "options.gradient_scale is not a number");
        }
        if (copy.parameter_count > 0 && !copy.parameters) {
            return Status::error(STW_ERROR_INVALID, "options.parameters is null");
        }
        if (copy.gradients && !copy.parameters) {
            return Status::error(STW_ERROR_INVALID,
                                 "options.gradients is of the parameters in options.parameters, "
                                 "which is null");
        }
        for (uint32_t i = 0; copy.parameters && i < copy.parameter_count; ++i) {
            STW_TRY(check_parameter(optimizer, copy.parameters[i]));
        }
        if (result_out) STW_TRY(check_output(result_out, 8, "result_out"));
        return optimizer->runtime->body->optimizers.optimizer_step(optimizer, copy, result_out);
    });
}

stw_status stw_optimizer_result(stw_optimizer *optimizer, stw_update_result *result_out)
{
    return guard([&]() -> Status {
        STW_TRY(enter(optimizer));
        STW_TRY(check_output(result_out, 8, "result_out"));
        return optimizer->runtime->body->optimizers.optimizer_result(optimizer, result_out);
    });
}
