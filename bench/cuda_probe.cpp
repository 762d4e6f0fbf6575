// SPDX-License-Identifier: Apache-2.0
// What the device tier takes for granted of a machine and of the bare driver, with nothing of ours
// in between: what memory costs to touch, to register, to make and to map; what copies of 2 MiB
// lose to their events; and what the driver allows. Figures are as in the other benches; facts are
// lines that begin with "#".
//
// usage: cuda_probe [--mode all|host|alive] [--bytes N] [--rounds N] [--json FILE]
// host: only what needs no GPU. alive: whether the device still does a copy.
// Exit status: 0, 1 a call failed that should not, 2 it could not run, 77 there is no GPU here.
#include "cuda_bare.h"
#include "cuda_results.h"
#include "measure.h"
#include "tests/cuda/driver_calls.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include <sys/mman.h>

namespace {

using bench::Access;
using bench::CopyAttributes;
using bench::Handle;
using bench::in_turn;
using bench::now_s;
using bench::Pair;
using bench::Properties;
using stepwell::gpu::Address;
using stepwell::gpu::DriverCalls;

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kPiece = 2 * kMiB;
constexpr size_t kBatch = 16;
constexpr uint64_t kCalls = 1000;
constexpr unsigned kNoTiming = 2;
constexpr unsigned kBlockingSync = 1;
constexpr int kBatchVersion2 = 13000;

Address of(const void *pointer)
{
    return reinterpret_cast<Address>(pointer);
}

// Fresh memory of the system's, in pages of 4 KiB or, where it allows that, of 2 MiB.
class Fresh {
public:
    Fresh(uint64_t bytes, bool huge) : bytes_(bytes + kPiece)
    {
        void *base =
            mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (base == MAP_FAILED) bench::give_up("the system gives no memory to touch");
        base_ = base;
        data_ = static_cast<char *>(base) + kPiece - of(base) % kPiece;
        madvise(data_, bytes, huge ? MADV_HUGEPAGE : MADV_NOHUGEPAGE);
    }
    ~Fresh() { munmap(base_, bytes_); }
    Fresh(const Fresh &) = delete;
    Fresh &operator=(const Fresh &) = delete;
    char *data() const { return data_; }
    double touch(uint64_t bytes) const
    {
        const double begin = now_s();
        std::memset(data_, 1, bytes);
        return now_s() - begin;
    }

private:
    uint64_t bytes_;
    void *base_ = nullptr;
    char *data_ = nullptr;
};

void touch(uint64_t bytes, bench::Results *results)
{
    for (const bool huge : {false, true}) {
        const Fresh fresh(bytes, huge);
        results->plain(huge ? "probe.touch.2m" : "probe.touch.4k",
                       static_cast<double>(bytes) / fresh.touch(bytes) / 1e9, "GB/s",
                       huge ? 4 : 1.5, bench::Limit::kAtLeast);
    }
}

// What a group of probes leaves with at its first failure; what it holds goes with the process.
struct Stop {};

class Probe {
public:
    Probe(const DriverCalls &calls, uint64_t bytes, uint64_t rounds, bench::Results *results)
        : calls_(calls),
          bare_(bench::open_bare()),
          bytes_(bytes),
          rounds_(rounds),
          results_(*results)
    {
        bare_.driver_version(&version_);
        for (void *&stream : streams_)
            calls_.must(calls_.stream_create(&stream, 1), "cuStreamCreate");
    }
    Probe(const Probe &) = delete;
    Probe &operator=(const Probe &) = delete;

