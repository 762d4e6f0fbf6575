// SPDX-License-Identifier: Apache-2.0
// Copies in the order of consumers' streams, by the rules in lib/memory/streams.h: here is which
// slots a copy touches, and what else has to be there before it begins. Of the core it knows two
// questions; no lock is held when they are asked.
#pragma once

#include "lib/memory/host_pins.h"
#include "lib/memory/tiers.h"
#include "lib/observe/log.h"
#include "lib/transfer/copy_ordering.h"

#include <functional>
#include <memory>

namespace stepwell::transfer {

class StreamOrdering final : public CopyOrdering {
public:
    struct Options {
        const memory::TierSet *tiers = nullptr;                   // borrowed, as are the next two
        const std::unique_ptr<memory::HostPins> *pins = nullptr;  // of null where there are none
        observe::Log *log = nullptr;
        // The transfer's bytes may be used behind its copy.
        std::function<void(residency::TransferId)> ordered;
        // Blocks that lie beside the one that a transfer brings, itself included, as of now.
        std::function<residency::SlotRun(const residency::Transfer &)> run_of;
    };

    explicit StreamOrdering(Options options) : options_(std::move(options)) {}

    Status before(uint32_t memory, const void *pointer, uint64_t bytes, bool writes,
                  bool into) override;
    bool waits(uint32_t memory, const void *pointer, uint64_t bytes, bool writes,
               bool into) override;
    void hold(uint32_t memory, bool into) override;
    void let_go(uint32_t memory, bool into, const uint64_t *mark) override;
    bool registered(const void *pointer) override;
    bool joined(const void *pointer) override;
    uint64_t started(uint32_t memory, const void *pointer, uint64_t bytes, uint64_t mark) override;
    Status map_alias(const Job &job) override;
    void ordered(residency::TransferId transfer) override { options_.ordered(transfer); }
    void arrived(uint32_t memory, const void *pointer, uint64_t bytes, uint64_t number) override;
    Status await(uint32_t memory, const void *pointer, uint64_t bytes, bool writes) override;

private:
    [[nodiscard]] const memory::Tier &tier(uint32_t memory) const
    {
        return (*options_.tiers)[static_cast<residency::PlaceId>(memory)];
    }
    [[nodiscard]] memory::HostPins *pins() const { return options_.pins->get(); }
    [[nodiscard]] residency::SlotRun run_of(const Job &job) const;

    const Options options_;
};

}  // namespace stepwell::transfer
