// SPDX-License-Identifier: Apache-2.0
//
// The command line, read and checked. Knows nothing of Stepwell.

#ifndef TRAIN_GPT_OPTIONS_H
#define TRAIN_GPT_OPTIONS_H

#include <cstdint>
#include <string>
#include <vector>

namespace train_gpt {

struct Options {
    uint64_t device_bytes = 0;
    uint64_t host_bytes = 0;
    std::vector<std::string> nvme;  // directories
    uint64_t nvme_bytes = 0;        // all of them together; 0: what the states need, and room
    uint64_t whole_bytes = 0;       // of gathered tensors; 0: half of the nearest tier
    uint64_t block_bytes = 0;       // 0: the library's choice, smaller with ranks
    std::string device_driver;      // "": that of the arithmetic
    std::string store;              // name of the files that stay; "": none do
    uint32_t commit_every = 0;      // steps; 0: at the end alone
    bool in_memory = false;
    bool activations_in_stepwell = true;
    bool ranks = false;      // those of the MPI job; the budgets are of each
    std::string mpi_module;  // "": where it is installed

    uint32_t steps = 200;
    uint32_t stop_after = 0;  // 0: all steps
    uint64_t seed = 1;
    std::string text;
    uint32_t layers = 8;
    uint32_t width = 512;
    uint32_t heads = 8;
    uint32_t batch = 4;
    uint32_t sequence = 256;
    uint32_t micro_batches = 1;        // of a rank's part of a batch
    std::string order = "horizontal";  // of micro-batches, or "vertical"
    uint32_t threads = 2;
    double learning_rate = 1e-3;
    double clip_norm = 1.0;
    bool speculates = false;

    uint32_t sample_bytes = 0;
    std::string prompt = "And the LORD said unto Moses, ";
    double compute_seconds = 0.0;  // of a step in memory; 0: not known
    std::string losses_path;
    std::string json_path;
    std::string timeline_path;
    std::string report_path;
    bool quiet = false;

    // Micro-batches that a layer computes before the next layer does.
    uint32_t together() const { return order == "vertical" ? micro_batches : 1; }
    uint32_t steps_to_run() const
    {
        return stop_after != 0 && stop_after < steps ? stop_after : steps;
    }
};

// A sentence of the library, which names its own options, with those of the command line.
std::string in_own_words(std::string sentence);
// "64MiB", "1.5 GB", "4096" to bytes. "" on success, else the sentence for the user.
std::string parse_bytes(const std::string &text, uint64_t *bytes_out);

enum class Parsed { kRun, kExit };
// kExit: the help or the mistake is printed, end with *exit_code_out.
Parsed parse_options(int argc, char **argv, Options *options_out, int *exit_code_out);

}  // namespace train_gpt

#endif
