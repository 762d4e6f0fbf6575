// SPDX-License-Identifier: Apache-2.0
// The report against a description of its keys. Where one is wrong the text is read once more to
// find the line, since the parser keeps no places.
#include "report_json.h"

#include "text.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <utility>
#include <vector>

namespace stepwell::cli {

namespace {

using Json = nlohmann::json;

// "n": a number, not negative; "i": an integer; "n?": a number or null; "n2": a list of at least
// two such numbers; "s", "b": text, truth. "?key" may be absent. A list has entries of one kind.
constexpr const char *kSchema = R"({
"format": "n", "runtime": "s", "version": "s", "block_bytes": "n", "elapsed_ns": "n",
"threads": "n",
"tiers": [{"tier": "s", "device": "n", "budget_bytes": "n", "used_bytes": "n", "peak_bytes": "n",
    "within_budget": "b", "dirty_bytes": "n", "staging_bytes": "n", "scratch_bytes": "n",
    "evictions": "n"}],
"links": [{"link": "s", "device": "n", "bytes": "n", "transfers": "n", "busy_ns": "n",
    "busy_share": "n?", "measured_bytes_per_s": "n", "utilisation": "n?", "errors": "n",
    "retries": "n"}],
"drivers": [{"used_for": "s", "name": "s", "kind": "s", "bytes": "n", "remark": "s"}],
"phases": [{"name": "s", "number": "n", "steps": "n", "aborted": "n",
    "?last": {"planned": "b", "wall_ns": "n", "bound_ns": "n",
        "stall_ns": {"total": "n", "nvme": "n", "host_device": "n", "collective": "n", "room": "n",
            "update": "n"},
        "bytes": {"nvme_read": "n", "nvme_write": "n"}},
    "?last_bound": {"by": "s", "compute_ns": "n"}}],
"waste": {"bytes": "n", "share": "n?", "roles": [{"role": "s", "tensors": "n", "tensor_bytes": "n",
    "charged_bytes": "n"}]},
"errors": {"total": "n", "first": [{"status": "i", "tensor": "s", "sentence": "s", "count": "n"}]},
"?history": {"steps_total": "n",
    "steps": [{"phase": "n", "step": "n", "begin_ns": "n", "end_ns": "n", "planned": "b",
        "wall_ns": "n", "bound_ns": "n", "bound_by": "s", "compute_ns": "n",
        "stall_ns": {"total": "n", "nvme": "n", "host_device": "n", "collective": "n", "room": "n",
            "update": "n"},
        "link_bytes": {"nvme_to_host": "n", "host_to_nvme": "n", "host_to_device": "n",
            "device_to_host": "n", "nvme_to_device": "n", "device_to_nvme": "n", "ranks": "n"}}],
    "stalls": {"tensors": [{"tensor": "s", "waits": "n", "total_ns": "n", "nvme_ns": "n",
            "host_device_ns": "n", "collective_ns": "n", "room_ns": "n", "update_ns": "n"}],
        "others": {"waits": "n", "total_ns": "n", "nvme_ns": "n", "host_device_ns": "n",
            "collective_ns": "n", "room_ns": "n", "update_ns": "n"}},
    "tiers": [{"tier": "s", "device": "n", "samples": ["n2"]}],
    "window": {"begin_ns": "n", "end_ns": "n", "steps": "n", "whole": "b", "tensors": ["s"],
        "lanes": [{"kind": "s", "lane": "s", "device": "n", "spans": ["n5"]}]},
    "?older_windows": [{"begin_ns": "n", "end_ns": "n", "steps": "n", "whole": "b",
        "tensors": ["s"],
        "lanes": [{"kind": "s", "lane": "s", "device": "n", "spans": ["n5"]}]}]}
})";

constexpr const char *kPlanSchema = R"({
"phases": [{"name": "s", "chosen": "s",
    "candidates": [{"policy": "s", "nvme_read_bytes": "n", "nvme_write_bytes": "n",
        "host_to_device_bytes": "n", "device_to_host_bytes": "n", "step_ns": "n",
        "stall_ns": "n"}],
    "?bound": {"step_ns": "n", "compute_ns": "n", "?now_ns": "n", "?now_compute_ns": "n",
        "links": [{"link": "s", "bytes": "n", "ns": "n"}]},
    "?predicted": {"step_ns": "n", "spans": [{"lane": "s", "start_ns": "n", "end_ns": "n"}]}}]
})";

using Path = std::vector<std::string>;  // keys, and indices as digits

// "tiers[0].budget_bytes"
std::string path_words(const Path &path)
{
    std::string words;
    for (const std::string &part : path) {
        const bool index = !words.empty() && parse_number(part).has_value();
        words += index ? "[" + part + "]" : (words.empty() ? "" : ".") + part;
    }
    return printable(words);
}

struct Fault {
    Path path;          // of the value that is wrong; of the object where a key is missing
    std::string words;  // what is wrong, behind the place
};

