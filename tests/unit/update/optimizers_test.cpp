// SPDX-License-Identifier: Apache-2.0
// The optimizers against their published formulas in fp64, with PyTorch's reading of them (decay,
// eps outside the root, undampened first momentum), for all dtypes over several steps.
#include "tests/unit/update/kernels_support.h"

namespace stepwell::kernels::test {
namespace {

struct Case {
    const char *name;
    Algorithm algorithm;
    stw_hyper hyper;
};

stw_hyper hyper(double lr, double decay, double eps = 1e-8)
{
    stw_hyper h = STW_HYPER_INIT;
    h.lr = lr;
    h.weight_decay = decay;
    h.eps = eps;
    return h;
}

stw_hyper with_betas(stw_hyper h, double beta1, double beta2)
{
    h.beta1 = beta1;
    h.beta2 = beta2;
    return h;
}

stw_hyper with_momentum(stw_hyper h, double momentum, double dampening, uint32_t flags)
{
    h.momentum = momentum;
    h.dampening = dampening;
    h.flags = flags;
    return h;
}

stw_hyper with_lr_decay(stw_hyper h, double lr_decay)
{
    h.lr_decay = lr_decay;
    return h;
}

stw_hyper with_flags(stw_hyper h, uint32_t flags)
{
    h.flags = flags;
    return h;
}

const std::vector<Case> &cases()
{
    static const std::vector<Case> kCases = {
        {"adamw", Algorithm::kAdamW, hyper(1e-3, 0.1)},
        {"adamw without decay, large eps", Algorithm::kAdamW, hyper(1e-2, 0.0, 0.05)},
        {"adamw, unusual betas", Algorithm::kAdamW, with_betas(hyper(0.1, 0.3), 0.4, 0.95)},
        {"adamw, no first moment", Algorithm::kAdamW, with_betas(hyper(1e-3, 0.0), 0.0, 0.9)},
        {"adamw maximizing", Algorithm::kAdamW, with_flags(hyper(1e-2, 0.2), STW_HYPER_MAXIMIZE)},
        {"adam", Algorithm::kAdam, hyper(1e-3, 0.0)},
        {"adam with decay", Algorithm::kAdam, hyper(1e-2, 0.3)},
        {"adam maximizing", Algorithm::kAdam, with_flags(hyper(1e-2, 0.3), STW_HYPER_MAXIMIZE)},
        {"sgd", Algorithm::kSgd, hyper(0.1, 0.0)},
        {"sgd with decay", Algorithm::kSgd, hyper(0.1, 0.2)},
        {"sgd, momentum", Algorithm::kSgd, with_momentum(hyper(0.1, 0.0), 0.9, 0.0, 0)},
        {"sgd, dampened", Algorithm::kSgd, with_momentum(hyper(0.1, 0.1), 0.9, 0.4, 0)},
        {"sgd, nesterov", Algorithm::kSgd,
         with_momentum(hyper(0.1, 0.1), 0.8, 0.0, STW_HYPER_NESTEROV)},
        {"sgd, nesterov, maximizing", Algorithm::kSgd,
         with_momentum(hyper(0.1, 0.1), 0.8, 0.0, STW_HYPER_NESTEROV | STW_HYPER_MAXIMIZE)},
        {"adagrad", Algorithm::kAdagrad, hyper(0.1, 0.0)},
        {"adagrad, decaying rate and weights", Algorithm::kAdagrad,
         with_lr_decay(hyper(0.1, 0.2), 0.3)},
        {"adagrad maximizing", Algorithm::kAdagrad,
         with_flags(hyper(0.1, 0.0), STW_HYPER_MAXIMIZE)},
        {"lion", Algorithm::kLion, with_betas(hyper(1e-2, 0.0), 0.9, 0.99)},
        {"lion with decay", Algorithm::kLion, with_betas(hyper(1e-2, 0.3), 0.8, 0.95)},
    };
    return kCases;
}

struct Element {
    Tracked parameter;
    Tracked states[2];
};

void reference_adam(const Case &c, uint64_t step, Tracked gradient, Element &e)
{
    const stw_hyper &h = c.hyper;
    if (c.algorithm == Algorithm::kAdam && h.weight_decay != 0.0) {
        gradient = gradient + Tracked::constant(h.weight_decay) * e.parameter;
    } else if (h.weight_decay != 0.0) {
        e.parameter = e.parameter * Tracked::constant(1.0 - h.lr * h.weight_decay);
    }
    const auto t = static_cast<double>(step);
    const Tracked rate = Tracked::constant(-h.lr / (1.0 - std::pow(h.beta1, t)));
    const Tracked correction2 = Tracked::constant(std::sqrt(1.0 - std::pow(h.beta2, t)));
    e.states[0] =
        Tracked::constant(h.beta1) * e.states[0] + Tracked::constant(1.0 - h.beta1) * gradient;
    e.states[1] = Tracked::constant(h.beta2) * e.states[1] +
                  Tracked::constant(1.0 - h.beta2) * gradient * gradient;
    const Tracked denominator = square_root(e.states[1]) / correction2 + Tracked::constant(h.eps);
    e.parameter = e.parameter + rate * e.states[0] / denominator;
}

void reference_sgd(const Case &c, uint64_t step, Tracked gradient, Element &e)
{
    const stw_hyper &h = c.hyper;
    if (h.weight_decay != 0.0) {
        gradient = gradient + Tracked::constant(h.weight_decay) * e.parameter;
    }
    if (h.momentum != 0.0) {
        const Tracked momentum = Tracked::constant(h.momentum);
        e.states[0] =
            step == 1 ? gradient
                      : momentum * e.states[0] + Tracked::constant(1.0 - h.dampening) * gradient;
        const bool nesterov = (h.flags & STW_HYPER_NESTEROV) != 0;
        gradient = nesterov ? gradient + momentum * e.states[0] : e.states[0];
    }
    e.parameter = e.parameter + Tracked::constant(-h.lr) * gradient;
}

void reference_adagrad(const Case &c, uint64_t step, Tracked gradient, Element &e)
{
    const stw_hyper &h = c.hyper;
    if (h.weight_decay != 0.0) {
        gradient = gradient + Tracked::constant(h.weight_decay) * e.parameter;
    }
    e.states[0] = e.states[0] + gradient * gradient;
    const double rate = h.lr / (1.0 + (static_cast<double>(step) - 1.0) * h.lr_decay);
    e.parameter = e.parameter + Tracked::constant(-rate) * gradient /
                                    (square_root(e.states[0]) + Tracked::constant(h.eps));
}

// Where the sign is not certain, either is right.
void reference_lion(const Case &c, const Tracked &gradient, Element &e)
{
    const stw_hyper &h = c.hyper;
    if (h.weight_decay != 0.0) {
        e.parameter = e.parameter * Tracked::constant(1.0 - h.lr * h.weight_decay);
    }
    const Tracked mean =
        Tracked::constant(h.beta1) * e.states[0] + Tracked::constant(1.0 - h.beta1) * gradient;
    e.states[0] =
        Tracked::constant(h.beta2) * e.states[0] + Tracked::constant(1.0 - h.beta2) * gradient;
    Tracked move = Tracked::constant(mean.value > 0 ? -h.lr : h.lr);
    if (std::abs(mean.value) <= mean.error) move.error += 2 * h.lr;
    e.parameter = e.parameter + move;
}

void reference(const Case &c, uint64_t step, double scale, double raw_gradient, Element &e)
{
    const bool maximize = (c.hyper.flags & STW_HYPER_MAXIMIZE) != 0;
    const Tracked gradient =
        Tracked::exact(maximize ? -raw_gradient : raw_gradient) * Tracked::constant(scale);
    if (c.algorithm == Algorithm::kSgd) return reference_sgd(c, step, gradient, e);
    if (c.algorithm == Algorithm::kAdagrad) return reference_adagrad(c, step, gradient, e);
    if (c.algorithm == Algorithm::kLion) return reference_lion(c, gradient, e);
    reference_adam(c, step, gradient, e);
}

// Bounds must be worth something: a part in a hundred thousand, but for the few elements where
// gradient and decay happen to cancel and Adam divides one rounding error by another.
struct Bounds {
    uint64_t all = 0;
    uint64_t loose = 0;

