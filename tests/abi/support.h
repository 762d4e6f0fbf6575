/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the tests of the C API share: a small machine to open, tensors of a size, and a check that a
 * failure has both the status code and the words that matter. Knows the public headers alone.
 */
#ifndef TESTS_ABI_SUPPORT_H
#define TESTS_ABI_SUPPORT_H

#include <stepwell/stepwell.h>

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define KIB            UINT64_C(1024)
#define MIB            (1024 * KIB)
#define BLOCK          (64 * KIB)
#define SECOND_NS      UINT64_C(1000000000)
#define MILLISECOND_NS UINT64_C(1000000)
#define COUNT(array)   (sizeof(array) / sizeof(array)[0])

/* A test: a function of `state`. Those of a file are run in the order in which they stand. */
#define TEST(name)                                                                                 \
    static void name(void **state);                                                                \
    __attribute__((constructor)) static void name##_is_a_test(void)                                \
    {                                                                                              \
        test_add(#name, name);                                                                     \
    }                                                                                              \
    static void name(__attribute__((unused)) void **state)
void test_add(const char *name, CMUnitTestFunction test);

/* The end of a file of tests: its main(). A group has a fixture of its own, each of its tests may
 * have one as well; NULL: none. */
#define RUN_TESTS(group, setup, teardown) RUN_TESTS_EACH(group, setup, teardown, NULL, NULL)
#define RUN_TESTS_EACH(group, setup, teardown, setup_each, teardown_each)                          \
    int main(void)                                                                                 \
    {                                                                                              \
        return tests_run(group, setup, teardown, setup_each, teardown_each);                       \
    }
/* On four machines, `now` in turn, which is what `state` points to as well: three tiers, a device
 * across a bus, no host tier, no device. */
#define RUN_TESTS_ON_EACH_MACHINE(what, now)                                                       \
    int main(void)                                                                                 \
    {                                                                                              \
        return tests_run_on_each_machine(what, now);                                               \
    }
int tests_run(const char *group, CMFixtureFunction setup, CMFixtureFunction teardown,
              CMFixtureFunction setup_each, CMFixtureFunction teardown_each);

/* Budgets in blocks; what is 0 is no such tier. */
typedef struct machine {
    uint32_t device_blocks;
    uint32_t host_blocks;
    uint32_t nvme_blocks;
    const char *device_driver;
    const char *nvme_driver;
    const char *nvme_options;
    const char *nvme_path;
    uint32_t tensors_max;
    uint32_t views_max;
    uint32_t operations_max;
    uint64_t metadata_bytes;
    uint64_t timeout_ns;
    uint32_t block_bytes;  /* 0: BLOCK */
    uint32_t thread_count; /* 0: 2 */
    uint32_t preset;
    int errors_expected; /* the log may hold errors: faults are injected */
    const char *profile_path;
    uint32_t flags;
    uint32_t nvme_depth;
    uint32_t nvme_request_bytes;
    const char *store_name; /* the nvme tier then has room for the file of generations beside */
    uint64_t resume_generation;
    uint32_t generations_kept;
} machine;

/* Three tiers: 8 blocks on a cpu device, 16 in the host tier, 256 on nvme. */
machine machine_small(void);

/* Return how many tests failed. */
int tests_run_on(const char *group, machine *now);
int tests_run_on_each_machine(const char *what, machine *now);

stw_status machine_try_open(const machine *wanted, stw_runtime **runtime_out);
stw_runtime *machine_open(const machine *wanted);
stw_runtime *machine_open_as(machine wanted);
void machine_close(stw_runtime *runtime);
/* Fixtures of a group whose tests share one small machine: `state` is its runtime. */
int machine_setup(void **state);
int machine_teardown(void **state);

/* Called from the log callback with each line that is kept; NULL: nobody. */
extern void (*log_hook)(const char *topic);
/* Lines of level ERROR and WARNING that runtimes of this program logged since the last reset. */
int logged(const char *part);
int times_logged(const char *part);
void log_reset(void);
void log_line(void *user, uint32_t level, const char *topic, const char *line);

/* The report's entry of the storage path, or of the memory of a tier, holds these words. */
void report_expect(stw_runtime *runtime, const char *used_for, const char *words);

/* The text of the report, until the next call. */
const char *report_text(stw_runtime *runtime);

/* One dimension of f32, role param unless changed afterwards. */
stw_tensor_spec spec_f32(const char *name, uint64_t elements);
stw_tensor *tensor_make(stw_runtime *runtime, const stw_tensor_spec *spec);
stw_tensor *tensor_f32(stw_runtime *runtime, const char *name, uint64_t elements);
/* Elements count from `first`. */
void tensor_fill_sequence(stw_tensor *tensor, uint64_t elements, float first);
void tensor_expect_sequence(stw_tensor *tensor, uint64_t elements, float first);
/* Out of the device and the host: only the disk has it. */
void tensor_to_disk(stw_runtime *runtime, stw_tensor *tensor);
/* A new one with such a sequence, there. */
stw_tensor *tensor_on_disk(stw_runtime *runtime, const char *name, uint64_t elements, float first);

stw_tensor_info info_of(stw_tensor *tensor);
stw_tier_stats tier_stats(stw_runtime *runtime, uint32_t tier);
stw_link_stats link_stats(stw_runtime *runtime, uint32_t link);
uint64_t bytes_from_disk(stw_runtime *runtime);
/* What the operation comes to, however long it takes. */
stw_status status_of(stw_operation *operation);

/* Group 0 gets STW_HYPER_INIT. */
void hyper_usual(stw_optimizer *optimizer);
/* With it. */
stw_optimizer *optimizer_make(stw_runtime *runtime, uint32_t algorithm);
void optimizer_add(stw_optimizer *optimizer, stw_tensor *parameter, stw_tensor *gradient);

stw_fetch_request request_of(stw_tensor *tensor, uint32_t access);
stw_fetch_request request_range(stw_tensor *tensor, uint32_t access, uint64_t begin,
                                uint64_t count);
stw_view view_get(stw_runtime *runtime, stw_tensor *tensor, uint32_t access);
/* READ, to be released by another thread, so that this one may wait for what waits for it. */
stw_view view_handed_over(stw_runtime *runtime, stw_tensor *tensor);
void view_put(stw_view *view);

stw_error_info error_numbers(void);
uint64_t clock_ns(void);
int descriptors_open(void);

/* Success, with the sentence printed when it is none. */
#define ok(call) check_ok((call), #call, __FILE__, __LINE__)
/* Failure with this code and with these words in the sentence. */
#define fails(call, code, words) check_fails((call), (code), (words), #call, __FILE__, __LINE__)
void check_ok(stw_status status, const char *call, const char *file, int line);
void check_fails(stw_status status, stw_status code, const char *words, const char *call,
                 const char *file, int line);

#define assert_float(a, b) assert_true((a) == (b))

#endif
