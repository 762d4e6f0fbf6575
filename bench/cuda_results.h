// SPDX-License-Identifier: Apache-2.0
// What bench/bench.py makes of pairs, made by the program: no Python is where this one is carried
// to. One figure a line, in the same form.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace bench {

struct Pair {  // seconds, measured one right after the other
    double ours = 0;
    double reference = 0;
};

// Of a figure without a reference.
enum class Limit { kAtLeast, kAtMost };

class Results {
public:
    // Each figure is printed and, with a path, written as soon as it is there: whoever stops the
    // program for want of time keeps what it had.
    explicit Results(std::string path) : path_(std::move(path)) {}

    // GB/s, and the ratio to the reference's, which is to be `wanted` or more.
    void rate(const std::string &name, uint64_t bytes, const std::string &against, double wanted,
              const std::vector<Pair> &pairs);
    // Nanoseconds, which are to be `wanted_ns` or less, with no call of the driver; the ratio is to
    // that.
    void time(const std::string &name, const std::vector<double> &ns, double wanted_ns,
              uint64_t driver_calls);
    // Milliseconds of steps, and the ratio of what they cannot be shorter than to them. `ok`: what
    // else must hold.
    void step(const std::string &name, const std::string &against, double wanted, bool ok,
              const std::vector<Pair> &pairs);

    // One number against what is known of other machines.
    void plain(const std::string &name, double value, const char *unit, double wanted, Limit limit);

private:
    void add(const std::string &line);
    void write() const;

    std::string path_;
    std::vector<std::string> lines_;
};

// Both one after the other, the reference first every second time.
template <class Ours, class Plain> Pair in_turn(uint64_t number, Ours &&ours, Plain &&plain)
{
    Pair pair;
    if (number % 2 == 1) pair.reference = plain();
    pair.ours = ours();
    if (number % 2 == 0) pair.reference = plain();
    return pair;
}

}  // namespace bench
