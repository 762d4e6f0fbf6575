// SPDX-License-Identifier: Apache-2.0
// A store that stays: how it is made, found and resumed, on all ranks or on none; and how a tensor
// finds what the resumed generation has of it.
#include "lib/runtime/durable.h"
#include "lib/runtime/ranks.h"
#include "lib/support/assert.h"

#include <dirent.h>
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <utility>

namespace stepwell {
namespace {

constexpr uint32_t kKeptDefault = 2;
constexpr const char *kBlocksEnd = ".stepwell";
constexpr const char *kGenerationsEnd = ".generations";

std::string part_name(const char *store, uint32_t rank, uint32_t ranks)
{
    return format_text("%s.%u-of-%u", store, rank, ranks);
}

// How many ranks wrote the store of which there are files in the directory, where this many did
// not; 0: they did, or there are none.
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

}  // namespace

Runtime::DurableOwner::DurableOwner() = default;
Runtime::DurableOwner::~DurableOwner() = default;

uint32_t Runtime::generations_kept(const stw_runtime_options &options)
{
    return options.generations_kept ? options.generations_kept : kKeptDefault;
}

// Blocks of the directory: its budget pays the superblock and, of the first, the generations.
uint64_t Runtime::store_blocks(const stw_runtime_options &options, uint32_t index)
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

// ----------------------------------------------------------------------------- over the ranks ----

uint32_t Runtime::durable_rank() const
{
    if (!ranks_.body) return 0;
    const uint32_t before = ranks_->replicas ? ranks_->replicas->rank() : 0;
    return before * ranks_->group.size() + ranks_->group.rank();
}

uint32_t Runtime::durable_ranks() const
{
    if (!ranks_.body) return 1;
    return ranks_->group.size() * (ranks_->replicas ? ranks_->replicas->size() : 1);
}

// Over the group and then, with what came of it, over the replicas. Where the first was not heard
// nothing is told to the second: its ranks do not hear either, and are in doubt as this one is.
Status Runtime::agree_store(collective::Record mine, std::vector<collective::Record> &all,
                            bool *heard_out)
{
    if (!ranks_.body) {
        mine.sequence = 1;
        all.assign(1, mine);
        *heard_out = true;
        return collective::compare(all.data(), 1, 0);
    }
    Status status = ranks_->group.agree(mine, all);
    *heard_out = collective::is_heard(all);
    if (!ranks_->replicas || !*heard_out) return status;
    mine.counts[0] = all[0].counts[0];
    if (!status.ok()) collective::set_status(mine, status);
    std::vector<collective::Record> others;
    Status replicas = ranks_->replicas->agree(mine, others);
    *heard_out = collective::is_heard(others);
    if (*heard_out) all[0].counts[0] = others[0].counts[0];
    return status.ok() ? replicas : status;
}

// What all ranks have found, in the order of their numbers.
Status Runtime::exchange_found(const collective::FoundGenerations &mine,
                               std::vector<collective::FoundGenerations> *all)
{
    constexpr auto kBytes = static_cast<uint32_t>(sizeof mine);
    all->assign(1, mine);
    if (!ranks_.body) return {};
    all->resize(ranks_->group.size());
    STW_TRY(ranks_->group.exchange(&mine, all->data(), kBytes));
    if (!ranks_->replicas) return {};
    // Each tells its replicas of those of its own group one after the other.
    const uint32_t size = ranks_->group.size();
    const uint32_t others = ranks_->replicas->size();
    std::vector<collective::FoundGenerations> every(size_t{size} * others);
    std::vector<collective::FoundGenerations> of_rank(others);
    for (uint32_t rank = 0; rank < size; ++rank) {
        STW_TRY(ranks_->replicas->exchange(&(*all)[rank], of_rank.data(), kBytes));
        for (uint32_t other = 0; other < others; ++other) {
            every[size_t{other} * size + rank] = of_rank[other];
        }
    }
    *all = std::move(every);
    return {};
}

// -------------------------------------------------------------------------------- the opening ----

// Of this rank alone. `stay` says how; nothing is left of what fails.
Status Runtime::open_parts(const stw_runtime_options &options, store::StoreOptions &store,
                           store::Stay stay, std::unique_ptr<store::Store> *store_out)
{
    const std::string part = part_name(options.store_name, durable_rank(), durable_ranks());
    if (stay == store::Stay::kOpen) {
        const uint32_t there =
            other_ranks_there(options.nvme[0].path, options.store_name, durable_ranks());
        if (there != 0) {
            return Status::error(STW_ERROR_MISMATCH,
                                 "the store '%s' in '%s' was written by %u ranks and is opened by "
                                 "%u; start as many as wrote it",
                                 options.store_name, options.nvme[0].path, there, durable_ranks());
        }
    }
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
    wanted.services = &services_;
    wanted.stay = stay;
    wanted.name = part + kGenerationsEnd;
    wanted.driver_options = store.paths[0].driver_options;
    wanted.kept = generations_kept(options);
    Result<std::unique_ptr<store::Generations>> generations =
        store::Generations::open(wanted, *blocks.value());
    if (!generations.ok()) {
        if (stay == store::Stay::kOpen) return std::move(generations.status());
        (void)blocks.value()->close(0);
        remove_parts(options);
        return std::move(generations.status());
    }
    *store_out = blocks.take();
    durable_->generations = generations.take();
    return {};
}

// Made by an open that failed on another rank, or behind the blocks' files here.
void Runtime::remove_parts(const stw_runtime_options &options)
{
    const std::string part = part_name(options.store_name, durable_rank(), durable_ranks());
    for (uint32_t i = 0; i < options.nvme_count; ++i) {
        const std::string path = std::string(options.nvme[i].path) + "/" + part;
        (void)::unlink((path + kBlocksEnd).c_str());
        if (i == 0) (void)::unlink((path + kGenerationsEnd).c_str());
    }
}

// What each rank was asked to do must be the same; and all hear of whoever cannot.
Status Runtime::agree_open(const stw_runtime_options &options, const Status &mine)
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

// New on all ranks, or on none.
Status Runtime::make_store(const stw_runtime_options &options, store::StoreOptions &store,
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
        (void)durable_->generations->close(0);
        (void)(*store_out)->close(0);
        remove_parts(options);
    }
    return agreed;
}

