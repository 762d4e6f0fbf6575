// SPDX-License-Identifier: Apache-2.0
// Views of the random program: what it writes through them, and how it gives them back.
#include "tests/simulation/program.h"

namespace stepwell::simulation {

void Program::scribble()
{
    if (views_.empty()) return;
    ModelView &view = *views_[random_.below(views_.size())];
    if (view.request.access == Access::kRead) return;
    const uint64_t first = pieces_begin(view.request);
    const uint64_t count = pieces_end(view.request) - first;
    for (uint64_t i = 0; i < 4; i++) model_.scribble(view, first + random_.below(count));
}

void Program::release_one()
{
    if (!pick_releasable()) return;
    View view = std::move(views_.back());
    views_.pop_back();
    release(std::move(view));
}

void Program::release(View view)
{
    journal_.line("release tensor %u access %d place %u%s", view->request.tensor,
                  static_cast<int>(view->request.access), view->request.place,
                  view->by_gate ? " by gate" : "");
    if (view->by_gate && view->request.access == Access::kRead) {
        model_.close(*view, Model::End::kGood);
        if (!journal_.failed()) release_by_gate(*view);
    } else {
        release_by_core(*view);
    }
    execute();
}

void Program::release_by_gate(const ModelView &view)
{
    const TensorId id = view.request.tensor;
    const bool last = machine_.core.gate(id, view.request.place).unpin();
    // Whoever waits for room is told of every pin that goes, since open gates do not report.
    const bool tell = last || !machine_.core.stuck_fetches().empty();
    if (tell && random_.chance(50)) {
        idle_gates_.push_back(id);
    } else if (tell) {
        machine_.core.gate_idle(id, out_);
    }
    if (random_.chance(20)) {
        machine_.core.release_hint(id, view.request.place, random_.chance(50), out_);
    }
}

void Program::release_by_core(const ModelView &closed)
{
    ModelView view = closed;
    for (const Slot slot : view.pinned)
        addresses_.touched[{view.request.place, slot}] -= view.touched;
    const bool write = view.request.access != Access::kRead;
    Release release;
    release.tensor = view.request.tensor;
    release.access = view.request.access;
    release.place = view.request.place;
    release.byte_begin = view.request.byte_begin;
    release.byte_count = view.request.byte_count;
    release.claim = view.claim;
    release.internal = view.internal;
    release.beside_readers = view.touched;
    const uint64_t kind = random_.below(20);
    release.far = kind < 4;
    release.near = kind == 4 || kind == 5;
    release.abandon = write && view.claim == 0 && kind == 6;
    release.discard = write && view.claim == 0 && kind == 7;
    bool touched = false;
    for (const Stamp stamp : view.written) touched = touched || stamp != kAnything;
    release.unshown = write && view.claim == 0 && kind == 8 && !touched;
    const bool dies = release.abandon || release.discard ||
                      (release.unshown && view.request.access == Access::kWrite);
    // A view nobody saw, of bytes that were there, ends as if it had not been.
    model_.close(view, dies ? Model::End::kDead : Model::End::kGood);
    if (journal_.failed()) return;
    machine_.core.release(release, out_);
    if (!dies) return;
    journal_.line("  the contents die");
    model_.settle(view.request.tensor);
}

}  // namespace stepwell::simulation
