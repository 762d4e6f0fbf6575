// SPDX-License-Identifier: Apache-2.0
// Where profiles lie, whom they are believed from, and what this machine calls itself.
#include "lib/profile/profile.h"

#include "lib/report/file.h"

#include "drivers/common/descriptor.h"
#include "drivers/common/storage_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/utsname.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <ctime>

namespace stepwell::profile {

namespace {

constexpr const char *kMachineFile = "/etc/stepwell/profile.json";

// `$VARIABLE/stepwell/name`, or that under the home directory; "" without either. The rules of XDG:
// what is not absolute is as good as not set.
std::string user_file(const char *variable, const char *below_home, const char *name)
{
    const char *base = secure_getenv(variable);
    if (base && *base == '/') return std::string(base) + "/stepwell/" + name;
    const char *home = secure_getenv("HOME");
    if (!home || *home != '/') return "";
    return std::string(home) + "/" + below_home + "/stepwell/" + name;
}

std::string value_of(const std::string &text, const char *name)
{
    const size_t at = text.find(name);
    if (at == std::string::npos) return "";
    const size_t end = std::min(text.find('\n', at), text.size());
    const size_t colon = text.find(": ", at);
    return colon < end ? text.substr(colon + 2, end - colon - 2) : "";
}

// Of the first processor: the whole file is long where there are hundreds.
std::string processor_name()
{
    char text[4096];
    const drivers::Descriptor fd(::open("/proc/cpuinfo", O_RDONLY | O_CLOEXEC));
    const ssize_t length = fd.valid() ? ::read(fd.get(), text, sizeof text) : 0;
    return value_of(std::string(text, static_cast<size_t>(std::max<ssize_t>(length, 0))),
                    "model name");
}

Status cannot(const std::string &file, int os_errno)
{
    const bool missing = os_errno == ENOENT || os_errno == ENOTDIR;
    const bool refused = os_errno == EACCES || os_errno == EPERM || os_errno == ELOOP;
    const stw_status code = missing   ? STW_ERROR_NOT_FOUND
                            : refused ? STW_ERROR_PERMISSION
                                      : STW_ERROR_IO;
    return Status::os_error(code, os_errno, "The machine profile '%s' cannot be read",
                            file.c_str());
}

// Whoever could have written it decides how this process does its I/O.
Status check_origin(const std::string &file, const struct stat &about)
{
    if (!S_ISREG(about.st_mode)) {
        return Status::error(STW_ERROR_FORMAT, "The machine profile '%s' is not a regular file.",
                             file.c_str());
    }
    if ((about.st_uid != 0 && about.st_uid != geteuid()) || (about.st_mode & S_IWOTH) != 0) {
        return Status::error(STW_ERROR_PERMISSION,
                             "The machine profile '%s' is not used: it belongs to user %u and has "
                             "mode %04o, so others than user %u and root could have written it; "
                             "'chown' it or 'chmod o-w' it.",
                             file.c_str(), about.st_uid, about.st_mode & 07777u, geteuid());
    }
    return {};
}

Result<std::string> read_file(const std::string &file)
{
    // Not to wait for whoever would write into a fifo.
    const drivers::Descriptor fd(
        ::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
    if (!fd.valid()) return cannot(file, errno);
    struct stat about = {};
    if (fstat(fd.get(), &about) != 0) return cannot(file, errno);
    STW_TRY(check_origin(file, about));
    std::string text(kFileBytesMax + 1, '\0');
    size_t length = 0;
    while (length < text.size()) {
        const ssize_t n = ::read(fd.get(), text.data() + length, text.size() - length);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return cannot(file, errno);
        if (n == 0) break;
        length += static_cast<size_t>(n);
    }
    if (length > kFileBytesMax) {
        return Status::error(STW_ERROR_FORMAT,
                             "The machine profile '%s' is longer than %s; that is none of ours.",
                             file.c_str(), bytes_text(kFileBytesMax).c_str());
    }
    text.resize(length);
    return text;
}

}  // namespace

const Directory *Profile::find(const FileSystem &file_system,
                               const std::string &driver_options) const
{
    const auto found =
        std::find_if(directories.begin(), directories.end(), [&](const Directory &one) {
            return one.file_system == file_system && one.driver_options == driver_options;
        });
    return found == directories.end() ? nullptr : &*found;
}

Machine this_machine()
{
    Machine machine;
    utsname about = {};
    if (uname(&about) == 0) {
        const std::string release = about.release;
        const size_t minor = release.find('.');
        const size_t end =
            minor == std::string::npos ? minor : release.find_first_not_of("0123456789", minor + 1);
        machine.kernel = release.substr(0, end);
    }
    machine.processor = processor_name();
    if (machine.processor.empty()) machine.processor = about.machine;
    machine.cores = static_cast<uint64_t>(std::max(1L, sysconf(_SC_NPROCESSORS_CONF)));
    return machine;
}

Result<FileSystem> file_system_of(const char *path)
{
    struct stat about = {};
    struct statfs space = {};
    if (stat(path, &about) != 0 || statfs(path, &space) != 0) {
        return Status::os_error(STW_ERROR_NOT_FOUND, errno, "'%s' cannot be looked at", path);
    }
    static_assert(sizeof space.f_fsid == 2 * sizeof(uint32_t));
    FileSystem found;
    found.device = format_text("%u:%u", major(about.st_dev), minor(about.st_dev));
    found.type = drivers::file_system_name(static_cast<uint64_t>(space.f_type) & UINT32_MAX);
    found.id = format_text("%08x%08x", static_cast<uint32_t>(space.f_fsid.__val[0]),
                           static_cast<uint32_t>(space.f_fsid.__val[1]));
    return found;
}

std::string now_text()
{
    const time_t now = time(nullptr);
    tm parts = {};
    gmtime_r(&now, &parts);
    char text[32];
    (void)strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &parts);
    return text;
}

Result<Profile> load(const std::string &file)
{
    Result<std::string> text = read_file(file);
    if (!text.ok()) return std::move(text.status());
    return parse(text.value(), file);
}

Status save(const Profile &profile, const std::string &file)
{
    const std::string directory = file.substr(0, file.rfind('/'));
    // What is there already, or cannot be made, is said by the file.
    (void)!mkdir(directory.substr(0, directory.rfind('/')).c_str(), 0700);
    (void)!mkdir(directory.c_str(), 0700);
    auto written = report::AtomicFile::create(file.c_str(), "machine profile");
    if (!written.ok()) return std::move(written.status());
    written.value()->put(to_json(profile));
    return written.value()->commit();
}

std::vector<std::string> usual_files()
{
    std::vector<std::string> files = {user_file("XDG_CONFIG_HOME", ".config", "profile.json")};
    if (files.front().empty()) files.clear();
    files.emplace_back(kMachineFile);
    return files;
}

std::string cache_file()
{
    return user_file("XDG_CACHE_HOME", ".cache", "probe.json");
}

}  // namespace stepwell::profile
