// SPDX-License-Identifier: Apache-2.0
// Ranks as processes, each with a device of the double of CUDA's driver, in one group over the
// double of NCCL. A rank's test is a function of its own process; what fails there fails the test.
#pragma once

#include "drivers/nccl/api.h"
#include "tests/cuda/double/control.h"
#include "tests/cuda/program_calls.h"
#include "tests/nccl/double/control.h"
#include "tests/support/expect.h"

#include <stepwell/stepwell.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <unistd.h>

extern "C" {
int ncclCommInitRankConfig(stepwell::drivers::ncclComm_t *comm, int ranks,
                           stepwell::drivers::NcclUniqueId id, int rank,
                           stepwell::drivers::NcclConfig *config);
int ncclCommAbort(stepwell::drivers::ncclComm_t comm);
int ncclCommDestroy(stepwell::drivers::ncclComm_t comm);
// Of the address sanitizer; null in a build without it.
__attribute__((weak)) int __lsan_do_recoverable_leak_check();
}

namespace stepwell {

inline constexpr uint64_t kBlock = STW_BLOCK_64K;
inline constexpr uint64_t kSecond = 1'000'000'000;
inline constexpr uint64_t kBucketBlocks = (uint64_t{16} << 20) / kBlock;
inline constexpr int kGone = 77;  // a rank that ended as it was meant to

// Copies of the modules where only their own user may write.
class Modules {
public:
    Modules()
    {
        char directory[] = "/tmp/stepwell-nccl-XXXXXX";
        directory_ = mkdtemp(directory);
        add(TEST_CUDA_MODULE, cuda());
        add(TEST_NCCL_MODULE, nccl());
    }
    ~Modules() { std::filesystem::remove_all(directory_); }
    Modules(const Modules &) = delete;
    Modules &operator=(const Modules &) = delete;
    std::string cuda() const { return directory_ + "/libstepwell-cuda.so"; }
    std::string nccl() const { return directory_ + "/libstepwell-nccl.so"; }
    const std::string &directory() const { return directory_; }

private:
    static void add(const char *from, const std::string &to)
    {
        std::filesystem::copy_file(from, to);
        std::filesystem::permissions(to, std::filesystem::perms(0644));
    }
    std::string directory_;
};

// To the nearest, half to even, of what is neither too large nor too small for one of 16 bits.
inline float rounded(float value, uint32_t dtype)
{
    if (dtype == STW_F32 || value == 0 || !std::isfinite(value)) return value;
    const int last = std::ilogb(value) - (dtype == STW_BF16 ? 7 : 10);
    return std::ldexp(std::nearbyint(std::ldexp(value, -last)), last);
}

inline float load(const void *data, size_t i, uint32_t dtype)
{
    if (dtype == STW_F32) return static_cast<const float *>(data)[i];
    const uint32_t bits = static_cast<const uint16_t *>(data)[i];
    if (dtype == STW_BF16) return std::bit_cast<float>(bits << 16);
    const auto size = static_cast<float>(bits % 1024 + (bits / 1024 % 32 != 0 ? 1024 : 0));
    const int exponent = std::max(static_cast<int>(bits / 1024 % 32), 1) - 25;
    return std::ldexp(bits >= 0x8000 ? -size : size, exponent);
}

inline void store(void *data, size_t i, float value, uint32_t dtype)
{
    if (dtype == STW_F32) {
        static_cast<float *>(data)[i] = value;
        return;
    }
    const auto bits = std::bit_cast<uint32_t>(rounded(value, dtype));
    auto &to = static_cast<uint16_t *>(data)[i];
    if (dtype == STW_BF16)
        to = static_cast<uint16_t>(bits >> 16);
    else if (value == 0)
        to = 0;
    else  // of the same bits, with an exponent of 5 of them
        to = static_cast<uint16_t>((bits >> 16 & 0x8000) |
                                   ((bits & 0x7fffffff) - (112u << 23)) >> 13);
}

// What a kernel does with numbers: it sets or adds values, or compares with them.
struct Kernel {
    enum class Does { kSet, kAdd, kCompare };
    uint64_t address = 0;
    Does does = Does::kSet;
    std::vector<float> values;
    uint32_t dtype = STW_F32;
    int wrong = 0;
};

inline void run_kernel(void *user, stw_double_alias_of alias)
{
    auto &kernel = *static_cast<Kernel *>(user);
    void *data = alias(kernel.address);
    for (size_t i = 0; i < kernel.values.size(); ++i) {
        const float value = kernel.values[i];
        if (kernel.does == Kernel::Does::kSet) store(data, i, value, kernel.dtype);
        if (kernel.does == Kernel::Does::kCompare) {
            if (load(data, i, kernel.dtype) != value) ++kernel.wrong;
        } else if (kernel.does == Kernel::Does::kAdd) {
            store(data, i, load(data, i, kernel.dtype) + value, kernel.dtype);
        }
    }
}

class Rank {
public:
    Rank(const Modules &modules, const std::vector<char> &id, uint32_t number, uint32_t ranks)
        : rank(number), size(ranks), modules_(modules), id_(id)
    {
    }

