// SPDX-License-Identifier: Apache-2.0
// The timeline as a Chrome trace. Perfetto draws the complete events of one thread as a stack, so
// spans of one lane that overlap (a queue of transfers) must not share a thread: each goes to the
// first row of its lane that is free when it begins. A row is a thread of the trace, with a name.
#include "lib/report/file.h"
#include "lib/report/flows.h"
#include "lib/report/json.h"
#include "lib/report/report.h"

#include <algorithm>
#include <map>
#include <tuple>

namespace stepwell::report {

namespace {

using observe::Span;
using observe::SpanKind;

constexpr uint64_t kProcess = 1;
constexpr uint32_t kRowsMax = 64;      // of a lane; beyond it, spans share the row freed first
constexpr uint32_t kRowNumbers = 100;  // thread numbers of one lane

// Steps on top, then who waited, then why.
uint32_t order_of(SpanKind kind)
{
    switch (kind) {
    case SpanKind::kStep: return 0;
    case SpanKind::kUse: return 1;
    case SpanKind::kStall: return 2;
    case SpanKind::kUpdate: return 3;
    case SpanKind::kTransfer: return 4;
    case SpanKind::kTierBytes: return 5;
    }
    return 6;
}

const char *category(SpanKind kind)
{
    static constexpr const char *kNames[] = {"step",     "compute",    "stall",  "update",
                                             "transfer", "tier bytes", "unknown"};
    return kNames[order_of(kind)];
}

struct TraceLane {
    uint32_t order;
    uint32_t lane;
    uint32_t device;
    bool operator<(const TraceLane &other) const
    {
        return std::tie(order, lane, device) < std::tie(other.order, other.lane, other.device);
    }
};

struct Lane {
    uint32_t number = 0;               // in the order of keys
    std::vector<uint64_t> row_end_ns;  // when each row is free again
};

class TraceWriter {
public:
    TraceWriter(JsonWriter &json, const TimelineData &data) : json_(json), data_(data) {}
    void write();

private:
    [[nodiscard]] static TraceLane key_of(const Span &span);
    [[nodiscard]] std::string lane_name(const TraceLane &key) const;
    [[nodiscard]] std::string phase_name(uint32_t lane) const;
    [[nodiscard]] uint64_t since_origin(uint64_t ns) const
    {
        return ns - std::min(ns, data_.origin_ns);
    }
    uint64_t write_span(const Span &span);  // its thread
    void write_flow(const char *phase, uint64_t id, uint64_t thread, uint64_t ns);
    void write_sample(const Span &span);
    void write_name(const char *what, uint64_t thread, std::string_view name);
    void write_rows();
    uint32_t row_of(Lane &lane, const Span &span);

