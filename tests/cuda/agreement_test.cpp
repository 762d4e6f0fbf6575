// SPDX-License-Identifier: Apache-2.0
// Claims about CUDA that the double makes and a device can confirm. The driver is whichever
// libcuda.so.1 the dynamic loader finds: in a test run of the build the double, by hand on a
// machine with a device that device's. So nothing here steers the double.
#include "tests/cuda/double/api.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace stepwell::cuda_double {
namespace {

struct Driver {
#define STW_POINTER(name, since, parameters) int(*name) parameters;
    STW_CUDA_ENTRY_POINTS(STW_POINTER)
#undef STW_POINTER
};

Address as_address(const void *pointer)
{
    return reinterpret_cast<uintptr_t>(pointer);
}

class Agreement : public ::testing::Test {
protected:
    void SetUp() override
    {
        void *library = dlopen("libcuda.so.1", RTLD_NOW);
        if (library == nullptr) GTEST_SKIP() << "no driver of CUDA: " << dlerror();
#define STW_LOOK_UP(name, since, parameters)                                                       \
    reinterpret_cast<void *&>(cuda.name) = dlsym(library, #name);
        STW_CUDA_ENTRY_POINTS(STW_LOOK_UP)
#undef STW_LOOK_UP
        if (cuda.cuInit(0) != kSuccess) GTEST_SKIP() << "a driver of CUDA, and no device";
        ASSERT_EQ(cuda.cuDevicePrimaryCtxRetain(&context, 0), kSuccess);
        ASSERT_EQ(cuda.cuCtxSetCurrent(context), kSuccess);
        ASSERT_EQ(cuda.cuStreamCreate(&one, kStreamNonBlocking), kSuccess);
        ASSERT_EQ(cuda.cuStreamCreate(&two, kStreamNonBlocking), kSuccess);
        ASSERT_EQ(cuda.cuEventCreate(&event, kEventDisableTiming), kSuccess);
        ASSERT_EQ(cuda.cuMemAlloc_v2(&memory, kBytes), kSuccess);
    }
    void TearDown() override
    {
        if (context == nullptr) return;
        EXPECT_EQ(cuda.cuCtxSynchronize(), kSuccess);
        EXPECT_EQ(cuda.cuMemFree_v2(memory), kSuccess);
        EXPECT_EQ(cuda.cuEventDestroy_v2(event), kSuccess);
        EXPECT_EQ(cuda.cuStreamDestroy_v2(one), kSuccess);
        EXPECT_EQ(cuda.cuStreamDestroy_v2(two), kSuccess);
        EXPECT_EQ(cuda.cuDevicePrimaryCtxRelease_v2(0), kSuccess);
    }

    static constexpr size_t kBytes = 1 << 20;
    Driver cuda{};
    void *context = nullptr;
    void *one = nullptr;
    void *two = nullptr;
    void *event = nullptr;
    Address memory = 0;
};

TEST_F(Agreement, BytesGoRoundInTheOrderOfEvents)
{
    void *in = nullptr, *out = nullptr;
    Address other = 0;
    ASSERT_EQ(cuda.cuMemHostAlloc(&in, kBytes, 0), kSuccess);
    ASSERT_EQ(cuda.cuMemHostAlloc(&out, kBytes, 0), kSuccess);
    ASSERT_EQ(cuda.cuMemAlloc_v2(&other, kBytes), kSuccess);
    for (size_t i = 0; i < kBytes; ++i) static_cast<char *>(in)[i] = static_cast<char>(i * 7);
    ASSERT_EQ(cuda.cuMemcpyHtoDAsync_v2(memory, in, kBytes, one), kSuccess);
    ASSERT_EQ(cuda.cuEventRecord(event, one), kSuccess);
    ASSERT_EQ(cuda.cuStreamWaitEvent(two, event, 0), kSuccess);
    ASSERT_EQ(cuda.cuMemcpyDtoDAsync_v2(other, memory, kBytes, two), kSuccess);
    ASSERT_EQ(cuda.cuMemsetD8Async(other + 3, 9, 4, two), kSuccess);
    ASSERT_EQ(cuda.cuMemcpyDtoHAsync_v2(out, other, kBytes, two), kSuccess);
    ASSERT_EQ(cuda.cuStreamSynchronize(two), kSuccess);
    std::memset(static_cast<char *>(in) + 3, 9, 4);
    EXPECT_EQ(std::memcmp(in, out, kBytes), 0);
    EXPECT_EQ(cuda.cuStreamQuery(two), kSuccess);
    EXPECT_EQ(cuda.cuMemFree_v2(other), kSuccess);
    EXPECT_EQ(cuda.cuMemFreeHost(in), kSuccess);
    EXPECT_EQ(cuda.cuMemFreeHost(out), kSuccess);
}

TEST_F(Agreement, PageableMemoryIsThereWhenTheCallReturns)
{
    std::vector<char> from(kBytes, 5), to(kBytes);
    ASSERT_EQ(cuda.cuMemcpyHtoDAsync_v2(memory, from.data(), kBytes, one), kSuccess);
    std::fill(from.begin(), from.end(), 6);
    ASSERT_EQ(cuda.cuMemcpyDtoHAsync_v2(to.data(), memory, kBytes, one), kSuccess);
    EXPECT_EQ(to, std::vector<char>(kBytes, 5));
}

TEST_F(Agreement, AnEventThatWasNeverRecordedIsDone)
{
    EXPECT_EQ(cuda.cuEventQuery(event), kSuccess);
    EXPECT_EQ(cuda.cuEventSynchronize(event), kSuccess);
    EXPECT_EQ(cuda.cuStreamWaitEvent(one, event, 0), kSuccess);
    float milliseconds = 0;
    EXPECT_EQ(cuda.cuEventElapsedTime(&milliseconds, event, event), kInvalidHandle);
}

TEST_F(Agreement, CallsNeedACurrentContext)
{
    ASSERT_EQ(cuda.cuCtxSetCurrent(nullptr), kSuccess);
    Address address = 0;
    void *popped = nullptr;
    EXPECT_EQ(cuda.cuMemAlloc_v2(&address, kBytes), kInvalidContext);
    EXPECT_EQ(cuda.cuCtxSynchronize(), kInvalidContext);
    EXPECT_EQ(cuda.cuEventQuery(event), kSuccess) << "an event knows its context";
    ASSERT_EQ(cuda.cuCtxPushCurrent_v2(context), kSuccess);
    ASSERT_EQ(cuda.cuCtxPopCurrent_v2(&popped), kSuccess);
    EXPECT_EQ(popped, context);
    ASSERT_EQ(cuda.cuCtxSetCurrent(context), kSuccess);
}

TEST_F(Agreement, MemoryThatIsNotThereIsRefused)
{
    Address address = 0;
    EXPECT_EQ(cuda.cuMemAlloc_v2(&address, size_t{1} << 50), kOutOfMemory);
    EXPECT_EQ(cuda.cuMemAlloc_v2(&address, 0), kInvalidValue);
    EXPECT_EQ(cuda.cuMemFree_v2(0), kSuccess);
    EXPECT_EQ(cuda.cuMemFree_v2(memory + 256), kInvalidValue);
}

TEST_F(Agreement, RegistrationsDoNotOverlap)
{
    std::vector<char> pages(4 * kBytes);
    void *const host = pages.data();
    Address mapped = 0;
    unsigned type = 0;
    ASSERT_EQ(cuda.cuMemHostRegister_v2(host, kBytes, 0), kSuccess);
    EXPECT_EQ(cuda.cuMemHostRegister_v2(host, kBytes, 0), kHostMemoryAlreadyRegistered);
    EXPECT_EQ(cuda.cuMemHostGetDevicePointer_v2(&mapped, host, 0), kSuccess);
    EXPECT_EQ(cuda.cuPointerGetAttribute(&type, kPointerMemoryType, as_address(host)), kSuccess);
    EXPECT_EQ(type, kMemoryTypeHost);
    EXPECT_EQ(cuda.cuMemHostUnregister(host), kSuccess);
    EXPECT_EQ(cuda.cuMemHostUnregister(host), kHostMemoryNotRegistered);
}

TEST_F(Agreement, PointersKnowWhatTheyAre)
{
    unsigned type = 0;
    int ordinal = -1;
    Address begin = 0;
    size_t bytes = 0;
    EXPECT_EQ(cuda.cuPointerGetAttribute(&type, kPointerMemoryType, memory + 1), kSuccess);
    EXPECT_EQ(type, kMemoryTypeDevice);
    EXPECT_EQ(cuda.cuPointerGetAttribute(&ordinal, kPointerDeviceOrdinal, memory), kSuccess);
    EXPECT_EQ(ordinal, 0);
    EXPECT_EQ(cuda.cuPointerGetAttribute(&begin, kPointerRangeStart, memory + 1), kSuccess);
    EXPECT_EQ(begin, memory);
    EXPECT_EQ(cuda.cuPointerGetAttribute(&bytes, kPointerRangeSize, memory), kSuccess);
    EXPECT_EQ(bytes, kBytes);
}

TEST_F(Agreement, AHandleKeepsItsBytesWhileItIsMappedElsewhere)
{
    AllocationProperties properties{};
    properties.type = kAllocationPinned;
    properties.location = {kLocationDevice, 0};
    size_t granule = 0;
    ASSERT_EQ(cuda.cuMemGetAllocationGranularity(&granule, &properties, 0), kSuccess);
    Handle handle = 0;
    EXPECT_EQ(cuda.cuMemCreate(&handle, granule + 1, &properties, 0), kInvalidValue);
    ASSERT_EQ(cuda.cuMemCreate(&handle, granule, &properties, 0), kSuccess);
    Address range = 0;
    ASSERT_EQ(cuda.cuMemAddressReserve(&range, 2 * granule, 0, 0, 0), kSuccess);
    const AccessDescription access{{kLocationDevice, 0}, kAccessReadWrite};
    char value = 0;
    for (const Address at : {range, range + granule}) {
        ASSERT_EQ(cuda.cuMemMap(at, granule, 0, handle, 0), kSuccess);
        ASSERT_EQ(cuda.cuMemSetAccess(at, granule, &access, 1), kSuccess);
        if (at == range) {
            ASSERT_EQ(cuda.cuMemsetD8Async(at, 8, granule, one), kSuccess);
        }
        ASSERT_EQ(cuda.cuStreamSynchronize(one), kSuccess);
        ASSERT_EQ(cuda.cuMemcpyDtoHAsync_v2(&value, at + granule - 1, 1, one), kSuccess);
        EXPECT_EQ(value, 8);
        EXPECT_NE(cuda.cuMemAddressFree(range, 2 * granule), kSuccess) << "something is mapped";
        ASSERT_EQ(cuda.cuMemUnmap(at, granule), kSuccess);
    }
    EXPECT_NE(cuda.cuMemUnmap(range, granule), kSuccess);
    EXPECT_EQ(cuda.cuMemRelease(handle), kSuccess);
    EXPECT_EQ(cuda.cuMemAddressFree(range, 2 * granule), kSuccess);
}

TEST_F(Agreement, ABatchHasAStreamOfItsOwn)
{
    int version = 0;
    ASSERT_EQ(cuda.cuDriverGetVersion(&version), kSuccess);
    if (version < 13000) GTEST_SKIP() << "the driver is of CUDA " << version << ", not 13000";
    alignas(4096) static char from[4096];
    std::fill_n(from, 64, 3);
    std::vector<char> to(64);
    ASSERT_EQ(cuda.cuMemHostRegister_v2(from, sizeof from, 0), kSuccess);
    Address tos[] = {memory, memory + 32}, froms[] = {as_address(from), as_address(from + 32)};
    size_t sizes[] = {32, 32}, first = 0;
    CopyAttributes attributes{kSourceDuringCall, {}, {}, 0};
    EXPECT_EQ(cuda.cuMemcpyBatchAsync_v2(tos, froms, sizes, 2, &attributes, &first, 1, nullptr),
              kInvalidValue);
    ASSERT_EQ(cuda.cuMemcpyBatchAsync_v2(tos, froms, sizes, 2, &attributes, &first, 1, one),
              kSuccess);
    std::fill_n(from, 64, 4);
    ASSERT_EQ(cuda.cuMemcpyDtoHAsync_v2(to.data(), memory, 64, one), kSuccess);
    EXPECT_EQ(to, std::vector<char>(64, 3));
    EXPECT_EQ(cuda.cuMemHostUnregister(from), kSuccess);
}

TEST_F(Agreement, AForkedChildHasNoDriver)
{
    const pid_t child = fork();
    if (child == 0) _exit(cuda.cuCtxSynchronize() == kNotInitialized ? 0 : 1);
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

}  // namespace
}  // namespace stepwell::cuda_double
