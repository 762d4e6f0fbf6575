// SPDX-License-Identifier: Apache-2.0
// How the time is spent: three quarters on settings, in rounds that go forth and back, of fewer and
// fewer settings; the rest on what was found. A disk of a virtual machine changes its speed by the
// minute, so every setting is met again and again beside the usual one, and medians decide.
#include "tune.h"

#include "machine_profile.h"
#include "report_file.h"
#include "text.h"

#include <algorithm>
#include <cmath>
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
constexpr double kBetter = 1.01;    // of settings with more bytes in flight than usual
constexpr int kPassesOfARound = 3;  // at least: into reserved space, written, read
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

class TierPasses : public Passes {
public:
    explicit TierPasses(const TierOptions &options) : tier_(options) {}
    Pass write(double seconds_most) override { return tier_.write(seconds_most); }
    Pass read(double seconds_most) override { return tier_.read(seconds_most); }
    Pass update(double seconds_most) override { return tier_.update(seconds_most); }
    Identity identity() override
    {
        std::string error;
        const std::string text = read_report(tier_.runtime(), &error);
        if (text.empty()) throw Failed(error);
        const auto report = nlohmann::json::parse(text);
        const auto &profile = report.at("profile");
        const auto &directory = profile.at("directories").at(0);
        return {profile.at("kernel"),        profile.at("processor"),
                profile.at("cores"),         directory.at("device"),
                directory.at("file_system"), directory.at("file_system_id")};
    }

private:
    Tier tier_;
};

class Tuner {
public:
    Tuner(const TuneOptions &options, const Progress &progress)
        : options_(options),
          progress_(progress),
          begin_(options.now()),
          stop_(begin_ + options.seconds + kTuneSecondsMore)
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
            if (alone_in(&found, std::min(now() + alone, stop_))) {
                tuned_.directories.push_back(std::move(found));
            } else {
                tuned_.left_out.push_back(found.path);
            }
        }
        if (tuned_.directories.empty()) throw Failed(too_slow());
        as_it_will_be_used();
        tuned_.seconds = now() - begin_;
        return std::move(tuned_);
    }

