// SPDX-License-Identifier: Apache-2.0
// interop.h at the boundary: views and addresses in DLPack's words. Deleters run on any thread,
// after a deferred close and in forked children too.
#include "lib/api/check.h"
#include "lib/api/dlpack.h"

#include <dlfcn.h>

#include <cstring>
#include <memory>

using namespace stepwell;
using namespace stepwell::api;

namespace {

// What one DLPack tensor is made of, freed by its deleter.
template <class Managed> struct Export {
    Managed managed{};
    stw_view view{};  // without a cookie: no pin
    void *stream = nullptr;
    int64_t shape[STW_DIMENSIONS_MAX] = {};
    int64_t strides[STW_DIMENSIONS_MAX] = {};
};

template <class Managed> void drop(Managed *managed)
{
    auto *mine = static_cast<Export<Managed> *>(managed->manager_ctx);
    // The view is of another process after a fork, and its release then says so: nobody to tell.
    if (mine->view.cookie != 0) (void)stw_release(&mine->view, 1, mine->stream, 0);
    delete mine;
}

template <class Managed> constexpr bool kVersioned = false;
template <> constexpr bool kVersioned<DLManagedTensorVersioned> = true;

DLDataType type_of(uint32_t dtype)
{
    switch (dtype) {
    case STW_F32: return {kDLFloat, 32, 1};
    case STW_F16: return {kDLFloat, 16, 1};
    case STW_BF16: return {kDLBfloat, 16, 1};
    case STW_F64: return {kDLFloat, 64, 1};
    case STW_F8_E4M3: return {kDLFloat8_e4m3fn, 8, 1};
    case STW_F8_E5M2: return {kDLFloat8_e5m2, 8, 1};
    case STW_I64: return {kDLInt, 64, 1};
    case STW_I32: return {kDLInt, 32, 1};
    case STW_I16: return {kDLInt, 16, 1};
    case STW_I8: return {kDLInt, 8, 1};
    case STW_BOOL: return {kDLBool, 8, 1};
    default: return {kDLUInt, 8, 1};
    }
}

// Legacy consumers know neither the flag nor the types of DLPack 1.
Status check_legacy(const stw_tensor *tensor, bool reads)
{
    if (reads) {
        return Status::error(STW_ERROR_UNSUPPORTED,
                             "%s is for reading here, which the legacy form of DLPack "
                             "cannot say; take the versioned form, or fetch with STW_READ_WRITE",
                             tensor_text(tensor->name).c_str());
    }
    if (type_of(tensor->dtype).code <= kDLBool) return {};
    return Status::error(STW_ERROR_UNSUPPORTED,
                         "%s has an 8-bit float dtype, which the legacy form of DLPack "
                         "does not know; take the versioned form",
                         tensor_text(tensor->name).c_str());
}

// What DLPack calls it: memory of the CPU, which all tiers of the built-in drivers are, or CUDA's.
Status name_device(const stw_tensor *tensor, uint32_t tier, uint32_t device, DLDevice *device_out)
{
    *device_out = {kDLCPU, 0};
    if (tier == STW_TIER_HOST) return {};
    stw_device_info info{};
    info.struct_size = sizeof info;
    STW_TRY(tensor->runtime->body->report.reporter.device_info(device, &info));
    if (std::strncmp(info.driver, "cpu", 3) == 0) return {};
    *device_out = {kDLCUDA, info.ordinal};
    if (std::strcmp(info.driver, "cuda") == 0) return {};
    return Status::error(STW_ERROR_UNSUPPORTED,
                         "%s is on device %u of driver '%s', which DLPack has no name for",
                         tensor_text(tensor->name).c_str(), device, info.driver);
}

template <class Managed>
void describe(Export<Managed> &made, const stw_tensor *tensor, uint32_t dtype, void *data,
              bool flat, uint64_t elements, bool reads)
{
    DLTensor &at = made.managed.dl_tensor;
    at.data = data;
    at.ndim = flat ? 1 : static_cast<int32_t>(tensor->dimensions);
    at.dtype = type_of(dtype);
    at.shape = made.shape;
    at.strides = made.strides;
    uint64_t stride = 1;  // wraps where another dimension is 0, and is used for nothing then
    for (int32_t i = at.ndim - 1; i >= 0; --i) {
        const uint64_t extent = flat ? elements : tensor->shape[i];
        made.shape[i] = static_cast<int64_t>(extent);
        made.strides[i] = static_cast<int64_t>(stride);
        stride *= extent;
    }
    if constexpr (kVersioned<Managed>) {
        made.managed.version = {1, 1};
        made.managed.flags = reads ? kDLReadOnly : 0;
    }
    made.managed.manager_ctx = &made;
    made.managed.deleter = drop<Managed>;
}

template <class Managed> Status export_view(stw_view *view, void *stream, Managed **tensor_out)
{
    if (!view || !tensor_out) {
        return Status::error(STW_ERROR_INVALID, "the view or tensor_out is null");
    }
    STW_TRY(enter(view->tensor));
    STW_TRY(view->tensor->runtime->body->views.streams.check_stream(stream));
    const stw_tensor *tensor = view->tensor;
    STW_TRY(tensor->runtime->body->views.ends.check_open(*view));
    const bool reads = view->access == STW_READ;
    if (!kVersioned<Managed>) STW_TRY(check_legacy(tensor, reads));
    auto made = std::make_unique<Export<Managed>>();
    STW_TRY(name_device(tensor, view->tier, view->device, &made->managed.dl_tensor.device));
    STW_TRY(tensor->runtime->body->views.streams.begin_export(*view, stream));
    made->stream = stream;
    const uint64_t elements = tensor->sharding ? tensor->sharding->elements() : tensor->elements;
    const bool flat = view->scope == STW_SHARD || view->element_count != elements;
    const uint32_t dtype = tensor->runtime->body->views.ends.dtype_of(*view);
    describe(*made, tensor, dtype, view->pointer, flat, view->element_count, reads);
    STW_TRY(tensor->runtime->body->views.ends.move_to_export(view, &made->view));
    *tensor_out = &made.release()->managed;
    return {};
}

template <class Managed>
Status export_address(stw_tensor *tensor, uint32_t device, Managed **tensor_out)
{
    STW_TRY(enter(tensor));
    if (!tensor_out) return Status::error(STW_ERROR_INVALID, "tensor_out is null");
    const bool reads = (tensor->flags & STW_TENSOR_READ_ONLY) != 0;
    if (!kVersioned<Managed>) STW_TRY(check_legacy(tensor, reads));
    void *pointer = nullptr;
    uint64_t bytes = 0;
    STW_TRY(
        tensor->runtime->body->tensors.registry.tensor_address(tensor, device, &pointer, &bytes));
    auto made = std::make_unique<Export<Managed>>();
    STW_TRY(name_device(tensor, STW_TIER_DEVICE, device, &made->managed.dl_tensor.device));
    void *data = bytes > 0 ? pointer : nullptr;
    describe(*made, tensor, tensor->dtype, data, false, tensor->elements, reads);
    *tensor_out = &made.release()->managed;
    return {};
}

}  // namespace