    // After an error that stays with the context no further group begins.
    bool run()
    {
        void (Probe::*const groups[])() = {&Probe::facts,  &Probe::registering, &Probe::mapping,
                                           &Probe::events, &Probe::copies,      &Probe::slabs,
                                           &Probe::reuse};
        bool ok = true;
        for (const auto group : groups) {
            try {
                (this->*group)();
            } catch (const Stop &) {
                ok = false;
                if (bare_.context_synchronize() == 0) continue;
                std::printf("# nothing more is measured: the context is lost\n");
                return false;
            }
        }
        for (void *stream : streams_) calls_.stream_destroy(stream);
        return ok;
    }

private:
    std::string name_of(int error) const
    {
        const char *name = nullptr;
        calls_.error_name(error, &name);
        return (name != nullptr ? name : "error") + (" (" + std::to_string(error) + ")");
    }
    void must(int error, const char *call) const
    {
        if (error == 0) return;
        std::printf("# %s failed: %s\n", call, name_of(error).c_str());
        throw Stop();
    }
    // Microseconds of one of n calls, numbered.
    template <class Call> double each(const char *call, uint64_t n, Call &&one) const
    {
        const double begin = now_s();
        for (uint64_t i = 0; i < n; ++i) must(one(i), call);
        return (now_s() - begin) * 1e6 / static_cast<double>(n);
    }
    void wait() const
    {
        for (void *stream : streams_)
            must(calls_.stream_synchronize(stream), "cuStreamSynchronize");
    }
    void at_most(const std::string &name, double value, const char *unit, double limit)
    {
        results_.plain(name, value, unit, limit, bench::Limit::kAtMost);
    }

    void facts()
    {
        const struct {
            const char *name;
            int number;
        } attributes[] = {{"virtual memory management", 102},
                          {"RDMA of such memory", 110},
                          {"memory pools", 115},
                          {"multicast", 132},
                          {"integrated", 18},
                          {"pageable memory access", 88},
                          {"... by the host's page tables", 100},
                          {"host pointers for registered memory", 91},
                          {"registered memory read-only", 113},
                          {"NUMA node of its own", 130},
                          {"NUMA node of the host", 134},
                          {"copy engines", 40},
                          {"compute capability", 75},
                          {"... minor", 76},
                          {"multiprocessors", 16}};
        size_t free_bytes = 0;
        size_t total_bytes = 0;
        must(bare_.memory_info(&free_bytes, &total_bytes), "cuMemGetInfo");
        std::printf("# driver of CUDA %d.%d, %zu MiB free of %zu\n", version_ / 1000,
                    version_ % 1000 / 10, free_bytes >> 20, total_bytes >> 20);
        for (const auto &attribute : attributes) {
            int value = 0;
            const int error = bare_.attribute(&value, attribute.number, 0);
            std::printf("# %s: %s\n", attribute.name,
                        error == 0 ? std::to_string(value).c_str() : name_of(error).c_str());
        }
    }

    void registering()
    {
        const double per_gib = 1e-3 * (uint64_t{1} << 30) / static_cast<double>(bytes_);
        for (const bool huge : {false, true}) {
            const Fresh fresh(bytes_, huge);
            fresh.touch(bytes_);
            const double taken = each("cuMemHostRegister", 1, [&](uint64_t) {
                return bare_.host_register(fresh.data(), bytes_, 1);
            });
            const double given = each("cuMemHostUnregister", 1, [&](uint64_t) {
                return bare_.host_unregister(fresh.data());
            });
            const std::string pages = huge ? ".2m" : ".4k";
            at_most("probe.register" + pages, taken * per_gib, "ms/GiB", 100);
            at_most("probe.unregister" + pages, given * per_gib, "ms/GiB", 100);
        }
    }

