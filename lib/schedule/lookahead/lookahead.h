// SPDX-License-Identifier: Apache-2.0
// Lookahead: which of the next expected fetches should be prefetched now, and to which place. It
// asks the core where bytes are and starts nothing itself; its proposals are hints, which fail
// without harm.
//
// Near are the next fetches, as many as fit at their places together: the blocks that they evict
// are needed later. Far are the ones after them, whose bytes come from the disk as far as the host
// tier. If room is free, a prefetch starts at once; if it has to evict, as late as the measured
// bandwidths permit, and piece by piece: the room of a large tensor would be unused while its bytes
// are in transfer. A write to a tensor without contents needs room alone, which is made in the same
// way. Pure; one thread at a time.
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
    // As measured; 0: unknown, treated as a slow link.
    void set_bandwidth(residency::PlaceId from, residency::PlaceId to, uint64_t bytes_per_s);

    // The prefetch to request from the core now. After asked() call it again, until there is none.
    std::optional<residency::FetchAsked> next(const residency::Core &core, const Forecast &forecast,
                                              residency::Instant now);
    void asked(residency::FetchId fetch);  // the fetch made of next()'s proposal
    // A prefetch that found no room is proposed again; one that failed is left to the demand
    // fetch. False: not one of these.
    enum class End : uint8_t { kThere, kNoRoom, kFailed };
    bool ended(residency::FetchId fetch, End end);
    // When next() may have another result without any event; or kNever.
    [[nodiscard]] residency::Instant wake() const { return wake_; }
    [[nodiscard]] size_t in_flight() const { return flying_.count(); }

    // Accesses from now until the expected uses fit neither the place nor, for a device, the host
    // tier: tensors that are used later must go to the disk until then. kNever if all known uses
    // fit.
    [[nodiscard]] uint64_t horizon(residency::PlaceId place) const { return horizon_[place]; }

    // With all tables full.
    [[nodiscard]] static uint64_t metadata_bytes_max();

private:
    enum class Zone : uint8_t { kOut, kFar, kNear };
    struct Item {
        Expected use;
        Zone zone = Zone::kOut;
        bool lacks = false;                              // bytes to be prefetched
        uint32_t flying = 0;                             // prefetches asked for and not answered
        bool left = false;                               // left to the demand fetch after a failure
        uint8_t again = 0;                               // prefetches repeated after an eviction
        residency::PlaceId place = residency::kNoPlace;  // where the bytes are wanted
        RoomTable::Room *room = nullptr;                 // at `place`, in rooms_
        uint64_t room_bytes = 0;                         // room that the use needs there
        uint64_t cost_ns = 0;                            // to transfer what it lacks
        uint64_t asked_bytes = 0;                        // asked for so far, from the first on
        uint64_t landed_bytes = 0;                       // prefetched for it
    };
    struct Later {  // a use after all items
        residency::TensorId tensor = residency::kNone;
        uint64_t compute_ns = 0;
        uint64_t cost_ns = 0;  // to transfer what it lacks at present
    };
    // When to look again at a program whose hits, and the releases of those, free room without an
    // event: less and less often while its next fetch does not come.
    class Poll {
    public:
        // The next fetch is expected after `gap_ns` and identified by `turn` and `passed`.
        residency::Instant next(uint64_t turn, uint64_t passed, uint64_t gap_ns,
                                residency::Instant now);

    private:
        uint64_t turn_ = UINT64_MAX;  // position of the program when polling began
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
    struct Refusal {  // of hints at a place; reset by progress or by a hint that found room
        residency::Instant until = 0;  // no retry before
        residency::Instant pause_ns = 0;
        bool room_tried = false;  // once before `until`, when room appeared
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
    struct Slack {  // time to spare before items are late, relative to item 0
        uint64_t changes = UINT64_MAX;
        size_t late_at = 0;  // index + 1 of the first late item; 0: none
        int64_t late_ns = 0;
        std::vector<int64_t> items_ns;  // if none is late: the least from each item on
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
    Ring<Item> items_;    // from the next fetch on; the last may be kOut
    size_t near_ = 0;     // the first items, which are kNear
    size_t lacking_ = 0;  // items with `lacks`
    RoomTable rooms_;
    std::array<uint64_t, residency::kPlacesMax> horizon_{};
    std::vector<Later> later_;  // made when needed, valid until a fetch passes
    bool knows_later_ = false;
    uint64_t look_at_ = 0;   // evictions at which near items are examined again
    uint64_t changes_ = 0;   // incremented when items or later uses change
    Slack slack_;            // valid until changes_ changes
    bool extended_ = false;  // since the last fetch, with budgets_
    std::array<uint64_t, residency::kPlacesMax> budgets_{};
    Flights flying_;
    std::array<uint64_t, residency::kPlacesMax> landed_bytes_{};  // prefetched and not used yet
    Flight proposed_;
    std::array<Refusal, residency::kPlacesMax> refused_{};
    residency::Instant now_ = 0;
    residency::Instant wake_ = residency::kNever;
    Poll poll_;
};

}  // namespace stepwell::schedule
