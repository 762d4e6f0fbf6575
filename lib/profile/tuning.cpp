// SPDX-License-Identifier: Apache-2.0
// Order of belief: a profile the program named, alone; else the user's, the machine's, an earlier
// probe's, and a probe now. The first that knows a directory's file system is taken for it.
#include "lib/profile/tuning.h"

#include "lib/store/probe.h"

#include <algorithm>
#include <cstring>

namespace stepwell::profile {

namespace {

constexpr const char *kUsualDriver = "aio";
constexpr const char *kFromProfile = "profile";
constexpr uint64_t kProbeNs = 2'000'000'000;  // of all directories together
// Below it a probe would cost a larger part of the run than it could win.
constexpr uint64_t kProbeBudgetMin = uint64_t{1} << 30;

// Of reads and writes in equal parts, one after the other.
uint64_t both_ways(const Directory &entry)
{
    if (entry.mixed_bytes_per_s > 0) return entry.mixed_bytes_per_s;
    const auto read = static_cast<double>(entry.read.bytes_per_s);
    const auto write = static_cast<double>(entry.write.bytes_per_s);
    return static_cast<uint64_t>(2 * read * write / (read + write));
}

bool is_named(const stw_runtime_options &options)
{
    return options.profile_path != nullptr;
}

}  // namespace

Tuning::Tuning(const stw_runtime_options &options, observe::Log &log, const stw_services &services)
    : options_(options), log_(log), services_(services)
{
    if (options.nvme_count == 0 && !is_named(options)) return;
    machine_ = this_machine();
    report_.kernel = machine_.kernel;
    report_.processor = machine_.processor;
    report_.cores = machine_.cores;
    for (uint32_t i = 0; i < options.nvme_count; ++i) {
        Known known;
        known.path = options.nvme[i].path;
        if (options.nvme[i].driver_options) known.driver_options = options.nvme[i].driver_options;
        report::ProfileDirectoryReport line;
        line.path = known.path;
        Result<FileSystem> found = file_system_of(options.nvme[i].path);
        if (found.ok()) {  // else the store says it, with more to say
            known.file_system = found.take();
            line.device = known.file_system->device;
            line.file_system = known.file_system->type;
            line.file_system_id = known.file_system->id;
        }
        known_.push_back(std::move(known));
        report_.directories.push_back(std::move(line));
    }
}

// ------------------------------------------------------------------------------------- profiles --

Status Tuning::find()
{
    if (is_named(options_) && *options_.profile_path == '\0') return {};
    if (is_named(options_)) {
        Result<Profile> named = load(options_.profile_path);
        if (!named.ok()) return std::move(named.status());
        if (!(named.value().machine == machine_)) {
            log_.print(STW_LOG_WARNING, "profile",
                       "The machine profile '%s' was measured on another machine or kernel (%s, "
                       "Linux %s); it is used because options.profile_path names it.",
                       options_.profile_path, named.value().machine.processor.c_str(),
                       named.value().machine.kernel.c_str());
        }
        use(named.value(), kFromProfile);
        for (const Known &known : known_) {
            if (known.entry) continue;
            log_.print(STW_LOG_WARNING, "profile",
                       "The machine profile '%s' knows nothing of '%s'; 'stepwell tune' with this "
                       "directory measures it.",
                       options_.profile_path, known.path.c_str());
        }
        return {};
    }
    if (options_.nvme_count == 0) return {};
    for (const std::string &file : usual_files()) read_usual(file);
    if ((options_.flags & STW_RUNTIME_NO_PROBE) != 0) return {};
    // Nobody wrote it by hand, so nobody has to hear of one that is of no use any more.
    const std::string file = cache_file();
    if (file.empty()) return {};
    Result<Profile> cached = load(file);
    if (cached.ok() && cached.value().machine == machine_) use(cached.value(), "cache");
    return {};
}

void Tuning::read_usual(const std::string &file)
{
    Result<Profile> found = load(file);
    if (!found.ok()) {
        if (found.status().code() == STW_ERROR_NOT_FOUND) return;
        log_.print(STW_LOG_WARNING, "profile", "%s It is left out.", found.status().sentence());
        return;
    }
    if (found.value().machine == machine_) {
        use(found.value(), kFromProfile);
        return;
    }
    log_.print(STW_LOG_WARNING, "profile",
               "The machine profile '%s' was measured on another machine or kernel (%s, Linux %s) "
               "and is left out; 'stepwell tune' measures this one.",
               file.c_str(), found.value().machine.processor.c_str(),
               found.value().machine.kernel.c_str());
}

void Tuning::use(const Profile &profile, const char *source)
{
    if (report_.host_copy_bytes_per_s == 0)
        report_.host_copy_bytes_per_s = profile.host_copy_bytes_per_s;
    for (size_t i = 0; i < known_.size(); ++i) {
        Known &known = known_[i];
        if (known.entry || !known.file_system) continue;
        const Directory *entry = profile.find(*known.file_system, known.driver_options);
        // `stepwell tune` measured the disk, whatever a program asks of the driver.
        if (!entry && source == kFromProfile) entry = profile.find(*known.file_system);
        if (!entry) continue;
        known.entry = *entry;
        report_.directories[i].source = source;
        report_.directories[i].file = profile.file;
        report_.directories[i].created = profile.created;
    }
}

// A probe has compared no drivers: what it ran with may only have taken over for a while.
const char *Tuning::driver(uint32_t index) const
{
    const std::optional<Directory> &entry = known_[index].entry;
    const bool compared = entry && report_.directories[index].source == kFromProfile;
    return compared ? entry->driver.c_str() : kUsualDriver;
}

void Tuning::choose(uint32_t index, store::PathOptions &path) const
{
    const std::optional<Directory> &entry = known_[index].entry;
    if (!entry || entry->driver != path.ops->name) return;
    if (path.queue_depth != 0) return;
    path.queue_depth = std::max(entry->read.queue_depth, entry->write.queue_depth);
}

// ---------------------------------------------------------------------------------------- probe --

bool Tuning::may_probe() const
{
    return !is_named(options_) && (options_.flags & STW_RUNTIME_NO_PROBE) == 0;
}

// What is kept is believed by whoever names no driver here. So one that the program named instead
// of the usual one, a module or a wrapper say, is not measured.
bool Tuning::wants_probe(uint32_t index) const
{
    const stw_nvme_options &asked = options_.nvme[index];
    const bool usual = !asked.driver || std::strcmp(asked.driver, kUsualDriver) == 0;
    return usual && !known_[index].entry && known_[index].file_system &&
           asked.budget_bytes >= kProbeBudgetMin;
}

void Tuning::probe_all(store::Store &store)
{
    std::vector<uint32_t> wanted;
    for (uint32_t i = 0; i < known_.size(); ++i) {
        const bool seen = std::any_of(wanted.begin(), wanted.end(), [&](uint32_t other) {
            return known_[other].file_system == known_[i].file_system &&
                   known_[other].driver_options == known_[i].driver_options;
        });
        if (!seen && wants_probe(i)) wanted.push_back(i);
    }
    if (wanted.empty()) return;
    const uint64_t timeout_ns = options_.timeout_ns ? options_.timeout_ns : kProbeNs * 4;
    const uint64_t time_ns = std::min(kProbeNs, timeout_ns / 4) / wanted.size();
    std::vector<Directory> fresh;
    for (const uint32_t i : wanted) {
        probe_one(i, store, time_ns);
        if (known_[i].entry) fresh.push_back(*known_[i].entry);
    }
    if (!fresh.empty()) keep(fresh);
}

void Tuning::probe_one(uint32_t index, store::Store &store, uint64_t time_ns)
{
    Result<store::Probed> probed = store::probe(store, index, services_, time_ns);
    if (!probed.ok()) {
        log_.print(STW_LOG_INFO, "profile",
                   "The probe of '%s' was given up, and what is usual stays: %s.",
                   known_[index].path.c_str(), probed.status().sentence());
        return;
    }
    const store::Probed &found = probed.value();
    Directory entry;
    entry.path = known_[index].path;
    entry.file_system = *known_[index].file_system;
    entry.driver = store.ops(index).name;
    entry.driver_options = known_[index].driver_options;
    entry.read = {found.read_bytes_per_s, found.reads.bytes, found.reads.depth};
    entry.write = {found.write_bytes_per_s, found.writes.bytes, found.writes.depth};
    Profile now;
    now.created = now_text();
    now.directories.push_back(std::move(entry));
    use(now, "probe");
}

// For the next open: what was kept before, and this in its place.
void Tuning::keep(const std::vector<Directory> &fresh)
{
    const std::string file = cache_file();
    if (file.empty()) return;
    Profile kept;
    Result<Profile> before = load(file);
    if (before.ok() && before.value().machine == machine_) kept = before.take();
    kept.created = now_text();
    kept.by = "probe";
    kept.machine = machine_;
    for (const Directory &entry : fresh) {
        std::erase_if(kept.directories, [&](const Directory &old) {
            return old.file_system == entry.file_system &&
                   old.driver_options == entry.driver_options;
        });
        if (entry.driver_options.size() > kTextBytesMax) continue;  // nobody could read it
        if (kept.directories.size() == kDirectoriesMax)
            kept.directories.erase(kept.directories.begin());
        kept.directories.push_back(entry);
    }
    const Status saved = save(kept, file);
    if (saved.ok()) return;
    log_.print(STW_LOG_INFO, "profile", "The next open probes again: %s", saved.sentence());
}

// -------------------------------------------------------------------------------- what follows --

void Tuning::settle(store::Store &store)
{
    // Where something is stored already a probe would write over it.
    if (may_probe() && store.used_slots() == 0) probe_all(store);
    for (uint32_t i = 0; i < known_.size(); ++i) {
        apply(i, store);
        say(i, store);
    }
}

// Depth and size belong to the driver they were measured with; bandwidth is the disk's.
void Tuning::apply(uint32_t index, store::Store &store)
{
    const stw_nvme_options &asked = options_.nvme[index];
    store::Requests reads = {asked.request_bytes, asked.queue_depth};
    store::Requests writes = reads;
    if (known_[index].entry) {
        const Directory &entry = *known_[index].entry;
        report::ProfileDirectoryReport &line = report_.directories[index];
        line.read_bytes_per_s = entry.read.bytes_per_s;
        line.write_bytes_per_s = entry.write.bytes_per_s;
        store.expect_bandwidth(index, both_ways(entry));
        if (entry.driver == store.ops(index).name) {
            if (asked.request_bytes == 0) {
                reads.bytes = entry.read.request_bytes;
                writes.bytes = entry.write.request_bytes;
            }
            if (asked.queue_depth == 0) {
                reads.depth = entry.read.queue_depth;
                writes.depth = entry.write.queue_depth;
            }
        } else {
            line.remark = format_text("Measured with the driver %s, not %s: only the bandwidths "
                                      "are used.",
                                      entry.driver.c_str(), store.ops(index).name);
        }
    }
    store.set_requests(index, reads, writes);
}

void Tuning::say(uint32_t index, const store::Store &store) const
{
    const report::ProfileDirectoryReport &line = report_.directories[index];
    if (!known_[index].entry) return;
    const store::Requests &reads = store.requests(index, true);
    const store::Requests &writes = store.requests(index, false);
    const auto text = [](const store::Requests &requests) {
        return requests.bytes == 0 || requests.depth == 0
                   ? std::string("as usual")
                   : format_text("%s x %u", bytes_text(requests.bytes).c_str(), requests.depth);
    };
    log_.print(STW_LOG_INFO, "profile",
               "'%s': from a %s%s%s%s of %s: driver %s, reads %s at %s/s, writes %s at %s/s.%s%s",
               line.path.c_str(), line.source.c_str(), line.file.empty() ? "" : " '",
               line.file.c_str(), line.file.empty() ? "" : "'", line.created.c_str(),
               store.ops(index).name, text(reads).c_str(),
               bytes_text(line.read_bytes_per_s).c_str(), text(writes).c_str(),
               bytes_text(line.write_bytes_per_s).c_str(), line.remark.empty() ? "" : " ",
               line.remark.c_str());
}

uint64_t Tuning::read_bytes_per_s() const
{
    uint64_t sum = 0;
    for (const Known &known : known_) {
        if (!known.entry) return 0;
        sum += known.entry->read.bytes_per_s;
    }
    return sum;
}

uint64_t Tuning::write_bytes_per_s() const
{
    uint64_t sum = 0;
    for (const Known &known : known_) {
        if (!known.entry) return 0;
        sum += known.entry->write.bytes_per_s;
    }
    return sum;
}

}  // namespace stepwell::profile
