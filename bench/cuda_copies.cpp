// SPDX-License-Identifier: Apache-2.0
// cuda.h2d, cuda.d2h, cuda.both: tensors fetched to a GPU and evicted from it, beside plain copies
// of the same bytes in the same pieces from pinned memory, in turns. cuda.fetch_hit: the time of
// the host for a fetch that finds its bytes there, and the calls of CUDA's driver in it. cuda.nvme:
// tensors from a drive to the GPU, beside the same to the host tier. cuda.remap: tensors with fixed
// addresses that have to be mapped each time they come, beside those without, and the processor
// time of the thread that fetches one; cuda.remap.2m: with handles of 2 MiB.
//
// usage: cuda_copies --module FILE [--mode copies|hit|remap|nvme] [--bytes N] [--size-max N]
//                    [--rounds N] [--hits N] [--dir DIR] [--json FILE]
#include "cuda_calls.h"
#include "cuda_drive.h"
#include "cuda_results.h"
#include "measure.h"
#include "tests/cuda/driver_calls.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <ctime>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

using bench::in_turn;
using bench::must;
using bench::now_s;
using stepwell::gpu::Address;
using stepwell::gpu::DriverCalls;

constexpr double kCopyWanted = 0.97;
constexpr double kSmallCopyWanted = 0.9;
constexpr uint64_t kSmallBytes = uint64_t{64} << 10;
constexpr double kNvmeWanted = 0.95;
constexpr double kHitNsWanted = 300;
constexpr double kRemapWanted = 1 / 1.1;  // a tenth of its copies in all
constexpr double kRemapNsWanted = 50'000;

struct Setup {
    std::string module;
    std::string directory;
    uint64_t bytes = 0;  // moved in one measurement
    uint64_t size_max = 0;
    uint64_t rounds = 0;
    uint64_t hits = 0;  // of a round
};

class Stream {
public:
    // The runtime that knows it, if there is one.
    explicit Stream(const DriverCalls &calls, stw_runtime *runtime = nullptr)
        : calls_(calls), runtime_(runtime)
    {
        calls_.must(calls_.stream_create(&handle_, 1), "cuStreamCreate");
    }
    ~Stream()
    {
        if (runtime_ != nullptr) must(stw_stream_forget(runtime_, handle_), "stw_stream_forget");
        calls_.stream_destroy(handle_);
    }
    Stream(const Stream &) = delete;
    Stream &operator=(const Stream &) = delete;
    void *get() const { return handle_; }
    void wait() const { calls_.must(calls_.stream_synchronize(handle_), "cuStreamSynchronize"); }

private:
    const DriverCalls &calls_;
    stw_runtime *runtime_;
    void *handle_ = nullptr;
};

// ------------------------------------------------------------------------------- the reference --

// Pinned memory and device memory of the same size, copied in pieces, one call each.
class Plain {
public:
    Plain(const DriverCalls &calls, uint64_t bytes, uint64_t piece)
        : calls_(calls), bytes_(bytes), piece_(piece), stream_(calls)
    {
        calls_.must(calls_.host_alloc(&host_, bytes, 0), "cuMemHostAlloc");
        calls_.must(calls_.memory_alloc(&device_, bytes), "cuMemAlloc");
    }
    ~Plain()
    {
        calls_.memory_free(device_);
        calls_.host_free(host_);
    }
    Plain(const Plain &) = delete;
    Plain &operator=(const Plain &) = delete;

    double up() const
    {
        return timed([&](uint64_t at) {
            return calls_.copy_to_device(device_ + at, host(at), piece_, stream_.get());
        });
    }
    double down() const
    {
        return timed([&](uint64_t at) {
            return calls_.copy_to_host(host(at), device_ + at, piece_, stream_.get());
        });
    }

private:
    char *host(uint64_t at) const { return static_cast<char *>(host_) + at; }
    template <class Copy> double timed(Copy &&copy) const
    {
        const double begin = now_s();
        for (uint64_t at = 0; at < bytes_; at += piece_) calls_.must(copy(at), "a copy");
        stream_.wait();
        return now_s() - begin;
    }

    const DriverCalls &calls_;
    uint64_t bytes_;
    uint64_t piece_;
    Stream stream_;
    void *host_ = nullptr;
    Address device_ = 0;
};

// -------------------------------------------------------------------------------------- ours --

