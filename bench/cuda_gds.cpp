// SPDX-License-Identifier: Apache-2.0
// cuda.gds: what GPUDirect Storage would gain. The bytes of a file are read by cuFile straight into
// the memory of a GPU, beside as many that a runtime reads there through the host, where it checks
// the sum of each block, in turns. cuFile checks nothing. A ratio above 1 says that it is faster.
//
// usage: cuda_gds --module FILE [--bytes N] [--size-max N] [--rounds N] [--dir DIR] [--json FILE]
//        cuda_gds --mode probe
// Status 77, with the reason as the last line: no GPU, or no cuFile that starts.
#include "cuda_drive.h"
#include "cuda_results.h"
#include "measure.h"
#include "tests/cuda/driver_calls.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

namespace {

using bench::now_s;
using stepwell::gpu::Address;
using stepwell::gpu::DriverCalls;

constexpr const char *kLibrary = "libcufile.so.0";
constexpr uint32_t kThreads = 6;  // as many reads at once as the runtime is asked for
constexpr int kDescriptor = 1;    // CU_FILE_HANDLE_TYPE_OPAQUE_FD

// cuFile's own, of its published interface.
struct CuFileError {
    int error = 0;
    int cuda_error = 0;
};
struct CuFileDescription {
    int kind = kDescriptor;
    union {
        int file;
        void *handle;
    } of = {};
    const void *operations = nullptr;
};

struct CuFileCalls {
    CuFileError (*driver_open)();
    CuFileError (*driver_close)();
    CuFileError (*handle_register)(void **handle, CuFileDescription *description);
    void (*handle_deregister)(void *handle);
    CuFileError (*buffer_register)(const void *base, size_t bytes, int flags);
    CuFileError (*buffer_deregister)(const void *base);
    ssize_t (*read)(void *handle, void *base, size_t bytes, off_t file_offset, off_t offset);
};

[[noreturn]] void leave_out(const std::string &why)
{
    stepwell::gpu::give_up(stepwell::gpu::kNoDevice, why);
}

void must(CuFileError error, const char *call)
{
    if (error.error == 0) return;
    leave_out(std::string(call) + " of " + kLibrary + " says error " + std::to_string(error.error) +
              " (CUDA: " + std::to_string(error.cuda_error) + ")");
}

template <class Function> void find(void *library, const char *name, Function *function)
{
    *function = reinterpret_cast<Function>(dlsym(library, name));
    if (*function == nullptr) leave_out(std::string(kLibrary) + " has no function " + name);
}

CuFileCalls load()
{
    void *library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) leave_out(std::string("GPUDirect Storage is not here: ") + dlerror());
    CuFileCalls calls;
    find(library, "cuFileDriverOpen", &calls.driver_open);
    find(library, "cuFileDriverClose", &calls.driver_close);
    find(library, "cuFileHandleRegister", &calls.handle_register);
    find(library, "cuFileHandleDeregister", &calls.handle_deregister);
    find(library, "cuFileBufRegister", &calls.buffer_register);
    find(library, "cuFileBufDeregister", &calls.buffer_deregister);
    find(library, "cuFileRead", &calls.read);
    return calls;
}

// A word that says where it stands.
uint32_t word_at(uint64_t index)
{
    return static_cast<uint32_t>(index * 2654435761u + (index >> 32));
}

// A file of known words, gone with the program.
class File {
public:
    File(const std::string &directory, uint64_t bytes, uint64_t piece)
    {
        // cuFile refuses O_TMPFILE.
        std::string path = directory + "/stepwell-XXXXXX";
        descriptor_ = mkostemp(path.data(), O_DIRECT | O_CLOEXEC);
        if (descriptor_ < 0) bench::give_up(path + ": " + std::strerror(errno));
        unlink(path.c_str());
        void *memory = nullptr;
        if (posix_memalign(&memory, 4096, piece) != 0) bench::give_up("no memory for a piece");
        auto *words = static_cast<uint32_t *>(memory);
        for (uint64_t at = 0; at < bytes; at += piece) {
            for (uint64_t i = 0; i < piece / 4; ++i) words[i] = word_at(at / 4 + i);
            if (pwrite(descriptor_, memory, piece, static_cast<off_t>(at)) !=
                static_cast<ssize_t>(piece))
                bench::give_up("writing the file: " + std::string(std::strerror(errno)));
        }
        std::free(memory);
        if (fdatasync(descriptor_) != 0) bench::give_up(std::strerror(errno));
    }
    ~File() { close(descriptor_); }
    File(const File &) = delete;
    File &operator=(const File &) = delete;
    int descriptor() const { return descriptor_; }

private:
    int descriptor_ = -1;
};

