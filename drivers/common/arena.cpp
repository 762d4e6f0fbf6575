// SPDX-License-Identifier: Apache-2.0
// Arenas of host memory, for the host tier and for the device tier of a machine without a device.
#include "drivers/common/arena.h"

#include "drivers/common/edge.h"
#include "drivers/common/mutex.h"
#include "drivers/common/system.h"

#include <algorithm>
#include <bit>
#include <cerrno>

#ifndef MADV_DONTNEED_LOCKED
#define MADV_DONTNEED_LOCKED 24  // Linux 5.18
#endif
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23  // Linux 5.14
#endif

namespace stepwell::drivers {

bool Mapping::map(uint64_t bytes, uint64_t alignment_bytes, int protection, int flags)
{
    if (bytes > UINT64_MAX - alignment_bytes) {
        errno = ENOMEM;
        return false;
    }
    void *range = mmap(nullptr, bytes + alignment_bytes, protection,
                       MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
    if (range == MAP_FAILED) return false;
    char *start = static_cast<char *>(range);
    const uint64_t address = reinterpret_cast<uintptr_t>(start);
    const uint64_t before = (alignment_bytes - address % alignment_bytes) % alignment_bytes;
    if (before > 0) munmap(start, before);
    const uint64_t after = alignment_bytes - before;
    if (after > 0) munmap(start + before + bytes, after);
    Mapping mapping;
    mapping.base_ = start + before;
    mapping.bytes_ = bytes;
    *this = std::move(mapping);
    return true;
}

void add_sentence(std::string *text, const std::string &sentence)
{
    if (!text->empty()) *text += " ";
    *text += sentence;
}

uint64_t arena_alignment(const stw_memory_options &options)
{
    return std::max<uint64_t>(kHugePageBytes, options.block_bytes);
}

stw_status refuse_addresses(stw_status status, uint64_t bytes, const char *whose,
                            stw_driver_error *error_out)
{
    const int cause = errno;
    const AddressRoom room = address_room();
    const bool limited = room.limit_bytes != UINT64_MAX;
    return fail(error_out, status, {cause, bytes, limited ? room.left_bytes() : 0},
                "The kernel refuses %s of addresses for %s%s; raise %s, or lower the budgets.",
                bytes_text(bytes).c_str(), whose, address_text(room).c_str(),
                limited ? "ulimit -v" : "vm.overcommit_memory or vm.max_map_count");
}

stw_status reserve_arena(const char *driver, const stw_memory_options &options, bool huge,
                         Arena *arena_out, stw_driver_error *error_out)
{
    const uint64_t bytes = options.bytes;
    MemoryRoom room = memory_room();
    room.owed_bytes = owed_bytes();
    if (const stw_status status = check_memory_room(bytes, driver, room, error_out)) return status;
    Arena arena;
    if (!arena.mapping.map(bytes, arena_alignment(options), PROT_READ | PROT_WRITE, 0)) {
        const std::string whose = std::string("the ") + driver + " memory";
        return refuse_addresses(STW_ERROR_MEMORY, bytes + arena_alignment(options), whose.c_str(),
                                error_out);
    }
    char *base = arena.mapping.base();
    // A fork must not give pages under I/O to the child.
    madvise(base, bytes, MADV_DONTFORK);
    if (huge) {
        const std::string mode = read_text("/sys/kernel/mm/transparent_hugepage/enabled");
        const bool off = mode.empty() || mode.find("[never]") != std::string::npos;
        arena.huge_pages = madvise(base, bytes, MADV_HUGEPAGE) == 0 && !off;
        if (!arena.huge_pages)
            add_sentence(&arena.remark, "Huge pages are off; 'echo madvise > "
                                        "/sys/kernel/mm/transparent_hugepage/enabled' lifts it.");
    }
    *arena_out = std::move(arena);
    return STW_OK;
}

void ArenaMemory::info(stw_memory_info *info_out) const
{
    stw_memory_info info = {};
    info.locked = locked;
    info.base = arena.mapping.base();
    info.bytes = arena.mapping.bytes();
    info.numa_node = numa_node;
    info.huge_pages = arena.huge_pages;
    copy_text(info.remark, sizeof info.remark, arena.remark);
    give_info(info, info_out);
}

namespace {

constexpr uint64_t kPageBytes = 4096;

stw_status populate(const char *driver, char *base, uint64_t bytes, stw_driver_error *error_out)
{
    int cause = 0;
    do {
        cause = madvise(base, bytes, MADV_POPULATE_WRITE) == 0 ? 0 : errno;
    } while (cause == EINTR || cause == EAGAIN);
    if (cause == EINVAL) {  // an older kernel
        for (uint64_t offset = 0; offset < bytes; offset += kPageBytes)
            static_cast<volatile char *>(base)[offset] = 0;
        return STW_OK;
    }
    if (cause == 0) return STW_OK;
    return fail(error_out, STW_ERROR_MEMORY, {cause, bytes, 0},
                "The kernel could not give all %s of the %s memory; lower the budget.",
                bytes_text(bytes).c_str(), driver);
}

// Locked pages are given back only by a request that older kernels do not know.
bool drop_pages(char *base, uint64_t bytes)
{
    if (madvise(base, bytes, MADV_DONTNEED) == 0) return true;
    if (errno != EINVAL) return false;
    if (madvise(base, bytes, MADV_DONTNEED_LOCKED) == 0) return true;
    munlock(base, bytes);
    return madvise(base, bytes, MADV_DONTNEED) == 0;
}

uint64_t resident_bytes(const Mapping &mapping)
{
    constexpr uint64_t kAtOnce = uint64_t{1} << 30;
    std::vector<unsigned char> pages(std::min(kAtOnce, mapping.bytes()) / kPageBytes);
    uint64_t resident = 0;
    for (uint64_t at = 0; at < mapping.bytes(); at += kAtOnce) {
        const uint64_t bytes = std::min(kAtOnce, mapping.bytes() - at);
        if (mincore(mapping.base() + at, bytes, pages.data()) != 0) continue;
        resident += kPageBytes *
                    static_cast<uint64_t>(std::count_if(
                        pages.begin(), pages.begin() + static_cast<ptrdiff_t>(bytes / kPageBytes),
                        [](unsigned char page) { return (page & 1) != 0; }));
    }
    return resident;
}

constinit Mutex lazy_mutex;
constinit ArenaMemory *lazy_first = nullptr;  // under that mutex

}  // namespace

uint64_t owed_bytes()
{
    MutexLock lock(lazy_mutex);
    uint64_t owed = 0;
    for (const ArenaMemory *at = lazy_first; at != nullptr; at = at->next_) owed += at->owed();
    return owed;
}

uint64_t ArenaMemory::owed() const
{
    const uint64_t taken =
        moved_bytes.load(std::memory_order_relaxed) + given_bytes_ + resident_bytes(arena.mapping);
    return arena.mapping.bytes() - std::min(arena.mapping.bytes(), taken);
}

stw_status ArenaMemory::settle(const char *driver, stw_driver_error *error_out)
{
    if (populates) return populate_arena(driver, arena, error_out);
    given_back_.resize(arena.mapping.bytes() / block_bytes);
    MutexLock lock(lazy_mutex);
    next_ = std::exchange(lazy_first, this);
    return STW_OK;
}

ArenaMemory::~ArenaMemory()
{
    MutexLock lock(lazy_mutex);
    for (ArenaMemory **at = &lazy_first; *at != nullptr; at = &(*at)->next_) {
        if (*at != this) continue;
        *at = next_;
        return;
    }
}

// Calls for different blocks run in parallel.
void ArenaMemory::note_given(uint32_t first_block, uint32_t count, bool given)
{
    if (populates) return;
    MutexLock lock(lazy_mutex);
    for (uint32_t block = first_block; block < first_block + count; ++block) {
        if (given_back_[block] == given) continue;
        given_back_[block] = given;
        given_bytes_ += given ? block_bytes : -uint64_t{block_bytes};
    }
}

stw_status populate_arena(const char *driver, const Arena &arena, stw_driver_error *error_out)
{
    return populate(driver, arena.mapping.base(), arena.mapping.bytes(), error_out);
}

bool ArenaMemory::has(uint32_t first_block, uint32_t count) const
{
    const uint64_t blocks = arena.mapping.bytes() / block_bytes;
    return count > 0 && first_block < blocks && count <= blocks - first_block;
}

stw_status ArenaMemory::give_back(uint32_t first_block, uint32_t count)
{
    if (!has(first_block, count)) return STW_ERROR_INVALID;
    char *base = arena.mapping.base() + uint64_t{first_block} * block_bytes;
    if (!drop_pages(base, uint64_t{count} * block_bytes)) return STW_ERROR_UNSUPPORTED;
    note_given(first_block, count, true);
    return STW_OK;
}

stw_status ArenaMemory::take_back(const char *driver, uint32_t first_block, uint32_t count,
                                  stw_driver_error *error_out)
{
    if (!has(first_block, count))
        return fail(error_out, STW_ERROR_INVALID, {}, "The %s memory has no block %u of %u.",
                    driver, first_block, count);
    char *base = arena.mapping.base() + uint64_t{first_block} * block_bytes;
    const uint64_t bytes = uint64_t{count} * block_bytes;
    if (const stw_status status = check_memory_room(bytes, driver, memory_room(), error_out))
        return status;
    stw_status status = populates ? populate(driver, base, bytes, error_out) : STW_OK;
    if (status == STW_OK && locked && mlock2(base, bytes, 0) != 0)
        status = fail(error_out, STW_ERROR_MEMORY, {errno, bytes, 0},
                      "The kernel does not lock %s of the %s memory again (ulimit -l).",
                      bytes_text(bytes).c_str(), driver);
    if (status != STW_OK) drop_pages(base, bytes);
    if (status == STW_OK) note_given(first_block, count, false);
    return status;
}

}  // namespace stepwell::drivers
