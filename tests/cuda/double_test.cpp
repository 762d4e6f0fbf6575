// SPDX-License-Identifier: Apache-2.0
// Claims about the double's devices, contexts, errors and injection.
#include "tests/cuda/double_rig.h"

#include <cstring>
#include <thread>

#include <dlfcn.h>
#include <sys/wait.h>
#include <unistd.h>

namespace stepwell::cuda_double {
namespace {

class Double : public DoubleTest {};

TEST_F(Double, EveryEntryPointIsExportedUnderItsVersionedName)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    ASSERT_NE(library, nullptr) << dlerror();
#define STW_LOOK_UP(name, since, parameters) EXPECT_NE(dlsym(library, #name), nullptr) << #name;
    STW_CUDA_ENTRY_POINTS(STW_LOOK_UP)
#undef STW_LOOK_UP
    dlclose(library);
}

TEST_F(Double, DevicesAreAsTheOptionsSay)
{
    begin("devices=2,memory=3M,driver=12040,unified=1");
    int value = 0;
    EXPECT_EQ(cuDeviceGetCount(&value), kSuccess);
    EXPECT_EQ(value, 2);
    EXPECT_EQ(cuDriverGetVersion(&value), kSuccess);
    EXPECT_EQ(value, 12040);
    EXPECT_EQ(cuDeviceGetAttribute(&value, kPageableMemoryAccess, 1), kSuccess);
    EXPECT_EQ(value, 1);
    EXPECT_EQ(cuDeviceGetAttribute(&value, kIntegrated, 1), kSuccess);
    EXPECT_EQ(value, 1);
    EXPECT_EQ(cuDeviceGet(&value, 2), kInvalidDevice);
    size_t total = 0;
    EXPECT_EQ(cuDeviceTotalMem_v2(&total, 1), kSuccess);
    EXPECT_EQ(total, size_t{3} << 20);
    Uuid first{}, second{};
    EXPECT_EQ(cuDeviceGetUuid_v2(&first, 0), kSuccess);
    EXPECT_EQ(cuDeviceGetUuid(&second, 1), kSuccess);
    EXPECT_NE(std::memcmp(&first, &second, sizeof first), 0);
    char id[16] = "";
    EXPECT_EQ(cuDeviceGetPCIBusId(id, sizeof id, 1), kSuccess);
    EXPECT_STREQ(id, "0000:02:00.0");
}

TEST_F(Double, AttributesAreAsTheOptionsSay)
{
    begin("attribute=134:3,attribute=102:0");
    int value = 0;
    EXPECT_EQ(cuDeviceGetAttribute(&value, kHostNumaId, 0), kSuccess);
    EXPECT_EQ(value, 3);
    EXPECT_EQ(cuDeviceGetAttribute(&value, kVirtualMemoryManagement, 0), kSuccess);
    EXPECT_EQ(value, 0);
    Address address = 0;
    EXPECT_EQ(cuMemAddressReserve(&address, size_t{2} << 20, 0, 0, 0), kNotSupported);
}

TEST_F(Double, OptionsThatAreNotUnderstoodChangeNothing)
{
    EXPECT_EQ(stw_double_reset("sed=1"), -1);
    EXPECT_EQ(stw_double_reset("seed=x"), -1);
    EXPECT_EQ(stw_double_reset("devices=9"), -1);
    EXPECT_EQ(stw_double_reset("attribute=102"), -1);
    EXPECT_EQ(stw_double_reset("fail=cuNothing:1:2"), -1);
    EXPECT_EQ(stw_double_reset("fail=cuMemAlloc_v2:1"), -1);
    EXPECT_EQ(cuCtxSynchronize(), kSuccess) << "the context is as it was";
}

TEST_F(Double, ItsOptionsAreThoseOfTheEnvironment)
{
    ASSERT_EQ(setenv("STW_CUDA_DOUBLE", "devices=3,driver=12080", 1), 0);
    ASSERT_EQ(stw_double_reset(nullptr), 0);
    ASSERT_EQ(unsetenv("STW_CUDA_DOUBLE"), 0);
    context = nullptr;
    int value = 0;
    ASSERT_EQ(cuInit(0), kSuccess);
    EXPECT_EQ(cuDeviceGetCount(&value), kSuccess);
    EXPECT_EQ(value, 3);
    EXPECT_EQ(cuDriverGetVersion(&value), kSuccess);
    EXPECT_EQ(value, 12080);
}

TEST_F(Double, ContextsAndStreamsSayWhoseTheyAre)
{
    begin("devices=2");
    void *second = nullptr, *current = nullptr, *of_stream = nullptr;
    ASSERT_EQ(cuDevicePrimaryCtxRetain(&second, 1), kSuccess);
    ASSERT_EQ(cuCtxPushCurrent_v2(second), kSuccess);
    ASSERT_EQ(cuCtxGetCurrent(&current), kSuccess);
    EXPECT_EQ(current, second);
    int device_of = -1, least = -1, greatest = 0;
    ASSERT_EQ(cuCtxGetDevice(&device_of), kSuccess);
    EXPECT_EQ(device_of, 1);
    ASSERT_EQ(cuCtxGetStreamPriorityRange(&least, &greatest), kSuccess);
    EXPECT_GT(least, greatest) << "less is more";
    void *far = nullptr;
    ASSERT_EQ(cuStreamCreateWithPriority(&far, kStreamNonBlocking, greatest), kSuccess);
    ASSERT_EQ(cuCtxPopCurrent_v2(nullptr), kSuccess);
    ASSERT_EQ(cuStreamGetCtx(far, &of_stream), kSuccess);
    EXPECT_EQ(of_stream, second);
    ASSERT_EQ(cuStreamGetDevice(far, &device_of), kSuccess);
    EXPECT_EQ(device_of, 1);
    ASSERT_EQ(cuStreamGetDevice(nullptr, &device_of), kSuccess);
    EXPECT_EQ(device_of, 0) << "the default stream is the current context's";
    EXPECT_EQ(cuStreamDestroy_v2(far), kSuccess);
    EXPECT_EQ(cuDevicePrimaryCtxRelease_v2(1), kSuccess);
}

TEST_F(Double, WithoutADeviceOrWithABusyOneThereIsNoContext)
{
    ASSERT_EQ(stw_double_reset("devices=0"), 0);
    context = nullptr;
    int count = 0;
    EXPECT_EQ(cuDeviceGetCount(&count), kNotInitialized);
    EXPECT_EQ(cuInit(0), kNoDevice);
    ASSERT_EQ(stw_double_reset("busy=1"), 0);
    EXPECT_EQ(cuInit(0), kSuccess);
    void *none = nullptr;
    EXPECT_EQ(cuDevicePrimaryCtxRetain(&none, 0), kDeviceUnavailable);
}

TEST_F(Double, CallsNeedACurrentContext)
{
    ASSERT_EQ(cuCtxSetCurrent(nullptr), kSuccess);
    Address address = 0;
    EXPECT_EQ(cuMemAlloc_v2(&address, 4096), kInvalidContext);
    ASSERT_EQ(cuCtxPushCurrent_v2(context), kSuccess);
    EXPECT_EQ(cuMemAlloc_v2(&address, 4096), kSuccess);
    EXPECT_EQ(cuMemFree_v2(address), kSuccess);
    void *popped = nullptr;
    EXPECT_EQ(cuCtxPopCurrent_v2(&popped), kSuccess);
    EXPECT_EQ(popped, context);
    EXPECT_EQ(cuCtxSynchronize(), kInvalidContext);
}

TEST_F(Double, PushesWithoutPopsAreFoundAndTheOtherWayRound)
{
    std::thread([&] { EXPECT_EQ(cuCtxPushCurrent_v2(context), kSuccess); }).join();
    expect_violation(STW_DOUBLE_CONTEXT_STACK, {"ended with 1 contexts"});
    void *popped = nullptr;
    EXPECT_EQ(cuCtxPopCurrent_v2(&popped), kSuccess) << "set as current, never pushed";
    expect_violation(STW_DOUBLE_CONTEXT_STACK, {"did not push"});
    ASSERT_EQ(cuCtxPushCurrent_v2(context), kSuccess);
    char text[256] = "";
    EXPECT_EQ(stw_double_leaks(text, sizeof text), 2u) << "the push and the context itself";
    EXPECT_NE(std::string(text).find("1 contexts pushed"), std::string::npos) << text;
    ASSERT_EQ(cuCtxPopCurrent_v2(&popped), kSuccess);
}

TEST_F(Double, AReleasedContextIsGone)
{
    ASSERT_EQ(cuDevicePrimaryCtxRelease_v2(0), kSuccess);
    context = nullptr;
    EXPECT_EQ(cuCtxSynchronize(), kContextIsDestroyed);
    EXPECT_EQ(cuDevicePrimaryCtxRelease_v2(0), kInvalidContext);
}

TEST_F(Double, LeaksAreNamed)
{
    void *a_stream = stream();
    void *an_event = event();
    const Address memory = device(4096);
    unsigned char *host = pinned(4096);
    char text[4096] = "";
    EXPECT_EQ(stw_double_leaks(text, sizeof text), 5u) << text;
    for (const char *word : {"allocation of 4096", "Stream", "event", "Host memory", "retained"})
        EXPECT_NE(std::string(text).find(word), std::string::npos) << text;
    EXPECT_EQ(cuStreamDestroy_v2(a_stream), kSuccess);
    EXPECT_EQ(cuEventDestroy_v2(an_event), kSuccess);
    EXPECT_EQ(cuMemFree_v2(memory), kSuccess);
    EXPECT_EQ(cuMemFreeHost(host), kSuccess);
}

TEST_F(Double, TheNthCallFailsAndEveryOtherDoesNot)
{
    begin("fail=cuMemAlloc_v2:2:2");
    const Address first = device(4096);
    Address second = 77;
    EXPECT_EQ(cuMemAlloc_v2(&second, 4096), kOutOfMemory);
    EXPECT_EQ(second, 77u) << "nothing is written on failure";
    EXPECT_EQ(cuMemFree_v2(device(4096)), kSuccess);
    EXPECT_EQ(stw_double_fail("cuMemFree_v2", 1, kUnknown), 0);
    EXPECT_EQ(cuMemFree_v2(first), kUnknown);
    EXPECT_EQ(cuMemFree_v2(first), kSuccess);
    EXPECT_EQ(stw_double_fail("cuNothing", 1, kUnknown), -1);
    EXPECT_EQ(stw_double_fail("cuCtxSynchronize", 0, kUnknown), 0);
    EXPECT_EQ(cuCtxSynchronize(), kUnknown);
    EXPECT_EQ(cuCtxSynchronize(), kUnknown);
}

TEST_F(Double, AFillOfWordsSetsSoManyWordsAndWantsThemAligned)
{
    void *a_stream = stream();
    const Address memory = device(4096);
    ASSERT_EQ(cuMemsetD8Async(memory, 1, 4096, a_stream), kSuccess);
    ASSERT_EQ(cuMemsetD32Async(memory + 4, 0x01020304, 2, a_stream), kSuccess);
    EXPECT_EQ(cuMemsetD32Async(memory + 2, 7, 1, a_stream), kInvalidValue);
    ASSERT_EQ(cuStreamSynchronize(a_stream), kSuccess);
    const std::vector<unsigned char> wanted = {1, 1, 1, 1, 4, 3, 2, 1, 4, 3, 2, 1, 1, 1, 1, 1};
    EXPECT_EQ(std::vector<unsigned char>(bytes(memory), bytes(memory) + wanted.size()), wanted);
    EXPECT_EQ(cuStreamDestroy_v2(a_stream), kSuccess);
    EXPECT_EQ(cuMemFree_v2(memory), kSuccess);
}

TEST_F(Double, ABrokenContextFailsEveryCallAndDropsItsWork)
{
    void *a_stream = stream();
    const Address memory = device(4096);
    ASSERT_EQ(cuMemsetD8Async(memory, 1, 4096, a_stream), kSuccess);
    ASSERT_EQ(cuStreamSynchronize(a_stream), kSuccess);
    stw_double_hold(a_stream);
    ASSERT_EQ(cuMemsetD8Async(memory, 2, 4096, a_stream), kSuccess);
    ASSERT_EQ(stw_double_fail("cuMemsetD8Async", 1, kIllegalAddress), 0);
    EXPECT_EQ(cuMemsetD8Async(memory, 3, 4096, a_stream), kIllegalAddress);
    stw_double_let_go(a_stream, 0);
    stw_double_drain();
    EXPECT_EQ(bytes(memory)[0], 1);
    EXPECT_EQ(cuStreamSynchronize(a_stream), kIllegalAddress);
    EXPECT_EQ(cuStreamQuery(a_stream), kIllegalAddress);
    EXPECT_EQ(cuMemFree_v2(memory), kIllegalAddress);
    EXPECT_EQ(cuStreamDestroy_v2(a_stream), kIllegalAddress);
    EXPECT_EQ(cuCtxSetCurrent(context), kSuccess) << "which context is current is no such call";
    void *again = nullptr;
    EXPECT_EQ(cuDevicePrimaryCtxRetain(&again, 0), kIllegalAddress);
}

TEST_F(Double, AWaitEndsWithTheErrorThatBreaksTheContextMeanwhile)
{
    void *a_stream = stream();
    const Address memory = device(4096);
    stw_double_hold(a_stream);
    ASSERT_EQ(cuMemsetD8Async(memory, 1, 4096, a_stream), kSuccess);
    std::thread breaker([&] {
        while (stw_double_calls("cuStreamSynchronize") == 0) std::this_thread::yield();
        stw_double_break(0, kLaunchFailed);
        stw_double_let_go(a_stream, 0);
    });
    EXPECT_EQ(cuStreamSynchronize(a_stream), kLaunchFailed);
    breaker.join();
}

TEST_F(Double, CallsAreCounted)
{
    stw_double_calls_reset();
    EXPECT_EQ(stw_double_calls(nullptr), 0u);
    EXPECT_EQ(cuCtxSynchronize(), kSuccess);
    EXPECT_EQ(cuCtxSynchronize(), kSuccess);
    EXPECT_EQ(stw_double_calls("cuCtxSynchronize"), 2u);
    EXPECT_EQ(stw_double_calls("cuStreamSynchronize"), 0u);
    EXPECT_EQ(stw_double_calls(nullptr), 2u);
    EXPECT_EQ(stw_double_calls("cuNothing"), UINT64_MAX);
}

TEST_F(Double, AnOldDriverLacksWhatCameLater)
{
    begin("driver=12040");
    int device_of = 0;
    EXPECT_EQ(cuStreamGetDevice(nullptr, &device_of), kNewerDriverNeeded);
    void *found = nullptr;
    int status = -1;
    EXPECT_EQ(cuGetProcAddress_v2("cuMemcpyBatchAsync", &found, 12040, 0, &status), kSuccess);
    EXPECT_EQ(found, nullptr);
    EXPECT_EQ(status, kSymbolNeedsNewerVersion);
    EXPECT_EQ(cuGetProcAddress_v2("cuMemAlloc", &found, 12080, 0, &status), kInvalidValue);
    EXPECT_EQ(cuGetProcAddress_v2("cuMemAlloc", &found, 12040, 0, &status), kSuccess);
    EXPECT_EQ(found, reinterpret_cast<void *>(&cuMemAlloc_v2));
    EXPECT_EQ(cuGetProcAddress_v2("cuNothing", &found, 12040, 0, &status), kSuccess);
    EXPECT_EQ(status, kSymbolNotFound);
}

TEST_F(Double, AVersionNamesItsFormOfAFunction)
{
    void *found = nullptr;
    EXPECT_EQ(cuGetProcAddress_v2("cuMemcpyBatchAsync", &found, 12080, 0, nullptr), kSuccess);
    EXPECT_EQ(found, reinterpret_cast<void *>(&cuMemcpyBatchAsync));
    EXPECT_EQ(cuGetProcAddress_v2("cuMemcpyBatchAsync", &found, 13000, 0, nullptr), kSuccess);
    EXPECT_EQ(found, reinterpret_cast<void *>(&cuMemcpyBatchAsync_v2));
}

TEST_F(Double, ErrorsHaveNames)
{
    const char *text = nullptr;
    EXPECT_EQ(cuGetErrorName(kIllegalAddress, &text), kSuccess);
    EXPECT_STREQ(text, "CUDA_ERROR_ILLEGAL_ADDRESS");
    EXPECT_EQ(cuGetErrorString(kOutOfMemory, &text), kSuccess);
    EXPECT_STREQ(text, "out of memory");
    EXPECT_EQ(cuGetErrorName(123456, &text), kInvalidValue);
    EXPECT_EQ(text, nullptr);
}

TEST_F(Double, AForkedChildHasNoDriver)
{
    const pid_t child = fork();
    if (child == 0) {
        int count = 0;
        const bool right = cuDeviceGetCount(&count) == kNotInitialized &&
                           cuInit(0) == kNotInitialized && cuCtxSynchronize() == kNotInitialized;
        _exit(right ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    EXPECT_EQ(cuCtxSynchronize(), kSuccess) << "the parent goes on";
}

TEST(DoubleDeath, TheProcessEndsWithTheStatusItWasAskedFor)
{
    ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
    const auto leak = [] {
        stw_double_reset("exit=7");
        void *context = nullptr;
        cuInit(0);
        cuDevicePrimaryCtxRetain(&context, 0);
        std::exit(0);
    };
    EXPECT_EXIT(leak(), ::testing::ExitedWithCode(7), "still retained 1 times");
}

TEST(DoubleDeath, AHostThatTouchesDeviceMemoryCrashes)
{
    ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
    const auto touch = [] {
        stw_double_reset("");
        void *context = nullptr;
        Address address = 0;
        cuInit(0);
        cuDevicePrimaryCtxRetain(&context, 0);
        cuCtxSetCurrent(context);
        cuMemAlloc_v2(&address, 4096);
        *static_cast<volatile char *>(stw_double_alias(address)) = 1;
        std::fprintf(stderr, "the alias was written\n");
        *reinterpret_cast<volatile char *>(address) = 1;
    };
    EXPECT_DEATH(touch(), "the alias was written");
}

TEST_F(Double, AGraphThatIsRecordedForbidsUnsafeCallsToEveryThread)
{
    void *made = stream();
    void *other = stream();
    void *record = event();
    ASSERT_EQ(cuEventRecord(record, other), kSuccess);
    stw_double_capture(made, 1);
    Address memory = 0;
    std::thread thread([&] {
        ASSERT_EQ(cuCtxSetCurrent(context), kSuccess);
        EXPECT_EQ(cuEventQuery(record), kCaptureUnsupported);
        expect_violation(STW_DOUBLE_CAPTURE_BROKEN, {"cuEventQuery"});
        EXPECT_EQ(cuMemAlloc_v2(&memory, 4096), kCaptureUnsupported);
        expect_violation(STW_DOUBLE_CAPTURE_BROKEN, {"cuMemAlloc_v2"});
        int mode = kCaptureModeRelaxed;
        EXPECT_EQ(cuThreadExchangeStreamCaptureMode(&mode), kSuccess);
        EXPECT_EQ(mode, kCaptureModeGlobal);
        EXPECT_NE(cuEventQuery(record), kCaptureUnsupported);
        EXPECT_EQ(cuMemAlloc_v2(&memory, 4096), kSuccess);
        EXPECT_EQ(cuMemFree_v2(memory), kSuccess);
        EXPECT_EQ(cuCtxSynchronize(), kCaptureUnsupported);
        expect_violation(STW_DOUBLE_CAPTURE_BROKEN, {"cuCtxSynchronize"});
        mode = kCaptureModeThreadLocal;
        EXPECT_EQ(cuThreadExchangeStreamCaptureMode(&mode), kSuccess);
        EXPECT_EQ(mode, kCaptureModeRelaxed);
        EXPECT_EQ(cuEventSynchronize(record), kSuccess);
    });
    thread.join();
    int mode = kCaptureModeThreadLocal;
    EXPECT_EQ(cuThreadExchangeStreamCaptureMode(&mode), kSuccess);
    EXPECT_EQ(cuEventQuery(record), kCaptureUnsupported);  // its own graph
    expect_violation(STW_DOUBLE_CAPTURE_BROKEN);
    stw_double_capture(made, 0);
    EXPECT_EQ(cuEventQuery(record), kSuccess);
    EXPECT_EQ(cuThreadExchangeStreamCaptureMode(&mode), kSuccess);
    EXPECT_EQ(cuEventDestroy_v2(record), kSuccess);
    EXPECT_EQ(cuStreamDestroy_v2(made), kSuccess);
    EXPECT_EQ(cuStreamDestroy_v2(other), kSuccess);
}

TEST_F(Double, TheHandleOfADestroyedStreamIsTheNextOnes)
{
    void *first = stream();
    unsigned long long before = 0;
    unsigned long long after = 0;
    ASSERT_EQ(cuStreamGetId(first, &before), kSuccess);
    stw_double_hold(first);
    void *record = event();
    ASSERT_EQ(cuEventRecord(record, first), kSuccess);
    ASSERT_EQ(cuStreamDestroy_v2(first), kSuccess);
    void *second = stream();
    EXPECT_EQ(second, first);
    ASSERT_EQ(cuStreamGetId(second, &after), kSuccess);
    EXPECT_NE(after, before);
    EXPECT_EQ(cuStreamSynchronize(second), kSuccess);
    EXPECT_EQ(cuEventQuery(record), kNotReady);  // the old one goes on
    stw_double_hold_all(0);
    EXPECT_EQ(cuEventSynchronize(record), kSuccess);
    EXPECT_EQ(cuEventDestroy_v2(record), kSuccess);
    EXPECT_EQ(cuStreamDestroy_v2(second), kSuccess);
}

TEST_F(Double, MemoryThatIsFreedWaitsForTheDeviceAndTellsNobody)
{
    void *other = stream();
    const Address kept = device(4096);
    const Address freed = device(4096);
    EXPECT_EQ(cuMemFree_v2(freed), kSuccess);
    EXPECT_EQ(stw_double_implicit_waits(), 0u);
    const Address later = device(4096);
    unsigned char *host = pinned(4096);
    ASSERT_EQ(cuMemcpyDtoHAsync_v2(host, kept, 4096, other), kSuccess);
    EXPECT_EQ(cuMemFree_v2(later), kSuccess);
    EXPECT_EQ(stw_double_implicit_waits(), 1u);
    EXPECT_EQ(stw_double_pending(nullptr), 0u);
    stw_double_host_reads(reinterpret_cast<uintptr_t>(host), 4096);
    expect_violation(STW_DOUBLE_HOST_TOO_EARLY);
    EXPECT_EQ(cuStreamSynchronize(other), kSuccess);
    EXPECT_EQ(cuMemFree_v2(kept), kSuccess);
    EXPECT_EQ(cuMemFreeHost(host), kSuccess);
    EXPECT_EQ(cuStreamDestroy_v2(other), kSuccess);
}

}  // namespace
}  // namespace stepwell::cuda_double
