// SPDX-License-Identifier: Apache-2.0
// The launches of examples/train_gpt_cuda on the double of CUDA's driver, against the arithmetic of
// examples/train_gpt: shapes of several tiles, with and without rows that are whole words of 16
// bytes, so that every edge of the products and every mask is met.
#include "tests/cuda/double/control.h"

#include "block_cuda.h"
#include "gemm.h"
#include "random.h"

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace train_gpt {
namespace {

using gpu::Gpu;
using gpu::Launches;
using Floats = std::vector<float>;

constexpr uint32_t kSizes[kSlots] = {1, 1, 3, 3, 1, 1, 1, 1, 4, 4, 4, 1};  // in widths
constexpr bool kMatrices[kSlots] = {false, false, true, false, true, false,
                                    false, false, true, false, true, false};

Floats numbers(uint64_t stream, uint64_t count, double deviation)
{
    Floats all(count);
    for (uint64_t i = 0; i < count; ++i)
        all[i] = static_cast<float>(deviation * random_normal(7, stream, i));
    return all;
}

// An array on the device that goes with its owner.
class Array {
public:
    Array(Gpu &gpu, const Floats &contents) : gpu_(gpu), count_(contents.size())
    {
        address_ = gpu_.allocate(count_ * sizeof(float));
        gpu_.copy_to_device(address_, contents.data(), count_ * sizeof(float));
        gpu_.wait();
    }
    ~Array() { gpu_.free(address_); }
    Array(const Array &) = delete;
    Array &operator=(const Array &) = delete;

    uint64_t address() const { return address_; }
    float *pointer() const { return reinterpret_cast<float *>(address_); }
    Floats contents() const { return read(gpu_, address_, count_); }

    static Floats read(Gpu &gpu, uint64_t address, uint64_t count)
    {
        Floats found(count);
        gpu.copy_to_host(found.data(), address, count * sizeof(float));
        gpu.wait();
        return found;
    }

private:
    Gpu &gpu_;
    uint64_t count_;
    uint64_t address_ = 0;
};

// Sums run in other orders: near, measured by the largest of the numbers.
void expect_near(const Floats &wanted, const Floats &found, const std::string &what)
{
    ASSERT_EQ(wanted.size(), found.size());
    float top = 0.0F;
    for (const float number : wanted) top = std::max(top, std::fabs(number));
    ASSERT_GT(top, 0.0F) << what;
    float worst = 0.0F;
    for (size_t i = 0; i < wanted.size(); ++i)
        worst = std::max(worst, std::fabs(wanted[i] - found[i]));
    EXPECT_LE(worst, 2e-5F * top) << what << ", largest " << top;
}

void expect_near(const float *wanted, const Floats &found, const std::string &what)
{
    expect_near(Floats(wanted, wanted + found.size()), found, what);
}

class LaunchesTest : public testing::TestWithParam<Shape> {
protected:
    void SetUp() override { ASSERT_EQ(stw_double_reset("delay_us=0"), 0); }
    void TearDown() override
    {
        char text[4096] = "";
        EXPECT_EQ(stw_double_take_violations(text, sizeof text), 0u) << text;
        EXPECT_EQ(stw_double_leaks(text, sizeof text), 0u) << text;
    }

    Floats weights_of(uint32_t slot) const
    {
        const uint64_t width = GetParam().width;
        const uint64_t rows = !kMatrices[slot] ? 1 : slot == kContractWeight ? 4 * width : width;
        const uint64_t columns = slot == kContractWeight ? width : kSizes[slot] * width;
        Floats all = numbers(slot + 1, rows * columns, kMatrices[slot] ? 0.2 : 0.3);
        if (slot == kNorm1Gain || slot == kNorm2Gain)
            for (float &gain : all) gain += 1.0F;
        return all;
    }
};

TEST_P(LaunchesTest, ABlockIsTheProcessorsForwardAndBackward)
{
    const Shape &shape = GetParam();
    const uint64_t plane = uint64_t{shape.rows()} * shape.width;
    gemm_init();
    Pool pool(2);
    train_gpt::Workspace space(shape, 2, 0);
    Gpu gpu(0);
    {
        gpu::Workspace device(gpu, shape, 0, 1);
        std::array<Floats, kSlots> values, gradients;
        std::vector<std::unique_ptr<Array>> device_values, device_gradients;
        Weights weights, device_weights;
        Gradients to, device_to;
        for (uint32_t slot = 0; slot < kSlots; ++slot) {
            values[slot] = weights_of(slot);
            gradients[slot].assign(values[slot].size(), 9.0F);  // to be overwritten
            device_values.push_back(std::make_unique<Array>(gpu, values[slot]));
            device_gradients.push_back(std::make_unique<Array>(gpu, gradients[slot]));
            weights[slot] = values[slot].data();
            to[slot] = gradients[slot].data();
            device_weights[slot] = device_values[slot]->pointer();
            device_to[slot] = device_gradients[slot]->pointer();
        }
        const Floats x = numbers(100, plane, 1.0);
        const Floats dout = numbers(101, plane, 1.0);
        const Array device_x(gpu, x);
        const Array device_dout(gpu, dout);

        Block block(pool, space, shape);
        Launches launches(gpu, device, shape);
        std::copy(x.begin(), x.end(), space.stream);
        gpu.copy_inside(device.stream, device_x.address(), plane * sizeof(float));
        block.forward(weights);
        launches.forward(device_weights);
        expect_near(space.stream, Array::read(gpu, device.stream, plane), "forward");

        block.recompute(weights, x.data());
        launches.recompute(device_weights, device_x.address());
        std::copy(dout.begin(), dout.end(), space.dstream);
        gpu.copy_inside(device.dstream, device_dout.address(), plane * sizeof(float));
        block.backward_mlp(weights, to);
        launches.backward_mlp(device_weights, device_to);
        expect_near(space.dstream, Array::read(gpu, device.dstream, plane), "backward, mlp");
        block.backward_attention(weights, to, x.data());
        launches.backward_attention(device_weights, device_to, device_x.address());
        expect_near(space.dstream, Array::read(gpu, device.dstream, plane), "backward, attention");
        for (uint32_t slot = 0; slot < kSlots; ++slot)
            expect_near(gradients[slot], device_gradients[slot]->contents(),
                        "gradient " + std::to_string(slot));
    }
}

TEST_P(LaunchesTest, BothEndsAreTheProcessors)
{
    const Shape &shape = GetParam();
    const uint32_t rows = shape.rows();
    const uint64_t plane = uint64_t{rows} * shape.width;
    gemm_init();
    Pool pool(2);
    train_gpt::Workspace space(shape, 2, 0);
    Gpu gpu(0);
    {
        gpu::Workspace device(gpu, shape, 0, 1);
        const Floats table = numbers(1, uint64_t{kVocabulary} * shape.width, 0.5);
        const Floats positions = numbers(2, uint64_t{shape.sequence} * shape.width, 0.5);
        const Floats gain = numbers(3, shape.width, 1.0);
        const Floats bias = numbers(4, shape.width, 0.5);
        Floats dtable(table.size()), dpositions(positions.size(), 9.0F);
        Floats dgain(gain.size(), 9.0F), dbias(bias.size(), 9.0F);
        const Array at_table(gpu, table), at_positions(gpu, positions);
        const Array at_gain(gpu, gain), at_bias(gpu, bias);
        const Array at_dtable(gpu, dtable), at_dpositions(gpu, dpositions);
        const Array at_dgain(gpu, dgain), at_dbias(gpu, dbias);
        std::vector<uint8_t> tokens(rows), targets(rows);
        for (uint32_t i = 0; i < rows; ++i) {
            tokens[i] = static_cast<uint8_t>(random_bits(7, 200, i) % 7 * 40);
            targets[i] = static_cast<uint8_t>(random_bits(7, 201, i));
        }
        gpu.copy_to_device(device.tokens, tokens.data(), rows);
        gpu.copy_to_device(device.targets, targets.data(), rows);

        Launches launches(gpu, device, shape);
        embed(pool, space, shape, tokens.data(), table.data(), positions.data());
        launches.embed(at_table.pointer(), at_positions.pointer());
        expect_near(space.stream, Array::read(gpu, device.stream, plane), "embedding");

        const HeadWeights weights = {gain.data(), bias.data(), table.data()};
        const HeadWeights at = {at_gain.pointer(), at_bias.pointer(), at_table.pointer()};
        head_forward(pool, space, shape, weights);
        launches.head_forward(at);
        head_loss(pool, space, shape, targets.data(), 2 * rows);
        launches.head_loss(2 * rows);
        expect_near(space.losses, Array::read(gpu, device.losses, rows), "losses");
        expect_near(space.logits, Array::read(gpu, device.logits, uint64_t{rows} * kVocabulary),
                    "gradient of the logits");
        head_backward(pool, space, shape, weights, {dgain.data(), dbias.data(), dtable.data()});
        launches.head_backward(at, {at_dgain.pointer(), at_dbias.pointer(), at_dtable.pointer()});
        expect_near(space.dstream, Array::read(gpu, device.dstream, plane), "backward of the head");
        expect_near(dgain, at_dgain.contents(), "gradient of the gain");
        expect_near(dbias, at_dbias.contents(), "gradient of the bias");

        embed_gradient(pool, space, shape, tokens.data(), dtable.data(), dpositions.data());
        launches.embed_gradient(at_dtable.pointer(), at_dpositions.pointer());
        expect_near(dtable, at_dtable.contents(), "gradient of the table");
        expect_near(dpositions, at_dpositions.contents(), "gradient of the positions");
    }
}

INSTANTIATE_TEST_SUITE_P(Shapes, LaunchesTest,
                         testing::Values(Shape{2, 150, 36, 3}, Shape{1, 130, 33, 3},
                                         Shape{3, 1, 16, 2}, Shape{2, 7, 144, 1}),
                         [](const testing::TestParamInfo<Shape> &info) {
                             return std::to_string(info.param.batch) + "x" +
                                    std::to_string(info.param.sequence) + "x" +
                                    std::to_string(info.param.width);
                         });

}  // namespace
}  // namespace train_gpt
