// SPDX-License-Identifier: Apache-2.0
#include "machine_profile.h"

#include "text.h"
#include "whole_file.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

namespace stepwell::cli {

namespace {

using Json = nlohmann::ordered_json;

constexpr uint64_t kFormat = 1;
constexpr const char *kKind = "stepwell machine profile";

uint64_t whole(double rate)
{
    return rate > 1 ? static_cast<uint64_t>(rate) : 1;
}

Json figure_json(const Figure &figure)
{
    return {{"bytes_per_s", whole(figure.median)},
            {"spread_bytes_per_s", {whole(figure.least), whole(figure.most)}},
            {"rounds", figure.rounds}};
}

Json direction_json(const ChosenSetting &chosen, const Figure &usual)
{
    Json json = figure_json(chosen.rate);
    json["request_bytes"] = chosen.setting.request_bytes;
    json["queue_depth"] = chosen.setting.queue_depth;
    json["usual_bytes_per_s"] = whole(usual.median);
    return json;
}

Json directory_json(const TunedDirectory &directory)
{
    Json json = {{"path", printable(directory.path)},
                 {"mount", printable(directory.mount)},
                 {"device", directory.identity.device},
                 {"file_system", directory.identity.file_system},
                 {"file_system_id", directory.identity.file_system_id},
                 {"driver", directory.read.setting.driver},
                 {"read", direction_json(directory.read, directory.usual_read)},
                 {"write", direction_json(directory.write, directory.usual_write)}};
    if (directory.mixed_read.rounds == 0) return json;
    json["mixed"] = {
        {"bytes_per_s", whole(directory.mixed_read.median + directory.mixed_write.median)},
        {"read", figure_json(directory.mixed_read)},
        {"write", figure_json(directory.mixed_write)}};
    return json;
}

// In whatever order the members are.
bool same_members(const Json &a, const Json &b, std::initializer_list<const char *> keys)
{
    if (!a.is_object() || !b.is_object()) return false;
    return std::all_of(keys.begin(), keys.end(), [&](const char *key) {
        return a.contains(key) && b.contains(key) && a[key] == b[key];
    });
}

bool same_file_system(const Json &a, const Json &b)
{
    return same_members(a, b, {"device", "file_system", "file_system_id"});
}

// Of the same machine: what it says of other file systems is as good as it was.
void keep_others(const std::string &before, Json *profile)
{
    const Json old = Json::parse(before, nullptr, false);
    if (!old.is_object() || old.value("kind", Json()) != kKind ||
        old.value("format", Json()) != kFormat || !old.value("directories", Json()).is_array() ||
        !same_members(old.value("machine", Json()), (*profile)["machine"],
                      {"kernel", "processor", "cores"}))
        return;
    for (const Json &entry : old["directories"]) {
        if (!entry.is_object()) continue;
        bool tuned = false;
        for (const Json &fresh : (*profile)["directories"])
            tuned = tuned || same_file_system(entry, fresh);
        if (!tuned) (*profile)["directories"].push_back(entry);
    }
}

std::string now_text()
{
    const time_t now = time(nullptr);
    tm parts = {};
    gmtime_r(&now, &parts);
    char text[32];
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
    return text;
}

std::string cannot(const std::string &path, int cause)
{
    return "The profile cannot be written to '" + printable(path) + "': " + std::strerror(cause) +
           "; name another file with --output.";
}

}  // namespace

std::string profile_json(const Tuned &tuned, const std::string &before)
{
    const Identity &identity = tuned.directories.front().identity;
    Json json = {{"kind", kKind},
                 {"format", kFormat},
                 {"created", now_text()},
                 {"by", "tune"},
                 {"version", stw_version_string()},
                 {"machine",
                  {{"kernel", identity.kernel},
                   {"processor", identity.processor},
                   {"cores", identity.cores}}},
                 {"host_copy_bytes_per_s", whole(tuned.host_copy.median)},
                 {"cuda", "not measured"},
                 {"directories", Json::array()}};
    for (const TunedDirectory &directory : tuned.directories) {
        const Json entry = directory_json(directory);
        bool there = false;
        for (const Json &other : json["directories"])
            there = there || same_file_system(entry, other);
        if (!there) json["directories"].push_back(entry);
    }
    if (tuned.together_read.rounds > 0)
        json["together"] = {{"read", figure_json(tuned.together_read)},
                            {"write", figure_json(tuned.together_write)}};
    keep_others(before, &json);
    return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string profile_path_usual()
{
    const char *config = std::getenv("XDG_CONFIG_HOME");
    if (config && *config == '/') return std::string(config) + "/stepwell/profile.json";
    const char *home = std::getenv("HOME");
    return home && *home == '/' ? std::string(home) + "/.config/stepwell/profile.json" : "";
}

std::string why_not_written(const std::string &path, bool usual)
{
    const std::string directory = directory_of(path);
    std::error_code error;
    if (usual) std::filesystem::create_directories(directory, error);
    if (error) return cannot(path, error.value());
    if (std::filesystem::is_directory(path, error)) return cannot(path, EISDIR);
    if (access(directory.c_str(), W_OK | X_OK) != 0) return cannot(path, errno);
    return "";
}

std::string write_profile(const std::string &path, const std::string &text)
{
    const int cause = write_whole(path, text, 0644);
    return cause == 0 ? "" : cannot(path, cause);
}

ProfileInMemory::ProfileInMemory(const std::string &text)
    : file_(memfd_create("stepwell-profile", MFD_CLOEXEC))
{
    // A new one may be written by all, and such a profile the library does not take.
    if (file_ >= 0 && fchmod(file_, 0600) == 0 && write_all(file_, text)) return;
    const int cause = errno;
    if (file_ >= 0) close(file_);
    throw Failed(std::string("There is no memory for the profile: ") + std::strerror(cause) + ".");
}

ProfileInMemory::~ProfileInMemory()
{
    close(file_);
}

std::string ProfileInMemory::path() const
{
    return "/proc/self/fd/" + std::to_string(file_);
}

}  // namespace stepwell::cli