// Tensors of one size that rest in the host tier.
class Tensors {
public:
    Tensors(const DriverCalls &calls, stw_runtime *runtime, uint64_t bytes, uint64_t piece)
        : calls_(calls), runtime_(runtime), stream_(calls, runtime)
    {
        for (uint64_t at = 0; at < bytes; at += piece)
            tensors_.push_back(bench::create_tensor(runtime, nullptr, STW_ROLE_PARAM,
                                                    piece / sizeof(float), STW_TIER_HOST));
        views_.resize(tensors_.size());
        write();
        down();
    }
    ~Tensors() { must(stw_tensor_destroy(tensors_.data(), count()), "stw_tensor_destroy"); }
    Tensors(const Tensors &) = delete;
    Tensors &operator=(const Tensors &) = delete;

    // Seconds until all bytes are there, for work on the stream.
    double up()
    {
        const double begin = now_s();
        fetch(STW_READ);
        stream_.wait();
        const double seconds = now_s() - begin;
        release();
        return seconds;
    }
    // Each tensor gets a number of its own, on the device.
    void write()
    {
        ++pass_;
        fetch(STW_WRITE);
        for (uint32_t i = 0; i < count(); ++i)
            calls_.must(calls_.fill(reinterpret_cast<Address>(views_[i].pointer), stamp(i),
                                    views_[i].bytes / sizeof(uint32_t), stream_.get()),
                        "cuMemsetD32Async");
        stream_.wait();
        release();
    }
    // Seconds until nothing of it is on the device.
    double down()
    {
        const double begin = now_s();
        must(stw_evict(runtime_, tensors_.data(), count(), STW_TIER_DEVICE, 0, 0), "stw_evict");
        return now_s() - begin;
    }
    // A wrong copy must not pass for a fast one.
    void check() const
    {
        for (uint32_t i = 0; i < count(); ++i) {
            stw_view view;
            const auto request = bench::request_of(tensors_[i], STW_READ, STW_TIER_HOST);
            must(stw_fetch(runtime_, nullptr, &request, 1, &view), "stw_fetch");
            const auto *words = static_cast<const uint32_t *>(view.pointer);
            const uint64_t last = view.bytes / sizeof(uint32_t) - 1;
            if (words[0] != stamp(i) || words[last / 2] != stamp(i) || words[last] != stamp(i))
                bench::give_up("other bytes came back than were written");
            must(stw_release(&view, 1, STW_STREAM_HOST, 0), "stw_release");
        }
    }

private:
    uint32_t count() const { return static_cast<uint32_t>(tensors_.size()); }
    uint32_t stamp(uint32_t index) const { return (pass_ << 20) ^ index; }
    void fetch(uint32_t access)
    {
        stw_fetch_options options = STW_FETCH_OPTIONS_INIT;
        options.stream = stream_.get();
        std::vector<stw_fetch_request> requests;
        requests.reserve(tensors_.size());
        for (stw_tensor *tensor : tensors_)
            requests.push_back(bench::request_of(tensor, access, STW_TIER_DEVICE));
        must(stw_fetch(runtime_, &options, requests.data(), count(), views_.data()), "stw_fetch");
    }
    void release() { must(stw_release(views_.data(), count(), stream_.get(), 0), "stw_release"); }

    const DriverCalls &calls_;
    stw_runtime *runtime_;
    Stream stream_;
    uint32_t pass_ = 0;
    std::vector<stw_tensor *> tensors_;
    std::vector<stw_view> views_;
};

// Seconds of both at once, on a thread each.
template <class Up, class Down>
double at_once(const DriverCalls &calls, const Up &up, const Down &down)
{
    const double begin = now_s();
    std::thread other([&] {
        calls.use_here();
        up();
    });
    down();
    other.join();
    return now_s() - begin;
}

void measure_size(const DriverCalls &calls, const Setup &setup, uint64_t piece,
                  const std::string &name, bench::Results *results)
{
    const uint64_t bytes = std::max(setup.bytes, piece);
    bench::Budgets budgets;
    budgets.device_driver = setup.module;
    budgets.device_bytes = 2 * bytes + (uint64_t{64} << 20);
    budgets.host_bytes = budgets.device_bytes + (uint64_t{64} << 20);
    stw_runtime *runtime = bench::open_runtime(budgets);
    std::vector<bench::Pair> h2d, d2h, both;
    {
        Tensors one(calls, runtime, bytes, piece);
        Tensors other(calls, runtime, bytes, piece);
        const Plain plain(calls, bytes, piece);
        const Plain other_plain(calls, bytes, piece);
        for (uint64_t i = 0; i <= setup.rounds; ++i) {
            h2d.push_back(in_turn(
                i, [&] { return one.up(); }, [&] { return plain.up(); }));
            one.write();
            d2h.push_back(in_turn(
                i, [&] { return one.down(); }, [&] { return plain.down(); }));
            one.check();
            other.write();
            both.push_back(in_turn(
                i,
                [&] {
                    return at_once(
                        calls, [&] { one.up(); }, [&] { other.down(); });
                },
                [&] {
                    return at_once(
                        calls, [&] { plain.up(); }, [&] { other_plain.down(); });
                }));
            other.check();
            one.down();
            if (i == 0) h2d.clear(), d2h.clear(), both.clear();  // the first one warms up
        }
    }
    bench::close_runtime(runtime);
    const double wanted = piece > kSmallBytes ? kCopyWanted : kSmallCopyWanted;
    results->rate("cuda.h2d." + name, bytes, "cuMemcpyHtoDAsync", wanted, h2d);
    results->rate("cuda.d2h." + name, bytes, "cuMemcpyDtoHAsync", wanted, d2h);
    results->rate("cuda.both." + name, 2 * bytes, "both of them", wanted, both);
}

