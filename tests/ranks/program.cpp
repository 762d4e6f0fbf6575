// SPDX-License-Identifier: Apache-2.0
// The program of a seed: steps of two phases, each like the one before it with little deviations,
// in layers that fetch, compute, meet the other ranks and give back.
#include "tests/ranks/setup.h"

#include <algorithm>

namespace stepwell::ranks {
namespace {

class Writer {
public:
    Writer(Random &random, Setup *setup) : random_(random), setup_(setup) {}

    // The layers of a phase; handles count from 0 in each step.
    std::vector<Op> layers(uint32_t phase)
    {
        std::vector<Op> ops;
        const uint64_t count = random_.between(3, 9);
        for (uint64_t layer = 0; layer < count; ++layer) {
            const uint32_t handle = handles_++;
            ops.push_back(fetch(handle));
            open_.push_back(handle);
            if (random_.chance(20)) ops.push_back(of_passing());
            ops.push_back(compute(random_.between(20, 800) * 1000));
            if (random_.chance(35)) ops.push_back(collective());
            while (!open_.empty() && (open_.size() > 2 || random_.chance(70))) {
                ops.push_back(release());
            }
        }
        while (!open_.empty()) ops.push_back(release());
        if (phase == 0 || random_.chance(40)) ops.push_back(update());
        return ops;
    }
    [[nodiscard]] uint32_t handles() const { return handles_; }

private:
    uint32_t any_tensor() { return static_cast<uint32_t>(random_.below(setup_->tensors.size())); }

    Op fetch(uint32_t handle)
    {
        Op op;
        op.what = What::kFetch;
        op.handle = handle;
        op.waits_room = random_.chance(85);
        const uint64_t count = random_.chance(55) ? 1 : random_.between(2, kUsesMax);
        for (uint64_t i = 0; i < count; ++i) {
            Use use;
            use.tensor = any_tensor();
            const uint64_t kind = random_.below(100);
            use.access = kind < 65   ? Access::kRead
                         : kind < 85 ? Access::kReadWrite
                                     : Access::kWrite;
            if (setup_->tensors[use.tensor].passing && random_.chance(50)) {
                use.access = Access::kWrite;
            }
            const bool has_host = setup_->config.places[kHost].blocks > 0;
            use.place = has_host && random_.chance(15) ? kHost : kDevice;
            const bool twice = std::any_of(op.uses.begin(), op.uses.begin() + op.uses_count,
                                           [&](const Use &at) { return at.tensor == use.tensor; });
            if (!twice) op.uses[op.uses_count++] = use;
        }
        return op;
    }

    Op release()
    {
        Op op;
        op.what = What::kRelease;
        std::swap(open_[random_.below(open_.size())], open_.back());
        op.handle = open_.back();
        open_.pop_back();
        const uint64_t kind = random_.below(20);
        if (kind == 0) op.hint = schedule::Hint::kDiscard;
        if (kind == 1 || kind == 2) op.hint = schedule::Hint::kFar;
        if (kind == 3) op.hint = schedule::Hint::kNear;
        return op;
    }

    static Op compute(Instant ns)
    {
        Op op;
        op.ns = ns;
        return op;
    }

    Op collective()
    {
        Op op;
        op.what = What::kCollective;
        op.ns = random_.between(10, 300) * 1000;
        op.in_group = random_.chance(50);
        return op;
    }

    // Something is made, dies or is emptied in between.
    Op of_passing()
    {
        Op op;
        const What kinds[] = {What::kCreate, What::kCreate, What::kDestroy, What::kDiscard};
        op.what = kinds[random_.below(4)];
        op.uses_count = 1;
        op.uses[0].tensor = any_tensor();
        for (uint32_t i = 0; i < setup_->tensors.size(); ++i) {
            const auto at = static_cast<uint32_t>((op.uses[0].tensor + i) % setup_->tensors.size());
            if (!setup_->tensors[at].passing) continue;
            op.uses[0].tensor = at;
            break;
        }
        return op;
    }

    Op update()
    {
        Op op;
        op.what = What::kUpdate;
        op.empties = random_.chance(30);
        op.in_group = random_.chance(50);
        const uint64_t count = random_.between(1, kUsesMax);
        for (uint64_t i = 0; i < count; ++i) {
            const uint32_t tensor = any_tensor();
            const bool twice = std::any_of(op.uses.begin(), op.uses.begin() + op.uses_count,
                                           [&](const Use &at) { return at.tensor == tensor; });
            if (!twice) op.uses[op.uses_count++].tensor = tensor;
        }
        return op;
    }

    Random &random_;
    Setup *const setup_;
    uint32_t handles_ = 0;
    std::vector<uint32_t> open_;
};

// As a policy that plans is told of it.
schedule::Step step_of(const Setup &setup, const std::vector<Op> &ops, uint32_t handles)
{
    schedule::Step step;
    std::vector<const Op *> fetches(handles);
    Instant compute_ns = 0;
    for (const Op &op : ops) {
        if (op.what == What::kCompute) compute_ns += op.ns;
        if (op.what == What::kFetch) fetches[op.handle] = &op;
        if (op.what != What::kFetch && op.what != What::kRelease) continue;
        const Op *fetch = fetches[op.handle];
        for (uint32_t i = 0; fetch && i < fetch->uses_count; ++i) {
            schedule::Event event;
            event.act = op.what == What::kFetch ? schedule::Act::kFetch : schedule::Act::kRelease;
            event.access = fetch->uses[i].access;
            event.hint = op.hint;
            event.place = fetch->uses[i].place;
            event.with_next = op.what == What::kFetch && i + 1 < fetch->uses_count;
            event.tensor = fetch->uses[i].tensor;
            event.byte_count = setup.tensors[event.tensor].spec.bytes;
            event.compute_ns = i == 0 ? compute_ns : 0;
            compute_ns = 0;
            step.push_back(event);
        }
    }
    return step;
}

// Some of what it would do it does not do this time.
void add_step(Random &random, uint32_t phase, const std::vector<Op> &layers, bool waits,
              std::vector<Op> *program)
{
    Op mark;
    mark.phase = phase;
    mark.what = What::kWaitUpdates;
    if (waits) program->push_back(mark);
    mark.what = What::kBeginStep;
    program->push_back(mark);
    std::vector<uint32_t> left_out;
    for (const Op &op : layers) {
        const bool fetches = op.what == What::kFetch;
        if (fetches && random.chance(4)) left_out.push_back(op.handle);
        const bool out = (fetches || op.what == What::kRelease) &&
                         std::find(left_out.begin(), left_out.end(), op.handle) != left_out.end();
        if (!out) program->push_back(op);
    }
    mark.what = What::kEndStep;
    program->push_back(mark);
}

}  // namespace

void write_program(const Options &options, Random &random, Setup *setup)
{
    Writer writer(random, setup);
    std::array<std::vector<Op>, kPhases> phases;
    for (uint32_t phase = 0; phase < kPhases; ++phase) {
        phases[phase] = writer.layers(phase);
        setup->templates[phase] = step_of(*setup, phases[phase], writer.handles());
    }
    setup->handles = writer.handles();
    for (uint32_t step = 0; step < options.steps; ++step) {
        for (uint32_t phase = 0; phase < kPhases; ++phase) {
            add_step(random, phase, phases[phase], random.chance(30), &setup->program);
        }
    }
    Op last;
    last.what = What::kWaitUpdates;
    setup->program.push_back(last);
}

}  // namespace stepwell::ranks
