// SPDX-License-Identifier: Apache-2.0
// How the time is spent: three quarters on settings, in rounds that go forth and back, of fewer and
// fewer settings; the rest on what was found. A disk of a virtual machine changes its speed by the
// minute, so every setting is met again and again beside the usual one, and medians decide.
#include "tune.h"

#include "machine_profile.h"
#include "report_file.h"
#include "text.h"

#include <algorithm>
#include <cstring>
#include <memory>

#include <nlohmann/json.hpp>

namespace stepwell::cli {

namespace {

constexpr double kShareOfSettings = 0.75;
constexpr double kShareOfFirstRound = 0.35;  // of a directory's part
constexpr size_t kKeptFirst = 4;             // in each direction, after a first round
constexpr size_t kKeptLater = 2;
constexpr size_t kRoundsMax = 25;
constexpr int kPasses = 2;  // of a later round: room was reserved and filled for them anyway
constexpr double kClearlyBetter = 1.05;
constexpr double kClearlyBetterOnce = 1.15;  // where there were few rounds
constexpr size_t kRoundsFew = 4;
constexpr double kBetter = 1.01;  // of settings with more bytes in flight than usual
const Setting kUsual = {"aio", 1 << 20, 32};

bool same(const Setting &a, const Setting &b)
{
    return a.driver == b.driver && a.request_bytes == b.request_bytes &&
           a.queue_depth == b.queue_depth;
}

std::string text_of(const Setting &setting)
{
    return setting.driver + ", " + bytes_text(setting.request_bytes) + " x " +
           std::to_string(setting.queue_depth);
}

uint64_t bytes_in_flight(const Setting &setting)
{
    return uint64_t{setting.request_bytes} * setting.queue_depth;
}

const Tried *usual_of(const std::vector<Tried> &tried)
{
    const auto found = std::find_if(tried.begin(), tried.end(),
                                    [](const Tried &one) { return same(one.setting, kUsual); });
    return found == tried.end() ? nullptr : &*found;
}

using Side = std::vector<double> Tried::*;

// How much faster than another one, round by round: what the disk did meanwhile is in both, and one
// that changed its speed between two rounds decides nothing.
double faster(const Tried &one, const Tried &other, Side side)
{
    std::vector<double> ratios;
    for (size_t i = 0; i < std::min((one.*side).size(), (other.*side).size()); ++i)
        ratios.push_back((one.*side)[i] / std::max((other.*side)[i], 1.0));
    return median(ratios);
}

// Against the usual one, or as bytes a second where that does not work here.
double score(const Tried &one, const Tried *usual, Side side)
{
    return usual ? faster(one, *usual, side) : median(one.*side);
}

// Keeps those that are among the first `n` in one direction.
void keep_best(std::vector<Tried> *tried, size_t n)
{
    const Tried *usual = usual_of(*tried);
    std::vector<const Tried *> kept;
    for (auto side : {&Tried::reads, &Tried::writes}) {
        std::vector<const Tried *> order;
        for (const Tried &one : *tried) order.push_back(&one);
        std::stable_sort(order.begin(), order.end(), [&](const Tried *a, const Tried *b) {
            return score(*a, usual, side) > score(*b, usual, side);
        });
        order.resize(std::min(n, order.size()));
        kept.insert(kept.end(), order.begin(), order.end());
    }
    std::vector<Tried> left;
    for (const Tried &one : *tried) {
        if (std::find(kept.begin(), kept.end(), &one) != kept.end() || same(one.setting, kUsual))
            left.push_back(one);
    }
    *tried = std::move(left);
}

class Tuner {
public:
    Tuner(const TuneOptions &options, const Progress &progress)
        : options_(options), progress_(progress), begin_(now_s())
    {
    }

    Tuned run()
    {
        tell("memory copies");
        tuned_.host_copy = host_copy();
        const double alone =
            options_.seconds * kShareOfSettings / static_cast<double>(options_.directories.size());
        for (const Directory &directory : options_.directories) {
            TunedDirectory found;
            found.path = directory.real_path;
            found.mount = directory.mount.point;
            alone_in(&found, now_s() + alone);
            tuned_.directories.push_back(std::move(found));
        }
        as_it_will_be_used();
        tuned_.seconds = now_s() - begin_;
        return std::move(tuned_);
    }

private:
    void tell(const std::string &what) const
    {
        progress_(what, std::min(1.0, (now_s() - begin_) / options_.seconds));
    }

