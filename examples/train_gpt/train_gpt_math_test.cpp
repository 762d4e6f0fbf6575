// SPDX-License-Identifier: Apache-2.0
//
// Checks the model's arithmetic against an implementation of its own: plain loops in double, and
// gradients by finite differences of it. Needs no Stepwell.

#include "attention.h"
#include "block.h"
#include "gemm.h"
#include "kernels.h"
#include "options.h"
#include "random.h"
#include "text.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <gtest/gtest.h>
#include <string>
#include <vector>

namespace train_gpt {
namespace {

using Vector = std::vector<double>;

// Values a float holds exactly, so that both sides start from the same numbers.
Vector random_vector(uint64_t stream, size_t count, double deviation, double mean = 0.0)
{
    Vector values(count);
    for (size_t i = 0; i < count; ++i)
        values[i] = static_cast<float>(mean + deviation * random_normal(7, stream, i));
    return values;
}

std::vector<float> to_float(const Vector &values)
{
    return {values.begin(), values.end()};
}

// ------------------------------------------------------------------- the naive model, in double --

Vector naive_norm(const Vector &x, const Vector &gain, const Vector &bias)
{
    const size_t width = gain.size();
    Vector y(x.size());
    for (size_t row = 0; row < x.size() / width; ++row) {
        double mean = 0.0;
        double variance = 0.0;
        for (size_t c = 0; c < width; ++c) mean += x[row * width + c] / static_cast<double>(width);
        for (size_t c = 0; c < width; ++c)
            variance += std::pow(x[row * width + c] - mean, 2) / static_cast<double>(width);
        for (size_t c = 0; c < width; ++c)
            y[row * width + c] =
                (x[row * width + c] - mean) / std::sqrt(variance + 1e-5) * gain[c] + bias[c];
    }
    return y;
}

Vector naive_linear(const Vector &x, const Vector &w, const Vector &bias)
{
    const size_t out = bias.size();
    const size_t in = w.size() / out;
    Vector y(x.size() / in * out);
    for (size_t row = 0; row < x.size() / in; ++row)
        for (size_t o = 0; o < out; ++o) {
            double sum = bias[o];
            for (size_t i = 0; i < in; ++i) sum += x[row * in + i] * w[i * out + o];
            y[row * out + o] = sum;
        }
    return y;
}

Vector naive_attention(const Shape &shape, const Vector &qkv)
{
    const size_t width = shape.width;
    const size_t head_width = shape.head_width();
    Vector out(shape.rows() * width);
    for (size_t b = 0; b < shape.batch; ++b)
        for (size_t head = 0; head < shape.heads; ++head)
            for (size_t t = 0; t < shape.sequence; ++t) {
                const auto at = [&](size_t row, size_t part, size_t c) {
                    return qkv[((b * shape.sequence + row) * 3 + part) * width + head * head_width +
                               c];
                };
                Vector weights(t + 1);
                double sum = 0.0;
                for (size_t s = 0; s <= t; ++s) {
                    double score = 0.0;
                    for (size_t c = 0; c < head_width; ++c) score += at(t, 0, c) * at(s, 1, c);
                    weights[s] = std::exp(score / std::sqrt(static_cast<double>(head_width)));
                    sum += weights[s];
                }
                for (size_t c = 0; c < head_width; ++c) {
                    double value = 0.0;
                    for (size_t s = 0; s <= t; ++s) value += weights[s] / sum * at(s, 2, c);
                    out[(b * shape.sequence + t) * width + head * head_width + c] = value;
                }
            }
    return out;
}

double naive_gelu(double x)
{
    constexpr double kPi = 3.141592653589793;
    return 0.5 * x * (1.0 + std::tanh(std::sqrt(2.0 / kPi) * (x + 0.044715 * x * x * x)));
}

Vector add(Vector a, const Vector &b)
{
    for (size_t i = 0; i < a.size(); ++i) a[i] += b[i];
    return a;
}

Vector naive_block(const Shape &shape, const std::vector<Vector> &w, const Vector &x)
{
    const Vector norm1 = naive_norm(x, w[kNorm1Gain], w[kNorm1Bias]);
    const Vector qkv = naive_linear(norm1, w[kQkvWeight], w[kQkvBias]);
    const Vector attended = naive_attention(shape, qkv);
    const Vector middle = add(naive_linear(attended, w[kProjectWeight], w[kProjectBias]), x);
    const Vector norm2 = naive_norm(middle, w[kNorm2Gain], w[kNorm2Bias]);
    Vector expanded = naive_linear(norm2, w[kExpandWeight], w[kExpandBias]);
    std::transform(expanded.begin(), expanded.end(), expanded.begin(), naive_gelu);
    return add(naive_linear(expanded, w[kContractWeight], w[kContractBias]), middle);
}

// Mean cross-entropy of the tied head behind the final norm.
double naive_head(const Vector &gain, const Vector &bias, const Vector &table, const Vector &x,
                  const std::vector<uint8_t> &targets)
{
    const Vector norm = naive_norm(x, gain, bias);
    const size_t width = gain.size();
    double loss = 0.0;
    for (size_t row = 0; row < targets.size(); ++row) {
        double sum = 0.0;
        double target = 0.0;
        for (size_t token = 0; token < kVocabulary; ++token) {
            double logit = 0.0;
            for (size_t c = 0; c < width; ++c)
                logit += norm[row * width + c] * table[token * width + c];
            sum += std::exp(logit);
            target = token == targets[row] ? logit : target;
        }
        loss += (std::log(sum) - target) / static_cast<double>(targets.size());
    }
    return loss;
}

// ------------------------------------------------------------------------------------- checking --

void expect_near(const Vector &expected, const float *actual, double tolerance)
{
    double scale = 1e-12;
    for (const double value : expected) scale = std::max(scale, std::abs(value));
    for (size_t i = 0; i < expected.size(); ++i)
        ASSERT_NEAR(expected[i], actual[i], tolerance * scale) << "element " << i;
}

// The derivative of loss() by elements of `values`, by central differences, against `gradient`.
// Every step-th element; each is compared on the scale of the largest one.
void expect_gradient(const char *what, Vector &values, const float *gradient, size_t step,
                     const std::function<double()> &loss)
{
    constexpr double kNudge = 1e-4;
    double scale = 1e-9;
    for (size_t i = 0; i < values.size(); ++i)
        scale = std::max(scale, std::abs(static_cast<double>(gradient[i])));
    for (size_t i = 0; i < values.size(); i += step) {
        const double old = values[i];
        values[i] = old + kNudge;
        const double above = loss();
        values[i] = old - kNudge;
        const double below = loss();
        values[i] = old;
        ASSERT_NEAR((above - below) / (2.0 * kNudge), gradient[i], 2e-5 * scale)
            << what << " element " << i;
    }
}

constexpr uint32_t kSlotRows[kSlots] = {0, 0, 1, 0, 1, 0, 0, 0, 1, 0, 4, 0};
constexpr uint32_t kSlotColumns[kSlots] = {1, 1, 3, 3, 1, 1, 1, 1, 4, 4, 1, 1};

std::vector<Vector> random_block(uint32_t width)
{
    std::vector<Vector> weights;
    for (uint32_t slot = 0; slot < kSlots; ++slot) {
        const bool gain = slot == kNorm1Gain || slot == kNorm2Gain;
        const size_t count =
            size_t{std::max(1u, kSlotRows[slot] * width)} * kSlotColumns[slot] * width;
        weights.push_back(random_vector(100 + slot, count, 0.2, gain ? 1.0 : 0.0));
    }
    return weights;
}

struct FloatBlock {
    explicit FloatBlock(const std::vector<Vector> &weights)
    {
        for (uint32_t slot = 0; slot < kSlots; ++slot) {
            values[slot] = to_float(weights[slot]);
            // A gradient must be written to the last element; what was there must not matter.
            gradients[slot].assign(weights[slot].size(), NAN);
            pointers[slot] = values[slot].data();
            gradient_pointers[slot] = gradients[slot].data();
        }
    }
    std::vector<float> values[kSlots];
    std::vector<float> gradients[kSlots];
    Weights pointers;
    Gradients gradient_pointers;
};

class MathTest : public testing::Test {
protected:
    void SetUp() override { gemm_init(); }
};

// ---------------------------------------------------------------------------------------- tests --

TEST_F(MathTest, ExpIsRightToAFewUnitsInTheLastPlace)
{
    for (double x = -86.9; x < 87.9; x += 0.0137) {
        const float argument = static_cast<float>(x);
        const double right = std::exp(static_cast<double>(argument));
        ASSERT_NEAR(exp_fast(argument) / right, 1.0, 3e-7) << argument;
    }
    EXPECT_EQ(exp_fast(0.0F), 1.0F);
    EXPECT_LT(exp_fast(-1000.0F), 2e-38F);
}

TEST_F(MathTest, GeluAndItsGradientFollowTheFormula)
{
    Vector x = random_vector(1, 1003, 3.0);
    x[0] = 40.0;  // where the inner polynomial is beyond what exp can hold
    x[1] = -40.0;
    const std::vector<float> input = to_float(x);
    std::vector<float> y(x.size());
    std::vector<float> slope(x.size(), 1.0F);
    gelu_forward(x.size(), input.data(), y.data());
    gelu_backward(x.size(), input.data(), slope.data());
    for (size_t i = 0; i < x.size(); ++i) {
        ASSERT_NEAR(naive_gelu(x[i]), y[i], 1e-6 * std::max(1.0, std::abs(x[i]))) << x[i];
        const double derivative = (naive_gelu(x[i] + 1e-5) - naive_gelu(x[i] - 1e-5)) / 2e-5;
        ASSERT_NEAR(derivative, slope[i], 2e-6) << x[i];
    }
}

TEST_F(MathTest, ProductsAreRightForShapesThatFillNoTile)
{
    Pool pool(2);
    const uint32_t rows = 300;
    const uint32_t in = 67;
    const uint32_t out = 513;
    const Vector x = random_vector(1, rows * in, 1.0);
    const Vector w = random_vector(2, in * out, 1.0);
    const Vector bias = random_vector(3, out, 1.0);
    const Vector residual = random_vector(4, rows * out, 1.0);
    std::vector<float> y = to_float(residual);
    linear_forward(pool, rows, in, out, to_float(x).data(), to_float(w).data(),
                   to_float(bias).data(), y.data(), y.data());
    expect_near(add(naive_linear(x, w, bias), residual), y.data(), 1e-6);

    Vector w_transposed(w.size());
    Vector x_transposed(x.size());
    for (uint32_t i = 0; i < in; ++i) {
        for (uint32_t o = 0; o < out; ++o) w_transposed[o * in + i] = w[i * out + o];
        for (uint32_t r = 0; r < rows; ++r) x_transposed[i * rows + r] = x[r * in + i];
    }
    std::vector<float> dx(rows * in, NAN);
    linear_backward_input(pool, rows, in, out, to_float(residual).data(), to_float(w).data(),
                          dx.data());
    expect_near(naive_linear(residual, w_transposed, Vector(in)), dx.data(), 1e-6);
    std::vector<float> dw(in * out, NAN);
    linear_backward_weight(pool, rows, in, out, to_float(x).data(), to_float(residual).data(),
                           dw.data());
    expect_near(naive_linear(x_transposed, residual, Vector(out)), dw.data(), 1e-6);
}

TEST_F(MathTest, AttentionSeesThePastAlone)
{
    Pool pool(2);
    const Shape shape = {2, 150, 24, 3};  // three blocks of queries, the last one not full
    const Vector qkv = random_vector(1, size_t{shape.rows()} * 3 * shape.width, 1.0);
    std::vector<float> scratch(2 * attention_scratch_floats(shape.sequence));
    std::vector<float> out(size_t{shape.rows()} * shape.width);
    std::vector<float> input = to_float(qkv);
    attention_forward(pool, shape, input.data(), scratch.data(), out.data());
    expect_near(naive_attention(shape, qkv), out.data(), 1e-5);

    const size_t row = 100;
    std::fill(input.begin() + row * 3 * shape.width,
              input.begin() + size_t{shape.sequence} * 3 * shape.width, 9.0F);
    std::vector<float> other(out.size());
    attention_forward(pool, shape, input.data(), scratch.data(), other.data());
    EXPECT_EQ(std::memcmp(out.data(), other.data(), row * shape.width * sizeof(float)), 0);
    EXPECT_NE(out[row * shape.width], other[row * shape.width]);
}

TEST_F(MathTest, BlockMatchesTheNaiveOneAndItsGradientsMatchFiniteDifferences)
{
    Pool pool(2);
    const Shape shape = {2, 70, 12, 3};  // two blocks of queries
    Workspace space(shape, 2, 0);
    ASSERT_NE(space.bytes(), 0u);
    std::vector<Vector> weights = random_block(shape.width);
    Vector x = random_vector(1, size_t{shape.rows()} * shape.width, 1.0);
    const Vector direction = random_vector(2, x.size(), 1.0);
    const auto loss = [&] {
        const Vector y = naive_block(shape, weights, x);
        double sum = 0.0;
        for (size_t i = 0; i < y.size(); ++i) sum += y[i] * direction[i];
        return sum;
    };

    FloatBlock block_data(weights);
    const std::vector<float> input = to_float(x);
    std::copy(input.begin(), input.end(), space.stream);
    Block block(pool, space, shape);
    block.forward(block_data.pointers);
    expect_near(naive_block(shape, weights, x), space.stream, 1e-5);

    std::copy(direction.begin(), direction.end(), space.dstream);
    block.recompute(block_data.pointers, input.data());
    block.backward_mlp(block_data.pointers, block_data.gradient_pointers);
    block.backward_attention(block_data.pointers, block_data.gradient_pointers, input.data());
    for (uint32_t slot = 0; slot < kSlots; ++slot)
        expect_gradient(("slot " + std::to_string(slot)).c_str(), weights[slot],
                        block_data.gradients[slot].data(), slot % 2 == 0 ? 13 : 3, loss);
    expect_gradient("input", x, space.dstream, 97, loss);
}

TEST_F(MathTest, HeadLossAndGradientsMatchFiniteDifferences)
{
    Pool pool(2);
    const Shape shape = {2, 9, 12, 3};
    Workspace space(shape, 2, 0);
    Vector gain = random_vector(1, shape.width, 0.2, 1.0);
    Vector bias = random_vector(2, shape.width, 0.2);
    Vector table = random_vector(3, size_t{kVocabulary} * shape.width, 0.5);
    Vector x = random_vector(4, size_t{shape.rows()} * shape.width, 1.0);
    std::vector<uint8_t> targets(shape.rows());
    for (size_t i = 0; i < targets.size(); ++i)
        targets[i] = static_cast<uint8_t>(random_bits(7, 5, i));
    const auto loss = [&] { return naive_head(gain, bias, table, x, targets); };

    const std::vector<float> gain_f = to_float(gain);
    const std::vector<float> bias_f = to_float(bias);
    const std::vector<float> table_f = to_float(table);
    std::vector<float> dgain(gain.size(), NAN);
    std::vector<float> dbias(bias.size(), NAN);
    std::vector<float> dtable(table.size(), NAN);
    std::copy(x.begin(), x.end(), space.stream);
    const HeadWeights head = {gain_f.data(), bias_f.data(), table_f.data()};
    head_forward(pool, space, shape, head);
    EXPECT_NEAR(head_loss(pool, space, shape, targets.data(), shape.rows()), loss(), 1e-6);
    head_backward(pool, space, shape, head, {dgain.data(), dbias.data(), dtable.data()});
    expect_gradient("gain", gain, dgain.data(), 1, loss);
    expect_gradient("bias", bias, dbias.data(), 1, loss);
    expect_gradient("table", table, dtable.data(), 17, loss);
    expect_gradient("input", x, space.dstream, 5, loss);
}

TEST_F(MathTest, EmbeddingAddsItsGradientToWhatTheHeadLeft)
{
    Pool pool(2);
    const Shape shape = {2, 3, 4, 1};
    Workspace space(shape, 2, 0);
    const uint8_t tokens[] = {5, 9, 5, 5, 7, 255};
    const std::vector<float> table = to_float(random_vector(1, kVocabulary * 4, 1.0));
    const std::vector<float> positions = to_float(random_vector(2, 3 * 4, 1.0));
    embed(pool, space, shape, tokens, table.data(), positions.data());
    EXPECT_EQ(space.stream[5 * 4 + 1], table[255 * 4 + 1] + positions[2 * 4 + 1]);

    for (uint32_t i = 0; i < 6 * 4; ++i) space.dstream[i] = static_cast<float>(1 + i / 4);
    std::vector<float> dtable(table.size(), 0.5F);
    std::vector<float> dpositions(positions.size(), NAN);
    embed_gradient(pool, space, shape, tokens, dtable.data(), dpositions.data());
    EXPECT_EQ(dtable[5 * 4], 0.5F + 1.0F + 3.0F + 4.0F);
    EXPECT_EQ(dtable[255 * 4 + 3], 6.5F);
    EXPECT_EQ(dtable[8 * 4], 0.5F);
    EXPECT_EQ(dpositions[0], 1.0F + 4.0F);
    EXPECT_EQ(dpositions[2 * 4 + 3], 3.0F + 6.0F);
}

TEST_F(MathTest, BitsDoNotDependOnWhoComputes)
{
    const Shape shape = {2, 96, 64, 4};
    std::vector<std::vector<float>> results;
    for (const uint32_t threads : {1u, 2u, 3u, 2u}) {
        Pool pool(threads);
        Workspace space(shape, threads, 0);
        FloatBlock data(random_block(shape.width));
        const std::vector<float> x =
            to_float(random_vector(1, size_t{shape.rows()} * shape.width, 1.0));
        std::copy(x.begin(), x.end(), space.dstream);
        Block block(pool, space, shape);
        block.recompute(data.pointers, x.data());
        block.backward_mlp(data.pointers, data.gradient_pointers);
        block.backward_attention(data.pointers, data.gradient_pointers, x.data());
        std::vector<float> all(space.dstream, space.dstream + x.size());
        for (const std::vector<float> &gradient : data.gradients)
            all.insert(all.end(), gradient.begin(), gradient.end());
        results.push_back(all);
    }
    for (size_t i = 1; i < results.size(); ++i)
        EXPECT_EQ(
            std::memcmp(results[0].data(), results[i].data(), results[0].size() * sizeof(float)),
            0);
}

TEST(PoolTest, EveryTaskRunsOnceInEveryRun)
{
    Pool pool(4);
    for (uint32_t tasks = 0; tasks < 400; ++tasks) {
        std::vector<std::atomic<uint32_t>> runs(tasks);
        pool.run(tasks, [&](uint32_t task, uint32_t worker) {
            ASSERT_LT(worker, 4u);
            runs[task].fetch_add(1);
        });
        for (uint32_t task = 0; task < tasks; ++task)
            ASSERT_EQ(runs[task].load(), 1u) << task << " of " << tasks;
    }
}

TEST(TextTest, ABatchIsAFunctionOfSeedAndStep)
{
    Text text;
    std::vector<uint8_t> bytes(1000);
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<uint8_t>(i * 31 + i / 256);
    text.assign(bytes);
    std::vector<uint8_t> tokens(4 * 64);
    std::vector<uint8_t> targets(4 * 64);
    std::vector<uint8_t> again(4 * 64);
    text.batch(1, 5, 4, 64, tokens.data(), targets.data());
    text.batch(1, 5, 4, 64, again.data(), targets.data());
    EXPECT_EQ(tokens, again);
    text.batch(1, 6, 4, 64, again.data(), targets.data());
    EXPECT_NE(tokens, again);
    for (uint32_t b = 0; b < 4; ++b)  // the target of a token is the token after it
        EXPECT_TRUE(std::equal(targets.begin() + b * 64, targets.begin() + b * 64 + 63,
                               again.begin() + b * 64 + 1));
}

TEST(TextTest, AMissingOrTooShortTextIsASentence)
{
    Text text;
    EXPECT_NE(text.load("/nonexistent/text", 8).find("No such file"), std::string::npos);
    EXPECT_NE(text.load("/dev/null", 8).find("0 bytes"), std::string::npos);
}

TEST(OptionsTest, SizesHaveUnits)
{
    uint64_t bytes = 0;
    EXPECT_EQ(parse_bytes("64MiB", &bytes), "");
    EXPECT_EQ(bytes, uint64_t{64} << 20);
    EXPECT_EQ(parse_bytes("1.5 GB", &bytes), "");
    EXPECT_EQ(bytes, 1500000000u);
    EXPECT_EQ(parse_bytes("4096", &bytes), "");
    EXPECT_EQ(bytes, 4096u);
    for (const char *wrong : {"", "MiB", "12Q", "-5", "1.2.3", "64MiBx", "99999999999TiB"}) {
        bytes = 7;
        EXPECT_NE(parse_bytes(wrong, &bytes), "") << wrong;
        EXPECT_EQ(bytes, 7u) << wrong;
    }
}

TEST(OptionsTest, AWrongCommandLineIsStatus2)
{
    const char *lines[][3] = {
        {"--bogus", "--in-memory", "not expected: --bogus"},
        {"--heads=7", "--in-memory", "not a multiple of --heads 7"},
        {"--micro-batches=3", "--in-memory", "--batch 4 is not a multiple of --micro-batches 3"},
        {"--micro-batches=0", "--in-memory", "--micro-batches 0 leaves nothing to train on"},
        {"--order=vertical", "--in-memory", "add --micro-batches N"},
        {"--order=sideways", "--micro-batches=2", "--order: sideways not in {horizontal,vertical}"},
        {"--nvme=.", "--device-bytes=64", "--device-bytes is 64 bytes, less than one block"},
        {"--nvme=.", "--host-bytes=64KiB", "--host-bytes is 65536 bytes, less than one block"},
    };
    for (const auto &[first, second, words] : lines) {
        Options options;
        int status = -1;
        std::vector<char *> arguments;
        std::vector<std::string> texts = {"train_gpt", first, second};
        for (std::string &text : texts) arguments.push_back(text.data());
        testing::internal::CaptureStderr();
        EXPECT_EQ(parse_options(3, arguments.data(), &options, &status), Parsed::kExit) << words;
        EXPECT_NE(testing::internal::GetCapturedStderr().find(words), std::string::npos) << words;
        EXPECT_EQ(status, 2) << words;
    }
}

TEST(OptionsTest, TheLibrarysOptionsAreThoseOfTheCommandLine)
{
    EXPECT_EQ(in_own_words("options.host_bytes is 1, set host_bytes or a device's budget_bytes"),
              "--host-bytes is 1, set --host-bytes or --device-bytes");
}

}  // namespace
}  // namespace train_gpt
