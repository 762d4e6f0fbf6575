// SPDX-License-Identifier: Apache-2.0
// A profile as JSON, in and out. The only file of the library that knows the parser.
#include "lib/profile/profile.h"

#include "lib/report/json.h"

#include <nlohmann/json.hpp>

#include <map>
#include <vector>

namespace stepwell::profile {

namespace {

using nlohmann::json;

constexpr const char *kKind = "stepwell machine profile";
constexpr uint64_t kRateMax = uint64_t{1} << 50;
constexpr uint64_t kRequestUnit = 4096;
constexpr uint64_t kRequestMax = uint64_t{1} << 30;
constexpr uint64_t kDepthMax = 4096;
constexpr size_t kNestedMax = 16;  // a profile has four

// One of the text, by its path: "directories/0/read/bytes_per_s".
struct Value {
    enum class Kind : uint8_t { kOther, kNull, kObject, kArray, kText, kNumber };
    Kind kind = Kind::kOther;
    uint64_t number = 0;  // or of an array's elements
    std::string text;
};
using Values = std::map<std::string, Value, std::less<>>;

// Takes down the values as the parser meets them. Its tree is not used: its destructor allocates,
// and so ends the process where memory is refused.
class Taker final : public nlohmann::json_sax<json> {
public:
    explicit Taker(Values &values) : values_(values) {}

    bool null() override { return take(Value::Kind::kNull); }
    bool boolean(bool) override { return take(Value::Kind::kOther); }
    bool number_integer(number_integer_t) override { return take(Value::Kind::kOther); }
    bool number_unsigned(number_unsigned_t value) override
    {
        return take(Value::Kind::kNumber, value);
    }
    bool number_float(number_float_t, const string_t &) override
    {
        return take(Value::Kind::kOther);
    }
    bool string(string_t &value) override { return take(Value::Kind::kText, 0, value); }
    bool binary(binary_t &) override { return take(Value::Kind::kOther); }
    bool start_object(std::size_t) override { return enter(Value::Kind::kObject); }
    bool start_array(std::size_t) override { return enter(Value::Kind::kArray); }
    bool end_object() override { return leave(); }
    bool end_array() override { return leave(); }
    bool key(string_t &name) override
    {
        path_.resize(inside_.back().path_bytes);
        path_ += name;
        return true;
    }
    bool parse_error(std::size_t, const std::string &, const json::exception &) override
    {
        return false;
    }

private:
    struct Container {
        std::string path;
        size_t path_bytes;  // of what the paths of its members begin with
        bool is_array;
    };

    bool take(Value::Kind kind, uint64_t number = 0, std::string text = "")
    {
        if (!inside_.empty() && inside_.back().is_array) {
            path_.resize(inside_.back().path_bytes);
            path_ += std::to_string(values_[inside_.back().path].number++);
        }
        values_.insert_or_assign(path_, Value{kind, number, std::move(text)});
        return true;
    }
    bool enter(Value::Kind kind)
    {
        if (inside_.size() >= kNestedMax) return false;
        take(kind);
        Container entered = {path_, 0, kind == Value::Kind::kArray};
        if (!path_.empty()) path_ += '/';
        entered.path_bytes = path_.size();
        inside_.push_back(std::move(entered));
        return true;
    }
    bool leave()
    {
        path_ = inside_.back().path;
        inside_.pop_back();
        return true;
    }

    Values &values_;
    std::string path_;
    std::vector<Container> inside_;
};

// Reads members by their paths; the first that is wrong is the error, later ones are not looked at.
class Reader {
public:
    Reader(const Values &values, const std::string &file) : values_(values), file_(file) {}

    [[nodiscard]] const Status &status() const { return status_; }

