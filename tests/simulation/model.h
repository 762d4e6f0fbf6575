// SPDX-License-Identifier: Apache-2.0
// The reference model: the newest contents of every tensor as stamps, who has views, who may. So
// simple that it can be believed: it knows of no replicas, rooms, routes or queues.
#pragma once

#include "tests/simulation/machine.h"
#include "tests/simulation/setup.h"

#include <memory>
#include <set>

namespace stepwell::simulation {

struct ModelTensor {
    bool alive = false;
    TensorSpec spec;
    Contents contents = Contents::kEmpty;
    bool missed = false;  // by an update: not read until it is written whole or all is forgiven
    std::vector<Stamp> newest;  // a stamp per piece; kAnything where nobody wrote
    PackId pack = 0;
    uint64_t pack_offset = 0;
    uint32_t readers = 0;
    uint32_t writers = 0;
    uint32_t fetches = 0;  // outstanding requests
    uint32_t hints = 0;    // and of prefetches
    FetchId lent_to = 0;   // up to this fetch those with kFetchLent may read beside its claims
    std::vector<std::pair<ClaimId, FetchId>> claims;  // in order; the last fetch asked before each
    TensorId older = kNone;   // that gets the contents from before the claim's writes
    std::set<uint64_t> kept;  // blocks of which it has them
    bool in_parts = false;    // it is such a one, and may lack blocks

    [[nodiscard]] bool readable() const { return contents == Contents::kValid && !missed; }
    // Others have to wait, those that read as well.
    [[nodiscard]] bool claimed_alone() const
    {
        return std::any_of(claims.begin(), claims.end(),
                           [](const auto &claim) { return is_exclusive(claim.first); });
    }
    void forget_contents(Contents now)
    {
        contents = now;
        missed = false;
        newest.assign(newest.size(), now == Contents::kValid ? kZeros : kAnything);
    }
};

constexpr FetchId kByGate = UINT64_MAX;

struct ModelView {
    Request request;     // with the place it was granted at
    uint64_t owner = 0;  // 0: the library's own
    bool internal = false;
    bool by_gate = false;
    bool lent = false;     // asked for with kFetchLent
    bool touched = false;  // of an access without a view
    ClaimId claim = 0;
    FetchId fetch = kByGate;
    std::vector<Slot> slots;   // of the blocks the range covers
    std::vector<Slot> pinned;  // by a gate: of all blocks
    uint64_t first_offset = 0;
    std::vector<Stamp> written;  // kAnything: not written
};

struct ModelFetch {
    FetchAsked asked;
    Status cancelled;  // or told to give way
};

class Model {
public:
    Model(Machine &machine, Journal &journal, const Setup &setup)
        : machine_(machine), journal_(journal), config_(setup.config), aliases_(setup.aliases)
    {
    }

    void create(TensorId id, const TensorSpec &spec);
    void destroy(TensorId id) { tensors[id] = {}; }

    // A view as the program sees it: finds its slots, checks exclusion, bytes, place and pins.
    std::unique_ptr<ModelView> open(const Request &request, const Grant &grant, bool by_gate,
                                    ClaimId claim, FetchId fetch, bool lent = false);
    void scribble(ModelView &view, uint64_t piece);
    enum class End { kGood, kDead };
    // The model's half of a release; the core is told afterwards.
    void close(ModelView &view, End end);
    // After the contents died: what the core says must be possible.
    void settle(TensorId id);

    void check_bytes(const ModelView &view, const char *when);
    // Contents and residence as the core reports them against the memories.
    void check_tensor(TensorId id);
    [[nodiscard]] std::string justify(const ModelFetch &fetch, const Status &status) const;

    std::map<TensorId, ModelTensor> tensors;

private:
    [[nodiscard]] Stamp &piece_of(const ModelView &view, uint64_t piece);
    void locate(ModelView &view, const Grant &grant);
    void keep_older(const ModelView &view);
    void check_exclusion(const ModelView &view);
    [[nodiscard]] std::string justify_budget(const FetchAsked &asked) const;
    [[nodiscard]] bool place_is_short(const FetchAsked &asked, PlaceId place, bool agreed) const;

    Machine &machine_;
    Journal &journal_;
    [[nodiscard]] bool is_nvme(PlaceId place) const
    {
        return config_.places[place].tier == Tier::kNvme;
    }
    void check_kept(const ModelView &view, const char *when);

    const Config &config_;
    const bool aliases_;
};

inline uint64_t pieces_begin(const Request &request)
{
    return request.byte_begin / kPieceBytes;
}
inline uint64_t pieces_end(const Request &request)
{
    return (request.byte_begin + request.byte_count + kPieceBytes - 1) / kPieceBytes;
}

}  // namespace stepwell::simulation
