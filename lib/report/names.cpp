// SPDX-License-Identifier: Apache-2.0
// The words of the reports for the numbers of the public API.
#include "lib/report/report.h"

#include "lib/support/status.h"

namespace stepwell::report {

const char *tier_name(uint32_t tier)
{
    switch (tier) {
    case STW_TIER_DEVICE: return "device";
    case STW_TIER_HOST: return "host";
    case STW_TIER_NVME: return "nvme";
    default: return "unknown";
    }
}

const char *dtype_name(uint32_t dtype)
{
    switch (dtype) {
    case STW_F32: return "f32";
    case STW_F16: return "f16";
    case STW_BF16: return "bf16";
    case STW_F64: return "f64";
    case STW_F8_E4M3: return "f8_e4m3";
    case STW_F8_E5M2: return "f8_e5m2";
    case STW_I64: return "i64";
    case STW_I32: return "i32";
    case STW_I16: return "i16";
    case STW_I8: return "i8";
    case STW_U8: return "u8";
    case STW_BOOL: return "bool";
    default: return "unknown";
    }
}

const char *link_name(uint32_t link)
{
    switch (link) {
    case STW_LINK_NVME_TO_HOST: return "nvme_to_host";
    case STW_LINK_HOST_TO_NVME: return "host_to_nvme";
    case STW_LINK_HOST_TO_DEVICE: return "host_to_device";
    case STW_LINK_DEVICE_TO_HOST: return "device_to_host";
    case STW_LINK_NVME_TO_DEVICE: return "nvme_to_device";
    case STW_LINK_DEVICE_TO_NVME: return "device_to_nvme";
    case STW_LINK_RANKS: return "ranks";
    default: return "unknown";
    }
}

const char *role_name(uint32_t role)
{
    switch (role) {
    case STW_ROLE_OTHER: return "other";
    case STW_ROLE_PARAM: return "param";
    case STW_ROLE_GRAD: return "grad";
    case STW_ROLE_OPTIMIZER_STATE: return "optimizer_state";
    case STW_ROLE_ACTIVATION: return "activation";
    case STW_ROLE_CACHE: return "cache";
    default: return "unknown";
    }
}

std::string way_text(uint64_t way)
{
    return format_text("%016llx", static_cast<unsigned long long>(way));
}

}  // namespace stepwell::report
