// SPDX-License-Identifier: Apache-2.0
// The tiers of the tests: claims in order, all or nothing, random completions.
#include "tests/unit/optimizer/fake_tiers.h"

#include <algorithm>
#include <cstring>

namespace stepwell::update::test {

FakeTiers::FakeTiers(uint64_t block_bytes, uint64_t seed, uint32_t threads)
    : block_bytes_(block_bytes), random_(seed)
{
    for (uint32_t i = 0; i < threads; ++i) threads_.emplace_back([this] { main(); });
}

FakeTiers::~FakeTiers()
{
    {
        MutexLock lock(mutex_);
        stopping_ = true;
        changed_.notify_all();
    }
    for (std::thread &thread : threads_) thread.join();
}

TensorId FakeTiers::create(uint64_t bytes, uint64_t pack_offset, bool reads_zero)
{
    MutexLock lock(mutex_);
    Tensor &tensor = tensors_.emplace_back();
    tensor.bytes.resize(bytes);
    tensor.pack_offset = pack_offset;
    if (reads_zero) {
        tensor.contents = Contents::kValid;
        ++tensor.version;
    } else {
        poison(tensor);
    }
    return static_cast<TensorId>(tensors_.size() - 1);
}

void FakeTiers::set_bytes(TensorId id, const void *bytes)
{
    MutexLock lock(mutex_);
    Tensor &tensor = tensors_[id];
    std::memcpy(tensor.bytes.data(), bytes, tensor.bytes.size());
    tensor.contents = Contents::kValid;
    tensor.cause = Status();
    ++tensor.version;
}

std::vector<uint8_t> FakeTiers::bytes(TensorId tensor)
{
    MutexLock lock(mutex_);
    return tensors_[tensor].bytes;
}

void FakeTiers::discard(TensorId tensor)
{
    MutexLock lock(mutex_);
    poison(tensors_[tensor]);
}

void FakeTiers::poison(Tensor &tensor)
{
    tensor.contents = Contents::kEmpty;
    ++tensor.version;
    std::fill(tensor.bytes.begin(), tensor.bytes.end(), uint8_t{0xFF});
}

void FakeTiers::refuse(TensorId tensor, uint64_t byte, stw_status code)
{
    MutexLock lock(mutex_);
    tensors_[tensor].refusals[byte] = code;
}

void FakeTiers::open_view(TensorId tensor)
{
    MutexLock lock(mutex_);
    ++tensors_[tensor].views;
}

void FakeTiers::close_view(TensorId tensor)
{
    {
        MutexLock lock(mutex_);
        --tensors_[tensor].views;
        changed_.notify_all();
    }
    answer_inline();
}

void FakeTiers::pause()
{
    pause_after(0);
}

void FakeTiers::pause_after(uint32_t grants)
{
    MutexLock lock(mutex_);
    grants_until_pause_ = grants;
}

void FakeTiers::resume()
{
    {
        MutexLock lock(mutex_);
        grants_until_pause_ = UINT32_MAX;
        changed_.notify_all();
    }
    answer_inline();
}

void FakeTiers::wait_asked(uint32_t fetches)
{
    MutexLock lock(mutex_);
    while (asks_.size() < fetches) changed_.wait(mutex_);
}

std::vector<FakeTiers::Event> FakeTiers::events()
{
    MutexLock lock(mutex_);
    return events_;
}

std::string FakeTiers::faults()
{
    MutexLock lock(mutex_);
    return faults_;
}

bool FakeTiers::claimed(TensorId tensor)
{
    MutexLock lock(mutex_);
    return !tensors_[tensor].claims.empty();
}

stw_status FakeTiers::failed(TensorId tensor)
{
    MutexLock lock(mutex_);
    return tensors_[tensor].contents == Contents::kFailed ? tensors_[tensor].cause.code() : STW_OK;
}

Status FakeTiers::missed(TensorId tensor)
{
    MutexLock lock(mutex_);
    return tensors_[tensor].contents == Contents::kValid ? tensors_[tensor].cause : Status();
}

uint64_t FakeTiers::pinned_peak_bytes()
{
    MutexLock lock(mutex_);
    return pinned_peak_;
}

uint32_t FakeTiers::far_releases(TensorId tensor)
{
    MutexLock lock(mutex_);
    return tensors_[tensor].far;
}

uint32_t FakeTiers::unclaims()
{
    MutexLock lock(mutex_);
    return unclaims_;
}

uint32_t FakeTiers::fetches()
{
    MutexLock lock(mutex_);
    return fetches_;
}

PlaceId FakeTiers::place_of(uint64_t ticket)
{
    MutexLock lock(mutex_);
    const auto found = grants_.find(ticket);
    return found == grants_.end() ? kAnyCpuPlace : found->second.place;
}

bool FakeTiers::lent(TensorId tensor)
{
    MutexLock lock(mutex_);
    return tensors_[tensor].lent;
}

void FakeTiers::fault(const std::string &text)
{
    faults_ += text + "\n";
}

uint64_t FakeTiers::pack_offset(TensorId tensor) const
{
    MutexLock lock(mutex_);
    return tensors_[tensor].pack_offset;
}

// ------------------------------------------------------------------------------------- claims ----

ClaimId FakeTiers::claim(const TensorId *tensors, uint32_t n)
{
    MutexLock lock(mutex_);
    const ClaimId id = next_claim_++;
    for (uint32_t i = 0; i < n; ++i) {
        std::deque<ClaimId> &claims = tensors_[tensors[i]].claims;
        if (!claims.empty() && claims.back() == id) fault("a tensor is claimed twice in one call");
        claims.push_back(id);
        events_.push_back({Event::kClaim, tensors[i], 0, residency::Class::kIdle, 0});
    }
    return id;
}

void FakeTiers::leave(ClaimId claim, TensorId id, bool empties)
{
    Tensor &tensor = tensors_[id];
    const auto mine = std::find(tensor.claims.begin(), tensor.claims.end(), claim);
    if (mine == tensor.claims.end()) {
        fault("a tensor is unclaimed that is not claimed");
        return;
    }
    if (tensor.out > 0) fault("a tensor is unclaimed while pieces of it are out");
    tensor.claims.erase(mine);
    tensor.older = kNone;
    tensor.lent = false;
    if (empties) poison(tensor);
    events_.push_back(
        {empties ? Event::kUnclaimEmpty : Event::kUnclaim, id, 0, residency::Class::kIdle, 0});
    changed_.notify_all();
}

void FakeTiers::unclaim(ClaimId claim, const TensorId *tensors, uint32_t n, uint64_t emptied)
{
    {
        MutexLock lock(mutex_);
        ++unclaims_;
        for (uint32_t i = 0; i < n; ++i) leave(claim, tensors[i], (emptied >> i & 1) != 0);
    }
    answer_inline();
}

void FakeTiers::judge(const std::vector<std::pair<ClaimId, TensorId>> &written)
{
    MutexLock lock(mutex_);
    for (const auto &[claim, tensor] : written) {
        if (tensors_.at(tensor).is_copy) fault("the verdict on a copy is asked for");
        if (claim == 0) fault("the verdict on a parameter that no step has is asked for");
    }
}

void FakeTiers::lend(ClaimId claim, TensorId id)
{
    MutexLock lock(mutex_);
    Tensor &tensor = tensors_[id];
    if (tensor.claims.empty() || tensor.claims.front() != claim)
        fault("a tensor is lent that is not claimed");
    if (tensor.out > 0) fault("a tensor is lent while pieces of it are out");
    tensor.lent = true;
}

void FakeTiers::fail(TensorId id, const Status &cause)
{
    MutexLock lock(mutex_);
    Tensor &tensor = tensors_[id];
    if (tensor.out > 0) fault("a tensor is failed while pieces of it are out");
    if (tensor.claims.empty()) fault("a tensor is failed that is not claimed");
    tensor.contents = Contents::kFailed;
    tensor.cause = cause;
    events_.push_back({Event::kFail, id, 0, residency::Class::kIdle, 0});
}

void FakeTiers::miss(TensorId id, const Status &cause)
{
    MutexLock lock(mutex_);
    Tensor &tensor = tensors_[id];
    if (tensor.out > 0) fault("a tensor is missed while pieces of it are out");
    if (tensor.claims.empty()) fault("a tensor is missed that is not claimed");
    if (tensor.contents == Contents::kValid) tensor.cause = cause;
}

void FakeTiers::empty(TensorId id)
{
    MutexLock lock(mutex_);
    Tensor &tensor = tensors_[id];
    if (tensor.out > 0) fault("a tensor is emptied while pieces of it are out");
    if (tensor.claims.empty()) fault("a tensor is emptied that is not claimed");
    tensor.cause = Status();
    poison(tensor);
}

void FakeTiers::versions(ClaimId claim, const TensorId *tensors, uint32_t n, uint64_t *versions_out)
{
    MutexLock lock(mutex_);
    for (uint32_t i = 0; i < n; ++i) {
        const Tensor &tensor = tensors_[tensors[i]];
        const bool first = !tensor.claims.empty() && tensor.claims.front() == claim;
        const bool settled = first && tensor.views == 0 && tensor.contents == Contents::kValid;
        versions_out[i] = settled ? tensor.version : 0;
    }
}

uint64_t FakeTiers::version(TensorId tensor)
{
    MutexLock lock(mutex_);
    return tensors_[tensor].version;
}

Contents FakeTiers::contents(TensorId tensor)
{
    MutexLock lock(mutex_);
    return tensors_[tensor].contents;
}

void FakeTiers::set_older(bool room, uint64_t copied_bytes)
{
    MutexLock lock(mutex_);
    older_room_ = room;
    older_bytes_ = copied_bytes;
}

uint64_t FakeTiers::free_older_bytes()
{
    uint64_t copied = 0;
    for (const Tensor &tensor : tensors_) {
        if (tensor.is_copy && tensor.contents == Contents::kValid) copied += tensor.bytes.size();
    }
    return older_bytes_ - std::min(older_bytes_, copied);
}

uint32_t FakeTiers::olders()
{
    MutexLock lock(mutex_);
    return olders_;
}

// One that shares its blocks, as all that do not begin one do here, has none.
TensorId FakeTiers::make_older(TensorId tensor, bool copied)
{
    uint64_t bytes = 0;
    {
        MutexLock lock(mutex_);
        if (!older_room_ || (tensors_[tensor].pack_offset != 0 && !copied)) return kNone;
        bytes = tensors_[tensor].bytes.size();
        ++olders_;
    }
    return create(bytes, 0, false);
}

void FakeTiers::drop_older(TensorId older)
{
    MutexLock lock(mutex_);
    Tensor &tensor = tensors_[older];
    if (tensor.dropped || !tensor.claims.empty()) fault("an older tensor is dropped in its use");
    tensor.dropped = true;
    --olders_;
}

bool FakeTiers::keep_older(const TensorId *tensors, const TensorId *older, uint32_t n,
                           uint64_t taken, OlderCopies *copies_out)
{
    MutexLock lock(mutex_);
    *copies_out = {};
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < n; ++i) {
        Tensor &tensor = tensors_[tensors[i]];
        const Tensor &its = tensors_[older[i]];
        if (its.contents != Contents::kEmpty) fault("older contents are kept over others");
        if (tensor.claims.empty() || its.claims.empty() ||
            tensor.claims.front() != its.claims.front()) {
            fault("contents are kept without a claim");
        }
        const bool all = older_bytes_ != UINT64_MAX || tensor.pack_offset != 0;
        if (!all && (random_() & 1) == 0) continue;
        copies_out->tensors |= uint64_t{1} << i;
        bytes += its.bytes.size();
    }
    const uint64_t free_bytes = free_older_bytes();
    copies_out->bytes = bytes;
    copies_out->free_bytes = free_bytes - std::min(free_bytes, taken);
    if (bytes > copies_out->free_bytes) return false;
    for (uint32_t i = 0; i < n; ++i) {
        tensors_[older[i]].is_copy = (copies_out->tensors >> i & 1) != 0;
        if (tensors_[older[i]].is_copy) continue;
        tensors_[tensors[i]].older = older[i];
        tensors_[tensors[i]].written.clear();
    }
    return true;
}

