// SPDX-License-Identifier: Apache-2.0
// Updates in torch's order against one element at a time, written from the calls that torch.optim's
// single-tensor path makes: what ATen rounds once is std::fma here, where the instruction set has
// it. tests/python compares with PyTorch itself.
#include "tests/unit/update/kernels_support.h"

#include <cstring>
#include <string_view>

namespace stepwell::kernels::test {
namespace {

constexpr uint64_t kSteps = 4;
constexpr double kScale = 0.3;
constexpr int64_t kMode = 0x140102;

struct TorchCase {
    Algorithm algorithm;
    double weight_decay;
    double beta1;
    double momentum;
    double dampening;
    uint32_t flags;
    double lr_decay;
};

constexpr TorchCase kTorchCases[] = {
    {Algorithm::kAdamW, 0.01, 0.9, 0.0, 0.0, 0, 0.0},
    {Algorithm::kAdamW, 0.0, 0.3, 0.0, 0.0, STW_HYPER_MAXIMIZE, 0.0},  // lerp from the end
    {Algorithm::kAdam, 0.1, 0.9, 0.0, 0.0, 0, 0.0},
    {Algorithm::kSgd, 0.0, 0.9, 0.0, 0.0, STW_HYPER_MAXIMIZE, 0.0},
    {Algorithm::kSgd, 0.1, 0.9, 0.9, 0.1, 0, 0.0},
    {Algorithm::kSgd, 0.1, 0.9, 0.7, 0.0, STW_HYPER_NESTEROV, 0.0},
    {Algorithm::kAdagrad, 0.1, 0.9, 0.0, 0.0, 0, 0.01},
};

stw_hyper hyper_of(const TorchCase &c)
{
    stw_hyper h = STW_HYPER_INIT;
    h.lr = 0.01;
    h.weight_decay = c.weight_decay;
    h.beta1 = c.beta1;
    h.momentum = c.momentum;
    h.dampening = c.dampening;
    h.flags = c.flags;
    h.lr_decay = c.lr_decay;
    return h;
}

float nearest_root(float value)
{
    return std::sqrt(value);
}

float next_root(float value)
{
    return std::nextafter(std::sqrt(value), 2.0F);
}

// The function of a program: not the nearest roots.
void next_roots(int32_t n, const float *values, float *roots, int64_t mode)
{
    EXPECT_LE(n, 1024);
    EXPECT_EQ(mode, kMode);
    EXPECT_TRUE(roots + n <= values || values + n <= roots);
    for (int32_t i = 0; i < n; ++i) roots[i] = next_root(values[i]);
}

float narrowed(double value)
{
    return static_cast<float>(value);
}

// One element's parameter and states, updated by torch's calls on tensors of one element.
struct TorchElement {
    bool fused;
    float (*root)(float);
    float parameter;
    float states[2];

    // tensor.add(other, alpha=alpha), tensor.addcmul(a, b) with alpha x a
    [[nodiscard]] float add(float tensor, float other, float alpha) const
    {
        return fused ? std::fma(other, alpha, tensor) : tensor + other * alpha;
    }
    [[nodiscard]] float lerp(float start, float end, float weight) const
    {
        if (weight < 0.5F) return add(start, end - start, weight);
        return add(end, end - start, weight - 1.0F);
    }
    void addcdiv(float a, float b, float value) { parameter = parameter + value * a / b; }

