// SPDX-License-Identifier: Apache-2.0
// phase.h and observe.h at the boundary.
#include "lib/api/check.h"
#include "lib/runtime/dispatch/waiter.h"

#include <set>
#include <vector>

using namespace stepwell;
using namespace stepwell::api;

namespace {

constexpr uint32_t kEntriesMax = 1u << 20;

Status take_entry(const stw_runtime *runtime, const stw_plan_entry &entry, DeclaredUse *use)
{
    STW_TRY(check_flags(entry.release_flags,
                        STW_RELEASE_FAR | STW_RELEASE_NEAR | STW_RELEASE_DISCARD, "release_flags"));
    STW_TRY(check_flags(entry.reserved, 0, "reserved"));
    stw_fetch_request request = STW_FETCH_REQUEST_INIT;
    request.access = entry.access;
    request.tensor = entry.tensor;
    request.scope = entry.scope;
    request.tier = entry.tier;
    request.device = entry.device;
    request.element_begin = entry.element_begin;
    request.element_count = entry.element_count;
    STW_TRY(resolve_request(runtime, request, &use->range));
    use->call = entry.fetch;
    use->release = ReleaseHint(entry.release_flags);
    use->compute_ns = entry.compute_ns;
    return {};
}

// Which of many is said in front of what is wrong with it.
Status in_entry(uint32_t index, Status status)
{
    if (status.ok()) return status;
    ErrorDetail &detail = status.mutable_detail();
    detail.sentence = format_text("entries[%u]: %s", index, detail.sentence.c_str());
    return status;
}

}  // namespace

stw_status stw_phase_create(stw_runtime *runtime, const char *name, stw_phase **phase_out)
{
    return guard([&]() -> Status {
        STW_TRY(enter(runtime));
        if (!phase_out) return Status::error(STW_ERROR_INVALID, "phase_out is null");
        return runtime->body->calls.steps.create_phase(name, phase_out);
    });
}

stw_status stw_phase_destroy(stw_phase *phase)
{
    return guard([&]() -> Status {
        STW_TRY(enter(phase));
        return phase->runtime->body->calls.steps.destroy_phase(phase);
    });
}

stw_status stw_phase_declare(stw_phase *phase, const stw_plan_entry *entries, uint32_t n)
{
    return guard([&]() -> Status {
        STW_TRY(enter(phase));
        if (n > 0 && !entries) return Status::error(STW_ERROR_INVALID, "entries is null");
        if (n > kEntriesMax) {
            return Status::error(STW_ERROR_INVALID,
                                 "%u entries, more than the %u that a step of a "
                                 "phase may have",
                                 n, kEntriesMax);
        }
        std::vector<DeclaredUse> uses(n);
        std::set<uint32_t> over;
        for (uint32_t i = 0; i < n; ++i) {
            stw_plan_entry entry{};
            const stw_plan_entry &given = element(entries, i);
            if (given.struct_size != entries[0].struct_size) {
                return Status::error(STW_ERROR_INVALID,
                                     "entries[%u].struct_size differs from the first one's", i);
            }
            STW_TRY(in_entry(i, take(&entry, &given, "entry")));
            STW_TRY(in_entry(i, take_entry(phase->runtime, entry, &uses[i])));
            if (i > 0 && uses[i].call == uses[i - 1].call) continue;
            if (over.insert(uses[i].call).second) continue;
            return Status::error(STW_ERROR_INVALID,
                                 "entries[%u] has the fetch number %u of an earlier fetch; entries "
                                 "of one fetch stand side by side",
                                 i, uses[i].call);
        }
        return phase->runtime->body->calls.steps.declare_step(phase, std::move(uses));
    });
}

stw_status stw_phase_advice_get(stw_phase *phase, stw_plan_advice *advice_out, uint32_t capacity,
                                uint32_t *count_out)
{
    return guard([&]() -> Status {
        STW_TRY(enter(phase));
        if (!count_out) return Status::error(STW_ERROR_INVALID, "count_out is null");
        if (capacity > kEntriesMax) {
            return Status::error(STW_ERROR_INVALID,
                                 "capacity is %u; 3 is enough for all that there can be", capacity);
        }
        for (uint32_t i = 0; i < capacity; ++i) {
            if (i == 0) STW_TRY(check_output(advice_out, 8, "advice_out"));
            if (element(advice_out, i).struct_size == advice_out->struct_size) continue;
            return Status::error(STW_ERROR_INVALID,
                                 "advice_out[%u].struct_size differs from the first one's", i);
        }
        return phase->runtime->body->planning.models.advise(phase, advice_out, capacity, count_out);
    });
}

stw_status stw_step_begin(stw_phase *phase)
{
    return guard([&]() -> Status {
        STW_TRY(enter(phase));
        return phase->runtime->body->calls.steps.begin_step(phase);
    });
}

stw_status stw_step_end(stw_phase *phase, stw_step_stats *stats_out)
{
    return guard([&]() -> Status {
        STW_TRY(enter(phase));
        if (stats_out) STW_TRY(check_output(stats_out, 8, "stats_out"));
        return phase->runtime->body->calls.steps.end_step(phase, stats_out);
    });
}

stw_status stw_step_abort(stw_phase *phase, void *stream)
{
    return guard([&]() -> Status {
        STW_TRY(enter(phase));
        STW_TRY(phase->runtime->body->views.streams.check_stream(stream));
        return phase->runtime->body->calls.steps.abort_step(phase, stream);
    });
}

stw_status stw_tier_stats_get(stw_runtime *runtime, uint32_t tier, uint32_t device,
                              stw_tier_stats *stats_out)
{
    return guard([&]() -> Status {
        STW_TRY(enter(runtime));
        STW_TRY(check_output(stats_out, 8, "stats_out"));
        return runtime->body->report.reporter.tier_stats(tier, device, stats_out);
    });
}

stw_status stw_link_stats_get(stw_runtime *runtime, uint32_t link, uint32_t device,
                              stw_link_stats *stats_out)
{
    return guard([&]() -> Status {
        STW_TRY(enter(runtime));
        STW_TRY(check_output(stats_out, 8, "stats_out"));
        return runtime->body->report.reporter.link_stats(link, device, stats_out);
    });
}

stw_status stw_report_write(stw_runtime *runtime, const char *path)
{
    return guard([&]() -> Status {
        STW_TRY(enter(runtime));
        if (!path) return Status::error(STW_ERROR_INVALID, "path is null");
        return runtime->body->report.reporter.write_report(path);
    });
}

stw_status stw_timeline_write(stw_runtime *runtime, const char *path)
{
    return guard([&]() -> Status {
        STW_TRY(enter(runtime));
        if (!path) return Status::error(STW_ERROR_INVALID, "path is null");
        return runtime->body->report.reporter.write_timeline(path);
    });
}
