// SPDX-License-Identifier: Apache-2.0
// The runtime on a GPU: tensors three times the budget of the device, fetched and released on
// several streams, whose fills and copies are the program's work. What must be in each tensor is
// kept on the host and compared to the last byte at the end. It needs the public API and CUDA's
// driver alone, so it is carried to a machine and run there; here it runs on the double.
//
// usage: gpu_check --module FILE [--device-bytes N] [--block-bytes N] [--operations N] [--seed N]
//                  [--nvme DIR]
//        gpu_check --name
// With a directory the host tier holds half of the tensors; --name prints the name of the device.
// Exit status: 0 all bytes are right, 1 some are not, 2 it could not run, 77 there is no GPU here.
#include <stepwell/stepwell.h>

#include "tests/cuda/driver_calls.h"

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <vector>

namespace stepwell::gpu {
namespace {

constexpr uint64_t kSecond = 1'000'000'000;
constexpr size_t kStreams = 4;
constexpr uint64_t kTensorsOverBudget = 3;

struct Options {
    std::string module;
    std::string nvme;
    uint64_t device_bytes = uint64_t{64} << 20;
    uint64_t block_bytes = STW_BLOCK_512K;
    uint64_t operations = 2000;
    uint64_t seed = 1;
};

struct Tensor {
    stw_tensor *handle = nullptr;
    std::vector<uint32_t> wanted;
};

void must(stw_status status, const char *call)
{
    if (status >= STW_OK) return;
    give_up(kCannotRun,
            std::string(call) + ": " + stw_status_string(status) + ": " + stw_last_error());
}

// ------------------------------------------------------------------------------------ program --

class Program {
public:
    Program(const Options &options, const DriverCalls &calls)
        : options_(options), calls_(calls), random_(options.seed)
    {
        for (void *&stream : streams_)
            calls_.must(calls_.stream_create(&stream, 1), "cuStreamCreate");
        open();
        make_tensors();
    }
    ~Program()
    {
        must(stw_runtime_close(runtime_, 0, 0), "stw_runtime_close");
        for (void *stream : streams_) calls_.stream_destroy(stream);
    }
    Program(const Program &) = delete;
    Program &operator=(const Program &) = delete;

    void run()
    {
        for (uint64_t i = 0; i < options_.operations; ++i) {
            switch (random_() % 4) {
            case 0: fill_all(); break;
            case 1: fill_part(); break;
            default: copy(); break;
            }
        }
    }

    // Bytes that are not what they must be, in all tensors.
    uint64_t wrong_bytes()
    {
        uint64_t wrong = 0;
        for (size_t i = 0; i < tensors_.size(); ++i) {
            const Tensor &tensor = tensors_[i];
            std::vector<uint32_t> found(tensor.wanted.size());
            must(stw_tensor_read(tensor.handle, found.data(), nullptr), "stw_tensor_read");
            const uint64_t here = difference(tensor.wanted, found, i);
            wrong += here;
            bytes_ += found.size() * sizeof(uint32_t);
        }
        return wrong;
    }
    uint64_t bytes() const { return bytes_; }
    size_t tensors() const { return tensors_.size(); }

private:
    void open()
    {
        stw_device_options device = STW_DEVICE_OPTIONS_INIT;
        stw_nvme_options nvme = STW_NVME_OPTIONS_INIT;
        stw_runtime_options options = STW_RUNTIME_OPTIONS_INIT;
        const uint64_t all = kTensorsOverBudget * options_.device_bytes;
        device.driver = options_.module.c_str();
        device.budget_bytes = options_.device_bytes;
        nvme.path = options_.nvme.c_str();
        nvme.budget_bytes = 2 * all;
        options.devices = &device, options.device_count = 1;
        options.nvme = &nvme, options.nvme_count = options_.nvme.empty() ? 0 : 1;
        options.host_bytes = options_.nvme.empty() ? 2 * all : all / 2;
        options.block_bytes = static_cast<uint32_t>(options_.block_bytes);
        options.timeout_ns = 60 * kSecond;
        options.profile_path = "";
        options.log = [](void *, uint32_t, const char *topic, const char *line) {
            std::fprintf(stderr, "gpu_check: %s: %s\n", topic, line);
        };
        const stw_status status = stw_runtime_open(&options, &runtime_);
        if (status == STW_ERROR_UNSUPPORTED) give_up(kNoDevice, stw_last_error());
        must(status, "stw_runtime_open");
    }

    // From a part of a block to many blocks, not whole words of anything but four bytes.
    void make_tensors()
    {
        const uint64_t all = kTensorsOverBudget * options_.device_bytes;
        const uint64_t largest = options_.device_bytes / 8;
        for (uint64_t made = 0; made < all;) {
            const uint64_t bytes = std::max<uint64_t>(4, random_() % (largest >> random_() % 8));
            tensors_.push_back(make(bytes / sizeof(uint32_t)));
            made += bytes;
        }
    }
    Tensor make(uint64_t elements)
    {
        Tensor tensor;
        tensor.wanted.assign(elements, static_cast<uint32_t>(random_()));
        stw_tensor_spec spec = STW_TENSOR_SPEC_INIT;
        spec.dtype = STW_I32;
        spec.role = STW_ROLE_PARAM;
        spec.dimensions = 1;
        spec.shape[0] = elements;
        must(stw_tensor_create(runtime_, &spec, 1, &tensor.handle), "stw_tensor_create");
        must(stw_tensor_write(tensor.handle, tensor.wanted.data(), nullptr), "stw_tensor_write");
        return tensor;
    }

