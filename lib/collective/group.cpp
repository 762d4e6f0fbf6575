// SPDX-License-Identifier: Apache-2.0
#include "lib/collective/group.h"

#include <stepwell/types.h>

#include <sched.h>

#include <algorithm>
#include <cinttypes>
#include <cstring>
#include <ctime>

namespace stepwell::collective {
namespace {

constexpr uint64_t kGroupMax = 65536;
// Engines move bytes only while they are polled, so a wait begins by polling all the time: as long
// as a slow engine takes for the bytes and a peer to be scheduled. After that it is the other ranks
// that are late, and their cores are better left to them.
constexpr uint64_t kEagerNs = 200'000;
constexpr uint64_t kEagerNsPerKiB = 2'000;  // 0.5 GB/s
constexpr long kRestNs = 50'000;
constexpr uint64_t kNoWork = UINT64_MAX;

uint64_t now_ns()
{
    timespec time{};
    clock_gettime(CLOCK_MONOTONIC, &time);
    return static_cast<uint64_t>(time.tv_sec) * 1000000000ull + static_cast<uint64_t>(time.tv_nsec);
}

double seconds(uint64_t ns)
{
    return static_cast<double>(ns) * 1e-9;
}

std::string list_of(const std::vector<uint32_t> &ranks, uint32_t count)
{
    std::string text;
    for (const uint32_t rank : ranks) text += (text.empty() ? "" : ", ") + std::to_string(rank);
    if (count > ranks.size()) text += format_text(" and %zu more", count - ranks.size());
    return text;
}

}  // namespace

Group::Group(const stw_collective_ops *ops, stw_collective *collective, uint64_t timeout_ns)
    : ops_(ops), collective_(collective), timeout_ns_(timeout_ns)
{
}

Group::~Group()
{
    // A broken one is not waited for: what it holds is lost anyway.
    (void)ops_->close(collective_, broken_.ok() ? timeout_ns_ : 0);
    if (holds_records_) (void)exchanged_.release();
}

Result<std::unique_ptr<Group>> Group::open(const stw_collective_ops *ops,
                                           stw_collective *collective, uint64_t timeout_ns,
                                           bool caller_thread)
{
    std::unique_ptr<Group> group(new Group(ops, collective, timeout_ns));
    Status status = group->join(caller_thread);
    if (!status.ok()) return status;
    return Result<std::unique_ptr<Group>>(std::move(group));
}

Status Group::join(bool caller_thread)
{
    stw_collective_info info{};
    info.struct_size = sizeof info;
    ops_->info(collective_, &info);
    if (info.size == 0 || info.size > kGroupMax || info.rank >= info.size) {
        return Status::error(STW_ERROR_INVALID,
                             "rank %u of a group of %u ranks cannot be; ranks count from 0, and "
                             "there are at most %" PRIu64,
                             info.rank, info.size, kGroupMax);
    }
    rank_ = info.rank;
    size_ = info.size;
    remark_ = info.remark;
    if ((ops_->capabilities & STW_COLLECTIVE_DEVICE) != 0) stream_ = info.stream;
    if (info.caller_thread != 0 && !caller_thread) {
        return Status::error(STW_ERROR_UNSUPPORTED,
                             "the collectives of '%s' cannot be called from a thread of the "
                             "library (%s); set up threads there, or create the group with "
                             "STW_GROUP_CALLER_THREAD",
                             ops_->name, remark_.empty() ? "it says so" : remark_.c_str());
    }
    caller_thread_ = caller_thread;
    std::vector<Record> records;
    Record mine = make_record(Kind::kJoin, format_text("a group of %u ranks", size_));
    mine.counts[0] = rank_;
    STW_TRY(agree(mine, records));
    for (uint32_t rank = 0; rank < size_; ++rank) {
        if (records[rank].counts[0] == rank) continue;
        return broke(
            Status::error(STW_ERROR_MISMATCH,
                          "the process at place %u of the group was told that it is rank %" PRIu64
                          "; give each process a rank of its own, from 0 on",
                          rank, records[rank].counts[0]));
    }
    return {};
}

Status Group::broke(Status status)
{
    errors_.fetch_add(1, std::memory_order_relaxed);
    keep_failure(status);
    return status;
}

// Nothing of this rank's is in flight. Not aborted: others may not have seen the end yet of what
// this one has, and are told at a collective of their own, or do not find this rank there.
void Group::fail_with(const Status &cause)
{
    if (!cause.ok()) keep_failure(cause);
}

void Group::keep_failure(const Status &status)
{
    if (!broken_.ok()) return;
    broken_ = status;
    is_broken_.store(true, std::memory_order_release);
}

Status Group::started(stw_status code, const char *what) const
{
    if (code == STW_OK) return {};
    return Status::error(code < STW_OK ? code : stw_status{STW_ERROR_INTERNAL},
                         "%s over '%s' cannot be started: %s", what, ops_->name,
                         stw_status_string(code));
}

// Who has not come, as far as the engine knows, or somebody beside it.
std::string Group::late_ranks(uint64_t work, int *first_out) const
{
    std::vector<uint32_t> ranks(16);
    uint32_t count = 0;
    if (work != kNoWork && (ops_->capabilities & STW_COLLECTIVE_NAMES_MISSING) != 0) {
        count = ops_->missing(collective_, work, ranks.data(), static_cast<uint32_t>(ranks.size()));
    }
    ranks.resize(std::min<size_t>(ranks.size(), count));
    std::string text;
    if (count > 0) {
        *first_out = static_cast<int>(ranks[0]);
        text = format_text("nothing came from rank%s %s", count > 1 ? "s" : "",
                           list_of(ranks, count).c_str());
    } else {
        text = "some rank is gone, stopped, cut off or called nothing";
    }
    if (!describe_) return text;
    if (ranks.empty()) {
        for (uint32_t rank = 0; rank < std::min(size_, 16u); ++rank) {
            if (rank != rank_) ranks.push_back(rank);
        }
    }
    for (const uint32_t rank : ranks) text += "; " + describe_(rank);
    return text;
}

// Given up: nobody can say any more where the others are.
Status Group::give_in(uint64_t work, const char *what, bool exchanges)
{
    const bool told = gives_up_.load(std::memory_order_relaxed);
    int first = -1;
    const std::string who = told ? std::string() : late_ranks(exchanges ? work : kNoWork, &first);
    const bool aborts =
        (ops_->capabilities & STW_COLLECTIVE_CAN_ABORT) != 0 && ops_->abort(collective_) == STW_OK;
    if (!aborts) (exchanges ? holds_records_ : holds_memory_) = true;
    Status status =
        told ? Status::error(STW_ERROR_CANCELLED,
                             "%s over '%s' was given up, as the runtime closes", what, ops_->name)
             : Status::error(STW_ERROR_PEER,
                             "%s over '%s' was not done after %.1f s: %s. The group cannot be used "
                             "any more",
                             what, ops_->name, seconds(timeout_ns_), who.c_str());
    status.mutable_detail().rank = first;
    return broke(std::move(status));
}

Status Group::wait(uint64_t work, const char *what, uint64_t bytes, bool exchanges)
{
    const uint64_t begin = now_ns();
    const uint64_t eager = begin + kEagerNs + bytes / 1024 * kEagerNsPerKiB;
    for (;;) {
        stw_driver_error error = STW_DRIVER_ERROR_INIT;
        const stw_status code = ops_->poll(collective_, work, &error);
        if (code == STW_OK) return {};
        if (code != STW_PENDING) {
            Status status = Status::error(
                code < STW_OK ? code : stw_status{STW_ERROR_INTERNAL}, "%s over '%s' failed: %s",
                what, ops_->name, error.sentence[0] ? error.sentence : stw_status_string(code));
            status.mutable_detail().os_errno = error.os_errno;
            return broke(std::move(status));
        }
        const uint64_t time = now_ns();
        const bool late = time - begin >= timeout_ns_;
        if (late || gives_up_.load(std::memory_order_relaxed)) {
            return give_in(work, what, exchanges);
        }
        if (time < eager) {
            sched_yield();
        } else {
            const timespec rest{0, kRestNs};
            nanosleep(&rest, nullptr);
        }
    }
}

Status Group::finish(stw_status code, uint64_t work, const char *what, uint64_t bytes)
{
    Status status = started(code, what);
    if (!status.ok()) return broke(std::move(status));
    const uint64_t begin = now_ns();
    STW_TRY(wait(work, what, bytes, false));
    busy_ns_.fetch_add(now_ns() - begin, std::memory_order_relaxed);
    collectives_.fetch_add(1, std::memory_order_relaxed);
    bytes_.fetch_add(bytes / size_ * (size_ - 1), std::memory_order_relaxed);
    return {};
}

Status Group::exchange(const void *record, void *records, uint32_t bytes)
{
    if (!broken_.ok()) return broken_;
    ++sequence_;
    if (!exchanged_) exchanged_ = std::make_unique<std::vector<char>>();
    exchanged_->resize(std::max<size_t>(exchanged_->size(), size_t{size_ + 1} * bytes));
    char *mine = exchanged_->data();
    std::memcpy(mine, record, bytes);
    uint64_t work = 0;
    const stw_status code = ops_->exchange(collective_, mine, mine + bytes, bytes, &work);
    const std::string what = format_text("the exchange before collective %" PRIu64, sequence_);
    Status status = started(code, what.c_str());
    if (!status.ok()) return broke(std::move(status));
    STW_TRY(wait(work, what.c_str(), bytes, true));
    std::memcpy(records, mine + bytes, size_t{size_} * bytes);
    return {};
}

Status Group::agree(Record record, std::vector<Record> &records)
{
    static_assert(sizeof(Record) <= STW_EXCHANGE_BYTES_MAX);
    record.sequence = sequence_ + 1;
    records.assign(size_, Record{});
    Status status = exchange(&record, records.data(), sizeof record);
    if (status.code() == STW_ERROR_PEER) {
        ErrorDetail &detail = status.mutable_detail();
        detail.tensor = record.name;
        detail.sentence += format_text(" (this rank is at '%s')", record.name);
    }
    if (!status.ok()) return status;
    status = compare(records.data(), size_, rank_);
    if (status.code() == STW_ERROR_ORDER) return broke(std::move(status));
    return status;
}

Status Group::all_gather(const void *shard, void *whole, uint64_t shard_bytes)
{
    if (!broken_.ok()) return broken_;
    if (shard_bytes == 0) return {};
    uint64_t work = 0;
    const stw_status code =
        ops_->all_gather(collective_, shard, whole, shard_bytes, nullptr, &work);
    return finish(code, work, "an all-gather", shard_bytes * size_);
}

Status Group::reduce_scatter(const void *whole, void *shard, uint64_t shard_elements,
                             uint32_t dtype)
{
    if (!broken_.ok()) return broken_;
    if (shard_elements == 0) return {};
    uint64_t work = 0;
    const stw_status code =
        ops_->reduce_scatter(collective_, whole, shard, shard_elements, dtype, nullptr, &work);
    const uint64_t bytes = shard_elements * (stw_dtype_bits(dtype) / 8) * size_;
    return finish(code, work, "a reduce-scatter", bytes);
}

Status Group::all_reduce(void *data, uint64_t elements, uint32_t dtype)
{
    if (!broken_.ok()) return broken_;
    if (elements == 0) return {};
    uint64_t work = 0;
    const stw_status code = ops_->all_reduce(collective_, data, elements, dtype, nullptr, &work);
    return finish(code, work, "an all-reduce", 2 * elements * (stw_dtype_bits(dtype) / 8));
}

Status Group::register_memory(void *base, uint64_t bytes)
{
    if ((ops_->capabilities & STW_COLLECTIVE_CAN_REGISTER) == 0) {
        return Status::error(STW_ERROR_UNSUPPORTED, "'%s' registers no memory", ops_->name);
    }
    stw_driver_error error = STW_DRIVER_ERROR_INIT;
    const stw_status code = ops_->register_memory(collective_, base, bytes, &error);
    if (code == STW_OK) return {};
    return Status::error(code, "'%s' works on memory that is not registered: %s", ops_->name,
                         error.sentence[0] ? error.sentence : stw_status_string(code));
}

void Group::unregister_memory(void *base)
{
    ops_->unregister_memory(collective_, base);
}

Result<std::unique_ptr<Group>> Group::split(int32_t colour, uint32_t key)
{
    if (!broken_.ok()) return Status(broken_);
    if ((ops_->capabilities & STW_COLLECTIVE_CAN_SPLIT) == 0) {
        return Status::error(STW_ERROR_UNSUPPORTED,
                             "a group over '%s' cannot be split; split the program's own group, "
                             "and create one of each part",
                             ops_->name);
    }
    stw_driver_error error = STW_DRIVER_ERROR_INIT;
    stw_collective *part = nullptr;
    const stw_status code = ops_->split(collective_, colour, key, timeout_ns_, &part, &error);
    if (code != STW_OK) {
        return broke(Status::error(code, "a group over '%s' was not split: %s", ops_->name,
                                   error.sentence[0] ? error.sentence : stw_status_string(code)));
    }
    if (!part) return Result<std::unique_ptr<Group>>(nullptr);
    return open(ops_, part, timeout_ns_, caller_thread_);
}

GroupTotals Group::totals() const
{
    GroupTotals totals;
    totals.collectives = collectives_.load(std::memory_order_relaxed);
    totals.bytes = bytes_.load(std::memory_order_relaxed);
    totals.busy_ns = busy_ns_.load(std::memory_order_relaxed);
    totals.errors = errors_.load(std::memory_order_relaxed);
    return totals;
}

}  // namespace stepwell::collective