// The same generation on all ranks. NOT_FOUND on all of them where there is none that all have.
Status Runtime::find_store(const stw_runtime_options &options, store::StoreOptions &store,
                           Status before, std::unique_ptr<store::Store> *store_out)
{
    Status mine = std::move(before);
    if (mine.ok()) mine = open_parts(options, store, store::Stay::kOpen, store_out);
    const bool none = mine.code() == STW_ERROR_NOT_FOUND;
    STW_TRY(agree_open(options, none ? Status() : mine));
    std::vector<collective::FoundGenerations> found;
    STW_TRY(exchange_found(none ? collective::FoundGenerations()
                                : collective::tell(durable_->generations->found()),
                           &found));
    const std::vector<store::GenerationId> resumable =
        collective::hear(found, generations_kept(options));
    Result<store::GenerationId> chosen =
        collective::choose(resumable, options.resume_generation, found, options.store_name);
    durable_->unused = options.resume_generation == 0 && collective::is_unused(found);
    if (!chosen.ok()) return none && found.size() == 1 ? mine : std::move(chosen.status());
    Result<store::Manifest> resumed = durable_->generations->resume(chosen.value(), resumable);
    STW_TRY(agree_open(options, resumed.status()));
    const std::string &damage = durable_->generations->damage();
    if (!damage.empty()) {
        log_.print(STW_LOG_WARNING, "store",
                   "'%s': a generation is passed over, which was being written when its process "
                   "ended, or has rotted since; generation %" PRIu64 " is resumed: %s",
                   options.store_name, chosen.value().number, damage.c_str());
    }
    expect_tensors(resumed.take());
    return {};
}

