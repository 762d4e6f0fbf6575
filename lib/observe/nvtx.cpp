// SPDX-License-Identifier: Apache-2.0
// NVTX is a header: it looks for a profiler once, at the first range, and does nothing without one.
// Names are registered once, so that a range carries no text.
#include "lib/observe/nvtx.h"

#ifdef STEPWELL_NVTX
#include <nvtx3/nvToolsExt.h>
#endif

namespace stepwell::observe {

#ifdef STEPWELL_NVTX

namespace {

struct Names {
    nvtxDomainHandle_t domain;
    nvtxStringHandle_t kinds[3];
};

const Names &names()
{
    static const Names registered = [] {
        Names made{};
        made.domain = nvtxDomainCreateA("stepwell");
        const char *const words[] = {"fetch", "transfer", "update"};
        for (int i = 0; i < 3; ++i) {
            made.kinds[i] = nvtxDomainRegisterStringA(made.domain, words[i]);
        }
        return made;
    }();
    return registered;
}

}  // namespace

// NVTX numbers ranges from 0, which is ours for none.
uint64_t nvtx_begin(NvtxKind kind, uint64_t bytes)
{
    nvtxEventAttributes_t event = {};
    event.version = NVTX_VERSION;
    event.size = NVTX_EVENT_ATTRIB_STRUCT_SIZE;
    event.messageType = NVTX_MESSAGE_TYPE_REGISTERED;
    event.message.registered = names().kinds[static_cast<uint8_t>(kind)];
    event.payloadType = NVTX_PAYLOAD_TYPE_UNSIGNED_INT64;
    event.payload.ullValue = bytes;
    return nvtxDomainRangeStartEx(names().domain, &event) + 1;
}

void nvtx_end(uint64_t range)
{
    if (range != kNoRange) nvtxDomainRangeEnd(names().domain, range - 1);
}

bool nvtx_is_built()
{
    return true;
}

#else

uint64_t nvtx_begin(NvtxKind /*kind*/, uint64_t /*bytes*/)
{
    return kNoRange;
}

void nvtx_end(uint64_t /*range*/) {}

bool nvtx_is_built()
{
    return false;
}

#endif

}  // namespace stepwell::observe