    void mapping()
    {
        size_t granularity = 0;
        const Properties properties;
        if (bare_.granularity == nullptr || bare_.granularity(&granularity, &properties, 0) != 0) {
            std::printf("# memory cannot be mapped here\n");
            return;
        }
        std::printf("# granularity: %zu KiB\n", granularity >> 10);
        const uint64_t span = std::min(bytes_, 64 * kMiB);
        map_in(kPiece, span, ".2m");
        map_in(span, span, ".64m");
    }
    void map_in(uint64_t size, uint64_t span, const std::string &name)
    {
        const Properties properties;
        const Access access;
        const uint64_t n = span / size;
        const bool large = size > kPiece;
        std::vector<Handle> handles(n);
        std::vector<double> maps, accesses, at_once, unmaps;
        Address at = 0;
        must(bare_.reserve(&at, span, 0, 0, 0), "cuMemAddressReserve");
        const double create = each("cuMemCreate", n, [&](uint64_t i) {
            return bare_.create(&handles[i], size, &properties, 0);
        });
        const auto map = [&] {
            return each("cuMemMap", n, [&](uint64_t i) {
                return bare_.map(at + i * size, size, 0, handles[i], 0);
            });
        };
        const auto unmap = [&] {
            return each("cuMemUnmap", n,
                        [&](uint64_t i) { return bare_.unmap(at + i * size, size); });
        };
        for (uint64_t round = 0; round < rounds_; ++round) {
            maps.push_back(map());
            accesses.push_back(each("cuMemSetAccess", n, [&](uint64_t i) {
                return bare_.set_access(at + i * size, size, &access, 1);
            }));
            unmap();
            map();
            at_once.push_back(each("cuMemSetAccess", 1, [&](uint64_t) {
                return bare_.set_access(at, span, &access, 1);
            }));
            // As it is in use: pages that the device has seen.
            must(calls_.fill(at, 1, span / 4, streams_[0]), "cuMemsetD32Async");
            wait();
            unmaps.push_back(unmap());
        }
        for (const Handle handle : handles) bare_.release(handle);
        bare_.unreserve(at, span);
        at_most("probe.create" + name, create, "us", large ? 200 : 40);
        at_most("probe.map" + name, bench::median(maps), "us", 5);
        at_most("probe.access" + name, bench::median(accesses), "us", large ? 100 : 40);
        at_most("probe.unmap" + name, bench::median(unmaps), "us", large ? 100 : 40);
        if (!large) at_most("probe.access.64m_at_once", bench::median(at_once), "us", 200);
    }

    // What each call costs the host; the work itself is nothing.
    void events()
    {
        void *event = nullptr;
        must(bare_.event_create(&event, kNoTiming), "cuEventCreate");
        const auto cost = [&](const char *name, const char *call, auto &&one) {
            at_most(name, each(call, kCalls, [&](uint64_t) { return one(); }), "us", 2);
            wait();
        };
        cost("probe.event.record", "cuEventRecord",
             [&] { return bare_.event_record(event, streams_[0]); });
        cost("probe.event.query", "cuEventQuery", [&] { return bare_.event_query(event); });
        cost("probe.event.wait", "cuStreamWaitEvent",
             [&] { return bare_.stream_wait(streams_[1], event, 0); });
        bare_.event_destroy(event);
    }