// The block of that byte is to be written.
void FakeTiers::keep(Tensor &tensor, uint64_t byte)
{
    const uint64_t block = byte / block_bytes_;
    if (tensor.older == kNone || !tensor.written.insert(block).second) return;
    Tensor &older = tensors_[tensor.older];
    const uint64_t begin = block * block_bytes_;
    const uint64_t end = std::min<uint64_t>(begin + block_bytes_, tensor.bytes.size());
    std::copy(tensor.bytes.begin() + static_cast<std::ptrdiff_t>(begin),
              tensor.bytes.begin() + static_cast<std::ptrdiff_t>(end),
              older.bytes.begin() + static_cast<std::ptrdiff_t>(begin));
    older.contents = Contents::kValid;
}

// ------------------------------------------------------------------------------------ fetches ----

void FakeTiers::check(const Ask &ask)
{
    for (const Piece &piece : ask.pieces) {
        const Tensor &tensor = tensors_[piece.tensor];
        const uint64_t begin = tensor.pack_offset + piece.byte_begin;
        if (piece.byte_count == 0 || piece.byte_begin + piece.byte_count > tensor.bytes.size()) {
            fault("a piece outside of its tensor");
        } else if (begin / block_bytes_ != (begin + piece.byte_count - 1) / block_bytes_) {
            fault("a piece crosses a block");
        }
        const auto &claims = tensor.claims;
        if (std::find(claims.begin(), claims.end(), ask.claim) == claims.end()) {
            fault("a fetch without a claim");
        }
    }
}

