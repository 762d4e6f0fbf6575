// SPDX-License-Identifier: Apache-2.0
// Work, commits and crashes of all ranks, in an order that a seed decides.
#include "tests/generations/world.h"

#include <algorithm>
#include <cinttypes>
#include <cstdarg>
#include <cstdio>
#include <cstring>

namespace stepwell::generations {

namespace {

constexpr uint64_t kBlock = 4096;

const stw_services *services()
{
    static uint64_t now_ns = 0;
    static const stw_services lent = {
        sizeof(stw_services),
        STW_DRIVER_ABI,
        nullptr,
        [](void *) -> uint64_t { return now_ns += 1000; },
        [](void *, uint32_t, const char *, const char *) {},
    };
    return &lent;
}

bool is_off(const Rank &rank)
{
    return rank.disks[0]->is_off() || rank.disks[1]->is_off();
}

// All of the block follows from the number.
void fill(uint8_t *bytes, uint64_t value)
{
    for (uint64_t at = 0; at < kBlock; at += 8) {
        const uint64_t word = value * 0x9e3779b97f4a7c15ull + at;
        std::memcpy(bytes + at, &word, 8);
    }
}

}  // namespace

World::World(const Options &options) : options_(options), random_(options.seed)
{
    const uint64_t spread = options.ranks_max - options.ranks_min + 1;
    ranks_.resize(options.ranks_min + draw(spread));
    blocks_ = static_cast<uint32_t>(1 + draw(6));
    kept_ = static_cast<uint32_t>(1 + draw(3));
    paths_ = static_cast<uint32_t>(1 + draw(2));
    for (Rank &rank : ranks_) {
        for (auto &disk : rank.disks) disk = std::make_unique<Disk>(random_());
        rank.now.assign(blocks_, 0);
    }
}

void World::note(const char *format, ...)
{
    if (!options_.verbose) return;
    va_list arguments;
    va_start(arguments, format);
    std::vprintf(format, arguments);
    va_end(arguments);
    std::printf("\n");
}

void World::fail(const std::string &what)
{
    if (failure_.empty()) failure_ = what;
}

void World::check(const Status &status, const char *what)
{
    if (!status.ok()) fail(std::string(what) + ": " + status.sentence());
}

store::StoreOptions World::store_options(Rank &rank, store::Stay stay) const
{
    store::StoreOptions options;
    options.services = services();
    options.stay = stay;
    options.name = "store";
    options.block_bytes = kBlock;
    // What is promised at create: each block once as it is, and once for each that is kept. With
    // one kept and a vote that was not heard there are two of them.
    options.blocks = uint64_t{blocks_} * (kept_ == 1 ? 3 : kept_ + 1) + paths_;
    for (uint32_t path = 0; path < paths_; ++path) {
        options.paths.push_back({&Disk::ops(), "disk" + std::to_string(path),
                                 rank.disks[path]->options(), 0, nullptr, 0});
    }
    return options;
}

store::GenerationsOptions World::generations_options(Rank &rank, store::Stay stay) const
{
    store::GenerationsOptions options;
    options.services = services();
    options.stay = stay;
    options.name = "generations";
    options.driver_options = rank.disks[0]->options();
    options.kept = kept_;
    return options;
}

void World::make_ranks()
{
    for (Rank &rank : ranks_) {
        auto store = store::Store::open(store_options(rank, store::Stay::kCreate));
        check(store.status(), "a store is made");
        if (!store.ok()) return;
        rank.store = store.take();
        auto made =
            store::Generations::open(generations_options(rank, store::Stay::kCreate), *rank.store);
        check(made.status(), "generations are made");
        if (made.ok()) rank.generations = made.take();
    }
}

// --------------------------------------------------------------------------------- the blocks ----

bool World::write(Rank &rank, uint32_t block, uint64_t value)
{
    Result<store::Placement> place = rank.store->begin_write(rank.first + block, kBlock);
    if (!place.ok()) {
        if (!rank.generations->stuck().ok()) return false;
        fail(std::string("a write finds no slot: ") + place.status().sentence());
        return false;
    }
    alignas(4096) uint8_t bytes[kBlock];
    fill(bytes, value);
    rank.store->seal(place.value(), bytes);
    const uint32_t path = place.value().path;
    stw_io io{1, bytes, place.value().offset, kBlock, STW_IO_WRITE, 0};
    uint32_t accepted = 0;
    stw_io_done done{};
    (void)rank.store->ops(path).submit(rank.store->storage(path), &io, 1, &accepted);
    (void)rank.store->ops(path).poll(rank.store->storage(path), &done, 1, 0);
    const bool written = done.result == static_cast<int64_t>(kBlock);
    rank.store->end_write(place.value(), written);
    return written;
}

void World::read(Rank &rank, uint32_t block, uint64_t value, const char *when)
{
    Result<store::Placement> place = rank.store->begin_read(rank.first + block);
    if (!place.ok()) return fail(std::string(when) + ": " + place.status().sentence());
    alignas(4096) uint8_t bytes[kBlock] = {};
    alignas(4096) uint8_t wanted[kBlock];
    const uint32_t path = place.value().path;
    stw_io io{1, bytes, place.value().offset, kBlock, STW_IO_READ, 0};
    uint32_t accepted = 0;
    stw_io_done done{};
    (void)rank.store->ops(path).submit(rank.store->storage(path), &io, 1, &accepted);
    (void)rank.store->ops(path).poll(rank.store->storage(path), &done, 1, 0);
    const bool sums = rank.store->sum(place.value(), bytes) == place.value().sum;
    rank.store->end_read(place.value());
    if (is_off(rank)) return;
    if (!sums) return fail(format_text("%s: block %u does not sum to what is kept", when, block));
    fill(wanted, value);
    if (std::memcmp(bytes, wanted, kBlock) != 0)
        fail(format_text("%s: block %u has other bytes than the model", when, block));
}

// What a step does: some blocks are written back, some are dead.
void World::work(Rank &rank)
{
    const uint64_t changes = draw(2 * blocks_ + 1);
    for (uint64_t i = 0; i < changes && failure_.empty(); ++i) {
        const auto block = static_cast<uint32_t>(draw(blocks_));
        if (draw(8) == 0) {
            rank.store->forget(rank.first + block);
            rank.now[block] = 0;
        } else if (write(rank, block, ++values_)) {
            rank.now[block] = values_;
        } else {
            // Its newest bytes are elsewhere then; here they are given up.
            rank.store->forget(rank.first + block);
            rank.now[block] = 0;
            troubled_ |= is_off(rank);
        }
    }
}

Result<store::Manifest> World::keep_blocks(Rank &rank)
{
    store::Manifest manifest;
    store::StoredTensor tensor;
    tensor.name = "t";
    tensor.bytes = blocks_ * kBlock;
    tensor.flags = store::StoredTensor::kHasContents;
    // Those that are not on the disk yet.
    for (uint32_t block = 0; block < blocks_; ++block) {
        if (draw(3) > 0) continue;
        if (!write(rank, block, ++values_)) {
            rank.store->forget(rank.first + block);
            rank.now[block] = 0;
            return Status::error(STW_ERROR_IO, "block %u was not written", block);
        }
        rank.now[block] = values_;
    }
    for (uint32_t block = 0; block < blocks_; ++block) {
        if (rank.now[block] == 0) {
            tensor.blocks.push_back(store::kNoBlock);
            continue;
        }
        Result<store::Placement> place = rank.store->keep(rank.first + block, rank.commit->set());
        if (!place.ok()) return place.status();
        tensor.blocks.push_back(static_cast<uint32_t>(manifest.blocks.size()));
        manifest.blocks.push_back(place.value());
    }
    manifest.tensors.push_back(tensor);
    manifest.counts.push_back({"t", rank.now[0]});
    manifest.metadata = std::to_string(rank.now[0]);
    rank.committed[rank.commit->id()] = rank.now;
    return manifest;
}

// ----------------------------------------------------------------------------------- a commit ----

// Whether everybody's records come to everybody: a rank that has stopped says nothing.
bool World::exchange(std::vector<collective::Record> *records)
{
    for (collective::Record &record : *records) record.sequence = 1;
    return std::none_of(ranks_.begin(), ranks_.end(), [](const Rank &at) { return at.stopped; });
}

// What agreeing comes to for this rank, as the library's groups say it.
Status World::agree(const std::vector<collective::Record> &records, uint32_t rank, bool heard) const
{
    if (!heard) return Status::error(STW_ERROR_PEER, "a rank says nothing");
    return collective::compare(records.data(), static_cast<uint32_t>(records.size()), rank);
}

bool World::stops(const Rank &rank)
{
    return is_off(rank) || (power_ && draw(ranks_.size() * 4) == 0);
}

void World::close_commit(Rank &rank, const Status &agreed, bool heard)
{
    const Status status = rank.commit->close(agreed, heard);
    if (status.ok()) {
        promised_ = std::max(promised_, rank.commit->id().number);
        ++commits_;
        return;
    }
    doubts_ += !heard;
    troubled_ |= !rank.generations->stuck().ok();
}

void World::commit()
{
    std::vector<collective::Record> records(ranks_.size());
    for (uint32_t i = 0; i < ranks_.size(); ++i) {
        Rank &rank = ranks_[i];
        rank.stopped = stops(rank);
        rank.commit =
            std::make_unique<collective::Commit>(*rank.generations, "store", random_(), Status());
        records[i] = rank.commit->opening();
    }
    const bool begins = exchange(&records);
    bool goes_on = begins;
    for (uint32_t i = 0; i < ranks_.size(); ++i) {
        goes_on &= ranks_[i].commit->opened(agree(records, i, begins), records).ok();
    }
    // A store that is stuck says so at each beginning: all are opened again.
    troubled_ |= !goes_on;
    if (!goes_on) return;
    for (uint32_t i = 0; i < ranks_.size(); ++i) {
        Rank &rank = ranks_[i];
        rank.commit->prepare(keep_blocks(rank));
        records[i] = rank.commit->ballot();
        rank.stopped =
            stops(rank);  // a process that ends here has prepared, and nobody hears of it
    }
    const bool ends = exchange(&records);
    troubled_ |= !ends;
    for (uint32_t i = 0; i < ranks_.size(); ++i) {
        // A message that some have heard and others have not.
        const bool heard = ends && !(power_ && draw(ranks_.size() * 4) == 0);
        if (!is_off(ranks_[i])) close_commit(ranks_[i], agree(records, i, heard), heard);
    }
}

// ----------------------------------------------------------------------------------- a crash ----

void World::plan_faults()
{
    power_ = draw(3) > 0;
    const bool errors = draw(4) == 0;
    for (Rank &rank : ranks_) {
        for (auto &disk : rank.disks) {
            disk->fail_one_in = errors ? 60 : 0;
            disk->fail_flush_one_in = errors ? 40 : 0;
        }
        if (power_ && draw(ranks_.size() + 1) == 0) {
            rank.disks[draw(paths_)]->cut_after(1 + draw(6 * blocks_ + 8));
        }
    }
}

// All processes end, the power with them or not, and start again.
void World::open_stores()
{
    const bool lost = draw(4) > 0;
    for (Rank &rank : ranks_) {
        rank.commit.reset();
        rank.generations.reset();
        rank.store.reset();
        for (auto &disk : rank.disks) {
            disk->fail_one_in = disk->fail_flush_one_in = 0;
            disk->restart(lost);
        }
    }
    for (Rank &rank : ranks_) {
        auto store = store::Store::open(store_options(rank, store::Stay::kOpen));
        check(store.status(), "a store is opened again");
        if (!store.ok()) return;
        rank.store = store.take();
        rank.first = static_cast<uint32_t>(draw(1000));  // another process numbers its blocks anew
        auto found =
            store::Generations::open(generations_options(rank, store::Stay::kOpen), *rank.store);
        check(found.status(), "generations are opened again");
        if (!found.ok()) return;
        rank.generations = found.take();
    }
}

void World::restore(Rank &rank, const store::GenerationId &id,
                    const std::vector<store::GenerationId> &resumable)
{
    Result<store::Manifest> manifest = rank.generations->resume(id, resumable);
    // Its disk may be off again by now: then the rank is started once more.
    if (!manifest.ok() && is_off(rank)) return;
    check(manifest.status(), "a generation is resumed");
    if (!failure_.empty()) return;
    const auto wanted = rank.committed.find(id);
    if (wanted == rank.committed.end()) return fail("a rank resumes what it never prepared");
    const Contents &contents = wanted->second;
    const store::StoredTensor &tensor = manifest.value().tensors.at(0);
    if (manifest.value().counts.at(0).count != contents[0] ||
        manifest.value().metadata != std::to_string(contents[0]))
        return fail("counts or metadata are another generation's");
    for (uint32_t block = 0; block < blocks_ && failure_.empty(); ++block) {
        const uint32_t index = tensor.blocks.at(block);
        if ((index == store::kNoBlock) != (contents[block] == 0))
            return fail(format_text("block %u is there and should not be, or the reverse", block));
        if (index == store::kNoBlock) continue;
        check(rank.store->adopt(rank.first + block, manifest.value().blocks.at(index)),
              "a block is found again");
        if (failure_.empty()) read(rank, block, contents[block], "after the restart");
    }
    rank.now = contents;
}

void World::reopen()
{
    ++crashes_;
    // The power may go again while it is opened: once more then, with what that has left.
    for (int tries = 0; tries < 4 && failure_.empty(); ++tries) {
        open_stores();
        if (!failure_.empty()) return;
        std::vector<collective::FoundGenerations> told;
        for (Rank &rank : ranks_) told.push_back(collective::tell(rank.generations->found()));
        const std::vector<store::GenerationId> resumable = collective::hear(told, kept_);
        Result<store::GenerationId> id = collective::choose(resumable, 0, told, "store");
        note("reopened: %zu resumable, %s", resumable.size(),
             id.ok() ? std::to_string(id.value().number).c_str() : id.status().sentence());
        if (!id.ok()) {
            if (promised_ > 0)
                fail(std::string("what was committed is gone: ") + id.status().sentence());
            if (!failure_.empty()) return;
            // Nothing was ever committed: it begins anew.
            for (Rank &rank : ranks_) {
                rank.generations.reset();
                rank.store.reset();
                for (auto &disk : rank.disks) disk = std::make_unique<Disk>(random_());
                rank.now.assign(blocks_, 0);
            }
            make_ranks();
            return;
        }
        if (id.value().number < promised_)
            return fail(format_text("generation %" PRIu64 " was committed, and %" PRIu64
                                    " is what all ranks find",
                                    promised_, id.value().number));
        // Now and then an older one, as somebody may want it.
        store::GenerationId chosen = id.value();
        if (draw(4) == 0) chosen = resumable[draw(resumable.size())];
        const bool again = tries < 3 && draw(3) == 0;
        if (again) ranks_[draw(ranks_.size())].disks[0]->cut_after(1 + draw(8));
        for (Rank &rank : ranks_) restore(rank, chosen, resumable);
        promised_ = chosen.number;
        bool off = false;
        for (const Rank &rank : ranks_) off |= is_off(rank);
        for (Rank &rank : ranks_) rank.disks[0]->cut_after(0);
        if (!off) return;
    }
}

std::string World::run()
{
    make_ranks();
    for (uint32_t round = 0; round < options_.rounds && failure_.empty(); ++round) {
        plan_faults();
        troubled_ = false;
        for (Rank &rank : ranks_) work(rank);
        if (failure_.empty()) commit();
        note("round %u: promised %" PRIu64 "%s", round, promised_, troubled_ ? ", troubled" : "");
        for (uint32_t i = 0; i < ranks_.size() && !troubled_ && failure_.empty(); ++i) {
            troubled_ |= is_off(ranks_[i]);
        }
        // The program may go on for a while before it learns that it has to be started again; not
        // where the power is off, and with it what would have ended the commit.
        const bool late = troubled_ && draw(2) == 0;
        for (Rank &rank : ranks_) {
            if (late && failure_.empty() && !is_off(rank)) work(rank);
        }
        if (failure_.empty() && (troubled_ || draw(3) == 0)) reopen();
    }
    if (failure_.empty()) reopen();
    return failure_;
}

}  // namespace stepwell::generations
