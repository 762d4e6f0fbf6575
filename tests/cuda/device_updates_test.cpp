// SPDX-License-Identifier: Apache-2.0
// Updates on a device, over the module cuda and the double of CUDA's driver, whose kernels are the
// module's own, compiled for the host: the same training on the device, in the host tier and on
// both has the same bits, and the double sees each access that is not ordered.
#include "tests/cuda/double/control.h"
#include "tests/cuda/program_calls.h"
#include "tests/support/expect.h"

#include <stepwell/stepwell.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace stepwell {
namespace {

constexpr uint64_t kSecond = 1'000'000'000;

enum class Homes { kHost, kDevice, kBoth };

struct Setting {
    uint32_t algorithm = STW_OPTIMIZER_ADAMW;
    uint32_t parameter_dtype = STW_F32;
    uint32_t gradient_dtype = STW_F32;
    uint32_t state_dtype = STW_F32;
    uint32_t flags = 0;  // of the optimizer
    double ema_decay = 0.0;
    double clip_norm = 0.0;
    uint32_t device_blocks = 400;
    uint32_t block_bytes = STW_BLOCK_64K;
    bool budget_changes = false;  // all the time, on a thread beside the training
    uint32_t sums = 0;            // contributions to each gradient, beside what is written
    bool unified = false;         // the device shares the host's memory
    uint64_t seed = 1;
    // Of parameters: some share a block, some are large; runs of the scan end inside blocks.
    std::vector<uint64_t> sizes = {70, 16384, 40000, 300, 9000, 100001, 5};
};

uint32_t bytes_of(uint32_t dtype)
{
    return dtype == STW_F32 ? 4 : 2;
}

// Numbers of ordinary size, as bits of the dtype: the upper half of a float is a bf16.
std::vector<uint8_t> numbers(std::mt19937_64 &random, uint64_t elements, uint32_t dtype)
{
    std::normal_distribution<float> normal(0.0F, 1.0F);
    std::vector<uint8_t> bytes(elements * bytes_of(dtype));
    for (uint64_t i = 0; i < elements; ++i) {
        const float value = normal(random);
        uint32_t bits = 0;
        std::memcpy(&bits, &value, 4);
        if (dtype == STW_F16) bits = 0x38000000 | (bits & 0x83ff0000);
        const uint32_t shifted = dtype == STW_F32 ? bits : bits >> 16;
        std::memcpy(bytes.data() + i * bytes_of(dtype), &shifted, bytes_of(dtype));
    }
    return bytes;
}

struct Trained {
    std::vector<std::vector<uint8_t>> values;  // parameters, then their states
    std::vector<double> norms;
    uint64_t launches = 0;
};

// A copy of the bytes to the place of a view, when the stream comes to it.
struct Write {
    uint64_t address;
    std::vector<uint8_t> bytes;
    static void run(void *user, stw_double_alias_of alias)
    {
        const auto &write = *static_cast<Write *>(user);
        std::memcpy(alias(write.address), write.bytes.data(), write.bytes.size());
    }
};

class CudaUpdates : public testing::Test {
protected:
    void SetUp() override
    {
        // Without them each launch fails, and the training waits for what never comes.
        const char *kernels = std::getenv("STW_CUDA_DOUBLE_KERNELS");
        ASSERT_TRUE(kernels != nullptr && std::filesystem::exists(kernels))
            << "STW_CUDA_DOUBLE_KERNELS must name libstepwell-double-kernels.so of this build, "
               "which has the kernels for the double, and is '"
            << (kernels != nullptr ? kernels : "") << "'";
        char directory[] = "/tmp/stepwell-cuda-XXXXXX";
        ASSERT_NE(mkdtemp(directory), nullptr);
        directory_ = directory;
        module_ = directory_ + "/libstepwell-cuda.so";
        std::filesystem::copy_file(TEST_CUDA_MODULE, module_);
        std::filesystem::permissions(module_, std::filesystem::perms(0644));
    }
    void TearDown() override
    {
        close();
        if (!directory_.empty()) std::filesystem::remove_all(directory_);
    }
    void open(const Setting &setting)
    {
        const std::string options = "delay_us=200,seed=" + std::to_string(setting.seed) +
                                    (setting.unified ? ",unified=1" : "");
        ASSERT_EQ(stw_double_reset(options.c_str()), 0);
        ASSERT_EQ(cuInit(0), 0);
        ASSERT_EQ(cuDevicePrimaryCtxRetain(&context_, 0), 0);
        ASSERT_EQ(cuCtxSetCurrent(context_), 0);
        ASSERT_EQ(cuStreamCreate(&stream_, 1), 0);
        stw_device_options device = STW_DEVICE_OPTIONS_INIT;
        stw_nvme_options nvme = STW_NVME_OPTIONS_INIT;
        stw_runtime_options runtime = STW_RUNTIME_OPTIONS_INIT;
        device.driver = module_.c_str();
        device.budget_bytes = uint64_t{setting.device_blocks} * setting.block_bytes;
        nvme.path = directory_.c_str();
        nvme.budget_bytes = uint64_t{1024} * setting.block_bytes;
        nvme.driver = "posix";
        runtime.devices = &device, runtime.device_count = 1;
        runtime.nvme = &nvme, runtime.nvme_count = 1;
        runtime.host_bytes = uint64_t{64} * setting.block_bytes;
        runtime.block_bytes = setting.block_bytes;
        runtime.timeout_ns = 60 * kSecond;
        ASSERT_OK(stw_runtime_open(&runtime, &runtime_));
    }
    void close()
    {
        if (runtime_ != nullptr) {
            EXPECT_OK(stw_runtime_close(std::exchange(runtime_, nullptr), 0, 0));
        }
        if (stream_ != nullptr) cuStreamDestroy_v2(std::exchange(stream_, nullptr));
        if (std::exchange(context_, nullptr) != nullptr) cuDevicePrimaryCtxRelease_v2(0);
        char text[4096] = "";
        EXPECT_EQ(stw_double_take_violations(text, sizeof text), 0u) << text;
        EXPECT_EQ(stw_double_leaks(text, sizeof text), 0u) << text;
    }
    stw_tensor *make(const std::string &name, uint64_t elements, uint32_t dtype, uint32_t role,
                     const stw_policy *policy = nullptr)
    {
        stw_tensor_spec spec = STW_TENSOR_SPEC_INIT;
        spec.name = name.c_str();
        spec.dtype = dtype;
        spec.role = role;
        spec.dimensions = 1;
        spec.shape[0] = elements;
        spec.policy = policy;
        stw_tensor *tensor = nullptr;
        EXPECT_OK(stw_tensor_create(runtime_, &spec, 1, &tensor));
        return tensor;
    }
    stw_optimizer *make_optimizer(const Setting &setting, bool on_device, const char *name)
    {
        stw_policy policy = STW_POLICY_INIT;
        policy.home = on_device ? STW_TIER_DEVICE : STW_TIER_HOST;
        stw_optimizer_options options = STW_OPTIMIZER_OPTIONS_INIT;
        options.algorithm = setting.algorithm;
        options.name = name;
        options.state_dtype = setting.state_dtype;
        options.state_policy = &policy;
        options.flags = setting.flags;
        options.ema_decay = setting.ema_decay;
        stw_optimizer *optimizer = nullptr;
        EXPECT_OK(stw_optimizer_create(runtime_, &options, &optimizer));
        stw_hyper hyper = STW_HYPER_INIT;
        hyper.lr = 0.01;
        hyper.weight_decay = 0.1;
        hyper.momentum = setting.algorithm == STW_OPTIMIZER_SGD ? 0.9 : 0.0;
        EXPECT_OK(stw_optimizer_set_hyper(optimizer, 0, &hyper));
        return optimizer;
    }
    // A runtime with one parameter of 5000 elements, which is trained on the device.
    std::tuple<stw_optimizer *, stw_tensor *, stw_tensor *> open_on_device()
    {
        const Setting setting;
        open(setting);
        if (HasFatalFailure()) return {};
        stw_policy policy = STW_POLICY_INIT;
        policy.home = STW_TIER_DEVICE;
        stw_optimizer_entry entry = STW_OPTIMIZER_ENTRY_INIT;
        entry.parameter = make("p", 5000, STW_F32, STW_ROLE_PARAM, &policy);
        entry.gradient = make("g", 5000, STW_F32, STW_ROLE_GRAD, &policy);
        stw_optimizer *optimizer = make_optimizer(setting, true, "o");
        EXPECT_OK(stw_optimizer_add(optimizer, &entry, 1));
        return {optimizer, entry.parameter, entry.gradient};
    }
    // Through a view on the stream, by work that is late.
    void write_late(stw_tensor *tensor, uint32_t access, std::vector<uint8_t> bytes)
    {
        stw_fetch_options options = STW_FETCH_OPTIONS_INIT;
        stw_fetch_request request = STW_FETCH_REQUEST_INIT;
        options.stream = stream_;
        request.tensor = tensor;
        request.access = access;
        stw_view view;
        ASSERT_OK(stw_fetch(runtime_, &options, &request, 1, &view));
        ASSERT_EQ(view.bytes, bytes.size());
        writes_.push_back(std::make_unique<Write>());
        *writes_.back() = {reinterpret_cast<uint64_t>(view.pointer), std::move(bytes)};
        const stw_double_range range = {writes_.back()->address, view.bytes, 1, 0};
        ASSERT_EQ(
            stw_double_consume(stream_, "gradient", &range, 1, Write::run, writes_.back().get()),
            0);
        ASSERT_OK(stw_release(&view, 1, stream_, 0));
    }
    static std::vector<uint8_t> read(stw_tensor *tensor, uint64_t bytes)
    {
        std::vector<uint8_t> data(bytes);
        EXPECT_OK(stw_tensor_read(tensor, data.data(), nullptr));
        return data;
    }
    Trained train(const Setting &setting, Homes homes);