    Tensor &any() { return tensors_[random_() % tensors_.size()]; }
    void *any_stream() { return streams_[random_() % kStreams]; }

    stw_fetch_request request(const Tensor &tensor, uint32_t access) const
    {
        stw_fetch_request request = STW_FETCH_REQUEST_INIT;
        request.tensor = tensor.handle;
        request.access = access;
        request.tier = STW_TIER_DEVICE;
        return request;
    }
    void fetch(const std::vector<stw_fetch_request> &requests, void *stream,
               std::vector<stw_view> *views_out)
    {
        stw_fetch_options options = STW_FETCH_OPTIONS_INIT;
        options.stream = stream;
        views_out->resize(requests.size());
        must(stw_fetch(runtime_, &options, requests.data(), static_cast<uint32_t>(requests.size()),
                       views_out->data()),
             "stw_fetch");
    }
    // What the stream is to do with the bytes is enqueued, and mostly not done.
    static void release(std::vector<stw_view> &views, void *stream)
    {
        must(stw_release(views.data(), static_cast<uint32_t>(views.size()), stream, 0),
             "stw_release");
    }

    static Address address(const stw_view &view) { return reinterpret_cast<Address>(view.pointer); }

    void fill(Tensor &tensor, uint32_t access, uint64_t begin, uint64_t count)
    {
        const auto value = static_cast<uint32_t>(random_());
        void *stream = any_stream();
        std::vector<stw_view> views;
        fetch({request(tensor, access)}, stream, &views);
        calls_.must(calls_.fill(address(views[0]) + begin * sizeof value, value, count, stream),
                    "cuMemsetD32Async");
        release(views, stream);
        std::fill_n(tensor.wanted.begin() + static_cast<std::ptrdiff_t>(begin), count, value);
    }
    void fill_all()
    {
        Tensor &tensor = any();
        fill(tensor, STW_WRITE, 0, tensor.wanted.size());
    }
    void fill_part()
    {
        Tensor &tensor = any();
        const uint64_t begin = random_() % tensor.wanted.size();
        const uint64_t count = 1 + random_() % (tensor.wanted.size() - begin);
        fill(tensor, STW_READ_WRITE, begin, count);
    }
    void copy()
    {
        Tensor &from = any();
        Tensor &to = any();
        if (&from == &to) return;
        const uint64_t count = std::min(from.wanted.size(), to.wanted.size());
        void *stream = any_stream();
        std::vector<stw_view> views;
        fetch({request(from, STW_READ), request(to, STW_READ_WRITE)}, stream, &views);
        calls_.must(calls_.copy_inside(address(views[1]), address(views[0]),
                                       count * sizeof(uint32_t), stream),
                    "cuMemcpyDtoDAsync");
        release(views, stream);
        std::copy_n(from.wanted.begin(), count, to.wanted.begin());
    }

    static uint64_t difference(const std::vector<uint32_t> &wanted,
                               const std::vector<uint32_t> &found, size_t number)
    {
        uint64_t wrong = 0;
        for (size_t i = 0; i < wanted.size(); ++i) {
            if (wanted[i] == found[i]) continue;
            if (wrong == 0)
                std::fprintf(stderr,
                             "gpu_check: tensor %zu of %zu elements differs first at element %zu: "
                             "%08" PRIx32 " is wanted, %08" PRIx32 " is there\n",
                             number, wanted.size(), i, wanted[i], found[i]);
            wrong += sizeof(uint32_t);
        }
        return wrong;
    }

    const Options &options_;
    const DriverCalls &calls_;
    std::mt19937_64 random_;
    void *streams_[kStreams] = {};
    stw_runtime *runtime_ = nullptr;
    std::vector<Tensor> tensors_;
    uint64_t bytes_ = 0;
};

Options parse(int argc, char **argv)
{
    Options options;
    for (int i = 1; i < argc; i += 2) {
        const std::string name = argv[i];
        if (i + 1 == argc) give_up(kCannotRun, "arguments are --name value pairs");
        const std::string value = argv[i + 1];
        const uint64_t number = std::strtoull(value.c_str(), nullptr, 10);
        if (name == "--module")
            options.module = value;
        else if (name == "--nvme")
            options.nvme = value;
        else if (name == "--device-bytes")
            options.device_bytes = number;
        else if (name == "--block-bytes")
            options.block_bytes = number;
        else if (name == "--operations")
            options.operations = number;
        else if (name == "--seed")
            options.seed = number;
        else
            give_up(kCannotRun, "there is no option " + name);
    }
    if (options.module.empty()) give_up(kCannotRun, "--module FILE names libstepwell-cuda.so");
    return options;
}

int run(int argc, char **argv)
{
    if (argc == 2 && std::string(argv[1]) == "--name") {
        const DriverCalls calls = open_driver();
        std::printf("%s\n", device_name(calls).c_str());
        close_driver(calls);
        return 0;
    }
    const Options options = parse(argc, argv);
    const DriverCalls calls = open_driver();
    uint64_t wrong = 0;
    {
        Program program(options, calls);
        program.run();
        wrong = program.wrong_bytes();
        std::printf("%s: %" PRIu64 " operations on %zu streams over %zu tensors of %" PRIu64
                    " bytes, in a device tier of %" PRIu64 " bytes: %" PRIu64 " bytes wrong\n",
                    device_name(calls).c_str(), options.operations, kStreams, program.tensors(),
                    program.bytes(), options.device_bytes, wrong);
    }
    close_driver(calls);
    return wrong == 0 ? 0 : 1;
}

}  // namespace
}  // namespace stepwell::gpu

int main(int argc, char **argv)
{
    return stepwell::gpu::run(argc, argv);
}
