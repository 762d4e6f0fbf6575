// SPDX-License-Identifier: Apache-2.0
// Durable tensors: what the resumed generation has of a tensor that is created, and the room that
// generations need for tensors that do not exist.
#include "lib/runtime/restored/restored.h"

#include "lib/residency/core.h"
#include "lib/runtime/addresses/sink.h"
#include "lib/runtime/recording/grounds.h"
#include "lib/runtime/restored/durable.h"
#include "lib/transfer/engine.h"

#include <algorithm>
#include <cinttypes>
#include <set>
#include <string_view>
#include <utility>

#include <stepwell/tensor.h>

namespace stepwell {

using residency::TensorId;

RestoredTensors::RestoredTensors(const Ground &ground, TransferSink &sink)
    : Grounded(ground), sink_(sink)
{
}
RestoredTensors::~RestoredTensors() = default;

Status RestoredTensors::check_durable(const stw_tensor_spec &spec,
                                      const residency::Policy &policy) const
{
    if ((spec.flags & STW_TENSOR_DURABLE) == 0) return {};
    const char *name = spec.name ? spec.name : "";
    if (!*name) {
        return Status::error(STW_ERROR_INVALID,
                             "the tensor name '' is empty; what is durable is found again by its "
                             "name");
    }
    if (!durable) {
        return Status::error(STW_ERROR_INVALID,
                             "%s is durable, and the runtime keeps nothing: open it "
                             "with a store_name",
                             tensor_text(name).c_str());
    }
    if ((policy.allowed & (1u << machine_.tiers.nvme())) != 0) return {};
    return Status::error(STW_ERROR_INVALID,
                         "%s is durable, and its policy does not allow the nvme tier, "
                         "which keeps it",
                         tensor_text(name).c_str());
}

// Creates a tensor, or restores it from the resumed generation; its reserved room then covers what
// generations keep of it.
Result<TensorId> RestoredTensors::make_tensor(const residency::TensorSpec &wanted,
                                              const std::string &words, stw_tensor *tensor)
{
    tensor->notes = {};  // the handle is reused
    if (!wanted.durable) return dispatch_.core.create(wanted);
    const auto waits = durable->tensors.not_made.find(wanted.name);
    const bool waited = waits != durable->tensors.not_made.end();
    const uint64_t slots = waited ? std::exchange(waits->second, 0) : 0;
    if (slots > 0) withhold_kept();
    Result<TensorId> made = make_durable(wanted, words, tensor);
    if (slots == 0) return made;
    if (!made.ok()) {
        waits->second = slots;
        withhold_kept();
        return made;
    }
    // A frozen tensor has room for one copy reserved; generations may keep more from before.
    const uint64_t covered = dispatch_.core.pack_blocks(made.value());
    if (dispatch_.core.is_frozen(made.value()) && slots > covered) {
        note_gone(slots - covered, dispatch_.core.pack_of(made.value()));
        withhold_kept();
    }
    return made;
}

Result<TensorId> RestoredTensors::make_durable(const residency::TensorSpec &wanted,
                                               const std::string &words, stw_tensor *tensor)
{
    const store::StoredTensor *there = find_restored(wanted.name);
    if (!there) return dispatch_.core.create(wanted);
    STW_TRY(check_restored(*there, words));
    Result<TensorId> made = restore_tensor(wanted, *there);
    if (!made.ok()) return made;
    take_restored(wanted.name, true);
    tensor->notes.restored = true;
    tensor->notes.kept = true;
    return made;
}

void RestoredTensors::expect_tensors(store::Manifest manifest)
{
    MutexLock lock(dispatch_.mutex());
    durable->tensors.infos = durable->generations->infos();
    durable->tensors.blocks = std::move(manifest.blocks);
    durable->tensors.packs.assign(durable->tensors.blocks.size(), residency::kNone);
    for (store::StoredTensor &tensor : manifest.tensors) {
        std::string name = tensor.name;
        durable->tensors.tensors[std::move(name)].tensor = std::move(tensor);
    }
    for (store::StoredCount &count : manifest.counts) {
        durable->tensors.counts[std::move(count.name)].count = count.count;
    }
    for (const auto &[name, slots] : durable->generations->slots_by_tensor()) {
        durable->tensors.not_made[name] = slots;
    }
    withhold_kept();
}

// Withholds from reservations the slots that generations keep outside of the room reserved for
// existing tensors.
void RestoredTensors::withhold_kept()
{
    const uint64_t newest =
        durable->tensors.infos.empty() ? 0 : durable->tensors.infos.front().id.number;
    std::erase_if(durable->tensors.gone,
                  [newest](const DurableTensors::Gone &gone) { return gone.until <= newest; });
    uint64_t blocks = 0;
    for (const auto &[name, slots] : durable->tensors.not_made) blocks += slots;
    for (const DurableTensors::Gone &gone : durable->tensors.gone) blocks += gone.blocks;
    dispatch_.core.withhold(static_cast<uint32_t>(std::min<uint64_t>(blocks, UINT32_MAX)));
}

// What generations keep of a destroyed tensor, or beyond the reserved room of another, is kept
// until that many more commits were made. A commit under way may contain it as well.
void RestoredTensors::note_gone(uint64_t blocks, residency::PackId pack)
{
    if (blocks == 0 || (durable->tensors.infos.empty() && !durable->tensors.commits)) return;
    uint64_t newest = durable->tensors.infos.empty() ? 0 : durable->tensors.infos.front().id.number;
    if (durable->tensors.commits) ++newest;
    durable->tensors.gone.push_back({blocks, newest + durable->generations->kept_max(), pack});
}

// The most slots that generations keep of the tensor's blocks.
uint64_t RestoredTensors::kept_slots(TensorId tensor) const
{
    const uint64_t blocks = dispatch_.core.pack_blocks(tensor);
    return dispatch_.core.is_frozen(tensor) ? blocks : blocks * durable->generations->kept_max();
}

// Generations keep copies from before the freeze until they are dropped; after a thaw the tensor's
// reserved room covers them.
Status RestoredTensors::freeze_durable(TensorId tensor, bool frozen)
{
    const residency::PackId pack = dispatch_.core.pack_of(tensor);
    const auto kept = durable->tensors.packs_kept.find(pack);
    if (frozen) {
        const bool was = dispatch_.core.is_frozen(tensor);
        const uint64_t copies = kept_slots(tensor);
        STW_TRY(dispatch_.core.freeze(tensor, true));
        if (was || !dispatch_.core.is_frozen(tensor)) return {};
        if (kept != durable->tensors.packs_kept.end() || durable->tensors.commits)
            note_gone(copies, pack);
    } else {
        std::vector<DurableTensors::Gone> covered;
        std::erase_if(durable->tensors.gone, [&](const DurableTensors::Gone &gone) {
            if (gone.pack == pack) covered.push_back(gone);
            return gone.pack == pack;
        });
        withhold_kept();
        Status status = dispatch_.core.freeze(tensor, false);
        if (!status.ok()) {
            durable->tensors.gone.insert(durable->tensors.gone.end(), covered.begin(),
                                         covered.end());
            withhold_kept();
            return status;
        }
    }
    if (kept != durable->tensors.packs_kept.end()) kept->second = kept_slots(tensor);
    withhold_kept();
    return {};
}

// A frozen tensor has one copy, which a generation may contain.
Status RestoredTensors::check_thawed(const stw_tensor &tensor) const
{
    constexpr uint32_t kBoth = STW_TENSOR_READ_ONLY | STW_TENSOR_DURABLE;
    if ((tensor.flags & kBoth) != kBoth) return {};
    if (tensor.notes.kept) {
        return Status::error(STW_ERROR_INVALID,
                             "%s is frozen and durable, and a generation contains it, of which "
                             "there is one copy; make it writable again with "
                             "stw_tensor_freeze",
                             tensor_text(tensor.name).c_str());
    }
    if (!durable->tensors.commits) return {};
    return Status::error(STW_ERROR_BUSY,
                         "%s is frozen and durable, and a commit is under way that may "
                         "contain it; write it before or after the commit",
                         tensor_text(tensor.name).c_str());
}

// After a successful commit.
void RestoredTensors::note_kept(const CommitWork &work)
{
    uint64_t not_made = 0;
    for (const auto &[name, slots] : durable->tensors.not_made) not_made += slots;
    // These are in generations up to the previous one.
    if (not_made > 0) {
        durable->tensors.gone.push_back(
            {not_made, work.generation - 1 + durable->generations->kept_max()});
    }
    durable->tensors.not_made.clear();
    for (stw_tensor *tensor : work.tensors) {
        if (dispatch_.core.contents(tensor->id) == residency::Contents::kEmpty) continue;
        tensor->notes.kept = true;
        durable->tensors.packs_kept[dispatch_.core.pack_of(tensor->id)] = kept_slots(tensor->id);
    }
    durable->tensors.tensors.clear();
    durable->tensors.counts.clear();
    durable->tensors.blocks_of_packs.clear();
    withhold_kept();
}

// Before a commit: counts and logs tensors of the resumed generation that the next one will not
// contain because the program did not create them. Those it created and destroyed are left out
// intentionally.
void RestoredTensors::note_left_out(CommitWork *work)
{
    std::set<std::string_view> made;
    for (const stw_tensor *tensor : work->tensors) made.insert(tensor->name);
    const uint64_t resumed =
        durable->tensors.infos.empty() ? 0 : durable->tensors.infos.front().id.number;
    const std::string *first = nullptr;
    for (auto &[name, entry] : durable->tensors.tensors) {
        const bool there = (entry.tensor.flags & store::StoredTensor::kHasContents) != 0;
        if (!there || entry.taken || made.count(name) > 0) continue;
        ++work->left_out;
        if (!first) first = &name;
        if (std::exchange(entry.told, true)) continue;
        dispatch_.say(
            STW_LOG_WARNING, "commit",
            format_text("durable tensor '%s' of generation %" PRIu64
                        ", which was resumed, was not created again, so the next one leaves it "
                        "out",
                        name.c_str(), resumed));
    }
    for (auto &[name, count] : durable->tensors.counts) {
        if (count.count == 0 || count.taken || std::exchange(count.told, true)) continue;
        dispatch_.say(
            STW_LOG_WARNING, "commit",
            format_text("the updates of '%s' (optimizer and parameter), %" PRIu64
                        " in generation %" PRIu64
                        ", which was resumed, were not asked for by stw_optimizer_add, so the "
                        "next one leaves their number out",
                        name.c_str(), count.count, resumed));
    }
    if (!work->complete || work->left_out == 0 || !work->cause.ok()) return;
    work->cause = Status::error(
        STW_ERROR_NOT_FOUND,
        "%u durable tensors of generation %" PRIu64
        ", which was resumed, were not created again, '%s' the first; create them, or commit "
        "without STW_COMMIT_COMPLETE to leave them out",
        work->left_out, resumed, first->c_str());
    work->cause.mutable_detail().tensor = *first;
}

// Null: there are no contents to restore.
const store::StoredTensor *RestoredTensors::find_restored(const std::string &name) const
{
    if (!durable) return nullptr;
    const auto found = durable->tensors.tensors.find(name);
    if (found == durable->tensors.tensors.end() || found->second.taken) return nullptr;
    const bool there = (found->second.tensor.flags & store::StoredTensor::kHasContents) != 0;
    return there ? &found->second.tensor : nullptr;
}

// Sets whether the tensor was restored.
void RestoredTensors::take_restored(const std::string &name, bool taken)
{
    if (!durable) return;
    const auto found = durable->tensors.tensors.find(name);
    if (found != durable->tensors.tensors.end()) found->second.taken = taken;
}

Status RestoredTensors::check_restored(const store::StoredTensor &there, const std::string &words)
{
    if (there.words == words) return {};
    return Status::error(STW_ERROR_MISMATCH,
                         "%s is %s, and in the generation that was resumed it is %s; "
                         "create it alike, or under another name",
                         tensor_text(there.name).c_str(), words.c_str(), there.words.c_str());
}

// Creates the core's tensor over the blocks that it had.
Result<TensorId> RestoredTensors::restore_tensor(const residency::TensorSpec &wanted,
                                                 const store::StoredTensor &there)
{
    const uint64_t end = there.offset + wanted.bytes;
    const uint64_t blocks = (end + machine_.block_bytes - 1) / machine_.block_bytes;
    residency::Stored stored;
    stored.shares = (there.flags & store::StoredTensor::kShares) != 0;
    stored.offset = there.offset;
    const bool sound =
        there.bytes == wanted.bytes && end >= there.offset && there.blocks.size() == blocks &&
        (stored.shares ? blocks == 1 && there.blocks[0] != store::kNoBlock : there.offset == 0);
    if (!sound) {
        return Status::error(STW_ERROR_FORMAT,
                             "the generation stores %s in %zu blocks from byte %" PRIu64
                             " on, which does not match its %" PRIu64 " bytes",
                             tensor_text(there.name).c_str(), there.blocks.size(), there.offset,
                             wanted.bytes);
    }
    if (stored.shares &&
        (wanted.no_packing || wanted.policy.retention == residency::Retention::kPin)) {
        return Status::error(STW_ERROR_MISMATCH,
                             "%s shared a block with others when it was committed, and is now "
                             "created with STW_TENSOR_OWN_BLOCKS or STW_RETAIN_PIN, for which it "
                             "needs blocks of its own; create it with the same options as before",
                             tensor_text(there.name).c_str());
    }
    if (there.offset % wanted.align_bytes != 0) {
        return Status::error(STW_ERROR_MISMATCH,
                             "%s was committed at byte %" PRIu64 " of a block that it shares "
                             "with others, and is now created with align_bytes %" PRIu64
                             "; create it with the same alignment as before",
                             tensor_text(there.name).c_str(), there.offset, wanted.align_bytes);
    }
    for (const uint32_t block : there.blocks) stored.there.push_back(block != store::kNoBlock);
    if (stored.shares) stored.pack = durable->tensors.packs[there.blocks[0]];
    Result<TensorId> made = dispatch_.core.restore(wanted, stored);
    if (!made.ok()) return made;
    const residency::PackId pack = dispatch_.core.pack_of(made.value());
    const bool joined = stored.shares && pack == stored.pack;
    const residency::TensorBlocks lies = dispatch_.core.blocks_of(made.value());
    Status status;
    for (uint32_t i = 0; i < there.blocks.size() && !joined && status.ok(); ++i) {
        if (there.blocks[i] == store::kNoBlock) continue;
        status = machine_.engine->store()->adopt(lies.first + i,
                                                 durable->tensors.blocks[there.blocks[i]]);
    }
    if (!status.ok()) {
        Commands out;
        (void)dispatch_.core.destroy(made.value(), out);
        sink_.forget_unused(out);
        return status;
    }
    if (!joined) durable->tensors.packs_kept[pack] = kept_slots(made.value());
    if (stored.shares && !joined) {
        durable->tensors.packs[there.blocks[0]] = pack;
        durable->tensors.blocks_of_packs[pack] = there.blocks[0];
    }
    return made;
}

// The pack's number may be reused.
void RestoredTensors::pack_freed(residency::PackId pack)
{
    if (!durable) return;
    for (DurableTensors::Gone &gone : durable->tensors.gone) {
        if (gone.pack == pack) gone.pack = residency::kNone;
    }
    const auto kept = durable->tensors.packs_kept.find(pack);
    if (kept != durable->tensors.packs_kept.end()) {
        note_gone(kept->second);
        durable->tensors.packs_kept.erase(kept);
        withhold_kept();
    }
    const auto found = durable->tensors.blocks_of_packs.find(pack);
    if (found == durable->tensors.blocks_of_packs.end()) return;
    durable->tensors.packs[found->second] = residency::kNone;
    durable->tensors.blocks_of_packs.erase(found);
}

uint64_t RestoredTensors::restored_count(const std::string &name)
{
    MutexLock lock(dispatch_.mutex());
    if (!durable) return 0;
    const auto found = durable->tensors.counts.find(name);
    if (found == durable->tensors.counts.end()) return 0;
    found->second.taken = true;
    return found->second.count;
}

}  // namespace stepwell
