// SPDX-License-Identifier: Apache-2.0
#include "drivers/mpi/calls.h"

namespace stepwell::drivers {

stw_status mpi_status(int code)
{
    if (code == MPI_SUCCESS) return STW_OK;
    int kind = MPI_ERR_UNKNOWN;
    MPI_Error_class(code, &kind);
    switch (kind) {
    case MPI_ERR_NO_MEM: return STW_ERROR_MEMORY;
    case MPI_ERR_TRUNCATE: return STW_ERROR_ORDER;  // ranks started different collectives
    case MPI_ERR_COMM: return STW_ERROR_INVALID;
    default: return STW_ERROR_PEER;
    }
}

std::string mpi_text(int code)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int length = 0;
    if (MPI_Error_string(code, text, &length) != MPI_SUCCESS)
        return "MPI error " + std::to_string(code);
    return text;
}

}  // namespace stepwell::drivers
