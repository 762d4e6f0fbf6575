// SPDX-License-Identifier: Apache-2.0
#include "formatted.h"
#include "sweep.h"

#include "text.h"

#include <algorithm>

namespace stepwell::cli {
namespace {

using simulate::Answer;

constexpr const char *kPlaces[] = {"device", "host", "nvme"};

// "10.3 T", "8.05 B".
std::string count_text(double count)
{
    const char *const units[] = {"", " K", " M", " B", " T"};
    size_t unit = 0;
    for (; count >= 1000 && unit < 4; ++unit) count /= 1000;
    return formatted("%.3g%s", count, units[unit]);
}

std::string seconds_text(double seconds)
{
    if (seconds >= 1) return formatted("%.4g s", seconds);
    if (seconds >= 1e-3) return formatted("%.4g ms", seconds * 1e3);
    return formatted("%.4g us", seconds * 1e6);
}

std::string stalls_text(const Answer &answer)
{
    std::vector<uint32_t> causes;
    for (uint32_t cause = 0; cause < simulate::kCauses; ++cause)
        if (answer.stall_s[cause] > 0.0005 * answer.step_s) causes.push_back(cause);
    std::sort(causes.begin(), causes.end(),
              [&](uint32_t a, uint32_t b) { return answer.stall_s[a] > answer.stall_s[b]; });
    std::string text;
    for (const uint32_t cause : causes)
        text += (text.empty() ? "" : ", ") +
                std::string(simulate::cause_name(static_cast<simulate::Cause>(cause))) + " " +
                seconds_text(answer.stall_s[cause]);
    return text.empty() ? "none" : text;
}

std::string title(const std::string &model, const simulate::Machine &machine, const Answer &answer)
{
    return printable(model) + " on " + printable(machine.name) + ", " +
           std::to_string(answer.ranks) + (answer.ranks == 1 ? " rank\n" : " ranks\n");
}

std::string times_text(const Answer &answer)
{
    std::string text =
        formatted("  step          %s: %s of computation; %.3g TFLOPS a GPU, %.4g PFLOPS "
                  "in all\n",
                  seconds_text(answer.step_s).c_str(), seconds_text(answer.compute_s).c_str(),
                  answer.flops_per_gpu / 1e12, answer.flops_per_gpu * answer.ranks / 1e15);
    text += "  flop          " + answer.flop_convention;
    if (answer.useful_flops_per_gpu < answer.flops_per_gpu)
        text += formatted("; without recomputation %.3g TFLOPS a GPU",
                          answer.useful_flops_per_gpu / 1e12);
    text += "\n  stall         " + stalls_text(answer) + "\n";
    if (answer.speculated > 0) {
        text += formatted(
            "  speculation   of %.0f %% of the parameters; a step without a miss takes "
            "%s",
            100 * static_cast<double>(answer.speculated) / static_cast<double>(answer.parameters),
            seconds_text(answer.hit_step_s).c_str());
        if (answer.miss_step_s > 0) text += ", one with " + seconds_text(answer.miss_step_s);
        text += "\n";
    }
    text +=
        formatted("  bound         %s, by %s; the step reaches %.0f %% of it\n",
                  seconds_text(answer.bound.seconds).c_str(), printable(answer.bound.what).c_str(),
                  100 * answer.bound.seconds / answer.step_s);
    return text;
}

}  // namespace

std::string answer_text(const std::string &model, const simulate::Machine &machine,
                        const Answer &answer)
{
    std::string text = title(model, machine, answer);
    text += "  parameters    " + count_text(static_cast<double>(answer.parameters));
    if (answer.parameters_max > 0)
        text += "; with more such layers at most " +
                count_text(static_cast<double>(answer.parameters_max));
    text += "\n" + times_text(answer);
    const uint64_t budgets[] = {answer.budgets.device_bytes, answer.budgets.host_bytes,
                                answer.budgets.nvme_bytes};
    for (size_t place = 0; place < 3; ++place) {
        if (budgets[place] == 0) continue;
        text += formatted("  %-13s %s of %s at most, %s are stored there between uses; "
                          "of each rank\n",
                          kPlaces[place], bytes_text(answer.peak_bytes[place]).c_str(),
                          bytes_text(budgets[place]).c_str(),
                          bytes_text(answer.rest_bytes[place]).c_str());
    }
    text += "  links         ";
    for (size_t i = 0; i < answer.links.size(); ++i)
        text += formatted("%s%s %.0f %%", i == 0 ? "" : ", ",
                          printable(answer.links[i].name).c_str(), 100 * answer.links[i].busy);
    return text + " of the step busy\n";
}

std::string sweep_text(const std::string &key, const std::vector<Point> &points)
{
    std::string text = formatted("%-10s %10s %10s %12s %12s %8s  %s\n", key.c_str(), "parameters",
                                 "step", "TFLOPS/GPU", "PFLOPS", "of bound", "stall");
    for (const Point &point : points) {
        if (!point.refused.empty()) {
            text += formatted("%-10s ", point.label.c_str()) + point.refused + "\n";
            continue;
        }
        const Answer &answer = point.answer;
        text += formatted("%-10s %10s %10s %12.3g %12.4g %7.0f%%  ", point.label.c_str(),
                          count_text(static_cast<double>(answer.parameters)).c_str(),
                          seconds_text(answer.step_s).c_str(), answer.flops_per_gpu / 1e12,
                          answer.flops_per_gpu * answer.ranks / 1e15,
                          100 * answer.bound.seconds / answer.step_s) +
                stalls_text(answer) + "\n";
    }
    return text;
}

std::string estimate_text(const std::string &model, const simulate::Machine &machine,
                          const simulate::Estimate &estimate)
{
    std::string text = title(model, machine, estimate.whole);
    text += formatted("  bytes         %s of parameters, %s of gradients, %s of optimizer states\n",
                      bytes_text(estimate.parameter_bytes).c_str(),
                      bytes_text(estimate.gradient_bytes).c_str(),
                      bytes_text(estimate.state_bytes).c_str());
    text += "  limited by    " + printable(estimate.limit) + "\n";
    text += times_text(estimate.whole);
    if (!estimate.without_stall)
        text += formatted("no budgets here train it without stall: with all there is a step waits "
                          "%.0f %% of its time\n",
                          100 * estimate.waits);
    text += formatted("budgets of each rank\n                %-13s %-13s %-13s stored now\n",
                      "at least", estimate.without_stall ? "without stall" : "as fast", "of");
    const auto row = [&](const char *name, uint64_t simulate::Budgets::*tier, size_t place) {
        text += formatted("  %-13s %-13s %-13s %-13s %s\n", name,
                          bytes_text(estimate.least.budgets.*tier).c_str(),
                          bytes_text(estimate.fast.budgets.*tier).c_str(),
                          bytes_text(estimate.whole.budgets.*tier).c_str(),
                          bytes_text(estimate.whole.rest_bytes[place]).c_str());
    };
    row("device", &simulate::Budgets::device_bytes, 0);
    row("host", &simulate::Budgets::host_bytes, 1);
    row("nvme", &simulate::Budgets::nvme_bytes, 2);
    text += formatted(
        "  a step takes  %-13s %-13s %s\n", seconds_text(estimate.least.step_s).c_str(),
        seconds_text(estimate.fast.step_s).c_str(), seconds_text(estimate.whole.step_s).c_str());
    return text + formatted("device and host are tried in steps of 1/%u of what there is\n",
                            simulate::kEstimateShares);
}

}  // namespace stepwell::cli
