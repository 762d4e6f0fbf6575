// SPDX-License-Identifier: Apache-2.0
// Addresses, and what the program demands of them after every event.
#include "tests/simulation/addresses.h"

#include "tests/simulation/program.h"

#include <algorithm>

namespace stepwell::simulation {
namespace {

constexpr size_t kWaitingMax = 8;

}  // namespace

const Addresses::Shown *Addresses::at(PlaceId place, Slot slot) const
{
    const auto found = table_.find({place, slot});
    return found == table_.end() ? nullptr : &found->second;
}

// Views and transfers have a pointer to one of the two places.
void Addresses::check_unused(const char *what, PlaceId place, Slot slot)
{
    Machine::Use use = machine_.use(place, slot);
    if (const auto found = touched.find({place, slot}); found != touched.end())
        use.views -= found->second;
    if (use.views + use.sources + use.targets == 0) return;
    journal_.fail("slot %u of place %u is %s under %u views, %u readers, %u writers", slot, place,
                  what, use.views, use.sources, use.targets);
}

bool Addresses::show(PlaceId place, Slot slot, PackId pack, uint32_t index, bool writable)
{
    const auto found = table_.find({place, slot});
    if (found != table_.end()) {
        Shown &shown = found->second;
        if (shown.pack != pack || shown.index != index) {
            journal_.fail("slot %u of place %u is shown as block %u of pack %u, and is %u of %u",
                          slot, place, index, pack, shown.index, shown.pack);
        }
        if (writable && machine_.use(place, slot).sources > 0) {
            journal_.fail("slot %u of place %u can be written under a transfer", slot, place);
        }
        shown.writable = writable;
        return true;  // it has its mapping
    }
    for (const auto &[where, shown] : table_) {
        if (where.first != place || shown.pack != pack || shown.index != index) continue;
        journal_.fail("block %u of pack %u is shown in slots %u and %u of place %u", index, pack,
                      where.second, slot, place);
    }
    check_unused("shown", place, slot);
    if (random_.chance(refusals_percent)) {
        ++refusals_;
        return false;
    }
    journal_.line("  show slot %u of place %u: pack %u + %u%s", slot, place, pack, index,
                  writable ? ", writable" : "");
    table_[{place, slot}] = {pack, index, writable};
    machine_.learn(place, pack, index, slot);
    return true;
}

void Addresses::hide(PlaceId place, Slot slot)
{
    journal_.line("  hide slot %u of place %u", slot, place);
    const auto found = table_.find({place, slot});
    if (found != table_.end()) {
        hidden.insert(*found);
        table_.erase(found);
    } else if (!machine_.is_away(place, slot)) {
        journal_.fail("slot %u of place %u is hidden, and was not shown", slot, place);
    }
    machine_.bring_home(place, slot);
    check_unused("hidden", place, slot);
}

// ---------------------------------------------------------------------------------- the program --

// A thread of the library serves an access of one that holds no view there.
void Program::touch()
{
    std::vector<Request> choices;
    for (const auto &[id, tensor] : model_.tensors) {
        for (PlaceId place = 0; tensor.alive && place < setup_.config.places.size(); ++place) {
            const bool allowed = (tensor.spec.policy.allowed & 1u << place) != 0;
            if (allowed && setup_.config.places[place].blocks > 0 && is_aliased(id, place))
                choices.push_back({id, Access::kRead, place, 0, tensor.spec.bytes});
        }
    }
    if (choices.empty() || fetches_.size() >= kWaitingMax) return;
    FetchAsked asked;
    asked.requests = {choices[address_random_.below(choices.size())]};
    asked.flags = kFetchBesideReaders | kFetchWaitRoom | kFetchLent;
    const TensorBlocks blocks = machine_.core.blocks_of(asked.requests.front().tensor);
    asked.touched = blocks.first + static_cast<BlockId>(address_random_.below(blocks.count));
    ask(asked);
}

bool Program::is_shown(const FetchAsked &touch, const Addresses::Table &table) const
{
    const Request &request = touch.requests.front();
    const ModelTensor &tensor = model_.tensors.at(request.tensor);
    const TensorBlocks blocks = machine_.core.blocks_of(request.tensor);
    return std::any_of(table.begin(), table.end(), [&](const auto &entry) {
        const auto &[where, shown] = entry;
        return where.first == request.place && shown.pack == tensor.pack &&
               blocks.first + shown.index == touch.touched;
    });
}

// An access that can be made waits for nothing.
void Program::check_touches()
{
    for (const auto &[id, fetch] : fetches_) {
        if (fetch.asked.touched == kNone || !machine_.core.is_blocked(id)) continue;
        if (is_shown(fetch.asked, addresses_.table()))
            journal_.fail("touch %llu waits, and its block is shown", (unsigned long long)id);
    }
}

// Its own views see their blocks at the addresses, and may write there if they may write.
void Program::check_views_shown()
{
    for (const View &view : views_) {
        const PlaceId place = view->request.place;
        if (!is_aliased(view->request.tensor, place) || view->touched) continue;
        const PackId pack = model_.tensors.at(view->request.tensor).pack;
        for (const Slot slot : view->pinned) {
            const Addresses::Shown *shown = addresses_.at(place, slot);
            const bool writes = view->request.access != Access::kRead;
            if (shown && shown->pack == pack && (shown->writable || !writes)) continue;
            journal_.fail("slot %u of place %u is not shown to a %s view of tensor %u", slot, place,
                          writes ? "write" : "read", view->request.tensor);
        }
    }
}

bool Program::has_view_of(TensorId id, PlaceId place, Slot slot, bool writes) const
{
    return std::any_of(views_.begin(), views_.end(), [&](const View &view) {
        const std::vector<Slot> &slots = view->pinned;
        return view->request.tensor == id && view->request.place == place &&
               (!writes || view->request.access != Access::kRead) &&
               std::find(slots.begin(), slots.end(), slot) != slots.end();
    });
}

// An update has it, or is about to: all that was under way when it came is over.
bool Program::is_updated(TensorId id, PlaceId place, Slot slot) const
{
    const ModelTensor &tensor = model_.tensors.at(id);
    if (!tensor.claimed_alone() || machine_.use(place, slot).sources > 0) return false;
    const bool tells = std::find(idle_gates_.begin(), idle_gates_.end(), id) != idle_gates_.end();
    const auto is_of_it = [&](const View &view) { return view->request.tensor == id; };
    return !tells && !is_read_under_claim(id) && tensor.fetches + tensor.hints == 0 &&
           std::none_of(views_.begin(), views_.end(), is_of_it);
}

bool Program::is_read_under_claim(TensorId id) const
{
    return std::any_of(claims_.begin(), claims_.end(), [&](const Claim &claim) {
        return claim.reads() && claim.view && claim.view->request.tensor == id;
    });
}

// What is read there is the newest.
void Program::check_seen(const ModelTensor &tensor, const std::string &name, uint32_t index,
                         const Image &image)
{
    if (!tensor.readable() || tensor.writers > 0) return;
    for (uint64_t piece = 0; piece < tensor.newest.size(); ++piece) {
        const uint64_t offset = tensor.pack_offset + piece * kPieceBytes;
        const Stamp newest = tensor.newest[piece];
        if (offset / kBlockBytes != index || newest == kAnything) continue;
        const Stamp found = image[offset % kBlockBytes / kPieceBytes];
        if (found == newest) continue;
        journal_.fail("%s: stamp %x for piece %llu, newest is %x", name.c_str(), found,
                      (unsigned long long)piece, newest);
        return;
    }
}

void Program::check_shown(PlaceId place, Slot slot, const Addresses::Shown &shown)
{
    const std::string name = format_text("slot %u of place %u, which shows block %u of pack %u",
                                         slot, place, shown.index, shown.pack);
    // A block that a transfer reads is hidden when that transfer ends.
    const bool stays = machine_.use(place, slot).sources == 0;
    bool gone = true;
    bool written = false;
    for (const auto &[id, tensor] : model_.tensors) {
        if (!tensor.alive || tensor.pack != shown.pack) continue;
        gone = false;
        const TensorBlocks blocks = machine_.core.blocks_of(id);
        if (!machine_.core.is_mapped(blocks.first + shown.index, place)) {
            journal_.fail("%s: the core has it in the arena", name.c_str());
        }
        const bool writes = has_view_of(id, place, slot, true);
        // What tensors share is not taken from the program by the update of one, nor where a fetch
        // of another has its lock and waits for bytes.
        const uint64_t wanted = tensor.writers + tensor.fetches;
        written |= writes || (blocks.shares && wanted > 0);
        if (!blocks.shares && is_updated(id, place, slot)) {
            journal_.fail("%s: an update has it", name.c_str());
        }
        if (!blocks.shares && !writes && stays && !tensor.readable()) {
            journal_.fail("%s: there is nothing to read", name.c_str());
        }
        if (stays) check_seen(tensor, name, shown.index, machine_.memories.slot(place, slot));
    }
    if (gone && stays) journal_.fail("%s: no tensor has it", name.c_str());
    if (shown.writable && !written) journal_.fail("%s: nobody may write there", name.c_str());
    if (machine_.use(place, slot).targets > 0) {
        journal_.fail("%s: a transfer brings its bytes", name.c_str());
    }
}

void Program::check_addresses()
{
    if (!setup_.aliases) return;
    check_views_shown();
    check_touches();
    addresses_.hidden.clear();
    for (const auto &[where, shown] : addresses_.table()) {
        if (!journal_.failed()) check_shown(where.first, where.second, shown);
    }
}

}  // namespace stepwell::simulation
