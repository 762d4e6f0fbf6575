// SPDX-License-Identifier: Apache-2.0
// The probe: a quarter of the time fills a part of the file, since first writes are slow ones; the
// rest goes in equal slices to every setting, both directions in turn, twice over: what disturbs
// the machine for a moment does not decide alone.
#include "lib/store/probe.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <cinttypes>
#include <memory>

namespace stepwell::store {

namespace {

constexpr uint64_t kProbeBufferBytes = 8 << 20;  // all requests share it: nobody looks at the bytes
constexpr uint64_t kRegionBytesMax = 256 << 20;
constexpr uint64_t kRegionBytesMin = 16 << 20;
constexpr uint64_t kRequestBytes[] = {512 << 10, 1 << 20, 2 << 20};
constexpr uint32_t kDepths[] = {4, 16, 32};
constexpr uint32_t kRounds = 2;
constexpr uint32_t kDepthMax = 32;
constexpr Requests kUsual = {2 << 20, 16};
constexpr uint64_t kNearlyBest = 80;  // of 100: so short a look is not to be trusted with less
constexpr uint64_t kPatienceNs = 30'000'000'000;
constexpr uint64_t kProbePollNs = 100'000'000;
constexpr uint64_t kSecondNs = 1'000'000'000;

struct Sample {
    uint64_t bytes = 0;
    uint64_t ns = 0;
    [[nodiscard]] uint64_t rate() const
    {
        return ns == 0 ? 0
                       : static_cast<uint64_t>(static_cast<double>(bytes) *
                                               static_cast<double>(kSecondNs) /
                                               static_cast<double>(ns));
    }
};

// A setting, with what it did so far.
struct Point {
    Requests requests;
    Sample reads;
    Sample writes;
};

class Probe {
public:
    Probe(const Store &store, uint32_t path, const stw_services &services)
        : ops_(store.ops(path)),
          storage_(store.storage(path)),
          services_(services),
          name_(store.name(path)),
          block_bytes_(store.block_bytes()),
          depth_(std::min(store.info(path).queue_depth, kDepthMax)),
          region_bytes_(std::min(store.superblock(path).slots * block_bytes_, kRegionBytesMax))
    {
    }
    Probe(const Probe &) = delete;
    Probe &operator=(const Probe &) = delete;
    ~Probe()
    {
        // What is still with the device keeps its memory.
        if (buffer_ && in_flight_ == 0) munmap(buffer_, kProbeBufferBytes);
    }

    Result<Probed> run(uint64_t time_ns)
    {
        STW_TRY(take_buffer());
        const uint64_t until_ns = now() + time_ns;
        STW_TRY(fill(now() + time_ns / 4));
        std::vector<Point> points = settings();
        const uint64_t slices = 2 * kRounds * points.size();
        const uint64_t left_ns = until_ns - std::min(until_ns, now());
        for (uint32_t round = 0; round < kRounds; ++round) {
            for (Point &point : points) {
                STW_TRY(stream(STW_IO_READ, point.requests, left_ns / slices, point.reads));
                STW_TRY(stream(STW_IO_WRITE, point.requests, left_ns / slices, point.writes));
            }
        }
        const Point &reads = best(points, &Point::reads);
        const Point &writes = best(points, &Point::writes);
        return Probed{reads.requests, writes.requests, reads.reads.rate(), writes.writes.rate()};
    }

private:
    [[nodiscard]] uint64_t now() const { return services_.now_ns(services_.user); }

    Status take_buffer()
    {
        void *memory = mmap(nullptr, kProbeBufferBytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) {
            return Status::error(STW_ERROR_MEMORY, "no %s of memory to probe '%s' with",
                                 bytes_text(kProbeBufferBytes).c_str(), name_.c_str());
        }
        buffer_ = static_cast<uint8_t *>(memory);
        // Like the tiers' memory: some drives read into small pages at a third of the speed, and
        // would be given the settings best for those. Where it is refused, small pages will do.
        (void)madvise(memory, kProbeBufferBytes, MADV_HUGEPAGE);
        // Zeros are what some devices do not store at all.
        uint64_t word = 0x9e3779b97f4a7c15;
        for (uint64_t at = 0; at < kProbeBufferBytes; at += sizeof word) {
            word ^= word << 13, word ^= word >> 7, word ^= word << 17;
            __builtin_memcpy(buffer_ + at, &word, sizeof word);
        }
        return {};
    }

    [[nodiscard]] std::vector<Point> settings() const
    {
        std::vector<Point> points;
        for (const uint64_t wanted : kRequestBytes) {
            const uint64_t bytes = std::min(wanted, block_bytes_);
            for (const uint32_t depth : kDepths) {
                const Requests one = {bytes, std::min(depth, depth_)};
                const bool known = std::any_of(points.begin(), points.end(), [&](const Point &at) {
                    return at.requests.bytes == one.bytes && at.requests.depth == one.depth;
                });
                if (!known) points.push_back({one, {}, {}});
            }
        }
        return points;
    }