void measure_copies(const DriverCalls &calls, const Setup &setup, bench::Results *results)
{
    const struct {
        const char *name;
        uint64_t bytes;
    } sizes[] = {{"2m", uint64_t{2} << 20},
                 {"16m", uint64_t{16} << 20},
                 {"256m", uint64_t{256} << 20},
                 {"64k", kSmallBytes}};
    for (const auto &size : sizes)
        if (size.bytes <= setup.size_max)
            measure_size(calls, setup, size.bytes, size.name, results);
}

// --------------------------------------------------------------------------------------- hits --

void measure_hit(const DriverCalls &calls, const Setup &setup, bench::Results *results)
{
    bench::Budgets budgets;
    budgets.device_driver = setup.module;
    budgets.device_bytes = uint64_t{64} << 20;
    budgets.host_bytes = uint64_t{64} << 20;
    stw_runtime *runtime = bench::open_runtime(budgets);
    stw_tensor *tensor =
        bench::create_tensor(runtime, "hit", STW_ROLE_PARAM, 1024, STW_TIER_DEVICE);
    std::vector<double> ns;
    uint64_t called = 0;
    {
        const Stream stream(calls, runtime);
        stw_fetch_options options = STW_FETCH_OPTIONS_INIT;
        options.stream = stream.get();
        auto request = bench::request_of(tensor, STW_WRITE, STW_TIER_DEVICE);
        stw_view view;
        must(stw_fetch(runtime, &options, &request, 1, &view), "stw_fetch");
        must(stw_release(&view, 1, stream.get(), 0), "stw_release");
        request.access = STW_READ;
        for (uint64_t round = 0; round <= setup.rounds; ++round) {
            const uint64_t before = bench::cuda_calls();
            const double begin = now_s();
            for (uint64_t i = 0; i < setup.hits; ++i) {
                must(stw_fetch(runtime, &options, &request, 1, &view), "stw_fetch");
                must(stw_release(&view, 1, stream.get(), 0), "stw_release");
            }
            if (round == 0) continue;
            ns.push_back((now_s() - begin) * 1e9 / static_cast<double>(setup.hits));
            called += bench::cuda_calls() - before;
        }
    }
    must(stw_tensor_destroy(&tensor, 1), "stw_tensor_destroy");
    bench::close_runtime(runtime);
    results->time("cuda.fetch_hit", ns, kHitNsWanted, called);
}

// -------------------------------------------------------------------------------------- remap --

// Two tensors that change places each time they come: with fixed addresses each has to be mapped
// anew. Seconds for both to come and go; thread_ns: the processor time of a fetch.
class Places {
public:
    Places(stw_runtime *runtime, uint64_t bytes, uint32_t flags) : runtime_(runtime)
    {
        stw_tensor_spec spec = STW_TENSOR_SPEC_INIT;
        stw_policy policy = STW_POLICY_INIT;
        policy.home = STW_TIER_HOST;
        spec.flags = flags;
        spec.role = STW_ROLE_PARAM;
        spec.dtype = STW_F32;
        spec.dimensions = 1;
        spec.shape[0] = bytes / sizeof(float);
        spec.policy = &policy;
        for (stw_tensor *&tensor : tensors_)
            must(stw_tensor_create(runtime, &spec, 1, &tensor), "stw_tensor_create");
        const std::vector<float> ones(spec.shape[0], 1.0F);
        for (stw_tensor *tensor : tensors_)
            must(stw_tensor_write(tensor, ones.data(), nullptr), "stw_tensor_write");
    }
    ~Places() { must(stw_tensor_destroy(tensors_, 2), "stw_tensor_destroy"); }
    Places(const Places &) = delete;
    Places &operator=(const Places &) = delete;