    static Figure host_copy()
    {
        constexpr size_t kBytes = 32 << 20;
        constexpr int kRounds = 7;
        std::vector<char> from(kBytes, 1);
        std::vector<char> to(kBytes, 2);
        std::vector<double> rates;
        for (int round = 0; round < kRounds; ++round) {
            const double begin = now_s();
            std::memcpy(to.data(), from.data(), kBytes);
            from[static_cast<size_t>(round)] = to[kBytes - 1];  // nobody may leave the copy out
            rates.push_back(static_cast<double>(kBytes) / (now_s() - begin));
        }
        return figure_of(rates);
    }

    // ---- settings --------------------------------------------------------------------------

    // False: the setting does not work here; why_ says why.
    bool measure(const std::string &path, double pass_seconds, int passes, Tried *tried,
                 Identity *identity_out)
    {
        tell(printable(path) + ": " + text_of(tried->setting));
        TierOptions wanted;
        wanted.directories = {path};
        wanted.setting = tried->setting;
        wanted.bytes = options_.bytes;
        try {
            Tier tier(wanted);
            tier.write(pass_seconds);  // the first one goes into reserved space
            double write = 0;
            double read = 0;
            for (int pass = 0; pass < passes; ++pass) {
                write += tier.write(pass_seconds).write_rate() / passes;
                read += tier.read(pass_seconds).read_rate() / passes;
            }
            tried->writes.push_back(write);
            tried->reads.push_back(read);
            if (identity_out && identity_out->device.empty()) *identity_out = identify(tier);
            return true;
        } catch (const Failed &failed) {
            why_ = failed.what();
            return false;
        }
    }

    static Identity identify(const Tier &tier)
    {
        std::string error;
        const std::string text = read_report(tier.runtime(), &error);
        if (text.empty()) throw Failed(error);
        const auto report = nlohmann::json::parse(text);
        const auto &profile = report.at("profile");
        const auto &directory = profile.at("directories").at(0);
        return {profile.at("kernel"),        profile.at("processor"),
                profile.at("cores"),         directory.at("device"),
                directory.at("file_system"), directory.at("file_system_id")};
    }

    void alone_in(TunedDirectory *found, double until)
    {
        const double begin = now_s();
        const double part = until - begin;
        const double pass_seconds = std::clamp(part / 40, 0.05, 1.0);
        std::vector<Tried> tried;
        for (const Setting &setting : settings_tried()) {
            if (!tried.empty() && now_s() - begin > part * kShareOfFirstRound) break;
            Tried one = {setting, {}, {}};
            if (measure(found->path, pass_seconds, 1, &one, &found->identity))
                tried.push_back(std::move(one));
        }
        if (tried.empty()) throw Failed(why_);
        const double cost = (now_s() - begin) / static_cast<double>(tried.size());
        later_rounds(*found, until, cost, pass_seconds, &tried);
        choose(tried, found);
    }

    void later_rounds(const TunedDirectory &found, double until, double cost, double pass_seconds,
                      std::vector<Tried> *tried)
    {
        for (size_t round = 2; round <= kRoundsMax; ++round) {
            if (round == 2) keep_best(tried, kKeptFirst);
            if (round == 4) keep_best(tried, kKeptLater);
            if (round % 2 == 0) std::reverse(tried->begin(), tried->end());
            for (Tried &one : *tried) {
                if (now_s() + cost > until) return;
                if (!measure(found.path, pass_seconds, kPasses, &one, nullptr)) throw Failed(why_);
            }
        }
    }

    // ---- what was found --------------------------------------------------------------------

    // By way of the profile itself: what the library would not take is not written.
    void as_it_will_be_used()
    {
        const ProfileInMemory profile(profile_json(tuned_, ""));
        const bool several = tuned_.directories.size() > 1;
        const double parts = static_cast<double>(tuned_.directories.size() + (several ? 2 : 0));
        const double left = begin_ + options_.seconds - now_s();
        const double part = std::max(left, options_.seconds * 0.05) / parts;
        for (TunedDirectory &directory : tuned_.directories) {
            tell(printable(directory.path) + ": reads and writes at once");
            Tier tier(tier_of({directory.path}, profile));
            tier.write(part / 6);
            std::vector<double> reads;
            std::vector<double> writes;
            rounds(part / 2, [&](double seconds) {
                const Pass pass = tier.update(seconds);
                reads.push_back(pass.read_rate());
                writes.push_back(pass.write_rate());
            });
            directory.mixed_read = figure_of(reads);
            directory.mixed_write = figure_of(writes);
        }
        if (several) all_together(profile, part * 2);
    }

