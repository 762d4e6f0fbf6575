// SPDX-License-Identifier: Apache-2.0
// The transfer engine: takes one-block jobs from the shell, moves the bytes on threads of its own
// (one per storage path, one that copies, two for each direction of a device with streams) and
// reports each job exactly once. It owns the order of queued work, retries, short counts, checksums
// in time, and the two staging rings. Must not know tensors, budgets or the callers that wait for a
// job; pointers are resolved by the caller.
#pragma once

#include <stepwell/driver.h>

#include "lib/residency/types.h"
#include "lib/store/store.h"
#include "lib/support/status.h"
#include "lib/transfer/copy_ordering.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace stepwell::memory {
class AddressAlias;
}  // namespace stepwell::memory

namespace stepwell::transfer {

constexpr uint32_t kNvme = UINT32_MAX;   // as from_memory or to_memory
constexpr uint32_t kNoMap = UINT32_MAX;  // as map_block
constexpr uint32_t kJobsMax = 1u << 20;  // EngineOptions::jobs_max at most
constexpr uint32_t kCopyThreadsMax = 16;
constexpr uint32_t kMemoriesMax = residency::kPlacesMax;

// The numbers of STW_LINK_*. A job through staging counts on both of its links.
enum class Link : uint8_t {
    kNone = 0,  // zeros, maps, copies inside one tier
    kNvmeToHost = 1,
    kHostToNvme = 2,
    kHostToDevice = 3,
    kDeviceToHost = 4,
    kNvmeToDevice = 5,
    kDeviceToNvme = 6,
};
constexpr uint32_t kLinks = 7;

struct Job {
    residency::Transfer transfer;
    uint32_t from_memory = kNvme;  // index into EngineOptions::memories, or kNvme
    uint32_t to_memory = kNvme;    // ignored if the kind of transfer has no such side
    // Resolved addresses of the block: block_bytes long and block aligned in cpu_access memories.
    // For a place that maps, the tensor's own address. Unused for nvme.
    void *from_pointer = nullptr;
    void *to_pointer = nullptr;
    // Arena block of to_memory that is mapped to to_pointer before anything else; kNoMap: none.
    uint32_t map_block = kNoMap;
    // For CopyOrdering::map_alias; null: the tensor has no address of its own there.
    memory::AddressAlias *alias = nullptr;
    uint32_t alias_block = 0;
};

struct Completion {
    residency::TransferId id = 0;
    Status status;  // the caller adds the tensor's name to its sentence
};

// One hop of one job, as the timeline shows it.
struct Span {
    uint64_t start_ns = 0;
    uint64_t end_ns = 0;
    Link link = Link::kNone;
    uint32_t memory = kNvme;  // the memory side: of a copy the device, if there is one
    residency::BlockId block = residency::kNone;
    residency::TensorId tensor = residency::kNone;  // the block's first
    uint64_t bytes = 0;
    residency::Class urgency = residency::Class::kIdle;
};

// Totals since open; the fields of stw_link_stats.
struct LinkStats {
    uint64_t bytes = 0;
    uint64_t transfers = 0;
    uint64_t busy_ns = 0;  // with at least one hop in flight
    uint64_t measured_bytes_per_s = 0;
    uint64_t errors = 0;   // hops that failed for good
    uint64_t retries = 0;  // requests sent again after an error, blocks read again after a mismatch
};

struct Memory {
    const stw_memory_ops *ops = nullptr;  // borrowed until the engine is gone
    stw_memory *memory = nullptr;
    residency::Tier tier = residency::Tier::kHost;
    bool cpu_access = false;  // storage reads into it and writes from it directly
    std::string name;         // for sentences: "host", "device 0"
    // With STW_MEMORY_STREAMS: storage accesses it as well, after CopyOrdering::await; the driver
    // still makes the copies.
    bool direct = false;

    [[nodiscard]] bool storage_reaches() const { return cpu_access || direct; }
    // Copies between it and the host are enqueued.
    [[nodiscard]] bool has_streams() const
    {
        return !cpu_access && (ops->capabilities & STW_MEMORY_STREAMS) != 0;
    }
};

struct EngineOptions {
    const stw_services *services = nullptr;  // borrowed until the engine is gone
    std::unique_ptr<store::Store> store;     // null: no nvme tier
    std::vector<Memory> memories;            // kMemoriesMax at most
    uint64_t block_bytes = 0;