    void adam(const stw_hyper &h, bool decoupled, double step, float gradient)
    {
        if (h.weight_decay != 0.0 && decoupled) {
            parameter = parameter * narrowed(1.0 - h.lr * h.weight_decay);
        } else if (h.weight_decay != 0.0) {
            gradient = add(gradient, parameter, narrowed(h.weight_decay));
        }
        states[0] = lerp(states[0], gradient, narrowed(1.0 - h.beta1));
        const float decayed = states[1] * narrowed(h.beta2);
        states[1] = add(decayed, gradient, narrowed(1.0 - h.beta2) * gradient);
        const double step_size = h.lr / (1.0 - std::pow(h.beta1, step));
        const double correction = std::pow(1.0 - std::pow(h.beta2, step), 0.5);
        const float denominator = root(states[1]) / narrowed(correction) + narrowed(h.eps);
        addcdiv(states[0], denominator, narrowed(-step_size));
    }
    void sgd(const stw_hyper &h, double step, float gradient)
    {
        if (h.weight_decay != 0.0) gradient = add(gradient, parameter, narrowed(h.weight_decay));
        if (h.momentum != 0.0) {
            const float kept = states[0] * narrowed(h.momentum);
            states[0] = step == 1.0 ? gradient : add(kept, gradient, narrowed(1.0 - h.dampening));
            const bool nesterov = (h.flags & STW_HYPER_NESTEROV) != 0;
            gradient = nesterov ? add(gradient, states[0], narrowed(h.momentum)) : states[0];
        }
        parameter = add(parameter, gradient, narrowed(-h.lr));
    }
    void adagrad(const stw_hyper &h, double step, float gradient)
    {
        if (h.weight_decay != 0.0) gradient = add(gradient, parameter, narrowed(h.weight_decay));
        states[0] = add(states[0], gradient, gradient);
        const double rate = h.lr / (1.0 + (step - 1.0) * h.lr_decay);
        addcdiv(gradient, root(states[0]) + narrowed(h.eps), narrowed(-rate));
    }
    void update(const TorchCase &c, double step, float gradient)
    {
        const stw_hyper h = hyper_of(c);
        gradient = gradient * narrowed(kScale);
        if ((h.flags & STW_HYPER_MAXIMIZE) != 0) gradient = -gradient;
        if (c.algorithm == Algorithm::kSgd) return sgd(h, step, gradient);
        if (c.algorithm == Algorithm::kAdagrad) return adagrad(h, step, gradient);
        adam(h, c.algorithm == Algorithm::kAdamW, step, gradient);
    }
};

struct TorchTensors {
    Array values;
    Array master;
    Array gradient;
    Array states[2];

