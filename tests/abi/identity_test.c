/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The same training on machines that differ in tiers, block size and threads ends in the same bits:
 * parameters, masters, moments, averages, norms. The first machine holds everything on one device;
 * on the others nothing large fits. Gradients span 24 binary orders, so a sum in another order
 * shows.
 */
#include "support.h"

enum { STEPS = 4, PARAMETERS_MAX = 6, STATES_MAX = 4, CONTRIBUTIONS = 2 };

typedef struct parameter {
    uint32_t dtype;
    uint32_t gradient_dtype;
    uint64_t elements;
} parameter;

typedef struct course {
    const parameter *parameters;
    int count;
    double gradient_scale;
    double clip_norm;
    uint32_t state_dtype;
} course;

/* Some that share a block; one larger than two of the small blocks; one larger than any near tier
 * here but the first machine's. */
static const parameter whole_ones[] = {
    {STW_F32, STW_F32, 100},   {STW_F32, STW_F32, 777},     {STW_F32, STW_F32, 5001},
    {STW_F32, STW_F32, 40077}, {STW_F32, STW_F32, 2200013},
};
static const parameter half_ones[] = {
    {STW_F16, STW_F16, 333},      {STW_BF16, STW_BF16, 1001}, {STW_F16, STW_F32, 70001},
    {STW_BF16, STW_BF16, 300013}, {STW_F32, STW_F16, 5001},
};
static const course courses[] = {
    {whole_ones, (int)COUNT(whole_ones), 0, 1.0, STW_F32},
    {half_ones, (int)COUNT(half_ones), 1.0 / 1024, 0.5, STW_F32},
    {half_ones, (int)COUNT(half_ones), 1.0 / 1024, 0.5, STW_BF16},
};

/* What a machine made of a course. */
typedef struct outcome {
    double norms[STEPS];
    double coefficients[STEPS];
    void *bytes[PARAMETERS_MAX][1 + STATES_MAX]; /* the parameter and its states */
    uint64_t sizes[PARAMETERS_MAX][1 + STATES_MAX];
} outcome;

typedef struct trainee {
    stw_runtime *runtime;
    stw_optimizer *optimizer;
    const course *course;
    stw_tensor *parameters[PARAMETERS_MAX];
    stw_tensor *gradients[PARAMETERS_MAX];
    uint64_t piece_bytes; /* of a view of what is large */
    float *scratch;
} trainee;

static const char *const state_names[STATES_MAX] = {"exp_avg", "exp_avg_sq", "master", "ema"};

