// SPDX-License-Identifier: Apache-2.0
// A profile as JSON, in and out. The only file of the library that knows the parser.
#include "lib/profile/profile.h"

#include "lib/report/json.h"

#include <nlohmann/json.hpp>

namespace stepwell::profile {

namespace {

using nlohmann::json;

constexpr const char *kKind = "stepwell machine profile";
constexpr uint64_t kRateMax = uint64_t{1} << 50;
constexpr uint64_t kRequestUnit = 4096;
constexpr uint64_t kRequestMax = uint64_t{1} << 30;
constexpr uint64_t kDepthMax = 4096;

// Walks the members; the first that is wrong is the error, later ones are not looked at.
class Reader {
public:
    explicit Reader(const std::string &file) : file_(file) {}

    [[nodiscard]] const Status &status() const { return status_; }

    const json *object(const json &from, const char *name)
    {
        return member(from, name, &json::is_object, "an object");
    }
    const json *array(const json &from, const char *name)
    {
        return member(from, name, &json::is_array, "an array");
    }
    std::string text(const json &from, const char *name)
    {
        const json *found = member(from, name, &json::is_string, "a text");
        if (!found) return "";
        const auto &value = found->get_ref<const std::string &>();
        if (value.size() > kTextBytesMax) wrong(name, "longer than a text may be");
        return status_.ok() ? value : "";
    }
    uint64_t number(const json &from, const char *name, uint64_t least, uint64_t most)
    {
        const json *found = member(from, name, &json::is_number_unsigned, "a whole number");
        if (!found) return 0;
        const auto value = found->get<uint64_t>();
        if (value >= least && value <= most) return value;
        wrong(name,
              format_text("%llu, not one of %llu to %llu", static_cast<unsigned long long>(value),
                          static_cast<unsigned long long>(least),
                          static_cast<unsigned long long>(most)));
        return 0;
    }
    // The member may be missing.
    std::string text_if_any(const json &from, const char *name)
    {
        return from.contains(name) ? text(from, name) : "";
    }
    // The member may be missing or null.
    uint64_t number_if_any(const json &from, const char *name, uint64_t most)
    {
        const auto found = from.find(name);
        if (found == from.end() || found->is_null()) return 0;
        return number(from, name, 0, most);
    }
    void wrong(const std::string &name, const std::string &what)
    {
        if (!status_.ok()) return;
        status_ = Status::error(STW_ERROR_FORMAT,
                                "The machine profile '%s' is damaged: '%s' is %s; write it anew "
                                "with 'stepwell tune'.",
                                file_.c_str(), name.c_str(), what.c_str());
    }

private:
    const json *member(const json &from, const char *name, bool (json::*is)() const noexcept,
                       const char *wanted)
    {
        if (!status_.ok()) return nullptr;
        const auto found = from.find(name);
        if (found == from.end()) {
            wrong(name, "missing");
            return nullptr;
        }
        if (((*found).*is)()) return &*found;
        wrong(name, std::string("not ") + wanted);
        return nullptr;
    }

    const std::string &file_;
    Status status_;
};

Direction read_direction(Reader &reader, const json &from, const char *name)
{
    Direction direction;
    const json *object = reader.object(from, name);
    if (!object) return direction;
    direction.bytes_per_s = reader.number(*object, "bytes_per_s", 1, kRateMax);
    direction.request_bytes = reader.number(*object, "request_bytes", kRequestUnit, kRequestMax);
    direction.queue_depth =
        static_cast<uint32_t>(reader.number(*object, "queue_depth", 1, kDepthMax));
    if (direction.request_bytes % kRequestUnit != 0)
        reader.wrong("request_bytes", "not a multiple of 4096");
    return direction;
}

Directory read_directory(Reader &reader, const json &from)
{
    Directory directory;
    if (!from.is_object()) {
        reader.wrong("directories", "no array of objects");
        return directory;
    }
    directory.path = reader.text(from, "path");
    directory.file_system.device = reader.text(from, "device");
    directory.file_system.type = reader.text(from, "file_system");
    directory.file_system.id = reader.text(from, "file_system_id");
    directory.driver = reader.text(from, "driver");
    if (directory.driver != "aio" && directory.driver != "posix")
        reader.wrong("driver", "neither \"aio\" nor \"posix\"");
    directory.driver_options = reader.text_if_any(from, "driver_options");
    directory.read = read_direction(reader, from, "read");
    directory.write = read_direction(reader, from, "write");
    if (const auto mixed = from.find("mixed"); mixed != from.end() && mixed->is_object())
        directory.mixed_bytes_per_s = reader.number_if_any(*mixed, "bytes_per_s", kRateMax);
    return directory;
}

// Before anything else is believed.
Status check_head(const json &from, Reader &reader, const std::string &file)
{
    if (!from.is_object() || from.value("kind", json()) != kKind) {
        return Status::error(
            STW_ERROR_FORMAT,
            "'%s' is no machine profile of Stepwell's; 'stepwell tune' writes one.", file.c_str());
    }
    const uint64_t format = reader.number(from, "format", 1, UINT64_MAX);
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
    const json from = json::parse(text, nullptr, false);
    if (from.is_discarded()) {
        return Status::error(STW_ERROR_FORMAT,
                             "The machine profile '%s' is damaged: its %zu bytes are no JSON; "
                             "write it anew with 'stepwell tune'.",
                             file.c_str(), text.size());
    }
    Reader reader(file);
    STW_TRY(check_head(from, reader, file));
    Profile profile;
    profile.file = file;
    profile.created = reader.text(from, "created");
    profile.by = reader.text(from, "by");
    if (const json *machine = reader.object(from, "machine")) {
        profile.machine.kernel = reader.text(*machine, "kernel");
        profile.machine.processor = reader.text(*machine, "processor");
        profile.machine.cores = reader.number(*machine, "cores", 1, UINT32_MAX);
    }
    profile.host_copy_bytes_per_s = reader.number_if_any(from, "host_copy_bytes_per_s", kRateMax);
    if (const json *directories = reader.array(from, "directories")) {
        if (directories->size() > kDirectoriesMax) {
            reader.wrong("directories",
                         format_text("%zu, more than %llu", directories->size(),
                                     static_cast<unsigned long long>(kDirectoriesMax)));
        }
        for (const json &directory : *directories) {
            if (!reader.status().ok()) break;
            profile.directories.push_back(read_directory(reader, directory));
        }
    }
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