Status Runtime::open_durable(const stw_runtime_options &options, store::StoreOptions &store,
                             Status before, std::unique_ptr<store::Store> *store_out)
{
    durable_.body = std::make_unique<Durable>();
    durable_->name = options.store_name;
    durable_->ranks = durable_ranks();
    Status status;
    if ((options.flags & STW_RUNTIME_RESUME) != 0) {
        status = find_store(options, store, before, store_out);
        const bool anew = (options.flags & STW_RUNTIME_OVERWRITE) != 0 && durable_->unused;
        if (status.code() != STW_ERROR_NOT_FOUND || !anew || !before.ok()) return status;
        durable_->generations.reset();
        store_out->reset();
    }
    return make_store(options, store, std::move(before), store_out);
}

void Runtime::close_durable(uint64_t timeout_ns)
{
    if (durable_.body && durable_->generations) (void)durable_->generations->close(timeout_ns);
}

// ---------------------------------------------------------------------------------- restoring ----

void Runtime::expect_tensors(store::Manifest manifest)
{
    durable_->infos = durable_->generations->infos();
    durable_->blocks = std::move(manifest.blocks);
    durable_->packs.assign(durable_->blocks.size(), residency::kNone);
    for (store::StoredTensor &tensor : manifest.tensors) {
        std::string name = tensor.name;
        durable_->tensors[std::move(name)].tensor = std::move(tensor);
    }
    for (store::StoredCount &count : manifest.counts) {
        durable_->counts[std::move(count.name)] = count.count;
    }
    for (const auto &[name, slots] : durable_->generations->slots_by_tensor()) {
        durable_->not_made[name] = slots;
    }
    withhold_kept();
}

// Under the lock, or before anybody else has the runtime: the promises of tensors cover what is
// kept of them, and the rest may be promised to nobody.
void Runtime::withhold_kept()
{
    const uint64_t newest = durable_->infos.empty() ? 0 : durable_->infos.front().id.number;
    std::erase_if(durable_->gone,
                  [newest](const Durable::Gone &gone) { return gone.until <= newest; });
    uint64_t blocks = 0;
    for (const auto &[name, slots] : durable_->not_made) blocks += slots;
    for (const Durable::Gone &gone : durable_->gone) blocks += gone.blocks;
    core_.withhold(static_cast<uint32_t>(std::min<uint64_t>(blocks, UINT32_MAX)));
}

// Under the lock: what is kept of something that goes now is kept until so many more are committed.
void Runtime::note_gone(uint64_t blocks)
{
    if (blocks == 0 || durable_->infos.empty()) return;
    const uint64_t newest = durable_->infos.front().id.number;
    durable_->gone.push_back({blocks, newest + durable_->generations->kept_max()});
}

// Under the lock, of a commit that was one.
void Runtime::note_kept(const CommitWork &work)
{
    uint64_t not_made = 0;
    for (const auto &[name, slots] : durable_->not_made) not_made += slots;
    // These are in the generations up to the one before.
    if (not_made > 0) {
        durable_->gone.push_back(
            {not_made, work.generation - 1 + durable_->generations->kept_max()});
    }
    durable_->not_made.clear();
    for (const stw_tensor *tensor : work.tensors) {
        durable_->packs_kept[core_.pack_of(tensor->id)] = core_.pack_blocks(tensor->id);
    }
    durable_->tensors.clear();
    durable_->counts.clear();
    durable_->blocks_of_packs.clear();
    withhold_kept();
}

// Under the lock. Null: nothing of it is to be found.
const store::StoredTensor *Runtime::find_restored(const std::string &name) const
{
    if (!durable_.body) return nullptr;
    const auto found = durable_->tensors.find(name);
    if (found == durable_->tensors.end() || found->second.taken) return nullptr;
    const bool there = (found->second.tensor.flags & store::StoredTensor::kHasContents) != 0;
    return there ? &found->second.tensor : nullptr;
}

// Under the lock: whether it is to be found no more, as it was.
void Runtime::take_restored(const std::string &name, bool taken)
{
    if (!durable_.body) return;
    const auto found = durable_->tensors.find(name);
    if (found != durable_->tensors.end()) found->second.taken = taken;
}

Status Runtime::check_restored(const store::StoredTensor &there, const std::string &words)
{
    if (there.words == words) return {};
    return Status::error(STW_ERROR_MISMATCH,
                         "tensor '%s' is %s, and in the generation that was resumed it is %s; "
                         "create it alike, or under another name",
                         there.name.c_str(), words.c_str(), there.words.c_str());
}

