// SPDX-License-Identifier: Apache-2.0
// What a release says about the bytes: the only place that reads STW_RELEASE_*.
#pragma once

#include <stepwell/fetch.h>

#include <cstdint>

namespace stepwell {

class ReleaseHint {
public:
    // In addition to STW_RELEASE_*: this rank has no gradient and only takes part in the sum.
    static constexpr uint32_t kNothing = 1u << 31;

    ReleaseHint() = default;
    explicit ReleaseHint(uint32_t flags) : flags_(flags) {}

    [[nodiscard]] bool far() const { return (flags_ & STW_RELEASE_FAR) != 0; }
    [[nodiscard]] bool near() const { return (flags_ & STW_RELEASE_NEAR) != 0; }
    [[nodiscard]] bool discard() const { return (flags_ & STW_RELEASE_DISCARD) != 0; }
    [[nodiscard]] bool abandon() const { return (flags_ & STW_RELEASE_ABANDON) != 0; }
    [[nodiscard]] bool more() const { return (flags_ & STW_RELEASE_MORE) != 0; }
    [[nodiscard]] bool nothing() const { return (flags_ & kNothing) != 0; }

    // The core has to be told, also of a view that its gate pinned.
    [[nodiscard]] bool concerns_core() const
    {
        return (flags_ & (STW_RELEASE_FAR | STW_RELEASE_NEAR | STW_RELEASE_DISCARD)) != 0;
    }
    // What was added to a sum does not count.
    [[nodiscard]] bool drops() const { return abandon() || discard(); }

private:
    uint32_t flags_ = 0;
};

}  // namespace stepwell
