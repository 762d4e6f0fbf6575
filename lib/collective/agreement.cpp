// SPDX-License-Identifier: Apache-2.0
#include "lib/collective/agreement.h"

#include <algorithm>
#include <cstring>

namespace stepwell::collective {
namespace {

const char *doing(Kind kind)
{
    switch (kind) {
    case Kind::kJoin: return "joins";
    case Kind::kOpen: return "opens the runtime";
    case Kind::kGather: return "gathers";
    case Kind::kReduce: return "reduces";
    case Kind::kSum: return "sums the replicated tensor";
    case Kind::kVerdict: return "steps the optimizer";
    case Kind::kStore: return "opens the store";
    case Kind::kCommit: return "commits a generation of the store";
    case Kind::kVote: return "votes on a generation of the store";
    }
    return "does what this build does not know with";
}

// A rank may be of another build, or its memory bad: text ends where the field does.
template <size_t n> std::string text_of(const char (&field)[n])
{
    return std::string(field, strnlen(field, n));
}

template <size_t n> void put(char (&field)[n], const std::string &text)
{
    const size_t length = std::min(text.size(), n - 1);
    std::memcpy(field, text.data(), length);
    field[length] = '\0';
}

Status differ(stw_status code, const Record *records, uint32_t other, uint32_t self,
              const std::string &sentence)
{
    Status status = Status::error(code, "%s", sentence.c_str());
    status.mutable_detail().rank = static_cast<int>(self == other ? 0 : other);
    status.mutable_detail().tensor = text_of(records[self].name);
    return status;
}

unsigned long long number(uint64_t value)
{
    return value;
}

}  // namespace

uint64_t hash_bytes(uint64_t hash, const void *bytes, size_t n)
{
    for (size_t i = 0; i < n; ++i) {
        hash = (hash ^ static_cast<const uint8_t *>(bytes)[i]) * 0x100000001b3ull + 1;
    }
    return hash;
}

uint64_t hash_name(uint64_t hash, const std::string &name)
{
    const uint64_t length = name.size();
    return hash_bytes(hash_bytes(hash, name.data(), name.size()), &length, sizeof length);
}

Record make_record(Kind kind, const std::string &name)
{
    Record record;
    record.kind = kind;
    put(record.name, name);
    return record;
}

void set_text(Record &record, const std::string &text)
{
    put(record.text, text);
}

void set_status(Record &record, const Status &status)
{
    record.status = status.code();
    put(record.text, status.sentence());
}

Status compare(const Record *records, uint32_t size, uint32_t self)
{
    const Record &first = records[0];
    const std::string name = text_of(first.name);
    for (uint32_t rank = 1; rank < size; ++rank) {
        const Record &at = records[rank];
        const bool same = at.kind == first.kind && at.sequence == first.sequence;
        if (same && at.names == first.names && text_of(at.name) == name) continue;
        if (same && text_of(at.name) == name) {
            return differ(
                STW_ERROR_ORDER, records, rank, self,
                format_text("ranks called with different tensors: as collective %llu rank "
                            "0 and rank %u %s '%s', which is %s on rank 0 and %s on rank "
                            "%u; make the same calls with the same tensors in the same "
                            "order on all ranks",
                            number(first.sequence), rank, doing(first.kind), name.c_str(),
                            text_of(first.text).c_str(), text_of(at.text).c_str(), rank));
        }
        return differ(STW_ERROR_ORDER, records, rank, self,
                      format_text("ranks called in different order: as collective %llu rank 0 %s "
                                  "'%s', and as collective %llu rank %u %s '%s'; make the same "
                                  "calls in the same order on all ranks",
                                  number(first.sequence), doing(first.kind), name.c_str(),
                                  number(at.sequence), rank, doing(at.kind),
                                  text_of(at.name).c_str()));
    }
    for (uint32_t rank = 0; rank < size; ++rank) {
        if (records[rank].status >= STW_OK) continue;
        Status status = Status::error(
            records[rank].status, "rank %u cannot take part when the group %s '%s': %s", rank,
            doing(first.kind), name.c_str(), text_of(records[rank].text).c_str());
        status.mutable_detail().rank = static_cast<int>(rank);
        status.mutable_detail().tensor = name;
        return status;
    }
    for (uint32_t rank = 1; rank < size; ++rank) {
        const Record &at = records[rank];
        if (at.spec == first.spec && at.bytes == first.bytes) continue;
        if (first.kind == Kind::kVerdict) {
            return differ(
                STW_ERROR_MISMATCH, records, rank, self,
                format_text("optimizer '%s' steps with %s on rank 0 and with %s on rank %u; give "
                            "it the same parameters, groups, hyper-parameters and options on all "
                            "ranks",
                            name.c_str(), text_of(first.text).c_str(), text_of(at.text).c_str(),
                            rank));
        }
        return differ(STW_ERROR_MISMATCH, records, rank, self,
                      format_text("'%s' is %s on rank 0 and %s on rank %u; create it alike on all "
                                  "ranks",
                                  name.c_str(), text_of(first.text).c_str(),
                                  text_of(at.text).c_str(), rank));
    }
    return {};
}

}  // namespace stepwell::collective