// Under the lock: the core's tensor, over the blocks that it had.
Result<residency::TensorId> Runtime::restore_tensor(const residency::TensorSpec &wanted,
                                                    const store::StoredTensor &there)
{
    const uint64_t end = there.offset + wanted.bytes;
    const uint64_t blocks = (end + block_bytes_ - 1) / block_bytes_;
    residency::Stored stored;
    stored.shares = (there.flags & store::StoredTensor::kShares) != 0;
    stored.offset = there.offset;
    const bool sound =
        there.bytes == wanted.bytes && end >= there.offset && there.blocks.size() == blocks &&
        (stored.shares ? blocks == 1 && there.blocks[0] != store::kNoBlock : there.offset == 0);
    if (!sound) {
        return Status::error(STW_ERROR_FORMAT,
                             "the generation says of tensor '%s' that it lies in %zu blocks from "
                             "byte %" PRIu64 " on, where %" PRIu64 " bytes do not",
                             there.name.c_str(), there.blocks.size(), there.offset, wanted.bytes);
    }
    if (there.offset % wanted.align_bytes != 0) {
        return Status::error(STW_ERROR_MISMATCH,
                             "tensor '%s' lies at byte %" PRIu64 " of a block that it shares with "
                             "others, from before, and is now created with align_bytes %" PRIu64
                             "; create it with what it had",
                             there.name.c_str(), there.offset, wanted.align_bytes);
    }
    for (const uint32_t block : there.blocks) stored.there.push_back(block != store::kNoBlock);
    if (stored.shares) stored.pack = durable_->packs[there.blocks[0]];
    // What is kept of it is in its promise from here on.
    const auto waits = durable_->not_made.find(there.name);
    const uint64_t slots = waits == durable_->not_made.end() ? 0 : std::exchange(waits->second, 0);
    withhold_kept();
    Result<residency::TensorId> made = core_.restore(wanted, stored);
    if (!made.ok()) {
        if (slots > 0) waits->second = slots;
        withhold_kept();
        return made;
    }
    const residency::PackId pack = core_.pack_of(made.value());
    const bool joined = stored.shares && pack == stored.pack;
    const residency::TensorBlocks lies = core_.blocks_of(made.value());
    Status status;
    for (uint32_t i = 0; i < there.blocks.size() && !joined && status.ok(); ++i) {
        if (there.blocks[i] == store::kNoBlock) continue;
        status = engine_->store()->adopt(lies.first + i, durable_->blocks[there.blocks[i]]);
    }
    if (!status.ok()) {
        Commands out;
        (void)core_.destroy(made.value(), out);
        forget_blocks(out);
        for (const residency::PackId freed : out.freed_packs) release_pack(freed);
        if (slots > 0) waits->second = slots;
        withhold_kept();
        return status;
    }
    if (!joined) durable_->packs_kept[pack] = core_.pack_blocks(made.value());
    if (stored.shares && !joined) {
        durable_->packs[there.blocks[0]] = pack;
        durable_->blocks_of_packs[pack] = there.blocks[0];
    }
    return made;
}

// Under the lock. Its number may be another's next.
void Runtime::forget_pack(residency::PackId pack)
{
    if (!durable_.body) return;
    const auto kept = durable_->packs_kept.find(pack);
    if (kept != durable_->packs_kept.end()) {
        note_gone(uint64_t{kept->second} * durable_->generations->kept_max());
        durable_->packs_kept.erase(kept);
        withhold_kept();
    }
    const auto found = durable_->blocks_of_packs.find(pack);
    if (found == durable_->blocks_of_packs.end()) return;
    durable_->packs[found->second] = residency::kNone;
    durable_->blocks_of_packs.erase(found);
}

uint64_t Runtime::restored_count(const std::string &name)
{
    std::lock_guard<std::mutex> lock(mutex_);
    if (!durable_.body) return 0;
    const auto found = durable_->counts.find(name);
    return found == durable_->counts.end() ? 0 : found->second;
}

}  // namespace stepwell
