// SPDX-License-Identifier: Apache-2.0
// Model and machine files: what ships can be read, and what is wrong is told with file, line, key.
#include "simulate/files.h"

#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace stepwell::cli {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

std::string text_of(const std::string &file)
{
    std::ostringstream text;
    text << std::ifstream(std::string(TEST_DATA) + "/" + file).rdbuf();
    return text.str();
}

// The file's text with one piece replaced, which must be there.
std::string with(std::string text, const std::string &piece, const std::string &other)
{
    const size_t at = text.find(piece);
    EXPECT_NE(at, std::string::npos) << piece;
    return at == std::string::npos ? text : text.replace(at, piece.size(), other);
}

std::string refusal(const std::function<void()> &body)
{
    try {
        body();
    } catch (const Refused &refused) {
        return refused.what();
    }
    return "taken";
}

std::string machine_refusal(const std::string &piece, const std::string &other)
{
    const std::string text = with(text_of("machines/dgx-2-v100.json"), piece, other);
    return refusal([&] { parse_machine(parse_located(text, "m.json"), "m.json"); });
}

std::string model_refusal(const std::string &piece, const std::string &other)
{
    const std::string text = with(text_of("models/paper-10t.json"), piece, other);
    return refusal([&] { parse_model(parse_located(text, "m.json"), "m.json"); });
}

TEST(SimulateFiles, WhatShipsIsRead)
{
    size_t models = 0;
    size_t machines = 0;
    for (const auto &entry : std::filesystem::directory_iterator(TEST_DATA "/models")) {
        SCOPED_TRACE(entry.path());
        EXPECT_GT(read_model(entry.path()).parameters(), 0u);
        ++models;
    }
    for (const auto &entry : std::filesystem::directory_iterator(TEST_DATA "/machines")) {
        SCOPED_TRACE(entry.path());
        EXPECT_GT(read_machine(entry.path()).achieved_flops_per_s, 0);
        ++machines;
    }
    EXPECT_GE(models, 10u);
    EXPECT_GE(machines, 5u);
}