void FakeTiers::fetch(ClaimId claim, const Piece *pieces, uint32_t n, PlaceId place,
                      residency::Class urgency, FetchDone done, void *user)
{
    {
        MutexLock lock(mutex_);
        Ask ask{claim, place, {pieces, pieces + n}, done, user};
        check(ask);
        ++fetches_;
        events_.push_back({Event::kFetch, pieces[0].tensor, pieces[0].byte_begin, urgency, 0});
        for (const Piece &piece : ask.pieces) tensors_[piece.tensor].lent = false;
        asks_.push_back(std::move(ask));
        changed_.notify_all();
    }
    answer_inline();
}

bool FakeTiers::servable(const Ask &ask)
{
    for (const Piece &piece : ask.pieces) {
        const Tensor &tensor = tensors_[piece.tensor];
        if (tensor.views > 0 || tensor.claims.empty() || tensor.claims.front() != ask.claim) {
            return false;
        }
    }
    return true;
}

bool FakeTiers::take(Answer &answer)
{
    if (grants_until_pause_ == 0) return false;
    std::vector<size_t> possible;
    for (size_t i = 0; i < asks_.size(); ++i) {
        if (servable(asks_[i])) possible.push_back(i);
    }
    if (possible.empty()) return false;
    const size_t chosen = possible[random_() % possible.size()];
    answer.ask = std::move(asks_[chosen]);
    asks_.erase(asks_.begin() + static_cast<std::ptrdiff_t>(chosen));
    if (grants_until_pause_ != UINT32_MAX) --grants_until_pause_;
    grant(answer);
    return true;
}

