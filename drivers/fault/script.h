// SPDX-License-Identifier: Apache-2.0
// The script of the fault driver: which request has which fault. Pure: a request's plan is a
// function of the seed, its direction and its number in that direction, and of nothing else.
//
// Options, separated by ';' (N counts from 0, reads, writes and flushes each on their own):
//   inner=NAME                the driver to wrap (default aio); inner.KEY=VALUE is passed on to it
//   seed=S                    default 0
//   read_eio, write_eio, write_enospc, read_short, write_short, torn_write, lost_write, misdirect,
//   flip_read, hang_read, hang_write, flush_eio, submit_partial = P (a probability) or at:N
//   delay_read, delay_write = P:NS or at:N:NS
//   at=read|write|flush:N:KIND[:NS], KIND one of eio, enospc, short, torn, lost, misdirect, flip,
//                             hang, delay; may be given again and again
//   throttle_bytes_per_s=B    the device moves no more than that
//   open_enospc=1             open says that there is no space
//   hang_until=close|release  ends of a hang: close (default) as well as fault_release, or only
//                             the latter, and then close times out
#pragma once

#include <stepwell/driver.h>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace stepwell::drivers {

enum class FaultKind : uint8_t {
    kEio,
    kShort,
    kTorn,
    kLost,
    kMisdirect,
    kFlip,
    kHang,
    kDelay,
    kPartial,
    kThrottle,
    kNoSpace,
};
constexpr size_t kFaultKinds = 11;
const char *fault_name(FaultKind kind);

struct FaultCounts {
    std::array<uint64_t, kFaultKinds> of_kind = {};
    uint64_t operator[](FaultKind kind) const { return of_kind[static_cast<size_t>(kind)]; }
    void count(FaultKind kind) { ++of_kind[static_cast<size_t>(kind)]; }
};

enum class Direction : uint8_t { kRead, kWrite, kFlush, kSubmit };
constexpr size_t kDirections = 4;

// The faults of one request.
struct FaultPlan {
    std::array<bool, kFaultKinds> has_kind = {};
    uint64_t delay_ns = 0;
    uint64_t random = 0;  // for where to cut, flip or misdirect
    bool has(FaultKind kind) const { return has_kind[static_cast<size_t>(kind)]; }
};

class FaultScript {
public:
    static stw_status parse(const char *text, FaultScript *script_out, stw_driver_error *error_out);

    FaultPlan plan(Direction direction, uint64_t number) const;
    const std::string &inner() const { return inner_; }
    const std::string &inner_options() const { return inner_options_; }
    uint64_t throttle_bytes_per_s() const { return throttle_bytes_per_s_; }
    bool open_enospc() const { return open_enospc_; }
    bool close_releases() const { return close_releases_; }
    uint64_t seed() const { return seed_; }

private:
    struct Rule {
        FaultKind kind;
        Direction direction;
        bool exact;
        uint64_t number;
        double probability;
        uint64_t delay_ns;
    };
    bool take(std::string_view key, std::string_view value);
    bool take_rate(std::string_view key, std::string_view value);
    bool take_trigger(std::string_view value);
    bool add(const Rule &rule);

    std::string inner_ = "aio";
    std::string inner_options_;
    uint64_t seed_ = 0;
    uint64_t throttle_bytes_per_s_ = 0;
    bool open_enospc_ = false;
    bool close_releases_ = true;
    std::vector<Rule> rules_;
};

}  // namespace stepwell::drivers
