// SPDX-License-Identifier: Apache-2.0
// Tiers over plain memory that keep the contract of lib/update/tiers.h to the letter and complete
// fetches in a seeded random order on threads of their own. Every piece is a copy of exactly its
// bytes, written back at the release, so a touch outside of it or after it is seen by a sanitizer;
// what the contract forbids is counted in faults().
#pragma once

#include "lib/support/thread_annotations.h"
#include "lib/update/tiers.h"

#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

namespace stepwell::update::test {

class FakeTiers final : public Tiers {
public:
    // threads 0: fetches that can be served are answered inside the call.
    FakeTiers(uint64_t block_bytes, uint64_t seed, uint32_t threads);
    ~FakeTiers();

    // pack_offset: bytes. Contents begin EMPTY, or as zeros.
    TensorId create(uint64_t bytes, uint64_t pack_offset, bool reads_zero);
    void set_bytes(TensorId tensor, const void *bytes);  // VALID from now on
    std::vector<uint8_t> bytes(TensorId tensor);
    void discard(TensorId tensor);

    // Fetches of pieces of this tensor that contain the byte are refused; once each.
    void refuse(TensorId tensor, uint64_t byte, stw_status code);
    // A view of the program: fetches under claims wait for it.
    void open_view(TensorId tensor);
    void close_view(TensorId tensor);
    // While paused nothing is granted.
    void pause();
    void pause_after(uint32_t grants);
    void resume();
    // Waits until as many fetches are asked for and not answered.
    void wait_asked(uint32_t fetches);

    struct Event {
        enum Kind { kClaim, kFetch, kGrant, kUnclaim, kUnclaimEmpty, kFail } kind;
        TensorId tensor;
        uint64_t byte_begin;
        residency::Class urgency;
        uint64_t far_pieces;
        Access access = Access::kRead;  // of a grant
    };
    std::vector<Event> events();
    std::string faults();
    bool claimed(TensorId tensor);
    bool lent(TensorId tensor);
    stw_status failed(TensorId tensor);  // the code, OK if it is not
    Status missed(TensorId tensor);      // why its last update did not begin, OK if it did
    uint64_t pinned_peak_bytes();        // blocks of granted pieces, counted per piece
    uint32_t far_releases(TensorId tensor);
    uint32_t fetches();
    uint32_t unclaims();  // calls
    uint64_t version(TensorId tensor) override;
    PlaceId place_of(uint64_t ticket);
    // From now on: whether there is room for older contents at all, and for how many bytes of
    // copies of them. Unless that is UINT64_MAX all are copied.
    void set_older(bool room, uint64_t copied_bytes);
    uint32_t olders();  // that exist
    // Pieces at a device are at addresses that nobody can use but through this.
    static void *device_pointer(void *pointer)
    {
        return reinterpret_cast<void *>(reinterpret_cast<uintptr_t>(pointer) ^ uintptr_t{1} << 62);
    }

