// SPDX-License-Identifier: Apache-2.0
// A storage driver outside of the library: an "nvme" tier in memory, compressed with zstd. A third
// place between host memory and a disk: slower than the one, faster than the other.
// The bytes of the tier are cut into units of 64 KiB. Each is compressed into chunks of 1 KiB of
// one arena, a list through `next`; a unit that was never written reads as zeros and has none. All
// tables are taken at open, so the budget is hard: with the option memory_bytes=N the arena has
// N bytes, and a write that does not fit ends with ENOSPC, which the library reports as an error of
// that write. Without it the arena is as large as the tier, which is always enough.
// The work is done in poll, by the I/O thread that the library has for each path.
#include <stepwell/driver.h>

#include <zstd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cinttypes>
#include <condition_variable>
#include <cstdio>
#include <cstring>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

// The handle of driver.h is the driver's to define. Submit and wake may run beside poll, so the
// mutex guards what is behind it.
struct stw_storage {
    struct Unit {
        uint32_t first;  // chunk
        uint32_t bytes;  // compressed; kUnit: stored as it is; 0: never written
    };
    stw_services services{};  // copied: the library lends functions, not the struct
    uint64_t bytes = 0;
    std::vector<Unit> units;
    std::vector<char> arena, scratch;
    std::vector<uint32_t> next;  // of each chunk: the one behind it in its unit or among the free
    uint32_t free_first = 0, free_count = 0;
    std::unique_ptr<ZSTD_CCtx, size_t (*)(ZSTD_CCtx *)> compressor{ZSTD_createCCtx(),
                                                                   ZSTD_freeCCtx};
    std::unique_ptr<ZSTD_DCtx, size_t (*)(ZSTD_DCtx *)> expander{ZSTD_createDCtx(), ZSTD_freeDCtx};
    std::mutex mutex;
    std::condition_variable asked;
    std::vector<stw_io> ring;      // from `first`: `ran` wait for poll to give them back, the other
    std::vector<int64_t> results;  // of `held` wait to be run
    uint32_t first = 0, ran = 0, held = 0;
    bool woken = false;
};

