// SPDX-License-Identifier: Apache-2.0
// Lookahead: which of the next expected fetches should be prefetched now, and to which place. It
// asks the core where bytes are and starts nothing itself; its proposals are hints, which fail
// without harm.
//
// Near are the next fetches, as many as fit at their places together: the blocks that they evict
// are needed later. Far are the ones after them, whose bytes come from the disk as far as the host
// tier. If room is free, a prefetch starts at once; if it has to evict, as late as the measured
// bandwidths permit, and piece by piece: the room of a large tensor would be unused while its bytes
// are in transfer. Pure; one thread at a time.
#pragma once

#include "lib/residency/core.h"
#include "lib/schedule/lookahead/flights.h"
#include "lib/schedule/lookahead/room_table.h"
#include "lib/schedule/trace/forecast.h"
#include "lib/support/ring.h"

#include <array>
#include <optional>
#include <vector>

namespace stepwell::schedule {

class Lookahead {
public:
    Lookahead(residency::PlaceId host, residency::PlaceId nvme);
    Lookahead(Lookahead &&) = default;  // no copies: items point to rooms
    // Measured; 0: unknown, treated as a slow link.
    void set_bandwidth(residency::PlaceId from, residency::PlaceId to, uint64_t bytes_per_s);

    // The prefetch to request from the core now. After asked() call it again, until there is none.
    std::optional<residency::FetchAsked> next(const residency::Core &core, const Forecast &forecast,
                                              residency::Instant now);
    void asked(residency::FetchId fetch);  // the number of the fetch that next() returned
    // A prefetch that found no room is proposed again, one that failed is left to the demand.
    // False: not one of these.
    enum class End : uint8_t { kThere, kNoRoom, kFailed };
    bool ended(residency::FetchId fetch, End end);
    // When next() may have another result without any other event; kNever.
    [[nodiscard]] residency::Instant wake() const { return wake_; }
    [[nodiscard]] size_t in_flight() const { return flying_.count(); }
    [[nodiscard]] std::vector<residency::FetchId> fetches() const { return flying_.fetches(); }

    // Accesses from now until what is expected fits neither the place nor, behind a device, the
    // host tier: tensors that are used later than that must go to the disk until then. kNever while
    // all that is known fits.
    [[nodiscard]] uint64_t horizon(residency::PlaceId place) const { return horizon_[place]; }

    // Its largest size, with all tables full.
    [[nodiscard]] static uint64_t metadata_bytes_max();

private:
    enum class Zone : uint8_t { kOut, kFar, kNear };
    struct Item {
        Expected use;
        Zone zone = Zone::kOut;
        bool lacks = false;                              // bytes, at the place it is to be brought
        uint32_t flying = 0;                             // asked for, and not answered yet
        bool left = false;                               // to the demand, as it failed
        uint8_t again = 0;                               // times it was brought after it had left
        residency::PlaceId place = residency::kNoPlace;  // that one
        RoomTable::Room *room = nullptr;                 // there; of rooms_
        uint64_t room_bytes = 0;                         // taken of it
        uint64_t cost_ns = 0;                            // of what it lacks
        uint64_t asked_bytes = 0;                        // of its first ones, piece by piece
        uint64_t landed_bytes = 0;                       // brought for it
    };
    struct Later {  // a use behind all items
        residency::TensorId tensor = residency::kNone;
        uint64_t compute_ns = 0;
        uint64_t cost_ns = 0;  // of what it lacks by now
    };
    // When to look again at a program that makes room unnoticed, by releases of hits: less and less
    // often while its next fetch does not come.
    class Poll {
    public:
        // The program expects its next fetch, which has this turn and number, after `gap_ns`.
        residency::Instant next(uint64_t turn, uint64_t passed, uint64_t gap_ns,
                                residency::Instant now);

    private:
        uint64_t turn_ = UINT64_MAX;  // where the program was when polling began
        uint64_t passed_ = 0;
        residency::Instant from_ = 0;
        residency::Instant pause_ns_ = 0;
        residency::Instant at_ = 0;
    };

    std::optional<residency::FetchAsked> propose(const residency::Core &core,
                                                 const Forecast &forecast, residency::Instant now);
    void look_anew(const residency::Core &core);
    void cut(const residency::Core &core, residency::Request &request, residency::Lack &lack,
             uint64_t bytes_max) const;
    [[nodiscard]] bool may_start(const residency::Core &core, const Forecast &forecast,
                                 residency::Instant now, size_t index);
    void poll_later(residency::Instant now);
    struct Refusal {  // of a hint at a place, since the program went on or one found room
        residency::Instant until = 0;  // again not before
        residency::Instant pause_ns = 0;
        bool room_tried = false;  // before `until`, as there was some: once, it may not be enough
    };

    void follow(const Forecast &forecast);
    void extend(const residency::Core &core, const Forecast &forecast);
    bool bring_near(const residency::Core &core, Item &item);
    bool bring_far(const residency::Core &core, Item &item);
    bool bring_update(const residency::Core &core, Item &item, Zone zone);
    void set_lacks(Item &item, bool lacks);
    void give_room(Item &item);
    [[nodiscard]] uint64_t cost_of(const residency::Lack &lack) const;
    void look_later(const residency::Core &core, const Forecast &forecast);
    [[nodiscard]] size_t known_items() const;
    [[nodiscard]] residency::Instant latest_start(const Forecast &forecast, residency::Instant now,
                                                  size_t first);
    struct Slack {  // of what is due after item 0: the least time that nothing of it needs a link
        uint64_t changes = UINT64_MAX;
        size_t late_at = 0;  // behind the first item that was found late; 0: none was
        int64_t late_ns = 0;
        std::vector<int64_t> items_ns;  // where none was: of each item and all behind it
        int64_t later_ns = INT64_MAX;
    };
    void find_slack(size_t first, int64_t enough);
    [[nodiscard]] bool may_evict(const residency::Core &core, const Item &item) const;
    [[nodiscard]] Item *item_of(const Flight &flight);

    const residency::PlaceId host_;
    const residency::PlaceId nvme_;
    std::array<std::array<uint64_t, residency::kPlacesMax>, residency::kPlacesMax> bytes_per_s_{};
    uint64_t turn_ = UINT64_MAX;
    uint64_t passed_ = 0;
    Ring<Item> items_;    // from the next fetch on; the last one may be kOut
    size_t near_ = 0;     // so many of the first are kNear
    size_t lacking_ = 0;  // so many of all lack something
    RoomTable rooms_;
    std::array<uint64_t, residency::kPlacesMax> horizon_{};
    std::vector<Later> later_;  // for as long as no fetch passes, once it is asked for
    bool knows_later_ = false;
    uint64_t look_at_ = 0;   // evictions, after which near items are looked at anew
    uint64_t changes_ = 0;   // of items and of what is used later
    Slack slack_;            // for as long as nothing changes
    bool extended_ = false;  // since the last fetch passed, by these budgets
    std::array<uint64_t, residency::kPlacesMax> budgets_{};
    Flights flying_;
    std::array<uint64_t, residency::kPlacesMax> landed_bytes_{};  // and not used yet
    Flight proposed_;
    std::array<Refusal, residency::kPlacesMax> refused_{};
    residency::Instant now_ = 0;
    residency::Instant wake_ = residency::kNever;
    Poll poll_;
};

}  // namespace stepwell::schedule
