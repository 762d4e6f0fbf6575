/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shared helpers of the C API's tests. Log lines are kept in one buffer under a lock, since
 * they come from threads of the library.
 */
#include "support.h"

#include "../support/budget_sentence.h"

#include <dirent.h>
#include <pthread.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t log_lock = PTHREAD_MUTEX_INITIALIZER;
static char log_text[65536];
static size_t log_length;
static int log_errors;

machine machine_small(void)
{
    machine small;
    memset(&small, 0, sizeof small);
    small.device_blocks = 8;
    small.host_blocks = 16;
    small.nvme_blocks = 256;
    return small;
}

static struct CMUnitTest tests[64];
static size_t tests_count;

void test_add(const char *name, CMUnitTestFunction test)
{
    if (tests_count == COUNT(tests)) abort();
    tests[tests_count].name = name;
    tests[tests_count++].test_func = test;
}

int tests_run(const char *group, CMFixtureFunction setup, CMFixtureFunction teardown,
              CMFixtureFunction setup_each, CMFixtureFunction teardown_each)
{
    for (size_t i = 0; i < tests_count; ++i) {
        tests[i].setup_func = setup_each;
        tests[i].teardown_func = teardown_each;
    }
    return _cmocka_run_group_tests(group, tests, tests_count, setup, teardown);
}

int tests_run_on(const char *group, machine *now)
{
    for (size_t i = 0; i < tests_count; ++i) tests[i].initial_state = now;
    return _cmocka_run_group_tests(group, tests, tests_count, NULL, NULL);
}

int tests_run_on_each_machine(const char *what, machine *now)
{
    static const struct {
        const char *name;
        uint32_t device_blocks, host_blocks;
        const char *driver;
    } kinds[] = {
        {"three tiers", 12, 16, NULL},
        {"device across a bus", 12, 20, "cpu-discrete"},
        {"device and nvme", 12, 0, NULL},
        {"host and nvme", 0, 12, NULL},
    };
    static machine own;
    int failed = 0;
    if (!now) now = &own;
    for (size_t i = 0; i < COUNT(kinds); ++i) {
        char name[128];
        snprintf(name, sizeof name, "%s, %s", what, kinds[i].name);
        memset(now, 0, sizeof *now);
        now->device_blocks = kinds[i].device_blocks;
        now->host_blocks = kinds[i].host_blocks;
        now->nvme_blocks = 256;
        now->device_driver = kinds[i].driver;
        failed += tests_run_on(name, now);
    }
    return failed;
}

void (*log_hook)(const char *topic);

void log_line(void *user, uint32_t level, const char *topic, const char *line)
{
    int written;
    (void)user;
    if (level > STW_LOG_WARNING) return;
    pthread_mutex_lock(&log_lock);
    log_errors += level == STW_LOG_ERROR;
    written =
        snprintf(log_text + log_length, sizeof log_text - log_length, "%s: %s\n", topic, line);
    if (written > 0 && (size_t)written < sizeof log_text - log_length)
        log_length += (size_t)written;
    pthread_mutex_unlock(&log_lock);
    if (log_hook) log_hook(topic);
}

int times_logged(const char *part)
{
    int times = 0;
    pthread_mutex_lock(&log_lock);
    for (char *at = log_text; (at = strstr(at, part)) != NULL; ++at) ++times;
    pthread_mutex_unlock(&log_lock);
    return times;
}

int logged(const char *part)
{
    return times_logged(part) > 0;
}

void log_reset(void)
{
    pthread_mutex_lock(&log_lock);
    log_length = 0;
    log_errors = 0;
    log_text[0] = 0;
    pthread_mutex_unlock(&log_lock);
}

stw_status machine_try_open(const machine *wanted, stw_runtime **runtime_out)
{
    stw_runtime_options options = STW_RUNTIME_OPTIONS_INIT;
    const uint64_t block = wanted->block_bytes ? wanted->block_bytes : BLOCK;
    stw_device_options device = {.struct_size = sizeof device,
                                 .driver = wanted->device_driver,
                                 .budget_bytes = wanted->device_blocks * block};
    stw_nvme_options nvme = {.struct_size = sizeof nvme,
                             .path = wanted->nvme_path ? wanted->nvme_path : ".",
                             .driver = wanted->nvme_driver};
    /* The build directory may lie on tmpfs. */
    nvme.driver_options = wanted->nvme_options ? wanted->nvme_options : "allow_tmpfs=1";
    /* 1 MiB is kept for the superblock. */
    nvme.budget_bytes = MIB + wanted->nvme_blocks * block;
    options.name = "test";
    options.devices = &device;
    options.device_count = wanted->device_blocks > 0;
    options.nvme = &nvme;
    options.nvme_count = wanted->nvme_blocks > 0;
    options.host_bytes = wanted->host_blocks * block;
    options.thread_count = wanted->thread_count ? wanted->thread_count : 2;
    options.preset = wanted->preset;
    options.timeout_ns = wanted->timeout_ns ? wanted->timeout_ns : 60 * SECOND_NS;
    options.tensors_max = wanted->tensors_max;
    options.views_max = wanted->views_max;
    options.operations_max = wanted->operations_max;
    options.metadata_bytes = wanted->metadata_bytes;
    options.block_bytes = (uint32_t)block;
    options.profile_path = wanted->profile_path;
    options.flags = wanted->flags;
    options.store_name = wanted->store_name;
    options.resume_generation = wanted->resume_generation;
    options.generations_kept = wanted->generations_kept;
    if (wanted->store_name) nvme.budget_bytes += 8 * MIB;
    nvme.queue_depth = wanted->nvme_depth;
    nvme.request_bytes = wanted->nvme_request_bytes;
    options.log = log_line;
    return stw_runtime_open(&options, runtime_out);
}

