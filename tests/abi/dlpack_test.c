/* SPDX-License-Identifier: Apache-2.0 */
/*
 * DLPack: what an export says, who may write, that it is a pin until its deleter, whatever became
 * of the view, the step, the runtime or the process meanwhile.
 */
#include "support.h"

#include "dlpack.h"

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

typedef struct DLManagedTensorVersioned versioned;
typedef struct DLManagedTensor legacy;

static uint64_t exports_of(stw_runtime *runtime)
{
    stw_tier_stats stats = tier_stats(runtime, STW_TIER_DEVICE);
    assert_int_equal(stats.exports, stats.open_views);
    return stats.exports;
}

static stw_tensor *matrix(stw_runtime *runtime, const char *name, uint32_t dtype)
{
    stw_tensor_spec spec = spec_f32(name, 3);
    spec.dtype = dtype;
    spec.dimensions = 2;
    spec.shape[1] = 5;
    return tensor_make(runtime, &spec);
}

TEST(a_reader_is_exported_as_read_only)
{
    stw_runtime *runtime = machine_open_as(machine_small());
    stw_tensor *tensor = matrix(runtime, "m", STW_F32);
    versioned *made = NULL;
    void *pointer;
    tensor_fill_sequence(tensor, 15, 1);
    stw_view view = view_get(runtime, tensor, STW_READ);
    pointer = view.pointer;
    ok(stw_view_to_dlpack(&view, STW_STREAM_HOST, &made));
    assert_true(view.cookie == 0 && view.pointer == NULL);
    assert_int_equal(made->major, 1);
    assert_int_equal(made->flags, DL_READ_ONLY);
    assert_ptr_equal(made->tensor.data, pointer);
    assert_int_equal(made->tensor.device_type, DL_CPU);
    assert_int_equal(made->tensor.device_id, 0);
    assert_int_equal(made->tensor.byte_offset, 0);
    assert_int_equal(made->tensor.ndim, 2);
    assert_true(made->tensor.shape[0] == 3 && made->tensor.shape[1] == 5);
    assert_true(made->tensor.strides[0] == 5 && made->tensor.strides[1] == 1);
    assert_float(((float *)made->tensor.data)[14], 15.0F);
    assert_int_equal(exports_of(runtime), 1);
    fails(stw_evict(runtime, &tensor, 1, STW_TIER_DEVICE, 0, 0), STW_ERROR_BUSY, "m");
    made->deleter(made);
    assert_int_equal(exports_of(runtime), 0);
    ok(stw_evict(runtime, &tensor, 1, STW_TIER_DEVICE, 0, 0));
    machine_close(runtime);
}

TEST(what_a_writer_exports_counts_from_its_deleter_on)
{
    stw_runtime *runtime = machine_open_as(machine_small());
    stw_tensor *tensor = tensor_f32(runtime, "t", 10);
    stw_fetch_request request = request_of(tensor, STW_READ);
    versioned *made = NULL;
    legacy *old = NULL;
    stw_view reader;
    stw_fetch_options at_once = {.struct_size = sizeof at_once, .flags = STW_FETCH_TRY};
    stw_view view = view_get(runtime, tensor, STW_WRITE);
    ok(stw_view_to_dlpack_legacy(&view, STW_STREAM_SYNCED, &old));
    for (int i = 0; i < 10; ++i) ((float *)old->tensor.data)[i] = (float)i;
    fails(stw_fetch(runtime, &at_once, &request, 1, &reader), STW_ERROR_BUSY, "'t'");
    old->deleter(old);
    tensor_expect_sequence(tensor, 10, 0);
    view = view_get(runtime, tensor, STW_READ_WRITE);
    ok(stw_view_to_dlpack(&view, STW_STREAM_HOST, &made));
    assert_int_equal(made->flags, 0);
    for (int i = 0; i < 10; ++i) ((float *)made->tensor.data)[i] += 7;
    made->deleter(made);
    tensor_to_disk(runtime, tensor);
    tensor_expect_sequence(tensor, 10, 7);
    machine_close(runtime);
}

