// SPDX-License-Identifier: Apache-2.0
// Memory that is refused while a runtime is opened or things are created: each allocation in turn,
// alone and with all that come after it. The call says MEMORY or succeeds; nothing half made stays.
extern "C" {
#include "program.h"
}

#include <fcntl.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <new>
#include <string>

namespace {

// Of this thread: -1 is off, 0 refuses the next one.
thread_local long long left = -1;
thread_local bool goes_on = false;
thread_local bool refused = false;

bool refuse()
{
    if (left < 0) return false;
    if (left > 0) {
        --left;
        return false;
    }
    refused = true;
    if (!goes_on) left = -1;
    return true;
}

// Runs `body` with allocation number `at` refused; true when there was one.
template <class Body> bool refusing(long long at, bool all_after, Body &&body)
{
    refused = false;
    goes_on = all_after;
    left = at;
    body();
    left = -1;
    return refused;
}

uint64_t walk(stw_runtime *runtime)
{
    uint64_t count = 0;
    stw_tensor *at = nullptr;
    while (stw_tensor_next(runtime, at, &at) == STW_OK && at) ++count;
    return count;
}

uint64_t tensors_of(stw_runtime *runtime)
{
    stw_tier_stats stats = STW_TIER_STATS_INIT;
    CHECK(stw_tier_stats_get(runtime, STW_TIER_HOST, 0, &stats) == STW_OK);
    return stats.tensors;
}

void use(stw_tensor *tensor)
{
    float values[4] = {1, 2, 3, 4};
    float back[4] = {};
    stw_copy_options options = STW_COPY_OPTIONS_INIT;
    options.element_count = 4;
    CHECK(stw_tensor_write(tensor, values, &options) == STW_OK);
    CHECK(stw_tensor_read(tensor, back, &options) == STW_OK);
    CHECK(std::memcmp(values, back, sizeof values) == 0);
}

// A small one that shares its block, one of several blocks and a named one, all or none.
void creating(bool all_after)
{
    stw_runtime *runtime = open_small(".", nullptr);
    uint64_t expected = 0;
    for (long long at = 0;; ++at) {
        stw_tensor_spec specs[3] = {STW_TENSOR_SPEC_INIT, STW_TENSOR_SPEC_INIT,
                                    STW_TENSOR_SPEC_INIT};
        const std::string name = "a name too long to lie within a string " + std::to_string(at);
        for (int i = 0; i < 3; ++i) {
            specs[i].dtype = STW_F32;
            specs[i].role = STW_ROLE_PARAM;
            specs[i].dimensions = 1;
            specs[i].shape[0] = i == 1 ? 40000 : 10;
        }
        specs[2].name = name.c_str();
        stw_tensor *made[3] = {};
        stw_status status = STW_OK;
        const bool met =
            refusing(at, all_after, [&] { status = stw_tensor_create(runtime, specs, 3, made); });
        CHECK(status == STW_OK || (met && status == STW_ERROR_MEMORY));
        if (status == STW_OK) {
            expected += 3;
            for (stw_tensor *tensor : made) use(tensor);
            CHECK(stw_tensor_destroy(made, 3) == STW_OK);
            expected -= 3;
        } else {
            CHECK(std::strlen(stw_last_error()) > 20);
        }
        CHECK(walk(runtime) == expected);
        CHECK(tensors_of(runtime) == expected);
        stw_tensor *keep = make_tensor(runtime, "", 10);
        ++expected;
        use(keep);
        if (!met) break;
    }
    CHECK(stw_runtime_close(runtime, 0, 0) == STW_OK);
}

void phases_and_optimizers(bool all_after)
{
    stw_runtime *runtime = open_small(".", nullptr);
    for (long long at = 0;; ++at) {
        stw_phase *phase = nullptr;
        stw_status status = STW_OK;
        bool met = refusing(at, all_after, [&] {
            status = stw_phase_create(runtime, "a phase with a name of some length", &phase);
        });
        CHECK(status == STW_OK || (met && status == STW_ERROR_MEMORY));
        stw_optimizer_options options = STW_OPTIMIZER_OPTIONS_INIT;
        stw_optimizer *optimizer = nullptr;
        options.algorithm = STW_OPTIMIZER_ADAMW;
        options.name = "an optimizer with a name of some length";
        met |= refusing(at, all_after,
                        [&] { status = stw_optimizer_create(runtime, &options, &optimizer); });
        CHECK(status == STW_OK || (met && status == STW_ERROR_MEMORY));
        if (!met) break;
    }
    CHECK(stw_runtime_close(runtime, 0, 0) == STW_OK);
}

// A parameter with master, average and moments: all of its states or none.
void taking_parameters_in(bool all_after)
{
    stw_runtime *runtime = open_small(".", nullptr);
    stw_optimizer_options options = STW_OPTIMIZER_OPTIONS_INIT;
    stw_optimizer *optimizer = nullptr;
    options.algorithm = STW_OPTIMIZER_ADAMW;
    options.ema_decay = 0.9;
    const stw_hyper usual = STW_HYPER_INIT;
    CHECK(stw_optimizer_create(runtime, &options, &optimizer) == STW_OK);
    CHECK(stw_optimizer_set_hyper(optimizer, 0, &usual) == STW_OK);
    for (long long at = 0;; ++at) {
        stw_tensor_spec specs[2] = {STW_TENSOR_SPEC_INIT, STW_TENSOR_SPEC_INIT};
        const std::string name = "a name too long to lie within a string " + std::to_string(at);
        for (int i = 0; i < 2; ++i) {
            specs[i].dtype = i == 0 ? STW_BF16 : STW_F32;
            specs[i].role = i == 0 ? STW_ROLE_PARAM : STW_ROLE_GRAD;
            specs[i].dimensions = 1;
            specs[i].shape[0] = 10;
        }
        specs[0].name = name.c_str();
        stw_tensor *made[2] = {};
        CHECK(stw_tensor_create(runtime, specs, 2, made) == STW_OK);
        for (stw_tensor *tensor : made) CHECK(stw_tensor_fill(tensor, 1, nullptr) == STW_OK);
        stw_optimizer_entry entry = STW_OPTIMIZER_ENTRY_INIT;
        entry.parameter = made[0];
        entry.gradient = made[1];
        const uint64_t before = tensors_of(runtime);
        stw_status status = STW_OK;
        const bool met =
            refusing(at, all_after, [&] { status = stw_optimizer_add(optimizer, &entry, 1); });
        CHECK(status == STW_OK || (met && status == STW_ERROR_MEMORY));
        CHECK(tensors_of(runtime) == before + (status == STW_OK ? 5 : 0));
        if (status != STW_OK) CHECK(stw_optimizer_add(optimizer, &entry, 1) == STW_OK);
        CHECK(stw_optimizer_step(optimizer, nullptr, nullptr) == STW_OK);
        CHECK(stw_runtime_drain(runtime, 0) == STW_OK);
        if (!met) break;
    }
    CHECK(stw_optimizer_destroy(optimizer) == STW_OK);
    CHECK(stw_runtime_close(runtime, 0, 0) == STW_OK);
}

// The record of an operation and the thread of its callback.
void being_told(bool all_after)
{
    stw_runtime *runtime = open_small(".", nullptr);
    stw_tensor *tensor = make_tensor(runtime, "t", 10);
    use(tensor);
    for (long long at = 0;; ++at) {
        stw_fetch_request request = STW_FETCH_REQUEST_INIT;
        stw_operation *operation = nullptr;
        stw_status status = STW_OK;
        int calls = 0;
        request.tensor = tensor;
        CHECK(stw_fetch_async(runtime, nullptr, &request, 1, &operation) == STW_OK);
        CHECK(stw_operation_wait(operation, 0) == STW_OK);
        const bool met = refusing(at, all_after, [&] {
            status = stw_operation_on_done(
                operation,
                [](void *user, stw_operation *, stw_status) { ++*static_cast<int *>(user); },
                &calls);
        });
        CHECK(status == STW_OK || (met && status == STW_ERROR_MEMORY));
        CHECK(calls == (status == STW_OK ? 1 : 0));
        CHECK(stw_operation_free(operation) == STW_OK);
        if (!met) break;
    }
    CHECK(stw_runtime_close(runtime, 0, 0) == STW_OK);
}

// Of a view in another dtype: what is prepared for its copy is refused as the copy's, and the same
// fetch works when there is memory again.
void converting()
{
    stw_runtime *runtime = open_small(".", nullptr);
    stw_tensor *tensor = make_tensor(runtime, "t", 40000);
    use(tensor);
    int met = 0;
    for (bool ours = true; ours; met += ours) {
        stw_fetch_request request = STW_FETCH_REQUEST_INIT;
        stw_view view = {};
        stw_status status = STW_OK;
        request.tensor = tensor;
        request.access = STW_READ;
        request.dtype = STW_BF16;
        CHECK(refusing(1 + met, false,
                       [&] { status = stw_fetch(runtime, nullptr, &request, 1, &view); }));
        CHECK(status == STW_ERROR_MEMORY);
        ours = std::strstr(stw_last_error(), "no memory for the copies of a fetch") != nullptr;
        CHECK(stw_fetch(runtime, nullptr, &request, 1, &view) == STW_OK);
        CHECK(stw_release(&view, 1, nullptr, 0) == STW_OK);
    }
    CHECK(met > 3);
    CHECK(stw_runtime_close(runtime, 0, 0) == STW_OK);
}

int descriptors()
{
    int count = 0;
    for (int i = 0; i < 1024; ++i) count += fcntl(i, F_GETFD) >= 0;
    return count;
}

// The second time with the driver whose close does not wait for the kernel.
void opening(bool all_after)
{
    const int before = descriptors();
    for (long long at = 0;; ++at) {
        stw_device_options device = STW_DEVICE_OPTIONS_INIT;
        stw_nvme_options nvme = STW_NVME_OPTIONS_INIT;
        stw_runtime_options options = STW_RUNTIME_OPTIONS_INIT;
        stw_runtime *runtime = nullptr;
        device.budget_bytes = 4 * BLOCK;
        nvme.path = ".";
        nvme.budget_bytes = 32 * BLOCK;
        nvme.driver = all_after ? "posix" : nullptr;
        nvme.driver_options = "allow_tmpfs=1";
        options.devices = &device;
        options.device_count = 1;
        options.nvme = &nvme;
        options.nvme_count = 1;
        options.host_bytes = 4 * BLOCK;
        options.block_bytes = STW_BLOCK_64K;
        options.thread_count = 2;
        stw_status status = STW_OK;
        const bool met =
            refusing(at, all_after, [&] { status = stw_runtime_open(&options, &runtime); });
        CHECK(status == STW_OK || (met && status < 0));
        if (status == STW_OK) CHECK(stw_runtime_close(runtime, 0, 0) == STW_OK);
        CHECK(descriptors() == before);
        if (!met) break;
    }
}

// A profile that each open reads.
void write_profile()
{
    char here[4096];
    CHECK(getcwd(here, sizeof here) != nullptr);
    const std::filesystem::path cache = std::filesystem::path(here) / "memory-refused";
    std::filesystem::create_directories(cache / "stepwell");
    std::ofstream file(cache / "stepwell" / "probe.json");
    file << R"({"kind": "stepwell machine profile", "format": 1, "created": "2026", "by": "probe",
        "machine": {"kernel": "6", "processor": "a name too long for a string", "cores": 2},
        "directories": [{"path": ".", "device": "254:1", "file_system": "ext4",
            "file_system_id": "0123", "driver": "aio",
            "read": {"bytes_per_s": 2000000000, "request_bytes": 1048576, "queue_depth": 32},
            "write": {"bytes_per_s": 1000000000, "request_bytes": 524288, "queue_depth": 8}}]})";
    CHECK(file.flush().good());
    CHECK(setenv("XDG_CACHE_HOME", cache.c_str(), 1) == 0);
}

}  // namespace

void *operator new(std::size_t bytes)
{
    void *memory = refuse() ? nullptr : std::malloc(bytes ? bytes : 1);
    if (!memory) throw std::bad_alloc();
    return memory;
}
void *operator new(std::size_t bytes, std::align_val_t alignment)
{
    const auto align = static_cast<std::size_t>(alignment);
    void *memory =
        refuse() ? nullptr : std::aligned_alloc(align, (bytes + align - 1) / align * align);
    if (!memory) throw std::bad_alloc();
    return memory;
}
void operator delete(void *memory) noexcept
{
    std::free(memory);
}
void operator delete(void *memory, std::size_t) noexcept
{
    std::free(memory);
}
void operator delete(void *memory, std::align_val_t) noexcept
{
    std::free(memory);
}
void operator delete(void *memory, std::size_t, std::align_val_t) noexcept
{
    std::free(memory);
}

int main()
{
    write_profile();
    for (const bool all_after : {false, true}) {
        creating(all_after);
        phases_and_optimizers(all_after);
        taking_parameters_in(all_after);
        being_told(all_after);
        opening(all_after);
    }
    converting();
    std::puts("every refusal was said");
    return 0;
}
