// SPDX-License-Identifier: Apache-2.0
#include "sweep.h"

#include <nlohmann/json.hpp>

namespace stepwell::cli {
namespace {

using Json = nlohmann::ordered_json;
using simulate::Answer;

constexpr uint64_t kFormat = 1;

Json budgets_json(const simulate::Budgets &budgets)
{
    return {{"device_bytes", budgets.device_bytes},
            {"host_bytes", budgets.host_bytes},
            {"nvme_bytes", budgets.nvme_bytes}};
}

Json tiers_json(const uint64_t (&bytes)[simulate::kSimulatedPlaces])
{
    return budgets_json({bytes[0], bytes[1], bytes[2]});
}

Json answer_json(const Answer &answer)
{
    Json stall = Json::object();
    for (uint32_t cause = 1; cause < simulate::kCauses; ++cause)
        stall[std::string(simulate::cause_name(static_cast<simulate::Cause>(cause))) + "_s"] =
            answer.stall_s[cause];
    Json links = Json::array();
    for (const simulate::LinkLoad &link : answer.links)
        links.push_back({{"name", link.name}, {"bytes_per_rank", link.bytes}, {"busy", link.busy}});
    return {{"ranks", answer.ranks},
            {"parameters", answer.parameters},
            {"parameters_max", answer.parameters_max},
            {"step_s", answer.step_s},
            {"compute_s", answer.compute_s},
            {"hit_step_s", answer.hit_step_s},
            {"miss_step_s", answer.miss_step_s > 0 ? Json(answer.miss_step_s) : Json()},
            {"speculated_parameters", answer.speculated},
            {"flop_per_s_per_gpu", answer.flops_per_gpu},
            {"flop_per_s_per_gpu_without_recomputation", answer.useful_flops_per_gpu},
            {"flop", answer.flop_convention},
            {"stall", stall},
            {"bound", {{"seconds", answer.bound.seconds}, {"by", answer.bound.what}}},
            {"links", links},
            {"budgets_per_rank", budgets_json(answer.budgets)},
            {"peak_per_rank", tiers_json(answer.peak_bytes)},
            {"rest_per_rank", tiers_json(answer.rest_bytes)},
            {"simulated",
             {{"block_bytes", answer.block_bytes},
              {"tensors", answer.tensors},
              {"events", answer.events}}}};
}

std::string dumped(const Json &json)
{
    return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

Json head(const std::string &model, const simulate::Machine &machine)
{
    return {{"format", kFormat}, {"model", model}, {"machine", machine.name}};
}

}  // namespace

std::string points_json(const std::string &model, const simulate::Machine &machine,
                        const std::vector<Point> &points)
{
    Json json = head(model, machine);
    json["points"] = Json::array();
    for (const Point &point : points) {
        Json entry;
        entry["value"] = point.label.empty() ? Json() : Json(point.value);
        entry["refused"] = point.refused.empty() ? Json() : Json(point.refused);
        if (point.refused.empty()) entry["answer"] = answer_json(point.answer);
        json["points"].push_back(entry);
    }
    return dumped(json);
}

std::string estimate_json(const std::string &model, const simulate::Machine &machine,
                          const simulate::Estimate &estimate)
{
    Json json = head(model, machine);
    json["parameter_bytes"] = estimate.parameter_bytes;
    json["gradient_bytes"] = estimate.gradient_bytes;
    json["state_bytes"] = estimate.state_bytes;
    json["limited_by"] = estimate.limit;
    json["without_stall"] = estimate.without_stall;
    json["waits"] = estimate.waits;
    json["least_budgets_per_rank"] = budgets_json(estimate.least.budgets);
    json["fast_budgets_per_rank"] = budgets_json(estimate.fast.budgets);
    json["with_all"] = answer_json(estimate.whole);
    json["with_fast"] = answer_json(estimate.fast);
    json["with_least"] = answer_json(estimate.least);
    return dumped(json);
}

}  // namespace stepwell::cli