    // A context and streams, and no group yet.
    void begin_alone(const std::string &double_options)
    {
        ASSERT_EQ(stw_double_reset(double_options.c_str()), 0);
        ASSERT_EQ(cuInit(0), 0);
        ASSERT_EQ(cuDevicePrimaryCtxRetain(&context_, program_device), 0);
        ASSERT_EQ(cuCtxSetCurrent(context_), 0);
        for (void *&stream : streams) ASSERT_EQ(cuStreamCreate(&stream, 1), 0);
    }
    void begin(const std::string &double_options)
    {
        begin_alone(double_options);
        if (lends) make_communicator(true);
        ASSERT_OK(join());
    }
    // One of the program's own, which the group is made over.
    void make_communicator(bool blocking)
    {
        drivers::NcclUniqueId id = {};
        std::copy(id_.begin(), id_.end(), id.internal);
        drivers::NcclConfig config = {sizeof config, drivers::kNcclMagic, drivers::kNcclVersionMin,
                                      blocking ? 1 : 0};
        ASSERT_EQ(ncclCommInitRankConfig(&communicator, static_cast<int>(size), id,
                                         static_cast<int>(rank), &config),
                  blocking ? drivers::kNcclSuccess : drivers::kNcclInProgress);
    }
    stw_status join() { return join(rank, size, 0, &group); }
    // As one of `ranks`, in the part of all that has this number.
    stw_status join(uint32_t number, uint32_t ranks, char part, stw_group **group_out)
    {
        stw_group_options options = STW_GROUP_OPTIONS_INIT;
        const std::string file = module();
        options.driver = STW_GROUP_NCCL;
        options.rank = number;
        options.size = ranks;
        options.nccl_comm = communicator;
        std::vector<char> id = id_;
        id[0] = static_cast<char>(id[0] ^ part);
        if (communicator == nullptr) options.unique_id = id.data();
        if (communicator == nullptr) options.unique_id_bytes = id.size();
        options.timeout_ns = timeout_ns;
        options.module = file.c_str();
        options.device_ordinal = group_device;
        return stw_group_create(&options, group_out);
    }
    stw_status try_open(uint64_t whole_blocks, uint64_t blocks, int32_t ordinal = 0)
    {
        stw_device_options device = STW_DEVICE_OPTIONS_INIT;
        stw_nvme_options nvme = STW_NVME_OPTIONS_INIT;
        stw_runtime_options options = STW_RUNTIME_OPTIONS_INIT;
        const std::string module = modules_.cuda();
        device.driver = module.c_str();
        device.driver_options = device_options.c_str();
        device.budget_bytes = blocks * block_bytes;
        device.ordinal = ordinal;
        nvme.path = modules_.directory().c_str();
        nvme.budget_bytes = 512 * block_bytes;
        nvme.driver = "posix";
        options.flags = STW_RUNTIME_NO_PROBE;
        options.name = "ranks";
        options.group = group;
        options.replica_group = replicas;
        options.devices = &device, options.device_count = blocks > 0 ? 1 : 0;
        options.nvme = &nvme, options.nvme_count = 1;
        options.host_bytes = 64 * block_bytes;
        options.block_bytes = static_cast<uint32_t>(block_bytes);
        options.whole_bytes = whole_blocks * block_bytes;
        options.thread_count = 1;
        options.timeout_ns = 60 * kSecond;
        return stw_runtime_open(&options, &runtime);
    }
    // `own_blocks` of the device are for what is not gathered.
    void open(const std::string &double_options, uint64_t whole_blocks, uint64_t own_blocks)
    {
        begin(double_options);
        ASSERT_OK(try_open(whole_blocks, kBucketBlocks + whole_blocks + own_blocks));
    }
    void end(stw_status closes = STW_OK)
    {
        for (void *stream : streams) EXPECT_EQ(cuStreamSynchronize(stream), 0);
        if (runtime != nullptr) {
            EXPECT_EQ(stw_runtime_close(runtime, 0, 0), closes) << stw_last_error();
        }
        if (group != nullptr) {
            EXPECT_OK(stw_group_destroy(group));
        }
        if (replicas != nullptr) {
            EXPECT_OK(stw_group_destroy(replicas));
        }
        // Who lent it still has it.
        if (communicator != nullptr) {
            EXPECT_EQ(ncclCommDestroy(communicator), drivers::kNcclSuccess);
        }
        for (const auto &kernel : kernels_) EXPECT_EQ(kernel->wrong, 0);
        for (void *stream : streams) EXPECT_EQ(cuStreamDestroy_v2(stream), 0);
        cuDevicePrimaryCtxRelease_v2(program_device);
        char text[4096] = "";
        EXPECT_EQ(stw_double_take_violations(text, sizeof text), 0u) << text;
        EXPECT_EQ(stw_double_leaks(text, sizeof text), 0u) << text;
        EXPECT_EQ(stw_nccl_double_leaks(), 0u);
    }