    double come_and_go(const Stream &stream, double *thread_ns)
    {
        std::swap(tensors_[0], tensors_[1]);
        stw_fetch_options options = STW_FETCH_OPTIONS_INIT;
        options.stream = stream.get();
        const double begin = now_s();
        *thread_ns = 0;
        for (stw_tensor *tensor : tensors_) {
            const auto request = bench::request_of(tensor, STW_READ, STW_TIER_DEVICE);
            stw_view view;
            const double cpu_begin = thread_s();
            must(stw_fetch(runtime_, &options, &request, 1, &view), "stw_fetch");
            *thread_ns += (thread_s() - cpu_begin) * 1e9 / 2;
            must(stw_release(&view, 1, stream.get(), 0), "stw_release");
        }
        stream.wait();
        must(stw_evict(runtime_, tensors_, 2, STW_TIER_DEVICE, 0, 0), "stw_evict");
        return now_s() - begin;
    }

private:
    static double thread_s()
    {
        timespec time{};
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
        return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
    }
    stw_runtime *runtime_;
    stw_tensor *tensors_[2] = {};
};

void measure_remap_in(const char *arena, const std::string &name, const DriverCalls &calls,
                      const Setup &setup, bench::Results *results)
{
    const uint64_t bytes = std::min(uint64_t{64} << 20, setup.size_max);
    bench::Budgets budgets;
    budgets.device_driver = setup.module;
    budgets.device_driver_options = arena;
    budgets.device_bytes = 2 * bytes;
    budgets.host_bytes = 4 * bytes + (uint64_t{64} << 20);
    stw_runtime *runtime = bench::open_runtime(budgets);
    std::vector<double> ns;
    std::vector<bench::Pair> pairs;
    {
        const Stream stream(calls, runtime);
        Places fixed(runtime, bytes, STW_TENSOR_FIXED_ADDRESS);
        Places plain(runtime, bytes, 0);
        for (uint64_t i = 0; i <= setup.rounds; ++i) {
            double fixed_ns = 0;
            double plain_ns = 0;
            const bench::Pair pair = in_turn(
                i, [&] { return fixed.come_and_go(stream, &fixed_ns); },
                [&] { return plain.come_and_go(stream, &plain_ns); });
            if (i == 0) continue;  // the first one warms up
            pairs.push_back(pair);
            ns.push_back(fixed_ns);
        }
    }
    bench::close_runtime(runtime);
    results->rate(name, 2 * bytes, "the same without fixed addresses", kRemapWanted, pairs);
    results->time(name + ".thread", ns, kRemapNsWanted, 0);
}

// With handles as large as they get, and with those of an arena that can shrink.
void measure_remap(const DriverCalls &calls, const Setup &setup, bench::Results *results)
{
    measure_remap_in("arena=permanent", "cuda.remap", calls, setup, results);
    measure_remap_in("arena=shrinks", "cuda.remap.2m", calls, setup, results);
}

// --------------------------------------------------------------------------------------- nvme --

void measure_nvme(const DriverCalls &calls, const Setup &setup, bench::Results *results)
{
    const uint64_t piece = std::min(uint64_t{32} << 20, setup.size_max);
    bench::Drive drive(calls, {setup.module, setup.directory, setup.bytes, piece});
    std::vector<bench::Pair> pairs;
    for (uint64_t i = 0; i < setup.rounds; ++i)
        pairs.push_back(in_turn(
            i, [&] { return drive.read(STW_TIER_DEVICE); },
            [&] { return drive.read(STW_TIER_HOST); }));
    results->rate("cuda.nvme", drive.bytes(), "the same to the host tier", kNvmeWanted, pairs);
}

}  // namespace

int main(int argc, char **argv)
{
    const bench::Arguments arguments(argc, argv);
    Setup setup;
    setup.module = arguments.text("module", "");
    setup.directory = arguments.text("dir", ".");
    setup.bytes = arguments.number("bytes", uint64_t{1} << 30);
    setup.size_max = arguments.number("size-max", uint64_t{256} << 20);
    setup.rounds = arguments.number("rounds", 7);
    setup.hits = arguments.number("hits", 500'000);
    const std::string mode = arguments.text("mode", "copies");
    if (setup.module.empty()) bench::give_up("--module FILE names libstepwell-cuda.so");

    const DriverCalls calls = stepwell::gpu::open_driver();
    bench::Results results(arguments.text("json", ""));
    if (mode == "copies")
        measure_copies(calls, setup, &results);
    else if (mode == "hit")
        measure_hit(calls, setup, &results);
    else if (mode == "remap")
        measure_remap(calls, setup, &results);
    else if (mode == "nvme")
        measure_nvme(calls, setup, &results);
    else
        bench::give_up("no such mode: " + mode);
    stepwell::gpu::close_driver(calls);
    return 0;
}
