// SPDX-License-Identifier: Apache-2.0
// Model: what one rank's program may rely on: the newest stamp of every piece of every tensor, who
// has views, who has claims. It knows of no replicas, routes or queues.
#pragma once

#include "tests/ranks/memory.h"

namespace stepwell::ranks {

constexpr uint32_t kBlocksMax = 6;  // of a tensor
constexpr FetchId kByGate = UINT64_MAX;

struct View {
    Request request;     // with the place it was granted at
    uint64_t owner = 0;  // 0: an update
    bool by_gate = false;
    bool internal = false;
    ClaimId claim = 0;
    FetchId fetch = kByGate;
    uint32_t first = 0;  // block of the pack
    uint32_t count = 0;  // blocks of the range
    uint32_t pinned = 0;
    std::array<Slot, kBlocksMax> slots{};         // of the range
    std::array<Slot, kBlocksMax> pinned_slots{};  // by a gate: of all the pack
    [[nodiscard]] bool writes() const { return request.access != Access::kRead; }
};

struct ModelTensor {
    bool alive = false;
    Contents contents = Contents::kEmpty;
    TensorSpec spec;
    stw_status cause = STW_OK;  // of kFailed
    PackId pack = 0;
    uint32_t pack_blocks = 0;
    uint64_t pack_offset = 0;
    std::vector<Stamp> newest;  // by piece; kAnything where nobody wrote
    uint32_t readers = 0;
    uint32_t writers = 0;
    uint32_t fetches = 0;                             // requests without an answer
    std::vector<std::pair<ClaimId, FetchId>> claims;  // in order; the last fetch asked before each
    [[nodiscard]] bool readable() const { return contents == Contents::kValid; }
};

// What was asked and is not answered.
struct Asked {
    FetchId id = 0;
    FetchAsked asked;
    stw_status told = STW_OK;  // that it is to end so
    bool in_shrink = false;    // some budget changed while it waited
};

class Model {
public:
    Model(const Config &config, Memory &memory, Core &core, Journal &journal)
        : config_(config), memory_(memory), core_(core), journal_(journal)
    {
    }

    void create(TensorId id, const TensorSpec &spec);
    void destroy(TensorId id);
    // Checks exclusion, place, slots and, where there were bytes before, all that are read.
    View open(const Request &request, const Grant &grant, const FetchAsked *asked, FetchId fetch);
    void check_bytes(const View &view, const char *when);
    // Writes all of a written range, and ends the view. dead: the contents are not to be kept.
    void close(const View &view, Stamp stamp, bool dead);
    // The contents died: what the core says now must be possible.
    void settle(TensorId id);
    void check_tensor(TensorId id);
    // "" when the fetch may be refused so; else why not.
    [[nodiscard]] std::string justify(const Asked &fetch, const Status &status) const;
    [[nodiscard]] uint64_t deaths(PackId pack) const
    {
        return pack < deaths_.size() ? deaths_[pack] : 0;
    }
    void die(PackId pack);

    std::vector<ModelTensor> tensors;  // by id
    std::vector<bool> hurt;            // packs of which a transfer has failed
    bool write_failed = false;         // since the program forgave
    PlaceId shrinking = kNoPlace;      // this place has not decided yet ...
    uint32_t shrinks_to = 0;           // ... whether it keeps more blocks than these ...
    uint32_t shrinks_from = 0;         // ... up to these

private:
    void locate(View &view, const Grant &grant);
    void check_exclusion(const View &view);
    [[nodiscard]] Stamp &piece(const View &view, uint64_t piece);
    [[nodiscard]] std::string justify_budget(const FetchAsked &asked) const;
    [[nodiscard]] bool is_short(const FetchAsked &asked, PlaceId place) const;
    [[nodiscard]] bool is_undecided(const FetchAsked &asked) const;

    const Config &config_;
    Memory &memory_;
    Core &core_;
    Journal &journal_;
    std::vector<uint64_t> deaths_;  // of contents, by pack
};

}  // namespace stepwell::ranks