TEST(every_dtype_has_its_code)
{
    static const struct {
        uint32_t dtype, code, bits;
        int in_legacy;
    } rows[] = {
        {STW_F32, DL_FLOAT, 32, 1},
        {STW_F16, DL_FLOAT, 16, 1},
        {STW_BF16, DL_BFLOAT, 16, 1},
        {STW_F64, DL_FLOAT, 64, 1},
        {STW_F8_E4M3, DL_FLOAT8_E4M3FN, 8, 0},
        {STW_F8_E5M2, DL_FLOAT8_E5M2, 8, 0},
        {STW_I64, DL_INT, 64, 1},
        {STW_I32, DL_INT, 32, 1},
        {STW_I16, DL_INT, 16, 1},
        {STW_I8, DL_INT, 8, 1},
        {STW_U8, DL_UINT, 8, 1},
        {STW_BOOL, DL_BOOL, 8, 1},
    };
    stw_runtime *runtime = machine_open_as(machine_small());
    for (size_t i = 0; i < COUNT(rows); ++i) {
        stw_tensor *tensor = matrix(runtime, NULL, rows[i].dtype);
        stw_view view = view_get(runtime, tensor, STW_WRITE);
        versioned *made = NULL;
        legacy *old = NULL;
        if (rows[i].in_legacy) {
            ok(stw_view_to_dlpack_legacy(&view, NULL, &old));
            assert_int_equal(old->tensor.code, rows[i].code);
            old->deleter(old);
            view = view_get(runtime, tensor, STW_WRITE);
        } else {
            fails(stw_view_to_dlpack_legacy(&view, NULL, &old), STW_ERROR_UNSUPPORTED,
                  "8-bit float");
        }
        ok(stw_view_to_dlpack(&view, NULL, &made));
        assert_int_equal(made->tensor.code, rows[i].code);
        assert_int_equal(made->tensor.bits, rows[i].bits);
        assert_int_equal(made->tensor.lanes, 1);
        made->deleter(made);
    }
    machine_close(runtime);
}

TEST(a_converted_view_is_exported_in_its_dtype)
{
    stw_runtime *runtime = machine_open_as(machine_small());
    stw_tensor *tensor = matrix(runtime, "m", STW_F32), *sum;
    stw_tensor_spec spec = spec_f32("sum", 4);
    stw_fetch_request requests[2];
    float memory[15];
    versioned *made = NULL;
    legacy *old = NULL;
    stw_view views[2];
    tensor_fill_sequence(tensor, 15, 1);
    requests[0] = requests[1] = request_of(tensor, STW_READ);
    requests[0].dtype = STW_BF16;
    requests[1].tier = STW_TIER_DEFAULT, requests[1].into = memory;
    ok(stw_fetch(runtime, NULL, requests, 2, views));
    fails(stw_view_to_dlpack(&views[1], NULL, &made), STW_ERROR_INVALID, "memory of the caller's");
    ok(stw_view_to_dlpack(&views[0], NULL, &made));
    assert_true(made->tensor.code == DL_BFLOAT && made->tensor.bits == 16);
    assert_true(made->tensor.ndim == 2 && made->tensor.shape[1] == 5);
    assert_int_equal(((const uint16_t *)made->tensor.data)[1], 0x4000);
    assert_int_equal(exports_of(runtime), 1);
    made->deleter(made);
    assert_int_equal(exports_of(runtime), 0);
    ok(stw_release(&views[1], 1, NULL, 0));
    /* What is summed from its deleter on. */
    spec.role = STW_ROLE_GRAD, spec.dtype = STW_BF16;
    sum = tensor_make(runtime, &spec);
    requests[0] = request_of(sum, STW_REDUCE);
    requests[0].dtype = STW_F32;
    ok(stw_fetch(runtime, NULL, requests, 1, views));
    ok(stw_view_to_dlpack_legacy(&views[0], NULL, &old));
    assert_true(old->tensor.code == DL_FLOAT && old->tensor.bits == 32);
    ((float *)old->tensor.data)[3] = 1.5F;
    old->deleter(old);
    views[0] = view_get(runtime, sum, STW_READ);
    assert_int_equal(((const uint16_t *)views[0].pointer)[3], 0x3fc0);
    view_put(&views[0]);
    machine_close(runtime);
}

