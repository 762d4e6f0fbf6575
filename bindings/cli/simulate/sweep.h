// SPDX-License-Identifier: Apache-2.0
// Answers as text, JSON and a plot.
#pragma once

#include "lib/simulate/estimate.h"

#include <string>
#include <vector>

namespace stepwell::cli {

// A point of a sweep, or the only one.
struct Point {
    double value = 0;
    std::string label;
    std::string refused;  // why there is no answer
    simulate::Answer answer;
};

std::string answer_text(const std::string &model, const simulate::Machine &machine,
                        const simulate::Answer &answer);
std::string sweep_text(const std::string &key, const std::vector<Point> &points);
std::string points_json(const std::string &model, const simulate::Machine &machine,
                        const std::vector<Point> &points);
std::string estimate_text(const std::string &model, const simulate::Machine &machine,
                          const simulate::Estimate &estimate);
std::string estimate_json(const std::string &model, const simulate::Machine &machine,
                          const simulate::Estimate &estimate);
// One self-contained SVG: TFLOPS of a GPU over the values, and what the bound would allow.
std::string sweep_svg(const std::string &title, const std::string &key,
                      const std::vector<Point> &points);

}  // namespace stepwell::cli
