// SPDX-License-Identifier: Apache-2.0
#include "tests/nccl/double/communicator.h"

#include "drivers/nccl/api.h"
#include "tests/cuda/double/control.h"
#include "tests/nccl/double/sums.h"

#include <cstring>
#include <vector>

#include <signal.h>
#include <unistd.h>

namespace stepwell::nccl_double {

using namespace stepwell::drivers;

namespace {

const char *name_of(Kind kind)
{
    switch (kind) {
    case Kind::kAllGather: return "ncclAllGather";
    case Kind::kReduceScatter: return "ncclReduceScatter";
    case Kind::kAllReduce: return "ncclAllReduce";
    }
    return "";
}

}  // namespace

// Of its two kernels, the second of which ends it.
struct Communicator::Step {
    std::shared_ptr<Communicator> comm;
    Called called;
    uint64_t number = 0;
    uint64_t from = 0;
    uint64_t to = 0;
    uint64_t from_bytes = 0;
};

Communicator::Communicator(std::shared_ptr<Segment> segment, int rank, int device, int init_polls,
                           int launch_polls, bool notices)
    : segment_(std::move(segment)),
      rank_(rank),
      device_(device),
      launch_polls_(launch_polls),
      notices_(notices),
      polls_left_(init_polls)
{
    segment_->rank(rank_).process.store(getpid());
}

const char *Communicator::last_error() const
{
    const std::lock_guard lock(sentence_lock_);
    return sentence_.c_str();
}

void Communicator::break_with(int code, const std::string &sentence)
{
    const std::lock_guard lock(sentence_lock_);
    if (failure_.load() != 0) return;
    sentence_ = sentence;
    failure_.store(code);
}

void Communicator::fail(int code)
{
    break_with(code, "an error that the test asked for");
}

void Communicator::abort()
{
    aborted_.store(true);
    segment_->hide();
}

int Communicator::state()
{
    if (failure_.load() != 0) return failure_.load();
    if (!joined_) {
        if (!segment_->all_joined() || polls_left_-- > 0) return kNcclInProgress;
        joined_ = true;
        segment_->hide();
    }
    if (launching_ == nullptr) return kNcclSuccess;
    if (polls_left_-- > 0) return kNcclInProgress;
    const std::unique_ptr<Asked> asked = std::move(launching_);
    const int result = enqueue(*asked);
    if (result != kNcclSuccess) break_with(result, "the collective could not be launched");
    return result;
}

int Communicator::start(const Asked &asked)
{
    const int now = state();
    if (now != kNcclSuccess) {
        if (now == kNcclInProgress)
            break_with(kNcclInvalidUsage,
                       "a collective was started while another call was under way");
        return failure_.load();
    }
    if (launch_polls_ == 0 || ++asked_ % 2 != 0) return enqueue(asked);
    launching_ = std::make_unique<Asked>(asked);
    polls_left_ = launch_polls_;
    return kNcclInProgress;
}

int Communicator::enqueue(const Asked &asked)
{
    const uint64_t bytes = asked.count * bytes_of_type(asked.type);
    const uint64_t all = bytes * static_cast<uint64_t>(ranks());
    auto step = std::make_unique<Step>();
    step->comm = shared_from_this();
    step->called = {static_cast<uint32_t>(asked.kind), asked.type, asked.count, asked.registered};
    step->number = started_;
    step->from = asked.from;
    step->to = asked.to;
    step->from_bytes = asked.kind == Kind::kReduceScatter ? all : bytes;
    if (step->from_bytes > kRoomBytes) return kNcclInvalidArgument;
    // A real one may read and write at any time between its begin and its end.
    const stw_double_range ranges[] = {
        {asked.from, step->from_bytes, 0, 0},
        {asked.to, asked.kind == Kind::kAllGather ? all : bytes, 1, 0},
    };
    const char *name = name_of(asked.kind);
    if (stw_double_consume_when(asked.stream, name, ranges, 2, give, may_give, step.get()) != 0 ||
        stw_double_consume_when(asked.stream, name, ranges, 2, get, may_get, step.get()) != 0)
        return kNcclUnhandledCudaError;
    (void)step.release();
    ++started_;
    return kNcclSuccess;
}

// A process that has ended is a child that nobody may have waited for yet, too.
bool Communicator::finds_all() const
{
    return !notices_ || segment_->all([](const RankState &rank) {
        const int process = rank.process.load();
        return process == getpid() || kill(process, 0) == 0;
    });
}

int Communicator::may_give(void *user)
{
    const auto *step = static_cast<Step *>(user);
    if (step->comm->over()) return 1;
    return step->comm->segment_->all(
        [&](const RankState &rank) { return rank.received.load() + 1 >= step->number; });
}

void Communicator::give(void *user, void *(*alias)(uint64_t))
{
    const auto *step = static_cast<Step *>(user);
    const Communicator &comm = *step->comm;
    if (comm.over()) return;
    std::memcpy(comm.segment_->room(comm.rank_, step->number), alias(step->from), step->from_bytes);
    RankState &mine = comm.segment_->rank(comm.rank_);
    mine.called[step->number % 2] = step->called;
    mine.sent.store(step->number + 1);
}

int Communicator::may_get(void *user)
{
    const auto *step = static_cast<Step *>(user);
    Communicator &comm = *step->comm;
    if (comm.over()) return 1;
    if (comm.segment_->all([&](const RankState &rank) { return rank.sent.load() > step->number; }))
        return 1;
    if (!comm.finds_all()) comm.break_with(kNcclRemoteError, "a process of the group is gone");
    return comm.over();
}

void Communicator::get(void *user, void *(*alias)(uint64_t))
{
    const std::unique_ptr<Step> step(static_cast<Step *>(user));
    Communicator &comm = *step->comm;
    const Segment &segment = *comm.segment_;
    const uint64_t number = step->number;
    const bool alike =
        segment.all([&](const RankState &rank) { return rank.called[number % 2] == step->called; });
    if (!comm.over() && !alike)
        comm.break_with(kNcclInvalidUsage,
                        "ranks called for different collectives, or with memory that not all have "
                        "registered");
    if (!comm.over()) {
        const uint64_t bytes = step->called.count * bytes_of_type(step->called.type);
        const bool scatters = step->called.kind == static_cast<uint32_t>(Kind::kReduceScatter);
        auto *to = static_cast<char *>(alias(step->to));
        std::vector<const char *> parts;
        for (int rank = 0; rank < segment.ranks(); ++rank) {
            parts.push_back(segment.room(rank, number));
            if (scatters) parts.back() += bytes * static_cast<uint64_t>(comm.rank_);
        }
        if (step->called.kind != static_cast<uint32_t>(Kind::kAllGather)) {
            sum(parts, to, step->called.count, step->called.type);
        } else {
            for (const char *part : parts) {
                std::memcpy(to, part, bytes);
                to += bytes;
            }
        }
        segment.rank(comm.rank_).received.store(number + 1);
    }
    ++comm.ended_;
}

void *Communicator::add(uint64_t address, uint64_t bytes)
{
    registered_[address] = bytes;
    return reinterpret_cast<void *>(address);
}

bool Communicator::remove(void *handle)
{
    return registered_.erase(reinterpret_cast<uint64_t>(handle)) > 0;
}

bool Communicator::covers(uint64_t address, uint64_t bytes) const
{
    auto after = registered_.upper_bound(address);
    if (after == registered_.begin()) return false;
    --after;
    return address + bytes <= after->first + after->second;
}

}  // namespace stepwell::nccl_double
