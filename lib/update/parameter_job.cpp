// SPDX-License-Identifier: Apache-2.0
// A parameter in a step: its gradient is scanned if a verdict is requested, then its chunks are
// updated in order of address. A failed chunk fails this parameter and no other.
#include "lib/support/assert.h"
#include "lib/update/optimizer_parts.h"

#include <algorithm>
#include <cinttypes>
#include <cstring>
#include <utility>

namespace stepwell::update {

using kernels::kScanBlockElements;

ParameterJob::ParameterJob(Optimizer::Parts &optimizer, const Entry &entry)
    : owner(optimizer),
      handle(entry.handle),
      name(entry.name),
      index(static_cast<uint32_t>(optimizer.jobs.size())),
      shape{entry.parameter_dtype, entry.gradient_dtype,
            entry.state_dtype,     entry.master != kNone || entry.low != kNone,
            entry.low != kNone,    entry.average != kNone,
            entry.state_count,     {}}
{
    const auto add = [this](TensorId tensor, uint32_t dtype) {
        shape.layouts[turn_count] = {tensor, owner.pipeline.tiers.pack_offset(tensor),
                                     element_bytes(dtype)};
        turns[turn_count].tensor = tensor;
        ++turn_count;
    };
    std::fill(std::begin(older), std::end(older), kNone);
    add(entry.parameter, shape.parameter_dtype);
    add(entry.gradient, shape.gradient_dtype);
    if (shape.is_split) {
        add(entry.low, STW_BF16);
        add(entry.open, STW_BF16);
        shape.layouts[kOpen].element_bytes = 1;
        shape.layouts[kOpen].shared_by = 8;
    } else if (shape.has_master) {
        add(entry.master, STW_F32);
    }
    if (shape.has_average) add(entry.average, STW_F32);
    for (uint32_t i = 0; i < shape.state_count; ++i) add(entry.states[i], shape.state_dtype);
}

void ParameterJob::begin(StepPhase next)
{
    phase = next;
    open = false;
    urgent = false;
    empty = false;
    part_cut = 0;
    element_cut = 0;
    next_ordinal = 0;
    settled = 0;
    parked = nullptr;
    if (next == StepPhase::kEarly) {
        early_scale = step->scale;
        for (Part *part : parts) part->early_states = part->states_used;
    }
    if (next != StepPhase::kScan) return;
    scanned = {};
    for (Part *part : parts) part->sum = 0.0;
}

std::vector<ElementRange> ParameterJob::ranges() const
{
    std::vector<ElementRange> ranges;
    ranges.reserve(parts.size());
    for (const Part *part : parts) ranges.push_back({part->element_begin, part->element_count});
    return ranges;
}

bool ParameterJob::take_measure(uint64_t version)
{
    const Measurement *const known = measure.use(version);
    // Jobs with an earlier turn may still work on its other tensors.
    if (known == nullptr || blocked > 0) return false;
    scanned = known->scan;
    for (size_t i = 0; i < parts.size(); ++i) parts[i]->sum = known->sums[i];
    phase = StepPhase::kVerdict;
    return true;
}

// ------------------------------------------------------------------------------------- chunks ----

uint64_t ParameterJob::next_run() const
{
    const Part &part = *parts[part_cut];
    const uint64_t begin = part.element_begin + element_cut;
    const uint64_t left = part.element_count - element_cut;
    const uint64_t block_bytes = owner.pipeline.block_bytes;
    if (phase == StepPhase::kScan) {
        return unit_run(shape.layouts[kGradient], begin, left, kScanBlockElements, block_bytes);
    }
    const uint32_t n = tensors_of(part);
    uint64_t run = common_run(shape.layouts, n, begin, left, block_bytes);
    while (run < left) {
        const uint64_t longer =
            run + common_run(shape.layouts, n, begin + run, left - run, block_bytes);
        if (pieces_of(begin, longer, n) > run_pieces) break;
        run = longer;
    }
    return run;
}

uint32_t ParameterJob::pieces_of(uint64_t begin, uint64_t elements, uint32_t tensors) const
{
    uint32_t pieces = 0;
    for (uint32_t i = 0; i < tensors; ++i)
        pieces += count_pieces(shape.layouts[i], begin, elements, owner.pipeline.block_bytes) *
                  (has_older_piece(*parts[part_cut], i) ? 2 : 1);
    return pieces;
}

uint32_t ParameterJob::chunk_pieces() const
{
    const uint64_t begin = parts[part_cut]->element_begin + element_cut;
    if (phase == StepPhase::kJoin) return kJoined;
    if (phase != StepPhase::kScan)
        return pieces_of(begin, next_run(), tensors_of(*parts[part_cut]));
    return count_pieces(shape.layouts[kGradient], begin, next_run(), owner.pipeline.block_bytes);
}

void ParameterJob::cut(Chunk &chunk)
{
    chunk.ordinal = next_ordinal++;
    chunk.part = part_cut;
    chunk.element_begin = parts[part_cut]->element_begin + element_cut;
    chunk.element_count = next_run();
    if (phase == StepPhase::kScan) {
        cut_scan(chunk);
    } else if (phase == StepPhase::kJoin) {
        cut_join(chunk);
    } else {
        cut_update(chunk);
    }
    element_cut += chunk.element_count;
    if (element_cut < parts[part_cut]->element_count) return;
    ++part_cut;
    element_cut = 0;
}

void ParameterJob::cut_scan(Chunk &chunk) const
{
    chunk.scans = true;
    chunk.piece_count =
        make_pieces(shape.layouts[kGradient], Access::kRead, chunk.element_begin,
                    chunk.element_count, owner.pipeline.block_bytes, chunk.pieces, kPiecesMax);
}

// The states are not needed before the next step; the parameter is, soon. Neighbours of one tensor
// are kept apart: adjacent ones would be requested as a run of slots, which may be hard to get.
void ParameterJob::cut_update(Chunk &chunk) const
{
    chunk.scans = false;
    chunk.piece_count = 0;
    const uint64_t block_bytes = owner.pipeline.block_bytes;
    const Part &part = *parts[chunk.part];
    const uint32_t n = tensors_of(part);
    uint64_t done[kJobTensorsMax] = {};
    for (bool more = true; more;) {
        more = false;
        for (uint32_t i = 0; i < n; ++i) {
            const uint64_t left = chunk.element_count - done[i];
            if (left == 0 || (i == kGradient && given != nullptr)) continue;
            const uint64_t begin = chunk.element_begin + done[i];
            const uint64_t run = common_run(shape.layouts + i, 1, begin, left, block_bytes);
            const Access writes =
                has_older_piece(part, i) && undoes ? Access::kWrite : Access::kReadWrite;
            const Access access = i == kGradient ? Access::kRead : writes;
            const uint32_t at = chunk.piece_count++;
            STW_ASSERT(at < kPiecesMax);
            make_pieces(shape.layouts[i], access, begin, run, block_bytes, chunk.pieces + at, 1);
            chunk.owners[at] = static_cast<uint8_t>(i);
            done[i] += run;
            if (i >= kOthers && block_is_through(shape.layouts[i], chunk, done[i]))
                chunk.far_pieces |= uint64_t{1} << at;
            more |= done[i] < chunk.element_count;
        }
    }
    STW_ASSERT(on_device() || chunk.piece_count == n - (given != nullptr ? 1 : 0));
    for (uint32_t i = 0; i < n; ++i) {
        if (!has_older_piece(part, i)) continue;
        Layout layout = shape.layouts[i];
        layout.tensor = older[i];
        layout.pack_offset = 0;  // both have blocks of their own
        make_pieces(layout, undoes ? Access::kRead : Access::kWrite, chunk.element_begin,
                    chunk.element_count, block_bytes, chunk.pieces + chunk.piece_count++, 1);
    }
}

// The next chunk does not need the block: it would be written back once for each.
bool ParameterJob::block_is_through(const Layout &layout, const Chunk &chunk, uint64_t done) const
{
    const uint64_t end = chunk.element_begin + done;
    const Part &part = *parts[chunk.part];
    if (end == part.element_begin + part.element_count) return true;
    return count_pieces(layout, end - layout.shared_by, 2 * uint64_t{layout.shared_by},
                        owner.pipeline.block_bytes) > 1;
}

// Sums are taken in the order of addresses; chunks that are completed before their turn are kept.
Chunk *ParameterJob::settle(Chunk &chunk)
{
    chunk.next = nullptr;
    if (phase != StepPhase::kScan) return &chunk;
    scanned = kernels::join(scanned, chunk.scan);
    chunk.next = parked;
    parked = &chunk;
    Chunk *taken = nullptr;
    for (Chunk **at = &parked; *at != nullptr;) {
        Chunk &next = **at;
        if (next.ordinal != settled) {
            at = &next.next;
            continue;
        }
        Part &part = *parts[next.part];
        part.sum = kernels::combine_block_sums(part.sum, next.sums.get(), next.sums_count);
        ++settled;
        *at = next.next;
        next.next = taken;
        taken = &next;
        at = &parked;
    }
    return taken;
}

// ------------------------------------------------------------------------ on an update thread ----

Status ParameterJob::refused(Status status)
{
    const bool is_empty = status.code() == STW_ERROR_EMPTY;
    if (!is_empty && !renew()) return status;
    if (!is_empty) {
        begin_again();
        return {};
    }
    if (phase == StepPhase::kJoin) {
        empty = true;  // there is no master yet
        return {};
    }
    if (owner.pipeline.tiers.contents(shape.layouts[kGradient].tensor) != Contents::kEmpty)
        return status;
    empty = true;  // no thread cuts this job now
    return {};
}

// The program wrote the parameter: what is made of it need not be readable any more, whether an
// update left it half written or its bytes are lost. States are the program's, which writes them.
bool ParameterJob::renew()
{
    Tiers &tiers = owner.pipeline.tiers;
    const auto contents = [&](uint32_t at) { return tiers.contents(shape.layouts[at].tensor); };
    if (phase == StepPhase::kScan || phase == StepPhase::kRestore) return false;
    if (contents(kParameter) != Contents::kValid) return false;
    const bool stale = master_is_stale();
    for (uint32_t i = kOthers; stale && i < shape.average_at(); ++i)
        tiers.empty(shape.layouts[i].tensor);
    if (phase == StepPhase::kJoin) return fresh.master = stale;
    const bool failed = shape.has_average && contents(shape.average_at()) == Contents::kFailed;
    if (failed) tiers.empty(shape.layouts[shape.average_at()].tensor);
    return stale || failed;
}

// Its first chunk was refused, and will be asked for once more.
void ParameterJob::begin_again()
{
    MutexLock lock(owner.pipeline.mutex);
    part_cut = 0;
    element_cut = 0;
    next_ordinal = 0;
    owner.pipeline.make_ready(*this);
}

Status ParameterJob::opened()
{
    if (phase == StepPhase::kScan || phase == StepPhase::kRestore) return {};
    Tiers &tiers = owner.pipeline.tiers;
    const TensorId parameter = shape.layouts[kParameter].tensor;
    if (phase == StepPhase::kJoin) {
        fresh.master |= master_is_stale();
        return {};
    }
    if (tiers.contents(parameter) == Contents::kEmpty) {
        return Status::error(STW_ERROR_EMPTY,
                             "%s has a gradient but was never written; write it before "
                             "the first step",
                             parameter_text(name).c_str());
    }
    fresh.master =
        shape.has_master &&
        (tiers.contents(shape.layouts[kOthers].tensor) == Contents::kEmpty || master_is_stale());
    fresh.average = shape.has_average &&
                    tiers.contents(shape.layouts[shape.average_at()].tensor) == Contents::kEmpty;
    fresh.states = 0;
    for (uint32_t i = 0; i < shape.state_count; ++i) {
        const TensorId state = shape.layouts[shape.first_state() + i].tensor;
        if (tiers.contents(state) == Contents::kEmpty) fresh.states |= 1u << i;
    }
    if (owner.custom.update != nullptr) return {};
    const auto make =
        owner.torch_order ? kernels::make_torch_coefficients : kernels::make_coefficients;
    for (Part *part : parts) {
        part->coefficients =
            make(static_cast<kernels::Algorithm>(owner.algorithm), part->hyper, count + 1,
                 phase == StepPhase::kEarly ? early_scale : step->scale);
    }
    return {};
}

Status ParameterJob::run(Chunk &chunk)
{
    if (phase == StepPhase::kScan) {
        if (on_device()) return scan_on_device(chunk);
        scan(chunk);
        return {};
    }
    if (phase == StepPhase::kJoin) {
        join(chunk);
        return {};
    }
    const Part &part = *parts[chunk.part];
    if (on_device()) return update_on_device(chunk, part);
    if (given != nullptr) insert_given(chunk);
    copy_older(chunk, part);
    if (phase == StepPhase::kRestore) return {};
    make_fresh(chunk, part);
    if (owner.custom.update != nullptr) return update_custom(chunk, part);
    update(chunk, part);
    return {};
}

// The pointers are those of the tensors then, as without it.
void ParameterJob::insert_given(Chunk &chunk) const
{
    for (uint32_t i = chunk.piece_count; i > kGradient; --i)
        chunk.pointers[i] = chunk.pointers[i - 1];
    const uint64_t begin = chunk.element_begin * element_bytes(shape.gradient_dtype);
    chunk.pointers[kGradient] = const_cast<char *>(static_cast<const char *>(given)) + begin;
}

// A unit of the scan that spans two blocks is copied together first: its sum has a fixed order.
void ParameterJob::scan(Chunk &chunk) const
{
    alignas(64) unsigned char together[kScanBlockElements * sizeof(float)];
    const void *gradient = chunk.pointers[0];
    if (chunk.piece_count > 1) {
        uint64_t at = 0;
        for (uint32_t i = 0; i < chunk.piece_count; ++i) {
            std::memcpy(together + at, chunk.pointers[i], chunk.pieces[i].byte_count);
            at += chunk.pieces[i].byte_count;
        }
        gradient = together;
    }
    chunk.sums_count = kernels::scan_block_count(chunk.element_count);
    chunk.scan =
        kernels::scan_blocks(gradient, shape.gradient_dtype, chunk.element_count, chunk.sums.get());
}

void ParameterJob::make_fresh(const Chunk &chunk, const Part &part) const
{
    if (!shape.is_split && (fresh.master || part.makes_master)) {
        kernels::convert(chunk.pointers[kOthers], STW_F32, chunk.pointers[kParameter],
                         shape.parameter_dtype, chunk.element_count);
    }
    if (!shape.is_split && (fresh.average || part.makes_average)) {
        std::memcpy(average_of(chunk), master_of(chunk), chunk.element_count * sizeof(float));
    }
    for (uint32_t i = 0; i < part.states_used; ++i) {
        if ((fresh.states >> i & 1) == 0) continue;
        std::memset(chunk.pointers[shape.first_state() + i], 0,
                    chunk.element_count * element_bytes(shape.state_dtype));
    }
}

void ParameterJob::update(const Chunk &chunk, const Part &part) const
{
    const bool sliced = shape.has_average || shape.is_split || shape.state_dtype != STW_F32;
    const uint64_t slice = sliced ? kSliceElements : chunk.element_count;
    for (uint64_t at = 0; at < chunk.element_count; at += slice) {
        update_slice(chunk, part, at, std::min(slice, chunk.element_count - at));
    }
}

void ParameterJob::update_slice(const Chunk &chunk, const Part &part, uint64_t begin,
                                uint64_t count_here) const
{
    const auto pointer = [&](uint32_t piece, uint32_t dtype) -> void * {
        return static_cast<char *>(chunk.pointers[piece]) + begin * element_bytes(dtype);
    };
    kernels::Chunk work{};
    work.values = pointer(kParameter, shape.parameter_dtype);
    work.values_dtype = shape.parameter_dtype;
    work.gradient_dtype = shape.gradient_dtype;
    work.gradient = pointer(kGradient, shape.gradient_dtype);
    work.count = count_here;
    if (shape.is_split) return update_split(work, chunk, part, begin);
    work.master = master_of(chunk) + begin;
    update_master(work, chunk, part, begin);
}

void ParameterJob::update_master(kernels::Chunk &work, const Chunk &chunk, const Part &part,
                                 uint64_t begin) const
{
    update_states(work, chunk, part, begin);
    if (!shape.has_average) return;
    kernels::average(average_of(chunk) + begin, work.master, work.count, owner.average_decay);
}

void ParameterJob::update_states(kernels::Chunk &work, const Chunk &chunk, const Part &part,
                                 uint64_t begin) const
{
    if (shape.state_dtype != STW_F32) return update_narrow(work, chunk, part, begin);
    for (uint32_t i = 0; i < part.states_used; ++i) {
        work.states[i] = static_cast<float *>(chunk.pointers[shape.first_state() + i]) + begin;
    }
    update_values(work, part);
}

void ParameterJob::update_values(const kernels::Chunk &work, const Part &part) const
{
    const auto algorithm = static_cast<kernels::Algorithm>(owner.algorithm);
    if (owner.torch_order) {
        kernels::update_chunk_as_torch(algorithm, part.coefficients, work, *owner.torch_order);
    } else {
        kernels::update_chunk(algorithm, part.coefficients, work);
    }
}

// The kernel works on fp32: states of 16 bits are widened for it, and rounded again.
void ParameterJob::update_narrow(kernels::Chunk &work, const Chunk &chunk, const Part &part,
                                 uint64_t begin) const
{
    alignas(64) float wide[2][kSliceElements];
    STW_ASSERT(work.count <= kSliceElements && part.states_used <= 2);
    const auto narrow = [&](uint32_t i) {
        return static_cast<uint16_t *>(chunk.pointers[shape.first_state() + i]) + begin;
    };
    for (uint32_t i = 0; i < part.states_used; ++i) {
        kernels::convert(wide[i], STW_F32, narrow(i), shape.state_dtype, work.count);
        work.states[i] = wide[i];
    }
    update_values(work, part);
    for (uint32_t i = 0; i < part.states_used; ++i) {
        kernels::narrow_state(narrow(i), wide[i], work.count,
                              {chunk.element_begin + begin, count + 1, i});
    }
}

Status ParameterJob::update_custom(const Chunk &chunk, const Part &part) const
{
    float *states[kStatesMax] = {};
    for (uint32_t i = 0; i < part.states_used; ++i) {
        states[i] = static_cast<float *>(chunk.pointers[shape.first_state() + i]);
    }
    stw_update_chunk work{};
    work.struct_size = sizeof work;
    work.state_count = part.states_used;
    work.parameter = handle;
    work.values = chunk.pointers[kParameter];
    work.master = master_of(chunk);
    work.gradient = chunk.pointers[kGradient];
    work.states = states;
    work.element_begin = chunk.element_begin;
    work.element_count = chunk.element_count;
    work.step = count + 1;
    work.gradient_scale = step->scale;
    work.hyper = &part.hyper;
    const stw_status code = owner.custom.update(owner.custom.user, &work);
    if (code < STW_OK) {
        return Status::error(code,
                             "The caller's update of elements %" PRIu64 " to %" PRIu64
                             " of %s returned an error (%d)",
                             chunk.element_begin, chunk.element_begin + chunk.element_count,
                             parameter_text(name).c_str(), code);
    }
    if (shape.has_master) {
        kernels::convert(work.values, shape.parameter_dtype, work.master, STW_F32,
                         chunk.element_count);
    }
    if (shape.has_average) {
        kernels::average(average_of(chunk), work.master, chunk.element_count, owner.average_decay);
    }
    return {};
}

bool ParameterJob::master_is_stale() const
{
    Tiers &tiers = owner.pipeline.tiers;
    return shape.has_master &&
           tiers.version(shape.layouts[kParameter].tensor) != parameter_version &&
           tiers.version(shape.layouts[kOthers].tensor) == master_version;
}

// Parts that are added later must make theirs themselves, as the tensor then has contents.
void ParameterJob::note_made()
{
    made_master |= fresh.master;
    made_average |= fresh.average;
    for (Part *part : parts) part->makes_master = part->makes_average = false;
}

// ----------------------------------------------------------------------------- ends of phases ----

// Under the mutex, from prefer_job(): the analysis cannot see that through a virtual call.
void ParameterJob::on_preferred() STW_NO_THREAD_ANALYSIS
{
    if (phase != StepPhase::kScan && !is_measured(phase)) return;
    if (step->early || step->known || step->demanded != kNotPreferred) return;
    // This parameter's update waits for every scan of the step.
    step->demanded = preference;
    for (ParameterJob *job : owner.chosen) {
        if (job->phase != StepPhase::kScan) continue;
        owner.pipeline.prefer_ahead_of(*job);
        if (job->rank > preference) owner.pipeline.set_rank(*job, preference);
    }
}

std::optional<uint32_t> ParameterJob::verdict_from() const
{
    if (step == nullptr || !step->early) return {};
    return owner.verdict_thread;
}

void ParameterJob::end()
{
    switch (phase) {
    case StepPhase::kScan: end_scan(); break;
    case StepPhase::kEarly: end_early(); break;
    case StepPhase::kRestore: end_restore(); break;
    case StepPhase::kJoin: end_join(); break;
    default: end_update();
    }
}

void ParameterJob::end_scan()
{
    if (!error.ok()) owner.pipeline.report(shape.layouts[kGradient].tensor, error);
    const bool leaves = empty && error.ok();
    const Step *decided = nullptr;
    bool keeps = false;
    {
        MutexLock lock(owner.pipeline.mutex);
        owner.pipeline.chunks.give_back_all(parked);
        parked = nullptr;
        if (!error.ok() && step->verdict.ok()) step->verdict = error;
        phase = leaves ? StepPhase::kIdle : StepPhase::kVerdict;
        --step->scans_left;
        if (!step->early) {
            if (step->scans_left == 0 && owner.decide(*step)) decided = step;
        } else if (!leaves && error.ok() && may_be_early() && owner.goes_early()) {
            phase = StepPhase::kKeep;
            keeps = true;
        } else if (!leaves) {
            owner.park(*this);
        }
    }
    // The step exists until the last job has left it, and those that it lets go have not. This job
    // may have: its update was ready with the decision.
    if (decided != nullptr) Optimizer::Parts::let_go(*decided);
    if (leaves) leave(0);
    if (keeps) start_early();
}

void ParameterJob::note_versions()
{
    if (!shape.has_master) return;
    parameter_version = owner.pipeline.tiers.version(shape.layouts[kParameter].tensor);
    master_version = owner.pipeline.tiers.version(shape.layouts[kOthers].tensor);
}

void ParameterJob::end_update()
{
    const bool updated = error.ok() && !empty;
    if (updated) note_made();
    if (updated) note_versions();
    if (!error.ok()) tell_failure();
    {
        MutexLock lock(owner.pipeline.mutex);
        phase = StepPhase::kIdle;  // counted, or not to be
        if (updated) {
            ++count;
        } else {
            --step->result.updated;
        }
        if (empty) ++step->result.without_gradient;
        if (!error.ok() && step->failure.ok()) step->failure = error;
    }
    const bool empties =
        updated && given == nullptr && (step->flags & STW_UPDATE_KEEP_GRADIENTS) == 0;
    leave(empties ? uint64_t{1} << kGradient : 0);
}

// An update that never began (its gradient cannot be read, for example) leaves its tensors
// unchanged. The parameter is then one step behind, so reads of it are refused. One that is to be
// undone has changed all of them already.
void ParameterJob::tell_failure()
{
    Tiers &tiers = owner.pipeline.tiers;
    if (open || undoes) {
        for (uint32_t i = 0; i < turn_count; ++i) {
            if (i != kGradient) tiers.fail(shape.layouts[i].tensor, error);
        }
        note_versions();  // a parameter that is written from now on is newer than its master
    } else {
        ErrorDetail &detail = error.mutable_detail();
        detail.sentence = format_text(
            "the update of %s did not begin, so its contents are those from before the step; "
            "write all of it, or clear the errors to continue with them. The cause was: %s",
            parameter_text(name).c_str(), detail.sentence.c_str());
        tiers.miss(shape.layouts[kParameter].tensor, error);
    }
    owner.pipeline.report(shape.layouts[kParameter].tensor, error);
}

void ParameterJob::leave(uint64_t emptied)
{
    TensorId tensors[2 * kJobTensorsMax];
    uint32_t n = 0;
    for (; n < turn_count; ++n) tensors[n] = shape.layouts[n].tensor;
    for (uint32_t i = 0; i < turn_count && claims_older; ++i) {
        if (i == kGradient) continue;
        emptied |= uint64_t{1} << n;
        tensors[n++] = older[i];
    }
    owner.pipeline.tiers.unclaim(claim, tensors, n, emptied);
    MutexLock lock(owner.pipeline.mutex);
    owner.pipeline.retire(*this);
    if (phase == StepPhase::kJoin) forget_parts();
    phase = StepPhase::kIdle;
    owner.left(*std::exchange(step, nullptr));
    owner.pipeline.job_gone();
}

}  // namespace stepwell::update
