// SPDX-License-Identifier: Apache-2.0
// Names, texts and sizes that need no runtime.
#include "lib/api/check.h"

const char *stw_status_string(stw_status status)
{
#define STW_STATUS_TEXT(name, value, text)                                                         \
    case value: return text;
    switch (status) {
        STW_STATUS_MAP(STW_STATUS_TEXT)
    default: return "a status this version does not know";
    }
#undef STW_STATUS_TEXT
}

uint32_t stw_dtype_bits(uint32_t dtype)
{
    switch (dtype) {
    case STW_F64:
    case STW_I64: return 64;
    case STW_F32:
    case STW_I32: return 32;
    case STW_F16:
    case STW_BF16:
    case STW_I16: return 16;
    case STW_F8_E4M3:
    case STW_F8_E5M2:
    case STW_I8:
    case STW_U8:
    case STW_BOOL: return 8;
    default: return 0;
    }
}