    // Pinned memory and the device's, twice: for the other direction at once.
    struct Side {
        void *host = nullptr;
        Address device = 0;
    };
    void copies()
    {
        const uint64_t bytes =
            std::max(std::min(bytes_, 256 * kMiB) / kPiece, uint64_t{1}) * kPiece;
        Side sides[2];
        for (Side &side : sides) {
            must(calls_.host_alloc(&side.host, bytes, 0), "cuMemHostAlloc");
            must(calls_.memory_alloc(&side.device, bytes), "cuMemAlloc");
            std::memset(side.host, 1, bytes);
        }
        large_copies(sides, bytes);
        small_copies(sides[0], bytes);
        for (const Side &side : sides) {
            calls_.memory_free(side.device);
            calls_.host_free(side.host);
        }
    }
    // Seconds until all that was enqueued is done.
    template <class Enqueue> double timed(Enqueue &&enqueue) const
    {
        const double begin = now_s();
        enqueue();
        wait();
        return now_s() - begin;
    }
    void up(const Side &side, uint64_t at, uint64_t bytes) const
    {
        must(calls_.copy_to_device(side.device + at, static_cast<char *>(side.host) + at, bytes,
                                   streams_[0]),
             "cuMemcpyHtoDAsync");
    }
    void down(const Side &side, uint64_t bytes) const
    {
        must(calls_.copy_to_host(side.host, side.device, bytes, streams_[1]), "cuMemcpyDtoHAsync");
    }
    void large_copies(const Side (&sides)[2], uint64_t bytes)
    {
        std::vector<double> ups, downs, inside;
        std::vector<Pair> both;
        for (uint64_t i = 0; i <= rounds_; ++i) {
            ups.push_back(timed([&] { up(sides[0], 0, bytes); }));
            downs.push_back(timed([&] { down(sides[1], bytes); }));
            inside.push_back(timed([&] {
                must(calls_.copy_inside(sides[1].device, sides[0].device, bytes, streams_[0]),
                     "cuMemcpyDtoDAsync");
            }));
            const double one = timed([&] {
                up(sides[0], 0, bytes);
                down(sides[1], bytes);
            });
            both.push_back({one, ups.back() + downs.back()});
            if (i == 0) ups.clear(), downs.clear(), inside.clear(), both.clear();  // warms up
        }
        const auto rate = [&](const char *name, const std::vector<double> &seconds, double limit,
                              double passes) {
            results_.plain(name, passes * static_cast<double>(bytes) / bench::median(seconds) / 1e9,
                           "GB/s", limit, bench::Limit::kAtLeast);
        };
        rate("probe.h2d", ups, 24, 1);
        rate("probe.d2h", downs, 24, 1);
        rate("probe.d2d", inside, 1000, 2);
        results_.rate("probe.both", 2 * bytes, "one after the other", 1.8, both);
    }

    void small_copies(const Side &side, uint64_t bytes)
    {
        const auto in_pieces = [&](const std::string &way, double wanted, auto &&enqueue) {
            std::vector<Pair> pairs;
            for (uint64_t i = 0; i <= rounds_; ++i)
                pairs.push_back(in_turn(
                    i, [&] { return timed(enqueue); },
                    [&] { return timed([&] { up(side, 0, bytes); }); }));
            pairs.erase(pairs.begin());  // the first one warms up
            results_.rate("probe.copy.2m." + way, bytes, "one copy of them all", wanted, pairs);
        };
        in_pieces("plain", 0.95, [&] {
            for (uint64_t at = 0; at < bytes; at += kPiece) up(side, at, kPiece);
        });
        for (const bool blocking : {false, true}) {
            std::vector<void *> events(bytes / kPiece);
            for (void *&event : events)
                must(bare_.event_create(&event, blocking ? kNoTiming | kBlockingSync : kNoTiming),
                     "cuEventCreate");
            in_pieces(blocking ? "blocking" : "event", 0.93, [&] {
                for (uint64_t at = 0; at < bytes; at += kPiece) {
                    up(side, at, kPiece);
                    must(bare_.event_record(events[at / kPiece], streams_[0]), "cuEventRecord");
                }
            });
            for (void *event : events) bare_.event_destroy(event);
        }
        if (version_ >= kBatchVersion2 ? bare_.batch_v2 != nullptr : bare_.batch != nullptr)
            in_pieces("batch", 0.97, [&] { in_batches(side, bytes); });
        else
            std::printf("# this driver has no cuMemcpyBatchAsync\n");
    }
    void in_batches(const Side &side, uint64_t bytes) const
    {
        for (uint64_t at = 0; at < bytes; at += kBatch * kPiece) {
            Address to[kBatch];
            Address from[kBatch];
            size_t sizes[kBatch];
            const size_t n = std::min<size_t>(kBatch, (bytes - at) / kPiece);
            for (size_t i = 0; i < n; ++i) {
                to[i] = side.device + at + i * kPiece;
                from[i] = of(side.host) + at + i * kPiece;
                sizes[i] = kPiece;
            }
            CopyAttributes attributes;
            size_t first = 0;
            size_t failed = 0;
            must(
                version_ >= kBatchVersion2
                    ? bare_.batch_v2(to, from, sizes, n, &attributes, &first, 1, streams_[0])
                    : bare_.batch(to, from, sizes, n, &attributes, &first, 1, &failed, streams_[0]),
                "cuMemcpyBatchAsync");
        }
    }

