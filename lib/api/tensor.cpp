// SPDX-License-Identifier: Apache-2.0
// tensor.h and copy.h at the boundary.
#include "lib/api/check.h"

#include <cmath>

using namespace stepwell;
using namespace stepwell::api;

namespace {

Status check_policy(const stw_policy *policy)
{
    stw_policy copy{};
    STW_TRY(take(&copy, policy, "policy"));
    const uint32_t all = STW_ALLOW_DEVICE | STW_ALLOW_HOST | STW_ALLOW_NVME;
    STW_TRY(check_flags(copy.allowed_tiers, all, "policy.allowed_tiers"));
    if (copy.home > STW_TIER_NVME || copy.retention > STW_RETAIN_PIN) {
        return Status::error(STW_ERROR_INVALID, "policy.home %u or retention %u is not known",
                             copy.home, copy.retention);
    }
    return {};
}

Status check_spec(const stw_tensor_spec &from)
{
    stw_tensor_spec spec{};
    STW_TRY(take(&spec, &from, "spec"));
    const char *name = spec.name ? spec.name : "";
    STW_TRY(check_flags(spec.flags,
                        STW_TENSOR_DURABLE | STW_TENSOR_ZERO | STW_TENSOR_READ_ONLY |
                            STW_TENSOR_FIXED_ADDRESS | STW_TENSOR_NO_ADDRESS |
                            STW_TENSOR_OWN_BLOCKS,
                        "spec.flags"));
    constexpr uint32_t kContrary = STW_TENSOR_FIXED_ADDRESS | STW_TENSOR_NO_ADDRESS;
    if ((spec.flags & kContrary) == kContrary) {
        return Status::error(STW_ERROR_INVALID,
                             "%s: STW_TENSOR_FIXED_ADDRESS and STW_TENSOR_NO_ADDRESS exclude each "
                             "other",
                             tensor_text(name).c_str());
    }
    if (spec.role > STW_ROLE_CACHE || spec.partition > STW_PARTITION_LOCAL) {
        return Status::error(STW_ERROR_INVALID, "%s: role %u or partition %u is not known",
                             tensor_text(name).c_str(), spec.role, spec.partition);
    }
    const uint64_t align = spec.align_bytes;
    if (align > 4096 || (align & (align - 1)) != 0) {
        return Status::error(STW_ERROR_INVALID,
                             "%s: align_bytes %llu is not a power of two up to 4096",
                             tensor_text(name).c_str(), static_cast<unsigned long long>(align));
    }
    if (spec.policy) STW_TRY(check_policy(spec.policy));
    return {};
}

// All handles live, of one open runtime.
Status enter_all(stw_tensor *const *tensors, uint32_t n)
{
    if (!tensors || n == 0) return Status::error(STW_ERROR_INVALID, "no tensors are named");
    for (uint32_t i = 0; i < n; ++i) {
        STW_TRY(enter(tensors[i]));
        if (tensors[i]->runtime != tensors[0]->runtime) {
            return Status::error(STW_ERROR_INVALID, "%s is of another runtime",
                                 tensor_text(tensors[i]->name).c_str());
        }
    }
    return {};
}

Status refuse_read_only(const stw_tensor *tensor)
{
    if (!(tensor->flags & STW_TENSOR_READ_ONLY)) return {};
    return Status::error(STW_ERROR_INVALID, "%s is read-only: stw_tensor_write alone writes it",
                         tensor_text(tensor->name).c_str());
}

}  // namespace

stw_status stw_tensor_create(stw_runtime *runtime, const stw_tensor_spec *specs, uint32_t n,
                             stw_tensor **tensors_out)
{
    return guard([&]() -> Status {
        STW_TRY(enter(runtime));
        if (!specs || !tensors_out || n == 0) {
            return Status::error(STW_ERROR_INVALID, "specs or tensors_out is null, or n is 0");
        }
        for (uint32_t i = 0; i < n; ++i) {
            if (element(specs, i).struct_size != specs[0].struct_size) {
                return Status::error(STW_ERROR_INVALID,
                                     "specs[%u].struct_size differs from the first one's", i);
            }
            STW_TRY(check_spec(element(specs, i)));
        }
        return runtime->body->optimizers.create_tensors(specs, n, tensors_out);
    });
}

