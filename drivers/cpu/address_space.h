// SPDX-License-Identifier: Apache-2.0
// Which part of a range of addresses belongs to which reservation: offsets only, no system call.
// First fit, free neighbours are joined. Not on a hot path: a tensor reserves once.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

namespace stepwell::drivers {

class AddressSpace {
public:
    explicit AddressSpace(uint64_t bytes);

    std::optional<uint64_t> reserve(uint64_t bytes);
    // False: no reservation begins there with that size.
    bool release(uint64_t offset, uint64_t bytes);
    bool is_reserved(uint64_t offset, uint64_t bytes) const;
    bool has(uint64_t offset, uint64_t bytes) const;

private:
    std::map<uint64_t, uint64_t> free_;      // offset to bytes
    std::map<uint64_t, uint64_t> reserved_;  // the same
};

}  // namespace stepwell::drivers