    // Two registrations side by side, and one copy over their border.
    void slabs()
    {
        const Fresh fresh(2 * kPiece, true);
        fresh.touch(2 * kPiece);
        Address device = 0;
        must(calls_.memory_alloc(&device, kPiece), "cuMemAlloc");
        for (const uint64_t at : {uint64_t{0}, kPiece})
            must(bare_.host_register(fresh.data() + at, kPiece, 1), "cuMemHostRegister");
        const int error =
            calls_.copy_to_device(device, fresh.data() + kPiece / 2, kPiece, streams_[0]);
        std::printf("# a copy over the border of two registrations: %s\n",
                    error == 0 ? "works" : name_of(error).c_str());
        wait();
        for (const uint64_t at : {uint64_t{0}, kPiece})
            must(bare_.host_unregister(fresh.data() + at), "cuMemHostUnregister");
        calls_.memory_free(device);
    }

    void reuse()
    {
        void *handles[2] = {};
        unsigned long long ids[2] = {};
        for (int i = 0; i < 2; ++i) {
            must(calls_.stream_create(&handles[i], 1), "cuStreamCreate");
            if (bare_.stream_id != nullptr)
                must(bare_.stream_id(handles[i], &ids[i]), "cuStreamGetId");
            must(calls_.stream_destroy(handles[i]), "cuStreamDestroy");
        }
        std::printf("# a new stream has the handle of one that was destroyed: %s; its id: %s\n",
                    handles[0] == handles[1] ? "yes" : "no",
                    bare_.stream_id == nullptr ? "this driver has no cuStreamGetId"
                    : ids[0] != ids[1]         ? "another"
                                               : "the same");
    }

    const DriverCalls &calls_;
    const bench::Bare bare_;
    const uint64_t bytes_;
    const uint64_t rounds_;
    bench::Results &results_;
    int version_ = 0;
    void *streams_[2] = {};
};

// The other steps go on if this works.
void copy_once(const DriverCalls &calls)
{
    uint32_t out = 7;
    Address device = 0;
    void *stream = nullptr;
    calls.must(calls.stream_create(&stream, 1), "cuStreamCreate");
    calls.must(calls.memory_alloc(&device, sizeof out), "cuMemAlloc");
    calls.must(calls.fill(device, 42, 1, stream), "cuMemsetD32Async");
    calls.must(calls.copy_to_host(&out, device, sizeof out, stream), "cuMemcpyDtoHAsync");
    calls.must(calls.stream_synchronize(stream), "cuStreamSynchronize");
    if (out != 42) bench::give_up("the device copies other bytes than it was given");
    calls.memory_free(device);
    calls.stream_destroy(stream);
}

}  // namespace

int main(int argc, char **argv)
{
    const bench::Arguments arguments(argc, argv);
    const uint64_t bytes = arguments.number("bytes", uint64_t{1} << 30);
    const uint64_t rounds = arguments.number("rounds", 7);
    const std::string mode = arguments.text("mode", "all");
    bench::Results results(arguments.text("json", ""));
    if (mode == "host") {
        touch(bytes, &results);
        return 0;
    }
    const DriverCalls calls = stepwell::gpu::open_driver();
    bool ok = true;
    if (mode == "alive")
        copy_once(calls);
    else if (mode == "all")
        ok = Probe(calls, bytes, rounds, &results).run();
    else
        bench::give_up("no such mode: " + mode);
    if (ok) stepwell::gpu::close_driver(calls);
    return ok ? 0 : 1;
}