// Reads all of a file in pieces, each into a place of its thread's own.
class Direct {
public:
    Direct(const DriverCalls &gpu, const CuFileCalls &calls, const File &file, uint64_t bytes,
           uint64_t piece)
        : gpu_(gpu), calls_(calls), bytes_(bytes), piece_(piece)
    {
        gpu_.must(gpu_.memory_alloc(&memory_, kThreads * piece_), "cuMemAlloc");
        CuFileDescription description;
        description.of.file = file.descriptor();
        must(calls_.handle_register(&handle_, &description), "cuFileHandleRegister");
        must(calls_.buffer_register(base(), kThreads * piece_, 0), "cuFileBufRegister");
    }
    ~Direct()
    {
        (void)calls_.buffer_deregister(base());
        calls_.handle_deregister(handle_);
        gpu_.memory_free(memory_);
    }
    Direct(const Direct &) = delete;
    Direct &operator=(const Direct &) = delete;

    double read() const
    {
        std::atomic<uint64_t> next{0};
        std::atomic<int> failed{0};
        std::vector<std::thread> threads;
        const double begin = now_s();
        for (uint32_t number = 0; number < kThreads; ++number) {
            threads.emplace_back([&, number] {
                gpu_.use_here();
                for (uint64_t at = 0; (at = next.fetch_add(piece_)) < bytes_;)
                    if (!read_piece(number, at)) ++failed;
            });
        }
        for (std::thread &thread : threads) thread.join();
        const double seconds = now_s() - begin;
        if (failed > 0) bench::give_up("cuFileRead did not read a piece whole");
        return seconds;
    }
    // What came of the first piece.
    void check() const
    {
        std::vector<uint32_t> words(piece_ / 4);
        void *stream = nullptr;
        if (!read_piece(0, 0)) bench::give_up("cuFileRead did not read a piece whole");
        gpu_.must(gpu_.stream_create(&stream, 1), "cuStreamCreate");
        gpu_.must(gpu_.copy_to_host(words.data(), memory_, piece_, stream), "cuMemcpyDtoHAsync");
        gpu_.must(gpu_.stream_synchronize(stream), "cuStreamSynchronize");
        gpu_.stream_destroy(stream);
        for (uint64_t i = 0; i < words.size(); ++i)
            if (words[i] != word_at(i)) bench::give_up("cuFile read other bytes than were written");
    }

private:
    void *base() const { return reinterpret_cast<void *>(memory_); }
    bool read_piece(uint32_t number, uint64_t at) const
    {
        return calls_.read(handle_, base(), piece_, static_cast<off_t>(at),
                           static_cast<off_t>(number * piece_)) == static_cast<ssize_t>(piece_);
    }

    const DriverCalls &gpu_;
    const CuFileCalls &calls_;
    const uint64_t bytes_;
    const uint64_t piece_;
    Address memory_ = 0;
    void *handle_ = nullptr;
};

}  // namespace

int main(int argc, char **argv)
{
    const bench::Arguments arguments(argc, argv);
    bench::DriveSetup setup;
    setup.module = arguments.text("module", "");
    setup.directory = arguments.text("dir", ".");
    setup.bytes = arguments.number("bytes", uint64_t{1} << 30);
    setup.piece = std::min(uint64_t{32} << 20, arguments.number("size-max", uint64_t{32} << 20));
    const uint64_t rounds = arguments.number("rounds", 7);
    const bool probes = arguments.text("mode", "") == "probe";
    if (setup.module.empty() && !probes) bench::give_up("--module FILE names libstepwell-cuda.so");
    setup.bytes = setup.bytes / setup.piece * setup.piece;

    const DriverCalls gpu = stepwell::gpu::open_driver();
    const CuFileCalls calls = load();
    must(calls.driver_open(), "cuFileDriverOpen");
    if (probes) {
        must(calls.driver_close(), "cuFileDriverClose");
        return 0;
    }
    bench::Results results(arguments.text("json", ""));
    std::vector<bench::Pair> pairs;
    {
        const File file(setup.directory, setup.bytes, setup.piece);
        const Direct direct(gpu, calls, file, setup.bytes, setup.piece);
        bench::Drive drive(gpu, setup);
        direct.check();
        for (uint64_t i = 0; i < rounds; ++i)
            pairs.push_back(bench::in_turn(
                i, [&] { return direct.read(); }, [&] { return drive.read(STW_TIER_DEVICE); }));
    }
    must(calls.driver_close(), "cuFileDriverClose");
    results.rate("cuda.gds", setup.bytes, "a runtime through the host, sums checked", 0, pairs);
    stepwell::gpu::close_driver(gpu);
    return 0;
}