    bool object(const std::string &path)
    {
        return member(path, Value::Kind::kObject, "an object") != nullptr;
    }
    // The number of elements.
    uint64_t array(const std::string &path)
    {
        const Value *found = member(path, Value::Kind::kArray, "an array");
        return found ? found->number : 0;
    }
    std::string text(const std::string &path)
    {
        const Value *found = member(path, Value::Kind::kText, "a text");
        if (!found) return "";
        if (found->text.size() > kTextBytesMax) wrong(path, "longer than a text may be");
        return status_.ok() ? found->text : "";
    }
    uint64_t number(const std::string &path, uint64_t least, uint64_t most)
    {
        const Value *found = member(path, Value::Kind::kNumber, "a whole number");
        if (!found) return 0;
        if (found->number >= least && found->number <= most) return found->number;
        wrong(path, format_text("%llu, not one of %llu to %llu",
                                static_cast<unsigned long long>(found->number),
                                static_cast<unsigned long long>(least),
                                static_cast<unsigned long long>(most)));
        return 0;
    }
    bool is(const std::string &path, Value::Kind kind) const
    {
        const auto found = values_.find(path);
        return found != values_.end() && found->second.kind == kind;
    }
    // The member may be missing.
    std::string text_if_any(const std::string &path)
    {
        return values_.contains(path) ? text(path) : "";
    }
    // The member may be missing or null.
    uint64_t number_if_any(const std::string &path, uint64_t most)
    {
        if (!values_.contains(path) || is(path, Value::Kind::kNull)) return 0;
        return number(path, 0, most);
    }
    void wrong(const std::string &path, const std::string &what)
    {
        if (!status_.ok()) return;
        status_ =
            Status::error(STW_ERROR_FORMAT,
                          "The machine profile '%s' is damaged: '%s' is %s; write it anew "
                          "with 'stepwell tune'.",
                          file_.c_str(), path.substr(path.rfind('/') + 1).c_str(), what.c_str());
    }

private:
    const Value *member(const std::string &path, Value::Kind kind, const char *wanted)
    {
        if (!status_.ok()) return nullptr;
        const auto found = values_.find(path);
        if (found == values_.end()) {
            wrong(path, "missing");
            return nullptr;
        }
        if (found->second.kind == kind) return &found->second;
        wrong(path, std::string("not ") + wanted);
        return nullptr;
    }

