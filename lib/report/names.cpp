// SPDX-License-Identifier: Apache-2.0
// The words of the reports for the numbers of the public API.
#include "lib/report/report.h"

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

}  // namespace stepwell::report