void FakeTiers::grant(Answer &answer)
{
    for (const Piece &piece : answer.ask.pieces) {
        Tensor &tensor = tensors_[piece.tensor];
        const auto refusal = tensor.refusals.lower_bound(piece.byte_begin);
        if (refusal != tensor.refusals.end() &&
            refusal->first < piece.byte_begin + piece.byte_count) {
            answer.status = Status::error(refusal->second, "refused by the test");
            tensor.refusals.erase(refusal);
        } else if (!tensor.cause.ok()) {
            answer.status = tensor.cause;
        } else if (tensor.contents == Contents::kEmpty && piece.access == Access::kRead) {
            answer.status = Status::error(STW_ERROR_EMPTY, "tensor %u is empty", piece.tensor);
        }
        if (!answer.status.ok()) return;
    }
    answer.ticket = next_ticket_++;
    Grant &grant = grants_[answer.ticket];
    grant.place = answer.ask.place;
    grant.pieces = answer.ask.pieces;
    for (const Piece &piece : grant.pieces) {
        Tensor &tensor = tensors_[piece.tensor];
        ++tensor.out;
        if (piece.access != Access::kRead) keep(tensor, piece.byte_begin);
        std::unique_ptr<uint8_t[]> copy(new uint8_t[piece.byte_count]);
        if (piece.access == Access::kWrite) {  // nothing is brought
            std::memset(copy.get(), 0xA5, piece.byte_count);
        } else {
            std::memcpy(copy.get(), tensor.bytes.data() + piece.byte_begin, piece.byte_count);
        }
        const bool on_device = grant.place != kAnyCpuPlace;
        answer.pointers.push_back(on_device ? device_pointer(copy.get()) : copy.get());
        grant.copies.push_back(std::move(copy));
        events_.push_back({Event::kGrant, piece.tensor, piece.byte_begin, residency::Class::kIdle,
                           0, piece.access});
    }
    pinned_ += grant.pieces.size() * block_bytes_;
    pinned_peak_ = std::max(pinned_peak_, pinned_);
}