/* A function of its arguments alone, so that pieces of any size are filled alike. */
static uint64_t mix(uint64_t at)
{
    at += UINT64_C(0x9e3779b97f4a7c15);
    at = (at ^ (at >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    at = (at ^ (at >> 27)) * UINT64_C(0x94d049bb133111eb);
    return at ^ (at >> 31);
}

/* A mantissa of either sign times a power of two from 2^-16 to 2^7. */
static float noise(int which, int step, int contribution, uint64_t element)
{
    const uint64_t bits = mix(((uint64_t)which << 56) ^ ((uint64_t)step << 48) ^
                              ((uint64_t)contribution << 40) ^ element);
    const float mantissa = (float)(int32_t)(bits & 0xffffffff) * 0x1p-31F;
    const union {
        uint32_t bits;
        float value;
    } scale = {(uint32_t)(127 - 16 + (bits >> 32) % 24) << 23};
    return mantissa * scale.value;
}

/* ------------------------------------------------------------------------------- one machine -- */

static uint64_t element_bytes(uint32_t dtype)
{
    return stw_dtype_bits(dtype) / 8;
}

static void begin_parameter(trainee *here, int which)
{
    const parameter *of = &here->course->parameters[which];
    stw_optimizer_entry entry = STW_OPTIMIZER_ENTRY_INIT;
    char name[32];
    stw_tensor_spec spec = spec_f32(name, of->elements);
    snprintf(name, sizeof name, "w%d", which);
    spec.dtype = of->dtype;
    here->parameters[which] = tensor_make(here->runtime, &spec);
    snprintf(name, sizeof name, "g%d", which);
    spec.dtype = of->gradient_dtype, spec.role = STW_ROLE_GRAD;
    here->gradients[which] = tensor_make(here->runtime, &spec);
    for (uint64_t i = 0; i < of->elements; ++i) here->scratch[i] = noise(which, 0, 0, i);
    stw_copy_options as_f32 = {.struct_size = sizeof as_f32, .dtype = STW_F32};
    ok(stw_tensor_write(here->parameters[which], here->scratch, &as_f32));
    entry.parameter = here->parameters[which], entry.gradient = here->gradients[which];
    ok(stw_optimizer_add(here->optimizer, &entry, 1));
}

static trainee trainee_open(const machine *wanted, const course *course)
{
    stw_optimizer_options options = STW_OPTIMIZER_OPTIONS_INIT;
    stw_hyper hyper = STW_HYPER_INIT;
    uint64_t most = 0;
    trainee here;
    memset(&here, 0, sizeof here);
    for (int i = 0; i < course->count; ++i)
        if (course->parameters[i].elements > most) most = course->parameters[i].elements;
    here.course = course;
    here.runtime = machine_open(wanted);
    here.piece_bytes = wanted->block_bytes + wanted->block_bytes / 2;
    here.scratch = malloc(most * sizeof(float));
    assert_non_null(here.scratch);
    options.algorithm = STW_OPTIMIZER_ADAMW, options.ema_decay = 0.9;
    options.state_dtype = course->state_dtype;
    ok(stw_optimizer_create(here.runtime, &options, &here.optimizer));
    hyper.lr = 0.02, hyper.weight_decay = 0.1;
    ok(stw_optimizer_set_hyper(here.optimizer, 0, &hyper));
    for (int i = 0; i < course->count; ++i) begin_parameter(&here, i);
    return here;
}

static void trainee_close(trainee *here)
{
    ok(stw_optimizer_destroy(here->optimizer));
    free(here->scratch);
    machine_close(here->runtime);
}

/* The gradient follows what is read, range by range, of the parameter. */
static void forward(trainee *here, int which, int step, int contribution)
{
    const parameter *of = &here->course->parameters[which];
    const uint64_t piece = here->piece_bytes / element_bytes(of->dtype);
    const float scale = here->course->gradient_scale > 0 ? 128 : 1; /* of the loss */
    for (uint64_t begin = 0; begin < of->elements; begin += piece) {
        const uint64_t count = of->elements - begin < piece ? of->elements - begin : piece;
        stw_fetch_request request = request_range(here->parameters[which], STW_READ, begin, count);
        stw_view view;
        ok(stw_fetch(here->runtime, NULL, &request, 1, &view));
        for (uint64_t i = 0; i < count; ++i) {
            /* Of 16 bits the sign and exponent: no conversion of this test's own. */
            const float seen = of->dtype == STW_F32
                                   ? ((const float *)view.pointer)[i]
                                   : (float)(((const uint16_t *)view.pointer)[i] >> 10);
            here->scratch[begin + i] =
                scale * (noise(which, step, contribution, begin + i) + 0.015625F * seen);
        }
        view_put(&view);
    }
}

static int fits_a_view(const trainee *here, int which)
{
    const parameter *of = &here->course->parameters[which];
    return of->elements * sizeof(float) <= BLOCK && of->gradient_dtype == STW_F32;
}

/* Into a view where all of it has room, else from memory of this program. */
static void backward(trainee *here, int which, int step)
{
    stw_reduce_options from = {.struct_size = sizeof from, .dtype = STW_F32};
    for (int contribution = 0; contribution < CONTRIBUTIONS; ++contribution) {
        forward(here, which, step, contribution);
        if (fits_a_view(here, which)) {
            stw_view view = view_get(here->runtime, here->gradients[which], STW_REDUCE);
            for (uint64_t i = 0; i < view.element_count; ++i)
                ((float *)view.pointer)[i] += here->scratch[i];
            view_put(&view);
        } else {
            ok(stw_reduce(here->gradients[which], here->scratch, &from));
        }
    }
}

static void keep(outcome *made, int which, int slot, stw_tensor *tensor)
{
    const stw_tensor_info info = info_of(tensor);
    made->sizes[which][slot] = info.whole_bytes;
    made->bytes[which][slot] = malloc(info.whole_bytes);
    assert_non_null(made->bytes[which][slot]);
    ok(stw_tensor_read(tensor, made->bytes[which][slot], NULL));
}

static uint64_t bytes_on_links(stw_runtime *runtime)
{
    uint64_t bytes = 0;
    for (uint32_t link = STW_LINK_NVME_TO_HOST; link <= STW_LINK_DEVICE_TO_NVME; ++link) {
        stw_link_stats stats = link_stats(runtime, link);
        bytes += stats.bytes;
    }
    return bytes;
}

static void train(const machine *wanted, const course *course, outcome *made)
{
    trainee here = trainee_open(wanted, course);
    stw_update_options update = STW_UPDATE_OPTIONS_INIT;
    stw_tensor *state = NULL;
    memset(made, 0, sizeof *made);
    update.gradient_scale = course->gradient_scale, update.clip_norm = course->clip_norm;
    for (int step = 1; step <= STEPS; ++step) {
        stw_update_result result = STW_UPDATE_RESULT_INIT;
        for (int i = 0; i < course->count; ++i) backward(&here, i, step);
        ok(stw_optimizer_step(here.optimizer, &update, &result));
        assert_int_equal(result.updated, course->count);
        assert_true(result.norm > course->clip_norm && result.clip_coefficient < 1);
        made->norms[step - 1] = result.norm;
        made->coefficients[step - 1] = result.clip_coefficient;
    }
    ok(stw_runtime_drain(here.runtime, 0));
    for (int i = 0; i < course->count; ++i) {
        keep(made, i, 0, here.parameters[i]);
        for (int j = 0; j < STATES_MAX; ++j) {
            if (j == 2 && course->parameters[i].dtype == STW_F32) continue;
            ok(stw_optimizer_state(here.optimizer, here.parameters[i], state_names[j], &state));
            keep(made, i, 1 + j, state);
        }
    }
    /* Beside the first machine all of it went through the tiers. */
    if (wanted->nvme_blocks > 0) assert_true(bytes_on_links(here.runtime) > 0);
    trainee_close(&here);
}

static void forget(outcome *made)
{
    for (int i = 0; i < PARAMETERS_MAX; ++i)
        for (int j = 0; j < 1 + STATES_MAX; ++j) free(made->bytes[i][j]);
}

/* ------------------------------------------------------------------------------ all machines -- */

enum { KINDS = 4 };

static machine machine_of(int kind, uint32_t block_bytes, uint32_t threads)
{
    machine made;
    memset(&made, 0, sizeof made);
    made.block_bytes = block_bytes, made.thread_count = threads;
    made.device_blocks = kind == 1 ? 0 : 4;
    made.host_blocks = kind == 3 ? 20 : 12; /* 8 are the rings of a device across a bus */
    made.nvme_blocks = (uint32_t)(96 * MIB / block_bytes);
    if (kind == 3) made.device_driver = "cpu-discrete";
    if (kind > 0) return made;
    made.device_blocks = (uint32_t)(80 * MIB / block_bytes);
    made.host_blocks = made.nvme_blocks = 0;
    return made;
}

static const char *const kinds[KINDS] = {"device alone", "host and nvme", "three tiers",
                                         "device across a bus"};

static void expect_same(const outcome *first, const outcome *other, const machine *wanted, int kind)
{
    if (memcmp(first->norms, other->norms, sizeof first->norms) != 0 ||
        memcmp(first->coefficients, other->coefficients, sizeof first->coefficients) != 0)
        fail_msg("%s, blocks of %u, %u threads: another norm", kinds[kind], wanted->block_bytes,
                 wanted->thread_count);
    for (int i = 0; i < PARAMETERS_MAX; ++i) {
        for (int j = 0; j < 1 + STATES_MAX; ++j) {
            assert_int_equal(first->sizes[i][j], other->sizes[i][j]);
            if (first->sizes[i][j] == 0) continue;
            if (memcmp(first->bytes[i][j], other->bytes[i][j], first->sizes[i][j]) == 0) continue;
            fail_msg("%s, blocks of %u, %u threads: another %s of parameter %d", kinds[kind],
                     wanted->block_bytes, wanted->thread_count,
                     j == 0 ? "value" : state_names[j - 1], i);
        }
    }
}

/* Nothing that is compared is what it was before the first step. */
static void expect_changed(const outcome *made, const course *course)
{
    for (int i = 0; i < course->count; ++i) {
        const parameter *of = &course->parameters[i];
        const float *master = made->bytes[i][of->dtype == STW_F32 ? 0 : 3];
        assert_true(master[of->elements - 1] != noise(i, 0, 0, of->elements - 1));
        for (int j = 1; j < 3; ++j) {
            const unsigned char *bytes = made->bytes[i][j];
            assert_true(bytes[made->sizes[i][j] - 1] != 0); /* the exponent's, of the last one */
        }
        assert_true(((const float *)made->bytes[i][4])[of->elements - 1] !=
                    master[of->elements - 1]);
    }
}

static void same_bits_everywhere(const course *course)
{
    const uint32_t blocks[] = {STW_BLOCK_64K, STW_BLOCK_512K, STW_BLOCK_2M}, threads[] = {1, 4};
    outcome first, other;
    int kind, compared = 0;
    for (size_t i = 0; i < COUNT(blocks); ++i) {
        for (size_t j = 0; j < COUNT(threads); ++j) {
            for (kind = 0; kind < KINDS; ++kind) {
                const machine wanted = machine_of(kind, blocks[i], threads[j]);
                /* Large blocks cost time and differ least. */
                if (blocks[i] == STW_BLOCK_2M && (kind < 2 || threads[j] == 1)) continue;
                train(&wanted, course, compared == 0 ? &first : &other);
                if (compared++ == 0) {
                    expect_changed(&first, course);
                    continue;
                }
                expect_same(&first, &other, &wanted, kind);
                forget(&other);
            }
        }
    }
    assert_int_equal(compared, 2 * 2 * KINDS + 2);
    forget(&first);
}

TEST(training_has_the_same_bits_on_every_machine)
{
    same_bits_everywhere(&courses[0]);
}

TEST(halves_with_masters_and_a_loss_scale_have_the_same_bits_on_every_machine)
{
    same_bits_everywhere(&courses[1]);
}

TEST(moments_in_bf16_have_the_same_bits_on_every_machine)
{
    same_bits_everywhere(&courses[2]);
}

/* Else the comparison would prove little. */
TEST(the_order_of_summation_matters_for_these_gradients)
{
    const uint64_t elements = whole_ones[COUNT(whole_ones) - 1].elements;
    double up = 0, down = 0;
    for (uint64_t i = 0; i < elements; ++i) {
        const double low = (double)noise(4, 1, 0, i);
        const double high = (double)noise(4, 1, 0, elements - 1 - i);
        up += low * low;
        down += high * high;
    }
    assert_true(up > 0);
    assert_true(up != down);
}

RUN_TESTS("identity", NULL, NULL)