private:
    void tell(const std::string &what) const
    {
        progress_(what, std::min(1.0, (now() - begin_) / options_.seconds));
    }
    double now() const { return options_.now(); }

    // One pass, unless the time is over. Each may take longer than it was told: what is in flight
    // when its seconds have passed is waited for.
    template <class Body> bool pass(Body body)
    {
        const double begin = now();
        if (begin > stop_) return false;
        body();
        longest_ = std::max(longest_, now() - begin);
        return true;
    }

    std::string too_slow() const
    {
        const double least =
            longest_ * kPassesOfARound * static_cast<double>(options_.directories.size());
        return "No directory could be measured in " + std::to_string(std::lround(now() - begin_)) +
               " seconds, since one pass over it took up to " +
               std::to_string(std::lround(longest_)) + "; give --seconds " +
               std::to_string(static_cast<long>(std::ceil(least))) + " at the least.";
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

    enum class Outcome { kMeasured, kDoesNotWork, kTooLate };

    // Where the setting does not work here why_ says why.
    Outcome measure(const std::string &path, double pass_seconds, int passes, Tried *tried,
                    Identity *identity_out)
    {
        if (now() > stop_) return Outcome::kTooLate;
        tell(printable(path) + ": " + text_of(tried->setting));
        TierOptions wanted;
        wanted.directories = {path};
        wanted.setting = tried->setting;
        wanted.bytes = options_.bytes;
        try {
            const auto tier = options_.open(wanted);
            double write = 0;
            double read = 0;
            // The first one goes into reserved space.
            bool on = pass([&] { tier->write(pass_seconds); });
            for (int i = 0; on && i < passes; ++i) {
                on = pass([&] { write += tier->write(pass_seconds).write_rate() / passes; }) &&
                     pass([&] { read += tier->read(pass_seconds).read_rate() / passes; });
            }
            if (!on) return Outcome::kTooLate;
            tried->writes.push_back(write);
            tried->reads.push_back(read);
            if (identity_out && identity_out->device.empty()) *identity_out = tier->identity();
            return Outcome::kMeasured;
        } catch (const Failed &failed) {
            why_ = failed.what();
            return Outcome::kDoesNotWork;
        }
    }

    // False: the time was over before one setting was measured.
    bool alone_in(TunedDirectory *found, double until)
    {
        const double begin = now();
        const double part = std::max(until - begin, 0.0);
        const double pass_seconds = std::clamp(part / 40, 0.05, 1.0);
        std::vector<Tried> tried;
        for (const Setting &setting : settings_tried()) {
            if (!tried.empty() && now() - begin > part * kShareOfFirstRound) break;
            Tried one = {setting, {}, {}};
            const Outcome outcome = measure(found->path, pass_seconds, 1, &one, &found->identity);
            if (outcome == Outcome::kMeasured) tried.push_back(std::move(one));
            if (outcome != Outcome::kTooLate) continue;
            found->cut = true;
            break;
        }
        if (tried.empty() && found->cut) return false;
        if (tried.empty()) throw Failed(why_);
        const double cost = (now() - begin) / static_cast<double>(tried.size());
        later_rounds(found, until, cost, pass_seconds, &tried);
        choose(tried, found);
        return true;
    }

    void later_rounds(TunedDirectory *found, double until, double cost, double pass_seconds,
                      std::vector<Tried> *tried)
    {
        for (size_t round = 2; round <= kRoundsMax; ++round) {
            if (round == 2) keep_best(tried, kKeptFirst);
            if (round == 4) keep_best(tried, kKeptLater);
            if (round % 2 == 0) std::reverse(tried->begin(), tried->end());
            for (Tried &one : *tried) {
                if (now() + cost > until) {
                    found->cut = found->cut || round == 2;
                    return;
                }
                const Outcome outcome = measure(found->path, pass_seconds, kPasses, &one, nullptr);
                if (outcome == Outcome::kDoesNotWork) throw Failed(why_);
                found->cut = found->cut || outcome == Outcome::kTooLate;
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
        const double left = begin_ + options_.seconds - now();
        const double part = std::max(left, options_.seconds * 0.05) / parts;
        for (TunedDirectory &directory : tuned_.directories) {
            std::vector<double> reads;
            std::vector<double> writes;
            if (now() <= stop_) {
                tell(printable(directory.path) + ": reads and writes at once");
                const auto tier = options_.open(tier_of({directory.path}, profile));
                pass([&] { tier->write(part / 6); });
                rounds(part / 2, [&](double seconds) {
                    const Pass both = tier->update(seconds);
                    reads.push_back(both.read_rate());
                    writes.push_back(both.write_rate());
                });
            }
            directory.cut = directory.cut || reads.empty();
            directory.mixed_read = figure_of(reads);
            directory.mixed_write = figure_of(writes);
        }
        if (several && now() <= stop_) all_together(profile, part * 2);
    }

    void all_together(const ProfileInMemory &profile, double part)
    {
        tell("all directories together");
        std::vector<std::string> paths;
        for (const TunedDirectory &directory : tuned_.directories) paths.push_back(directory.path);
        const auto tier = options_.open(tier_of(paths, profile));
        pass([&] { tier->write(part / 6); });
        std::vector<double> reads;
        std::vector<double> writes;
        rounds(part / 2, [&](double seconds) {
            const double write = tier->write(seconds / 2).write_rate();
            if (!pass([&] { reads.push_back(tier->read(seconds / 2).read_rate()); })) return;
            writes.push_back(write);
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

    template <class Body> void rounds(double seconds, Body body)
    {
        const double until = now() + seconds;
        for (int round = 0; round < 5 && (round == 0 || now() < until); ++round)
            if (!pass([&] { body(seconds / 3); })) return;
    }

    const TuneOptions &options_;
    const Progress &progress_;
    const double begin_;
    const double stop_;
    double longest_ = 0;  // of all passes, in seconds
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
               ", which is memory: a tier there would use up the memory that the budgets limit. "
               "Give a directory on a disk.";
    if (directory.total_bytes > 0 && directory.available_bytes < bytes + kTuneBytesMore)
        return name + " has " + bytes_text(directory.available_bytes) + " available, and " +
               bytes_text(bytes + kTuneBytesMore) +
               " are needed; make room, or give a smaller --size.";
    return "";
}

std::unique_ptr<Passes> open_tier(const TierOptions &options)
{
    return std::make_unique<TierPasses>(options);
}

std::vector<std::string> cut_short(const Tuned &tuned)
{
    std::vector<std::string> lines;
    for (const TunedDirectory &directory : tuned.directories) {
        if (!directory.cut) continue;
        lines.push_back("'" + printable(directory.path) + "' had fewer rounds than it should, " +
                        std::to_string(directory.usual_read.rounds) +
                        " of the usual setting: the time was over. A larger --seconds, or fewer "
                        "directories at once, compare more.");
    }
    for (const std::string &path : tuned.left_out)
        lines.push_back("'" + printable(path) +
                        "' was not measured and is not in the profile: the time was over. Give a "
                        "larger --seconds, or measure it alone.");
    return lines;
}

Tuned tune(const TuneOptions &options, const Progress &progress)
{
    return Tuner(options, progress).run();
}

}  // namespace stepwell::cli
