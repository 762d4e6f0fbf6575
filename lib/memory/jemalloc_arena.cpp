// SPDX-License-Identifier: Apache-2.0
// The interface of jemalloc 5.3, as its manual page describes it, found by name at run time.
#include "lib/memory/jemalloc_arena.h"

#include <dlfcn.h>

#include <atomic>
#include <bit>
#include <cstdio>
#include <cstring>

namespace stepwell::memory {
namespace {

constexpr int kNoThreadCache = 0x100;  // MALLOCX_TCACHE_NONE
constexpr int kArenaShift = 20;        // MALLOCX_ARENA

// extent_hooks_t: what is null is not done. Memory is taken, split and joined, never given back.
struct ExtentHooks {
    void *(*take)(ExtentHooks *hooks, void *wanted, size_t bytes, size_t align_bytes, bool *zero,
                  bool *commit, unsigned arena);
    void *give = nullptr;
    void *destroy = nullptr;
    void *commit = nullptr;
    void *decommit = nullptr;
    void *purge_lazy = nullptr;
    void *purge_forced = nullptr;
    bool (*split)(ExtentHooks *hooks, void *address, size_t bytes, size_t first, size_t second,
                  bool committed, unsigned arena);
    bool (*join)(ExtentHooks *hooks, void *first, size_t first_bytes, void *second,
                 size_t second_bytes, bool committed, unsigned arena);
};

// arena_config_t.
struct ArenaConfig {
    ExtentHooks *hooks;
    bool tables_by_hooks;
};

template <class Function> bool find(const char *name, Function *function_out)
{
    *function_out = reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
    return *function_out != nullptr;
}

}  // namespace

struct JemallocArena::Functions {
    int (*control)(const char *name, void *old, size_t *old_bytes, void *now, size_t now_bytes);
    void *(*take)(size_t bytes, int flags);
    void (*give)(void *pointer, int flags);
    size_t (*size)(const void *pointer, int flags);
};

// The range, taken from its begin to its end. What jemalloc has got it keeps and uses again.
struct JemallocArena::Hooks : ExtentHooks {
    char *base = nullptr;
    uint64_t bytes = 0;
    std::atomic<uint64_t> taken{0};
};

JemallocArena::JemallocArena() = default;

std::unique_ptr<JemallocArena> JemallocArena::open(char *base, uint64_t bytes)
{
    auto functions = std::make_unique<Functions>();
    if (!find("mallctl", &functions->control) || !find("mallocx", &functions->take) ||
        !find("dallocx", &functions->give) || !find("sallocx", &functions->size)) {
        return nullptr;
    }
    const char *version = nullptr;
    size_t size = sizeof version;
    if (functions->control("version", &version, &size, nullptr, 0) != 0) return nullptr;
    if (std::strncmp(version, "5.", 2) != 0) return nullptr;
    std::unique_ptr<JemallocArena> arena(new JemallocArena());
    arena->hooks_ = std::make_unique<Hooks>();
    Hooks &hooks = *arena->hooks_;
    hooks.base = base;
    hooks.bytes = bytes;
    hooks.take = [](ExtentHooks *table, void *wanted, size_t wanted_bytes, size_t align_bytes,
                    bool *zero, bool *commit, unsigned) -> void * {
        auto &mine = *static_cast<Hooks *>(table);
        uint64_t taken = mine.taken.load();
        for (;;) {
            const uint64_t at = reinterpret_cast<uintptr_t>(mine.base) + taken;
            const uint64_t gap = (align_bytes - at % align_bytes) % align_bytes;
            if (gap > mine.bytes - taken || wanted_bytes > mine.bytes - taken - gap) return nullptr;
            char *pointer = mine.base + taken + gap;
            if (wanted && wanted != pointer) return nullptr;
            if (!mine.taken.compare_exchange_weak(taken, taken + gap + wanted_bytes)) continue;
            *zero = *commit = true;  // nobody has written there since it was mapped
            return pointer;
        }
    };
    hooks.split = [](ExtentHooks *, void *, size_t, size_t, size_t, bool, unsigned) {
        return false;  // done
    };
    hooks.join = [](ExtentHooks *, void *, size_t, void *, size_t, bool, unsigned) {
        return false;
    };
    // Its tables stay outside: the range is not there in a forked child, where jemalloc looks at
    // the tables of all arenas. Versions that cannot do that are as good as none.
    ArenaConfig config{&hooks, false};
    size = sizeof arena->number_;
    if (functions->control("experimental.arenas_create_ext", &arena->number_, &size, &config,
                           sizeof config) != 0) {
        return nullptr;
    }
    arena->functions_ = std::move(functions);
    arena->created_ = true;
    // What is free is joined with its neighbours at once.
    for (const char *kind : {"dirty", "muzzy"}) {
        char name[64];
        std::snprintf(name, sizeof name, "arena.%u.%s_decay_ms", arena->number_, kind);
        ssize_t at_once = 0;
        (void)arena->functions_->control(name, nullptr, nullptr, &at_once, sizeof at_once);
    }
    arena->take_range(bytes);
    return arena;
}

// It takes memory in ever larger extents, and never joins two of them. One piece as large as can
// be, given back, makes one extent of the range.
void JemallocArena::take_range(uint64_t bytes)
{
    const uint64_t less = bytes / 64;
    for (uint64_t size = bytes; size > less; size -= less) {
        void *all = take(size, 1);
        if (!all) continue;
        give(all);
        return;
    }
}

JemallocArena::~JemallocArena()
{
    if (!created_) return;
    char name[64];
    std::snprintf(name, sizeof name, "arena.%u.destroy", number_);
    (void)functions_->control(name, nullptr, nullptr, nullptr, 0);
}

void *JemallocArena::take(uint64_t bytes, uint64_t align_bytes)
{
    const int flags = std::countr_zero(align_bytes) | kNoThreadCache |
                      static_cast<int>((number_ + 1) << kArenaShift);
    return functions_->take(bytes, flags);
}

void JemallocArena::give(void *pointer)
{
    functions_->give(pointer, kNoThreadCache);
}

uint64_t JemallocArena::bytes_of(void *pointer) const
{
    return functions_->size(pointer, 0);
}

}  // namespace stepwell::memory