TEST(ranges_are_flat_and_scalars_have_no_dimension)
{
    stw_runtime *runtime = machine_open_as(machine_small());
    stw_tensor *tensor = matrix(runtime, "m", STW_F32), *none, *scalar;
    stw_tensor_spec spec = spec_f32("none", 0);
    stw_fetch_request request = request_range(tensor, STW_READ, 4, 3);
    versioned *made = NULL;
    stw_view view;
    tensor_fill_sequence(tensor, 15, 0);
    ok(stw_fetch(runtime, NULL, &request, 1, &view));
    ok(stw_view_to_dlpack(&view, NULL, &made));
    assert_true(made->tensor.ndim == 1 && made->tensor.shape[0] == 3);
    assert_float(((float *)made->tensor.data)[0], 4.0F);
    made->deleter(made);
    request = request_of(tensor, STW_READ);
    request.scope = STW_SHARD;
    ok(stw_fetch(runtime, NULL, &request, 1, &view));
    ok(stw_view_to_dlpack(&view, NULL, &made));
    assert_true(made->tensor.ndim == 1 && made->tensor.shape[0] == 15);
    made->deleter(made);
    none = tensor_make(runtime, &spec);
    view = view_get(runtime, none, STW_WRITE);
    ok(stw_view_to_dlpack(&view, NULL, &made));
    assert_true(made->tensor.data == NULL && made->tensor.shape[0] == 0);
    made->deleter(made);
    spec = spec_f32("scalar", 0);
    spec.dimensions = 0;
    scalar = tensor_make(runtime, &spec);
    view = view_get(runtime, scalar, STW_WRITE);
    ok(stw_view_to_dlpack(&view, NULL, &made));
    assert_true(made->tensor.data != NULL && made->tensor.ndim == 0);
    made->deleter(made);
    machine_close(runtime);
}

TEST(what_cannot_be_said_is_refused_and_the_view_stays)
{
    stw_runtime *runtime = machine_open_as(machine_small());
    stw_tensor *tensor = tensor_f32(runtime, "t", 10);
    versioned *made = NULL;
    legacy *old = NULL;
    stw_view view, copy, none = {0};
    tensor_fill_sequence(tensor, 10, 0);
    view = view_get(runtime, tensor, STW_READ);
    copy = view;
    fails(stw_view_to_dlpack_legacy(&view, NULL, &old), STW_ERROR_UNSUPPORTED,
          "tensor 't' is for reading here");
    fails(stw_view_to_dlpack(&view, STW_STREAM_LEGACY, &made), STW_ERROR_INVALID, "stream");
    fails(stw_view_to_dlpack(&view, NULL, NULL), STW_ERROR_INVALID, "tensor_out is null");
    fails(stw_view_to_dlpack(NULL, NULL, &made), STW_ERROR_INVALID, "null");
    fails(stw_view_to_dlpack(&none, NULL, &made), STW_ERROR_INVALID, "not alive");
    assert_true(made == NULL && old == NULL);
    assert_memory_equal(&view, &copy, sizeof view);
    ok(stw_view_to_dlpack(&view, NULL, &made));
    fails(stw_release(&copy, 1, NULL, 0), STW_ERROR_INVALID, "is not open");
    fails(stw_view_to_dlpack(&copy, NULL, &made), STW_ERROR_INVALID, "released or exported before");
    fails(stw_view_to_dlpack_legacy(&copy, NULL, &old), STW_ERROR_INVALID, "exported before");
    fails(stw_view_to_dlpack(&view, NULL, &made), STW_ERROR_INVALID, "exported before");
    assert_int_equal(exports_of(runtime), 1);
    made->deleter(made);
    view = view_get(runtime, tensor, STW_READ_WRITE);
    copy = view;
    view_put(&view);
    fails(stw_view_to_dlpack(&copy, NULL, &made), STW_ERROR_INVALID, "released or exported before");
    machine_close(runtime);
}