    stw_tensor *make(const std::string &name, uint64_t elements, uint32_t role,
                     uint32_t partition = STW_PARTITION_SHARDED, uint32_t dtype = STW_F32)
    {
        stw_tensor_spec spec = STW_TENSOR_SPEC_INIT;
        spec.name = name.c_str();
        spec.dtype = dtype;
        spec.role = role;
        spec.partition = partition;
        spec.dimensions = 1;
        spec.shape[0] = elements;
        stw_tensor *tensor = nullptr;
        EXPECT_OK(stw_tensor_create(runtime, &spec, 1, &tensor));
        dtypes_[tensor] = dtype;
        return tensor;
    }
    // dtype 0: the tensor's.
    stw_status try_fetch(stw_tensor *tensor, uint32_t access, uint32_t scope, void *stream,
                         stw_view *view_out, uint32_t flags = 0, uint32_t dtype = 0)
    {
        stw_fetch_options options = STW_FETCH_OPTIONS_INIT;
        stw_fetch_request request = STW_FETCH_REQUEST_INIT;
        options.stream = stream;
        options.flags = flags;
        request.dtype = dtype;
        request.tensor = tensor;
        request.access = access;
        request.scope = scope;
        return stw_fetch(runtime, &options, &request, 1, view_out);
    }
    // A view for one kernel, on a stream that nobody waits for.
    void use(stw_tensor *tensor, uint32_t access, uint32_t scope, void *stream, Kernel::Does does,
             const std::function<float(uint64_t)> &value, uint32_t flags = 0, uint32_t dtype = 0)
    {
        stw_view view = {};
        ASSERT_OK(try_fetch(tensor, access, scope, stream, &view, 0, dtype));
        if (view.element_count != 0) work_on(view, stream, does, value, dtype);
        ASSERT_OK(stw_release(&view, 1, stream, flags));
    }
    void work_on(const stw_view &view, void *stream, Kernel::Does does,
                 const std::function<float(uint64_t)> &value, uint32_t dtype = 0)
    {
        auto kernel = std::make_unique<Kernel>();
        kernel->address = reinterpret_cast<uint64_t>(view.pointer);
        kernel->does = does;
        for (uint64_t i = 0; i < view.element_count; ++i)
            kernel->values.push_back(value(view.element_begin + i));
        kernel->dtype = dtype != 0 ? dtype : dtypes_[view.tensor];
        const stw_double_range ranges[] = {{kernel->address, view.bytes, 0, 0},
                                           {kernel->address, view.bytes, 1, 0}};
        const bool reads = does == Kernel::Does::kCompare;
        const bool sets = does == Kernel::Does::kSet;
        ASSERT_EQ(stw_double_consume(stream, reads ? "reader" : "writer", ranges + (sets ? 1 : 0),
                                     reads || sets ? 1 : 2, run_kernel, kernel.get()),
                  0);
        kernels_.push_back(std::move(kernel));
    }

