// SPDX-License-Identifier: Apache-2.0
// A page is read by system calls, not mapped: whatever its owner does to the file, this program
// goes on. A child of fork has the descriptor of its parent's page; the text says whose it is.
#include "stats_page.h"

#include "text.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace stepwell::cli {

namespace {

using SortedJson = nlohmann::json;

constexpr uint64_t kMagic = 0x3147415453505453;
constexpr size_t kPageBytes = 32768;
constexpr uint32_t kTriesMax = 1000;
constexpr unsigned kFormatMax = 1;

struct Head {
    uint64_t magic;
    uint64_t sequence;  // odd while the text is being written
    uint64_t bytes;     // of the text, which follows
};

struct Process {
    uint64_t number = 0;
    uid_t user = 0;
    uint64_t start = 0;
};

std::string name_of(const Process &process)
{
    return "Process " + std::to_string(process.number);
}

std::optional<Process> find_process(uint64_t number)
{
    const std::string folder = "/proc/" + std::to_string(number);
    struct stat about;
    if (stat(folder.c_str(), &about) != 0) return std::nullopt;
    // Field 22, behind a name that may hold anything and ends at the last parenthesis.
    const std::string text = read_text(folder + "/stat");
    const size_t name_end = text.rfind(')');
    if (name_end == std::string::npos) return std::nullopt;
    const std::string rest = text.substr(name_end + 1);
    const std::vector<std::string_view> words = words_of(rest);
    constexpr size_t kStart = 22 - 3;
    if (words.size() <= kStart) return std::nullopt;
    return Process{number, about.st_uid, parse_number(words[kStart]).value_or(0)};
}

// In the order in which they were made, unless descriptors were closed in between.
std::vector<std::string> paths_of(const Process &process)
{
    const std::string folder = "/proc/" + std::to_string(process.number) + "/fd";
    std::vector<uint64_t> found;
    std::error_code error;
    for (std::filesystem::directory_iterator at(folder, error), end; !error && at != end;
         at.increment(error)) {
        std::error_code gone;
        const std::string target = std::filesystem::read_symlink(at->path(), gone);
        if (target.rfind("/memfd:stepwell-stats", 0) != 0) continue;
        if (const auto number = parse_number(at->path().filename().string()))
            found.push_back(*number);
    }
    std::sort(found.begin(), found.end());
    std::vector<std::string> paths;
    paths.reserve(found.size());
    for (const uint64_t number : found) paths.push_back(folder + "/" + std::to_string(number));
    return paths;
}

// False while the page is being written.
bool read_once(int file, std::string *text_out)
{
    Head before{};
    Head after{};
    if (pread(file, &before, sizeof before, 0) != sizeof before) return false;
    if (before.magic != kMagic || before.sequence % 2 != 0) return false;
    if (before.bytes > kPageBytes - sizeof before) return false;
    text_out->resize(before.bytes);
    if (pread(file, text_out->data(), before.bytes, sizeof before) !=
        static_cast<ssize_t>(before.bytes))
        return false;
    return pread(file, &after, sizeof after, 0) == sizeof after &&
           after.sequence == before.sequence;
}

// Nothing for a page that is not of this process.
std::optional<SortedJson> read_page(const std::string &path, const Process &process,
                                    std::string *error)
{
    const int file = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (file < 0) {
        if (errno != ENOENT) *error = std::strerror(errno);
        return std::nullopt;
    }
    struct stat about;
    const bool theirs = fstat(file, &about) == 0 && S_ISREG(about.st_mode) &&
                        static_cast<size_t>(about.st_size) == kPageBytes;
    std::string text;
    bool whole = false;
    for (uint32_t i = 0; theirs && !whole && i < kTriesMax; ++i) whole = read_once(file, &text);
    close(file);
    if (!theirs) return std::nullopt;
    if (!whole) {
        *error = "it was being written each time it was looked at";
        return std::nullopt;
    }
    SortedJson page = SortedJson::parse(text, nullptr, false);
    if (!page.is_object() || page.value("process_start", SortedJson()) != process.start)
        return std::nullopt;
    if (page.value("format", 0u) > kFormatMax) {
        *error = "its format is newer than this stepwell; use that of the library";
        return std::nullopt;
    }
    return page;
}

}  // namespace

StatsPages read_stats_pages(uint64_t number)
{
    StatsPages pages;
    const std::optional<Process> process = find_process(number);
    if (!process) {
        pages.error = "There is no process " + std::to_string(number) + ".";
        return pages;
    }
    std::string error;
    for (const std::string &path : paths_of(*process)) {
        std::string why;
        if (auto page = read_page(path, *process, &why)) pages.runtimes.push_back(std::move(*page));
        if (!why.empty()) error = "the page '" + printable(path) + "' cannot be read: " + why;
    }
    if (!pages.runtimes.empty()) return pages;
    const bool other = process->user != geteuid() && geteuid() != 0;
    if (other) {
        pages.error = name_of(*process) + " belongs to the user with number " +
                      std::to_string(process->user) + "; run stepwell top as that user.";
    } else if (!error.empty()) {
        pages.error = name_of(*process) + ": " + error + ".";
    } else {
        pages.error = name_of(*process) + " has no runtime of Stepwell open.";
    }
    return pages;
}

}  // namespace stepwell::cli
