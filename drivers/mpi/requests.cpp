// SPDX-License-Identifier: Apache-2.0
#include "drivers/mpi/requests.h"

#include <algorithm>

namespace stepwell::drivers {

void Requests::reserve(size_t count)
{
    requests_.reserve(count);
    from_.reserve(count);
    indices_.resize(std::max(indices_.size(), count));
    statuses_.resize(std::max(statuses_.size(), count));
}

void Requests::send(const Ranks &ranks, const void *data, uint64_t bytes, uint32_t to, int tag)
{
    MPI_Request request = MPI_REQUEST_NULL;
    const int code = MPI_Isend(data, static_cast<int>(bytes), MPI_BYTE, static_cast<int>(to), tag,
                               ranks.comm, &request);
    put(code, request, kNobody);  // NOLINT(clang-analyzer-optin.mpi.MPI-Checker): see advance()
}

void Requests::receive(const Ranks &ranks, void *data, uint64_t bytes, uint32_t from, int tag)
{
    MPI_Request request = MPI_REQUEST_NULL;
    const int code = MPI_Irecv(data, static_cast<int>(bytes), MPI_BYTE, static_cast<int>(from), tag,
                               ranks.comm, &request);
    put(code, request, from);  // NOLINT(clang-analyzer-optin.mpi.MPI-Checker): see advance()
}

void Requests::put(int code, MPI_Request request, uint32_t from)
{
    if (code != MPI_SUCCESS) {
        error_ = code;
        return;
    }
    requests_.push_back(request);
    from_.push_back(from);
    ++open_;
}

void Requests::test()
{
    int done = 0;
    const int code = MPI_Testsome(static_cast<int>(requests_.size()), requests_.data(), &done,
                                  indices_.data(), statuses_.data());
    if (done == MPI_UNDEFINED) done = 0;
    open_ -= static_cast<size_t>(done);
    if (code == MPI_SUCCESS) return;
    error_ = code;
    int kind = MPI_SUCCESS;
    MPI_Error_class(code, &kind);
    if (kind != MPI_ERR_IN_STATUS) return;
    for (size_t i = 0; i < static_cast<size_t>(done); ++i)
        if (statuses_[i].MPI_ERROR != MPI_SUCCESS) error_ = statuses_[i].MPI_ERROR;
}

bool Requests::advance()
{
    if (error_ == MPI_SUCCESS && open_ > 0) test();
    if (error_ != MPI_SUCCESS) return true;
    if (open_ > 0) return false;
    requests_.clear();
    from_.clear();
    return true;
}

uint32_t Requests::missing(uint32_t *ranks_out, uint32_t capacity) const
{
    uint32_t count = 0;
    for (size_t i = 0; i < requests_.size(); ++i) {
        if (from_[i] == kNobody || requests_[i] == MPI_REQUEST_NULL) continue;
        if (count < capacity) ranks_out[count] = from_[i];
        ++count;
    }
    return count;
}

}  // namespace stepwell::drivers
