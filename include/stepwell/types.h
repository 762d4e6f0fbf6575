/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stepwell/types.h: the types that all of the API shares: handles, tiers, dtypes, roles, streams.
 */
#ifndef STEPWELL_TYPES_H
#define STEPWELL_TYPES_H

#include <stepwell/status.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct stw_group stw_group; /* ranks; NULL everywhere: this process alone */
typedef struct stw_runtime stw_runtime;
typedef struct stw_tensor stw_tensor;
typedef struct stw_phase stw_phase;
typedef struct stw_optimizer stw_optimizer;
typedef struct stw_operation stw_operation;

#define STW_STREAM_HOST ((void *)0)       /* the consumer is the calling program on the CPU */
#define STW_STREAM_LEGACY ((void *)1)     /* CU_STREAM_LEGACY, what frameworks call 0 */
#define STW_STREAM_PER_THREAD ((void *)2) /* CU_STREAM_PER_THREAD */
#define STW_STREAM_SYNCED ((void *)-1)    /* the caller has synchronised: nothing is ordered */

enum { /* dtype; opaque block formats are U8 */
    STW_F32 = 1, STW_F16 = 2, STW_BF16 = 3, STW_F64 = 4, STW_F8_E4M3 = 5, STW_F8_E5M2 = 6,
    STW_I64 = 7, STW_I32 = 8, STW_I16 = 9, STW_I8 = 10, STW_U8 = 11, STW_BOOL = 12
};

enum { /* tier */
    STW_TIER_DEFAULT = 0, /* the nearest tier that exists */
    STW_TIER_DEVICE = 1, STW_TIER_HOST = 2, STW_TIER_NVME = 3
};

enum { /* role of a tensor */
    STW_ROLE_OTHER = 0, STW_ROLE_PARAM = 1, STW_ROLE_GRAD = 2, STW_ROLE_OPTIMIZER_STATE = 3,
    STW_ROLE_ACTIVATION = 4, STW_ROLE_CACHE = 5 /* key-value caches and the like */
};

/* Bits per element; 0 for a dtype this build does not know. Any thread. Blocks: never. */
STW_API uint32_t stw_dtype_bits(uint32_t dtype);

#ifdef __cplusplus
}
#endif

#endif /* STEPWELL_TYPES_H */
