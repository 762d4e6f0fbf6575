// SPDX-License-Identifier: Apache-2.0
// What one rank does with the ledger's decisions: WholeGathers carries them out on its core, whose
// timing it follows and never asks. Under the shell's lock; no clock, no OS.
#pragma once

#include "lib/gathering/ledger.h"
#include "lib/residency/command_loop.h"
#include "lib/residency/types.h"

#include <cstdint>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace stepwell::residency {
class Core;
}  // namespace stepwell::residency

namespace stepwell::gathering {

using residency::ClaimId;
using residency::Commands;
using residency::Core;
using residency::EventHook;
using residency::FetchId;
using residency::Grant;
using residency::Granted;
using residency::PlaceId;
using residency::Refused;
using residency::TensorId;

// A collective the shell has to start; they are issued by rising number on every rank. First it
// brings this rank's shards into their places in the wholes, piece by piece under the claim, so
// that no more of a shard is here than its whole. One that has no memory here is started all the
// same, since the others wait for it, and every rank hears in gather_done() that it failed.
struct StartGather {
    GatherId gather = 0;
    ClaimId claim = 0;            // on the shards and the wholes
    std::vector<WholeId> wholes;  // one, or small ones that share the collective
    Status status;                // an error: there are no grants
    bool absent = false;          // this rank gives its shards and takes nothing: no grants either
    std::vector<Grant> grants;    // of the wholes, pinned
};

struct WholeGranted {
    uint64_t call = 0;
    std::vector<Grant> grants;  // none where the rank is absent
};

struct WholeRefused {
    uint64_t call = 0;
    Status status;
    bool pinned = false;  // the wholes were gathered in vain and wait for their release()
    bool spoils = false;  // on all ranks alike, so that release() ends them
};

// What release() ends.
enum class WholeEnd : uint8_t {
    kView,    // or a refusal that is this rank's own affair
    kSpoilt,  // nobody may have the bytes again: abandoned, or gathered in vain on all ranks
};

struct WholeCommands {
    std::vector<StartGather> starts;
    std::vector<WholeGranted> granted;
    std::vector<WholeRefused> refused;
};

struct WholeTensors {
    TensorId shard = kNone;
    TensorId whole = kNone;  // TensorSpec::agreed
    uint64_t shard_bytes = 0;
    uint64_t whole_bytes = 0;
};

// One rank's side of the decisions. It asks the core for one gather's memory at a time, in order
// of the collectives: a later one that had its room first could keep what an earlier one waits for,
// while on another rank it is the other way round. But it claims the shards in the call: an update
// that is called later must not come between on one rank and not on another.
class WholeGathers final : public EventHook {
public:
    WholeGathers(Core &core, PlaceId place, uint64_t budget_blocks, uint64_t bucket_bytes = 0,
                 uint32_t ahead_max = 0);

    // Before the first is added.
    void set_place(PlaceId place) { place_ = place; }
    Result<WholeId> add(std::string name, const WholeTensors &tensors);
    Status remove(WholeId whole, Commands &out);

    // Returns the call's number; the answer comes through pump(). `absent`: to read, and this rank
    // serves the others without getting the bytes. What others decide is the same, so the whole is
    // there for the ledger; it leaves with its last view on all ranks, and the next fetch gathers.
    uint64_t fetch(const std::vector<WholeId> &wholes, Access access, uint64_t owner, Commands &out,
                   bool absent = false);
    // One view of an answered call, with no grant where there was none: after a refusal that is
    // `pinned` too, at the point of the program where it learns of it. Pins end by the order of
    // calls, never by the time of a failure.
    void release(WholeId whole, Access access, const Grant *grant, Commands &out,
                 WholeEnd end = WholeEnd::kView);
    Status write(WholeId whole, Commands &out);
    void update(WholeId whole, Commands &out);
    void set_undecided(WholeId whole, bool undecided) { ledger_.set_undecided(whole, undecided); }
    // What was written of it is copied out under a claim of the shell's, until keep_over(). A whole
    // that is dropped meanwhile leaves then.
    void keep(WholeId whole);
    void keep_over(WholeId whole, ClaimId claim, Commands &out);

