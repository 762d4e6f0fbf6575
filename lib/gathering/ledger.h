// SPDX-License-Identifier: Apache-2.0
// Gathered wholes: which are kept, gathered and dropped, and in which order collectives start. A
// function of the calls, the specs and the agreed budget and of nothing else, so that every rank
// decides the same. Never told that anything completed: that comes at another time on every rank.
#pragma once

#include "lib/gathering/foresight.h"
#include "lib/residency/types.h"

#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace stepwell::gathering {

using residency::Access;

using GatherId = uint64_t;  // counts collectives: the same number is the same one on all ranks

// What a whole needs before a view of it can be given.
enum class WholeNeed : uint8_t {
    kHit,     // it is there
    kGather,  // a collective
    kFill,    // room alone: the caller writes all of it
};

struct WholeDecision {
    Status status;                  // an error: nothing changed, on no rank
    std::vector<WholeId> drops;     // leave first
    std::vector<WholeNeed> needs;   // one per whole asked for
    std::vector<GatherId> gathers;  // one per need; 0 unless kGather. Small ones share a collective
    // Wholes that came next before, gathered ahead of their fetch, each by a collective of its own.
    std::vector<WholeId> ahead;
    std::vector<GatherId> ahead_gathers;
};

class WholeLedger {
public:
    // bucket_bytes: of one collective that small wholes of a call share; 0: none do.
    // ahead_max: so many of the fetches that will follow are looked at; 0: none is gathered ahead.
    // block_bytes: for sentences.
    explicit WholeLedger(uint64_t budget_blocks, uint64_t bucket_bytes = 0, uint32_t ahead_max = 0,
                         uint64_t block_bytes = 1)
        : budget_blocks_(budget_blocks),
          bucket_bytes_(bucket_bytes),
          ahead_max_(ahead_max),
          block_bytes_(block_bytes)
    {
    }

    // BUDGET when it could never be gathered. Ids count creations, as they do on all ranks.
    Result<WholeId> add(std::string name, uint32_t blocks, uint64_t bytes = 0);
    Status remove(WholeId whole);

    // Pins all of them until release(), or none. Recency counts calls. BUSY on a conflict: the
    // caller would wait for itself.
    WholeDecision fetch(const std::vector<WholeId> &wholes, Access access);
    // True when the whole has to leave: an update came while it was open.
    [[nodiscard]] bool release(WholeId whole, Access access);

    // The shards change, so the gathered bytes are old. `drop` tells whether a whole was there.
    Status write(WholeId whole, bool &drop);
    Status discard(WholeId whole, bool &drop) { return write(whole, drop); }
    // As write, but behind views that are open: the whole leaves with the last of them.
    void update(WholeId whole, bool &drop);
    // Its shards were updated speculatively: they are locked until a verdict, which is a later
    // collective. A gather that is called for before the verdict would be queued before it and wait
    // for it, so it is refused.
    void set_undecided(WholeId whole, bool undecided) { wholes_[whole].undecided = undecided; }
    // What was gathered or written is no good: as update, for one that is pinned.
    void spoil(WholeId whole) { wholes_[whole].old = true; }
    // It goes with its last view; until then others may be opened. Only from where all ranks know
    // to do so: between two calls, after they have heard of its collective.
    void leave_last(WholeId whole) { wholes_[whole].leaves_last = true; }

    [[nodiscard]] uint64_t used_blocks() const { return used_blocks_; }
    [[nodiscard]] uint64_t budget_blocks() const { return budget_blocks_; }
    [[nodiscard]] bool present(WholeId whole) const { return wholes_[whole].present; }
    [[nodiscard]] bool pinned(WholeId whole) const { return wholes_[whole].pinned(); }
    [[nodiscard]] bool written(WholeId whole) const { return wholes_[whole].writer; }
    [[nodiscard]] const std::string &name(WholeId whole) const { return wholes_[whole].name; }
    [[nodiscard]] GatherId last_gather() const { return gathers_; }

private:
    struct Whole {
        std::string name;
        uint32_t blocks = 0;
        uint64_t bytes = 0;
        uint32_t readers = 0;
        bool writer = false;
        bool present = false;
        bool old = false;          // leaves with its last view, and nobody gets another one
        bool leaves_last = false;  // leaves with its last view
        bool removed = false;
        bool undecided = false;
        bool counted = false;     // by the call that is being decided
        bool ahead = false;       // gathered, and not fetched since
        uint64_t used_at = 0;     // call number
        uint64_t asked_at = 0;    // likewise, of attempts
        uint64_t changed_at = 0;  // the calls before its shards changed
        Foresight::Spot foreseen_at = 0;

        [[nodiscard]] bool pinned() const { return readers > 0 || writer; }
    };

    Status conflict(const std::vector<WholeId> &wholes, Access access);
    // The wholes that leave for `needed_blocks`, least recently used first; BUDGET if too few can.
    // What the last conflict() or coming() was about stays.
    Status make_room(WholeId first_asked, uint64_t needed_blocks, uint64_t kept_blocks,
                     std::vector<WholeId> &drops) const;
    [[nodiscard]] bool is_asked(WholeId whole) const { return wholes_[whole].asked_at == asks_; }
    [[nodiscard]] uint64_t loose_of(const std::vector<WholeId> &asked) const;
    // Around each change of what is there, pinned or used: whether it may be dropped, and when.
    void take_out(WholeId whole);
    void put_in(WholeId whole);
    void bring(WholeId whole);
    void drop(WholeId whole);
    void assign_gathers(const std::vector<WholeId> &asked, WholeDecision &decision);
    void learn(const std::vector<WholeId> &asked);
    void look_ahead(WholeDecision &decision);
    bool gather_ahead(const Foresight::Coming &coming, uint64_t kept_blocks,
                      WholeDecision &decision);
    void change(WholeId whole);

    uint64_t budget_blocks_;
    uint64_t bucket_bytes_;
    uint32_t ahead_max_;
    uint64_t block_bytes_;
    Foresight foresight_;
    uint64_t learned_at_ = 0;  // the last call that it knows
    // There and not pinned, by when it was used: what may be dropped, in this order.
    std::set<std::pair<uint64_t, WholeId>> loose_;
    uint64_t loose_blocks_ = 0;
    uint64_t asks_ = 0;
    uint64_t used_blocks_ = 0;
    uint64_t calls_ = 0;
    GatherId gathers_ = 0;
    std::vector<Whole> wholes_;
};

}  // namespace stepwell::gathering