    // From here on the region is what was written.
    Status fill(uint64_t until_ns)
    {
        const Requests small = {std::min<uint64_t>(1 << 20, block_bytes_), std::min(8u, depth_)};
        const uint64_t wanted = region_bytes_;
        Sample sample;
        at_ = 0;
        const uint64_t begin_ns = now();
        STW_TRY(
            stream(STW_IO_WRITE, small, until_ns - std::min(until_ns, begin_ns), sample, wanted));
        const uint64_t unit = std::min(kRequestBytes[2], block_bytes_);
        region_bytes_ = std::min(wanted, sample.bytes) / unit * unit;
        if (region_bytes_ >= std::max(kRegionBytesMin, unit)) return {};
        return Status::error(STW_ERROR_LIMIT,
                             "'%s' took %s in %" PRIu64 " ms; that is too little to tell one "
                             "setting from another",
                             name_.c_str(), bytes_text(sample.bytes).c_str(),
                             sample.ns / 1'000'000);
    }

    // For that long, or that many bytes; adds to the sample. Nothing is in flight afterwards, but
    // for a device that does not answer.
    Status stream(uint32_t kind, const Requests &requests, uint64_t time_ns, Sample &sample,
                  uint64_t bytes_most = UINT64_MAX)
    {
        const uint64_t begin_ns = now();
        uint64_t asked = 0;
        Status status;
        bool ends = false;
        while (!ends || in_flight_ > 0) {
            while (!ends && in_flight_ < requests.depth) {
                bool taken = false;
                status = send(kind, requests.bytes, &taken);
                ends = !status.ok() || (asked += requests.bytes) >= bytes_most;
                if (!taken) break;
            }
            Status answered = collect(requests.bytes, sample);
            if (status.ok()) status = std::move(answered);
            const uint64_t passed_ns = now() - begin_ns;
            ends = ends || !status.ok() || passed_ns >= time_ns;
            if (passed_ns > time_ns + kPatienceNs) {
                return Status::error(STW_ERROR_TIMEOUT, "'%s' left %u requests unanswered",
                                     name_.c_str(), in_flight_);
            }
        }
        sample.ns += now() - begin_ns;
        return status;
    }

    Status send(uint32_t kind, uint64_t bytes, bool *taken_out)
    {
        if (at_ + bytes > region_bytes_) at_ = 0;
        stw_io io{};
        io.tag = (number_ << 32) | kProbeTag;
        io.data = buffer_ + number_ % (kProbeBufferBytes / bytes) * bytes;
        io.offset_bytes = kReservedBytes + at_;
        io.bytes = bytes;
        io.kind = kind;
        uint32_t accepted = 0;
        const stw_status code = ops_.submit(storage_, &io, 1, &accepted);
        if (code < 0) {
            return Status::error(code, "'%s' refused a request of %s", name_.c_str(),
                                 bytes_text(bytes).c_str());
        }
        *taken_out = accepted == 1;
        if (!*taken_out) return {};
        ++number_;
        ++in_flight_;
        at_ += bytes;
        return {};
    }

    Status collect(uint64_t request_bytes, Sample &sample)
    {
        std::array<stw_io_done, kDepthMax> done{};
        const uint32_t n = ops_.poll(storage_, done.data(), kDepthMax, kProbePollNs);
        Status status;
        for (uint32_t i = 0; i < n; ++i) {
            --in_flight_;
            const int64_t result = done[i].result;
            if (result == static_cast<int64_t>(request_bytes)) {
                sample.bytes += request_bytes;
            } else if (status.ok()) {
                status = failed(request_bytes, result);
            }
        }
        return status;
    }

    [[nodiscard]] Status failed(uint64_t request_bytes, int64_t result) const
    {
        if (result < 0) {
            return Status::os_error(STW_ERROR_IO, static_cast<int>(-result),
                                    "a request of %s to '%s' failed",
                                    bytes_text(request_bytes).c_str(), name_.c_str());
        }
        return Status::error(STW_ERROR_IO, "a request of %s to '%s' moved %" PRId64 " bytes",
                             bytes_text(request_bytes).c_str(), name_.c_str(), result);
    }

    // The fastest; the usual one where it is nearly as fast: no reason to leave it.
    [[nodiscard]] const Point &best(const std::vector<Point> &points, Sample Point::*side) const
    {
        const Point *best = &points.front();
        for (const Point &point : points) {
            if ((point.*side).rate() > (best->*side).rate()) best = &point;
        }
        for (const Point &point : points) {
            const bool usual = point.requests.bytes == std::min(kUsual.bytes, block_bytes_) &&
                               point.requests.depth == std::min(kUsual.depth, depth_);
            if (!usual) continue;
            if ((point.*side).rate() >= (best->*side).rate() / 100 * kNearlyBest) return point;
        }
        return *best;
    }

    const stw_storage_ops &ops_;
    stw_storage *storage_;
    const stw_services &services_;
    const std::string &name_;
    const uint64_t block_bytes_;
    const uint32_t depth_;
    uint64_t region_bytes_;
    uint8_t *buffer_ = nullptr;
    uint64_t at_ = 0;      // in the region
    uint64_t number_ = 0;  // of the next request
    uint32_t in_flight_ = 0;
};

}  // namespace

Result<Probed> probe(const Store &store, uint32_t path, const stw_services &services,
                     uint64_t time_ns)
{
    return Probe(store, path, services).run(time_ns);
}

}  // namespace stepwell::store