stw_status stw_tensor_destroy(stw_tensor *const *tensors, uint32_t n)
{
    return guard([&]() -> Status {
        STW_TRY(enter_all(tensors, n));
        return tensors[0]->runtime->body->tensors.registry.destroy_tensors(tensors, n);
    });
}

stw_status stw_tensor_find(stw_runtime *runtime, const char *name, stw_tensor **tensor_out)
{
    return guard([&]() -> Status {
        STW_TRY(enter(runtime));
        if (!name || !tensor_out) return Status::error(STW_ERROR_INVALID, "an argument is null");
        return runtime->body->optimizers.find_tensor(name, tensor_out);
    });
}

stw_status stw_tensor_next(stw_runtime *runtime, stw_tensor *previous, stw_tensor **next_out)
{
    return guard([&]() -> Status {
        STW_TRY(enter(runtime));
        if (previous) STW_TRY(enter(previous));
        if (previous && previous->runtime != runtime) {
            return Status::error(STW_ERROR_INVALID, "%s is of another runtime",
                                 tensor_text(previous->name).c_str());
        }
        if (!next_out) return Status::error(STW_ERROR_INVALID, "next_out is null");
        return runtime->body->tensors.registry.next_tensor(previous, next_out);
    });
}

stw_status stw_tensor_info_get(stw_tensor *tensor, stw_tensor_info *info_out)
{
    return guard([&]() -> Status {
        STW_TRY(enter(tensor));
        STW_TRY(check_output(info_out, 8, "info_out"));
        return tensor->runtime->body->tensors.registry.tensor_info(tensor, info_out);
    });
}

stw_status stw_tensor_set_policy(stw_tensor *tensor, const stw_policy *policy)
{
    return guard([&]() -> Status {
        STW_TRY(enter(tensor));
        STW_TRY(check_policy(policy));
        stw_policy copy{};
        STW_TRY(take(&copy, policy, "policy"));
        return tensor->runtime->body->tensors.registry.set_policy(tensor, copy);
    });
}

stw_status stw_tensor_freeze(stw_tensor *tensor, uint32_t frozen)
{
    return guard([&]() -> Status {
        STW_TRY(enter(tensor));
        if (frozen > 1) return Status::error(STW_ERROR_INVALID, "frozen is %u, not 0 or 1", frozen);
        return tensor->runtime->body->tensors.registry.freeze(tensor, frozen == 1);
    });
}

stw_status stw_tensor_reshape(stw_tensor *tensor, const uint64_t *shape, uint32_t dimensions)
{
    return guard([&]() -> Status {
        STW_TRY(enter(tensor));
        if (!shape && dimensions > 0) return Status::error(STW_ERROR_INVALID, "shape is null");
        if (dimensions > STW_DIMENSIONS_MAX) {
            return Status::error(STW_ERROR_INVALID, "%u dimensions, at most %d", dimensions,
                                 STW_DIMENSIONS_MAX);
        }
        return tensor->runtime->body->tensors.registry.reshape(tensor, shape, dimensions);
    });
}

stw_status stw_tensor_discard(stw_tensor *const *tensors, uint32_t n)
{
    return guard([&]() -> Status {
        STW_TRY(enter_all(tensors, n));
        return tensors[0]->runtime->body->tensors.registry.discard(tensors, n);
    });
}

stw_status stw_tensor_address(stw_tensor *tensor, uint32_t device, void **pointer_out,
                              uint64_t *bytes_out)
{
    return guard([&]() -> Status {
        STW_TRY(enter(tensor));
        if (!pointer_out || !bytes_out) {
            return Status::error(STW_ERROR_INVALID, "pointer_out or bytes_out is null");
        }
        return tensor->runtime->body->tensors.registry.tensor_address(tensor, device, pointer_out,
                                                                      bytes_out);
    });
}

