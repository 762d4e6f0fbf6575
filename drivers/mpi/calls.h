// SPDX-License-Identifier: Apache-2.0
// MPI's own header, without its C++ bindings, and the statuses for its error codes.
#pragma once

#define OMPI_SKIP_MPICXX  1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <stepwell/driver.h>

#include <cstdint>
#include <string>

namespace stepwell::drivers {

constexpr uint64_t kSecond = 1'000'000'000;  // ns

// The status for an error of MPI.
stw_status mpi_status(int code);
// MPI's own text for an error.
std::string mpi_text(int code);

}  // namespace stepwell::drivers
