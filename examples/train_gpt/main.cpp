// SPDX-License-Identifier: Apache-2.0
//
// train_gpt: a GPT that trains in less memory than its states need. Opens the tiers, runs the
// steps, closes with the table. One thread; the arithmetic has its own. Of several ranks the first
// one speaks.

#include "arithmetic.h"
#include "model.h"
#include "must.h"
#include "options.h"
#include "ranks.h"
#include "report.h"
#include "sampler.h"
#include "text.h"
#include "trainer.h"

#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace train_gpt {

namespace {

// The library never prints; what it has to say comes here.
void print_log(void *, uint32_t, const char *topic, const char *line)
{
    std::fprintf(stderr, "stepwell: %s: %s\n", topic, line);
}

// Budgets that were left open. Tensors are kept in blocks, so a tier takes more than the sum of
// their bytes; the nvme tier also holds what is being written anew, and of what is kept two
// generations beside.
void complete_budgets(Options &options, const ModelSize &size, const Arithmetic &arithmetic,
                      uint32_t ranks)
{
    constexpr uint64_t kFixedBytes = uint64_t{64} << 20;
    // The gradients of a micro-batch wait in blocks of their own until they are added to those of
    // the ones before it; over ranks those are all gradients whole.
    const uint64_t sums = size.parameters * sizeof(float) * (ranks > 1 ? 2 : 1) +
                          uint64_t{kSlots} * options.layers * STW_BLOCK_2M;
    const uint64_t bytes =
        size.state_bytes / ranks + size.checkpoint_bytes + (options.micro_batches > 1 ? sums : 0);
    const uint64_t all = bytes + bytes / 4 + kFixedBytes;
    // States are updated on a GPU where they and what is updated take up to half of it; and what is
    // filled at first is in the host tier.
    if (options.in_memory && options.device_bytes == 0)
        options.device_bytes = arithmetic.on_processor() ? all : 2 * all;
    if (options.in_memory && !arithmetic.on_processor()) options.host_bytes = all;
    if (!options.nvme.empty() && options.nvme_bytes == 0)
        options.nvme_bytes =
            (options.store.empty() ? 1 : 3) * (bytes + bytes / 2) + kFixedBytes +
            (options.speculates ? bytes : 0);  // for older contents of what is updated early
}

// A store that is there says how large it is, whatever model this run has; where none is, one is
// made. `sized`: the command line says how large.
stw_runtime *open_runtime(const Options &options, const Arithmetic &arithmetic, stw_group *group,
                          bool sized)
{
    stw_device_options device = STW_DEVICE_OPTIONS_INIT;
    device.driver =
        options.device_driver.empty() ? arithmetic.device_driver() : options.device_driver.c_str();
    device.budget_bytes = options.device_bytes;
    std::vector<stw_nvme_options> nvme;
    for (const std::string &path : options.nvme) {
        stw_nvme_options directory = STW_NVME_OPTIONS_INIT;
        directory.path = path.c_str();
        directory.budget_bytes = options.nvme_bytes / options.nvme.size();
        nvme.push_back(directory);
    }
    stw_runtime_options runtime = STW_RUNTIME_OPTIONS_INIT;
    runtime.name = "train_gpt";
    runtime.devices = &device;
    runtime.device_count = options.device_bytes != 0 ? 1 : 0;
    runtime.nvme = nvme.data();
    runtime.nvme_count = static_cast<uint32_t>(nvme.size());
    runtime.host_bytes = options.host_bytes;
    runtime.thread_count = options.threads;
    runtime.log = print_log;
    runtime.group = group;
    // Shards are smaller than tensors by the number of ranks, and so are blocks.
    runtime.block_bytes = static_cast<uint32_t>(options.block_bytes);
    if (group != nullptr && options.block_bytes == 0) runtime.block_bytes = STW_BLOCK_512K;
    runtime.whole_bytes = options.whole_bytes;
    stw_runtime *opened = nullptr;
    if (!options.store.empty()) {
        runtime.store_name = options.store.c_str();
        runtime.flags = STW_RUNTIME_RESUME;
        std::vector<stw_nvme_options> there = nvme;
        for (stw_nvme_options &directory : there)
            if (!sized) directory.budget_bytes = 0;
        runtime.nvme = there.data();
        const stw_status found = stw_runtime_open(&runtime, &opened);
        if (found != STW_ERROR_NOT_FOUND) {
            must(found);
            return opened;
        }
        runtime.nvme = nvme.data();
        runtime.flags |= STW_RUNTIME_OVERWRITE;
    }
    must(stw_runtime_open(&runtime, &opened));
    return opened;
}

void print_model(const Options &options, const ModelSize &size, const Arithmetic &arithmetic,
                 const Text &text, const Model &model, const Ranks &ranks)
{
    constexpr double kMiB = 0x1p20;
    std::printf("model        %.2f M parameters in %u layers, %u tokens and %.0f GFLOP per step\n",
                static_cast<double>(size.parameters) * 1e-6, options.layers,
                options.batch * options.sequence, size.flops_per_step * 1e-9);
    std::printf("text         %s, %.1f KiB\n", options.text.c_str(),
                static_cast<double>(text.bytes()) / 1024.0);
    std::printf("states       %.1f MiB, checkpoints %.1f MiB; budgets: device %.1f + host %.1f "
                "MiB, nvme %.1f MiB\n",
                static_cast<double>(size.state_bytes) / kMiB,
                static_cast<double>(size.checkpoint_bytes) / kMiB,
                static_cast<double>(options.device_bytes) / kMiB,
                static_cast<double>(options.host_bytes) / kMiB,
                static_cast<double>(options.nvme_bytes) / kMiB);
    if (ranks.size() > 1)
        std::printf(
            "ranks        %u, each with these budgets, %u sequences of a batch and %.1f MiB "
            "of the states\n",
            ranks.size(), options.batch / ranks.size(),
            static_cast<double>(model.own_state_bytes()) / kMiB);
    if (options.micro_batches > 1)
        std::printf("micro        %u micro-batches of %u sequences, %s\n", options.micro_batches,
                    model.options().shape.batch, options.order.c_str());
    std::printf("products     %s\n", arithmetic.name().c_str());
    std::printf("activations  %llu bytes outside Stepwell\n\n",
                static_cast<unsigned long long>(arithmetic.activation_bytes()));
    std::fflush(stdout);
}

void stop_if(const std::string &wrong)
{
    if (!wrong.empty()) give_up(wrong.c_str());
}

// What a generation has beside its tensors: the step that comes next, from which batches and
// learning rates follow, and what model they are of.
struct Kept {
    uint32_t step, layers, width, heads, sequence;
};

// "--layers 3 --width 256": what `one` has and `other` has not.
std::string differences(const Kept &one, const Kept &other)
{
    constexpr std::pair<const char *, uint32_t Kept::*> kOptions[] = {
        {"--layers ", &Kept::layers},
        {"--width ", &Kept::width},
        {"--heads ", &Kept::heads},
        {"--sequence ", &Kept::sequence}};
    std::string text;
    for (const auto &[option, value] : kOptions)
        if (one.*value != other.*value)
            text += (text.empty() ? "" : " ") + (option + std::to_string(one.*value));
    return text;
}

// Before the tensors are made, which another model has under the same names. 0: nothing was kept.
uint32_t resumed_step(const Options &options, stw_runtime *runtime)
{
    Kept kept{};
    uint64_t bytes = 0;
    if (options.store.empty()) return 0;
    const stw_status found = stw_generation_metadata(runtime, 0, &kept, sizeof kept, &bytes);
    if (found == STW_ERROR_NOT_FOUND) return 0;
    must(found);
    const std::string store = "the store '" + options.store + "'";
    if (bytes != sizeof kept) give_up((store + " was not written by this program").c_str());
    const Kept mine = {kept.step, options.layers, options.width, options.heads, options.sequence};
    const std::string theirs = differences(kept, mine);
    if (!theirs.empty())
        give_up((store + " has a model of " + theirs + ", and this run is of " +
                 differences(mine, kept) + "; give what it has, or another --store")
                    .c_str());
    if (kept.step >= options.steps_to_run())
        give_up((store + " is at step " + std::to_string(kept.step) +
                 " and the run ends there; give more --steps, or another --store")
                    .c_str());
    std::printf("resumed      at step %u\n", kept.step);
    return kept.step;
}

void commit(const Options &options, stw_runtime *runtime, uint32_t next_step)
{
    const Kept kept = {next_step, options.layers, options.width, options.heads, options.sequence};
    stw_commit_options commit = STW_COMMIT_OPTIONS_INIT;
    commit.metadata = &kept;
    commit.metadata_bytes = sizeof kept;
    must(stw_commit(runtime, &commit, nullptr));
}

bool keeps_after(const Options &options, uint32_t step)
{
    if (options.store.empty()) return false;
    const bool due = options.commit_every != 0 && (step + 1) % options.commit_every == 0;
    return due || step + 1 == options.steps_to_run();
}

// A rank takes the sequences that lie together at its place in the batch.
std::vector<StepRecord> train(const Options &options, const Text &text, stw_runtime *runtime,
                              Trainer &trainer, const Ranks &ranks, uint32_t first)
{
    const Schedule schedule = {options.steps, options.learning_rate, options.clip_norm, true,
                               options.speculates};
    std::vector<uint8_t> tokens(size_t{options.batch} * options.sequence);
    std::vector<uint8_t> targets(tokens.size());
    const size_t mine = tokens.size() / ranks.size() * ranks.rank();
    std::vector<StepRecord> records;
    records.reserve(options.steps_to_run());
    LossFile losses;
    if (!options.losses_path.empty()) stop_if(losses.open(options.losses_path));
    for (uint32_t step = first; step < options.steps_to_run(); ++step) {
        text.batch(options.seed, step, options.batch, options.sequence, tokens.data(),
                   targets.data());
        records.push_back(
            trainer.step(schedule, step, tokens.data() + mine, targets.data() + mine));
        stop_if(losses.add(records.back().loss));
        if (!options.quiet) print_progress(options, step, records.back());
        if (keeps_after(options, step)) commit(options, runtime, step + 1);
    }
    return records;
}

void write_files(const Options &options, const ModelSize &size, stw_runtime *runtime,
                 const std::vector<StepRecord> &records, const Summary &summary)
{
    if (!options.json_path.empty())
        stop_if(write_json(options.json_path, options, size, records, summary));
    if (!options.timeline_path.empty())
        must(stw_timeline_write(runtime, options.timeline_path.c_str()));
    if (!options.report_path.empty()) must(stw_report_write(runtime, options.report_path.c_str()));
}

// Every rank has a table and a report; the losses are the same on all.
void prepare_rank(Options &options, const Ranks &ranks)
{
    if (options.batch % ranks.size() != 0)
        give_up(("--batch " + std::to_string(options.batch) + " is not a multiple of " +
                 std::to_string(ranks.size()) + " ranks; each takes as many sequences")
                    .c_str());
    const uint32_t mine = options.batch / ranks.size();
    if (mine % options.micro_batches != 0)
        give_up((std::to_string(mine) + " sequences of --batch " + std::to_string(options.batch) +
                 " on each of " + std::to_string(ranks.size()) +
                 " ranks are not a multiple of --micro-batches " +
                 std::to_string(options.micro_batches) + "; each takes as many sequences")
                    .c_str());
    if (ranks.rank() == 0) return;
    options.quiet = true;
    options.losses_path.clear();
    for (std::string *path : {&options.json_path, &options.timeline_path, &options.report_path})
        if (!path->empty()) *path += ".rank" + std::to_string(ranks.rank());
    if (std::freopen("/dev/null", "w", stdout) == nullptr) give_up("cannot open /dev/null");
}

void run(Options options)
{
    const Ranks ranks(options.ranks, options.mpi_module);
    prepare_rank(options, ranks);
    const Shape shape = {options.batch / ranks.size() / options.micro_batches, options.sequence,
                         options.width, options.heads};
    const ModelOptions model_options = {shape,
                                        options.layers,
                                        options.seed,
                                        options.activations_in_stepwell,
                                        !options.store.empty(),
                                        options.micro_batches,
                                        options.together()};
    const ModelSize size = model_size(model_options);
    Text text;
    stop_if(text.load(options.text, options.sequence));
    stop_if(check_outputs(options));
    const std::unique_ptr<Arithmetic> arithmetic = make_arithmetic(
        options, shape, options.activations_in_stepwell ? 0 : model_options.checkpoint_count());
    const bool sized = options.nvme_bytes != 0;
    complete_budgets(options, size, *arithmetic, ranks.size());

    stw_runtime *runtime = open_runtime(options, *arithmetic, ranks.group(), sized);
    const uint32_t first = resumed_step(options, runtime);
    {
        const uint32_t tier = options.device_bytes != 0 ? STW_TIER_DEVICE : STW_TIER_HOST;
        Model model(runtime, model_options);
        Trainer trainer(runtime, model, *arithmetic, ranks, tier);
        print_model(options, size, *arithmetic, text, model, ranks);
        trainer.check_fits();
        if (first == 0) model.initialise();
        const std::vector<StepRecord> records =
            train(options, text, runtime, trainer, ranks, first);
        must(stw_runtime_drain(runtime, 0));
        if (options.sample_bytes != 0)
            print_sample(trainer, options.prompt, options.sample_bytes, options.sequence,
                         options.seed);
        Summary summary = summarise(runtime, options, records, *arithmetic);
        summary.rank = ranks.rank();
        summary.ranks = ranks.size();
        summary.own_state_bytes = model.own_state_bytes();
        print_summary(options, summary);
        write_files(options, size, runtime, records, summary);
    }
    must(stw_runtime_close(runtime, 0, 0));
}

}  // namespace

}  // namespace train_gpt

int main(int argc, char **argv)
{
    train_gpt::Options options;
    int exit_code = 0;
    if (train_gpt::parse_options(argc, argv, &options, &exit_code) == train_gpt::Parsed::kExit)
        return exit_code;
    train_gpt::run(options);
    return 0;
}
