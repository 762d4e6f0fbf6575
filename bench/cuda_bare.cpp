// SPDX-License-Identifier: Apache-2.0
#include "cuda_bare.h"

#include <type_traits>

#include <dlfcn.h>

namespace bench {

Bare open_bare()
{
    Bare bare = {};
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    const auto take = [library](const char *name, auto *function) {
        *function =
            reinterpret_cast<std::remove_pointer_t<decltype(function)>>(dlsym(library, name));
    };
    take("cuDriverGetVersion", &bare.driver_version);
    take("cuDeviceGetAttribute", &bare.attribute);
    take("cuMemGetInfo_v2", &bare.memory_info);
    take("cuCtxSynchronize", &bare.context_synchronize);
    take("cuMemHostRegister_v2", &bare.host_register);
    take("cuMemHostUnregister", &bare.host_unregister);
    take("cuEventCreate", &bare.event_create);
    take("cuEventRecord", &bare.event_record);
    take("cuEventQuery", &bare.event_query);
    take("cuEventDestroy_v2", &bare.event_destroy);
    take("cuStreamWaitEvent", &bare.stream_wait);
    take("cuStreamGetId", &bare.stream_id);
    take("cuMemGetAllocationGranularity", &bare.granularity);
    take("cuMemAddressReserve", &bare.reserve);
    take("cuMemAddressFree", &bare.unreserve);
    take("cuMemCreate", &bare.create);
    take("cuMemRelease", &bare.release);
    take("cuMemMap", &bare.map);
    take("cuMemUnmap", &bare.unmap);
    take("cuMemSetAccess", &bare.set_access);
    take("cuMemcpyBatchAsync", &bare.batch);
    take("cuMemcpyBatchAsync_v2", &bare.batch_v2);
    return bare;
}

}  // namespace bench