stw_runtime *machine_open(const machine *wanted)
{
    stw_runtime *runtime = NULL;
    log_reset();
    ok(machine_try_open(wanted, &runtime));
    assert_non_null(runtime);
    return runtime;
}

stw_runtime *machine_open_as(machine wanted)
{
    return machine_open(&wanted);
}

void machine_close(stw_runtime *runtime)
{
    ok(stw_runtime_close(runtime, 0, 0));
    if (log_errors > 0) fail_msg("unexpected errors in the log:\n%s", log_text);
}

static char report[65536];

const char *report_text(stw_runtime *runtime)
{
    char path[64];
    FILE *file;
    snprintf(path, sizeof path, "report-%d.json", (int)getpid());
    ok(stw_report_write(runtime, path));
    file = fopen(path, "r");
    assert_non_null(file);
    size_t length = fread(report, 1, sizeof report - 1, file);
    fclose(file);
    remove(path);
    report[length] = 0;
    return report;
}

void report_expect(stw_runtime *runtime, const char *used_for, const char *words)
{
    char wanted[256];
    char *begin;
    char *text = report;
    (void)report_text(runtime);
    snprintf(wanted, sizeof wanted, "\"used_for\": \"%s\"", used_for);
    char *at = strstr(text, wanted);
    if (!at) fail_msg("no %s in the report\n%s", wanted, text);
    for (begin = at; *begin != '{'; --begin) assert_true(begin > text);
    char *end = strchr(at, '}');
    assert_non_null(end);
    *end = 0;
    if (!strstr(begin, words)) fail_msg("no '%s' in the report's\n%s", words, begin);
}

int machine_setup(void **state)
{
    *state = machine_open_as(machine_small());
    return 0;
}

int machine_teardown(void **state)
{
    machine_close(*state);
    return 0;
}

stw_tensor_info info_of(stw_tensor *tensor)
{
    stw_tensor_info info;
    memset(&info, 0, sizeof info);
    info.struct_size = sizeof info;
    ok(stw_tensor_info_get(tensor, &info));
    return info;
}

stw_tier_stats tier_stats(stw_runtime *runtime, uint32_t tier)
{
    stw_tier_stats stats = STW_TIER_STATS_INIT;
    ok(stw_tier_stats_get(runtime, tier, 0, &stats));
    return stats;
}

stw_link_stats link_stats(stw_runtime *runtime, uint32_t link)
{
    stw_link_stats stats = STW_LINK_STATS_INIT;
    ok(stw_link_stats_get(runtime, link, 0, &stats));
    return stats;
}

uint64_t bytes_from_disk(stw_runtime *runtime)
{
    const uint32_t links[] = {STW_LINK_NVME_TO_HOST, STW_LINK_NVME_TO_DEVICE};
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < COUNT(links); ++i) {
        stw_link_stats stats = STW_LINK_STATS_INIT;
        if (stw_link_stats_get(runtime, links[i], 0, &stats) == STW_OK) bytes += stats.bytes;
    }
    return bytes;
}

stw_status status_of(stw_operation *operation)
{
    stw_status status;
    do {
        status = stw_operation_wait(operation, SECOND_NS);
    } while (status == STW_PENDING);
    return status;
}

stw_tensor_spec spec_f32(const char *name, uint64_t elements)
{
    stw_tensor_spec spec = STW_TENSOR_SPEC_INIT;
    spec.name = name;
    spec.role = STW_ROLE_PARAM;
    spec.dtype = STW_F32;
    spec.dimensions = 1;
    spec.shape[0] = elements;
    return spec;
}

stw_tensor *tensor_make(stw_runtime *runtime, const stw_tensor_spec *spec)
{
    stw_tensor *tensor = NULL;
    ok(stw_tensor_create(runtime, spec, 1, &tensor));
    return tensor;
}

stw_tensor *tensor_f32(stw_runtime *runtime, const char *name, uint64_t elements)
{
    stw_tensor_spec spec = spec_f32(name, elements);
    return tensor_make(runtime, &spec);
}

void tensor_fill_sequence(stw_tensor *tensor, uint64_t elements, float first)
{
    float *values = malloc(elements * sizeof *values);
    assert_non_null(values);
    for (uint64_t i = 0; i < elements; ++i) values[i] = first + (float)i;
    ok(stw_tensor_write(tensor, values, NULL));
    free(values);
}

