// SPDX-License-Identifier: Apache-2.0
// MPI's own header, in C alone, and what its error codes mean here.
#pragma once

#define OMPI_SKIP_MPICXX  1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <stepwell/driver.h>

#include <cstdint>
#include <string>

namespace stepwell::drivers {

constexpr uint64_t kSecond = 1'000'000'000;  // ns

// What an error of MPI is to the library.
stw_status mpi_status(int code);
// MPI's own words.
std::string mpi_text(int code);

}  // namespace stepwell::drivers