namespace {

constexpr uint32_t kUnit = 64 << 10, kChunk = 1 << 10, kQueueDefault = 32, kQueueMax = 1 << 16;
using Lock = std::unique_lock<std::mutex>;
using Unit = stw_storage::Unit;

// Every refusal is a sentence that says what and what to do. The library shows it as it is.
stw_status refuse(stw_driver_error *error, stw_status status, const char *sentence,
                  const char *what, uint64_t needed = 0)
{
    if (error == nullptr || error->struct_size < sizeof *error) return status;
    error->needed_bytes = needed;
    std::snprintf(error->sentence, sizeof error->sentence, sentence, what);
    return status;
}

// "key=value;key=value", here of one key. What is not known is refused by name, never skipped.
stw_status read_options(const char *text, uint64_t *memory_bytes, stw_driver_error *error)
{
    int end = 0;
    if (text == nullptr || *(text += std::strspn(text, ";")) == '\0') return STW_OK;
    if (std::sscanf(text, "memory_bytes=%" SCNu64 "%n", memory_bytes, &end) == 1 &&
        text[end] == '\0' && *memory_bytes >= kUnit)
        return STW_OK;
    return refuse(error, STW_ERROR_INVALID,
                  "The zstd driver does not take '%s', but memory_bytes=65536 or more.", text);
}

// All of it is taken here, and touched: nothing is allocated, and nothing can fail, later.
stw_status make(const stw_storage_options &options, stw_storage *made, stw_driver_error *error)
{
    uint64_t memory_bytes = options.bytes;
    if (const stw_status status = read_options(options.options, &memory_bytes, error))
        return status;
    const uint64_t chunks = memory_bytes / kChunk + (memory_bytes % kChunk != 0);
    if (options.bytes == 0 || options.bytes % kUnit != 0 || options.queue_depth > kQueueMax ||
        chunks > UINT32_MAX)
        return refuse(error, STW_ERROR_INVALID, "The zstd driver cannot make '%s' of that size.",
                      options.path, memory_bytes);
    made->bytes = options.bytes;
    made->arena.resize(chunks * kChunk);
    made->scratch.resize(ZSTD_compressBound(kUnit));
    made->units.resize(options.bytes / kUnit);
    made->next.resize(chunks);
    for (uint32_t i = 0; i < chunks; ++i) made->next[i] = i + 1;
    made->free_count = static_cast<uint32_t>(chunks);
    made->ring.resize(options.queue_depth != 0 ? options.queue_depth : kQueueDefault);
    made->results.resize(made->ring.size());
    if (!made->compressor || !made->expander) throw std::bad_alloc();
    return STW_OK;
}

// Options grow at their end. Fewer bytes than ours are an older build's; more are a newer one's and
// must not ask for anything that is not known here. Nothing may be thrown into the library.
stw_status zstd_open(const stw_services *services, const stw_storage_options *options,
                     stw_storage **storage_out, stw_driver_error *error)
try {
    const auto *bytes = reinterpret_cast<const char *>(options);
    size_t known = sizeof *options;
    while (known < options->struct_size && bytes[known] == 0) ++known;
    if (known != options->struct_size)
        return refuse(error, STW_ERROR_INVALID, "The %s driver has other options.", "zstd");
    auto made = std::make_unique<stw_storage>();
    if (services != nullptr) made->services = *services;
    const stw_status status = make(*options, made.get(), error);
    if (status == STW_OK) *storage_out = made.release();
    return status;
} catch (const std::exception &) {
    return refuse(error, STW_ERROR_MEMORY, "No memory for '%s'; give that tier fewer bytes.",
                  options->path, options->bytes);
}

// The library puts buffers, offsets and lengths at multiples of alignment_bytes: whole units.
void zstd_info(stw_storage *storage, stw_storage_info *out)
{
    stw_storage_info info{};
    info.struct_size = out->struct_size;
    info.alignment_bytes = kUnit;
    info.queue_depth = static_cast<uint32_t>(storage->ring.size());
    info.bytes = storage->bytes;
    std::strcpy(info.file_system, "zstd");
    std::memcpy(out, &info, std::min<size_t>(out->struct_size, sizeof info));
}

constexpr uint32_t chunks_of(uint32_t bytes)
{
    return (bytes + kChunk - 1) / kChunk;
}

uint32_t last_chunk(const stw_storage &storage, uint32_t first, uint32_t bytes)
{
    for (uint32_t i = 1; i < chunks_of(bytes); ++i) first = storage.next[first];
    return first;
}

// Between `data` and the chunks of a unit, in either direction.
void copy_chunks(stw_storage *storage, const Unit &unit, char *data, bool store)
{
    for (uint32_t done = 0, chunk = unit.first; done < unit.bytes; done += kChunk) {
        char *place = storage->arena.data() + uint64_t{chunk} * kChunk;
        std::memcpy(store ? place : data + done, store ? data + done : place,
                    std::min(kChunk, unit.bytes - done));
        chunk = storage->next[chunk];
    }
}

// The old contents stay where the new do not fit: a write that failed has changed nothing.
int write_unit(stw_storage *storage, Unit *unit, char *data)
{
    const size_t size = ZSTD_compressCCtx(storage->compressor.get(), storage->scratch.data(),
                                          storage->scratch.size(), data, kUnit, 1);
    const bool plain = ZSTD_isError(size) || size >= kUnit;
    const uint32_t bytes = plain ? kUnit : static_cast<uint32_t>(size);
    if (chunks_of(bytes) > storage->free_count + chunks_of(unit->bytes)) return ENOSPC;
    if (unit->bytes != 0) {
        storage->next[last_chunk(*storage, unit->first, unit->bytes)] = storage->free_first;
        storage->free_first = unit->first;
    }
    storage->free_count += chunks_of(unit->bytes) - chunks_of(bytes);
    *unit = {storage->free_first, bytes};
    storage->free_first = storage->next[last_chunk(*storage, unit->first, bytes)];
    copy_chunks(storage, *unit, plain ? data : storage->scratch.data(), true);
    return 0;
}

int read_unit(stw_storage *storage, const Unit &unit, char *data)
{
    char *scratch = storage->scratch.data();
    if (unit.bytes == 0) std::memset(data, 0, kUnit);
    copy_chunks(storage, unit, unit.bytes == kUnit ? data : scratch, false);
    if (unit.bytes == 0 || unit.bytes == kUnit) return 0;
    const size_t size =
        ZSTD_decompressDCtx(storage->expander.get(), data, kUnit, scratch, unit.bytes);
    return size == kUnit ? 0 : EIO;
}

// Bytes moved or a negative errno. Fewer than asked are no error: the library asks for the rest.
int64_t move(stw_storage *storage, const stw_io &io)
{
    uint64_t moved = 0;
    for (; moved < io.bytes && io.offset_bytes + moved < storage->bytes; moved += kUnit) {
        char *data = static_cast<char *>(io.data) + moved;
        Unit *unit = &storage->units[(io.offset_bytes + moved) / kUnit];
        const int error = io.kind == STW_IO_WRITE ? write_unit(storage, unit, data)
                                                  : read_unit(storage, *unit, data);
        if (error != 0) return moved != 0 ? static_cast<int64_t>(moved) : -error;
    }
    return static_cast<int64_t>(moved);
}

// A read past the end comes back short; a write there is refused, as is what is not aligned.
bool is_valid(const stw_storage &storage, const stw_io &io)
{
    const uint64_t together = reinterpret_cast<uintptr_t>(io.data) | io.offset_bytes | io.bytes;
    const uint64_t end = io.offset_bytes + io.bytes;
    if (io.data == nullptr || io.bytes == 0 || io.reserved != 0 || together % kUnit != 0 ||
        end < io.bytes || end > INT64_MAX)
        return false;
    return io.kind == STW_IO_READ || (io.kind == STW_IO_WRITE && end <= storage.bytes);
}

// Takes requests and does nothing else. A full ring is no error: the library comes back.
stw_status zstd_submit(stw_storage *storage, const stw_io *ios, uint32_t n, uint32_t *accepted_out)
{
    const Lock lock(storage->mutex);
    const auto depth = static_cast<uint32_t>(storage->ring.size());
    for (*accepted_out = 0; *accepted_out < n && storage->held < depth; ++*accepted_out) {
        if (!is_valid(*storage, ios[*accepted_out])) return STW_ERROR_INVALID;
        storage->ring[(storage->first + storage->held++) % depth] = ios[*accepted_out];
        storage->asked.notify_one();
    }
    return STW_OK;
}

void zstd_wake(stw_storage *storage)
{
    const Lock lock(storage->mutex);
    storage->woken = true;
    storage->asked.notify_one();
}

// The next request that has not run, without the lock: others may submit meanwhile.
void run_one(stw_storage *storage, Lock *lock)
{
    const size_t at = (storage->first + storage->ran) % storage->ring.size();
    lock->unlock();
    storage->results[at] = move(storage, storage->ring[at]);
    lock->lock();
    ++storage->ran;
}

// Runs one request, waiting for it at most wait_ns, and gives back what has run.
uint32_t zstd_poll(stw_storage *storage, stw_io_done *done, uint32_t capacity, uint64_t wait_ns)
{
    const auto wait = std::chrono::nanoseconds(std::min<uint64_t>(wait_ns, UINT32_MAX * 1000ull));
    Lock lock(storage->mutex);
    storage->asked.wait_for(lock, wait, [&] { return storage->held > 0 || storage->woken; });
    storage->woken = false;
    if (storage->ran < storage->held) run_one(storage, &lock);
    uint32_t n = 0;
    for (; n < capacity && storage->ran > 0; ++n, --storage->ran, --storage->held) {
        done[n] = {storage->ring[storage->first].tag, storage->results[storage->first]};
        storage->first = (storage->first + 1) % static_cast<uint32_t>(storage->ring.size());
    }
    return n;
}

// What was accepted is run to its end, as far as the time goes. Then the accounts are told.
stw_status zstd_close(stw_storage *storage, uint64_t wait_ns)
{
    const auto begin = std::chrono::steady_clock::now();
    Lock lock(storage->mutex);
    for (; storage->ran < storage->held; run_one(storage, &lock))
        if (std::chrono::steady_clock::now() - begin >= std::chrono::nanoseconds(wait_ns))
            return STW_ERROR_TIMEOUT;
    lock.unlock();
    uint64_t kept = 0;
    for (const Unit &unit : storage->units) kept += unit.bytes != 0 ? kUnit : 0;
    const uint64_t taken = (storage->next.size() - storage->free_count) * kChunk;
    const std::string line = std::to_string(kept) + " bytes were kept in " + std::to_string(taken) +
                             " of " + std::to_string(storage->arena.size());
    if (const auto log = storage->services.log)
        log(storage->services.user, 3, "zstd", line.c_str());
    delete storage;
    return STW_OK;
}

// clang-format off
constexpr stw_storage_ops kOps = {
    sizeof(stw_storage_ops), STW_DRIVER_ABI, "zstd", STW_STORAGE_IN_MEMORY, zstd_open, zstd_info,
    zstd_submit, zstd_poll, zstd_wake, [](stw_storage *) { return stw_status{}; }, zstd_close,
    nullptr, nullptr};
// clang-format on
constexpr stw_driver_module kModule = {sizeof(stw_driver_module), STW_DRIVER_ABI, &kOps, nullptr,
                                       nullptr};

}  // namespace

extern "C" const stw_driver_module *stw_driver_module_get()
{
    return &kModule;
}
