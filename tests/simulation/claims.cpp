// SPDX-License-Identifier: Apache-2.0
// Claims: what an update does, and a commit. It has its tensors to itself, or beside others that
// read, goes through them chunk by chunk and lets each go when it is done with it.
#include "tests/simulation/program.h"

namespace stepwell::simulation {

namespace {

constexpr FetchId kLent = ~FetchId{0};

}  // namespace

void Program::claim()
{
    if (!claims_.empty() && random_.chance(75)) {
        auto at = claims_.begin();
        std::advance(at, static_cast<std::ptrdiff_t>(random_.below(claims_.size())));
        advance_claim(*at);
        if (at->tensors.empty()) claims_.erase(at);
        return;
    }
    if (claims_.size() >= 2) return;
    Claim claim;
    for (uint64_t n = random_.between(1, 3); n > 0; n--) {
        const TensorId id = any_tensor();
        if (id == kNone) return;
        const ModelTensor &tensor = model_.tensors[id];
        bool free = tensor.claims.size() < 2 && !tensor.spec.agreed;
        for (const TensorId other : claim.tensors) free = free && other != id;
        if (free) claim.tensors.push_back(id);
    }
    if (claim.tensors.empty()) return;
    const bool reads = claim_random_.chance(30);
    claim.id = machine_.core.claim(reads ? ClaimKind::kReads : ClaimKind::kUpdate);
    for (const TensorId id : claim.tensors) {
        journal_.line("claim %llu%s tensor %u", (unsigned long long)claim.id,
                      reads ? ", which reads," : "", id);
        machine_.core.claim_tensor(claim.id, id);
        model_.tensors[id].claims.push_back({claim.id, last_fetch_});
    }
    claims_.push_back(std::move(claim));
}

// As for an update that may be undone: a tensor that lies at nvme leaves what it is to another one.
void Program::keep_older(const Claim &claim)
{
    const TensorId id = claim.tensors.back();
    ModelTensor &tensor = model_.tensors[id];
    if (claim.reads()) return;
    const bool mine = tensor.claims.front().first == claim.id && !machine_.core.in_use(id);
    const bool lies_there = (machine_.core.residence(id) >> nvme_ & 1) != 0;
    const bool stored = setup_.config.places[nvme_].tier == Tier::kNvme && lies_there;
    if (!mine || !stored || !tensor.readable() || tensor.older != kNone) return;
    if (machine_.core.blocks_of(id).shares || random_.chance(50)) return;
    TensorSpec spec = tensor.spec;
    spec.reads_zero = false;
    spec.no_packing = spec.passing = true;
    const Result<TensorId> made = machine_.core.create(spec);
    if (!made.ok()) return;
    const TensorId older = made.value();
    model_.create(older, spec);
    journal_.line("tensor %u is to have what tensor %u is before claim %llu", older, id,
                  (unsigned long long)claim.id);
    model_.tensors[older].in_parts = true;
    model_.tensors[older].claims.push_back({claim.id, last_fetch_});
    machine_.know_heirs(machine_.core.blocks_of(older), machine_.core.pack_of(older));
    machine_.core.claim_tensor(claim.id, older);
    machine_.core.keep_older(id, older);
    model_.tensors[id].older = older;
}

// Until it is used under the claim again, or let go.
void Program::lend(const Claim &claim)
{
    const TensorId id = claim.tensors.back();
    journal_.line("claim %llu lends tensor %u", (unsigned long long)claim.id, id);
    model_.tensors[id].lent_to = kLent;
    machine_.core.lend(claim.id, id, out_);
    execute();
}

// From its first view of the tensor on, no fetch has written it.
void Program::check_unchanged(Claim &claim)
{
    const TensorId id = claim.tensors.back();
    if (!claim.reads() || !claim.view || journal_.failed()) return;
    const uint64_t now = machine_.core.version(id);
    const auto [at, first] = claim.versions.emplace(id, now);
    if (!first && at->second != now) {
        journal_.fail("tensor %u was written under claim %llu, which only reads it", id,
                      (unsigned long long)claim.id);
    }
}

void Program::next_tensor(Claim &claim)
{
    const TensorId id = claim.tensors.back();
    claim.tensors.pop_back();
    claim.next_byte = 0;
    ModelTensor &tensor = model_.tensors[id];
    const bool first = tensor.claims.front().first == claim.id;
    if (first && !claim.reads()) {
        // The older one is read, written and let go in its turn.
        if (tensor.older != kNone) claim.tensors.push_back(tensor.older);
        tensor.older = kNone;
        tensor.kept.clear();
    }
    const bool empties = first && !claim.reads() &&
                         tensor.readers + tensor.writers + tensor.fetches + tensor.hints == 0 &&
                         random_.chance(20);
    const bool alone = first && !claim.reads() && !machine_.core.in_use(id) && tensor.readable();
    if (alone && random_.chance(20)) {
        // Fetches that wait for the claim are refused, and so are later ones.
        journal_.line("an update misses tensor %u", id);
        machine_.core.miss(id, Status::error(STW_ERROR_SYNC, "a simulated update did not begin"));
        tensor.missed = true;
    }
    journal_.line("unclaim tensor %u%s", id, empties ? ", empties" : "");
    if (tensor.lent_to == kLent && first) tensor.lent_to = last_fetch_;
    for (auto at = tensor.claims.begin(); at != tensor.claims.end(); ++at) {
        if (at->first != claim.id) continue;
        tensor.claims.erase(at);
        break;
    }
    machine_.core.unclaim_tensor(claim.id, id, empties, out_);
    if (empties) model_.settle(id);
    execute();
}

// Where room is promised. Blocks that read as zeros, and were never written, are not asked for.
bool Program::may_be_kept(TensorId id) const
{
    const ModelTensor &tensor = model_.tensors.at(id);
    return setup_.config.places[nvme_].tier == Tier::kNvme && tensor.readable() &&
           !tensor.spec.reads_zero && !tensor.in_parts && machine_.core.is_promised_at(id, nvme_);
}

void Program::advance_claim(Claim &claim)
{
    if (claim.fetch != 0) return;
    if (claim.view) {
        check_unchanged(claim);
        View view = std::move(claim.view);
        release(std::move(view));
        return;
    }
    const TensorId id = claim.tensors.back();
    if (claim.next_byte == 0) keep_older(claim);
    const ModelTensor &tensor = model_.tensors[id];
    // Writes some of it twice.
    if (tensor.older != kNone && random_.chance(20)) claim.next_byte = 0;
    const bool mine = tensor.claims.front().first == claim.id;
    const bool lends = mine && !claim.reads() && tensor.readable() && tensor.lent_to != kLent;
    if (lends && random_.chance(10)) {
        lend(claim);
        return;
    }
    const bool lacks = claim.reads() && !tensor.readable();
    if (lacks || claim.next_byte >= tensor.spec.bytes || random_.chance(5)) {
        next_tensor(claim);
        return;
    }
    if (mine && tensor.lent_to == kLent) model_.tensors[id].lent_to = last_fetch_;
    FetchAsked asked;
    asked.claim = claim.id;
    asked.flags = kFetchWaitRoom;
    asked.requests.push_back(choose_piece(claim));
    ask(asked);
}

// As a commit does: the rest of a tensor, to be at nvme and nothing else. Or the next block of it.
Request Program::choose_piece(Claim &claim)
{
    Request request;
    request.tensor = claim.tensors.back();
    const ModelTensor &tensor = model_.tensors[request.tensor];
    request.byte_begin = claim.next_byte;
    if (may_be_kept(request.tensor) && random_.chance(claim.reads() ? 50 : 20)) {
        request.place = nvme_;
        request.byte_count = tensor.spec.bytes - claim.next_byte;
        claim.next_byte = tensor.spec.bytes;
        return request;
    }
    const bool reads = claim.reads() || (random_.chance(30) && tensor.readable());
    request.access = reads               ? Access::kRead
                     : tensor.readable() ? Access::kReadWrite
                                         : Access::kWrite;
    do {
        request.place = choose_place(setup_, random_, tensor.spec.policy);
    } while (request.place == kAnyCpuPlace && setup_.cpu == 0);
    const uint64_t chunk = kBlockBytes - (tensor.pack_offset + claim.next_byte) % kBlockBytes;
    request.byte_count = std::min(chunk, tensor.spec.bytes - claim.next_byte);
    claim.next_byte += request.byte_count;
    return request;
}

// A fetch that only reads does not wait for claims that only read. Where nothing else of its blocks
// is used or asked for, it waits for no lock.
void Program::check_read_beside(FetchId id, const FetchAsked &asked)
{
    if (asked.claim != 0 || fetches_.count(id) == 0) return;
    for (const Request &request : asked.requests) {
        if (request.access != Access::kRead) return;
        for (const auto &[other, tensor] : model_.tensors) {
            if (!tensor.alive || tensor.pack != model_.tensors[request.tensor].pack) continue;
            const uint32_t own = other == request.tensor ? 1 : 0;
            if (tensor.writers > 0 || tensor.fetches + tensor.hints > own) return;
            if (tensor.claimed_alone()) return;
        }
    }
    if (machine_.core.waits_for_locks(id))
        journal_.fail("fetch %llu only reads, and waits for a lock", (unsigned long long)id);
}

}  // namespace stepwell::simulation