void FakeTiers::send(const Answer &answer)
{
    answer.ask.done(answer.ask.user, answer.status, answer.ticket,
                    answer.status.ok() ? answer.pointers.data() : nullptr);
}

void FakeTiers::answer_inline()
{
    if (!threads_.empty()) return;
    for (;;) {
        Answer answer;
        {
            MutexLock lock(mutex_);
            if (!take(answer)) return;
        }
        send(answer);
    }
}

void FakeTiers::main()
{
    for (;;) {
        Answer answer;
        {
            MutexLock lock(mutex_);
            while (!stopping_ && !take(answer)) changed_.wait(mutex_);
            if (answer.ask.done == nullptr) return;
        }
        send(answer);
    }
}

void FakeTiers::release(uint64_t ticket, uint64_t far_pieces)
{
    MutexLock lock(mutex_);
    const auto found = grants_.find(ticket);
    if (found == grants_.end()) {
        fault("a ticket is released twice");
        return;
    }
    Grant &grant = found->second;
    pinned_ -= grant.pieces.size() * block_bytes_;
    for (size_t i = 0; i < grant.pieces.size(); ++i) {
        const Piece &piece = grant.pieces[i];
        Tensor &tensor = tensors_[piece.tensor];
        --tensor.out;
        if ((far_pieces >> i & 1) != 0) ++tensor.far;
        if (piece.access == Access::kRead) {
            const bool same = std::memcmp(tensor.bytes.data() + piece.byte_begin,
                                          grant.copies[i].get(), piece.byte_count) == 0;
            if (!same) fault("a piece to read was written");
            continue;
        }
        std::memcpy(tensor.bytes.data() + piece.byte_begin, grant.copies[i].get(),
                    piece.byte_count);
        tensor.contents = Contents::kValid;
        ++tensor.version;
    }
    grants_.erase(found);
    changed_.notify_all();
}

}  // namespace stepwell::update::test