stw_status stw_view_to_dlpack(stw_view *view, void *stream, DLManagedTensorVersioned **tensor_out)
{
    return guard([&] { return export_view(view, stream, tensor_out); });
}

stw_status stw_view_to_dlpack_legacy(stw_view *view, void *stream, DLManagedTensor **tensor_out)
{
    return guard([&] { return export_view(view, stream, tensor_out); });
}

stw_status stw_tensor_to_dlpack(stw_tensor *tensor, uint32_t device,
                                DLManagedTensorVersioned **tensor_out)
{
    return guard([&] { return export_address(tensor, device, tensor_out); });
}

stw_status stw_tensor_to_dlpack_legacy(stw_tensor *tensor, uint32_t device,
                                       DLManagedTensor **tensor_out)
{
    return guard([&] { return export_address(tensor, device, tensor_out); });
}

namespace {

// A consumer renames the capsule whose tensor it took, so a capsule with the old name still has it.
template <class Managed>
bool drop_capsule(void *capsule, const char *name, int (*is_valid)(void *, const char *),
                  void *(*get_pointer)(void *, const char *))
{
    if (!is_valid(capsule, name)) return false;
    auto *managed = static_cast<Managed *>(get_pointer(capsule, name));
    if (managed && managed->deleter) managed->deleter(managed);
    return true;
}

}  // namespace

void stw_dlpack_capsule_destroy(void *capsule)
{
    // Whoever has a capsule has Python's symbols in the global scope, or could not have made it by
    // way of ctypes.pythonapi either.
    const auto is_valid =
        reinterpret_cast<int (*)(void *, const char *)>(dlsym(RTLD_DEFAULT, "PyCapsule_IsValid"));
    const auto get_pointer = reinterpret_cast<void *(*)(void *, const char *)>(
        dlsym(RTLD_DEFAULT, "PyCapsule_GetPointer"));
    if (!is_valid || !get_pointer) return;
    if (drop_capsule<DLManagedTensorVersioned>(capsule, "dltensor_versioned", is_valid,
                                               get_pointer)) {
        return;
    }
    drop_capsule<DLManagedTensor>(capsule, "dltensor", is_valid, get_pointer);
}
