/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stands where a profiler would: NVTX loads it by NVTX_INJECTION64_PATH and calls what it puts in
 * the table. At the end of the process it writes how many ranges of each name began and ended to
 * the file that NVTX_LISTENER_OUTPUT names.
 */
#include <nvtx3/nvToolsExt.h>

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KINDS_MAX 8

static const char *kinds[KINDS_MAX];
static atomic_ulong begun[KINDS_MAX];
static atomic_ulong bytes[KINDS_MAX];
static atomic_ulong ended, next_range, other_domains;
static int kind_count;
static int domain;

static nvtxDomainHandle_t NVTX_API domain_create(const char *name)
{
    return strcmp(name, "stepwell") == 0 ? (nvtxDomainHandle_t)&domain : NULL;
}

/* The handle of a string is its number and 1. */
static nvtxStringHandle_t NVTX_API register_string(nvtxDomainHandle_t of, const char *text)
{
    if (of != (nvtxDomainHandle_t)&domain || kind_count == KINDS_MAX) return NULL;
    kinds[kind_count] = strdup(text);
    return (nvtxStringHandle_t)(size_t)++kind_count;
}

static nvtxRangeId_t NVTX_API range_start(nvtxDomainHandle_t of, const nvtxEventAttributes_t *event)
{
    size_t kind = (size_t)event->message.registered;
    if (of != (nvtxDomainHandle_t)&domain || kind == 0 || kind > KINDS_MAX) {
        atomic_fetch_add(&other_domains, 1);
        return 0;
    }
    atomic_fetch_add(&begun[kind - 1], 1);
    atomic_fetch_add(&bytes[kind - 1], event->payload.ullValue);
    return atomic_fetch_add(&next_range, 1);
}

static void NVTX_API range_end(nvtxDomainHandle_t of, nvtxRangeId_t range)
{
    if (of == (nvtxDomainHandle_t)&domain && range < atomic_load(&next_range))
        atomic_fetch_add(&ended, 1);
}

static void write_down(void)
{
    const char *path = getenv("NVTX_LISTENER_OUTPUT");
    FILE *file = path ? fopen(path, "w") : NULL;
    if (!file) return;
    fprintf(file, "{\"ended\": %lu, \"other\": %lu", atomic_load(&ended),
            atomic_load(&other_domains));
    for (int i = 0; i < kind_count; ++i)
        fprintf(file, ", \"%s\": {\"begun\": %lu, \"bytes\": %lu}", kinds[i],
                atomic_load(&begun[i]), atomic_load(&bytes[i]));
    fprintf(file, "}\n");
    fclose(file);
}

#define PUT(id, function)                                                                          \
    if (size > (id)) *table[id] = (NvtxFunctionPointer)(function)

int NVTX_API InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table);
int NVTX_API InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get_table)
{
    const NvtxExportTableCallbacks *callbacks = get_table(NVTX_ETID_CALLBACKS);
    NvtxFunctionTable table = NULL;
    unsigned int size = 0;
    if (!callbacks) return 0;
    if (!callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size)) return 0;
    PUT(NVTX_CBID_CORE2_DomainCreateA, domain_create);
    PUT(NVTX_CBID_CORE2_DomainRegisterStringA, register_string);
    PUT(NVTX_CBID_CORE2_DomainRangeStartEx, range_start);
    PUT(NVTX_CBID_CORE2_DomainRangeEnd, range_end);
    atexit(write_down);
    return 1;
}
