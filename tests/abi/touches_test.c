/* SPDX-License-Identifier: Apache-2.0 */
/*
 * STW_RUNTIME_FAULT_IN: what is touched at stw_tensor_address() without a view is fetched, written
 * bytes are kept, nobody else's bytes are ever seen there, and what cannot be fetched has a name.
 */
#include "support.h"
#include "touched.h"

#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TENSORS = 12, ELEMENTS = 2 * 16384 }; /* two blocks each, in a budget of eight */

static void make_all(stw_runtime *runtime, stw_tensor **tensors, float **addresses)
{
    char name[16];
    for (int i = 0; i < TENSORS; ++i) {
        snprintf(name, sizeof name, "t%d", i);
        tensors[i] = tensor_f32(runtime, name, ELEMENTS);
        tensor_fill_sequence(tensors[i], ELEMENTS, (float)(i * 1000));
        addresses[i] = touched_address(tensors[i]);
    }
}

/* To the thread sanitizer a mapping that changes is a write of all that lies there, so that a read
 * without a view races with the eviction whose fault it waits for. */
__attribute__((no_sanitize("thread"))) static int has_sequence(const volatile float *values,
                                                               float first)
{
    for (int i = 0; i < ELEMENTS; i += 61)
        if (values[i] != first + (float)i) return 0;
    return 1;
}

static uint64_t open_views(stw_runtime *runtime)
{
    return tier_stats(runtime, STW_TIER_DEVICE).open_views;
}

/* The report has so many faults of the tensor. */
static void expect_touches(stw_runtime *runtime, const char *name, unsigned reads, unsigned writes)
{
    unsigned found[2];
    touched_counts(runtime, name, found);
    assert_int_equal(found[0], reads);
    assert_int_equal(found[1], writes);
}

TEST(what_is_read_without_a_view_is_fetched_counted_and_named)
{
    stw_runtime *runtime = machine_open_as(machine_touched());
    stw_tensor *tensors[TENSORS];
    float *addresses[TENSORS];
    make_all(runtime, tensors, addresses);
    for (int round = 0; round < 3; ++round)
        for (int i = 0; i < TENSORS; ++i)
            assert_true(has_sequence(addresses[i], (float)(i * 1000)));
    expect_touches(runtime, "t0", 3, 0);
    expect_touches(runtime, "t11", 3, 0);
    machine_close(runtime);
}

TEST(what_is_written_without_a_view_is_kept)
{
    stw_runtime *runtime = machine_open_as(machine_touched());
    stw_tensor *tensors[TENSORS];
    float *addresses[TENSORS];
    make_all(runtime, tensors, addresses);
    for (int i = 0; i < TENSORS; ++i) addresses[i][7] = -1.0F - (float)i;
    for (int i = 0; i < TENSORS; ++i) {
        float values[8];
        stw_copy_options some = {.struct_size = sizeof some, .element_count = 8};
        ok(stw_tensor_read(tensors[i], values, &some));
        assert_float(values[6], (float)(i * 1000 + 6));
        assert_float(values[7], -1.0F - (float)i);
    }
    expect_touches(runtime, "t3", 0, 1);
    /* Resident, clean and not pinned: a write then is one too many, and not lost. */
    ok(stw_evict(runtime, &tensors[0], 1, STW_TIER_DEVICE, 0, 0));
    stw_view view = view_get(runtime, tensors[0], STW_READ);
    view_put(&view);
    assert_float(addresses[0][7], -1.0F);
    addresses[0][8] = 5.0F;
    ok(stw_evict(runtime, &tensors[0], 1, STW_TIER_DEVICE, 0, 0));
    assert_float(addresses[0][8], 5.0F);
    /* After the step mark a write is seen again. */
    addresses[0][9] = 6.0F;
    ok(stw_evict(runtime, &tensors[0], 1, STW_TIER_DEVICE, 0, 0));
    assert_float(addresses[0][9], 6.0F);
    /* What was never written is zeros beside what is written now. */
    stw_tensor *fresh = tensor_f32(runtime, "fresh", ELEMENTS);
    float *empty = touched_address(fresh);
    empty[3] = 1.0F;
    for (int i = 0; i < ELEMENTS; ++i) assert_float(empty[i], i == 3 ? 1.0F : 0.0F);
    machine_close(runtime);
}

