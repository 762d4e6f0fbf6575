// SPDX-License-Identifier: Apache-2.0
// History: steps and waits as they were kept; samples thinned to what a picture can show; of the
// timeline the last whole steps, where the transfers of a tensor that follow each other are one.
#include "lib/report/history.h"

#include "lib/report/report.h"
#include "lib/support/status.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>
#include <utility>

namespace stepwell::report {

namespace {

using observe::Span;
using observe::SpanKind;
using observe::StallTotals;

uint64_t since(uint64_t ns, uint64_t origin_ns)
{
    return ns - std::min(ns, origin_ns);
}

void write_stalls(JsonWriter &json, const std::array<uint64_t, observe::kStalls> &ns)
{
    for (uint32_t cause = 0; cause < observe::kStalls; ++cause) {
        json.member(std::string(observe::stall_name(observe::Stall(cause))) + "_ns", ns[cause]);
    }
}

void write_step(JsonWriter &json, const observe::StepRecord &step, uint64_t origin_ns)
{
    const stw_step_stats &stats = step.stats;
    json.begin_object();
    json.compact(true);
    json.member("phase", step.phase);
    json.member("step", stats.step);
    json.member("begin_ns", since(step.begin_ns, origin_ns));
    json.member("end_ns", since(step.end_ns, origin_ns));
    json.member("planned", stats.planned != 0);
    json.member("wall_ns", stats.wall_ns);
    json.member("bound_ns", stats.bound_ns);
    if (stats.least_ns > 0) json.member("least_ns", stats.least_ns);
    if (step.way != 0) json.member("way", way_text(step.way));
    json.member("bound_by", step.bound.by_link ? link_name(step.bound.link) : "compute");
    json.member("compute_ns", step.bound.compute_ns);
    write_stalls(json, stats);
    json.key("link_bytes");
    json.begin_object();
    for (uint32_t link = 1; link < observe::kLinkTable; ++link) {
        json.member(link_name(link), step.bound.link_bytes[link]);
    }
    json.end_object();
    json.compact(false);
    json.end_object();
}

void write_waits(JsonWriter &json, const std::string *tensor, const StallTotals &totals)
{
    json.begin_object();
    json.compact(true);
    if (tensor) json.member("tensor", *tensor);
    json.member("waits", totals.waits);
    json.member("total_ns", totals.total_ns());
    write_stalls(json, totals.ns);
    json.compact(false);
    json.end_object();
}

void write_ledger(JsonWriter &json, const observe::StallLedger &ledger)
{
    std::vector<const std::pair<const std::string, StallTotals> *> order;
    for (const auto &entry : ledger.tensors()) order.push_back(&entry);
    std::stable_sort(order.begin(), order.end(), [](const auto *a, const auto *b) {
        return a->second.total_ns() > b->second.total_ns();
    });
    json.begin_object();
    json.key("tensors");
    json.begin_array();
    for (const auto *entry : order) write_waits(json, &entry->first, entry->second);
    json.end_array();
    json.key("others");
    write_waits(json, nullptr, ledger.others());
    json.end_object();
}

using Place = std::pair<uint32_t, uint32_t>;  // tier, device

// Of each group the largest and the last: a peak is not lost, and the line ends where it did.
std::vector<const Span *> thinned(const std::vector<const Span *> &samples)
{
    if (samples.size() <= kSamplesDrawn) return samples;
    const size_t group = 2 * ((samples.size() + kSamplesDrawn - 1) / kSamplesDrawn);
    std::vector<const Span *> kept;
    for (size_t begin = 0; begin < samples.size(); begin += group) {
        const auto first = samples.begin() + static_cast<std::ptrdiff_t>(begin);
        const auto end =
            samples.begin() + static_cast<std::ptrdiff_t>(std::min(begin + group, samples.size()));
        const auto largest = std::max_element(
            first, end, [](const Span *a, const Span *b) { return a->bytes < b->bytes; });
        kept.push_back(*largest);
        if (largest != end - 1) kept.push_back(*(end - 1));
    }
    return kept;
}

void write_samples(JsonWriter &json, const HistoryData &data)
{
    std::map<Place, std::vector<const Span *>> places;
    for (const Span &span : data.timeline.spans) {
        if (span.kind == SpanKind::kTierBytes) places[{span.lane, span.detail}].push_back(&span);
    }
    json.begin_array();
    for (auto &[place, samples] : places) {
        std::stable_sort(samples.begin(), samples.end(),
                         [](const Span *a, const Span *b) { return a->start_ns < b->start_ns; });
        json.begin_object();
        json.member("tier", tier_name(place.first));
        json.member("device", place.second);
        json.key("samples");
        json.compact(true);
        json.begin_array();
        for (const Span *sample : thinned(samples)) {
            json.begin_array();
            json.number(since(sample->start_ns, data.origin_ns));
            json.number(sample->bytes);
            json.end_array();
        }
        json.end_array();
        json.compact(false);
        json.end_object();
    }
    json.end_array();
}

struct DrawnSpan {
    uint64_t start_ns = 0;
    uint64_t end_ns = 0;
    uint64_t bytes = 0;
    uint64_t count = 0;  // of what was recorded
    uint32_t tensor = 0;
};

// Lanes in the order in which they are shown: kind, lane, device.
using LaneKey = std::tuple<uint32_t, uint32_t, uint32_t>;

class Window {
public:
    // Ends with the step before `end`, a place in data.steps.
    Window(const HistoryData &data, size_t end) : data_(data), end_(end) { choose(); }
    [[nodiscard]] bool whole() const { return whole_ && steps_ > 0; }
    [[nodiscard]] size_t begin() const { return end_ - steps_; }
    void write(JsonWriter &json) const;

private:
    void choose();
    void draw();
    void add(const Span &span);
    uint32_t tensor_number(std::string_view name);
    void write_lane(JsonWriter &json, const LaneKey &key,
                    const std::vector<DrawnSpan> &spans) const;