    // Answers of the core that are this object's: true when it took the answer.
    bool granted(Granted &granted, Commands &out) override;
    bool refused(Refused &refused, Commands &out) override;
    // `some_absent`: of all ranks, as the collective told each of them.
    void gather_done(GatherId gather, const Status &status, bool some_absent, Commands &out);
    // One that was asked for: its claim and wholes. Right after the fetch.
    [[nodiscard]] StartGather queued(GatherId gather) const;
    // A collective that ended with its memory in foreign hands: it stays pinned for good.
    void lose(GatherId gather, const Status &status);
    // What there is to do for the shell since the last call.
    [[nodiscard]] WholeCommands pump();

    // Every decision in call order, as text: equal on all ranks, whatever happened when. For tests:
    // nothing is written down before it was asked for.
    void write_down() { writes_down_ = true; }
    [[nodiscard]] const std::string &decisions() const { return decisions_; }
    [[nodiscard]] const WholeLedger &ledger() const { return ledger_; }
    [[nodiscard]] const WholeTensors &tensors(WholeId whole) const { return tensors_[whole]; }
    // It is claimed by a collective, asked for or running.
    [[nodiscard]] bool gathering(WholeId whole) const;
    [[nodiscard]] bool idle() const { return queue_.empty() && running_.empty() && calls_.empty(); }

private:
    struct Gather {
        GatherId id = 0;
        std::vector<WholeId> wholes;
        ClaimId claim = 0;  // on shards and wholes, since the call
        FetchId fetch = 0;
        bool absent = false;
    };
    struct Call {
        std::vector<WholeId> wholes;
        Access access = Access::kRead;
        uint64_t owner = 0;
        bool absent = false;
        // Known in the call, told once its gathers are over: only then does a release know whether
        // some rank was absent.
        Status lacks;
        std::vector<GatherId> waits;  // its own, and those of earlier calls that it hits
    };

    void note(uint64_t call, const WholeDecision &decision, const std::vector<WholeId> &wholes);
    void drop(WholeId whole, Commands &out);
    void ask_next(Commands &out);
    void start_front(const Status &status, const std::vector<Grant> &grants);
    void ask_views(uint64_t number, Commands &out);
    void gather_over(GatherId gather, Commands &out);
    void queue_gather(GatherId gather, WholeId whole, bool absent);
    [[nodiscard]] Status lacks_bytes(const std::vector<WholeId> &wholes) const;

    Core &core_;  // not owned, outlives this
    PlaceId place_;
    WholeLedger ledger_;
    std::vector<WholeTensors> tensors_;
    std::vector<GatherId> last_gather_;  // of each whole
    std::vector<bool> lost_;             // its memory
    std::vector<bool> hollow_;           // there for the ledger, without bytes: absent here
    std::vector<bool> partial_;          // some rank was absent
    std::vector<Status> failed_;         // its collective, on all ranks
    // Dropped while they were gathered: they leave when that is over.
    std::set<std::pair<GatherId, WholeId>> leaving_;
    struct Keeps {
        uint32_t open = 0;
        GatherId behind = 0;  // asked for when the last of them was
    };
    std::vector<Keeps> keeps_;  // by whole
    // Dropped before those were over, likewise.
    std::set<std::pair<GatherId, WholeId>> leaving_kept_;
    uint64_t call_number_ = 0;
    std::map<uint64_t, Call> calls_;  // not answered
    std::deque<Gather> queue_;        // not started; the front asks the core
    std::map<GatherId, StartGather> running_;
    std::map<FetchId, uint64_t> views_;  // the core's fetch of the views, to the call
    WholeCommands commands_;
    bool writes_down_ = false;
    std::string decisions_;
};

}  // namespace stepwell::gathering