    const Values &values_;
    const std::string &file_;
    Status status_;
};

Direction read_direction(Reader &reader, const std::string &path)
{
    Direction direction;
    if (!reader.object(path)) return direction;
    direction.bytes_per_s = reader.number(path + "/bytes_per_s", 1, kRateMax);
    direction.request_bytes = reader.number(path + "/request_bytes", kRequestUnit, kRequestMax);
    direction.queue_depth =
        static_cast<uint32_t>(reader.number(path + "/queue_depth", 1, kDepthMax));
    if (direction.request_bytes % kRequestUnit != 0)
        reader.wrong("request_bytes", "not a multiple of 4096");
    return direction;
}

Directory read_directory(Reader &reader, const std::string &path)
{
    Directory directory;
    if (!reader.is(path, Value::Kind::kObject)) {
        reader.wrong("directories", "no array of objects");
        return directory;
    }
    directory.path = reader.text(path + "/path");
    directory.file_system.device = reader.text(path + "/device");
    directory.file_system.type = reader.text(path + "/file_system");
    directory.file_system.id = reader.text(path + "/file_system_id");
    directory.driver = reader.text(path + "/driver");
    if (directory.driver != "aio" && directory.driver != "posix")
        reader.wrong("driver", "neither \"aio\" nor \"posix\"");
    directory.driver_options = reader.text_if_any(path + "/driver_options");
    directory.read = read_direction(reader, path + "/read");
    directory.write = read_direction(reader, path + "/write");
    if (reader.is(path + "/mixed", Value::Kind::kObject))
        directory.mixed_bytes_per_s = reader.number_if_any(path + "/mixed/bytes_per_s", kRateMax);
    return directory;
}

// Before anything else is believed.
Status check_head(const Values &values, Reader &reader, const std::string &file)
{
    const auto kind = values.find("kind");
    if (kind == values.end() || kind->second.text != kKind) {
        return Status::error(
            STW_ERROR_FORMAT,
            "'%s' is no machine profile of Stepwell's; 'stepwell tune' writes one.", file.c_str());
    }
    const uint64_t format = reader.number("format", 1, UINT64_MAX);
    STW_TRY(reader.status());
    if (format == kFormat) return {};
    return Status::error(STW_ERROR_FORMAT,
                         "The machine profile '%s' has format %llu, of a newer release; this one "
                         "knows format %llu. Write it anew with this release's 'stepwell tune'.",
                         file.c_str(), static_cast<unsigned long long>(format),
                         static_cast<unsigned long long>(kFormat));
}

void write_direction(report::JsonWriter &out, const char *name, const Direction &direction)
{
    out.key(name);
    out.begin_object();
    out.member("bytes_per_s", direction.bytes_per_s);
    out.member("request_bytes", direction.request_bytes);
    out.member("queue_depth", direction.queue_depth);
    out.end_object();
}

void write_directory(report::JsonWriter &out, const Directory &directory)
{
    out.begin_object();
    out.member("path", directory.path);
    out.member("device", directory.file_system.device);
    out.member("file_system", directory.file_system.type);
    out.member("file_system_id", directory.file_system.id);
    out.member("driver", directory.driver);
    if (!directory.driver_options.empty()) out.member("driver_options", directory.driver_options);
    write_direction(out, "read", directory.read);
    write_direction(out, "write", directory.write);
    out.end_object();
}

}  // namespace

Result<Profile> parse(std::string_view text, const std::string &file)
{
    Values values;
    Taker taker(values);
    if (!json::sax_parse(text, &taker)) {
        return Status::error(STW_ERROR_FORMAT,
                             "The machine profile '%s' is damaged: its %zu bytes are no JSON; "
                             "write it anew with 'stepwell tune'.",
                             file.c_str(), text.size());
    }
    Reader reader(values, file);
    STW_TRY(check_head(values, reader, file));
    Profile profile;
    profile.file = file;
    profile.created = reader.text("created");
    profile.by = reader.text("by");
    if (reader.object("machine")) {
        profile.machine.kernel = reader.text("machine/kernel");
        profile.machine.processor = reader.text("machine/processor");
        profile.machine.cores = reader.number("machine/cores", 1, UINT32_MAX);
    }
    profile.host_copy_bytes_per_s = reader.number_if_any("host_copy_bytes_per_s", kRateMax);
    const uint64_t count = reader.array("directories");
    if (count > kDirectoriesMax) {
        reader.wrong("directories",
                     format_text("%llu, more than %llu", static_cast<unsigned long long>(count),
                                 static_cast<unsigned long long>(kDirectoriesMax)));
    }
    for (uint64_t i = 0; i < count && reader.status().ok(); ++i)
        profile.directories.push_back(read_directory(reader, "directories/" + std::to_string(i)));
    STW_TRY(reader.status());
    return profile;
}

std::string to_json(const Profile &profile)
{
    std::string text;
    const report::ByteSink sink = {
        [](void *user, std::string_view bytes) { static_cast<std::string *>(user)->append(bytes); },
        &text};
    report::JsonWriter out(sink);
    out.begin_object();
    out.member("kind", kKind);
    out.member("format", kFormat);
    out.member("created", profile.created);
    out.member("by", profile.by);
    out.key("machine");
    out.begin_object();
    out.member("kernel", profile.machine.kernel);
    out.member("processor", profile.machine.processor);
    out.member("cores", profile.machine.cores);
    out.end_object();
    out.key("directories");
    out.begin_array();
    for (const Directory &directory : profile.directories) write_directory(out, directory);
    out.end_array();
    out.end_object();
    return text + "\n";
}

}  // namespace stepwell::profile