stw_status stw_advise(stw_tensor *const *tensors, uint32_t n, uint32_t advice)
{
    return guard([&]() -> Status {
        STW_TRY(enter_all(tensors, n));
        if (advice > STW_ADVICE_HOT) {
            return Status::error(STW_ERROR_INVALID, "advice %u is not known", advice);
        }
        return tensors[0]->runtime->body->tensors.registry.advise(tensors, n, advice);
    });
}

stw_status stw_tensor_write(stw_tensor *tensor, const void *source, const stw_copy_options *options)
{
    return guard([&]() -> Status {
        stw_copy_options copy{};
        STW_TRY(take_copy(tensor, options, &copy));
        STW_TRY(check_memory(tensor, copy.tier, copy.device, copy.stream));
        if (!source && tensor->elements > 0) {
            return Status::error(STW_ERROR_INVALID, "source is null");
        }
        return tensor->runtime->body->copies.chunks.write(tensor, source, copy);
    });
}

stw_status stw_tensor_read(stw_tensor *tensor, void *destination, const stw_copy_options *options)
{
    return guard([&]() -> Status {
        stw_copy_options copy{};
        STW_TRY(take_copy(tensor, options, &copy));
        STW_TRY(check_memory(tensor, copy.tier, copy.device, copy.stream));
        if (!destination && tensor->elements > 0) {
            return Status::error(STW_ERROR_INVALID, "destination is null");
        }
        return tensor->runtime->body->calls.reductions.read(tensor, destination, copy);
    });
}

stw_status stw_tensor_fill(stw_tensor *tensor, double value, const stw_copy_options *options)
{
    return guard([&]() -> Status {
        stw_copy_options copy{};
        STW_TRY(take_copy(tensor, options, &copy));
        STW_TRY(check_host_memory(tensor, copy.tier, copy.device, copy.stream));
        STW_TRY(refuse_read_only(tensor));
        if (copy.dtype != 0 && copy.dtype != tensor->dtype) {
            return Status::error(STW_ERROR_INVALID,
                                 "options.dtype is %u, but a fill of %s has no memory of another "
                                 "dtype: leave it 0",
                                 copy.dtype, tensor_text(tensor->name).c_str());
        }
        return tensor->runtime->body->copies.chunks.fill(tensor, value, copy);
    });
}

namespace {

Status check_reduce(stw_tensor *gradient, const stw_reduce_options *options,
                    stw_reduce_options *options_out)
{
    STW_TRY(enter(gradient));
    stw_reduce_options copy = STW_REDUCE_OPTIONS_INIT;
    if (options) STW_TRY(take(&copy, options, "options"));
    STW_TRY(check_flags(copy.flags, STW_REDUCE_MORE, "options.flags"));
    STW_TRY(check_memory(gradient, copy.tier, copy.device, copy.stream));
    if (copy.wire_dtype != 0) {
        return Status::error(STW_ERROR_UNSUPPORTED,
                             "options has wire_dtype %u, but sums of %s are sent in its own dtype: "
                             "leave it 0",
                             copy.wire_dtype, tensor_text(gradient->name).c_str());
    }
    if (!std::isfinite(copy.scale)) {
        return Status::error(STW_ERROR_INVALID,
                             "options.scale is %g, which would make all of %s that", copy.scale,
                             tensor_text(gradient->name).c_str());
    }
    STW_TRY(refuse_read_only(gradient));
    STW_TRY(refuse_unsummable(gradient));
    *options_out = copy;
    return {};
}

}  // namespace

stw_status stw_reduce(stw_tensor *gradient, const void *local, const stw_reduce_options *options)
{
    return guard([&]() -> Status {
        stw_reduce_options copy;
        STW_TRY(check_reduce(gradient, options, &copy));
        return gradient->runtime->body->calls.reductions.reduce(gradient, local, copy);
    });
}

stw_status stw_reduce_adopt(stw_tensor *gradient, const void *local,
                            const stw_reduce_options *options, stw_deleter_fn deleter, void *user)
{
    return guard([&]() -> Status {
        stw_reduce_options copy;
        STW_TRY(check_reduce(gradient, options, &copy));
        return gradient->runtime->body->calls.reductions.adopt(gradient, local, copy, deleter,
                                                               user);
    });
}
