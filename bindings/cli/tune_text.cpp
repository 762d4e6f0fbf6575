// SPDX-License-Identifier: Apache-2.0
// What was measured, for a reader: medians, between what they lay, and with which requests.
#include "tune_text.h"

#include "text.h"

#include <algorithm>
#include <cstdio>

#include <unistd.h>

namespace stepwell::cli {

namespace {

constexpr size_t kFigureColumns = 21;
constexpr size_t kBarColumns = 24;

std::string number(double value)
{
    char text[32];
    std::snprintf(text, sizeof text, "%.2f", value);
    return text;
}

std::string figure_line(const char *name, const Figure &figure, const std::string &more)
{
    return "  " + padded(name, kFigureColumns) + padded(number(figure.median / 1e9), 8) +
           padded(number(figure.least / 1e9) + " - " + number(figure.most / 1e9), 16) + more + "\n";
}

std::string chosen_line(const char *name, const ChosenSetting &chosen, const Figure &usual)
{
    std::string more = padded(bytes_text(chosen.setting.request_bytes), 10) +
                       padded(std::to_string(chosen.setting.queue_depth), 10);
    more += usual.rounds > 0 ? number(usual.median / 1e9) : "-";
    return figure_line(name, chosen.rate, more);
}

}  // namespace

std::string tuned_text(const Tuned &tuned)
{
    std::string text = padded("GB/s", kFigureColumns + 2) +
                       "median  spread          request   in flight untuned\n";
    for (const TunedDirectory &directory : tuned.directories) {
        text += "directory " + printable(directory.path) + ", " + directory.identity.file_system +
                ", driver " + directory.read.setting.driver + "\n";
        text += chosen_line("read", directory.read, directory.usual_read);
        text += chosen_line("write", directory.write, directory.usual_write);
        if (directory.mixed_read.rounds == 0) continue;
        text += figure_line("read, while written", directory.mixed_read, "");
        text += figure_line("written, while read", directory.mixed_write, "");
    }
    if (tuned.together_read.rounds > 0) {
        text += "all directories together\n";
        text += figure_line("read", tuned.together_read, "");
        text += figure_line("write", tuned.together_write, "");
    }
    text += "host memory\n" + figure_line("copy", tuned.host_copy, "one thread");
    text += "cuda\n  not measured\n";
    return text;
}

ProgressLine::ProgressLine(std::FILE *out) : out_(out), terminal_(isatty(fileno(out)) == 1) {}

ProgressLine::~ProgressLine()
{
    if (terminal_ && length_ > 0) std::fprintf(out_, "\r\033[K");
    std::fflush(out_);
}

void ProgressLine::show(const std::string &what, double share)
{
    if (!terminal_) {
        // A setting each would be many lines.
        const std::string subject = what.substr(0, what.find(": "));
        if (subject != subject_) std::fprintf(out_, "stepwell: %s\n", subject.c_str());
        subject_ = subject;
        std::fflush(out_);
        return;
    }
    const auto full = static_cast<size_t>(share * static_cast<double>(kBarColumns));
    std::string line = "[" + std::string(full, '#') + std::string(kBarColumns - full, ' ') + "] ";
    char percent[16];
    std::snprintf(percent, sizeof percent, "%3.0f %% ", share * 100);
    line += percent + what.substr(0, 60);
    std::fprintf(out_, "\r%s\033[K", line.c_str());
    std::fflush(out_);
    length_ = line.size();
}

}  // namespace stepwell::cli