static void *delete_it(void *made)
{
    ((versioned *)made)->deleter(made);
    return NULL;
}

TEST(an_export_outlives_its_runtime)
{
    const int descriptors = descriptors_open();
    stw_runtime *runtime = machine_open_as(machine_small());
    stw_tensor *tensor = tensor_f32(runtime, "kept", 10);
    versioned *made[2] = {NULL, NULL};
    pthread_t thread;
    stw_view view;
    tensor_fill_sequence(tensor, 10, 3);
    for (int i = 0; i < 2; ++i) {
        view = view_get(runtime, tensor, STW_READ);
        ok(stw_view_to_dlpack(&view, NULL, &made[i]));
    }
    fails(stw_runtime_close(runtime, 0, 0), STW_ERROR_BUSY, "exported to DLPack");
    ok(stw_runtime_close(runtime, STW_CLOSE_DEFERRED, 0));
    view.tensor = tensor;
    fails(stw_view_to_dlpack(&view, NULL, &made[0]), STW_ERROR_CLOSED, "closed");
    made[0]->deleter(made[0]);
    assert_float(((float *)made[1]->tensor.data)[9], 12.0F);
    assert_int_equal(pthread_create(&thread, NULL, delete_it, made[1]), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(descriptors_open(), descriptors);
}

TEST(an_aborted_step_leaves_its_exports)
{
    stw_runtime *runtime = machine_open_as(machine_small());
    stw_tensor *tensor = tensor_f32(runtime, "t", 10), *other = tensor_f32(runtime, "u", 10);
    stw_phase *phase;
    versioned *made = NULL;
    ok(stw_phase_create(runtime, "train", &phase));
    ok(stw_step_begin(phase));
    stw_view view = view_get(runtime, tensor, STW_WRITE);
    stw_view second = view_get(runtime, other, STW_WRITE);
    for (int i = 0; i < 10; ++i) ((float *)view.pointer)[i] = (float)i;
    ok(stw_view_to_dlpack(&view, NULL, &made));
    ok(stw_step_abort(phase, NULL));
    fails(stw_release(&second, 1, NULL, 0), STW_ERROR_INVALID, "not open");
    assert_int_equal(exports_of(runtime), 1);
    made->deleter(made);
    tensor_expect_sequence(tensor, 10, 0);
    /* The slot is used again, by a view that is no export. */
    ok(stw_step_begin(phase));
    view = view_get(runtime, tensor, STW_READ);
    ok(stw_step_abort(phase, NULL));
    fails(stw_release(&view, 1, NULL, 0), STW_ERROR_INVALID, "not open");
    machine_close(runtime);
}

TEST(a_forked_child_deletes_its_copy_alone)
{
    stw_runtime *runtime = machine_open_as(machine_small());
    stw_tensor *tensor = tensor_f32(runtime, "t", 10);
    versioned *made = NULL;
    int status = -1;
    tensor_fill_sequence(tensor, 10, 1);
    stw_view view = view_get(runtime, tensor, STW_READ);
    ok(stw_view_to_dlpack(&view, NULL, &made));
    pid_t child = fork();
    if (child == 0) {
        versioned *more = NULL;
        made->deleter(made);
        view.tensor = tensor;
        _exit(stw_view_to_dlpack(&view, NULL, &more) == STW_ERROR_FORKED ? 0 : 1);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_int_equal(status, 0);
    assert_int_equal(exports_of(runtime), 1);
    assert_float(((float *)made->tensor.data)[9], 10.0F);
    made->deleter(made);
    machine_close(runtime);
}

TEST(an_address_is_exported_without_a_pin)
{
    stw_runtime *runtime = machine_open_as(machine_small());
    stw_tensor *tensor = matrix(runtime, "m", STW_F32), *frozen;
    stw_tensor_spec spec = spec_f32("frozen", 10);
    versioned *made = NULL;
    legacy *old = NULL;
    tensor_fill_sequence(tensor, 15, 2);
    ok(stw_tensor_to_dlpack(tensor, 0, &made));
    ok(stw_tensor_to_dlpack_legacy(tensor, 0, &old));
    assert_int_equal(exports_of(runtime), 0);
    assert_true(made->tensor.ndim == 2 && made->tensor.shape[1] == 5 && made->flags == 0);
    stw_view view = view_get(runtime, tensor, STW_READ);
    assert_ptr_equal(made->tensor.data, view.pointer);
    assert_ptr_equal(old->tensor.data, view.pointer);
    assert_float(((float *)old->tensor.data)[14], 16.0F);
    view_put(&view);
    old->deleter(old);
    spec.flags = STW_TENSOR_READ_ONLY;
    frozen = tensor_make(runtime, &spec);
    fails(stw_tensor_to_dlpack_legacy(frozen, 0, &old), STW_ERROR_UNSUPPORTED, "'frozen'");
    fails(stw_tensor_to_dlpack(tensor, 3, &made), STW_ERROR_UNSUPPORTED, "device 3");
    fails(stw_tensor_to_dlpack(tensor, 0, NULL), STW_ERROR_INVALID, "null");
    fails(stw_tensor_to_dlpack(NULL, 0, &made), STW_ERROR_INVALID, "not alive");
    machine_close(runtime); /* nothing holds it */
    made->deleter(made);
}

TEST(a_device_across_a_bus_exports_views_and_no_addresses)
{
    machine wanted = machine_small();
    versioned *made = NULL;
    wanted.device_driver = "cpu-discrete";
    stw_runtime *runtime = machine_open(&wanted);
    stw_tensor *tensor = tensor_f32(runtime, "t", 10);
    tensor_fill_sequence(tensor, 10, 1);
    fails(stw_tensor_to_dlpack(tensor, 0, &made), STW_ERROR_UNSUPPORTED, "no address");
    stw_view view = view_get(runtime, tensor, STW_READ);
    ok(stw_view_to_dlpack(&view, NULL, &made));
    assert_float(((float *)made->tensor.data)[9], 10.0F);
    made->deleter(made);
    machine_close(runtime);
}

/* A capsule, and what of Python its destructor looks for in the process. */
typedef struct capsule {
    const char *name;
    void *pointer;
} capsule;

int PyCapsule_IsValid(void *made, const char *name);
void *PyCapsule_GetPointer(void *made, const char *name);
int PyCapsule_IsValid(void *made, const char *name)
{
    return strcmp(((capsule *)made)->name, name) == 0;
}
void *PyCapsule_GetPointer(void *made, const char *name)
{
    assert_true(PyCapsule_IsValid(made, name));
    return ((capsule *)made)->pointer;
}

TEST(a_capsule_gives_back_what_nobody_took)
{
    stw_runtime *runtime = machine_open_as(machine_small());
    stw_tensor *tensor = tensor_f32(runtime, "t", 10);
    versioned *made = NULL;
    legacy *old = NULL;
    capsule holder;
    tensor_fill_sequence(tensor, 10, 0);
    stw_view view = view_get(runtime, tensor, STW_READ);
    ok(stw_view_to_dlpack(&view, NULL, &made));
    holder.pointer = made;
    holder.name = "used_dltensor_versioned";
    stw_dlpack_capsule_destroy(&holder);
    assert_int_equal(exports_of(runtime), 1);
    holder.name = "dltensor_versioned";
    stw_dlpack_capsule_destroy(&holder);
    assert_int_equal(exports_of(runtime), 0);
    view = view_get(runtime, tensor, STW_READ_WRITE);
    ok(stw_view_to_dlpack_legacy(&view, NULL, &old));
    holder.pointer = old;
    holder.name = "used_dltensor";
    stw_dlpack_capsule_destroy(&holder);
    assert_int_equal(exports_of(runtime), 1);
    holder.name = "dltensor";
    stw_dlpack_capsule_destroy(&holder);
    assert_int_equal(exports_of(runtime), 0);
    machine_close(runtime);
}

RUN_TESTS("dlpack", NULL, NULL)