std::string kind_words(const Json &value)
{
    if (value.is_null()) return "null";
    if (value.is_boolean()) return "true or false";
    if (value.is_string()) return "text";
    if (value.is_array()) return "a list";
    if (value.is_object()) return "an object";
    return value.is_number() && value < 0 ? "negative" : "a number";
}

bool fits_word(const Json &value, const std::string &word)
{
    const bool number = value.is_number() && value >= 0;
    if (word == "n") return number;
    if (word == "n?") return number || value.is_null();
    if (word == "i") return value.is_number_integer();
    if (word == "s") return value.is_string();
    if (word == "b") return value.is_boolean();
    const size_t least = static_cast<size_t>(word[1] - '0');
    return value.is_array() && value.size() >= least &&
           std::all_of(value.begin(), value.end(),
                       [](const Json &entry) { return entry.is_number() && entry >= 0; });
}

std::string wanted_words(const Json &schema)
{
    if (schema.is_object()) return "an object";
    if (schema.is_array()) return "a list";
    const std::string word = schema;
    if (word == "n") return "a number that is not negative";
    if (word == "n?") return "a number that is not negative, or null";
    if (word == "i") return "an integer";
    if (word == "s") return "text";
    if (word == "b") return "true or false";
    return std::string("a list of at least ") + word[1] + " numbers that are not negative";
}

// True where all is right.
bool fits(const Json &value, const Json &schema, Fault *fault)
{
    const bool right = schema.is_object()  ? value.is_object()
                       : schema.is_array() ? value.is_array()
                                           : fits_word(value, schema);
    if (!right) {
        fault->words = "is " + kind_words(value) + ", not " + wanted_words(schema);
        return false;
    }
    if (schema.is_array()) {
        for (size_t i = 0; i < value.size(); ++i) {
            fault->path.push_back(std::to_string(i));
            if (!fits(value[i], schema[0], fault)) return false;
            fault->path.pop_back();
        }
    }
    if (!schema.is_object()) return true;
    for (const auto &[word, inner] : schema.items()) {
        const bool optional = word[0] == '?';
        const std::string key = optional ? word.substr(1) : word;
        const auto found = value.find(key);
        if (found == value.end() && optional) continue;
        if (found == value.end()) {
            fault->words = "has no key '" + key + "'";
            return false;
        }
        fault->path.push_back(key);
        if (!fits(*found, inner, fault)) return false;
        fault->path.pop_back();
    }
    return true;
}

bool names_its_tensors(const Json &window, Path path, Fault *fault)
{
    for (size_t lane = 0; lane < window["lanes"].size(); ++lane) {
        const Json &spans = window["lanes"][lane]["spans"];
        for (size_t i = 0; i < spans.size(); ++i) {
            if (spans[i][4] < window["tensors"].size()) continue;
            for (const std::string &part :
                 {std::string("lanes"), std::to_string(lane), std::string("spans"),
                  std::to_string(i), std::string("4")}) {
                path.push_back(part);
            }
            *fault = {path, "is not the number of one of the window's tensors"};
            return false;
        }
    }
    return true;
}

// What no table says: a phase that had steps tells of the last one, and spans name tensors.
bool fits_together(const Json &report, Fault *fault)
{
    for (size_t i = 0; i < report["phases"].size(); ++i) {
        const Json &phase = report["phases"][i];
        if (phase["steps"] == 0) continue;
        for (const char *key : {"last", "last_bound"}) {
            if (phase.contains(key)) continue;
            *fault = {{"phases", std::to_string(i)},
                      std::string("had steps and has no key '") + key + "'"};
            return false;
        }
    }
    if (!report.contains("history")) return true;
    const Json &history = report["history"];
    if (!names_its_tensors(history["window"], {"history", "window"}, fault)) return false;
    if (!history.contains("older_windows")) return true;
    const Json &older = history["older_windows"];
    for (size_t i = 0; i < older.size(); ++i) {
        const Path path = {"history", "older_windows", std::to_string(i)};
        if (!names_its_tensors(older[i], path, fault)) return false;
    }
    return true;
}

// Characters, counted as the parser takes them.
struct CountedText {
    using iterator_category = std::input_iterator_tag;
    using value_type = char;
    using difference_type = std::ptrdiff_t;
    using pointer = const char *;
    using reference = const char &;

    const char *at;
    size_t *count;

    reference operator*() const { return *at; }
    CountedText &operator++()
    {
        ++at;
        ++*count;
        return *this;
    }
    CountedText operator++(int)
    {
        CountedText before = *this;
        ++*this;
        return before;
    }
    bool operator==(const CountedText &other) const { return at == other.at; }
    bool operator!=(const CountedText &other) const { return at != other.at; }
};