void tensor_expect_sequence(stw_tensor *tensor, uint64_t elements, float first)
{
    float *values = malloc(elements * sizeof *values);
    assert_non_null(values);
    ok(stw_tensor_read(tensor, values, NULL));
    for (uint64_t i = 0; i < elements; ++i) {
        if (values[i] == first + (float)i) continue;
        fail_msg("element %llu is %g, not %g", (unsigned long long)i, values[i], first + (float)i);
    }
    free(values);
}

void tensor_to_disk(stw_runtime *runtime, stw_tensor *tensor)
{
    ok(stw_evict(runtime, &tensor, 1, STW_TIER_DEVICE, 0, 0));
    ok(stw_evict(runtime, &tensor, 1, STW_TIER_HOST, 0, 0));
}

stw_tensor *tensor_on_disk(stw_runtime *runtime, const char *name, uint64_t elements, float first)
{
    stw_tensor *tensor = tensor_f32(runtime, name, elements);
    tensor_fill_sequence(tensor, elements, first);
    tensor_to_disk(runtime, tensor);
    return tensor;
}

stw_fetch_request request_range(stw_tensor *tensor, uint32_t access, uint64_t begin, uint64_t count)
{
    stw_fetch_request request = {.struct_size = sizeof request,
                                 .tensor = tensor,
                                 .access = access,
                                 .element_begin = begin,
                                 .element_count = count};
    return request;
}

void hyper_usual(stw_optimizer *optimizer)
{
    const stw_hyper usual = STW_HYPER_INIT;
    ok(stw_optimizer_set_hyper(optimizer, 0, &usual));
}

stw_optimizer *optimizer_make(stw_runtime *runtime, uint32_t algorithm)
{
    const stw_optimizer_options options = {.struct_size = sizeof options, .algorithm = algorithm};
    stw_optimizer *optimizer = NULL;
    ok(stw_optimizer_create(runtime, &options, &optimizer));
    hyper_usual(optimizer);
    return optimizer;
}

void optimizer_add(stw_optimizer *optimizer, stw_tensor *parameter, stw_tensor *gradient)
{
    const stw_optimizer_entry entry = {
        .struct_size = sizeof entry, .parameter = parameter, .gradient = gradient};
    ok(stw_optimizer_add(optimizer, &entry, 1));
}

stw_fetch_request request_of(stw_tensor *tensor, uint32_t access)
{
    return request_range(tensor, access, 0, 0);
}

stw_view view_get(stw_runtime *runtime, stw_tensor *tensor, uint32_t access)
{
    stw_fetch_request request = request_of(tensor, access);
    stw_view view;
    ok(stw_fetch(runtime, NULL, &request, 1, &view));
    return view;
}

stw_view view_handed_over(stw_runtime *runtime, stw_tensor *tensor)
{
    const stw_fetch_options options = {.struct_size = sizeof options, .flags = STW_FETCH_HAND_OVER};
    const stw_fetch_request request = request_of(tensor, STW_READ);
    stw_view view;
    ok(stw_fetch(runtime, &options, &request, 1, &view));
    return view;
}

void view_put(stw_view *view)
{
    ok(stw_release(view, 1, STW_STREAM_HOST, 0));
}

stw_error_info error_numbers(void)
{
    stw_error_info info;
    memset(&info, 0, sizeof info);
    info.struct_size = sizeof info;
    assert_int_equal(stw_last_error_info(&info), STW_OK);
    return info;
}

uint64_t clock_ns(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (uint64_t)time.tv_sec * SECOND_NS + (uint64_t)time.tv_nsec;
}

int descriptors_open(void)
{
    DIR *directory = opendir("/proc/self/fd");
    int count = 0;
    assert_non_null(directory);
    while (readdir(directory)) ++count;
    closedir(directory);
    return count;
}

void check_ok(stw_status status, const char *call, const char *file, int line)
{
    if (status == STW_OK) return;
    print_error("%s\n  is %d (%s): %s\n", call, (int)status, stw_status_string(status),
                stw_last_error());
    _fail(file, line);
}

void check_fails(stw_status status, stw_status code, const char *words, const char *call,
                 const char *file, int line)
{
    const char *sentence = stw_last_error();
    const char *wrong = status == STW_ERROR_BUDGET ? budget_sentence_wrong(sentence) : NULL;
    if (strchr(sentence, '\n') || (*sentence && sentence[strlen(sentence) - 1] == ':')) {
        wrong = "it is not one sentence";
    }
    if (strstr(sentence, "tensor ''") || strstr(sentence, "parameter ''")) {
        wrong = "it calls what has no name ''";
    }
    if (status == code && strstr(stw_last_error(), words) && wrong == NULL) return;
    if (wrong) print_error("wrong in what follows: %s\n", wrong);
    print_error("%s\n  is %d (%s): %s\n  and should be %d (%s) with '%s' in its sentence\n", call,
                (int)status, stw_status_string(status), stw_last_error(), (int)code,
                stw_status_string(code), words);
    _fail(file, line);
}
