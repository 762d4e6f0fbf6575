// SPDX-License-Identifier: Apache-2.0
// A plot without scripts, fonts or anything else from elsewhere.
#include "formatted.h"
#include "sweep.h"

#include "text.h"

#include <algorithm>
#include <cmath>

namespace stepwell::cli {
namespace {

constexpr double kWidth = 720;
constexpr double kHeight = 420;
constexpr double kLeft = 70;
constexpr double kRight = 700;
constexpr double kTop = 50;
constexpr double kBottom = 350;

std::string escaped(const std::string &text)
{
    std::string result;
    for (const char c : text) {
        if (c == '&')
            result += "&amp;";
        else if (c == '<')
            result += "&lt;";
        else if (c == '>')
            result += "&gt;";
        else if (static_cast<unsigned char>(c) >= ' ')
            result += c;
    }
    return result;
}

// A round number of steps that reaches the largest value.
double round_step(double largest)
{
    const double magnitude = std::pow(10, std::floor(std::log10(largest / 5)));
    for (const double factor : {1.0, 2.0, 5.0, 10.0})
        if (factor * magnitude * 5 >= largest) return factor * magnitude;
    return 10 * magnitude;
}

double x_of(size_t i, size_t count)
{
    return kLeft + (kRight - kLeft) * (static_cast<double>(i) + 0.5) / static_cast<double>(count);
}

double bound_tflops(const Point &point)
{
    const simulate::Answer &answer = point.answer;
    return answer.flops_per_gpu * answer.step_s / answer.bound.seconds / 1e12;
}

struct Series {
    const char *color;
    const char *dashes;
    double (*value)(const Point &);
};

std::string drawn(const Series &series, const std::vector<Point> &points, double top)
{
    std::string line;
    std::string dots;
    for (size_t i = 0; i < points.size(); ++i) {
        if (!points[i].refused.empty()) continue;
        const double x = x_of(i, points.size());
        const double y = kBottom - (kBottom - kTop) * series.value(points[i]) / top;
        line += formatted("%s%.1f,%.1f", line.empty() ? "" : " ", x, y);
        dots += formatted("<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\" fill=\"%s\"/>\n", x, y,
                          series.color);
    }
    return "<polyline points=\"" + line + "\" fill=\"none\" stroke=\"" + series.color +
           "\" stroke-width=\"2\" stroke-dasharray=\"" + series.dashes + "\"/>\n" + dots;
}

std::string axes(const std::string &key, const std::vector<Point> &points, double step, double top)
{
    std::string text;
    for (double value = 0; value <= top * 1.0001; value += step) {
        const double y = kBottom - (kBottom - kTop) * value / top;
        text += formatted("<line x1=\"%g\" y1=\"%.1f\" x2=\"%g\" y2=\"%.1f\" stroke=\"#ddd\"/>\n"
                          "<text x=\"%g\" y=\"%.1f\" text-anchor=\"end\">%g</text>\n",
                          kLeft, y, kRight, y, kLeft - 8, y + 4, value);
    }
    for (size_t i = 0; i < points.size(); ++i)
        text += formatted(
            "<text x=\"%.1f\" y=\"%g\" text-anchor=\"middle\">%s</text>\n", x_of(i, points.size()),
            kBottom + 20,
            (escaped(points[i].label) + (points[i].refused.empty() ? "" : " (no)")).c_str());
    text += formatted("<text x=\"%g\" y=\"%g\" text-anchor=\"middle\">%s</text>\n",
                      (kLeft + kRight) / 2, kBottom + 42, escaped(key).c_str());
    return text + formatted("<text x=\"16\" y=\"%g\" text-anchor=\"middle\" "
                            "transform=\"rotate(-90 16 %g)\">TFLOPS per GPU</text>\n",
                            (kTop + kBottom) / 2, (kTop + kBottom) / 2);
}

constexpr size_t kLineLetters = 100;
constexpr double kLineHeight = 16;

// Why points are not there, below the plot.
std::vector<std::string> reasons(const std::vector<Point> &points)
{
    std::vector<std::string> lines;
    for (const Point &point : points) {
        if (point.refused.empty()) continue;
        std::string line = point.label + ":";
        const std::string words = point.refused;  // words_of looks into it
        for (const std::string_view word : words_of(words)) {
            if (line.size() + 1 + word.size() > kLineLetters) {
                lines.push_back(line);
                line = "   ";
            }
            line += " " + std::string(word);
        }
        lines.push_back(line);
    }
    return lines;
}

}  // namespace

std::string sweep_svg(const std::string &title, const std::string &key,
                      const std::vector<Point> &points)
{
    const Series ours{"#1b6ca8", "none",
                      [](const Point &point) { return point.answer.flops_per_gpu / 1e12; }};
    const Series bound{"#999999", "6 4", bound_tflops};
    double largest = 1e-9;
    for (const Point &point : points)
        if (point.refused.empty()) largest = std::max(largest, bound_tflops(point));
    const double step = round_step(largest);
    const double top = step * std::ceil(largest / step);
    const std::vector<std::string> lines = reasons(points);
    const double height = kHeight + kLineHeight * static_cast<double>(lines.size());
    std::string text =
        formatted("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%g\" height=\"%g\" "
                  "viewBox=\"0 0 %g %g\" font-family=\"sans-serif\" font-size=\"13\">\n"
                  "<rect width=\"100%%\" height=\"100%%\" fill=\"white\"/>\n",
                  kWidth, height, kWidth, height);
    text += formatted("<text x=\"%g\" y=\"26\" font-size=\"15\">", kLeft) + escaped(title) +
            "</text>\n";
    text += axes(key, points, step, top);
    text += drawn(bound, points, top) + drawn(ours, points, top);
    text += formatted("<text x=\"%g\" y=\"%g\" fill=\"#1b6ca8\">simulated</text>\n"
                      "<text x=\"%g\" y=\"%g\" fill=\"#777777\">at the bound (dashed)</text>\n",
                      kLeft, kHeight - 10, kLeft + 100, kHeight - 10);
    for (size_t i = 0; i < lines.size(); ++i)
        text += formatted("<text x=\"%g\" y=\"%g\" font-size=\"11\">%s</text>\n", kLeft,
                          kHeight + 4 + kLineHeight * static_cast<double>(i),
                          escaped(lines[i]).c_str());
    return text + "</svg>\n";
}

}  // namespace stepwell::cli