TEST(views_of_faults_end_with_the_next_step_mark_or_where_they_are_in_the_way)
{
    stw_runtime *runtime = machine_open_as(machine_touched());
    stw_tensor *tensors[TENSORS];
    float *addresses[TENSORS];
    stw_phase *phase;
    make_all(runtime, tensors, addresses);
    ok(stw_phase_create(runtime, "train", &phase));
    assert_float(addresses[0][1], 1.0F);
    assert_int_equal(open_views(runtime), 1);
    ok(stw_step_begin(phase));
    assert_int_equal(open_views(runtime), 0);
    assert_float(addresses[1][1], 1001.0F);
    addresses[1][1] = 7.0F; /* one view, and now for writing */
    assert_int_equal(open_views(runtime), 1);
    stw_view view = view_get(runtime, tensors[1], STW_READ_WRITE);
    assert_float(((float *)view.pointer)[1], 7.0F);
    view_put(&view);
    assert_float(addresses[2][1], 2001.0F);
    ok(stw_step_end(phase, NULL));
    assert_int_equal(open_views(runtime), 0);
    assert_float(addresses[3][1], 3001.0F);
    ok(stw_tensor_destroy(&tensors[3], 1));
    machine_close(runtime);
}

/* An update works behind the call: its old bytes must not be taken for new ones. */
/* Through a pin in the gate and through one by blocks, of a tensor alone and of ones that share. */
TEST(what_is_written_beside_open_views_that_read_is_kept)
{
    stw_runtime *runtime = machine_open_as(machine_touched());
    stw_tensor *tensors[TENSORS], *small[2];
    float *addresses[TENSORS], *few[2];
    stw_view views[2];
    make_all(runtime, tensors, addresses);
    for (int i = 0; i < 2; ++i) {
        small[i] = tensor_f32(runtime, i == 0 ? "small" : "beside", 16);
        tensor_fill_sequence(small[i], 16, 0.0F);
        few[i] = touched_address(small[i]);
    }
    for (int round = 0; round < 3; ++round) {
        for (int i = 0; i < TENSORS; ++i) {
            views[0] = view_get(runtime, tensors[i], STW_READ);
            views[1] = view_get(runtime, tensors[i], STW_READ);
            addresses[i][7 + round] = -1.0F - (float)i;
            assert_float(((const float *)views[1].pointer)[7 + round], -1.0F - (float)i);
            view_put(&views[0]);
            addresses[i][17 + round] = -2.0F - (float)i; /* beside the one that is left */
            view_put(&views[1]);
        }
        for (int i = 0; i < 2; ++i) views[i] = view_get(runtime, small[i], STW_READ);
        few[0][round] = -1.0F;
        few[1][round] = -2.0F;
        for (int i = 0; i < 2; ++i) view_put(&views[i]);
    }
    for (int i = 0; i < TENSORS; ++i) {
        ok(stw_evict(runtime, &tensors[i], 1, STW_TIER_DEVICE, 0, 0));
        for (int round = 0; round < 3; ++round) {
            assert_float(addresses[i][7 + round], -1.0F - (float)i);
            assert_float(addresses[i][17 + round], -2.0F - (float)i);
        }
        assert_float(addresses[i][10], (float)(i * 1000 + 10));
    }
    for (int i = 0; i < 2; ++i) ok(stw_evict(runtime, &small[i], 1, STW_TIER_DEVICE, 0, 0));
    for (int round = 0; round < 3; ++round) {
        assert_float(few[0][round], -1.0F);
        assert_float(few[1][round], -2.0F);
    }
    assert_float(few[0][3], 3.0F);
    machine_close(runtime);
}

static stw_tensor *tensor_without_address(stw_runtime *runtime, const char *name, float first)
{
    stw_tensor_spec spec = spec_f32(name, ELEMENTS);
    spec.flags = STW_TENSOR_NO_ADDRESS;
    stw_tensor *tensor = tensor_make(runtime, &spec);
    tensor_fill_sequence(tensor, ELEMENTS, first);
    return tensor;
}