    std::string module() const { return modules_.nccl(); }

    const uint32_t rank;
    const uint32_t size;
    uint64_t timeout_ns = 60 * kSecond;
    void *streams[2] = {};
    int32_t program_device = 0;  // of its streams
    int32_t group_device = 0;
    bool lends = false;
    bool gives_up = false;  // on an exchange, whose records the group then never frees
    drivers::ncclComm_t communicator = nullptr;
    stw_group *group = nullptr;
    stw_group *replicas = nullptr;
    stw_runtime *runtime = nullptr;
    std::string device_options;
    uint64_t block_bytes = kBlock;

private:
    const Modules &modules_;
    const std::vector<char> &id_;
    void *context_ = nullptr;
    std::map<stw_tensor *, uint32_t> dtypes_;
    std::vector<std::unique_ptr<Kernel>> kernels_;
};

class Ranks : public testing::TestWithParam<uint32_t> {
protected:
    // CUDA is first called in the children, so that each has a driver of its own.
    void run(uint32_t size, const std::function<void(Rank &)> &body)
    {
        if (HasFailure()) return;  // Which the children would take for their own.
        std::vector<char> id(128);
        ASSERT_EQ(getrandom(id.data(), id.size(), 0), static_cast<ssize_t>(id.size()));
        std::vector<pid_t> children;
        for (uint32_t rank = 0; rank < size; ++rank) {
            const pid_t child = fork();
            ASSERT_GE(child, 0);
            if (child == 0) {
                run_as(rank, size, id, body);
                std::fflush(nullptr);
                _exit(HasFailure() ? 1 : 0);
            }
            children.push_back(child);
        }
        for (uint32_t rank = 0; rank < size; ++rank) {
            int status = 0;
            ASSERT_EQ(waitpid(children[rank], &status, 0), children[rank]);
            EXPECT_TRUE(WIFEXITED(status)) << "rank " << rank << ", signal " << WTERMSIG(status);
            const int code = WEXITSTATUS(status);
            EXPECT_TRUE(code == 0 || code == kGone) << "rank " << rank << " ended with " << code;
        }
        forget(id);
    }
    // The sanitizer looks for leaks when a process exits, which these end without.
    void run_as(uint32_t rank, uint32_t size, const std::vector<char> &id,
                const std::function<void(Rank &)> &body)
    {
        bool looks = __lsan_do_recoverable_leak_check != nullptr;
        {
            Rank mine(modules_, id, rank, size);
            body(mine);
            looks &= !mine.gives_up;
        }
        if (looks) {
            EXPECT_EQ(__lsan_do_recoverable_leak_check(), 0);
        }
    }
    // A group that not all ranks joined leaves the memory it met in.
    static void forget(const std::vector<char> &id)
    {
        std::string name = "/stepwell-nccl-";
        for (size_t i = 0; i < 16; ++i) {
            char hex[3];
            std::snprintf(hex, sizeof hex, "%02x", static_cast<unsigned char>(id[i]));
            name += hex;
        }
        shm_unlink(name.c_str());
    }

    Modules modules_;
};

}  // namespace stepwell