TEST(SimulateFiles, TheMachineOfThePaperHasItsNumbers)
{
    const simulate::Machine machine = read_machine(TEST_DATA "/machines/dgx-2-v100.json");
    EXPECT_EQ(machine.gpus(), 512u);
    EXPECT_EQ(machine.device_bytes, uint64_t{32} << 30);
    EXPECT_EQ(machine.gpus_per_switch, 2u);
    EXPECT_EQ(machine.gpus_per_socket, 8u);
    EXPECT_EQ(machine.links.front().bytes_per_s, 25.6e9);
    EXPECT_EQ(machine.links.front().latency_ns, 100'000u);
    EXPECT_EQ(machine.links.front().per, simulate::Per::kNode);
    EXPECT_EQ(machine.links.front().routes, 3u);
}

TEST(SimulateFiles, EveryNumberOfAMachineSaysWhereItComesFrom)
{
    for (const auto &entry : std::filesystem::directory_iterator(TEST_DATA "/machines")) {
        SCOPED_TRACE(entry.path());
        const Located root = read_located(entry.path());
        for (size_t i = 0; i < root.keys.size(); ++i) {
            std::vector<const Located *> told = {&root.items[i]};
            if (root.items[i].kind == Located::Kind::kArray) {
                told.clear();
                for (const Located &item : root.items[i].items) told.push_back(&item);
            }
            for (const Located *object : told) {
                if (object->kind != Located::Kind::kObject) continue;
                EXPECT_THAT(object->keys, testing::Contains("source")) << root.keys[i];
            }
        }
    }
}

TEST(SimulateFiles, NumbersMayHaveTheirUnitInTheKey)
{
    const std::string text = with(text_of("machines/dgx-2-v100.json"), "\"memory\": \"32 GiB\"",
                                  "\"memory_bytes\": 1e9");
    EXPECT_EQ(parse_machine(parse_located(text, "m.json"), "m.json").device_bytes, 1'000'000'000u);
}

TEST(SimulateFiles, WhatIsWrongIsToldWithFileLineAndKey)
{
    EXPECT_EQ(machine_refusal("\"32 GiB\"", "\"-32 GiB\""),
              "m.json:10: gpu.memory is '-32 GiB'; it can be from 1 MB to 1000 PB.");
    EXPECT_EQ(machine_refusal("\"32 GiB\"", "\"0 GiB\""),
              "m.json:10: gpu.memory is '0 GiB'; it can be from 1 MB to 1000 PB.");
    EXPECT_EQ(machine_refusal("\"32 GiB\"", "\"32,5 GiB\""),
              "m.json:10: gpu.memory is no value: '32,5 GiB' has a comma, and a point divides a "
              "number here; write it as '32 GB'.");
    EXPECT_EQ(machine_refusal("\"32 GiB\"", "\"1e400 GiB\""),
              "m.json:10: gpu.memory is no value: '1e400 GiB' is beyond all numbers that are known "
              "here; write it as '32 GB'.");
    EXPECT_EQ(machine_refusal("\"100 us\"", "\"11 s\""),
              "m.json:27: links[0].latency is '11 s'; it can be from 0 ns to 10 s.");
    EXPECT_EQ(machine_refusal("\"32 GiB\"", "32"),
              "m.json:10: gpu.memory is a number without a unit; write it as text with one, or "
              "call the key 'memory_bytes'.");
    EXPECT_EQ(machine_refusal("\"32 GiB\"", "\"32 GB/s\""),
              "m.json:10: gpu.memory is no value: '32 GB/s' has a unit that is none here; write it "
              "as '32 GB'.");
    EXPECT_EQ(machine_refusal("\"32 GiB\"", "\"32\""),
              "m.json:10: gpu.memory is no value: '32' has no unit; write it as '32 GB'.");
    EXPECT_EQ(machine_refusal("\"32 GiB\"", "\"much\""),
              "m.json:10: gpu.memory is no value: 'much' does not begin with a number; write it as "
              "'32 GB'.");
    EXPECT_EQ(machine_refusal("\"32 GiB\"", "\"32000 PB\""),
              "m.json:10: gpu.memory is '32000 PB'; it can be from 1 MB to 1000 PB.");
    EXPECT_EQ(
        machine_refusal("\"32 GiB\"", "\"32 GiB\", \"memory_bytes\": 32"),
        "m.json:10: gpu.memory is there twice, with its unit in the value and in the key; leave "
        "one of them.");
    EXPECT_EQ(machine_refusal("\"achieved\"", "\"acheived\""),
              "m.json:9: gpu.achieved is missing.");
    EXPECT_EQ(machine_refusal("\"peak\"", "\"spare\": 1, \"peak\""),
              "m.json:12: gpu.spare is not known; the keys there are memory_bytes, memory, "
              "memory_bandwidth_bytes_per_s, memory_bandwidth, peak_flop_per_s, peak, "
              "achieved_flop_per_s, achieved, source.");
    EXPECT_EQ(machine_refusal("\"47.7 TFLOPS\"", "\"470 TFLOPS\""),
              "m.json:13: gpu.achieved is more than the peak.");
    EXPECT_EQ(machine_refusal("\"nodes\": 32", "\"nodes\": 0"),
              "m.json:5: nodes is 0; it can be from 1 to 1 M.");
    EXPECT_EQ(machine_refusal("\"nodes\": 32", "\"nodes\": 1.5"),
              "m.json:5: nodes is 1.5, which is no whole number.");
    EXPECT_EQ(machine_refusal("\"nodes\": 32", "\"nodes\": \"32\""),
              "m.json:5: nodes is text, not a number.");
    EXPECT_EQ(machine_refusal("\"nodes\": 32", "\"nodes\": 32, \"nodes\": 32"),
              "m.json:5: the key 'nodes' is there twice.");
    EXPECT_THAT(machine_refusal("\"per\": \"node\"", "\"per\": \"node\", \"per\": \"gpu\""),
                HasSubstr("m.json:28: the key 'links[0].per' is there twice."));
    EXPECT_THAT(machine_refusal("\"name\": \"pcie back\"", "\"name\": \"pcie\""),
                HasSubstr("links[2].name is 'pcie', which another link is called."));
    EXPECT_EQ(machine_refusal("\"switches_per_node\": 8", "\"switches_per_node\": 3"),
              "m.json:7: switches_per_node does not divide the GPUs of a node, 16, evenly.");
    EXPECT_THAT(machine_refusal("\"per\": \"node\"", "\"per\": \"rack\""),
                HasSubstr("m.json:28: links[0].per is 'rack'; it can be gpu, switch, socket or "
                          "node."));
    EXPECT_THAT(machine_refusal("\"nvme<>host\"", "\"nvme>host\""),
                HasSubstr("links has none for host>nvme."));
    EXPECT_THAT(machine_refusal("\"across_nodes_bandwidth_per_node\": \"60 GB/s\",", ""),
                HasSubstr("across_nodes_bandwidth_per_node is missing, and there are several "
                          "nodes."));
}

TEST(SimulateFiles, DirectoriesOfOneFileSystemAreCountedOnce)
{
    const std::string folder = std::filesystem::temp_directory_path() / "stepwell-profile-XXXXXX";
    std::string made = folder;
    ASSERT_NE(mkdtemp(made.data()), nullptr);
    const auto profile = [&](int directories) {
        const std::string file = made + "/profile.json";
        std::ofstream out(file);
        out << R"({"kind": "stepwell machine profile", "format": 1, "host_copy_bytes_per_s": 1e10,
            "directories": [)";
        for (int i = 0; i < directories; ++i)
            out << (i ? "," : "") << "{\"path\": \"" << made
                << "\", \"read\": {\"bytes_per_s\": " << 2 + i
                << "e9}, \"write\": {\"bytes_per_s\": 1e9}}";
        out << "]}";
        out.close();
        return read_profile(file, "24 GB", "1 TFLOPS");
    };
    const simulate::Machine one = profile(1);
    const simulate::Machine two = profile(2);
    EXPECT_LT(two.nvme_bytes, one.nvme_bytes + one.nvme_bytes / 2);
    EXPECT_EQ(one.links.front().bytes_per_s, 2e9);
    EXPECT_EQ(two.links.front().bytes_per_s, 3e9) << "the faster of the two, not both";
    std::filesystem::remove_all(made);
}

TEST(SimulateFiles, ModelsAreHeldToTheSameRules)
{
    EXPECT_EQ(model_refusal("\"layers\": 200", "\"layers\": -200"),
              "m.json:6: transformer.layers is -200; it can be from 1 to 10000.");
    EXPECT_EQ(model_refusal("\"layers\": 200", "\"layers\": 2e9"),
              "m.json:6: transformer.layers is 2e+09; it can be from 1 to 10000.");
    EXPECT_EQ(model_refusal("\"heads\": 512", "\"heads\": 500"),
              "m.json:6: transformer.hidden is no multiple of the number of heads.");
    EXPECT_EQ(model_refusal("\"states\": \"nvme\"", "\"states\": \"tape\""),
              "m.json:13: placement.states is 'tape'; it can be auto, device, host or nvme.");
    EXPECT_EQ(model_refusal("\"state_bytes\": 16", "\"state_bytes\": 0"),
              "m.json:10: optimizer.state_bytes is 0; it can be from 1 to 64.");
    EXPECT_EQ(model_refusal("\"model_parallel\": 4,", "\"model_parallel\": 4, \"layers\": [],"),
              "m.json:1: the file needs a 'transformer' or a list 'layers', one of them.");
    EXPECT_EQ(model_refusal("\"stepwell model\"", "\"stepwell machine\""),
              "m.json:2: kind is 'stepwell machine'; it can be stepwell model.");
    EXPECT_EQ(model_refusal("\"format\": 1", "\"format\": 2"),
              "m.json:3: format is 2; it can be 1.");
}

TEST(SimulateFiles, MastersAreSplitWhereARuntimeSplitsThem)
{
    const auto splits = [](const std::string &before, const std::string &optimizer) {
        const std::string text = with(text_of("models/gpt-13b.json"), "\"model_parallel\": 1,",
                                      before + "\"model_parallel\": 1,");
        const std::string changed = with(text, "{\"name\": \"adamw\"}", optimizer);
        return parse_model(parse_located(changed, "m.json"), "m.json").splits_masters;
    };
    EXPECT_TRUE(splits("", "{\"name\": \"adamw\"}"));
    EXPECT_FALSE(splits("", "{\"name\": \"adamw\", \"masters\": \"whole\"}"));
    EXPECT_FALSE(splits("", "{\"state_bytes\": 12}"));
    EXPECT_FALSE(splits("\"parameter_bytes\": 4, ", "{\"name\": \"adamw\"}"));
    EXPECT_EQ(model_refusal("\"state_bytes\": 16", "\"state_bytes\": 16, \"masters\": \"split\""),
              "m.json:10: optimizer.masters is 'split', which needs parameters of 2 bytes and an "
              "optimizer with a name.");
}

TEST(SimulateFiles, AnUpdateThatCannotBeIsRefused)
{
    const auto update = [](const std::string &keys) {
        const std::string text = with(text_of("models/gpt-13b.json"), "\"name\": \"adamw\"",
                                      "\"name\": \"adamw\"" + keys);
        return parse_model(parse_located(text, "m.json"), "m.json");
    };
    const auto refused = [&](const std::string &keys) { return refusal([&] { update(keys); }); };
    EXPECT_EQ(update("").update, simulate::Update::kBackward);
    EXPECT_EQ(update(", \"clip\": true").update, simulate::Update::kSpeculative);
    EXPECT_EQ(update(", \"clip\": true, \"update\": \"pending\"").update,
              simulate::Update::kPending);
    EXPECT_EQ(update(", \"clip\": true, \"miss_rate\": 0.07").miss_rate, 0.07);
    EXPECT_EQ(
        refused(", \"update\": \"backward\", \"clip\": true"),
        "m.json:8: optimizer.update is 'backward', where no update can wait for the norm that "
        "'clip' needs; write 'speculative' or 'pending'.");
    EXPECT_EQ(refused(", \"update\": \"speculative\""),
              "m.json:8: optimizer.update is 'speculative', but without 'clip' no update can turn "
              "out wrong; write 'backward'.");
    EXPECT_EQ(refused(", \"miss_rate\": 0.07"),
              "m.json:8: optimizer.miss_rate needs the update 'speculative': nothing else is made "
              "again.");
    EXPECT_EQ(refused(", \"clip\": true, \"miss_rate\": 1.5"),
              "m.json:8: optimizer.miss_rate is 1.5; it can be from 0 to 1.");
}

TEST(SimulateFiles, PartsOfAStepAreChecked)
{
    const auto model = [](const std::string &piece, const std::string &other) {
        const std::string text = with(text_of("models/gpt-13b.json"), piece, other);
        return parse_model(parse_located(text, "m.json"), "m.json");
    };
    const auto refused = [&](const std::string &piece, const std::string &other) {
        return refusal([&] { model(piece, other); });
    };
    const std::string batch = "\"batch_per_gpu\": 8";
    const std::string parallel = "\"model_parallel\": 1";
    const simulate::Model micro =
        model(parallel, "\"micro_batches\": {\"count\": 4, \"order\": \"vertical\"}");
    EXPECT_EQ(micro.micro_batches.count, 4u);
    EXPECT_TRUE(micro.micro_batches.vertical);
    EXPECT_EQ(model(batch, batch + ", \"lora_rank\": 16").transformer.lora_rank, 16u);
    EXPECT_EQ(refused(parallel, "\"micro_batches\": {\"order\": \"vertical\"}"),
              "m.json:7: micro_batches.count is missing.");
    EXPECT_EQ(refused(parallel, "\"micro_batches\": {\"count\": 2, \"order\": \"diagonal\"}"),
              "m.json:7: micro_batches.order is 'diagonal'; it can be horizontal or vertical.");
    EXPECT_EQ(refused(batch, batch + ", \"lora_rank\": 6000"),
              "m.json:6: transformer.lora_rank is more than the hidden size.");
    EXPECT_EQ(refused(batch, batch + ", \"experts\": 2, \"experts_active\": 3"),
              "m.json:6: transformer.experts_active is more than there are experts.");
    EXPECT_EQ(refused(batch, batch + ", \"experts\": 4096"),
              "m.json:6: transformer.experts make more than 120000 tensors.");
    EXPECT_EQ(refused("\"checkpoints\": \"host\"", "\"activations\": \"host\""),
              "m.json:9: placement.activations have no home if they are recomputed; write "
              "\"recompute\": false.");
    const std::string layers = with(text_of("models/layers.json"), "\"name\": \"embedding\"",
                                    "\"frozen\": true, \"name\": \"embedding\"");
    EXPECT_THAT(layers, HasSubstr("frozen"));
}

// A path of 6 and 3 GB/s reads and writes a byte in 1/6 + 1/3 = 1/2 ns, one of 2 and 2 GB/s in 1.
TEST(SimulateFiles, StoragePathsHaveBlocksByTheirSpeed)
{
    const auto machine = [](const std::string &shares, const std::string &path) {
        const std::string link = R"("latency": "1 us", "per": "node", )";
        const std::string links = R"("links": [
            {"name": "a", "route": "nvme>host", "bandwidth": "6 GB/s", "path": 1, )" +
                                  link +
                                  R"("source": "x"},
            {"name": "b", "route": "host>nvme", "bandwidth": "3 GB/s", "path": 1, "per": "node"},
            {"name": "c", "route": "nvme<>host", "bandwidth": "2 GB/s", "path": )" +
                                  path +
                                  R"(, "per": "node"},
            {"name": "d", "route": "host<>device", "bandwidth": "9 GB/s", "per": "gpu"}]})";
        const std::string text = text_of("machines/workstation-24gb.json");
        return parse_machine(parse_located(with(text.substr(0, text.find("\"links\"")) + links,
                                                "\"4 TB\"", "\"4 TB\"" + shares),
                                           "m.json"),
                             "m.json");
    };
    EXPECT_THAT(machine("", "2").path_shares,
                testing::ElementsAre(testing::DoubleEq(2.0 / 3), testing::DoubleEq(1.0 / 3)));
    EXPECT_DOUBLE_EQ(machine("", "2").bytes_per_s(simulate::Route::kNvmeToHost), 6e9);
    EXPECT_DOUBLE_EQ(machine("", "2").bytes_per_s(simulate::Route::kHostToNvme), 4.5e9);
    EXPECT_THAT(machine(", \"shares\": \"equal\"", "2").path_shares,
                testing::ElementsAre(0.5, 0.5));
    EXPECT_THAT(refusal([&] { machine("", "3"); }),
                HasSubstr("links have no nvme>host of path 2, of 3."));
    const std::string up = "\"route\": \"host>device\"";
    EXPECT_THAT(machine_refusal(up, "\"path\": 1, " + up),
                HasSubstr("links[1].path is of nvme, and the route is not."));
}

