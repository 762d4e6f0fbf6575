// SPDX-License-Identifier: Apache-2.0
// Claims about the double's memory: who may still use what goes away, what is mapped where, and how
// copies treat memory that is not registered.
#include "tests/cuda/double_rig.h"

#include <algorithm>
#include <cstring>

#include <sys/mman.h>

namespace stepwell::cuda_double {
namespace {

constexpr size_t kGranule = size_t{2} << 20;

Address as_address(const void *pointer)
{
    return reinterpret_cast<uintptr_t>(pointer);
}

class DoubleMemory : public DoubleTest {
protected:
    static Handle handle(size_t bytes)
    {
        AllocationProperties properties{};
        properties.type = kAllocationPinned;
        properties.location = {kLocationDevice, 0};
        Handle made = 0;
        EXPECT_EQ(cuMemCreate(&made, bytes, &properties, 0), kSuccess);
        return made;
    }
    static Address reserve(size_t bytes, size_t alignment = 0)
    {
        Address made = 0;
        EXPECT_EQ(cuMemAddressReserve(&made, bytes, alignment, 0, 0), kSuccess);
        return made;
    }
    static void allow(Address address, size_t bytes, int device = 0)
    {
        const AccessDescription access{{kLocationDevice, device}, kAccessReadWrite};
        EXPECT_EQ(cuMemSetAccess(address, bytes, &access, 1), kSuccess);
    }
};

TEST_F(DoubleMemory, AllocationsAreLimitedByTheDevice)
{
    begin("memory=1M");
    Address address = 0;
    EXPECT_EQ(cuMemAlloc_v2(&address, (1 << 20) + 1), kOutOfMemory);
    const Address most = device(768 << 10);
    EXPECT_EQ(cuMemAlloc_v2(&address, 512 << 10), kOutOfMemory);
    size_t free_bytes = 0, total_bytes = 0;
    EXPECT_EQ(cuMemGetInfo_v2(&free_bytes, &total_bytes), kSuccess);
    EXPECT_EQ(free_bytes, size_t{256} << 10);
    EXPECT_EQ(total_bytes, size_t{1} << 20);
    EXPECT_EQ(cuMemFree_v2(most), kSuccess);
    EXPECT_EQ(cuMemFree_v2(device(1 << 20)), kSuccess);
    EXPECT_EQ(cuMemAlloc_v2(&address, 0), kInvalidValue);
    EXPECT_EQ(cuMemFree_v2(most), kInvalidValue) << "freed before";
}

TEST_F(DoubleMemory, FreeingWhatIsInUseIsFound)
{
    void *const one = stream();
    const Address memory = device(4096);
    stw_double_hold(one);
    ASSERT_EQ(cuMemsetD8Async(memory, 1, 4096, one), kSuccess);
    EXPECT_EQ(cuMemFree_v2(memory), kSuccess);
    expect_violation(STW_DOUBLE_GONE_IN_USE, {"cuMemFree_v2", "cuMemsetD8Async #1", "+4096)"});
    stw_double_let_go(one, 0);
    EXPECT_EQ(cuStreamSynchronize(one), kSuccess);
    EXPECT_EQ(cuStreamDestroy_v2(one), kSuccess);
}

TEST_F(DoubleMemory, FreeingWhatHasEndedUnknownToTheHostIsFound)
{
    void *const one = stream();
    const Address memory = device(4096);
    ASSERT_EQ(cuMemsetD8Async(memory, 1, 4096, one), kSuccess);
    stw_double_drain();
    EXPECT_EQ(cuMemFree_v2(memory), kSuccess);
    expect_violation(STW_DOUBLE_GONE_IN_USE);
    const Address another = device(4096);
    ASSERT_EQ(cuMemsetD8Async(another, 1, 4096, one), kSuccess);
    ASSERT_EQ(cuStreamSynchronize(one), kSuccess);
    EXPECT_EQ(cuMemFree_v2(another), kSuccess);
    EXPECT_EQ(cuStreamDestroy_v2(one), kSuccess);
}

TEST_F(DoubleMemory, PinnedMemoryInUseCannotGoUnnoticed)
{
    void *const one = stream();
    const Address memory = device(8192);
    std::vector<unsigned char> owned(8192);
    unsigned char *const host = pinned(8192);
    ASSERT_EQ(cuMemHostRegister_v2(owned.data(), owned.size(), 0), kSuccess);
    stw_double_hold(one);
    ASSERT_EQ(cuMemcpyHtoDAsync_v2(memory, owned.data(), 4096, one), kSuccess);
    ASSERT_EQ(cuMemcpyDtoHAsync_v2(host, memory, 4096, one), kSuccess);
    EXPECT_EQ(cuMemHostUnregister(owned.data()), kSuccess);
    expect_violation(STW_DOUBLE_GONE_IN_USE, {"cuMemHostUnregister", "cuMemcpyHtoDAsync_v2 #1"});
    EXPECT_EQ(cuMemFreeHost(host), kSuccess);
    expect_violation(STW_DOUBLE_GONE_IN_USE, {"cuMemFreeHost", "cuMemcpyDtoHAsync_v2 #2"});
    // Said once, and not of what lies there afterwards.
    void *const two = stream();
    ASSERT_EQ(cuMemHostRegister_v2(owned.data(), owned.size(), 0), kSuccess);
    ASSERT_EQ(cuMemcpyDtoHAsync_v2(owned.data(), memory + 4096, 4096, two), kSuccess);
    EXPECT_EQ(cuStreamSynchronize(two), kSuccess);
    EXPECT_EQ(cuMemHostUnregister(owned.data()), kSuccess);
    EXPECT_EQ(cuStreamDestroy_v2(two), kSuccess);
    stw_double_let_go(one, 0);
    EXPECT_EQ(cuStreamSynchronize(one), kSuccess);
    EXPECT_EQ(cuMemFree_v2(memory), kSuccess);
    EXPECT_EQ(cuStreamDestroy_v2(one), kSuccess);
}

TEST_F(DoubleMemory, RegistrationsDoNotOverlapAndAreMapped)
{
    const size_t bytes = 64 << 10;
    void *const range =
        mmap(nullptr, 2 * bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    char *const host = static_cast<char *>(range);
    ASSERT_EQ(cuMemHostRegister_v2(host, bytes, 0), kSuccess);
    EXPECT_EQ(cuMemHostRegister_v2(host + bytes - 1, 2, 0), kHostMemoryAlreadyRegistered);
    EXPECT_EQ(cuMemHostUnregister(host + 1), kHostMemoryNotRegistered);
    Address mapped = 0;
    EXPECT_EQ(cuMemHostGetDevicePointer_v2(&mapped, host + 5, 0), kSuccess);
    EXPECT_EQ(mapped, as_address(host + 5));
    EXPECT_EQ(cuMemHostGetDevicePointer_v2(&mapped, host + bytes, 0), kInvalidValue);
    EXPECT_EQ(cuMemHostUnregister(host), kSuccess);
    munmap(range, 2 * bytes);
    EXPECT_EQ(cuMemHostRegister_v2(host, bytes, 0), kInvalidValue) << "unmapped";
}

TEST_F(DoubleMemory, AddressesThatAreNotThereAreFound)
{
    void *const one = stream();
    const Address memory = device(4096);
    EXPECT_EQ(cuMemsetD8Async(memory, 1, 4097, one), kInvalidValue);
    expect_violation(STW_DOUBLE_BAD_ADDRESS, {"runs over an end"});
    EXPECT_EQ(cuMemFree_v2(memory), kSuccess);
    EXPECT_EQ(cuMemsetD8Async(memory, 1, 4096, one), kInvalidValue);
    expect_violation(STW_DOUBLE_BAD_ADDRESS);
    unsigned char *const host = pinned(4096);
    EXPECT_EQ(cuMemcpyAsync(memory, as_address(host), 1, one), kInvalidValue);
    expect_violation(STW_DOUBLE_BAD_ADDRESS);
    EXPECT_EQ(cuMemFreeHost(host), kSuccess);
    EXPECT_EQ(cuStreamSynchronize(one), kSuccess);
    EXPECT_EQ(cuStreamDestroy_v2(one), kSuccess);
}

TEST_F(DoubleMemory, AKernelAtAWrongAddressBreaksItsContext)
{
    const stw_double_range nowhere{as_address(this), 8, 1, 0};
    ASSERT_EQ(stw_double_consume(nullptr, "stray", &nowhere, 1, nullptr, nullptr), kSuccess);
    expect_violation(STW_DOUBLE_BAD_ADDRESS, {"stray #1"});
    EXPECT_EQ(cuCtxSynchronize(), kIllegalAddress);
}

TEST_F(DoubleMemory, AKernelNeedsMemoryOfItsOwnDevice)
{
    begin("devices=2");
    void *second = nullptr;
    ASSERT_EQ(cuDevicePrimaryCtxRetain(&second, 1), kSuccess);
    ASSERT_EQ(cuCtxPushCurrent_v2(second), kSuccess);
    const Address memory = device(4096);
    void *const far = stream();
    ASSERT_EQ(cuCtxPopCurrent_v2(nullptr), kSuccess);
    void *const marker = event();
    EXPECT_EQ(cuEventRecord(marker, far), kInvalidHandle);
    expect_violation(STW_DOUBLE_WRONG_CONTEXT, {"cuEventRecord"});
    EXPECT_EQ(cuMemsetD8Async(memory, 1, 4096, far), kSuccess) << "copies go anywhere";
    ASSERT_EQ(cuStreamSynchronize(far), kSuccess);
    EXPECT_EQ(cuEventDestroy_v2(marker), kSuccess);
    EXPECT_EQ(cuStreamDestroy_v2(far), kSuccess);
    const stw_double_range range{memory, 4096, 0, 0};
    ASSERT_EQ(stw_double_consume(nullptr, "near", &range, 1, nullptr, nullptr), kSuccess);
    expect_violation(STW_DOUBLE_WRONG_CONTEXT, {"another device"});
    EXPECT_EQ(cuCtxSynchronize(), kIllegalAddress);
    ASSERT_EQ(cuCtxSetCurrent(second), kSuccess);
    EXPECT_EQ(cuMemFree_v2(memory), kSuccess) << "the other context is whole";
    EXPECT_EQ(cuDevicePrimaryCtxRelease_v2(1), kSuccess);
}

TEST_F(DoubleMemory, PageableMemoryIsCopiedByTheCallAndCounted)
{
    void *const one = stream();
    const Address memory = device(4096);
    std::vector<unsigned char> owned(4096, 3);
    stw_double_hold(one);
    ASSERT_EQ(cuMemcpyHtoDAsync_v2(memory, owned.data(), 4096, one), kSuccess);
    std::fill(owned.begin(), owned.end(), 4);
    stw_double_let_go(one, 0);
    std::vector<unsigned char> back(4096);
    ASSERT_EQ(cuMemcpyDtoHAsync_v2(back.data(), memory, 4096, one), kSuccess);
    EXPECT_EQ(back, std::vector<unsigned char>(4096, 3)) << "read in the call, there at its end";
    EXPECT_EQ(stw_double_pageable_copies(), 2u);
    EXPECT_EQ(cuMemFree_v2(memory), kSuccess) << "the second copy waited for the stream";
    EXPECT_EQ(cuStreamDestroy_v2(one), kSuccess);
}

TEST_F(DoubleMemory, ASynchronousCopyWaitsUnlessItIsBetweenDevices)
{
    const Address memory = device(4096), other = device(4096);
    unsigned char *const host = pinned(4096);
    host[9] = 1;
    ASSERT_EQ(cuMemcpy(memory, as_address(host), 4096), kSuccess);
    stw_double_host_writes(as_address(host), 4096);
    ASSERT_EQ(cuMemcpy(other, memory, 4096), kSuccess);
    stw_double_host_reads(other, 4096);
    expect_violation(STW_DOUBLE_HOST_TOO_EARLY, {"cuMemcpy #"});
    std::vector<unsigned char> back(4096);
    ASSERT_EQ(cuMemcpy(as_address(back.data()), other, 4096), kSuccess);
    EXPECT_EQ(back[9], 1);
    EXPECT_EQ(cuMemFree_v2(memory), kSuccess);
    EXPECT_EQ(cuMemFree_v2(other), kSuccess);
    EXPECT_EQ(cuMemFreeHost(host), kSuccess);
}

TEST_F(DoubleMemory, PointersKnowWhatTheyAre)
{
    const Address memory = device(4096);
    unsigned type = 0;
    EXPECT_EQ(cuPointerGetAttribute(&type, kPointerMemoryType, memory + 5), kSuccess);
    EXPECT_EQ(type, kMemoryTypeDevice);
    Address begin = 0;
    EXPECT_EQ(cuPointerGetAttribute(&begin, kPointerRangeStart, memory + 5), kSuccess);
    EXPECT_EQ(begin, memory);
    int ordinal = 7;
    EXPECT_EQ(cuPointerGetAttribute(&ordinal, kPointerDeviceOrdinal, memory), kSuccess);
    EXPECT_EQ(ordinal, 0);
    EXPECT_EQ(cuPointerGetAttribute(&type, kPointerMemoryType, as_address(this)), kInvalidValue);
    int attributes[] = {kPointerMemoryType, kPointerDevicePointer};
    void *data[] = {&type, &begin};
    EXPECT_EQ(cuPointerGetAttributes(2, attributes, data, as_address(this)), kSuccess);
    EXPECT_EQ(type, 0u);
    EXPECT_EQ(begin, 0u);
    EXPECT_EQ(cuMemFree_v2(memory), kSuccess);
}

// ------------------------------------------------------------------------------------ mapping --

TEST_F(DoubleMemory, MappedHandlesAreOneRangeOfBytes)
{
    void *const one = stream();
    const Address range = reserve(2 * kGranule, kGranule);
    const Handle low = handle(kGranule), high = handle(kGranule);
    ASSERT_EQ(cuMemMap(range, kGranule, 0, low, 0), kSuccess);
    EXPECT_EQ(cuMemMap(range, kGranule, 0, high, 0), kAlreadyMapped);
    ASSERT_EQ(cuMemMap(range + kGranule, kGranule, 0, high, 0), kSuccess);
    EXPECT_EQ(cuMemsetD8Async(range, 1, 8, one), kInvalidValue);
    expect_violation(STW_DOUBLE_BAD_ADDRESS, {"cuMemSetAccess"});
    allow(range, 2 * kGranule);
    ASSERT_EQ(cuMemsetD8Async(range + kGranule - 4, 7, 8, one), kSuccess);
    ASSERT_EQ(cuStreamSynchronize(one), kSuccess);
    EXPECT_EQ(bytes(range)[kGranule - 1], 7);
    EXPECT_EQ(bytes(range)[kGranule], 7);

    ASSERT_EQ(cuMemUnmap(range, 2 * kGranule), kSuccess);
    ASSERT_EQ(cuMemMap(range, kGranule, 0, high, 0), kSuccess);
    allow(range, kGranule);
    EXPECT_EQ(bytes(range)[0], 7) << "the bytes went with their handle";
    EXPECT_EQ(cuMemRelease(low), kSuccess);
    EXPECT_EQ(cuMemRelease(high), kSuccess) << "stays while it is mapped";
    EXPECT_EQ(bytes(range)[0], 7);
    EXPECT_EQ(cuMemAddressFree(range, 2 * kGranule), kInvalidValue) << "something is mapped";
    EXPECT_EQ(cuMemUnmap(range, kGranule), kSuccess);
    EXPECT_EQ(cuMemAddressFree(range, 2 * kGranule), kSuccess);
    size_t free_bytes = 0, total_bytes = 0;
    EXPECT_EQ(cuMemGetInfo_v2(&free_bytes, &total_bytes), kSuccess);
    EXPECT_EQ(free_bytes, total_bytes);
    EXPECT_EQ(cuStreamDestroy_v2(one), kSuccess);
}

TEST_F(DoubleMemory, UnmappingWhatIsInUseIsFound)
{
    void *const one = stream();
    const Address range = reserve(kGranule), elsewhere = reserve(kGranule);
    const Handle pages = handle(kGranule);
    ASSERT_EQ(cuMemMap(range, kGranule, 0, pages, 0), kSuccess);
    allow(range, kGranule);
    stw_double_hold(one);
    ASSERT_EQ(cuMemsetD8Async(range, 1, 8, one), kSuccess);
    EXPECT_EQ(cuMemUnmap(range, kGranule), kSuccess);
    expect_violation(STW_DOUBLE_GONE_IN_USE, {"cuMemUnmap"});
    ASSERT_EQ(cuMemMap(elsewhere, kGranule, 0, pages, 0), kSuccess);
    allow(elsewhere, kGranule);
    stw_double_let_go(one, 0);
    ASSERT_EQ(cuStreamSynchronize(one), kSuccess);
    EXPECT_EQ(bytes(elsewhere)[0], 0) << "what was in use is not done any more";
    EXPECT_EQ(cuMemsetD8Async(range, 1, 8, one), kInvalidValue);
    expect_violation(STW_DOUBLE_BAD_ADDRESS);
    EXPECT_EQ(cuMemUnmap(elsewhere, kGranule), kSuccess);
    EXPECT_EQ(cuMemRelease(pages), kSuccess);
    EXPECT_EQ(cuMemAddressFree(range, kGranule), kSuccess);
    EXPECT_EQ(cuMemAddressFree(elsewhere, kGranule), kSuccess);
    EXPECT_EQ(cuStreamDestroy_v2(one), kSuccess);
}

TEST_F(DoubleMemory, ARaceThroughTwoMappingsOfOneHandleIsFound)
{
    void *const one = stream();
    void *const two = stream();
    const Address first = reserve(kGranule), second = reserve(kGranule);
    const Handle pages = handle(kGranule);
    for (const Address range : {first, second}) {
        ASSERT_EQ(cuMemMap(range, kGranule, 0, pages, 0), kSuccess);
        allow(range, kGranule);
    }
    ASSERT_EQ(cuMemsetD8Async(first + 16, 1, 8, one), kSuccess);
    ASSERT_EQ(cuMemsetD8Async(second + 20, 2, 8, two), kSuccess);
    expect_violation(STW_DOUBLE_WRITTEN_TWICE, {"+4)"});
    ASSERT_EQ(cuCtxSynchronize(), kSuccess);
    for (const Address range : {first, second}) {
        EXPECT_EQ(cuMemUnmap(range, kGranule), kSuccess);
        EXPECT_EQ(cuMemAddressFree(range, kGranule), kSuccess);
    }
    EXPECT_EQ(cuMemRelease(pages), kSuccess);
    EXPECT_EQ(cuStreamDestroy_v2(one), kSuccess);
    EXPECT_EQ(cuStreamDestroy_v2(two), kSuccess);
}

TEST_F(DoubleMemory, AMappingMayGoWhileItsHandleIsUsedThroughAnother)
{
    void *const one = stream();
    const Address kept = reserve(kGranule), gone = reserve(kGranule);
    const Handle pages = handle(kGranule);
    for (const Address range : {kept, gone}) {
        ASSERT_EQ(cuMemMap(range, kGranule, 0, pages, 0), kSuccess);
        allow(range, kGranule);
    }
    stw_double_hold(one);
    ASSERT_EQ(cuMemsetD8Async(kept, 1, 8, one), kSuccess);
    EXPECT_EQ(cuMemUnmap(gone, kGranule), kSuccess);
    EXPECT_EQ(cuMemAddressFree(gone, kGranule), kSuccess);
    stw_double_let_go(one, 0);
    ASSERT_EQ(cuStreamSynchronize(one), kSuccess);
    EXPECT_EQ(bytes(kept)[0], 1);
    EXPECT_EQ(cuMemUnmap(kept, kGranule), kSuccess);
    EXPECT_EQ(cuMemAddressFree(kept, kGranule), kSuccess);
    EXPECT_EQ(cuMemRelease(pages), kSuccess);
    EXPECT_EQ(cuStreamDestroy_v2(one), kSuccess);
}

TEST_F(DoubleMemory, UnifiedMemoryIsUsedWhereItIs)
{
    begin("unified=1");
    void *const one = stream();
    const Address memory = device(4096);
    std::vector<unsigned char> owned(4096, 3);
    stw_double_hold(one);
    ASSERT_EQ(cuMemcpyHtoDAsync_v2(memory, owned.data(), 4096, one), kSuccess);
    stw_double_host_writes(as_address(owned.data()), 1);
    expect_violation(STW_DOUBLE_HOST_TOO_EARLY);
    EXPECT_EQ(stw_double_pageable_copies(), 0u);
    const stw_double_range range{as_address(owned.data()), 4096, 0, 0};
    ASSERT_EQ(stw_double_consume(one, "reader", &range, 1, nullptr, nullptr), kSuccess);
    stw_double_let_go(one, 0);
    ASSERT_EQ(cuStreamSynchronize(one), kSuccess);
    EXPECT_EQ(bytes(memory)[0], 3);
    EXPECT_EQ(cuMemFree_v2(memory), kSuccess);
    EXPECT_EQ(cuStreamDestroy_v2(one), kSuccess);
}

TEST_F(DoubleMemory, MappingRefusesWhatCudaRefuses)
{
    const Address range = reserve(2 * kGranule);
    const Handle pages = handle(kGranule);
    EXPECT_EQ(cuMemMap(range, kGranule, 4096, pages, 0), kInvalidValue) << "an offset";
    EXPECT_EQ(cuMemMap(range + 4096, kGranule, 0, pages, 0), kInvalidValue) << "alignment";
    EXPECT_EQ(cuMemMap(range, 2 * kGranule, 0, pages, 0), kInvalidValue) << "beyond the handle";
    EXPECT_EQ(cuMemMap(range + 2 * kGranule, kGranule, 0, pages, 0), kInvalidValue);
    EXPECT_EQ(cuMemMap(range, kGranule, 0, pages + 1, 0), kInvalidValue) << "no such handle";
    EXPECT_EQ(cuMemUnmap(range, kGranule), kInvalidValue);
    AllocationProperties properties{};
    properties.type = kAllocationPinned;
    properties.location = {kLocationDevice, 0};
    size_t granularity = 0;
    EXPECT_EQ(cuMemGetAllocationGranularity(&granularity, &properties, 0), kSuccess);
    EXPECT_EQ(granularity, kGranule);
    Handle none = 0;
    EXPECT_EQ(cuMemCreate(&none, kGranule - 1, &properties, 0), kInvalidValue);
    EXPECT_EQ(cuMemCreate(&none, size_t{1} << 40, &properties, 0), kOutOfMemory);
    char text[512] = "";
    EXPECT_EQ(stw_double_leaks(text, sizeof text), 3u) << text;
    EXPECT_EQ(cuMemRelease(pages), kSuccess);
    EXPECT_EQ(cuMemRelease(pages), kInvalidValue);
    EXPECT_EQ(cuMemAddressFree(range, 2 * kGranule), kSuccess);
    EXPECT_EQ(cuMemAddressFree(range, 2 * kGranule), kInvalidValue);
}

TEST_F(DoubleMemory, ALargeHandleIsMappedWholeAndFromAnyGranule)
{
    const Address range = reserve(6 * kGranule), other = reserve(2 * kGranule);
    const Handle large = handle(4 * kGranule), small = handle(kGranule);
    EXPECT_EQ(cuMemMap(range, kGranule, 0, large, 0), kInvalidValue) << "a part of it";
    EXPECT_EQ(cuMemMap(range, 3 * kGranule, 0, large, 0), kInvalidValue) << "most of it";
    EXPECT_EQ(cuMemMap(range, 4 * kGranule, kGranule, large, 0), kInvalidValue) << "an offset";
    EXPECT_EQ(cuMemMap(other, 4 * kGranule, 0, large, 0), kInvalidValue) << "no room";
    ASSERT_EQ(cuMemMap(range + kGranule, 4 * kGranule, 0, large, 0), kSuccess);
    for (const uint64_t granule : {1, 2, 4})
        EXPECT_EQ(cuMemMap(range + granule * kGranule, kGranule, 0, small, 0), kAlreadyMapped)
            << granule;
    EXPECT_EQ(cuMemMap(range, 4 * kGranule, 0, large, 0), kAlreadyMapped) << "its own beginning";
    EXPECT_EQ(cuMemMap(range + 2 * kGranule, 4 * kGranule, 0, large, 0), kAlreadyMapped);
    ASSERT_EQ(cuMemMap(range + 5 * kGranule, kGranule, 0, small, 0), kSuccess) << "beside it";
    EXPECT_EQ(cuMemUnmap(range + kGranule, kGranule), kInvalidValue) << "a part of a mapping";
    EXPECT_EQ(cuMemUnmap(range + kGranule, 5 * kGranule), kSuccess);
    EXPECT_EQ(cuMemRelease(large), kSuccess);
    EXPECT_EQ(cuMemRelease(small), kSuccess);
    EXPECT_EQ(cuMemAddressFree(range, 6 * kGranule), kSuccess);
    EXPECT_EQ(cuMemAddressFree(other, 2 * kGranule), kSuccess);
}

TEST_F(DoubleMemory, AddressesAreReservedWhereTheyAreWishedIfTheyAreFree)
{
    const Address first = reserve(4 * kGranule);
    EXPECT_EQ(cuMemAddressFree(first, 4 * kGranule), kSuccess);
    Address wished = 0, elsewhere = 0;
    ASSERT_EQ(cuMemAddressReserve(&wished, kGranule, 0, first + kGranule, 0), kSuccess);
    EXPECT_EQ(wished, first + kGranule);
    ASSERT_EQ(cuMemAddressReserve(&elsewhere, kGranule, 0, wished, 0), kSuccess);
    EXPECT_NE(elsewhere, wished);
    EXPECT_EQ(cuMemAddressFree(wished, kGranule), kSuccess);
    EXPECT_EQ(cuMemAddressFree(elsewhere, kGranule), kSuccess);
    const Address far_aligned = reserve(kGranule, 64 * kGranule);
    EXPECT_EQ(far_aligned % (64 * kGranule), 0u);
    EXPECT_EQ(cuMemAddressFree(far_aligned, kGranule), kSuccess);
}

// ------------------------------------------------------------------------------------ batches --

class DoubleBatch : public DoubleTest {
protected:
    void SetUp() override
    {
        DoubleTest::SetUp();
        one = stream();
        memory = device(4096);
        host = pinned(4096);
    }
    void TearDown() override
    {
        EXPECT_EQ(cuCtxSynchronize(), kSuccess);
        EXPECT_EQ(cuStreamDestroy_v2(one), kSuccess);
        EXPECT_EQ(cuMemFree_v2(memory), kSuccess);
        EXPECT_EQ(cuMemFreeHost(host), kSuccess);
        DoubleTest::TearDown();
    }
    // Copies of 8 bytes from the pinned memory at `from` to the device's at `to`.
    int copy(std::vector<size_t> to, std::vector<size_t> from, int order)
    {
        std::vector<Address> tos, froms;
        for (const size_t offset : to) tos.push_back(memory + offset);
        for (const size_t offset : from) froms.push_back(as_address(host + offset));
        std::vector<size_t> sizes(to.size(), 8);
        CopyAttributes attributes{order, {}, {}, 0};
        size_t first = 0;
        return cuMemcpyBatchAsync_v2(tos.data(), froms.data(), sizes.data(), sizes.size(),
                                     &attributes, &first, 1, one);
    }

    void *one = nullptr;
    Address memory = 0;
    unsigned char *host = nullptr;
};

TEST_F(DoubleBatch, CopiesEveryRange)
{
    std::fill(host, host + 8, 1);
    std::fill(host + 8, host + 16, 2);
    ASSERT_EQ(copy({100, 0}, {0, 8}, kSourceInStreamOrder), kSuccess);
    ASSERT_EQ(cuStreamSynchronize(one), kSuccess);
    EXPECT_EQ(bytes(memory)[100], 1);
    EXPECT_EQ(bytes(memory)[0], 2);
    size_t failed = 0;
    Address to = memory, from = as_address(host);
    size_t size = 8, first = 0;
    CopyAttributes attributes{kSourceInStreamOrder, {}, {}, 0};
    EXPECT_EQ(cuMemcpyBatchAsync(&to, &from, &size, 1, &attributes, &first, 1, &failed, nullptr),
              kInvalidValue)
        << "the legacy stream";
    EXPECT_EQ(failed, SIZE_MAX);
    first = 1;
    EXPECT_EQ(cuMemcpyBatchAsync(&to, &from, &size, 1, &attributes, &first, 1, &failed, one),
              kInvalidValue);
    EXPECT_EQ(copy({0}, {0}, 0), kInvalidValue) << "no source order";
}

TEST_F(DoubleBatch, CopiesOfOneBatchMustNotMeet)
{
    ASSERT_EQ(copy({0, 4}, {0, 100}, kSourceInStreamOrder), kSuccess);
    expect_violation(STW_DOUBLE_BATCH_OVERLAP);
    ASSERT_EQ(copy({0, 8}, {0, 4}, kSourceInStreamOrder), kSuccess);
    EXPECT_EQ(stw_double_violations(), 0u) << "two reads may";
}

TEST_F(DoubleBatch, ASourceInAnyOrderIsReadBeforeWhatTheStreamDoesFirst)
{
    stw_double_hold(one);  // what is too early here races with nothing in fact
    ASSERT_EQ(cuMemcpyDtoHAsync_v2(host, memory, 8, one), kSuccess);
    ASSERT_EQ(copy({100}, {0}, kSourceInStreamOrder), kSuccess);
    EXPECT_EQ(stw_double_violations(), 0u);
    ASSERT_EQ(copy({200}, {0}, kSourceAnyOrder), kSuccess);
    expect_violation(STW_DOUBLE_USED_BEFORE_READY, {"cuMemcpyBatchAsync_v2"});
    ASSERT_EQ(copy({300}, {0}, kSourceDuringCall), kSuccess);
    expect_violation(STW_DOUBLE_HOST_TOO_EARLY, {"cuMemcpyBatchAsync_v2"});
    stw_double_let_go(one, 0);
}

TEST_F(DoubleBatch, ASourceReadDuringTheCallMayChangeAfterIt)
{
    host[0] = 1;
    stw_double_hold(one);
    ASSERT_EQ(copy({0}, {0}, kSourceDuringCall), kSuccess);
    stw_double_host_writes(as_address(host), 8);
    host[0] = 2;
    stw_double_let_go(one, 0);
    ASSERT_EQ(cuStreamSynchronize(one), kSuccess);
    EXPECT_EQ(bytes(memory)[0], 1);
}

}  // namespace
}  // namespace stepwell::cuda_double
