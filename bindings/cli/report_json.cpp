// SPDX-License-Identifier: Apache-2.0
// The report against a description of its keys. Where one is wrong the text is read once more to
// find the line, since the parser keeps no places.
#include "report_json.h"

#include "text.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <set>
#include <utility>
#include <vector>

namespace stepwell::cli {

namespace {

using SortedJson = nlohmann::json;

// "n": a number that is not negative and below 2^64; "c": one without a fraction; "i": an integer;
// "n?": a number or null; "n2": a list of at least two such numbers; "s", "b": text, truth. "?key"
// may be absent. A list has entries of one kind.
constexpr const char *kSchema = R"({
"format": "c", "runtime": "s", "version": "s", "block_bytes": "n", "elapsed_ns": "n",
"threads": "c",
"tiers": [{"tier": "s", "device": "c", "budget_bytes": "n", "used_bytes": "n", "peak_bytes": "n",
    "within_budget": "b", "dirty_bytes": "n", "staging_bytes": "n", "scratch_bytes": "n",
    "evictions": "n"}],
"links": [{"link": "s", "device": "c", "bytes": "n", "transfers": "n", "busy_ns": "n",
    "busy_share": "n?", "measured_bytes_per_s": "n", "utilisation": "n?", "errors": "n",
    "retries": "n"}],
"drivers": [{"used_for": "s", "name": "s", "kind": "s", "bytes": "n", "remark": "s"}],
"phases": [{"name": "s", "number": "c", "steps": "n", "aborted": "n",
    "?last": {"planned": "b", "wall_ns": "n", "bound_ns": "n",
        "stall_ns": {"total": "n", "nvme": "n", "host_device": "n", "collective": "n", "room": "n",
            "update": "n"},
        "bytes": {"nvme_read": "n", "nvme_write": "n"}},
    "?last_bound": {"by": "s", "compute_ns": "n"}}],
"waste": {"bytes": "n", "share": "n?", "roles": [{"role": "s", "tensors": "n", "tensor_bytes": "n",
    "charged_bytes": "n"}]},
"errors": {"total": "n", "first": [{"status": "i", "tensor": "s", "sentence": "s", "count": "n"}]},
"?history": {"steps_total": "n",
    "steps": [{"phase": "c", "step": "c", "begin_ns": "n", "end_ns": "n", "planned": "b",
        "wall_ns": "n", "bound_ns": "n", "bound_by": "s", "compute_ns": "n",
        "stall_ns": {"total": "n", "nvme": "n", "host_device": "n", "collective": "n", "room": "n",
            "update": "n"},
        "link_bytes": {"nvme_to_host": "n", "host_to_nvme": "n", "host_to_device": "n",
            "device_to_host": "n", "nvme_to_device": "n", "device_to_nvme": "n", "ranks": "n"}}],
    "stalls": {"tensors": [{"tensor": "s", "waits": "n", "total_ns": "n", "nvme_ns": "n",
            "host_device_ns": "n", "collective_ns": "n", "room_ns": "n", "update_ns": "n"}],
        "others": {"waits": "n", "total_ns": "n", "nvme_ns": "n", "host_device_ns": "n",
            "collective_ns": "n", "room_ns": "n", "update_ns": "n"}},
    "tiers": [{"tier": "s", "device": "c", "samples": ["n2"]}],
    "window": {"begin_ns": "n", "end_ns": "n", "steps": "n", "whole": "b", "tensors": ["s"],
        "lanes": [{"kind": "s", "lane": "s", "device": "c", "spans": ["n5"]}]},
    "?older_windows": [{"begin_ns": "n", "end_ns": "n", "steps": "n", "whole": "b",
        "tensors": ["s"],
        "lanes": [{"kind": "s", "lane": "s", "device": "c", "spans": ["n5"]}]}]}
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

constexpr double kNumberMax = 0x1p64;

bool is_number(const SortedJson &value)
{
    // The parser's own comparison takes large integers for negative ones.
    return value.is_number_unsigned() ||
           (value.is_number() && value.get<double>() >= 0 && value.get<double>() < kNumberMax);
}

bool is_count(const SortedJson &value)
{
    return is_number(value) && value.get<double>() == std::floor(value.get<double>());
}

std::string kind_words(const SortedJson &value)
{
    if (value.is_null()) return "null";
    if (value.is_boolean()) return "true or false";
    if (value.is_string()) return "text";
    if (value.is_array()) return "a list";
    if (value.is_object()) return "an object";
    if (!value.is_number()) return "nothing known";
    if (value.is_number_unsigned()) return "a number";
    const double number = value;
    return number < 0 ? "negative" : number >= kNumberMax ? "2^64 or more" : value.dump();
}

bool fits_word(const SortedJson &value, const std::string &word)
{
    if (word == "n") return is_number(value);
    if (word == "c") return is_count(value);
    if (word == "n?") return is_number(value) || value.is_null();
    if (word == "i") return value.is_number_integer();
    if (word == "s") return value.is_string();
    if (word == "b") return value.is_boolean();
    const size_t least = static_cast<size_t>(word[1] - '0');
    return value.is_array() && value.size() >= least &&
           std::all_of(value.begin(), value.end(), is_number);
}

std::string wanted_words(const SortedJson &schema)
{
    if (schema.is_object()) return "an object";
    if (schema.is_array()) return "a list";
    const std::string word = schema;
    if (word == "n") return "a number that is not negative";
    if (word == "c") return "a count";
    if (word == "n?") return "a number that is not negative, or null";
    if (word == "i") return "an integer";
    if (word == "s") return "text";
    if (word == "b") return "true or false";
    return std::string("a list of at least ") + word[1] + " numbers that are not negative";
}

// True where all is right.
bool fits(const SortedJson &value, const SortedJson &schema, Fault *fault)
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

bool names_its_tensors(const SortedJson &window, Path path, Fault *fault)
{
    const auto tensors = static_cast<double>(window["tensors"].size());
    for (size_t lane = 0; lane < window["lanes"].size(); ++lane) {
        const SortedJson &spans = window["lanes"][lane]["spans"];
        for (size_t i = 0; i < spans.size(); ++i) {
            const SortedJson &tensor = spans[i][4];
            if (is_count(tensor) && tensor.get<double>() < tensors) continue;
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

bool ends_after_it_begins(const SortedJson &span, Path path, Fault *fault)
{
    if (span["end_ns"].get<double>() >= span["begin_ns"].get<double>()) return true;
    path.emplace_back("end_ns");
    *fault = {path, "is before it begins"};
    return false;
}

// What no table says: a phase that had steps tells of the last one, spans name tensors, and what
// ends has begun.
bool fits_together(const SortedJson &report, Fault *fault)
{
    for (size_t i = 0; i < report["phases"].size(); ++i) {
        const SortedJson &phase = report["phases"][i];
        if (phase["steps"] == 0) continue;
        for (const char *key : {"last", "last_bound"}) {
            if (phase.contains(key)) continue;
            *fault = {{"phases", std::to_string(i)},
                      std::string("had steps and has no key '") + key + "'"};
            return false;
        }
    }
    if (!report.contains("history")) return true;
    const SortedJson &history = report["history"];
    for (size_t i = 0; i < history["steps"].size(); ++i) {
        const Path path = {"history", "steps", std::to_string(i)};
        if (!ends_after_it_begins(history["steps"][i], path, fault)) return false;
    }
    const Path window = {"history", "window"};
    if (!names_its_tensors(history["window"], window, fault) ||
        !ends_after_it_begins(history["window"], window, fault))
        return false;
    if (!history.contains("older_windows")) return true;
    const SortedJson &older = history["older_windows"];
    for (size_t i = 0; i < older.size(); ++i) {
        const Path path = {"history", "older_windows", std::to_string(i)};
        if (!names_its_tensors(older[i], path, fault) ||
            !ends_after_it_begins(older[i], path, fault))
            return false;
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

// How many characters the parser had taken when it had the value at a path, or a key of an object
// for the second time, whichever is first.
class PlaceFinder final : public nlohmann::json_sax<SortedJson> {
public:
    PlaceFinder(Path wanted, const size_t *count) : wanted_(std::move(wanted)), count_(count) {}
    [[nodiscard]] size_t place() const { return place_; }
    // Of the key that is there twice; empty: none is.
    [[nodiscard]] const Path &twice() const { return twice_; }

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
        if (keys_.back().insert(name).second) return true;
        twice_ = path_;
        place_ = *count_;
        return false;
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
        keys_.emplace_back();
        path_.emplace_back(list ? "0" : "");
        return !found_;
    }
    bool close()
    {
        path_.pop_back();
        lists_.pop_back();
        keys_.pop_back();
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

    const Path wanted_;
    const size_t *count_;
    Path path_;
    std::vector<std::ptrdiff_t> lists_;  // of each open level: the index; -1: an object
    std::vector<std::set<std::string>> keys_;
    Path twice_;
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

PlaceFinder found_in(const std::string &text, Path path)
{
    size_t count = 0;
    PlaceFinder finder(std::move(path), &count);
    const CountedText begin{text.data(), &count};
    const CountedText end{text.data() + text.size(), &count};
    (void)SortedJson::sax_parse(begin, end, &finder);
    return finder;
}

size_t place_of(const std::string &text, const Path &path)
{
    return found_in(text, path).place();
}

// "" or that a key is there twice, of which the parser keeps one.
std::string why_twice(const std::string &file, const std::string &text)
{
    const PlaceFinder finder = found_in(text, {"", ""});  // no path is this
    if (finder.twice().empty()) return "";
    return "'" + printable(file) + "' is no report of stw_report_write: at " +
           place_words(text, finder.place()) + " the key '" + path_words(finder.twice()) +
           "' is there twice; name a file that stw_report_write has written.";
}

std::string refusal(const std::string &file, const std::string &text, const Fault &fault,
                    const SortedJson &report)
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
    const size_t nul = text.find('\0');
    if (nul != std::string::npos) {  // which the parser would take for the end
        checked.error = "'" + printable(file) + "' is not JSON: at " + place_words(text, nul) +
                        ": a byte is zero.";
        return checked;
    }
    SortedJson report;
    try {
        report = SortedJson::parse(text);
    } catch (const SortedJson::parse_error &error) {
        std::string cause = error.what();
        const size_t colon = cause.find(": ");
        if (colon != std::string::npos) cause.erase(0, colon + 2);
        checked.error = "'" + printable(file) + "' is not JSON: at " +
                        place_words(text, error.byte > 0 ? error.byte - 1 : 0) + ": " +
                        printable(cause) + ".";
        return checked;
    } catch (const SortedJson::exception &error) {
        checked.error =
            "'" + printable(file) + "' is not JSON: " + printable(parser_words(error.what())) + ".";
        return checked;
    }
    checked.error = why_twice(file, text);
    if (!checked.error.empty()) return checked;
    Fault fault;
    if (!fits(report, SortedJson::parse(kSchema), &fault) || !fits_together(report, &fault)) {
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
    if (report.contains("plan") &&
        !fits(report["plan"], SortedJson::parse(kPlanSchema), &plan_fault)) {
        checked.plan_error = "The plan of this report cannot be shown: at " +
                             place_words(text, place_of(text, plan_fault.path)) + " '" +
                             path_words(plan_fault.path) + "' " + plan_fault.words + ".";
    }
    return checked;
}

}  // namespace stepwell::cli
