// SPDX-License-Identifier: Apache-2.0
#include "lib/collective/commit.h"

#include "lib/support/assert.h"

#include <algorithm>
#include <cinttypes>
#include <new>

namespace stepwell::collective {

bool is_heard(const std::vector<Record> &records)
{
    return !records.empty() && std::all_of(records.begin(), records.end(),
                                           [](const Record &at) { return at.sequence != 0; });
}

Commit::Commit(store::Generations &generations, std::string name, uint64_t token, Status cause)
    : generations_(generations), name_(std::move(name)), mine_(std::move(cause))
{
    id_ = {generations.next_number(), token};
    if (!mine_.ok()) return;
    Result<uint32_t> set = generations.begin();
    begun_ = set.ok();
    if (begun_) set_ = set.value();
    if (!begun_) mine_ = std::move(set.status());
}

Record Commit::opening()
{
    Record record = make_record(Kind::kCommit, name_);
    record.spec = id_.number;
    record.counts[0] = id_.token;
    set_text(record, format_text("at generation %" PRIu64, id_.number));
    if (!mine_.ok()) set_status(record, mine_);
    return record;
}

// Nothing is written yet, so nothing can be undecided.
Status Commit::opened(Status agreed, const std::vector<Record> &ranks)
{
    if (agreed.ok()) {
        id_.token = ranks[0].counts[0];
        return {};
    }
    if (begun_) (void)generations_.refuse();
    begun_ = false;
    return mine_.ok() ? agreed : mine_;
}

void Commit::prepare(Result<store::Manifest> manifest)
{
    STW_ASSERT(begun_);
    mine_ = manifest.status();
    if (!manifest.ok()) return;
    manifest.value().id = id_;
    try {
        mine_ = generations_.prepare(manifest.take());
    } catch (const std::bad_alloc &) {
        mine_ = Status::remark(STW_ERROR_MEMORY);
    }
    prepared_ = mine_.ok();
}

Record Commit::ballot() const
{
    Record record = make_record(Kind::kVote, name_);
    record.spec = id_.number ^ id_.token;
    set_text(record,
             format_text("generation %" PRIu64 " of token %016" PRIx64, id_.number, id_.token));
    if (!mine_.ok()) set_status(record, mine_);
    return record;
}

// A rank that has not prepared knows that nobody can have committed, whatever it hears. One that
// has knows so only from the answers of all.
Status Commit::close(Status agreed, bool heard)
{
    STW_ASSERT(begun_);
    begun_ = false;
    if (prepared_ && agreed.ok()) {
        generations_.commit();
        return {};
    }
    if (prepared_ && !heard) {
        generations_.doubt(agreed);
        return agreed;
    }
    Status refused = generations_.refuse();
    if (!mine_.ok()) return mine_;
    return agreed.ok() ? refused : agreed;
}

FoundGenerations tell(const std::vector<store::GenerationId> &found, bool damaged)
{
    FoundGenerations mine;
    mine.files = kAllFiles;
    mine.damaged = damaged ? 1 : 0;
    for (const store::GenerationId &id : found) {
        if (mine.count < store::kKeepsMax) mine.ids[mine.count++] = id;
    }
    return mine;
}

bool is_unused(const std::vector<FoundGenerations> &ranks)
{
    bool some_without = false;
    bool some_clean = false;
    bool all_clean = true;
    uint64_t newest = 0;
    for (const FoundGenerations &rank : ranks) {
        if (rank.files == kSomeFiles) return false;
        some_without |= rank.files == kNoFiles;
        for (uint32_t i = 0; i < std::min(rank.count, store::kKeepsMax); ++i) {
            newest = std::max(newest, rank.ids[i].number);
        }
        const bool clean = rank.count == 0 && rank.damaged == 0;
        some_clean |= clean;
        all_clean &= clean;
    }
    // A rank that has all its files and not the first generation was not there when it was voted
    // on.
    return some_without ? all_clean : some_clean && newest <= 1;
}

std::vector<store::GenerationId> hear(const std::vector<FoundGenerations> &ranks, uint32_t kept)
{
    std::vector<std::vector<store::GenerationId>> found;
    for (const FoundGenerations &rank : ranks) {
        const uint32_t count = std::min(rank.count, store::kKeepsMax);
        found.emplace_back(rank.ids, rank.ids + count);
    }
    return store::resumable(found, kept);
}

Result<store::GenerationId> choose(const std::vector<store::GenerationId> &resumable,
                                   uint64_t number, const std::vector<FoundGenerations> &ranks,
                                   const std::string &name)
{
    for (const store::GenerationId &id : resumable) {
        if (number == 0 || id.number == number) return id;
    }
    std::string there = resumable.empty() ? "" : ranks.size() > 1 ? "all ranks have" : "it has";
    for (const store::GenerationId &id : resumable) there += format_text(" %" PRIu64, id.number);
    for (size_t rank = 0; resumable.empty() && rank < ranks.size() && rank < 16; ++rank) {
        there += format_text("%srank %zu has", rank > 0 ? ", " : "", rank);
        if (ranks[rank].count == 0) there += " none";
        for (uint32_t i = 0; i < std::min(ranks[rank].count, store::kKeepsMax); ++i) {
            there += format_text(" %" PRIu64, ranks[rank].ids[i].number);
        }
    }
    const std::string wanted = number == 0 ? std::string("a generation that all ranks have")
                                           : format_text("generation %" PRIu64, number);
    return Status::error(STW_ERROR_NOT_FOUND, "the store '%s' cannot be resumed at %s: %s",
                         name.c_str(), wanted.c_str(), there.c_str());
}

}  // namespace stepwell::collective