// How many characters the parser had taken when it had the value at a path.
class PlaceFinder final : public nlohmann::json_sax<Json> {
public:
    PlaceFinder(const Path &wanted, const size_t *count) : wanted_(wanted), count_(count) {}
    [[nodiscard]] size_t place() const { return place_; }

    bool null() override { return value(); }
    bool boolean(bool) override { return value(); }
    bool number_integer(number_integer_t) override { return value(); }
    bool number_unsigned(number_unsigned_t) override { return value(); }
    bool number_float(number_float_t, const string_t &) override { return value(); }
    bool string(string_t &) override { return value(); }
    bool binary(binary_t &) override { return value(); }
    bool start_object(size_t) override { return open(false); }
    bool start_array(size_t) override { return open(true); }
    bool end_object() override { return close(); }
    bool end_array() override { return close(); }
    bool key(string_t &name) override
    {
        path_.back() = name;
        return true;
    }
    bool parse_error(size_t, const std::string &, const nlohmann::detail::exception &) override
    {
        return false;
    }

private:
    bool value()
    {
        begin();
        end();
        return !found_;
    }
    bool open(bool list)
    {
        begin();
        lists_.push_back(list ? 0 : -1);
        path_.emplace_back(list ? "0" : "");
        return !found_;
    }
    bool close()
    {
        path_.pop_back();
        lists_.pop_back();
        end();
        return !found_;
    }
    void begin()
    {
        if (path_ != wanted_) return;
        found_ = true;
        place_ = *count_;
    }
    void end()
    {
        if (!lists_.empty() && lists_.back() >= 0) path_.back() = std::to_string(++lists_.back());
    }

    const Path &wanted_;
    const size_t *count_;
    Path path_;
    std::vector<std::ptrdiff_t> lists_;  // of each open level: the index; -1: an object
    bool found_ = false;
    size_t place_ = 0;
};

std::string place_words(const std::string &text, size_t byte)
{
    const size_t end = std::min(byte, text.size());
    const auto lines =
        std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(end), '\n');
    return "line " + std::to_string(lines + 1) + ", byte " + std::to_string(end);
}

size_t place_of(const std::string &text, const Path &path)
{
    size_t count = 0;
    PlaceFinder finder(path, &count);
    const CountedText begin{text.data(), &count};
    const CountedText end{text.data() + text.size(), &count};
    (void)Json::sax_parse(begin, end, &finder);
    return finder.place();
}

std::string refusal(const std::string &file, const std::string &text, const Fault &fault,
                    const Json &report)
{
    std::string words = "'" + printable(file) + "' is no report of stw_report_write: at " +
                        place_words(text, place_of(text, fault.path)) + " ";
    words += fault.path.empty() ? "it" : "'" + path_words(fault.path) + "'";
    words += " " + fault.words;
    if (report.is_object() && report.contains("traceEvents"))
        return words + "; it looks like a timeline, which ui.perfetto.dev opens.";
    return words + "; name a file that stw_report_write has written.";
}

}  // namespace

CheckedReport check_report(const std::string &file, const std::string &text)
{
    CheckedReport checked;
    if (trimmed(text).empty()) {
        checked.error = "'" + printable(file) +
                        "' is empty, at line 1, byte 0; name a file that "
                        "stw_report_write has written.";
        return checked;
    }
    Json report;
    try {
        report = Json::parse(text);
    } catch (const Json::parse_error &error) {
        std::string cause = error.what();
        const size_t colon = cause.find(": ");
        if (colon != std::string::npos) cause.erase(0, colon + 2);
        checked.error = "'" + printable(file) + "' is not JSON: at " +
                        place_words(text, error.byte > 0 ? error.byte - 1 : 0) + ": " +
                        printable(cause) + ".";
        return checked;
    } catch (const Json::exception &error) {
        checked.error =
            "'" + printable(file) + "' is not JSON: " + printable(parser_words(error.what())) + ".";
        return checked;
    }
    Fault fault;
    if (!fits(report, Json::parse(kSchema), &fault) || !fits_together(report, &fault)) {
        checked.error = refusal(file, text, fault, report);
        return checked;
    }
    if (report["format"] > kReportFormatMax) {
        checked.error =
            "'" + printable(file) + "' has the key 'format' " + report["format"].dump() + " at " +
            place_words(text, place_of(text, {"format"})) + "; this stepwell knows " +
            std::to_string(kReportFormatMax) + ", so use that of the library that wrote it.";
        return checked;
    }
    checked.runtime = report["runtime"];
    Fault plan_fault{{"plan"}, ""};
    if (report.contains("plan") && !fits(report["plan"], Json::parse(kPlanSchema), &plan_fault)) {
        checked.plan_error = "The plan of this report cannot be shown: at " +
                             place_words(text, place_of(text, plan_fault.path)) + " '" +
                             path_words(plan_fault.path) + "' " + plan_fault.words + ".";
    }
    return checked;
}

}  // namespace stepwell::cli