    JsonWriter &json_;
    const TimelineData &data_;
    std::map<TraceLane, Lane> lanes_;
};

TraceLane TraceWriter::key_of(const Span &span)
{
    const bool has_device = span.kind == SpanKind::kTransfer || span.kind == SpanKind::kTierBytes;
    return {order_of(span.kind), span.lane, has_device ? span.detail : 0};
}

std::string TraceWriter::phase_name(uint32_t lane) const
{
    if (lane < data_.phase_names.size()) return data_.phase_names[lane];
    return format_text("phase %u", lane);
}

std::string TraceWriter::lane_name(const TraceLane &key) const
{
    std::string name;
    switch (key.order) {
    case 0: return "step: " + phase_name(key.lane);
    case 1: return format_text("compute: thread %u", key.lane);
    case 2: return std::string("stall: ") + observe::stall_name(observe::Stall(key.lane));
    case 3: return format_text("update: thread %u", key.lane);
    case 4: name = key.lane == 0 ? "within a tier" : link_name(key.lane); break;
    case 5: name = std::string(tier_name(key.lane)) + " bytes"; break;
    default: return format_text("unknown %u", key.lane);
    }
    return key.device == 0 ? name : name + format_text(", device %u", key.device);
}

uint32_t TraceWriter::row_of(Lane &lane, const Span &span)
{
    auto &rows = lane.row_end_ns;
    auto row = std::find_if(rows.begin(), rows.end(),
                            [&](uint64_t end_ns) { return end_ns <= span.start_ns; });
    if (row == rows.end() && rows.size() < kRowsMax) {
        rows.push_back(0);
        row = rows.end() - 1;
    } else if (row == rows.end()) {
        row = std::min_element(rows.begin(), rows.end());
    }
    *row = std::max(*row, std::max(span.start_ns, span.end_ns));
    return static_cast<uint32_t>(row - rows.begin());
}

uint64_t TraceWriter::write_span(const Span &span)
{
    const TraceLane key = key_of(span);
    Lane &lane = lanes_[key];
    const uint64_t thread = uint64_t{lane.number} * kRowNumbers + row_of(lane, span) + 1;
    json_.begin_object();
    json_.member("ph", "X");
    if (span.kind == SpanKind::kStep) {
        json_.member("name", format_text("%s %llu", phase_name(span.lane).c_str(),
                                         static_cast<unsigned long long>(span.id)));
    } else if (span.kind == SpanKind::kUpdate || span.kind == SpanKind::kUse) {
        json_.member("name", category(span.kind));
    } else {
        json_.member("name", lane_name(key));
    }
    json_.member("cat", category(span.kind));
    json_.member("pid", kProcess);
    json_.member("tid", thread);
    json_.key("ts");
    json_.microseconds(since_origin(span.start_ns));
    json_.key("dur");
    json_.microseconds(span.end_ns - std::min(span.start_ns, span.end_ns));
    json_.key("args");
    json_.begin_object();
    const bool moves = span.kind == SpanKind::kTransfer;
    json_.member("id", moves ? uint64_t{observe::block_of(span)} : span.id);
    json_.member("bytes", span.bytes);
    const bool has_tensor =
        moves || span.kind == SpanKind::kStall || span.kind == SpanKind::kUpdate;
    if (has_tensor) json_.member("tensor", name_of(data_.tensors, span));
    json_.end_object();
    json_.end_object();
    return thread;
}

// Perfetto binds both ends to the slice around them ("bp": "e" says so of the end).
void TraceWriter::write_flow(const char *phase, uint64_t id, uint64_t thread, uint64_t ns)
{
    json_.begin_object();
    json_.member("ph", phase);
    json_.member("name", "use");
    json_.member("cat", "flow");
    json_.member("id", id);
    json_.member("pid", kProcess);
    json_.member("tid", thread);
    json_.key("ts");
    json_.microseconds(since_origin(ns));
    if (*phase == 'f') json_.member("bp", "e");
    json_.end_object();
}

void TraceWriter::write_sample(const Span &span)
{
    json_.begin_object();
    json_.member("ph", "C");
    json_.member("name", lane_name(key_of(span)));
    json_.member("pid", kProcess);
    json_.key("ts");
    json_.microseconds(since_origin(span.start_ns));
    json_.key("args");
    json_.begin_object();
    json_.member("bytes", span.bytes);
    json_.end_object();
    json_.end_object();
}

void TraceWriter::write_name(const char *what, uint64_t thread, std::string_view name)
{
    json_.begin_object();
    json_.member("ph", "M");
    json_.member("name", what);
    json_.member("pid", kProcess);
    json_.member("tid", thread);
    json_.key("args");
    json_.begin_object();
    json_.member("name", name);
    json_.end_object();
    json_.end_object();
}

void TraceWriter::write_rows()
{
    for (const auto &[key, lane] : lanes_) {
        for (uint32_t row = 0; row < lane.row_end_ns.size(); ++row) {
            const uint64_t thread = uint64_t{lane.number} * kRowNumbers + row + 1;
            const std::string name = lane_name(key);
            write_name("thread_name", thread,
                       row == 0 ? name : name + format_text(" (%u)", row + 1));
            json_.begin_object();
            json_.member("ph", "M");
            json_.member("name", "thread_sort_index");
            json_.member("pid", kProcess);
            json_.member("tid", thread);
            json_.key("args");
            json_.begin_object();
            json_.member("sort_index", thread);
            json_.end_object();
            json_.end_object();
        }
    }
}

void TraceWriter::write()
{
    // Rows are given away in the order of time.
    const std::vector<Span> spans = drawn_spans(data_.snapshot);
    for (const Span &span : spans) {
        if (span.kind != SpanKind::kTierBytes) lanes_.try_emplace(key_of(span));
    }
    uint32_t number = 0;
    for (auto &[key, lane] : lanes_) lane.number = number++;

    json_.begin_object();
    json_.member("displayTimeUnit", "ms");
    json_.key("otherData");
    json_.begin_object();
    json_.member("spans_recorded", data_.snapshot.recorded);
    json_.member("spans_lost", data_.snapshot.lost);
    json_.end_object();
    json_.key("traceEvents");
    json_.begin_array();
    write_name("process_name", 0, data_.name);
    std::vector<uint64_t> threads(spans.size());
    for (size_t i = 0; i < spans.size(); ++i) {
        if (spans[i].kind == SpanKind::kTierBytes) {
            write_sample(spans[i]);
        } else {
            threads[i] = write_span(spans[i]);
        }
    }
    uint64_t id = 0;
    for (const Flow &flow : flows_of(data_.snapshot, spans)) {
        write_flow("s", ++id, threads[flow.from], flow.from_ns);
        write_flow("f", id, threads[flow.to], flow.to_ns);
    }
    write_rows();
    json_.end_array();
    json_.end_object();
}

}  // namespace

Status write_timeline(const char *path, const TimelineData &data)
{
    auto file = AtomicFile::create(path, "timeline");
    if (!file.ok()) return file.status();
    JsonWriter json(file.value()->sink(), 0);
    TraceWriter(json, data).write();
    return file.value()->commit();
}

}  // namespace stepwell::report