    void all_together(const ProfileInMemory &profile, double part)
    {
        tell("all directories together");
        std::vector<std::string> paths;
        for (const TunedDirectory &directory : tuned_.directories) paths.push_back(directory.path);
        Tier tier(tier_of(paths, profile));
        tier.write(part / 6);
        std::vector<double> reads;
        std::vector<double> writes;
        rounds(part / 2, [&](double seconds) {
            writes.push_back(tier.write(seconds / 2).write_rate());
            reads.push_back(tier.read(seconds / 2).read_rate());
        });
        tuned_.together_read = figure_of(reads);
        tuned_.together_write = figure_of(writes);
    }

    TierOptions tier_of(const std::vector<std::string> &paths, const ProfileInMemory &profile) const
    {
        TierOptions wanted;
        wanted.directories = paths;
        wanted.profile_path = profile.path();
        wanted.bytes = options_.bytes;
        return wanted;
    }

    template <class Body> static void rounds(double seconds, Body body)
    {
        const double until = now_s() + seconds;
        for (int round = 0; round < 5 && (round == 0 || now_s() < until); ++round)
            body(seconds / 3);
    }

    const TuneOptions &options_;
    const Progress &progress_;
    const double begin_;
    Tuned tuned_;
    std::string why_;
};

}  // namespace

Figure figure_of(const std::vector<double> &rates)
{
    if (rates.empty()) return {};
    const auto [least, most] = std::minmax_element(rates.begin(), rates.end());
    return {median(rates), *least, *most, rates.size()};
}

std::vector<Setting> settings_tried()
{
    constexpr uint32_t k = 1 << 10;
    constexpr uint32_t m = 1 << 20;
    return {kUsual,
            {"aio", 1 * m, 8},
            {"aio", 2 * m, 16},
            {"aio", 512 * k, 32},
            {"aio", 2 * m, 8},
            {"aio", 1 * m, 16},
            {"aio", 512 * k, 64},
            {"posix", 1 * m, 16},
            {"aio", 1 * m, 64},
            {"aio", 2 * m, 32},
            {"aio", 2 * m, 4},
            {"aio", 1 * m, 4},
            {"aio", 512 * k, 16},
            {"aio", 256 * k, 64},
            {"posix", 2 * m, 8},
            {"aio", 512 * k, 8},
            {"aio", 256 * k, 32},
            {"posix", 512 * k, 32},
            {"aio", 256 * k, 16},
            {"aio", 512 * k, 4}};
}

void choose(const std::vector<Tried> &tried, TunedDirectory *directory)
{
    const Tried *usual = usual_of(tried);
    const auto best = [&](Side side, const std::string &driver) {
        const Tried *best = nullptr;
        for (const Tried &one : tried) {
            if (one.setting.driver != driver) continue;
            if (!best || score(one, usual, side) > score(*best, usual, side)) best = &one;
        }
        if (!best || !usual || usual->setting.driver != driver) return best;
        // Too little in flight can cost a third of what a disk gives, too much next to nothing.
        const bool few = (best->*side).size() < kRoundsFew;
        const bool deeper = bytes_in_flight(best->setting) > bytes_in_flight(kUsual);
        const double needed = deeper ? kBetter : few ? kClearlyBetterOnce : kClearlyBetter;
        return faster(*best, *usual, side) < needed ? usual : best;
    };
    double most = -1;
    for (const char *driver : {"aio", "posix"}) {
        const Tried *read = best(&Tried::reads, driver);
        const Tried *write = best(&Tried::writes, driver);
        if (!read || !write) continue;
        // Times add up: what is slow in one direction is not made good by the other.
        const double r = median(read->reads);
        const double w = median(write->writes);
        const double both = r + w > 0 ? r * w / (r + w) : 0;
        if (both <= most * kClearlyBetter) continue;
        most = both;
        directory->read = {read->setting, figure_of(read->reads)};
        directory->write = {write->setting, figure_of(write->writes)};
    }
    for (const Tried &one : tried) {
        if (!same(one.setting, kUsual)) continue;
        directory->usual_read = figure_of(one.reads);
        directory->usual_write = figure_of(one.writes);
    }
}

std::string why_not_tuned(const Directory &directory, uint64_t bytes)
{
    if (!directory.error.empty()) return directory.error;
    const std::string name = "'" + printable(directory.path) + "'";
    if (directory.is_memory)
        return name + " is on " + directory.file_system +
               ", which is memory: a tier there would save none. Give a directory on a disk.";
    if (directory.total_bytes > 0 && directory.available_bytes < bytes + kTuneBytesMore)
        return name + " has " + bytes_text(directory.available_bytes) + " available, and " +
               bytes_text(bytes + kTuneBytesMore) +
               " are needed; make room, or give a smaller --size.";
    return "";
}

Tuned tune(const TuneOptions &options, const Progress &progress)
{
    return Tuner(options, progress).run();
}

}  // namespace stepwell::cli