    TorchTensors(uint32_t values_dtype, uint32_t gradient_dtype, uint64_t count)
        : values(values_dtype, count, 3),
          master(STW_F32, count, 3),
          gradient(gradient_dtype, count, 3),
          states{Array(STW_F32, count, 3), Array(STW_F32, count, 3)}
    {
        Random random(count);
        master.randomize(random, 1.0);
        gradient.randomize(random, 2.0);
        for (uint64_t i = 0; i < count; ++i) {
            states[0].set(i, 0.1 * (1.0 + random.uniform()));  // Adagrad's: there is a root
            states[1].set(i, std::abs(random.uniform()));
        }
    }
    Chunk chunk()
    {
        const bool wide = values.dtype() == STW_F32;
        return {wide ? master.data() : values.data(),
                values.dtype(),
                gradient.dtype(),
                master.floats(),
                gradient.data(),
                {states[0].floats(), states[1].floats()},
                master.count()};
    }
    [[nodiscard]] std::vector<uint32_t> bits()
    {
        std::vector<uint32_t> all;
        for (Array *array : {&master, &states[0], &states[1]}) {
            const std::vector<uint32_t> its = array->all_bits();
            all.insert(all.end(), its.begin(), its.end());
        }
        return all;
    }
    // Element by element, in place.
    void update_by_reference(const TorchCase &c, bool fused, float (*root)(float))
    {
        for (uint64_t i = 0; i < master.count(); ++i) {
            TorchElement e = {fused, root, *master.floats(i), {}};
            for (uint32_t s = 0; s < 2; ++s) e.states[s] = *states[s].floats(i);
            for (uint64_t step = 1; step <= kSteps; ++step) {
                e.update(c, static_cast<double>(step), narrowed(gradient.at(i)));
            }
            *master.floats(i) = e.parameter;
            for (uint32_t s = 0; s < 2; ++s) *states[s].floats(i) = e.states[s];
        }
    }
};

bool target_fuses(uint32_t target)
{
    return std::string_view(target_name(target)).starts_with("AVX");
}

class TorchOrder : public KernelTest {
protected:
    static void compare(const TorchCase &c, uint32_t values, uint32_t gradient, uint64_t count)
    {
        for (const bool given : {false, true}) {
            const SquareRoot root = given ? SquareRoot{next_roots, kMode} : SquareRoot{};
            for (uint32_t target = 0; target < target_count(); ++target) {
                SCOPED_TRACE(target_name(target));
                TorchTensors expected(values, gradient, count);
                expected.update_by_reference(c, target_fuses(target),
                                             given ? next_root : nearest_root);
                TorchTensors tensors(values, gradient, count);
                force_target_for_test(target);
                for (uint64_t step = 1; step <= kSteps; ++step) {
                    const Coefficients coefficients =
                        make_torch_coefficients(c.algorithm, hyper_of(c), step, kScale);
                    update_chunk_as_torch(c.algorithm, coefficients, tensors.chunk(), root);
                }
                EXPECT_TRUE(tensors.bits() == expected.bits());
                check_rounded(tensors);
            }
        }
    }
    // The parameter of 16 bits is the rounded master; nothing else was written.
    static void check_rounded(TorchTensors &tensors)
    {
        EXPECT_TRUE(tensors.master.surroundings_intact());
        EXPECT_TRUE(tensors.values.surroundings_intact());
        for (Array &state : tensors.states) EXPECT_TRUE(state.surroundings_intact());
        if (tensors.values.dtype() == STW_F32) return;
        Array rounded(tensors.values.dtype(), tensors.master.count());
        convert(rounded.data(), rounded.dtype(), tensors.master.data(), STW_F32, rounded.count());
        EXPECT_TRUE(tensors.values.all_bits() == rounded.all_bits());
    }
};

TEST_F(TorchOrder, HasTheRoundingsOfTorchOnEveryTarget)
{
    for (const TorchCase &c : kTorchCases) {
        SCOPED_TRACE(&c - kTorchCases);
        for (const uint64_t count : {1U, 15U, 33U, 1023U, 1025U, 3001U}) {
            SCOPED_TRACE(count);
            compare(c, STW_F32, STW_F32, count);
        }
    }
}

TEST_F(TorchOrder, IsThatOfTheMasterForParametersOf16Bits)
{
    for (const TorchCase &c : kTorchCases) {
        SCOPED_TRACE(&c - kTorchCases);
        for (const uint32_t values : {STW_BF16, STW_F16}) {
            for (const uint32_t gradient : kDtypes) compare(c, values, gradient, 1500);
        }
    }
}

// Or these tests would say nothing.
TEST_F(TorchOrder, IsAnotherOneThanTheLibrarysOwn)
{
    for (const TorchCase &c : kTorchCases) {
        SCOPED_TRACE(&c - kTorchCases);
        TorchTensors torch(STW_F32, STW_F32, 3000);
        TorchTensors own(STW_F32, STW_F32, 3000);
        torch.update_by_reference(c, true, nearest_root);
        for (uint64_t step = 1; step <= kSteps; ++step) {
            update_chunk(c.algorithm, make_coefficients(c.algorithm, hyper_of(c), step, kScale),
                         own.chunk());
        }
        EXPECT_FALSE(own.bits() == torch.bits());
    }
}

// 1 - 0.9^step by products in another order than pow()'s is another double in 2 steps of 5.
TEST_F(TorchOrder, HasThePowersOfPython)
{
    stw_hyper h = STW_HYPER_INIT;
    for (uint64_t step = 1; step < 3000; ++step) {
        const Coefficients c = make_torch_coefficients(Algorithm::kAdam, h, step, 1.0);
        const double t = static_cast<double>(step);
        ASSERT_EQ(c.negative_step_size, narrowed(-(h.lr / (1.0 - std::pow(h.beta1, t)))));
        ASSERT_EQ(c.correction2_sqrt, narrowed(std::pow(1.0 - std::pow(h.beta2, t), 0.5)));
    }
}

}  // namespace
}  // namespace stepwell::kernels::test