    // Two rings of whole blocks one after the other, first for reads, then for writes. Needed only
    // if blocks move between nvme and a memory that storage cannot access; then at least 2 blocks
    // each. CPU memory of the host budget, aligned to a block; borrowed until the engine is gone.
    void *staging = nullptr;
    uint32_t staging_read_blocks = 0;
    uint32_t staging_write_blocks = 0;

    uint32_t copy_threads = 1;  // of copies that are waited for
    uint32_t retries_max = 2;   // of one request after errors
    // The most bytes of one request to storage, if the store's path has no figure; 0: 1 MiB. Never
    // more than a block.
    uint64_t io_bytes = 0;
    uint32_t jobs_reserved = 1024;  // preallocated; beyond it submit allocates
    uint32_t jobs_max = 65536;      // submit refuses more with LIMIT

    // Completions, batched, on engine threads, several threads at once, with no lock held. May call
    // submit and promote, not close. `list` is borrowed for the call; statuses may be moved out.
    void (*done)(void *user, Completion *list, uint32_t n) = nullptr;
    void *done_user = nullptr;
    // Null: no spans. On engine threads, several at once, no lock held. Must not call the engine.
    void (*span)(void *user, const Span &span) = nullptr;
    void *span_user = nullptr;
    // Null: the disks are not shared. Called before a request of `bytes` on a path; false: not yet,
    // the engine asks again soon. `rests`: the path has no request to send. Each byte of a block is
    // asked for once, retries included. On engine threads, with the engine's lock held: they must
    // not block or call the engine. Not called any more after close was called.
    bool (*may_send)(void *user, uint32_t path, uint64_t bytes) = nullptr;
    void (*rests)(void *user, uint32_t path) = nullptr;
    void *share_user = nullptr;
    CopyOrdering *order = nullptr;  // borrowed until the engine is gone; null: no streams

    [[nodiscard]] uint64_t now() const { return services->now_ns(services->user); }
    // Of `memories`: whose links the hops to and from staging count on.
    [[nodiscard]] uint32_t host_memory() const
    {
        uint32_t found = 0;
        for (uint32_t i = 0; i < memories.size(); ++i)
            if (memories[i].tier == residency::Tier::kHost) found = i;
        return found;
    }
};

class Engine {
public:
    // Starts the threads. The store's drivers belong to the engine's threads from here on.
    static Result<std::unique_ptr<Engine>> open(EngineOptions options);
    // Without a close that returned OK, what is in flight is abandoned: callbacks stop before this
    // returns, and the threads free the rest when the last request completes. Memory of these
    // requests must stay until then, which for hung I/O means for ever: close first.
    ~Engine();
    Engine(const Engine &) = delete;
    Engine &operator=(const Engine &) = delete;

    // Queue n jobs, all or none. Ids must differ from all that are in flight. Jobs of one block
    // must not overlap unless both only read it. Errors of a job are reported in its completion.
    // Errors: LIMIT (jobs_max), CLOSED. Any thread. Never blocks on I/O.
    Status submit(const Job *jobs, uint32_t n);
    // Makes it a demand, which overtakes all queued jobs of lower urgency. The device decides the
    // order of requests that it already has. An id that is not in flight is no error. Any thread,
    // never blocks.
    void promote(residency::TransferId id);
    // Jobs that have not begun complete with CLOSED; the others are waited for. TIMEOUT says how
    // many are still in flight; they complete later all the same, and close may be called again.
    // After OK no thread of the engine runs and the store is closed. One thread at a time.
    Status close(uint64_t timeout_ns);

    // The link's bandwidth from another source, used until transfers have measured it. Any thread.
    void expect_bandwidth(Link link, uint32_t memory, uint64_t bytes_per_s);

    // Any thread. `memory` is the memory side: of a copy between host and device, the device.
    [[nodiscard]] LinkStats link_stats(Link link, uint32_t memory) const;
    [[nodiscard]] uint32_t jobs_in_flight() const;
    // One line per job in flight, oldest first, for the text of a timeout.
    [[nodiscard]] std::string describe_in_flight(uint32_t lines_max) const;
    [[nodiscard]] uint64_t metadata_bytes() const;
    // Null without an nvme tier, and after a close that returned OK.
    [[nodiscard]] store::Store *store();

    struct Parts;

private:
    explicit Engine(Parts *parts) : parts_(parts) {}

    Parts *parts_;  // owned; outlives the engine while abandoned requests are in flight
};

}  // namespace stepwell::transfer