/* Of some no address is asked for: they use the same memory in turn with those that are guarded. */
TEST(tensors_without_an_address_share_the_memory_of_those_that_have_one)
{
    stw_runtime *runtime = machine_open_as(machine_touched());
    stw_tensor *tensors[TENSORS], *plain[TENSORS];
    float *addresses[TENSORS];
    stw_tensor_spec spec = spec_f32("both", ELEMENTS);
    uint64_t bytes;
    char name[16];
    void *pointer;
    make_all(runtime, tensors, addresses);
    for (int i = 0; i < TENSORS; ++i) {
        snprintf(name, sizeof name, "plain%d", i);
        plain[i] = tensor_without_address(runtime, name, (float)(-i * 1000));
    }
    fails(stw_tensor_address(plain[0], 0, &pointer, &bytes), STW_ERROR_UNSUPPORTED,
          "'plain0' was created with STW_TENSOR_NO_ADDRESS");
    spec.flags = STW_TENSOR_NO_ADDRESS | STW_TENSOR_FIXED_ADDRESS;
    fails(stw_tensor_create(runtime, &spec, 1, &plain[0]), STW_ERROR_INVALID, "exclude each other");
    for (int round = 0; round < 4; ++round)
        for (int i = 0; i < TENSORS; ++i) {
            stw_view view = view_get(runtime, plain[i], STW_READ_WRITE);
            assert_true(has_sequence(view.pointer, (float)(-i * 1000 + round)));
            for (int at = 0; at < ELEMENTS; ++at) ((float *)view.pointer)[at] += 1.0F;
            view_put(&view);
            assert_true(has_sequence(addresses[i], (float)(i * 1000 + round)));
            for (int at = 0; at < ELEMENTS; ++at) addresses[i][at] += 1.0F;
        }
    machine_close(runtime);
}

struct half {
    float *begin;
    pthread_barrier_t *together;
};

static void *write_half(void *argument)
{
    const struct half *half = argument;
    pthread_barrier_wait(half->together);
    for (int i = 0; i < ELEMENTS / 2; i += 256) half->begin[i] += 1.0F;
    return NULL;
}

/* Both fault at once, with a view that reads and without one. */
TEST(threads_that_write_parts_of_a_tensor_at_once_are_both_served)
{
    stw_runtime *runtime = machine_open_as(machine_touched());
    stw_tensor *tensors[TENSORS];
    float *addresses[TENSORS];
    make_all(runtime, tensors, addresses);
    for (int round = 1; round <= 60; ++round) {
        pthread_barrier_t together;
        struct half halves[2];
        pthread_t threads[2];
        stw_view view;
        ok(stw_evict(runtime, &tensors[0], 1, STW_TIER_DEVICE, 0, 0));
        if (round % 2) view = view_get(runtime, tensors[0], STW_READ);
        assert_int_equal(pthread_barrier_init(&together, NULL, 2), 0);
        for (int i = 0; i < 2; ++i) {
            halves[i].begin = addresses[0] + i * ELEMENTS / 2, halves[i].together = &together;
            assert_int_equal(pthread_create(&threads[i], NULL, write_half, &halves[i]), 0);
        }
        for (int i = 0; i < 2; ++i) assert_int_equal(pthread_join(threads[i], NULL), 0);
        pthread_barrier_destroy(&together);
        if (round % 2) view_put(&view);
    }
    for (int i = 0; i < ELEMENTS; i += 256) assert_float(addresses[0][i], (float)(i + 60));
    machine_close(runtime);
}

TEST(after_a_step_the_updated_bytes_are_read)
{
    stw_runtime *runtime = machine_open_as(machine_touched());
    stw_tensor *parameters[3], *gradients[3];
    float *addresses[3];
    stw_optimizer_options options = STW_OPTIMIZER_OPTIONS_INIT;
    stw_optimizer *optimizer;
    stw_hyper hyper = STW_HYPER_INIT;
    char name[16];
    options.algorithm = STW_OPTIMIZER_SGD;
    ok(stw_optimizer_create(runtime, &options, &optimizer));
    hyper.lr = 1.0;
    hyper.weight_decay = 0.0;
    ok(stw_optimizer_set_hyper(optimizer, 0, &hyper));
    for (int i = 0; i < 3; ++i) {
        snprintf(name, sizeof name, "w%d", i);
        parameters[i] = tensor_f32(runtime, name, ELEMENTS);
        ok(stw_tensor_fill(parameters[i], 100.0, NULL));
        snprintf(name, sizeof name, "g%d", i);
        gradients[i] = tensor_f32(runtime, name, ELEMENTS);
        addresses[i] = touched_address(parameters[i]);
        optimizer_add(optimizer, parameters[i], gradients[i]);
    }
    for (int step = 1; step <= 20; ++step) {
        for (int i = 0; i < 3; ++i) {
            assert_float(addresses[i][ELEMENTS - 1], 101.0F - (float)step);
            ok(stw_tensor_fill(gradients[i], 1.0, NULL));
        }
        ok(stw_optimizer_step(optimizer, NULL, NULL));
        for (int i = 2; i >= 0; --i) {
            assert_float(addresses[i][0], 100.0F - (float)step);
            assert_float(addresses[i][ELEMENTS - 1], 100.0F - (float)step);
        }
    }
    ok(stw_runtime_drain(runtime, 0));
    ok(stw_optimizer_destroy(optimizer));
    machine_close(runtime);
}

