// SPDX-License-Identifier: Apache-2.0
// Durable stores: how they are created, found and resumed, on all ranks or on none.
#include "lib/runtime/durable/opening.h"

#include "lib/collective/commit.h"
#include "lib/runtime/group/state.h"
#include "lib/runtime/recording/grounds.h"
#include "lib/runtime/restored/durable.h"
#include "lib/runtime/restored/restored.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstring>

namespace stepwell {
namespace {

constexpr uint32_t kKeptDefault = 2;
constexpr const char *kBlocksEnd = ".stepwell";
constexpr const char *kGenerationsEnd = ".generations";

std::string part_name(const char *store, uint32_t rank, uint32_t ranks)
{
    return format_text("%s.%u-of-%u", store, rank, ranks);
}

// The number of ranks that wrote the store's files in the directory, if it differs from `ranks`;
// 0: the same number, or no files.
uint32_t other_ranks_there(const char *directory, const std::string &store, uint32_t ranks)
{
    DIR *entries = ::opendir(directory);
    if (!entries) return 0;
    uint32_t found = 0;
    const std::string begin = store + ".";
    while (const dirent *entry = ::readdir(entries)) {
        unsigned rank = 0;
        unsigned of = 0;
        int end = 0;
        const char *name = entry->d_name;
        if (std::strncmp(name, begin.c_str(), begin.size()) != 0) continue;
        const char *rest = name + begin.size();
        if (std::sscanf(rest, "%u-of-%u.stepwell%n", &rank, &of, &end) != 2 || end == 0) continue;
        if (rest[end] != '\0' || part_name(store.c_str(), rank, of) + kBlocksEnd != name) continue;
        found = of;
        if (of != ranks) continue;
        found = 0;
        break;
    }
    ::closedir(entries);
    return found;
}

// The number of blocks in a file of the store; 0: there is none. A guess if it cannot be read;
// opening the store reports the error then.
uint64_t slots_there(const std::string &name, uint64_t block_bytes)
{
    const int file = ::open(name.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file < 0) return errno == ENOENT ? 0 : 1;
    uint8_t bytes[store::kSuperblockBytes] = {};
    struct stat at {};
    uint64_t slots = 0;
    if (::fstat(file, &at) == 0 && ::pread(file, bytes, sizeof bytes, 0) == sizeof bytes) {
        const auto size = static_cast<uint64_t>(at.st_size);
        const Result<store::Superblock> found = store::decode(bytes, size, name.c_str());
        slots = found.ok() ? found.value().slots : store::Store::blocks_in(size, block_bytes, 1);
    }
    ::close(file);
    return std::max<uint64_t>(slots, 1);
}

}  // namespace

uint32_t DurableOpen::generations_kept(const stw_runtime_options &options)
{
    return options.generations_kept ? options.generations_kept : kKeptDefault;
}

// Blocks in the directory. Its budget includes the superblock and, in the first, the generations.
uint64_t DurableOpen::store_blocks(const stw_runtime_options &options, uint32_t index)
{
    const uint64_t block = options.block_bytes ? options.block_bytes : uint64_t{STW_BLOCK_2M};
    const auto blocks_of = [&](uint32_t at, uint64_t less) {
        const uint64_t bytes = options.nvme[at].budget_bytes;
        return store::Store::blocks_in(bytes > less ? bytes - less : 0, block, 1);
    };
    if (!options.store_name || index != 0) return blocks_of(index, 0);
    uint64_t all = 0;
    for (uint32_t i = 0; i < options.nvme_count; ++i) all += blocks_of(i, 0);
    return blocks_of(0, store::Generations::file_bytes(all, generations_kept(options)));
}

// When a store is resumed, budgets of 0 become those of its files. They stay 0 if there are none;
// the open then fails on all ranks.
void DurableOpen::find_budgets(const stw_runtime_options &options, stw_nvme_options *nvme)
{
    if (!options.store_name || (options.flags & STW_RUNTIME_RESUME) == 0) return;
    const auto [rank, ranks] = durable_place(options);
    const std::string name = part_name(options.store_name, rank, ranks) + kBlocksEnd;
    const uint64_t block = options.block_bytes ? options.block_bytes : uint64_t{STW_BLOCK_2M};
    uint64_t first_slots = 0;
    for (uint32_t i = 0; i < options.nvme_count; ++i) {
        if (nvme[i].budget_bytes != 0) continue;
        const uint64_t slots = slots_there(std::string(nvme[i].path) + "/" + name, block);
        if (slots == 0) continue;
        nvme[i].budget_bytes = store::kReservedBytes + slots * block;
        if (i == 0) first_slots = slots;
    }
    // The generations file grows with the budget, by much less than a block for each block.
    while (first_slots > 0 && store_blocks(options, 0) < first_slots) {
        nvme[0].budget_bytes += block;
    }
}

// -------------------------------------------------------------------------------------- ranks ----

// This rank's number among the ranks of all groups, and their count.
std::pair<uint32_t, uint32_t> DurableOpen::durable_place(const stw_runtime_options &options)
{
    if (!options.group || !options.group->body) return {0, 1};
    const collective::Group &group = *options.group->body;
    const collective::Group *replicas = replicas_of(options);
    const uint32_t before = replicas ? replicas->rank() : 0;
    return {before * group.size() + group.rank(), group.size() * (replicas ? replicas->size() : 1)};
}

// Agrees over the group, and then over the replicas with its result. If the group was not heard,
// the replicas are not asked: their ranks then hear nothing either, and are undecided like this
// one.
Status DurableOpen::agree_store(collective::Record mine, std::vector<collective::Record> &all,
                                bool *heard_out)
{
    if (!machine_.ranks) {
        mine.sequence = 1;
        all.assign(1, mine);
        *heard_out = true;
        return collective::compare(all.data(), 1, 0);
    }
    Status status = machine_.ranks->group.agree(mine, all);
    *heard_out = collective::is_heard(all);
    if (!machine_.ranks->replicas || !*heard_out) return status;
    mine.counts[0] = all[0].counts[0];
    if (!status.ok()) collective::set_status(mine, status);
    std::vector<collective::Record> others;
    Status replicas = machine_.ranks->replicas->agree(mine, others);
    *heard_out = collective::is_heard(others);
    if (*heard_out) all[0].counts[0] = others[0].counts[0];
    return status.ok() ? replicas : status;
}

// What all ranks have found, by rank.
Status DurableOpen::exchange_found(const collective::FoundGenerations &mine,
                                   std::vector<collective::FoundGenerations> *all)
{
    constexpr auto kBytes = static_cast<uint32_t>(sizeof mine);
    all->assign(1, mine);
    if (!machine_.ranks) return {};
    all->resize(machine_.ranks->group.size());
    STW_TRY(machine_.ranks->group.exchange(&mine, all->data(), kBytes));
    if (!machine_.ranks->replicas) return {};
    // Replicas exchange what each rank of their groups has found, one rank at a time.
    const uint32_t size = machine_.ranks->group.size();
    const uint32_t others = machine_.ranks->replicas->size();
    std::vector<collective::FoundGenerations> every(size_t{size} * others);
    std::vector<collective::FoundGenerations> of_rank(others);
    for (uint32_t rank = 0; rank < size; ++rank) {
        STW_TRY(machine_.ranks->replicas->exchange(&(*all)[rank], of_rank.data(), kBytes));
        for (uint32_t other = 0; other < others; ++other) {
            every[size_t{other} * size + rank] = of_rank[other];
        }
    }
    *all = std::move(every);
    return {};
}

// ------------------------------------------------------------------------------------ opening ----

// Fails if the files were written by another number of ranks.
Status DurableOpen::check_ranks_there(const stw_runtime_options &options)
{
    const uint32_t ranks = durable_place(options).second;
    const uint32_t there = other_ranks_there(options.nvme[0].path, options.store_name, ranks);
    if (there == 0) return {};
    return Status::error(STW_ERROR_MISMATCH,
                         "the store '%s' in '%s' was written by %u ranks and is opened by %u; "
                         "start as many as wrote it",
                         options.store_name, options.nvme[0].path, there, ranks);
}

// On this rank alone. A failure leaves no new files.
Status DurableOpen::open_parts(const stw_runtime_options &options, store::StoreOptions &store,
                               store::Stay stay, std::unique_ptr<store::Store> *store_out)
{
    const auto [rank, ranks] = durable_place(options);
    const std::string part = part_name(options.store_name, rank, ranks);
    store.stay = stay;
    store.name = part + kBlocksEnd;
    Result<std::unique_ptr<store::Store>> blocks = store::Store::open(store);
    if (!blocks.ok()) {
        Status why = std::move(blocks.status());
        if (why.code() == STW_ERROR_MISMATCH && stay == store::Stay::kOpen)
            why.mutable_detail().sentence +=
                " generations_kept counts as well: the first directory's budget pays for them.";
        return why;
    }
    store::GenerationsOptions wanted;
    wanted.services = &machine_.services;
    wanted.stay = stay;
    wanted.name = part + kGenerationsEnd;
    wanted.driver_options = store.paths[0].driver_options;
    wanted.kept = generations_kept(options);
    Result<std::unique_ptr<store::Generations>> generations =
        store::Generations::open(wanted, *blocks.value());
    if (!generations.ok()) {
        if (stay == store::Stay::kOpen) return std::move(generations.status());
        (void)blocks.value()->close(0);
        remove_parts(options, false);
        return std::move(generations.status());
    }
    *store_out = blocks.take();
    restored_.durable->generations = generations.take();
    return {};
}

// Removes the files of an open that failed on another rank, or on this one after blocks were
// created.
void DurableOpen::remove_parts(const stw_runtime_options &options, bool with_generations)
{
    const auto [rank, ranks] = durable_place(options);
    const std::string part = part_name(options.store_name, rank, ranks);
    for (uint32_t i = 0; i < options.nvme_count; ++i) {
        const std::string path = std::string(options.nvme[i].path) + "/" + part;
        (void)::unlink((path + kBlocksEnd).c_str());
        if (i == 0 && with_generations) (void)::unlink((path + kGenerationsEnd).c_str());
    }
}

// Whether this rank has files, even if they cannot be opened.
uint16_t DurableOpen::files_there(const stw_runtime_options &options) const
{
    const auto [rank, ranks] = durable_place(options);
    const std::string part = part_name(options.store_name, rank, ranks);
    uint32_t there = 0;
    for (uint32_t i = 0; i < options.nvme_count; ++i) {
        const std::string path = std::string(options.nvme[i].path) + "/" + part;
        there += ::access((path + kBlocksEnd).c_str(), F_OK) == 0 ? 1 : 0;
        if (i == 0) there += ::access((path + kGenerationsEnd).c_str(), F_OK) == 0 ? 1 : 0;
    }
    return there == 0 ? collective::kNoFiles : collective::kSomeFiles;
}

// All ranks must have been asked to do the same; a failure of one is reported to all.
Status DurableOpen::agree_open(const stw_runtime_options &options, const Status &mine)
{
    collective::Record record =
        collective::make_record(collective::Kind::kStore, options.store_name);
    const uint64_t asked[] = {options.flags & (STW_RUNTIME_RESUME | STW_RUNTIME_OVERWRITE),
                              options.resume_generation, generations_kept(options)};
    record.spec = collective::hash_bytes(0, asked, sizeof asked);
    collective::set_text(record, format_text("flags 0x%" PRIx64 ", resume_generation %" PRIu64
                                             ", generations_kept %" PRIu64,
                                             asked[0], asked[1], asked[2]));
    if (!mine.ok()) collective::set_status(record, mine);
    std::vector<collective::Record> all;
    bool heard = false;
    Status agreed = agree_store(record, all, &heard);
    return mine.ok() ? agreed : mine;
}

Status DurableOpen::make_store(const stw_runtime_options &options, store::StoreOptions &store,
                               Status before, std::unique_ptr<store::Store> *store_out)
{
    const bool replaces = (options.flags & STW_RUNTIME_OVERWRITE) != 0;
    Status mine = std::move(before);
    if (mine.ok()) {
        mine = open_parts(options, store, replaces ? store::Stay::kReplace : store::Stay::kCreate,
                          store_out);
    }
    Status agreed = agree_open(options, mine);
    if (!agreed.ok() && mine.ok()) {
        (void)restored_.durable->generations->close(0);
        (void)(*store_out)->close(0);
        remove_parts(options, true);
    }
    return agreed;
}

// Chooses a generation that all ranks have; NOT_FOUND on all ranks if there is none.
Status DurableOpen::find_store(const stw_runtime_options &options, store::StoreOptions &store,
                               Status before, std::unique_ptr<store::Store> *store_out)
{
    Status mine = check_ranks_there(options);
    if (mine.ok()) mine = std::move(before);
    if (mine.ok()) mine = open_parts(options, store, store::Stay::kOpen, store_out);
    const bool none = mine.code() == STW_ERROR_NOT_FOUND;
    STW_TRY(agree_open(options, none ? Status() : mine));
    std::vector<collective::FoundGenerations> found;
    const bool damaged = !none && !restored_.durable->generations->damage().empty();
    collective::FoundGenerations told;
    if (none) told.files = files_there(options);
    if (!none) told = collective::tell(restored_.durable->generations->found(), damaged);
    STW_TRY(exchange_found(told, &found));
    const std::vector<store::GenerationId> resumable =
        collective::hear(found, generations_kept(options));
    Result<store::GenerationId> chosen =
        collective::choose(resumable, options.resume_generation, found, options.store_name);
    restored_.durable->unused = options.resume_generation == 0 && collective::is_unused(found);
    if (!chosen.ok() && damaged) {
        chosen.status().mutable_detail().sentence +=
            std::string("; ") + restored_.durable->generations->damage();
    }
    if (!chosen.ok()) return none && found.size() == 1 ? mine : std::move(chosen.status());
    Result<store::Manifest> resumed =
        restored_.durable->generations->resume(chosen.value(), resumable);
    STW_TRY(agree_open(options, resumed.status()));
    const std::string &damage = restored_.durable->generations->damage();
    if (!damage.empty()) {
        dispatch_.log.print(
            STW_LOG_WARNING, "store",
            "'%s': a generation is passed over, which was being written when its process "
            "ended, or has rotted since; generation %" PRIu64 " is resumed: %s",
            options.store_name, chosen.value().number, damage.c_str());
    }
    restored_.expect_tensors(resumed.take());
    return {};
}

Status DurableOpen::open_durable(const stw_runtime_options &options, store::StoreOptions &store,
                                 Status before, std::unique_ptr<store::Store> *store_out)
{
    restored_.durable = std::make_unique<Durable>();
    restored_.durable->name = options.store_name;
    restored_.durable->ranks = durable_place(options).second;
    Status status;
    if ((options.flags & STW_RUNTIME_RESUME) != 0) {
        status = find_store(options, store, before, store_out);
        const bool anew = (options.flags & STW_RUNTIME_OVERWRITE) != 0 && restored_.durable->unused;
        if (status.code() != STW_ERROR_NOT_FOUND || !anew || !before.ok()) return status;
        restored_.durable->generations.reset();
        store_out->reset();
    }
    return make_store(options, store, std::move(before), store_out);
}

void DurableOpen::close_durable(uint64_t timeout_ns)
{
    if (restored_.durable && restored_.durable->generations)
        (void)restored_.durable->generations->close(timeout_ns);
}

}  // namespace stepwell
