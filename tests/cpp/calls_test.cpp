// SPDX-License-Identifier: Apache-2.0
// stepwell.hpp: every call of the C API through the wrapper, each with an effect that shows which
// one it was. Lifetimes are wrapper_test.cpp's.
#include <stepwell/stepwell.hpp>

#include "../support/budget_sentence.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <future>
#include <string>
#include <thread>
#include <utility>
#include <vector>

// As far as these tests read them.
struct DlpackTensor {
    void *data;
    char rest[40];
};
struct DLManagedTensor {
    DlpackTensor tensor;
    void *context;
    void (*deleter)(DLManagedTensor *self);
};
struct DLManagedTensorVersioned {
    uint32_t version[2];
    void *context;
    void (*deleter)(DLManagedTensorVersioned *self);
    uint64_t flags;
    DlpackTensor tensor;
};

namespace {

constexpr uint64_t kElements = 40000;  // three blocks, the last in part

stw::Runtime open_runtime(const char *fault_script = nullptr)
{
    stw_device_options device = STW_DEVICE_OPTIONS_INIT;
    device.budget_bytes = 1u << 20;
    stw_nvme_options nvme = STW_NVME_OPTIONS_INIT;
    nvme.path = ".";
    nvme.budget_bytes = 8u << 20;
    nvme.driver = fault_script ? "fault" : nullptr;
    nvme.driver_options = fault_script;
    stw_runtime_options options = STW_RUNTIME_OPTIONS_INIT;
    options.devices = &device;
    options.device_count = 1;
    options.nvme = &nvme;
    options.nvme_count = 1;
    options.host_bytes = 1u << 20;
    options.block_bytes = STW_BLOCK_64K;
    options.timeout_ns = 10ull * 1000000000;
    return stw::Runtime::open(options).value();
}

stw::Tensor tensor_of(const stw::Runtime &runtime, const char *name, double value,
                      uint32_t role = STW_ROLE_OTHER)
{
    stw::Tensor tensor = stw::Tensor::create(runtime, name, {kElements}, STW_F32, role).value();
    tensor.fill(value);
    return tensor;
}

template <class Body> stw_status code_of(Body &&body)
{
    try {
        body();
    } catch (const stw::Error &error) {
        const char *wrong =
            error.code() == STW_ERROR_BUDGET ? budget_sentence_wrong(error.what()) : nullptr;
        EXPECT_EQ(wrong, nullptr) << wrong << ": " << error.what();
        return error.code();
    }
    return STW_OK;
}

std::string text_of_file(const std::string &path)
{
    std::ifstream file(path);
    return {std::istreambuf_iterator<char>(file), {}};
}

TEST(Library, SaysItsVersionItsTextsAndItsDtypes)
{
    EXPECT_NE(std::strlen(stw::version()), 0u);
    EXPECT_EQ(stw::abi_version(), 0u);
    EXPECT_STREQ(stw::text_of(STW_OK), "success");
    EXPECT_EQ(stw::dtype_bits(STW_BF16), 16u);
    EXPECT_EQ(stw::dtype_bits(stw::dtype_of<double>()), 64u);
    EXPECT_EQ(stw::dtype_bits(99), 0u);
}

TEST(Error, WithoutASentenceSaysWhatTheCodeMeans)
{
    stw::Runtime runtime = open_runtime();
    EXPECT_EQ(code_of([&] { (void)runtime.find("none"); }), STW_ERROR_NOT_FOUND);
    EXPECT_NE(std::string(stw::last_error()).find("none"), std::string::npos);
    runtime.close();
    try {
        runtime.interrupt();
        ADD_FAILURE() << "a closed runtime was interrupted";
    } catch (const stw::Error &error) {
        EXPECT_STREQ(error.what(), stw::text_of(STW_ERROR_CLOSED));
    }
}

TEST(Runtime, FindsTensorsByNameAndInOrder)
{
    const stw::Runtime runtime = open_runtime();
    const stw::Tensor a = stw::Tensor::create(runtime, "a", {8}).value();
    const stw::Tensor b = stw::Tensor::create(runtime, "b", {8}).value();
    EXPECT_EQ(runtime.find("b").value(), b);
    EXPECT_EQ(runtime.next().value(), a);
    EXPECT_EQ(runtime.next(a).value(), b);
    EXPECT_FALSE(runtime.next(b).value());
}

TEST(Runtime, PrefetchMovesAndEvictMovesBack)
{
    stw::Runtime runtime = open_runtime();
    stw::Tensor a = tensor_of(runtime, "a", 1);
    stw::Tensor b = tensor_of(runtime, "b", 2);
    runtime.evict_all(STW_TIER_DEVICE);
    EXPECT_EQ(runtime.tier(STW_TIER_DEVICE).value().used_bytes, 0u);
    runtime.prefetch({stw::want(a, STW_READ, STW_TIER_DEVICE)});
    runtime.drain();
    EXPECT_NE(a.info().value().residence & STW_ALLOW_DEVICE, 0u);
    runtime.evict({b.get()}, STW_TIER_DEVICE);
    runtime.forget_stream(STW_STREAM_HOST);
    EXPECT_NE(a.info().value().residence & STW_ALLOW_DEVICE, 0u) << "b alone was to leave";
    runtime.evict({a.get()}, STW_TIER_DEVICE);
    EXPECT_EQ(a.info().value().residence & STW_ALLOW_DEVICE, 0u);
}

TEST(Runtime, ABudgetGoesToNothingAndBack)
{
    stw::Runtime runtime = open_runtime();
    stw::Tensor a = tensor_of(runtime, "a", 1);
    const uint64_t before = runtime.tier(STW_TIER_DEVICE).value().budget_bytes;
    runtime.set_budget(STW_TIER_DEVICE, 0);
    EXPECT_EQ(runtime.tier(STW_TIER_DEVICE).value().used_bytes, 0u);
    EXPECT_EQ(code_of([&] { runtime.set_budget(STW_TIER_DEVICE, 2 * before); }), STW_ERROR_LIMIT);
    runtime.set_budget(STW_TIER_DEVICE, before);
    EXPECT_EQ(runtime.tier(STW_TIER_DEVICE).value().budget_bytes, before);
}

TEST(HostMemory, IsFreedWithItsOwnerWhoMayOutliveTheRuntime)
{
    stw_runtime_options options = STW_RUNTIME_OPTIONS_INIT;
    options.host_bytes = 4u << 20;
    options.host_scratch_bytes = 1u << 20;
    options.block_bytes = STW_BLOCK_64K;
    stw::HostMemory kept;
    stw::Runtime runtime = stw::Runtime::open(options).value();
    {
        stw::HostMemory piece =
            stw::HostMemory::allocate(runtime, 5000, 4096, STW_HOST_ZERO).value();
        EXPECT_EQ(reinterpret_cast<uintptr_t>(piece.data()) % 4096, 0u);
        EXPECT_EQ(piece.as<float>().size(), 1250u);
        EXPECT_EQ(piece.as<float>()[1249], 0);
        EXPECT_EQ(runtime.tier(STW_TIER_HOST).value().scratch_used_bytes, 8192u);
        kept = std::move(piece);
        EXPECT_FALSE(bool(piece));
    }
    EXPECT_EQ(runtime.tier(STW_TIER_HOST).value().scratch_used_bytes, 8192u);
    kept.free();
    EXPECT_EQ(runtime.tier(STW_TIER_HOST).value().scratch_used_bytes, 0u);
    EXPECT_EQ(code_of([&] { (void)stw::HostMemory::allocate(runtime, 2u << 20); }),
              STW_ERROR_BUDGET);
    kept = stw::HostMemory::allocate(runtime, 100).value();
    EXPECT_EQ(code_of([&] { runtime.close(); }), STW_ERROR_BUSY);
    runtime.close(STW_CLOSE_DEFERRED);
    kept.as<char>()[99] = 1;
}

TEST(Runtime, APolicyOfTheProgramSaysWhatLeaves)
{
    stw::Runtime runtime = open_runtime();
    stw::Tensor tensor = tensor_of(runtime, "t", 1);
    std::atomic<const stw_tensor *> seen{nullptr};
    auto policy = [&](uint32_t tier, uint32_t, const stw_victim *victims, uint32_t n, double *) {
        if (n > 0 && tier == STW_TIER_DEVICE) seen = victims[n - 1].tensor;
        throw 1;  // ends in the wrapper
    };
    runtime.set_victim_policy(policy);
    while (runtime.tier(STW_TIER_DEVICE).value().policy_calls == 0) std::this_thread::yield();
    EXPECT_EQ(seen.load(), tensor.get());
    runtime.remove_victim_policy();
    seen = nullptr;
    stw::Phase phase = stw::Phase::create(runtime, "p").value();
    {
        stw::Step step = stw::Step::begin(phase).value();
        step.end();
    }
    EXPECT_EQ(seen.load(), nullptr);
}

TEST(Runtime, SaysWhatFitsTogether)
{
    const stw::Runtime runtime = open_runtime();
    const stw::Tensor half = stw::Tensor::create(runtime, "half", {160000}).value();
    const stw::Tensor other = stw::Tensor::create(runtime, "other", {160000}).value();
    const auto here = [](const stw::Tensor &tensor) {
        return stw::want(tensor, STW_WRITE, STW_TIER_DEVICE);
    };
    EXPECT_EQ(code_of([&] { runtime.fits({here(half)}); }), STW_OK);
    EXPECT_EQ(code_of([&] { runtime.fits({here(half), here(other)}); }), STW_ERROR_BUDGET);
}

TEST(Drivers, AreLookedUpByName)
{
    const stw_driver_info aio = stw::driver_info("aio").value();
    EXPECT_STREQ(aio.name, "aio");
    EXPECT_EQ(aio.kinds, uint32_t{STW_DRIVER_STORAGE});
    EXPECT_EQ(aio.built_in, 1u);
    EXPECT_EQ(code_of([] { (void)stw::driver_info("tape"); }), STW_ERROR_UNSUPPORTED);
}

TEST(Runtime, TellsDeviceLinksAndFiles)
{
    stw::Runtime runtime = open_runtime();
    const stw_device_info device = runtime.device().value();
    EXPECT_STREQ(device.driver, "cpu");
    EXPECT_NE(device.flags & STW_DEVICE_STABLE_ADDRESS, 0u);
    EXPECT_EQ(code_of([&] { (void)runtime.device(7); }), STW_ERROR_INVALID);
    stw::Tensor tensor = tensor_of(runtime, "t", 1);
    runtime.evict_all(STW_TIER_DEVICE);
    runtime.evict_all(STW_TIER_HOST);
    const uint64_t written = runtime.link(STW_LINK_HOST_TO_NVME).value().bytes +
                             runtime.link(STW_LINK_DEVICE_TO_NVME).value().bytes;
    EXPECT_GE(written, kElements * sizeof(float));
    // The same test runs as another standard at the same time, in the same directory.
    const std::string standard = std::to_string(__cplusplus);
    const std::string report = "calls-report-" + standard + ".json";
    const std::string timeline = "calls-timeline-" + standard + ".json";
    runtime.write_report(report.c_str());
    runtime.write_timeline(timeline.c_str());
    EXPECT_NE(text_of_file(report).find("\"tiers\""), std::string::npos);
    EXPECT_NE(text_of_file(timeline).find("\"traceEvents\""), std::string::npos);
    std::remove(report.c_str());
    std::remove(timeline.c_str());
}

TEST(Runtime, TellsBackgroundErrorsWithoutThrowing)
{
    stw::Runtime runtime = open_runtime();
    EXPECT_EQ(runtime.background_error().status, STW_OK);
    runtime.clear_error();
    runtime.close();
    EXPECT_EQ(runtime.background_error().status, STW_ERROR_CLOSED);
}

TEST(Runtime, IsClosedThoughTheCloseTellsABackgroundError)
{
    // Three blocks, three attempts each; write 0 is the superblock's.
    std::string script = "inner=posix";
    for (int i = 1; i <= 9; ++i) script += ";at=write:" + std::to_string(i) + ":eio";
    stw::Runtime runtime = open_runtime(script.c_str());
    const stw::Tensor tensor = tensor_of(runtime, "t", 1);
    (void)code_of([&] { runtime.evict_all(STW_TIER_DEVICE); });
    (void)code_of([&] { runtime.evict_all(STW_TIER_HOST); });
    EXPECT_EQ(runtime.background_error().status, STW_ERROR_IO);
    EXPECT_STREQ(runtime.background_error().tensor, "t");
    EXPECT_EQ(code_of([&] { runtime.close(); }), STW_ERROR_IO);
    EXPECT_FALSE(runtime) << "the handle is dead, and may become another runtime's";
}

TEST(Runtime, ClosedWithViewsOpenItsMemoryGoesWithTheLast)
{
    stw::Runtime runtime = open_runtime();
    stw::Tensor tensor = tensor_of(runtime, "t", 3);
    stw::Views views = stw::Views::fetch(runtime, {stw::want(tensor)}).value();
    EXPECT_EQ(code_of([&] { runtime.close(); }), STW_ERROR_BUSY);
    EXPECT_TRUE(runtime);
    runtime.close(STW_CLOSE_DEFERRED);
    EXPECT_FALSE(runtime);
    EXPECT_EQ(views[0].as<const float>()[kElements - 1], 3);
    EXPECT_EQ(code_of([&] { (void)tensor.info(); }), STW_ERROR_CLOSED);
    views.release();
}

TEST(Tensor, TakesCallsThroughAReferenceToo)
{
    stw::Runtime runtime = open_runtime();
    stw::Tensor tensor = tensor_of(runtime, "t", 1);
    stw::TensorRef same = runtime.find("t").value();
    same.fill(4);
    std::vector<float> out(kElements);
    stw_copy_options last = STW_COPY_OPTIONS_INIT;
    last.element_begin = kElements - 1;
    last.element_count = 1;
    tensor.fill(9, last);
    same.read(out.data());
    EXPECT_EQ(out.front(), 4);
    EXPECT_EQ(out.back(), 9);
    same.write(out.data(), last);
    tensor.read(out.data() + 1, last);
    EXPECT_EQ(out[1], 4) << "the range was written from the first element of the source";
    EXPECT_EQ(same.info().value().elements, kElements);
    same.discard();
    EXPECT_EQ(tensor.info().value().state, uint32_t{STW_STATE_EMPTY});
}

TEST(Tensor, IsReshapedAdvisedAndGivenAPolicy)
{
    stw::Runtime runtime = open_runtime();
    stw::Tensor tensor = tensor_of(runtime, "t", 1);
    tensor.advise(STW_ADVICE_HOT);
    EXPECT_EQ(code_of([&] { tensor.advise(99); }), STW_ERROR_INVALID);
    stw_policy policy = STW_POLICY_INIT;
    policy.allowed_tiers = STW_ALLOW_HOST | STW_ALLOW_NVME;
    tensor.set_policy(policy);
    EXPECT_EQ(code_of([&] {
                  (void)stw::Views::fetch(runtime, {stw::want(tensor, STW_READ, STW_TIER_DEVICE)});
              }),
              STW_ERROR_INVALID);
    tensor.freeze();
    EXPECT_EQ(tensor.info().value().frozen, 1u);
    EXPECT_EQ(code_of([&] {
                  (void)stw::Views::fetch(runtime, {stw::want(tensor, STW_WRITE, STW_TIER_HOST)});
              }),
              STW_ERROR_INVALID);
    tensor.freeze(false);
    tensor.reshape({100, 20});
    const stw_tensor_info info = tensor.info().value();
    EXPECT_EQ(info.dimensions, 2u);
    EXPECT_EQ(info.elements, 2000u);
    EXPECT_EQ(info.state, uint32_t{STW_STATE_EMPTY});
}

TEST(Tensor, HasOneAddressForLife)
{
    stw::Runtime runtime = open_runtime();
    stw::Tensor tensor = tensor_of(runtime, "t", 1);
    const stw::Span<std::byte> address = tensor.address().value();
    EXPECT_EQ(address.size(), kElements * sizeof(float));
    const stw::Views views =
        stw::Views::fetch(runtime, {stw::want(tensor, STW_READ, STW_TIER_DEVICE)}).value();
    EXPECT_EQ(views[0].data(), address.data());
    EXPECT_EQ(code_of([&] { (void)tensor.address(1); }), STW_ERROR_UNSUPPORTED);
}

TEST(Tensor, SumsWhatIsReduced)
{
    stw::Runtime runtime = open_runtime();
    stw::Tensor gradient = stw::Tensor::create(runtime, "g", {kElements}).value();
    const std::vector<float> ones(kElements, 1);
    gradient.reduce(ones.data());
    stw_reduce_options twice = STW_REDUCE_OPTIONS_INIT;
    twice.scale = 2;
    gradient.reduce(ones.data(), twice);
    const auto give_back = [](void *user) { ++*static_cast<std::atomic<int> *>(user); };
    std::atomic<int> given{0};
    gradient.reduce_adopt(ones.data(), give_back, &given);
    gradient.reduce_adopt(ones.data(), twice, give_back, &given);
    std::vector<float> out(kElements);
    gradient.read(out.data());
    EXPECT_EQ(out, std::vector<float>(kElements, 6));
    runtime.drain();
    EXPECT_EQ(given, 2);
}

TEST(Views, AreSharedByReaders)
{
    const stw::Runtime runtime = open_runtime();
    stw::Tensor tensor = tensor_of(runtime, "t", 2);
    stw::Views views = stw::Views::fetch(runtime, {stw::want(tensor)}).value();
    const stw::Views more = views.share().value();
    EXPECT_EQ(more[0].data(), views[0].data());
    views.release();
    EXPECT_EQ(tensor.info().value().open_views, 1u);
    EXPECT_EQ(more[0].as<const float>()[0], 2);
}

TEST(Dlpack, HasTheBytesOfAViewOrOfAnAddress)
{
    const stw::Runtime runtime = open_runtime();
    stw::Tensor tensor = tensor_of(runtime, "t", 2);
    stw::Tensor other = tensor_of(runtime, "u", 3);
    stw::Views views =
        stw::Views::fetch(runtime, {stw::want(tensor), stw::want(other, STW_READ_WRITE)}).value();
    void *first = views[0].data();
    DLManagedTensorVersioned *reads = views.to_dlpack().value();
    EXPECT_EQ(reads->tensor.data, first);
    ASSERT_EQ(views.size(), 1u) << "the other one moved up";
    DLManagedTensor *writes = views.to_dlpack_legacy(0).value();
    EXPECT_EQ(static_cast<float *>(writes->tensor.data)[0], 3);
    EXPECT_EQ(views.size(), 0u);
    writes->deleter(writes);
    EXPECT_EQ(runtime.tier(STW_TIER_DEVICE).value().exports, 1u);
    char no_capsule = 0;
    stw::destroy_dlpack_capsule(&no_capsule);  // there is no Python here to ask
    reads->deleter(reads);

    views = stw::Views::fetch(runtime, {stw::want(tensor)}).value();
    EXPECT_EQ(code_of([&] { (void)views.to_dlpack_legacy(); }), STW_ERROR_UNSUPPORTED);
    ASSERT_EQ(views.size(), 1u);
    DLManagedTensorVersioned *by_address = tensor.to_dlpack().value();
    DLManagedTensor *legacy = tensor.to_dlpack_legacy().value();
    EXPECT_EQ(by_address->tensor.data, views[0].data());
    EXPECT_EQ(legacy->tensor.data, views[0].data());
    by_address->deleter(by_address);
    legacy->deleter(legacy);
}

TEST(Views, AreCopiesInTheCallersMemoryAndInOtherDtypes)
{
    const stw::Runtime runtime = open_runtime();
    const stw::Tensor tensor = tensor_of(runtime, "t", 1.5);
    std::vector<float> all(kElements);
    std::vector<uint16_t> halves(10);
    const stw_fetch_request part = stw::want(tensor, STW_READ, STW_TIER_DEFAULT, 20000, 10);
    const stw::Views views =
        stw::Views::fetch(runtime, {stw::into(stw::want(tensor), all.data()),
                                    stw::into(stw::converted(part, STW_BF16), halves.data()),
                                    stw::converted(stw::want(tensor), STW_F16)})
            .value();
    EXPECT_EQ(views[0].data(), all.data());
    EXPECT_EQ(all, std::vector<float>(kElements, 1.5F));
    EXPECT_EQ(views[1].as<const uint16_t>().size(), 10u);
    EXPECT_EQ(halves, std::vector<uint16_t>(10, 0x3fc0));
    EXPECT_EQ(views[2].bytes(), 2 * kElements);
    EXPECT_EQ(views[2].as<const uint16_t>()[kElements - 1], 0x3e00);
    EXPECT_EQ(tensor.info().value().open_views, 1u);
}

TEST(Operation, IsPolledWaitedForAndCancelled)
{
    const stw::Runtime runtime = open_runtime();
    stw::Tensor tensor = tensor_of(runtime, "t", 5);
    stw::Operation done = stw::Operation::fetch(runtime, {stw::want(tensor)}).value();
    EXPECT_EQ(done.wait().code(), STW_OK);
    EXPECT_EQ(done.poll().code(), STW_OK);
    const stw::Views views = done.collect().value();
    const stw::Tensor other = tensor_of(runtime, "other", 5);
    // Not this thread's when waits are judged: else a fetch of its own would be BUSY.
    stw_fetch_options handed = STW_FETCH_OPTIONS_INIT;
    handed.flags = STW_FETCH_HAND_OVER;
    const stw::Views held =
        stw::Views::fetch(runtime, {stw::want(other, STW_READ_WRITE)}, &handed).value();
    stw::Operation waits = stw::Operation::fetch(runtime, {stw::want(other)}).value();
    EXPECT_EQ(waits.poll().code(), STW_PENDING);
    waits.cancel();
    EXPECT_EQ(code_of([&] { waits.poll(); }), STW_ERROR_CANCELLED);
}

TEST(Operation, TellsItsEnd)
{
    const stw::Runtime runtime = open_runtime();
    const stw::Tensor tensor = tensor_of(runtime, "t", 5);
    stw_fetch_options handed = STW_FETCH_OPTIONS_INIT;
    handed.flags = STW_FETCH_HAND_OVER;
    stw::Views held =
        stw::Views::fetch(runtime, {stw::want(tensor, STW_READ_WRITE)}, &handed).value();
    stw::Operation operation = stw::Operation::fetch(runtime, {stw::want(tensor)}).value();
    const int fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    operation.notify_fd(fd);
    std::promise<stw_status> told;
    // A promise cannot be copied: what is called is moved to where it is kept.
    std::future<stw_status> status = told.get_future();
    operation.on_done([told = std::move(told)](stw_status code) mutable { told.set_value(code); });
    EXPECT_EQ(code_of([&] { operation.on_done([](stw_status) {}); }), STW_ERROR_EXISTS);
    EXPECT_EQ(operation.poll().code(), STW_PENDING);
    held.release();
    EXPECT_EQ(status.get(), STW_OK);
    eventfd_t count = 0;
    EXPECT_EQ(eventfd_read(fd, &count), 0);
    EXPECT_EQ(count, 1u);
    stw::Operation over = stw::Operation::fetch(runtime, {stw::want(tensor)}).value();
    over.wait();
    int calls = 0;
    over.on_done([](void *user, stw_operation *, stw_status) { ++*static_cast<int *>(user); },
                 &calls);
    EXPECT_EQ(calls, 1);
    close(fd);
}

TEST(Optimizer, CopiesMasters)
{
    stw::Runtime runtime = open_runtime();
    const stw::Tensor weights =
        stw::Tensor::create(runtime, "w", {kElements}, STW_BF16, STW_ROLE_PARAM).value();
    const stw::Tensor gradient = tensor_of(runtime, "g", 0.5, STW_ROLE_GRAD);
    stw_optimizer_options options = STW_OPTIMIZER_OPTIONS_INIT;
    options.algorithm = STW_OPTIMIZER_ADAMW;
    stw::Optimizer optimizer = stw::Optimizer::create(runtime, options).value();
    optimizer.add(weights, gradient);
    const std::vector<float> masters(kElements, 1.0F + 0x1p-20F);
    std::vector<float> out(kElements);
    optimizer.write_master(weights, masters.data());
    optimizer.read_master(weights, out.data());
    EXPECT_EQ(out, masters);
}

TEST(Optimizer, TellsStatesCountsAndVerdicts)
{
    stw::Runtime runtime = open_runtime();
    const stw::Tensor weights = tensor_of(runtime, "w", 1, STW_ROLE_PARAM);
    stw::Tensor gradient = tensor_of(runtime, "g", 0.5, STW_ROLE_GRAD);
    stw_optimizer_options options = STW_OPTIMIZER_OPTIONS_INIT;
    options.algorithm = STW_OPTIMIZER_ADAMW;
    options.ema_decay = 0.75;
    stw::Optimizer optimizer = stw::Optimizer::create(runtime, options).value();
    stw_optimizer_entry entry = STW_OPTIMIZER_ENTRY_INIT;
    entry.parameter = weights.get();
    entry.gradient = gradient.get();
    optimizer.add({entry});
    optimizer.set_hyper(0, STW_HYPER_INIT);
    optimizer.set_count(weights, 9);
    stw_update_options step = STW_UPDATE_OPTIONS_INIT;
    step.flags = STW_UPDATE_WAIT;
    stw_update_result result = STW_UPDATE_RESULT_INIT;
    optimizer.step(step, &result);
    EXPECT_EQ(result.updated, 1u);
    EXPECT_EQ(optimizer.count(weights).value(), 10u);
    stw_update_result later = STW_UPDATE_RESULT_INIT;
    EXPECT_EQ(optimizer.result(&later).code(), STW_OK);
    EXPECT_EQ(later.norm, result.norm);
    const stw::TensorRef moment = optimizer.state(weights, "exp_avg").value();
    std::vector<float> out(kElements);
    moment.read(out.data());
    EXPECT_FLOAT_EQ(out[0], 0.05F);
    float now = 0;
    stw_copy_options one = STW_COPY_OPTIONS_INIT;
    one.element_count = 1;
    weights.read(&now, one);
    optimizer.state(weights, "ema").value().read(out.data());
    EXPECT_FLOAT_EQ(out[0], 0.75F + 0.25F * now);
    runtime.drain();
    optimizer.destroy();
    EXPECT_FALSE(optimizer);
    gradient.destroy();
}

TEST(Phase, IsPlannedTheFirstTimeWhereItsStepsAreDeclared)
{
    const stw::Runtime runtime = open_runtime();
    const stw::Tensor tensor = stw::Tensor::create(runtime, "t", {100}).value();
    stw::Phase phase = stw::Phase::create(runtime, "train").value();
    stw_plan_entry entry = STW_PLAN_ENTRY_INIT;
    entry.tensor = tensor.get();
    entry.access = STW_WRITE;
    phase.declare({entry});
    stw::Step step = stw::Step::begin(phase).value();
    EXPECT_EQ(code_of([&] { phase.declare({entry}); }), STW_ERROR_BUSY);
    stw_step_stats stats = STW_STEP_STATS_INIT;
    step.end(&stats);
    EXPECT_EQ(stats.planned, 1u);
    phase.declare({});
    entry.access = 77;
    EXPECT_EQ(code_of([&] { phase.declare({entry}); }), STW_ERROR_INVALID);
}

TEST(Phase, SaysWhetherAnotherOrderWouldMoveLess)
{
    const stw::Runtime runtime = open_runtime();
    const stw::Tensor tensor = stw::Tensor::create(runtime, "t", {100}).value();
    stw::Phase phase = stw::Phase::create(runtime, "train").value();
    EXPECT_EQ(code_of([&] { (void)phase.advice().value(); }), STW_ERROR_EMPTY);
    stw_plan_entry entry = STW_PLAN_ENTRY_INIT;
    entry.tensor = tensor.get();
    entry.access = STW_WRITE;
    phase.declare({entry});
    EXPECT_TRUE(phase.advice().value().empty());
}

stw_status end_at_once(void *user, const void *shard, void *whole, uint64_t bytes, uint32_t,
                       uint32_t, void *, uint64_t *work_out)
{
    if (shard != whole) std::memcpy(whole, shard, bytes);
    *work_out = ++*static_cast<uint64_t *>(user);
    return STW_OK;
}

TEST(Group, OfThisProcessAlone)
{
    const stw::Group nobody;
    EXPECT_EQ(nobody.rank().value(), 0u);
    EXPECT_EQ(nobody.size().value(), 1u);
    stw::Group group = stw::Group::self().value();
    EXPECT_EQ(group.size().value(), 1u);
    stw_runtime_options options = STW_RUNTIME_OPTIONS_INIT;
    options.host_bytes = 1u << 20;
    options.block_bytes = STW_BLOCK_64K;
    options.group = group.get();
    {
        const stw::Runtime runtime = stw::Runtime::open(options).value();
    }
    {
        // Of one rank: no replicas.
        const stw::Group nobody_else = stw::Group::self().value();
        options.replica_group = nobody_else.get();
        const stw::Runtime runtime = stw::Runtime::open(options).value();
    }
    const stw::Group part = group.split(3).value();
    EXPECT_TRUE(part);
    EXPECT_FALSE(group.split(-1).value());
    group.destroy();
    EXPECT_FALSE(group);
}

TEST(Group, OverTheProgramsOwnCollectives)
{
    stw_group_ops ops{};
    ops.struct_size = sizeof ops;
    ops.all_gather = end_at_once;
    ops.poll = [](void *, uint64_t) -> stw_status { return STW_OK; };
    uint64_t started = 0;
    // Two of them are missing.
    EXPECT_EQ(code_of([&] { (void)stw::Group::over(ops, &started, 0, 1); }), STW_ERROR_INVALID);
    ops.reduce_scatter = [](void *, const void *, void *, uint64_t, uint32_t, uint32_t, uint32_t,
                            void *, uint64_t *) -> stw_status { return STW_ERROR_UNSUPPORTED; };
    ops.all_reduce = [](void *, void *, uint64_t, uint32_t, uint32_t, uint32_t, void *,
                        uint64_t *) -> stw_status { return STW_ERROR_UNSUPPORTED; };
    stw::Group group = stw::Group::over(ops, &started, 0, 1).value();
    EXPECT_EQ(started, 1u);
    EXPECT_EQ(group.rank().value(), 0u);
    EXPECT_EQ(code_of([&] { (void)group.split(0); }), STW_ERROR_UNSUPPORTED);
    stw::Group moved = std::move(group);
    EXPECT_FALSE(group);
    moved.destroy();
}

TEST(Group, OverMpiNeedsItsModuleAndMpi)
{
    // Whether or not the module is there: nobody has set up MPI in this process.
    EXPECT_EQ(code_of([] { (void)stw::Group::over_mpi(); }), STW_ERROR_UNSUPPORTED);
    EXPECT_EQ(code_of([] { (void)stw::Group::over_nccl(nullptr, 0, 0, 1); }), STW_ERROR_INVALID);
    const char id[128] = {};
    EXPECT_EQ(code_of([&] { (void)stw::Group::over_nccl(id, sizeof id, 0, 1, -1); }),
              STW_ERROR_INVALID);
    EXPECT_EQ(code_of([] { (void)stw::Group::over_nccl(nullptr); }), STW_ERROR_INVALID);
}

TEST(Step, IsAbortedByName)
{
    const stw::Runtime runtime = open_runtime();
    stw::Phase phase = stw::Phase::create(runtime, "train").value();
    stw::Step step = stw::Step::begin(phase).value();
    EXPECT_EQ(code_of([&] { phase.destroy(); }), STW_ERROR_BUSY);
    step.abort();
    phase.destroy();
    EXPECT_FALSE(phase);
}

}  // namespace
