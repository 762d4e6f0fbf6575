/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A commit beside other threads: it only reads, so those that read go on, and those that write
 * wait for its end. What begins it is seen by a discard, which is BUSY from then on.
 */
#include "support.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

enum { COUNT_EACH = 3 * 16384 };

static char directory[64];
static const char *const files[] = {"test.0-of-1.stepwell", "test.0-of-1.generations"};

static int make_directory(void **state)
{
    (void)state;
    snprintf(directory, sizeof directory, "commits-XXXXXX");
    return mkdtemp(directory) == NULL;
}

static int remove_directory(void **state)
{
    char path[128];
    (void)state;
    for (size_t i = 0; i < COUNT(files); ++i) {
        snprintf(path, sizeof path, "%s/%s", directory, files[i]);
        unlink(path);
    }
    return rmdir(directory);
}

typedef struct committing {
    stw_runtime *runtime;
    stw_tensor *first;
    stw_tensor *second;
    stw_tensor *empty;
    pthread_t thread;
    uint64_t timeout_ns;
    atomic_int over;
    stw_status status;
} committing;

static stw_tensor *durable(stw_runtime *runtime, const char *name)
{
    stw_tensor_spec spec = spec_f32(name, COUNT_EACH);
    spec.flags = STW_TENSOR_DURABLE;
    return tensor_make(runtime, &spec);
}

static committing opened(uint32_t flags, const char *faults)
{
    committing here;
    machine wanted = machine_small();
    wanted.nvme_path = directory;
    wanted.store_name = "test";
    wanted.flags = flags | STW_RUNTIME_NO_PROBE;
    if (faults) wanted.nvme_driver = "fault";
    wanted.nvme_options = faults;
    memset(&here, 0, sizeof here);
    here.runtime = machine_open(&wanted);
    here.first = durable(here.runtime, "first");
    here.second = durable(here.runtime, "second");
    here.empty = durable(here.runtime, "empty");
    return here;
}

/* The drive writes one manifest into the place of another: there are two of one generation. */
TEST(commits_go_on_after_a_manifest_in_a_wrong_place)
{
    enum { FIRST_REGION = 65536, REGION_BYTES_AT = 32, REGIONS = 3 };
    for (uint32_t pair = 0; pair < REGIONS * REGIONS; ++pair) {
        const uint32_t from = pair / REGIONS, to = pair % REGIONS;
        if (from == to) continue;
        committing here = opened(STW_RUNTIME_OVERWRITE, NULL);
        for (float value = 1; value <= 3; ++value) {
            ok(stw_tensor_fill(here.first, value, NULL));
            ok(stw_commit(here.runtime, NULL, NULL));
        }
        machine_close(here.runtime);
        char path[128];
        uint64_t bytes = 0;
        snprintf(path, sizeof path, "%s/%s", directory, files[1]);
        FILE *file = fopen(path, "r+b");
        assert_non_null(file);
        assert_int_equal(fseek(file, REGION_BYTES_AT, SEEK_SET), 0);
        assert_int_equal(fread(&bytes, sizeof bytes, 1, file), 1);
        unsigned char *const region = malloc(bytes);
        assert_non_null(region);
        assert_int_equal(fseek(file, (long)(FIRST_REGION + from * bytes), SEEK_SET), 0);
        assert_int_equal(fread(region, 1, bytes, file), bytes);
        assert_int_equal(fseek(file, (long)(FIRST_REGION + to * bytes), SEEK_SET), 0);
        assert_int_equal(fwrite(region, 1, bytes, file), bytes);
        assert_int_equal(fclose(file), 0);
        free(region);
        here = opened(STW_RUNTIME_RESUME, NULL);
        float seen = 0;
        stw_copy_options one = STW_COPY_OPTIONS_INIT;
        one.element_count = 1;
        ok(stw_tensor_read(here.first, &seen, &one));
        assert_float(seen, to == 2 ? 2.0F : 3.0F); /* the newest one that is whole */
        for (float value = 4; value <= 6; ++value) {
            ok(stw_tensor_fill(here.first, value, NULL));
            ok(stw_commit(here.runtime, NULL, NULL));
        }
        machine_close(here.runtime);
    }
}

static void *commit_it(void *argument)
{
    committing *here = argument;
    stw_commit_options options = {.struct_size = sizeof options, .timeout_ns = here->timeout_ns};
    here->status = stw_commit(here->runtime, &options, NULL);
    atomic_store(&here->over, 1);
    return NULL;
}

/* Until write_first() a commit waits for this write. */
static stw_operation *hold_first(committing *here)
{
    stw_operation *writes = NULL;
    stw_fetch_request request = request_of(here->first, STW_READ_WRITE);
    ok(stw_fetch_async(here->runtime, NULL, &request, 1, &writes));
    ok(stw_operation_wait(writes, 0));
    return writes;
}

static void write_first(stw_operation *writes, float first)
{
    stw_view view;
    ok(stw_fetch_collect(writes, STW_STREAM_HOST, &view, 1));
    ok(stw_operation_free(writes));
    for (int i = 0; i < COUNT_EACH; ++i) ((float *)view.pointer)[i] = first + (float)i;
    view_put(&view);
}

/* Returns when it has begun. */
static void begin_commit(committing *here)
{
    stw_status status = STW_OK;
    assert_int_equal(pthread_create(&here->thread, NULL, commit_it, here), 0);
    while (status == STW_OK && !atomic_load(&here->over))
        status = stw_tensor_discard(&here->empty, 1);
    assert_int_equal(status, STW_ERROR_BUSY);
}