TEST(SimulateFiles, HostMemoryMayBeShared)
{
    const std::string text = text_of("machines/workstation-24gb.json");
    const auto shares = [&](const std::string &key) {
        const std::string changed = with(text, "\"128 GB\"", "\"128 GB\"" + key);
        return parse_machine(parse_located(changed, "m.json"), "m.json").shares_host_memory;
    };
    EXPECT_FALSE(shares(""));
    EXPECT_TRUE(shares(", \"shared_bandwidth\": true"));
    EXPECT_THAT(refusal([&] { shares(", \"shared_bandwidth\": 3"); }),
                HasSubstr("host.shared_bandwidth is a number, not true or false."));
}

TEST(SimulateFiles, WhatIsNoJsonIsToldWithItsLine)
{
    EXPECT_THAT(model_refusal("\"model_parallel\": 4,", "\"model_parallel\": 4"),
                StartsWith("m.json:9: is no JSON: "));
    EXPECT_THAT(model_refusal("\"model_parallel\": 4,", "\"model_parallel\": ,"),
                StartsWith("m.json:8: is no JSON: "));
    EXPECT_EQ(model_refusal("\"model_parallel\": 4", "\"model_parallel\": 1e400"),
              "m.json:8: is no JSON: number overflow parsing '1e400'.");
    EXPECT_EQ(refusal([] { parse_located("[]", "m.json"); }),
              "m.json:1: is a list, not an object of keys.");
    EXPECT_EQ(refusal([] { read_located("/nowhere/at/all.json"); }),
              "The file '/nowhere/at/all.json' cannot be read: No such file or directory.");
    EXPECT_EQ(refusal([] { parse_located(std::string("{}\n\0", 4), "m.json"); }),
              "m.json:2: is no JSON: a byte of it is zero.");
    EXPECT_THAT(refusal([] { parse_located(std::string(40, '['), "m.json"); }),
                HasSubstr("nested deeper"));
}