    void check(double actual, const Tracked &expected, const char *what, uint64_t element)
    {
        ++all;
        if (expected.error > 1e-5 * std::max(0.1, std::abs(expected.value))) ++loose;
        ASSERT_LE(std::abs(actual - expected.value), expected.error)
            << what << " of element " << element << ": " << actual << " against " << expected.value;
    }
};

class Optimizers : public KernelTest {
protected:
    // Six steps with other gradients each; the reference follows with its own numbers throughout.
    static void follow(const Case &c, uint32_t values_dtype, uint32_t gradient_dtype);
};

void Optimizers::follow(const Case &c, uint32_t values_dtype, uint32_t gradient_dtype)
{
    constexpr uint64_t kCount = 533;
    constexpr double kScale = 0.37;
    Random random(7);
    Array master(STW_F32, kCount);
    Array values(values_dtype, kCount);
    Array gradient(gradient_dtype, kCount);
    Array states[2] = {Array(STW_F32, kCount), Array(STW_F32, kCount)};
    master.randomize(random, 1.0);
    std::vector<Element> expected(kCount);
    for (uint64_t i = 0; i < kCount; ++i) {
        expected[i].parameter = Tracked::exact(master.at(i));
        for (Array &state : states) state.set(i, 0.0);
    }
    const bool separate = values_dtype != STW_F32;
    Bounds bounds;
    for (uint64_t step = 1; step <= 6; ++step) {
        gradient.randomize(random, 2.0);
        const Chunk chunk = {separate ? values.data() : master.data(),
                             values_dtype,
                             gradient_dtype,
                             master.floats(),
                             gradient.data(),
                             {states[0].floats(), states[1].floats()},
                             kCount};
        update_chunk(c.algorithm, make_coefficients(c.algorithm, c.hyper, step, kScale), chunk);
        for (uint64_t i = 0; i < kCount; ++i) {
            reference(c, step, kScale, gradient.at(i), expected[i]);
            bounds.check(master.at(i), expected[i].parameter, "parameter", i);
            for (uint32_t s = 0; s < state_count(c.algorithm, c.hyper); ++s) {
                bounds.check(states[s].at(i), expected[i].states[s], "state", i);
            }
            if (separate) {
                ASSERT_EQ(values.at(i), round_to(values_dtype, master.at(i)));
            }
            if (testing::Test::HasFatalFailure()) return;
        }
    }
    EXPECT_LE(bounds.loose * 50, bounds.all) << "the bounds are too loose to show anything";
    EXPECT_TRUE(master.surroundings_intact() && values.surroundings_intact());
    EXPECT_TRUE(states[0].surroundings_intact() && states[1].surroundings_intact());
}

TEST_F(Optimizers, FollowThePublishedFormulasForAllDtypes)
{
    for (const Case &c : cases()) {
        for (const uint32_t values : kDtypes) {
            for (const uint32_t gradient : kDtypes) {
                SCOPED_TRACE(testing::Message()
                             << c.name << ", values " << values << ", gradient " << gradient);
                follow(c, values, gradient);
                if (HasFatalFailure()) return;
            }
        }
    }
}

// One fp32 parameter, one step; what the caller's arrays hold afterwards.
struct One {
    float parameter;
    float states[2];
};

One step_one(Algorithm algorithm, const stw_hyper &h, uint64_t step, One before, float gradient)
{
    const Chunk chunk = {&before.parameter,
                         STW_F32,
                         STW_F32,
                         &before.parameter,
                         &gradient,
                         {&before.states[0], &before.states[1]},
                         1};
    update_chunk(algorithm, make_coefficients(algorithm, h, step, 1.0), chunk);
    return before;
}

// Bias correction makes the first step lr x sign(gradient), whatever the gradient's size.
TEST_F(Optimizers, FirstAdamStepIsTheLearningRate)
{
    for (const float gradient : {1e-3F, -4.0F, 1e6F}) {
        const One after = step_one(Algorithm::kAdamW, hyper(0.25, 0.0, 0.0), 1, {}, gradient);
        EXPECT_NEAR(after.parameter, gradient > 0 ? -0.25 : 0.25, 1e-6);
    }
}

TEST_F(Optimizers, NoGradientAndNoDecayMoveNothing)
{
    const One before = {0.7F, {0.0F, 0.0F}};
    for (const Case &c : cases()) {
        stw_hyper h = c.hyper;
        h.weight_decay = 0.0;
        EXPECT_EQ(step_one(c.algorithm, h, 3, before, 0.0F).parameter, 0.7F) << c.name;
    }
}

TEST_F(Optimizers, LionMovesByItsRateOrNotAtAll)
{
    const stw_hyper h = with_betas(hyper(0.25, 0.0), 0.5, 0.5);
    EXPECT_EQ(step_one(Algorithm::kLion, h, 1, {1.0F, {}}, 1e-30F).parameter, 0.75F);
    EXPECT_EQ(step_one(Algorithm::kLion, h, 1, {1.0F, {}}, -1e30F).parameter, 1.25F);
    EXPECT_EQ(step_one(Algorithm::kLion, h, 1, {1.0F, {-2.0F, 0.0F}}, 2.0F).parameter, 1.0F);
    EXPECT_TRUE(std::isnan(step_one(Algorithm::kLion, h, 1, {1.0F, {}}, NAN).parameter));
}

// Decoupled decay does not pass through the moments; coupled decay does.
TEST_F(Optimizers, DecayIsDecoupledInAdamWOnly)
{
    const One before = {2.0F, {0.0F, 0.0F}};
    const One adamw = step_one(Algorithm::kAdamW, hyper(0.5, 0.5), 1, before, 0.0F);
    EXPECT_EQ(adamw.parameter, 1.5F);
    EXPECT_EQ(adamw.states[0], 0.0F);
    const One adam = step_one(Algorithm::kAdam, hyper(0.5, 0.5, 0.0), 1, before, 0.0F);
    EXPECT_NEAR(adam.parameter, 1.5, 1e-6);
    EXPECT_NEAR(adam.states[0], 0.1, 1e-7);
}

// The buffer's memory may hold anything before the first step, and it is not dampened then.
TEST_F(Optimizers, FirstMomentumIsTheGradientItself)
{
    const stw_hyper h = with_momentum(hyper(1.0, 0.0), 0.9, 0.5, 0);
    const One first = step_one(Algorithm::kSgd, h, 1, {1.0F, {NAN, 0.0F}}, 0.25F);
    EXPECT_EQ(first.states[0], 0.25F);
    EXPECT_EQ(first.parameter, 0.75F);
    const One second = step_one(Algorithm::kSgd, h, 2, first, 0.25F);
    EXPECT_FLOAT_EQ(second.states[0], 0.9F * 0.25F + 0.5F * 0.25F);
}

TEST_F(Optimizers, MaximizingIsMinimizingTheOpposite)
{
    for (const Case &c : cases()) {
        stw_hyper maximize = c.hyper;
        maximize.flags ^= STW_HYPER_MAXIMIZE;
        const One before = {0.3F, {0.01F, 0.02F}};
        const One a = step_one(c.algorithm, c.hyper, 4, before, 0.6F);
        const One b = step_one(c.algorithm, maximize, 4, before, -0.6F);
        EXPECT_EQ(std::memcmp(&a, &b, sizeof(a)), 0) << c.name;
    }
}

TEST_F(Optimizers, NanStaysInItsElementWithOneBitPattern)
{
    for (const uint32_t pattern : {0x7FC00000U, 0xFFFFFFFFU, 0x7F800001U, 0xFFC12345U}) {
        float parameters[20] = {};
        float first[20] = {};
        float second[20] = {};
        float gradient[20] = {};
        gradient[5] = std::bit_cast<float>(pattern);
        uint16_t values[20] = {};
        const Chunk chunk = {values, STW_BF16, STW_F32, parameters, gradient, {first, second}, 20};
        const stw_hyper h = hyper(0.1, 0.1);
        update_chunk(Algorithm::kAdamW, make_coefficients(Algorithm::kAdamW, h, 1, 1.0), chunk);
        for (uint32_t i = 0; i < 20; ++i) {
            const uint32_t expected = i == 5 ? 0x7FC00000 : 0;
            EXPECT_EQ(std::bit_cast<uint32_t>(parameters[i]), expected);
            EXPECT_EQ(std::bit_cast<uint32_t>(first[i]), expected);
            EXPECT_EQ(std::bit_cast<uint32_t>(second[i]), expected);
            EXPECT_EQ(values[i], expected >> 16);
        }
    }
}

// Denormal moments are numbers like others.
TEST_F(Optimizers, DenormalsAreKept)
{
    const stw_hyper h = with_momentum(hyper(1.0, 0.0), 0.5, 0.0, 0);
    const float tiny = 0x1p-140F;
    const One after = step_one(Algorithm::kSgd, h, 2, {0.0F, {tiny, 0.0F}}, tiny);
    EXPECT_EQ(after.states[0], 1.5F * tiny);
    EXPECT_EQ(after.parameter, -1.5F * tiny);
}

TEST_F(Optimizers, BiasCorrectionMatchesPowForLongRuns)
{
    stw_hyper h = hyper(1.0, 0.0);
    for (const double beta : {0.9, 0.999, 0.99999}) {
        h.beta1 = beta;
        h.beta2 = beta;
        for (const uint64_t step : {1U, 2U, 3U, 10U, 1000U, 123457U, 10000000U}) {
            const Coefficients c = make_coefficients(Algorithm::kAdam, h, step, 1.0);
            const long double power =
                std::pow(static_cast<long double>(beta), static_cast<long double>(step));
            const long double correction = 1 - power;
            EXPECT_NEAR(c.negative_step_size * static_cast<double>(correction), -1.0, 0x1p-23);
            EXPECT_NEAR(c.correction2_sqrt / std::sqrt(static_cast<double>(correction)), 1.0,
                        0x1p-23);
        }
    }
}

TEST_F(Optimizers, StatesAreCounted)
{
    stw_hyper h = hyper(1.0, 0.0);
    EXPECT_EQ(state_count(Algorithm::kAdamW, h), 2U);
    EXPECT_EQ(state_count(Algorithm::kAdam, h), 2U);
    EXPECT_EQ(state_count(Algorithm::kAdagrad, h), 1U);
    EXPECT_EQ(state_count(Algorithm::kLion, h), 1U);
    EXPECT_EQ(state_count(Algorithm::kSgd, h), 0U);
    h.momentum = 0.9;
    EXPECT_EQ(state_count(Algorithm::kSgd, h), 1U);
}

}  // namespace
}  // namespace stepwell::kernels::test