static stw_status try_second(committing *here, uint32_t access, stw_view *view)
{
    stw_fetch_request request = request_of(here->second, access);
    stw_fetch_options options = {.struct_size = sizeof options, .flags = STW_FETCH_TRY};
    return stw_fetch(here->runtime, &options, &request, 1, view);
}

/* A hit, a range that the core grants, and a copy. */
static void read_second(committing *here, float first)
{
    stw_view view;
    float *values = malloc(COUNT_EACH * sizeof *values);
    stw_fetch_options options = {.struct_size = sizeof options, .timeout_ns = 20 * SECOND_NS};
    stw_fetch_request request = request_range(here->second, STW_READ, 5, 10);
    assert_non_null(values);
    ok(try_second(here, STW_READ, &view));
    assert_float(((float *)view.pointer)[COUNT_EACH - 1], first + COUNT_EACH - 1);
    view_put(&view);
    ok(stw_fetch(here->runtime, &options, &request, 1, &view));
    assert_float(((float *)view.pointer)[0], first + 5);
    view_put(&view);
    ok(stw_tensor_read(here->second, values, NULL));
    assert_float(values[7], first + 7);
    free(values);
}

TEST(views_that_read_are_not_in_the_way_of_a_commit)
{
    committing here = opened(STW_RUNTIME_OVERWRITE, NULL);
    tensor_fill_sequence(here.first, COUNT_EACH, 1);
    tensor_fill_sequence(here.second, COUNT_EACH, 2);
    stw_view own = view_get(here.runtime, here.first, STW_READ);
    stw_view other = view_handed_over(here.runtime, here.second);
    ok(stw_commit(here.runtime, NULL, NULL));
    assert_float(((float *)own.pointer)[COUNT_EACH - 1], COUNT_EACH);
    assert_float(((float *)other.pointer)[3], 5);
    view_put(&own);
    view_put(&other);
    machine_close(here.runtime);
    here = opened(STW_RUNTIME_RESUME, NULL);
    tensor_expect_sequence(here.first, COUNT_EACH, 1);
    tensor_expect_sequence(here.second, COUNT_EACH, 2);
    machine_close(here.runtime);
}

TEST(beside_a_commit_others_read_and_nobody_writes)
{
    committing here = opened(STW_RUNTIME_OVERWRITE, NULL);
    stw_operation *writes = NULL;
    stw_view view;
    stw_view read;
    tensor_fill_sequence(here.first, COUNT_EACH, 1);
    tensor_fill_sequence(here.second, COUNT_EACH, 2);
    view = view_get(here.runtime, here.second, STW_READ);
    view_put(&view);
    writes = hold_first(&here);
    begin_commit(&here);
    read_second(&here, 2);
    fails(try_second(&here, STW_READ_WRITE, &view), STW_ERROR_BUSY, "told not to wait");
    ok(try_second(&here, STW_READ, &read));
    fails(stw_release(&read, 1, STW_STREAM_HOST, STW_RELEASE_DISCARD), STW_ERROR_BUSY, "a commit");
    ok(try_second(&here, STW_READ, &read));
    assert_int_equal(atomic_load(&here.over), 0);
    write_first(writes, 3);
    assert_int_equal(pthread_join(here.thread, NULL), 0);
    ok(here.status);
    view_put(&read);
    machine_close(here.runtime);
    here = opened(STW_RUNTIME_RESUME, NULL);
    tensor_expect_sequence(here.first, COUNT_EACH, 3);
    tensor_expect_sequence(here.second, COUNT_EACH, 2);
    machine_close(here.runtime);
}

/* A fault of an access without a view is served as any other read is. */
TEST(beside_a_commit_an_access_without_a_view_reads)
{
    committing here = opened(STW_RUNTIME_OVERWRITE | STW_RUNTIME_FAULT_IN, NULL);
    stw_operation *writes = NULL;
    const volatile float *values;
    stw_view view;
    tensor_fill_sequence(here.first, COUNT_EACH, 1);
    tensor_fill_sequence(here.second, COUNT_EACH, 2);
    view = view_get(here.runtime, here.second, STW_READ);
    values = view.pointer;
    view_put(&view);
    tensor_to_disk(here.runtime, here.second);
    writes = hold_first(&here);
    begin_commit(&here);
    assert_float(values[7], 9);
    assert_int_equal(atomic_load(&here.over), 0);
    write_first(writes, 3);
    assert_int_equal(pthread_join(here.thread, NULL), 0);
    ok(here.status);
    machine_close(here.runtime);
}

/* The drive hangs with a block of the first tensor: the commit is under way until its timeout. */
TEST(while_a_commit_writes_others_read)
{
    committing here = opened(STW_RUNTIME_OVERWRITE,
                             "inner=posix;inner.allow_tmpfs=1;at=write:2:hang;at=write:3:hang;"
                             "at=write:4:hang;at=write:5:hang;at=write:6:hang;at=write:7:hang");
    stw_view view;
    tensor_fill_sequence(here.first, COUNT_EACH, 1);
    tensor_fill_sequence(here.second, COUNT_EACH, 2);
    view = view_get(here.runtime, here.second, STW_READ);
    view_put(&view);
    here.timeout_ns = SECOND_NS;
    begin_commit(&here);
    read_second(&here, 2);
    fails(try_second(&here, STW_READ_WRITE, &view), STW_ERROR_BUSY, "told not to wait");
    assert_int_equal(atomic_load(&here.over), 0);
    assert_int_equal(pthread_join(here.thread, NULL), 0);
    assert_int_equal(here.status, STW_ERROR_TIMEOUT);
    fails(stw_runtime_close(here.runtime, 0, MILLISECOND_NS), STW_ERROR_TIMEOUT, "");
}

RUN_TESTS_EACH("commits", NULL, NULL, make_directory, remove_directory)