    const HistoryData &data_;
    const size_t end_;
    uint64_t begin_ns_ = 0;
    uint64_t end_ns_ = 0;
    uint32_t steps_ = 0;
    bool whole_ = true;  // no span of it was lost
    size_t count_ = 0;
    std::vector<std::string_view> names_;
    std::map<std::string_view, uint32_t> numbers_;
    std::map<LaneKey, std::vector<DrawnSpan>> lanes_;
    std::map<std::pair<LaneKey, uint32_t>, size_t> open_;  // the last span of a tensor in its lane
};

// The steps before the end, fewer where their spans are too many or the ring has lost some of them.
void Window::choose()
{
    const auto &spans = data_.timeline.spans;
    uint64_t oldest = 0;
    if (data_.timeline.lost > 0) {
        oldest = UINT64_MAX;
        // Spans stand in the order in which they ended; the first that is there ended here.
        if (!spans.empty()) oldest = spans.front().end_ns;
    }
    uint32_t steps = static_cast<uint32_t>(std::min<size_t>(end_, kStepsDrawn));
    for (; steps > 0; --steps) {
        begin_ns_ = data_.steps[end_ - steps].begin_ns;
        end_ns_ = data_.steps[end_ - 1].end_ns;
        whole_ = begin_ns_ >= oldest;
        if (!whole_ && steps > 1) continue;
        draw();
        if (count_ <= kSpansDrawn) break;
    }
    steps_ = steps;
    if (steps == 0) {
        begin_ns_ = end_ns_ = data_.origin_ns;
        lanes_.clear();
    }
}

void Window::draw()
{
    lanes_.clear();
    open_.clear();
    names_.clear();
    numbers_.clear();
    count_ = 0;
    std::vector<const Span *> sorted;
    for (const Span &span : data_.timeline.spans) {
        const bool lane = span.kind == SpanKind::kTransfer || span.kind == SpanKind::kStall ||
                          span.kind == SpanKind::kUpdate;
        if (lane && span.end_ns > begin_ns_ && span.start_ns < end_ns_) sorted.push_back(&span);
    }
    std::stable_sort(sorted.begin(), sorted.end(),
                     [](const Span *a, const Span *b) { return a->start_ns < b->start_ns; });
    for (const Span *span : sorted) add(*span);
}

uint32_t Window::tensor_number(std::string_view name)
{
    const auto [found, made] = numbers_.try_emplace(name, static_cast<uint32_t>(names_.size()));
    if (made) names_.push_back(name);
    return found->second;
}

void Window::add(const Span &span)
{
    const bool moves = span.kind == SpanKind::kTransfer;
    const bool updates = span.kind == SpanKind::kUpdate;
    const LaneKey key{static_cast<uint32_t>(span.kind), updates ? 0 : span.lane,
                      moves ? span.detail : 0};
    const uint32_t tensor = tensor_number(name_of(data_.tensors, span));
    std::vector<DrawnSpan> &spans = lanes_[key];
    // A wait is one event; transfers and chunks of a tensor are its bytes in pieces.
    const auto [last, first] = open_.try_emplace({key, tensor}, spans.size());
    const bool joins = !first && span.kind != SpanKind::kStall &&
                       span.start_ns <= spans[last->second].end_ns + kSpanGapNs;
    if (joins) {
        DrawnSpan &drawn = spans[last->second];
        drawn.end_ns = std::max(drawn.end_ns, span.end_ns);
        drawn.bytes += span.bytes;
        ++drawn.count;
        return;
    }
    last->second = spans.size();
    spans.push_back({span.start_ns, std::max(span.start_ns, span.end_ns), span.bytes, 1, tensor});
    ++count_;
}

void Window::write_lane(JsonWriter &json, const LaneKey &key,
                        const std::vector<DrawnSpan> &spans) const
{
    const auto [kind, lane, device] = key;
    json.begin_object();
    if (kind == static_cast<uint32_t>(SpanKind::kTransfer)) {
        json.member("kind", "link");
        json.member("lane", lane == 0 ? "within_tier" : link_name(lane));
    } else if (kind == static_cast<uint32_t>(SpanKind::kStall)) {
        json.member("kind", "stall");
        json.member("lane", observe::stall_name(observe::Stall(lane)));
    } else {
        json.member("kind", "update");
        json.member("lane", "update");
    }
    json.member("device", device);
    json.key("spans");
    json.compact(true);
    json.begin_array();
    for (const DrawnSpan &span : spans) {
        json.begin_array();
        json.number(since(span.start_ns, data_.origin_ns));
        json.number(since(span.end_ns, data_.origin_ns));
        json.number(span.bytes);
        json.number(span.count);
        json.number(uint64_t{span.tensor});
        json.end_array();
    }
    json.end_array();
    json.compact(false);
    json.end_object();
}

void Window::write(JsonWriter &json) const
{
    json.begin_object();
    json.member("begin_ns", since(begin_ns_, data_.origin_ns));
    json.member("end_ns", since(end_ns_, data_.origin_ns));
    json.member("steps", steps_);
    json.member("whole", whole_);
    json.key("tensors");
    json.begin_array();
    for (const std::string_view name : names_) json.string(name);
    json.end_array();
    json.key("lanes");
    json.begin_array();
    for (const auto &[key, spans] : lanes_) write_lane(json, key, spans);
    json.end_array();
    json.end_object();
}

// Of each phase that has no step in a newer window the last steps, where all their spans are there:
// a training is seen behind the many short steps of what came after it.
std::vector<Window> older_windows(const HistoryData &data, const Window &newest)
{
    std::set<uint32_t> drawn;
    const auto mark = [&](size_t begin, size_t end) {
        for (size_t i = begin; i < end; ++i) drawn.insert(data.steps[i].phase);
    };
    mark(newest.begin(), data.steps.size());
    std::vector<Window> older;
    for (size_t end = newest.begin(); end > 0 && older.size() < kOlderWindows; --end) {
        if (drawn.count(data.steps[end - 1].phase) > 0) continue;
        Window window(data, end);
        mark(end - 1, end);
        if (!window.whole()) continue;
        mark(window.begin(), end);
        older.push_back(std::move(window));
    }
    return older;
}

}  // namespace

std::string_view name_of(const std::vector<TensorName> &tensors, const Span &span)
{
    const uint32_t tensor = observe::tensor_of(span);
    if (tensor >= tensors.size() || span.end_ns < tensors[tensor].created_ns) return "";
    return tensors[tensor].name;
}

void write_history(JsonWriter &json, const HistoryData &data)
{
    json.begin_object();
    json.member("steps_total", data.steps_total);
    json.key("steps");
    json.begin_array();
    for (const observe::StepRecord &step : data.steps) write_step(json, step, data.origin_ns);
    json.end_array();
    json.key("stalls");
    write_ledger(json, data.stalls);
    json.key("tiers");
    write_samples(json, data);
    const Window newest(data, data.steps.size());
    json.key("window");
    newest.write(json);
    json.key("older_windows");
    json.begin_array();
    for (const Window &window : older_windows(data, newest)) window.write(json);
    json.end_array();
    json.end_object();
}

}  // namespace stepwell::report
