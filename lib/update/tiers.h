// SPDX-License-Identifier: Apache-2.0
// What the update layer asks of the tiers: claims on tensors, pieces of them where the CPU can
// work, and their end. The runtime implements it over the residency core. Calls come from the
// pipeline's threads and from those that ask for steps, several at once, never with the pipeline's
// leaf lock held (see prefer()). Says nothing about where the bytes come from.
#pragma once

#include "lib/residency/types.h"
#include "lib/support/status.h"

#include <cstdint>

namespace stepwell::update {

using residency::Access;
using residency::ClaimId;
using residency::Contents;
using residency::kAnyCpuPlace;
using residency::kNone;
using residency::PlaceId;
using residency::TensorId;

constexpr uint32_t kPiecesMax = 64;  // of one fetch
// What an update needs room for wherever it is: a block of each tensor of a parameter. A device
// that has more takes more at once, as each piece of work costs it a launch.
constexpr uint32_t kPiecesNeeded = 16;

// A run of bytes inside one block: block i of a tensor's pack begins at byte
// i x block_bytes() of it, the tensor's first byte is byte pack_offset().
struct Piece {
    TensorId tensor = kNone;
    Access access = Access::kRead;
    uint64_t byte_begin = 0;  // of the tensor
    uint64_t byte_count = 0;
};

// Which older contents are copied, and how many bytes that takes of how many that are free, where
// they are most of it; of less, which goes wherever there is any room, both are 0.
struct OlderCopies {
    uint64_t tensors = 0;  // a bit for each
    uint64_t bytes = 0;
    uint64_t free_bytes = 0;
};

// The answer to a fetch: from any thread or from inside the call, with no lock held. `pointers`,
// one per piece, is good for the call; what they point to is good until the release of the ticket.
// Neither is given when the status is an error. It only queues, and calls nothing of the tiers.
using FetchDone = void (*)(void *user, const Status &status, uint64_t ticket,
                           void *const *pointers);

class Tiers {
public:
    // From now on other fetches of these tensors wait. Claims of one tensor are served first come
    // first served. No tensor is named twice. Never blocks.
    virtual ClaimId claim(const TensorId *tensors, uint32_t n) = 0;
    // The tensors are done: others may have them. No piece of one is out. Also of a claim that was
    // not served yet. Where bit i of `emptied` is set (a used gradient), the contents of tensor i
    // become EMPTY in the same step. One call for all that a piece of work gives back at once.
    virtual void unclaim(ClaimId claim, const TensorId *tensors, uint32_t n, uint64_t emptied) = 0;
    // What was written under the claim may be read by those who ask for it before the claim ends:
    // up to the next fetch of it under the claim, which waits for their end. No piece is out.
    virtual void lend(ClaimId claim, TensorId tensor) = 0;
    // The verdict on what was written under these claims is asked for. Accesses without a view wait
    // for it, since a program cannot be told to repeat them. May come before the tensor is lent.
    virtual void judge(const std::vector<std::pair<ClaimId, TensorId>> &written) = 0;
    // The contents cannot be trusted any more: whoever names the tensor is told the cause. Comes
    // after the last release of a piece of it and before the unclaim.
    virtual void fail(TensorId tensor, const Status &cause) = 0;
    // An update of the tensor did not begin: the contents are unchanged, and reads are refused with
    // the cause until the program clears its errors. Otherwise as fail().
    virtual void miss(TensorId tensor, const Status &cause) = 0;
    // The contents are EMPTY, an error of theirs is gone. After a refusal under the claim.
    virtual void empty(TensorId tensor) = 0;
    // Asked while a piece of the tensor is out under a claim, or after a refusal under one, so that
    // the contents do not change.
    virtual Contents contents(TensorId tensor) = 0;
    // Another number after each change of the contents, 0 before the first since it was made or
    // restored. A piece that is out for writing counts as a change when it is released.
    virtual uint64_t version(TensorId tensor) = 0;

    // Of each tensor under the claim the version of its contents, another one after each change of
    // them; 0 where somebody may still change them: a view, or an earlier claim. One question for
    // all, right after the claim.
    virtual void versions(ClaimId claim, const TensorId *tensors, uint32_t n,
                          uint64_t *versions_out) = 0;

    // A tensor for what is in another one before a step that may be undone: as large, EMPTY, known
    // to the caller alone. kNone: there is no room for it, or the other one shares its blocks and
    // may not be `copied`.
    virtual TensorId make_older(TensorId tensor, bool copied) = 0;
    virtual void drop_older(TensorId older) = 0;
    // Of n tensors and their older ones under one claim, up to its end: what is written under it
    // leaves the contents from before in older[i], without a transfer. Where that is not possible
    // bit i of copies_out->tensors is set, and the caller copies tensor i to older[i] before it
    // writes. False: these are most of it, and the room that is free beside `taken` bytes is too
    // small for them; nothing is kept.
    virtual bool keep_older(const TensorId *tensors, const TensorId *older, uint32_t n,
                            uint64_t taken, OlderCopies *copies_out) = 0;

    // All pieces or none, at a device, or with kAnyCpuPlace where the CPU can work on them
    // (wherever resident, else the host tier). `done` comes exactly once. Waits for earlier claims,
    // for open views of the program and for room; never for a piece that the same claim holds.
    // READ_WRITE of a tensor without contents is granted, with bytes that mean nothing; READ of one
    // is refused with EMPTY. Other refusals: the cause of a failed tensor, IO, CHECKSUM, TIMEOUT,
    // BUDGET, CLOSED.
    virtual void fetch(ClaimId claim, const Piece *pieces, uint32_t n, PlaceId place,
                       residency::Class urgency, FetchDone done, void *user) = 0;
    // Gives all pieces of a granted fetch back. Bit i of far_pieces: piece i is not needed soon;
    // its bytes leave first, and their write-back begins now.
    virtual void release(uint64_t ticket, uint64_t far_pieces) = 0;

    // Whether transfers are on their way: Pipeline::transfers_ended() is then called after the next
    // of them has ended.
    [[nodiscard]] virtual bool moves() = 0;

    // All that updates do from now on is wait for their fetches or for verdicts: who looks for
    // deadlocks, or may have to give a verdict, may look again.
    virtual void updates_wait() = 0;

    [[nodiscard]] virtual uint64_t block_bytes() const = 0;
    // A multiple of the size of the tensor's elements.
    [[nodiscard]] virtual uint64_t pack_offset(TensorId tensor) const = 0;

protected:
    ~Tiers() = default;
};

}  // namespace stepwell::update