TEST(SimulateFiles, ALayerListSharesItsWorkByParameters)
{
    const simulate::Model model = read_model(TEST_DATA "/models/layers.json");
    ASSERT_EQ(model.layers.size(), 2u);
    EXPECT_EQ(model.layers[1].count, 24u);
    EXPECT_EQ(model.layers[1].parts[1].parameters, 33'500'000u);
    EXPECT_NEAR(model.layers[1].parts[0].forward_flops + model.layers[1].parts[1].forward_flops,
                1.7e12, 1);
    EXPECT_EQ(model.working_bytes, 800'000'000u);
    EXPECT_EQ(model.layers[0].activation_bytes, 100'000'000u);
    EXPECT_EQ(model.layers[1].activation_bytes, 800'000'000u)
        << "as much as is computed in at once";
}

TEST(SimulateFiles, OnlyTheModelsOfThePaperStoreScores)
{
    EXPECT_TRUE(read_model(TEST_DATA "/models/paper-20t.json").transformer.stores_scores);
    EXPECT_TRUE(read_model(TEST_DATA "/models/paper-8b-2.json").transformer.stores_scores);
    EXPECT_FALSE(read_model(TEST_DATA "/models/gpt-175b.json").transformer.stores_scores);
}

TEST(SimulateFiles, WhatWouldOverflowIsRefused)
{
    EXPECT_EQ(model_refusal("\"hidden\": 65536", "\"hidden\": 16777216"),
              "m.json:6: transformer.hidden makes more than 1e16 parameters.");
    EXPECT_EQ(model_refusal("\"batch_per_gpu\": 2", "\"batch_per_gpu\": 1e6, \"source\": \"x\""),
              "taken");
    EXPECT_EQ(model_refusal("\"sequence\": 1024, \"batch_per_gpu\": 2",
                            "\"sequence\": 60000000, \"batch_per_gpu\": 1e6"),
              "m.json:6: transformer.batch_per_gpu makes more than 1e17 bytes of activations.");
}

// Every byte of a file in turn is another: it is taken or refused with its name, and nothing else.
TEST(SimulateFiles, AnyBrokenByteIsTakenOrRefused)
{
    const std::string machine = text_of("machines/dgx-2-v100.json");
    const std::string model = text_of("models/layers.json");
    size_t refused = 0;
    for (const char other : {'"', '{', '}', ',', '9', '-', '\n', '\0', '\xff'}) {
        for (const bool is_model : {false, true}) {
            const std::string &whole = is_model ? model : machine;
            for (size_t at = 0; at < whole.size(); ++at) {
                std::string text = whole;
                text[at] = other;
                const std::string why = refusal([&] {
                    const Located root = parse_located(text, "m.json");
                    if (is_model)
                        parse_model(root, "m.json");
                    else
                        parse_machine(root, "m.json");
                });
                if (why == "taken") continue;
                ++refused;
                ASSERT_THAT(why, StartsWith("m.json:")) << at;
                ASSERT_THAT(why, testing::EndsWith(".")) << at;
            }
        }
    }
    EXPECT_GT(refused, 10'000u);
}

}  // namespace
}  // namespace stepwell::cli
