// SPDX-License-Identifier: Apache-2.0
// phase.h and observe.h at the boundary.
#include "lib/api/check.h"

using namespace stepwell;
using namespace stepwell::api;

stw_status stw_phase_create(stw_runtime *runtime, const char *name, stw_phase **phase_out)
{
    return guard([&]() -> Status {
        STW_TRY(enter(runtime));
        if (!phase_out) return Status::error(STW_ERROR_INVALID, "phase_out is null");
        return runtime->body->create_phase(name, phase_out);
    });
}

stw_status stw_phase_destroy(stw_phase *phase)
{
    return guard([&]() -> Status {
        STW_TRY(enter(phase));
        return phase->runtime->body->destroy_phase(phase);
    });
}

stw_status stw_step_begin(stw_phase *phase)
{
    return guard([&]() -> Status {
        STW_TRY(enter(phase));
        return phase->runtime->body->begin_step(phase);
    });
}

stw_status stw_step_end(stw_phase *phase, stw_step_stats *stats_out)
{
    return guard([&]() -> Status {
        STW_TRY(enter(phase));
        if (stats_out) STW_TRY(check_output(stats_out, 8, "stats_out"));
        return phase->runtime->body->end_step(phase, stats_out);
    });
}

stw_status stw_step_abort(stw_phase *phase, void *stream)
{
    return guard([&]() -> Status {
        STW_TRY(enter(phase));
        STW_TRY(check_stream(stream));
        return phase->runtime->body->abort_step(phase);
    });
}

stw_status stw_tier_stats_get(stw_runtime *runtime, uint32_t tier, uint32_t device,
                              stw_tier_stats *stats_out)
{
    return guard([&]() -> Status {
        STW_TRY(enter(runtime));
        STW_TRY(check_output(stats_out, 8, "stats_out"));
        return runtime->body->tier_stats(tier, device, stats_out);
    });
}

stw_status stw_link_stats_get(stw_runtime *runtime, uint32_t link, uint32_t device,
                              stw_link_stats *stats_out)
{
    return guard([&]() -> Status {
        STW_TRY(enter(runtime));
        STW_TRY(check_output(stats_out, 8, "stats_out"));
        return runtime->body->link_stats(link, device, stats_out);
    });
}

stw_status stw_report_write(stw_runtime *runtime, const char *path)
{
    return guard([&]() -> Status {
        STW_TRY(enter(runtime));
        if (!path) return Status::error(STW_ERROR_INVALID, "path is null");
        return runtime->body->write_report(path);
    });
}

stw_status stw_timeline_write(stw_runtime *runtime, const char *path)
{
    return guard([&]() -> Status {
        STW_TRY(enter(runtime));
        if (!path) return Status::error(STW_ERROR_INVALID, "path is null");
        return runtime->body->write_timeline(path);
    });
}
