// SPDX-License-Identifier: Apache-2.0
#include "cuda_link.h"

#include "measure.h"

namespace bench {

CudaLink::CudaLink(const stepwell::gpu::DriverCalls &calls, uint64_t bytes)
    : calls_(calls), bytes_(bytes)
{
    calls_.must(calls_.stream_create(&stream_, 1), "cuStreamCreate");
    calls_.must(calls_.host_alloc(&host_, bytes, 0), "cuMemHostAlloc");
    calls_.must(calls_.memory_alloc(&device_, bytes), "cuMemAlloc");
}

CudaLink::~CudaLink()
{
    calls_.memory_free(device_);
    calls_.host_free(host_);
    calls_.stream_destroy(stream_);
}

// The memory is copied once, and the time stretched to the bytes that are asked for.
template <class Copy> double CudaLink::timed(uint64_t bytes, const Copy &copy) const
{
    const double begin = now_s();
    calls_.must(copy(), "a copy");
    calls_.must(calls_.stream_synchronize(stream_), "cuStreamSynchronize");
    return (now_s() - begin) * static_cast<double>(bytes) / static_cast<double>(bytes_);
}

double CudaLink::up(uint64_t bytes) const
{
    return timed(bytes, [&] { return calls_.copy_to_device(device_, host_, bytes_, stream_); });
}

double CudaLink::down(uint64_t bytes) const
{
    return timed(bytes, [&] { return calls_.copy_to_host(host_, device_, bytes_, stream_); });
}

}  // namespace bench
