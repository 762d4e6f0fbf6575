/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stepwell/interop.h: DLPack 1.1 tensors, which array libraries import without a copy. Their layout
 * is that of <dlpack/dlpack.h>, which this header does not need.
 *
 * F8_E4M3 is DLPack's float8_e4m3fn, F8_E5M2 its float8_e5m2; the legacy form has neither. A
 * complete tensor has the tensor's shape; a range, and scope SHARD, has one dimension.
 */
#ifndef STEPWELL_INTEROP_H
#define STEPWELL_INTEROP_H

#include <stepwell/fetch.h>

#ifdef __cplusplus
extern "C" {
#endif

struct DLManagedTensor;
struct DLManagedTensorVersioned;

/**
 * Turn a view into a DLPack tensor: the view moves into it, its cookie is cleared, and copies of it
 * are stale. On a GPU the consumer's work is on `stream`, which need not be that of the fetch: it
 * waits until the bytes have arrived, and is ordered after work released before. The deleter is a C
 * function for any thread, also after STW_CLOSE_DEFERRED; it releases the view on `stream`, and in
 * a forked child does not touch the parent's view. stw_step_abort() does not end an exported view
 * either: its writes take effect. READ sets DLPack's flag READ_ONLY. The legacy form has no such
 * flag, so a READ view is refused there, as a consumer would assume that it may write.
 *
 * Ownership: *tensor_out is the caller's, by DLPack's rules. On error the view still is.
 * Threads:   any thread.
 * Blocks:    never, except with STW_STREAM_SYNCED until the bytes are at the GPU.
 * Errors:    INVALID (a view that is not open, no stream or one of another device), DEVICE,
 *            UNSUPPORTED (the form cannot express READ or the dtype, or DLPack does not know the
 *            device).
 */
STW_API stw_status stw_view_to_dlpack(stw_view *view, void *stream,
                                      struct DLManagedTensorVersioned **tensor_out);
STW_API stw_status stw_view_to_dlpack_legacy(stw_view *view, void *stream,
                                             struct DLManagedTensor **tensor_out);
/**
 * The fixed address of a tensor as a DLPack tensor without a pin: for frameworks that keep a
 * parameter object and fetch around its uses. The caller must access it only while the tensor is
 * fetched; its deleter frees only the description. STW_TENSOR_READ_ONLY is as READ above.
 *
 * Ownership: *tensor_out is the caller's, by DLPack's rules; the address is the tensor's.
 * Threads:   any thread.
 * Blocks:    never.
 * Errors:    INVALID, UNSUPPORTED (a device without addresses for life, and as above).
 */
STW_API stw_status stw_tensor_to_dlpack(stw_tensor *tensor, uint32_t device,
                                        struct DLManagedTensorVersioned **tensor_out);
STW_API stw_status stw_tensor_to_dlpack_legacy(stw_tensor *tensor, uint32_t device,
                                               struct DLManagedTensor **tensor_out);
/**
 * The destructor for a Python capsule of either form (its PyCapsule_Destructor; `capsule` is the
 * PyObject *): calls the tensor's deleter unless a consumer took the tensor and renamed the
 * capsule. It is C, so it works until the end of the interpreter. The library does not link Python:
 * it looks up PyCapsule_IsValid and PyCapsule_GetPointer in the process, and does nothing if they
 * are missing.
 *
 * Ownership: ends the tensor of an unconsumed capsule.
 * Threads:   as Python calls destructors: with the GIL held.
 * Blocks:    never.
 */
STW_API void stw_dlpack_capsule_destroy(void *capsule);

#ifdef __cplusplus
}
#endif

#endif /* STEPWELL_INTEROP_H */