typedef struct reader {
    float **addresses;
    unsigned seed;
    int wrong;
} reader;

static void *read_some(void *argument)
{
    reader *mine = argument;
    for (int i = 0; i < 300; ++i) {
        const unsigned at = (mine->seed = mine->seed * 1103515245 + 12345) / 65536 % TENSORS;
        mine->wrong += !has_sequence(mine->addresses[at], (float)(at * 1000));
    }
    return NULL;
}

TEST(threads_that_read_see_their_own_bytes_while_others_come_and_go)
{
    stw_runtime *runtime = machine_open_as(machine_touched());
    stw_tensor *tensors[TENSORS];
    float *addresses[TENSORS];
    pthread_t threads[4];
    reader readers[4];
    make_all(runtime, tensors, addresses);
    for (int i = 0; i < 4; ++i) {
        const reader one = {addresses, (unsigned)i + 1, 0};
        readers[i] = one;
        assert_int_equal(pthread_create(&threads[i], NULL, read_some, &readers[i]), 0);
    }
    for (int i = 0; i < 200; ++i) {
        stw_view view = view_get(runtime, tensors[i % TENSORS], STW_READ);
        assert_true(has_sequence(view.pointer, (float)(i % TENSORS * 1000)));
        view_put(&view);
    }
    for (int i = 0; i < 4; ++i) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_int_equal(readers[i].wrong, 0);
    }
    machine_close(runtime);
}

static sigjmp_buf jump;
static void *volatile jumped_at;

static void jump_back(int number, siginfo_t *info, void *context)
{
    (void)number, (void)context;
    jumped_at = info->si_addr;
    siglongjmp(jump, 1);
}

static struct sigaction handle(void (*handler)(int, siginfo_t *, void *))
{
    struct sigaction mine, before;
    memset(&mine, 0, sizeof mine);
    mine.sa_sigaction = handler;
    mine.sa_flags = SA_SIGINFO;
    assert_int_equal(sigaction(SIGSEGV, &mine, &before), 0);
    return before;
}

/* True where the touch came to the handler. */
static int jumps(volatile float *address, float *value)
{
    jumped_at = NULL;
    if (sigsetjmp(jump, 1) != 0) return 1;
    *value = *address;
    return 0;
}

