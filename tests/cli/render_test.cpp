// SPDX-License-Identifier: Apache-2.0
// The same Info as text and as JSON.
#include "info.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace stepwell::cli {
namespace {

using testing::HasSubstr;

Info small_info()
{
    Info info;
    info.version = "1.2.3";
    info.abi = 4;
    info.page_bytes = 4096;
    info.system.processor = "Some CPU";
    info.topology.type = "machine";
    info.topology.cores = info.topology.threads = 2;
    info.topology.children.push_back({"numa_node", "0", 0, 0, 0, 1 << 30, {}});
    info.drivers = {{"cpu", "memory", "device tier", true, "", true},
                    {"aio", "storage", "nvme tier", std::nullopt, "not tried", std::nullopt},
                    {"cpu-discrete", "memory", "device tier", true, "", false},
                    {"cuda", "memory", "device tier", true, "", false}};
    info.limits = {
        {"swap", "swap", {{"total_bytes", 5}}, "5 bytes", "none", true, "swapoff -a", true}};
    DirectoryInfo gone;
    gone.directory.path = "/no\nwhere";
    gone.directory.error = "'/no?where' does not exist.";
    gone.directory.remedy = "mkdir -p '/no\nwhere'";
    info.directories.push_back(gone);
    return info;
}

TEST(Render, TextHasALinePerValueAndTheRemedyBelow)
{
    const std::string text = info_text(small_info());
    EXPECT_THAT(text, HasSubstr("stepwell 1.2.3, ABI 4\n"));
    EXPECT_THAT(text, HasSubstr("  warn  swap             5 bytes; needed: none\n"
                                "          as root: swapoff -a\n"));
    EXPECT_THAT(text, HasSubstr("  numa node 0: 1 GiB\n"));
    EXPECT_THAT(text, HasSubstr("unified memory"));
    const std::string own = "device tier; memory of its own: bytes pass through the host tier";
    EXPECT_THAT(text, HasSubstr("  ok    cpu-discrete     " + own + "\n"));
    EXPECT_THAT(text,
                HasSubstr("  ok    cuda             " + own + ", GPUDirect Storage is not used\n"));
    EXPECT_THAT(text, HasSubstr("  error '/no?where' does not exist.\n"));
    EXPECT_THAT(text, HasSubstr("\n1 warning, 1 error\n"));
}

TEST(Render, JsonHasTheSameInAFixedOrder)
{
    const Info info = small_info();
    EXPECT_EQ(info_json(info), info_json(info));
    const Json json = Json::parse(info_json(info));
    std::vector<std::string> keys;
    for (const auto &[key, value] : json.items()) keys.push_back(key);
    EXPECT_EQ(keys, (std::vector<std::string>{"format", "version", "abi", "machine", "topology",
                                              "drivers", "limits", "paths", "warnings", "errors"}));
    EXPECT_EQ(json["drivers"][0]["unified_memory"], true);
    EXPECT_TRUE(json["drivers"][1]["works"].is_null());
    EXPECT_EQ(json["limits"][0]["verdict"], "warn");
    EXPECT_EQ(json["limits"][0]["facts"]["total_bytes"], 5);
    EXPECT_EQ(json["limits"][0]["remedy"], "swapoff -a");
    EXPECT_EQ(json["limits"][0]["remedy_as_root"], true);
    EXPECT_EQ(json["topology"]["children"][0]["memory_bytes"], 1 << 30);
    EXPECT_EQ(json["paths"][0]["path"], "/no\nwhere");
    EXPECT_EQ(json["errors"].size(), 1u);
}

TEST(Render, ADeviceAcrossABusHasItsNodeAndWhatRegisteringTakes)
{
    Info info = small_info();
    EXPECT_TRUE(Json::parse(info_json(info))["drivers"][0]["register_ns_per_gib"].is_null());
    info.drivers[0].numa_node = 1;
    info.drivers[0].register_ns_per_gib = 123'456'789;
    EXPECT_THAT(info_text(info), HasSubstr("near NUMA node 1\n"));
    EXPECT_THAT(info_text(info), HasSubstr("registering host memory takes 123 ms per GiB\n"));
    const Json driver = Json::parse(info_json(info))["drivers"][0];
    EXPECT_EQ(driver["numa_node"], 1);
    EXPECT_EQ(driver["register_ns_per_gib"], 123'456'789);
}

TEST(Render, ANameThatIsNotUtf8DoesNotBreakJson)
{
    Info info = small_info();
    info.directories[0].directory.path = "/\xff";
    EXPECT_EQ(Json::parse(info_json(info))["paths"][0]["path"], "/\xef\xbf\xbd");
}

}  // namespace
}  // namespace stepwell::cli