    ClaimId claim(const TensorId *tensors, uint32_t n) override;
    void unclaim(ClaimId claim, const TensorId *tensors, uint32_t n, uint64_t emptied) override;
    void lend(ClaimId claim, TensorId tensor) override;
    void judge(const std::vector<std::pair<ClaimId, TensorId>> &written) override;
    void fail(TensorId tensor, const Status &cause) override;
    void miss(TensorId tensor, const Status &cause) override;
    void empty(TensorId tensor) override;
    void versions(ClaimId claim, const TensorId *tensors, uint32_t n,
                  uint64_t *versions_out) override;
    Contents contents(TensorId tensor) override;
    TensorId make_older(TensorId tensor, bool copied) override;
    void drop_older(TensorId older) override;
    bool keep_older(const TensorId *tensors, const TensorId *older, uint32_t n, uint64_t taken,
                    OlderCopies *copies_out) override;
    void set_moves(bool moves) { moves_ = moves; }
    bool moves() override { return moves_; }
    void updates_wait() override {}
    void fetch(ClaimId claim, const Piece *pieces, uint32_t n, PlaceId place,
               residency::Class urgency, FetchDone done, void *user) override;
    void release(uint64_t ticket, uint64_t far_pieces) override;
    [[nodiscard]] uint64_t block_bytes() const override { return block_bytes_; }
    [[nodiscard]] uint64_t pack_offset(TensorId tensor) const override;

private:
    struct Tensor {
        std::vector<uint8_t> bytes;
        uint64_t pack_offset = 0;
        Contents contents = Contents::kEmpty;
        Status cause;
        std::deque<ClaimId> claims;
        uint32_t views = 0;
        uint32_t out = 0;  // pieces
        uint32_t far = 0;
        uint64_t version = 0;  // of the contents
        std::map<uint64_t, stw_status> refusals;
        TensorId older = kNone;      // gets each block as it is before its first write
        std::set<uint64_t> written;  // of these blocks
        bool lent = false;
        bool is_copy = false;  // of older contents
        bool dropped = false;
    };
    struct Ask {
        ClaimId claim = 0;
        PlaceId place = kAnyCpuPlace;
        std::vector<Piece> pieces;
        FetchDone done = nullptr;
        void *user = nullptr;
    };
    struct Grant {
        PlaceId place = kAnyCpuPlace;
        std::vector<Piece> pieces;
        std::vector<std::unique_ptr<uint8_t[]>> copies;
    };
    struct Answer {
        Ask ask;
        Status status;
        uint64_t ticket = 0;
        std::vector<void *> pointers;
    };

    void main();
    void leave(ClaimId claim, TensorId tensor, bool empties) STW_REQUIRES(mutex_);
    bool servable(const Ask &ask) STW_REQUIRES(mutex_);
    bool take(Answer &answer) STW_REQUIRES(mutex_);
    void grant(Answer &answer) STW_REQUIRES(mutex_);
    void keep(Tensor &tensor, uint64_t byte) STW_REQUIRES(mutex_);
    void check(const Ask &ask) STW_REQUIRES(mutex_);
    void fault(const std::string &text) STW_REQUIRES(mutex_);
    uint64_t free_older_bytes() STW_REQUIRES(mutex_);
    void poison(Tensor &tensor) STW_REQUIRES(mutex_);
    void answer_inline();
    static void send(const Answer &answer);

    const uint64_t block_bytes_;
    mutable Mutex mutex_;
    Condition changed_;
    std::vector<std::thread> threads_;
    std::deque<Tensor> tensors_ STW_GUARDED_BY(mutex_);
    bool older_room_ STW_GUARDED_BY(mutex_) = true;
    uint64_t older_bytes_ STW_GUARDED_BY(mutex_) = UINT64_MAX;  // free for copies
    uint32_t olders_ STW_GUARDED_BY(mutex_) = 0;
    std::vector<Ask> asks_ STW_GUARDED_BY(mutex_);
    std::map<uint64_t, Grant> grants_ STW_GUARDED_BY(mutex_);
    std::vector<Event> events_ STW_GUARDED_BY(mutex_);
    std::string faults_ STW_GUARDED_BY(mutex_);
    std::mt19937_64 random_ STW_GUARDED_BY(mutex_);
    ClaimId next_claim_ STW_GUARDED_BY(mutex_) = 1;
    uint64_t next_ticket_ STW_GUARDED_BY(mutex_) = 1;
    uint64_t pinned_ STW_GUARDED_BY(mutex_) = 0;
    uint64_t pinned_peak_ STW_GUARDED_BY(mutex_) = 0;
    uint32_t fetches_ STW_GUARDED_BY(mutex_) = 0;
    uint32_t unclaims_ STW_GUARDED_BY(mutex_) = 0;
    uint32_t grants_until_pause_ STW_GUARDED_BY(mutex_) = UINT32_MAX;
    bool stopping_ STW_GUARDED_BY(mutex_) = false;
    std::atomic<bool> moves_{false};  // as of transfers that are not simulated
};

}  // namespace stepwell::update::test
