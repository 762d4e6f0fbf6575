// SPDX-License-Identifier: Apache-2.0
// Plans: what each candidate would have cost, what nothing can beat, and what is expected.
#include "lib/report/json.h"
#include "lib/report/report.h"

namespace stepwell::report {
namespace {

void write_candidate(JsonWriter &json, const CandidateReport &candidate)
{
    const auto &bytes = candidate.link_bytes;
    json.begin_object();
    json.compact(true);
    json.member("policy", candidate.policy);
    json.member("nvme_read_bytes", bytes[STW_LINK_NVME_TO_HOST] + bytes[STW_LINK_NVME_TO_DEVICE]);
    json.member("nvme_write_bytes", bytes[STW_LINK_HOST_TO_NVME] + bytes[STW_LINK_DEVICE_TO_NVME]);
    json.member("host_to_device_bytes", bytes[STW_LINK_HOST_TO_DEVICE]);
    json.member("device_to_host_bytes", bytes[STW_LINK_DEVICE_TO_HOST]);
    json.member("step_ns", candidate.step_ns);
    json.member("stall_ns", candidate.stall_ns);
    if (candidate.earlier) json.member("earlier", true);
    json.compact(false);
    json.end_object();
}

void write_bound(JsonWriter &json, const PlanReport &plan)
{
    json.key("bound");
    json.begin_object();
    json.member("step_ns", plan.bound_ns);
    json.member("compute_ns", plan.compute_ns);
    if (plan.now_ns > 0) {
        json.member("now_ns", plan.now_ns);
        json.member("now_compute_ns", plan.now_compute_ns);
    }
    json.key("links");
    json.begin_array();
    for (uint32_t link = 1; link < observe::kLinkTable; ++link) {
        if (plan.bound_bytes[link] == 0) continue;
        json.begin_object();
        json.member("link", link_name(link));
        json.member("bytes", plan.bound_bytes[link]);
        json.member("ns", plan.bound_link_ns[link]);
        json.end_object();
    }
    json.end_array();
    json.end_object();
}

void write_expected(JsonWriter &json, const PlanReport &plan)
{
    json.key("predicted");
    json.begin_object();
    json.member("step_ns", plan.step_ns);
    json.key("turns");
    json.begin_array();
    for (const PlannedTurnReport &turn : plan.turns) {
        json.begin_object();
        json.compact(true);
        json.member("phase", turn.phase);
        json.member("way", way_text(turn.way));
        json.member("begin_ns", turn.begin_ns);
        json.member("end_ns", turn.end_ns);
        json.member("least_ns", turn.least_ns);
        json.compact(false);
        json.end_object();
    }
    json.end_array();
    json.key("spans");
    json.begin_array();
    for (const ExpectedSpan &span : plan.spans) {
        json.begin_object();
        json.compact(true);
        json.member("lane", span.link == 0 ? "compute" : link_name(span.link));
        json.member("start_ns", span.start_ns);
        json.member("end_ns", span.end_ns);
        json.compact(false);
        json.end_object();
    }
    json.end_array();
    json.end_object();
}

}  // namespace

void write_plans(JsonWriter &json, const ReportData &data)
{
    json.key("plan");
    json.begin_object();
    json.member("cpu_ns", data.planning_ns);
    json.key("phases");
    json.begin_array();
    for (const PlanReport &plan : data.plans) {
        json.begin_object();
        json.member("name", plan.name);
        json.member("chosen", plan.candidates.front().policy);
        json.member("followed_steps", plan.steps);
        json.key("candidates");
        json.begin_array();
        for (const CandidateReport &candidate : plan.candidates) write_candidate(json, candidate);
        json.end_array();
        if (plan.repeats) write_bound(json, plan);
        if (plan.repeats) write_expected(json, plan);
        json.end_object();
    }
    json.end_array();
    json.end_object();
}

}  // namespace stepwell::report
