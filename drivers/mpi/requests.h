// SPDX-License-Identifier: Apache-2.0
// A set of MPI requests and their results. One thread at a time.
#pragma once

#include "drivers/mpi/calls.h"

#include <cstdint>
#include <vector>

namespace stepwell::drivers {

// State that all operations of a group share.
struct Ranks {
    MPI_Comm comm = MPI_COMM_NULL;
    uint32_t rank = 0;
    uint32_t size = 1;
};

class Requests {
public:
    // At most so many requests; nothing is allocated later.
    void reserve(size_t count);
    // Each of at most INT_MAX bytes.
    void send(const Ranks &ranks, const void *data, uint64_t bytes, uint32_t to, int tag);
    void receive(const Ranks &ranks, void *data, uint64_t bytes, uint32_t from, int tag);
    // start(&request) -> code of MPI, for other operations.
    template <class Start> void add(Start &&start)
    {
        MPI_Request request = MPI_REQUEST_NULL;
        const int code = start(&request);
        put(code, request, kNobody);  // NOLINT(clang-analyzer-optin.mpi.MPI-Checker): see advance()
    }
    // Tests once, without waiting: true when no request is left, or at the first error.
    bool advance();
    int error() const { return error_; }
    bool empty() const { return open_ == 0; }
    // The ranks from which a message is still outstanding.
    uint32_t missing(uint32_t *ranks_out, uint32_t capacity) const;

private:
    static constexpr uint32_t kNobody = UINT32_MAX;
    void test();
    void put(int code, MPI_Request request, uint32_t from);

    std::vector<MPI_Request> requests_;
    std::vector<uint32_t> from_;  // of a receive: the sender; else kNobody
    std::vector<int> indices_;    // what MPI_Testsome writes
    std::vector<MPI_Status> statuses_;
    size_t open_ = 0;
    int error_ = MPI_SUCCESS;
};

}  // namespace stepwell::drivers