TEST(faults_elsewhere_go_to_the_handler_that_was_there)
{
    const struct sigaction before = handle(jump_back);
    stw_runtime *runtime = machine_open_as(machine_touched());
    stw_tensor *tensors[TENSORS];
    float *addresses[TENSORS], value;
    struct sigaction now;
    void *page = mmap(NULL, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    make_all(runtime, tensors, addresses);
    assert_true(jumps(page, &value));
    assert_ptr_equal(jumped_at, page);
    assert_false(jumps(addresses[0], &value));
    assert_float(value, 0.0F);
    assert_true(jumps(page, &value));
    machine_close(runtime);
    assert_int_equal(sigaction(SIGSEGV, NULL, &now), 0);
    assert_ptr_equal(now.sa_sigaction, jump_back);
    munmap(page, 4096);
    assert_int_equal(sigaction(SIGSEGV, &before, NULL), 0);
}

/* The first read is of the file itself; a read that fails is tried again, and again. */
#define EIO_FROM_THE_SECOND                                                                        \
    "at=read:1:eio;at=read:2:eio;at=read:3:eio;at=read:4:eio;at=read:5:eio;at=read:6:eio;"         \
    "at=read:7:eio;at=read:8:eio;at=read:9:eio;at=read:10:eio;at=read:11:eio;at=read:12:eio"

static machine machine_faulty(void)
{
    machine wanted = machine_touched();
    wanted.nvme_driver = "fault";
    wanted.nvme_options = "inner=posix;inner.allow_tmpfs=1;" EIO_FROM_THE_SECOND;
    wanted.errors_expected = 1;
    return wanted;
}

TEST(what_cannot_be_fetched_goes_to_the_handler_and_has_a_name)
{
    const struct sigaction before = handle(jump_back);
    stw_runtime *runtime = machine_open_as(machine_faulty());
    stw_tensor *tensors[TENSORS];
    float *addresses[TENSORS], value;
    stw_error_info info = {.struct_size = sizeof info};
    make_all(runtime, tensors, addresses);
    ok(stw_evict(runtime, &tensors[0], 1, STW_TIER_DEVICE, 0, 0));
    assert_true(jumps(addresses[0] + 20, &value));
    assert_ptr_equal(jumped_at, addresses[0] + 20);
    assert_int_equal(stw_runtime_error(runtime, &info), STW_ERROR_IO);
    assert_string_equal(info.tensor, "t0");
    ok(stw_runtime_clear_error(runtime));
    stw_tensor *empty = tensor_f32(runtime, "nothing", 16);
    assert_true(jumps(touched_address(empty), &value));
    assert_int_equal(stw_runtime_error(runtime, &info), STW_ERROR_EMPTY);
    ok(stw_runtime_clear_error(runtime));
    ok(stw_runtime_close(runtime, 0, 0));
    log_reset();
    assert_int_equal(sigaction(SIGSEGV, &before, NULL), 0);
}

/* Of a tensor whose address nobody may have, a view that was released. */
TEST(a_released_view_of_a_tensor_without_an_address_is_not_fetched)
{
    const struct sigaction before = handle(jump_back);
    machine wanted = machine_touched();
    stw_error_info info = {.struct_size = sizeof info};
    float value;
    wanted.errors_expected = 1;
    stw_runtime *runtime = machine_open(&wanted);
    stw_tensor *plain = tensor_without_address(runtime, "plain", 0.0F);
    stw_view view = view_get(runtime, plain, STW_READ);
    float *released = view.pointer;
    view_put(&view);
    ok(stw_evict(runtime, &plain, 1, STW_TIER_DEVICE, 0, 0));
    /* Its memory is another tensor's. */
    tensor_fill_sequence(tensor_f32(runtime, "next", 6 * ELEMENTS), 6 * ELEMENTS, 0.0F);
    assert_true(jumps(released, &value));
    assert_int_equal(stw_runtime_error(runtime, &info), STW_ERROR_INVALID);
    assert_string_equal(info.tensor, "plain");
    ok(stw_runtime_clear_error(runtime));
    ok(stw_runtime_close(runtime, 0, 0));
    log_reset();
    assert_int_equal(sigaction(SIGSEGV, &before, NULL), 0);
}

/* Runs in a child, whose last words come back. */
static int last_words(void (*body)(void), char *words, size_t capacity)
{
    int ends[2], status = 0;
    size_t length = 0;
    ssize_t n;
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        signal(SIGSEGV, SIG_DFL);
        dup2(ends[1], STDERR_FILENO);
        close(ends[0]), close(ends[1]);
        body();
        _exit(0);
    }
    assert_true(child > 0);
    close(ends[1]);
    while ((n = read(ends[0], words + length, capacity - 1 - length)) > 0) length += (size_t)n;
    words[length] = '\0';
    close(ends[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

static void touch_nothing(void)
{
    machine wanted = machine_touched();
    stw_runtime *runtime;
    if (machine_try_open(&wanted, &runtime) != STW_OK) _exit(1);
    float value = *(volatile float *)touched_address(tensor_f32(runtime, "never-written", 16));
    _exit(value == 0.0F ? 2 : 3);
}

TEST(without_a_handler_the_last_words_have_the_name)
{
    char words[1024];
    const int status = last_words(touch_nothing, words, sizeof words);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    assert_non_null(strstr(words, "'never-written'"));
    assert_non_null(strstr(words, "without a view"));
}

#if defined(__x86_64__)
/* One instruction that reads one tensor and writes another; the tier holds either. */
static void copy_by_one_instruction(void)
{
    machine wanted = machine_touched();
    stw_runtime *runtime;
    const uint64_t elements = (wanted.device_blocks - 3) * 16384;
    if (machine_try_open(&wanted, &runtime) != STW_OK) _exit(1);
    stw_tensor *tensors[2] = {tensor_f32(runtime, "from", elements),
                              tensor_f32(runtime, "to", elements)};
    for (int i = 0; i < 2; ++i) ok(stw_tensor_fill(tensors[i], i, NULL));
    const void *from = touched_address(tensors[0]);
    void *to = touched_address(tensors[1]);
    size_t bytes = 64;
    __asm__ volatile("rep movsb" : "+S"(from), "+D"(to), "+c"(bytes) : : "memory");
    _exit(2);
}

TEST(an_instruction_that_needs_more_than_the_tier_ends_with_a_name)
{
    char words[1024];
    const int status = last_words(copy_by_one_instruction, words, sizeof words);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    assert_non_null(strstr(words, "the budget of"));
    assert_non_null(strstr(words, "holds either, not both"));
}
#endif

/* The thread that gives the verdict reads what is there, and writes nothing. */
static void touch_before_the_verdict(void)
{
    machine wanted = machine_touched();
    stw_runtime *runtime;
    stw_update_options options = STW_UPDATE_OPTIONS_INIT;
    wanted.device_blocks = 24;
    if (machine_try_open(&wanted, &runtime) != STW_OK) _exit(1);
    stw_optimizer *optimizer = optimizer_make(runtime, STW_OPTIMIZER_SGD);
    stw_tensor *parameter = tensor_f32(runtime, "weights", ELEMENTS);
    stw_tensor *gradient = tensor_f32(runtime, "their-gradient", ELEMENTS);
    hyper_usual(optimizer);
    optimizer_add(optimizer, parameter, gradient);
    ok(stw_tensor_fill(parameter, 1.0, NULL));
    for (int step = 0; step < 2; ++step) { /* the first gives the states contents */
        ok(stw_tensor_fill(gradient, 1.0, NULL));
        options.flags = step == 0 ? STW_UPDATE_WAIT : STW_UPDATE_SPECULATE;
        ok(stw_optimizer_step(optimizer, &options, NULL));
    }
    const volatile float *values = touched_address(parameter);
    /* As they are, updated before the verdict or not. */
    if (!(values[0] < 1.0F && values[ELEMENTS - 1] == values[0])) _exit(2);
    volatile float *const theirs = touched_address(gradient);
    if (theirs[0] != 1.0F) _exit(3);
    theirs[0] = 2.0F;
    _exit(4);
}

TEST(what_was_speculated_is_touched_before_its_verdict)
{
    char words[1024];
    const uint64_t begin = clock_ns();
    const int status = last_words(touch_before_the_verdict, words, sizeof words);
    if (WIFEXITED(status)) fail_msg("exit %d: %s", WEXITSTATUS(status), words);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    if (!strstr(words, "'their-gradient'") || !strstr(words, "STW_UPDATE_REJECT"))
        fail_msg("%s", words);
    assert_true(clock_ns() - begin < 100 * SECOND_NS); /* not the timeout of 300 s */
}

static float *parents;
static void touch_the_parents(void)
{
    _exit(*(volatile float *)parents == 0.0F ? 2 : 3);
}

TEST(a_forked_child_is_not_served)
{
    stw_runtime *runtime = machine_open_as(machine_touched());
    stw_tensor *tensors[TENSORS];
    float *addresses[TENSORS];
    char words[1024];
    make_all(runtime, tensors, addresses);
    for (int i = 0; i < TENSORS; ++i) assert_float(addresses[i][1], (float)(i * 1000 + 1));
    parents = addresses[0];
    int status = last_words(touch_the_parents, words, sizeof words);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
    machine_close(runtime);
}

TEST(it_is_refused_where_addresses_cannot_be_guarded)
{
    machine wanted = machine_touched();
    stw_runtime *runtime;
    wanted.device_driver = "cpu-discrete", wanted.host_blocks = 16;
    fails(machine_try_open(&wanted, &runtime), STW_ERROR_UNSUPPORTED, "STW_RUNTIME_FAULT_IN");
    wanted.device_blocks = 0;
    fails(machine_try_open(&wanted, &runtime), STW_ERROR_UNSUPPORTED, "driver cpu");
}

RUN_TESTS("touches", NULL, NULL)