    // Of the device's budget while it lives, also to less than an update needs.
    class Changes {
    public:
        Changes(const CudaUpdates &test, const Setting &setting)
        {
            if (!setting.budget_changes) return;
            thread_ = std::thread([this, &test, setting] {
                const uint32_t budgets[] = {4, setting.device_blocks, 17, 6, setting.device_blocks};
                for (uint32_t i = 0; !over_ || i % 5 != 0; ++i) {
                    const stw_status status = stw_tier_set_budget(
                        test.runtime_, STW_TIER_DEVICE, 0,
                        uint64_t{budgets[i % 5]} * setting.block_bytes, 60 * kSecond);
                    EXPECT_TRUE(status == STW_OK || status == STW_ERROR_BUDGET) << stw_last_error();
                    if (status == STW_OK) ++done_;
                }
            });
        }
        ~Changes()
        {
            over_ = true;
            if (!thread_.joinable()) return;
            thread_.join();
            EXPECT_GT(done_, 4u);
        }
        Changes(const Changes &) = delete;
        Changes &operator=(const Changes &) = delete;

    private:
        std::atomic<bool> over_{false};
        uint32_t done_ = 0;
        std::thread thread_;
    };

    std::string directory_;
    std::string module_;
    void *context_ = nullptr;
    void *stream_ = nullptr;
    stw_runtime *runtime_ = nullptr;
    std::vector<std::unique_ptr<Write>> writes_;
};

Trained CudaUpdates::train(const Setting &setting, Homes homes)
{
    Trained trained;
    open(setting);
    if (HasFatalFailure()) return trained;
    std::mt19937_64 random(setting.seed);
    stw_optimizer *optimizers[2] = {make_optimizer(setting, homes != Homes::kHost, "first"),
                                    make_optimizer(setting, homes == Homes::kDevice, "second")};
    std::vector<stw_tensor *> parameters;
    std::vector<stw_tensor *> gradients;
    for (size_t i = 0; i < setting.sizes.size(); ++i) {
        const bool on_device = homes == Homes::kDevice || (homes == Homes::kBoth && i % 2 == 0);
        stw_policy policy = STW_POLICY_INIT;
        policy.home = on_device ? STW_TIER_DEVICE : STW_TIER_HOST;
        const std::string number = std::to_string(i);
        parameters.push_back(
            make("p" + number, setting.sizes[i], setting.parameter_dtype, STW_ROLE_PARAM, &policy));
        gradients.push_back(
            make("g" + number, setting.sizes[i], setting.gradient_dtype, STW_ROLE_GRAD, &policy));
        const auto values = numbers(random, setting.sizes[i], setting.parameter_dtype);
        EXPECT_OK(stw_tensor_write(parameters[i], values.data(), nullptr));
        stw_optimizer_entry entry = STW_OPTIMIZER_ENTRY_INIT;
        entry.parameter = parameters[i];
        entry.gradient = gradients[i];
        EXPECT_OK(stw_optimizer_add(optimizers[i % 2], &entry, 1));
    }
    stw_double_calls_reset();
    std::optional<Changes> changes(std::in_place, *this, setting);
    for (int step = 0; step < 3; ++step) {
        for (size_t i = 0; i < setting.sizes.size(); ++i) {
            write_late(gradients[i], STW_WRITE,
                       numbers(random, setting.sizes[i], setting.gradient_dtype));
            for (uint32_t sum = 0; sum < setting.sums; ++sum)
                write_late(gradients[i], STW_REDUCE,
                           numbers(random, setting.sizes[i], setting.gradient_dtype));
            if (HasFatalFailure()) return trained;
        }
        for (stw_optimizer *optimizer : optimizers) {
            stw_update_options options = STW_UPDATE_OPTIONS_INIT;
            stw_update_result result = STW_UPDATE_RESULT_INIT;
            options.gradient_scale = 0.5;
            options.clip_norm = setting.clip_norm;
            EXPECT_OK(stw_optimizer_step(optimizer, &options, &result));
            trained.norms.push_back(result.norm);
        }
    }
    changes.reset();
    trained.launches = stw_double_calls("cuLaunchKernel");
    const auto keep = [&](stw_tensor *tensor, uint64_t bytes) {
        trained.values.push_back(read(tensor, bytes));
    };
    for (size_t i = 0; i < setting.sizes.size(); ++i) {
        keep(parameters[i], setting.sizes[i] * bytes_of(setting.parameter_dtype));
        for (const char *name : {"exp_avg", "exp_avg_sq", "momentum", "sum"}) {
            stw_tensor *state = nullptr;
            if (stw_optimizer_state(optimizers[i % 2], parameters[i], name, &state) == STW_OK)
                keep(state, setting.sizes[i] * bytes_of(setting.state_dtype));
        }
        for (const char *name : {"master", "ema"}) {
            stw_tensor *state = nullptr;
            if (stw_optimizer_state(optimizers[i % 2], parameters[i], name, &state) == STW_OK)
                keep(state, setting.sizes[i] * 4);
        }
    }
    close();
    writes_.clear();
    return trained;
}

void expect_equal(const Trained &one, const Trained &other)
{
    ASSERT_EQ(one.values.size(), other.values.size());
    for (size_t i = 0; i < one.values.size(); ++i) {
        EXPECT_EQ(std::memcmp(one.values[i].data(), other.values[i].data(), one.values[i].size()),
                  0)
            << "array " << i;
    }
    ASSERT_EQ(one.norms.size(), other.norms.size());
    for (size_t i = 0; i < one.norms.size(); ++i) {
        EXPECT_EQ(std::memcmp(&one.norms[i], &other.norms[i], sizeof(double)), 0) << i;
    }
}

TEST_F(CudaUpdates, AreTheSameWhereverTheStatesAreAtHome)
{
    std::vector<Setting> settings;
    for (const uint32_t algorithm : {STW_OPTIMIZER_ADAMW, STW_OPTIMIZER_ADAM, STW_OPTIMIZER_SGD,
                                     STW_OPTIMIZER_ADAGRAD, STW_OPTIMIZER_LION}) {
        Setting setting;
        setting.algorithm = algorithm;
        setting.seed = settings.size() + 1;
        settings.push_back(setting);
        setting.parameter_dtype = STW_BF16;
        setting.gradient_dtype = settings.size() % 2 == 0 ? STW_BF16 : STW_F16;
        setting.state_dtype = STW_BF16;
        setting.ema_decay = 0.9;
        setting.clip_norm = 0.7;
        settings.push_back(setting);
    }
    for (const Setting &setting : settings) {
        SCOPED_TRACE(testing::Message()
                     << "algorithm " << setting.algorithm << ", dtype " << setting.parameter_dtype);
        const Trained host = train(setting, Homes::kHost);
        const Trained device = train(setting, Homes::kDevice);
        if (HasFatalFailure()) return;
        EXPECT_EQ(host.launches, 0u);
        EXPECT_GT(device.launches, 20u);
        expect_equal(host, device);
        expect_equal(host, train(setting, Homes::kBoth));
    }
}

// The device has room for a part of the states: they leave, and come back for the next update.
TEST_F(CudaUpdates, AreTheSameInADeviceThatIsTooSmall)
{
    Setting setting;
    setting.clip_norm = 0.5;
    const Trained host = train(setting, Homes::kHost);
    for (uint64_t seed = 1; seed <= 4; ++seed) {
        setting.device_blocks = 18;
        // The numbers stay; what is late is another matter each time.
        const Trained device = train(setting, Homes::kDevice);
        if (HasFatalFailure()) return;
        EXPECT_GT(device.launches, 20u);
        expect_equal(host, device);
    }
}

// What lies side by side is updated by one launch, and nobody takes room for that from others.
TEST_F(CudaUpdates, NeighbouringBlocksAreUpdatedTogether)
{
    Setting setting;
    setting.sizes = {262144};  // 16 blocks each of four tensors
    const Trained host = train(setting, Homes::kHost);
    const Trained device = train(setting, Homes::kDevice);
    EXPECT_LE(device.launches, 3 * (16 + 2u));  // gradients are scanned block by block
    expect_equal(host, device);
    setting.device_blocks = 600;  // 64 blocks are an eighth of what it has
    const Trained large = train(setting, Homes::kDevice);
    EXPECT_LE(large.launches, 3 * (16 + 1u));
    expect_equal(host, large);
    setting.device_blocks = 60;
    const Trained small = train(setting, Homes::kDevice);
    EXPECT_GT(small.launches, device.launches);
    expect_equal(host, small);
}

// They have left and come back to other slots, between those of others.
TEST_F(CudaUpdates, AreTheSameWhereNeighboursLieApart)
{
    Setting setting;
    setting.sizes = {262144, 70, 200000, 262144, 50001, 30000};
    setting.parameter_dtype = STW_BF16;
    setting.gradient_dtype = STW_BF16;
    setting.ema_decay = 0.5;
    setting.clip_norm = 0.5;
    for (const uint32_t states : {STW_F32, STW_BF16}) {
        setting.state_dtype = states;
        setting.device_blocks = 400;
        const Trained host = train(setting, Homes::kHost);
        setting.device_blocks = 130;
        expect_equal(host, train(setting, Homes::kDevice));
        expect_equal(host, train(setting, Homes::kBoth));
    }
}

TEST_F(CudaUpdates, InTorchsOrderStayOnTheHost)
{
    Setting setting;
    setting.clip_norm = 0.5;
    const Trained own = train(setting, Homes::kHost);
    setting.flags = STW_OPTIMIZER_TORCH_ORDER;
    const Trained host = train(setting, Homes::kHost);
    const Trained device = train(setting, Homes::kDevice);
    if (HasFatalFailure()) return;
    EXPECT_EQ(device.launches, 0u);
    expect_equal(host, device);
    EXPECT_NE(own.values, host.values);
}

TEST_F(CudaUpdates, ADeviceWithoutRoomForAnUpdateHasNone)
{
    Setting setting;
    setting.clip_norm = 0.5;
    const Trained host = train(setting, Homes::kHost);
    setting.device_blocks = 8;  // an update may work on 16 blocks
    const Trained device = train(setting, Homes::kDevice);
    EXPECT_EQ(device.launches, 0u);
    expect_equal(host, device);
}

// States that leave are written to the drive from where the device computed them, and come back.
TEST_F(CudaUpdates, AreTheSameOnADeviceThatSharesTheHostsMemory)
{
    Setting setting;
    setting.clip_norm = 0.5;
    const Trained host = train(setting, Homes::kHost);
    setting.unified = true;
    for (const uint32_t blocks : {400u, 18u}) {
        setting.device_blocks = blocks;
        const Trained device = train(setting, Homes::kDevice);
        if (HasFatalFailure()) return;
        EXPECT_GT(device.launches, 20u);
        expect_equal(host, device);
        expect_equal(host, train(setting, Homes::kBoth));
    }
}

// Where the device has no room at a moment it is the host that updates, and no bit tells.
TEST_F(CudaUpdates, AreTheSameWhileTheBudgetOfTheDeviceChanges)
{
    Setting setting;
    setting.block_bytes = STW_BLOCK_2M;
    setting.device_blocks = 24;
    setting.clip_norm = 0.5;
    setting.parameter_dtype = STW_BF16;
    const Trained host = train(setting, Homes::kHost);
    setting.budget_changes = true;
    for (int round = 0; round < 3; ++round) expect_equal(host, train(setting, Homes::kDevice));
}

TEST_F(CudaUpdates, ContributionsAreSummedWhereTheGradientIsAtHome)
{
    Setting setting;
    setting.sums = 2;
    setting.gradient_dtype = STW_BF16;
    const Trained host = train(setting, Homes::kHost);
    const Trained device = train(setting, Homes::kDevice);
    expect_equal(host, device);
    EXPECT_EQ(host.launches, 0u);
    // For each tensor and step two sums, beside its update and its scan.
    EXPECT_GE(device.launches, setting.sizes.size() * 3 * 4);
}

// Nothing on the device has happened yet, and the step has returned: nobody waited for an update.
TEST_F(CudaUpdates, AStepWithoutAVerdictWaitsForNothing)
{
    const auto [optimizer, parameter, gradient] = open_on_device();
    if (HasFatalFailure()) return;
    std::mt19937_64 random(1);
    const auto ones = numbers(random, 5000, STW_F32);
    write_late(parameter, STW_WRITE, ones);
    write_late(gradient, STW_WRITE, numbers(random, 5000, STW_F32));
    ASSERT_OK(stw_optimizer_step(optimizer, nullptr, nullptr));
    stw_double_drain();
    ASSERT_OK(stw_runtime_drain(runtime_, 0));
    write_late(gradient, STW_WRITE, numbers(random, 5000, STW_F32));
    stw_double_drain();
    stw_double_hold_all(1);
    ASSERT_OK(stw_optimizer_step(optimizer, nullptr, nullptr));
    ASSERT_OK(stw_runtime_drain(runtime_, 0));
    EXPECT_GT(stw_double_pending(nullptr), 0u);
    // Who comes next stands behind it.
    stw_fetch_options options = STW_FETCH_OPTIONS_INIT;
    stw_fetch_request request = STW_FETCH_REQUEST_INIT;
    options.stream = stream_;
    request.tensor = parameter;
    request.access = STW_READ;
    stw_view view;
    ASSERT_OK(stw_fetch(runtime_, &options, &request, 1, &view));
    struct Seen {
        uint64_t address;
        std::vector<uint8_t> bytes;
    } seen{reinterpret_cast<uint64_t>(view.pointer), std::vector<uint8_t>(view.bytes)};
    const stw_double_range range = {seen.address, view.bytes, 0, 0};
    ASSERT_EQ(stw_double_consume(
                  stream_, "reader", &range, 1,
                  [](void *user, stw_double_alias_of alias) {
                      auto &mine = *static_cast<Seen *>(user);
                      std::memcpy(mine.bytes.data(), alias(mine.address), mine.bytes.size());
                  },
                  &seen),
              0);
    ASSERT_OK(stw_release(&view, 1, stream_, 0));
    stw_double_hold_all(0);
    ASSERT_EQ(cuStreamSynchronize(stream_), 0);
    EXPECT_EQ(seen.bytes, read(parameter, 20000));
    EXPECT_NE(seen.bytes, ones);
}

// Who has synchronised his own streams cannot have waited for the update.
TEST_F(CudaUpdates, AFetchThatOrdersNothingWaitsForTheUpdate)
{
    const auto [optimizer, parameter, gradient] = open_on_device();
    if (HasFatalFailure()) return;
    std::mt19937_64 random(1);
    for (int step = 0; step < 8; ++step) {
        const auto values = numbers(random, 5000, STW_F32);
        write_late(parameter, STW_WRITE, values);
        write_late(gradient, STW_WRITE, numbers(random, 5000, STW_F32));
        ASSERT_OK(stw_optimizer_step(optimizer, nullptr, nullptr));
        stw_fetch_options options = STW_FETCH_OPTIONS_INIT;
        stw_fetch_request request = STW_FETCH_REQUEST_INIT;
        options.stream = STW_STREAM_SYNCED;
        request.tensor = parameter;
        request.access = STW_READ;
        stw_view view;
        ASSERT_OK(stw_fetch(runtime_, &options, &request, 1, &view));
        const auto address = reinterpret_cast<uint64_t>(view.pointer);
        stw_double_host_reads(address, view.bytes);
        const std::vector<uint8_t> seen(static_cast<uint8_t *>(stw_double_alias(address)),
                                        static_cast<uint8_t *>(stw_double_alias(address)) +
                                            view.bytes);
        ASSERT_OK(stw_release(&view, 1, STW_STREAM_SYNCED, 0));
        EXPECT_EQ(seen, read(parameter, 20000));
        EXPECT_NE(seen, values);
    }
}

// Without a policy the states are at home on the device as long as they take no more than half of
// it with the parameters and gradients, in the order of the parameters.
TEST_F(CudaUpdates, StatesWithoutAPolicyAreWhereTheyFit)
{
    Setting setting;
    setting.device_blocks = 90;  // half of it: 2.9 MB
    open(setting);
    constexpr uint64_t kElements = 100000;  // 400 kB each: two of four fit in, and one has states
    const auto zeros = std::vector<uint8_t>(kElements * 4);
    for (int round = 0; round < 2; ++round) {
        stw_optimizer_options options = STW_OPTIMIZER_OPTIONS_INIT;
        options.algorithm = STW_OPTIMIZER_ADAMW;
        stw_optimizer *optimizer = nullptr;
        const stw_hyper usual = STW_HYPER_INIT;
        ASSERT_OK(stw_optimizer_create(runtime_, &options, &optimizer));
        ASSERT_OK(stw_optimizer_set_hyper(optimizer, 0, &usual));
        stw_tensor *tensors[4];
        stw_optimizer_entry entries[2] = {STW_OPTIMIZER_ENTRY_INIT, STW_OPTIMIZER_ENTRY_INIT};
        for (int i = 0; i < 2; ++i) {
            tensors[2 * i] = make("p" + std::to_string(i), kElements, STW_F32, STW_ROLE_PARAM);
            tensors[2 * i + 1] = make("g" + std::to_string(i), kElements, STW_F32, STW_ROLE_GRAD);
            entries[i].parameter = tensors[2 * i];
            entries[i].gradient = tensors[2 * i + 1];
        }
        ASSERT_OK(stw_optimizer_add(optimizer, entries, 2));
        for (stw_tensor *tensor : tensors)
            ASSERT_OK(stw_tensor_write(tensor, zeros.data(), nullptr));
        stw_double_calls_reset();
        stw_update_options step = STW_UPDATE_OPTIONS_INIT;
        step.flags = STW_UPDATE_WAIT;
        step.parameters = &tensors[0], step.parameter_count = 1;
        ASSERT_OK(stw_optimizer_step(optimizer, &step, nullptr));
        EXPECT_GT(stw_double_calls("cuLaunchKernel"), 0u) << "round " << round;
        stw_double_calls_reset();
        step.parameters = &tensors[2];
        ASSERT_OK(stw_optimizer_step(optimizer, &step, nullptr));
        EXPECT_EQ(stw_double_calls("cuLaunchKernel"), 0u) << "round " << round;
        ASSERT_OK(stw_optimizer_destroy(optimizer));
        for (stw_tensor *tensor : tensors) ASSERT_OK(stw_tensor_destroy(&tensor, 1));
    }
}

TEST_F(CudaUpdates, ALostDeviceFailsTheTensorsThatMissTheirUpdate)
{
    const auto [optimizer, parameter, gradient] = open_on_device();
    if (HasFatalFailure()) return;
    std::mt19937_64 random(1);
    write_late(parameter, STW_WRITE, numbers(random, 5000, STW_F32));
    write_late(gradient, STW_WRITE, numbers(random, 5000, STW_F32));
    stw_double_drain();
    stw_double_break(0, 700);
    stw_update_options options = STW_UPDATE_OPTIONS_INIT;
    options.flags = STW_UPDATE_WAIT;
    EXPECT_EQ(stw_optimizer_step(optimizer, &options, nullptr), STW_ERROR_DEVICE);
    EXPECT_NE(std::string(stw_last_error()).find("device"), std::string::npos) << stw_last_error();
    EXPECT_LT(stw_runtime_close(runtime_, 0, 0), 1) << stw_last_error();
    runtime_ = nullptr, stream_ = nullptr, context_ = nullptr;
    stw_double_reset("seed=1");
}

}  // namespace
}  // namespace stepwell
