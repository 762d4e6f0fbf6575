// SPDX-License-Identifier: Apache-2.0
// stepwell-driver-conformance: the suite that the built-in drivers pass, run against a module. It
// loads the module as the library would, with the same checks, and knows nothing else of it.
#include "tests/conformance/support.h"

#include <algorithm>
#include <cstdio>
#include <filesystem>

#include <getopt.h>

namespace conformance {
namespace {

constexpr int kFailed = 1;   // a test
constexpr int kRefused = 2;  // the command line, a directory or the module

constexpr const char *kUsage = R"(usage: stepwell-driver-conformance [OPTION]... MODULE

Load MODULE, a shared library with drivers for Stepwell, and put each of its drivers through the
suite that the built-in ones pass. Every test is printed; a test that cannot say anything of this
driver or on this machine is skipped, with the reason.

  -d, --directory DIR   where a storage driver makes its files; again for each DIR, on which the
                        suite is run anew (default: the working directory). Nothing is left there
  -o, --options TEXT    what a storage driver is opened with, "key=value;key=value"
  -m, --memory-options TEXT
                        what a memory driver is opened with
  -e, --memory-elsewhere
                        its memory is not this machine's RAM: the test of what is more than
                        there is asks it for 1 PiB, not for 8 GiB more than is available
  -f, --filter PATTERN  only the tests whose names match: names with * and ?, separated by ':',
                        after a '-' those to leave out
  -l, --list            name the tests and run none
  -h, --help            this text
      --version         the version of the library that the suite belongs to

Exit status: 0 all tests passed, 1 a test failed, 2 the module was refused, or the command line.
)";

struct Arguments {
    std::string module;
    std::string options;
    std::string memory_options;
    std::vector<std::string> directories;
    std::string filter = "*";
    bool memory_elsewhere = false;
    bool list = false;
};

struct Drivers {
    const stw_storage_ops *storage = nullptr;
    const stw_memory_ops *memory = nullptr;
};

Arguments arguments;
Drivers drivers;

[[noreturn]] void refuse(const std::string &sentence)
{
    std::fprintf(stderr, "stepwell-driver-conformance: %s\n", sentence.c_str());
    std::exit(kRefused);
}

void read_arguments(int count, char **words)
{
    constexpr int kVersion = 1000;
    const option known[] = {{"directory", required_argument, nullptr, 'd'},
                            {"options", required_argument, nullptr, 'o'},
                            {"memory-options", required_argument, nullptr, 'm'},
                            {"memory-elsewhere", no_argument, nullptr, 'e'},
                            {"filter", required_argument, nullptr, 'f'},
                            {"list", no_argument, nullptr, 'l'},
                            {"help", no_argument, nullptr, 'h'},
                            {"version", no_argument, nullptr, kVersion},
                            {nullptr, 0, nullptr, 0}};
    for (int c; (c = getopt_long(count, words, "d:o:m:ef:lh", known, nullptr)) != -1;) {
        switch (c) {
        case 'd': arguments.directories.emplace_back(optarg); break;
        case 'o': arguments.options = optarg; break;
        case 'm': arguments.memory_options = optarg; break;
        case 'e': arguments.memory_elsewhere = true; break;
        case 'f': arguments.filter = optarg; break;
        case 'l': arguments.list = true; break;
        case 'h': std::fputs(kUsage, stdout); std::exit(0);
        case kVersion:
            std::printf("stepwell-driver-conformance %s\n", stw_version_string());
            std::exit(0);
        default: refuse("Its options are told by --help.");
        }
    }
    if (optind + 1 != count) refuse("It takes one MODULE, the path of a .so file; see --help.");
    arguments.module = words[optind];
}

// The library takes absolute paths alone; here the path is the user's own, from the shell.
void find_module()
{
    std::error_code error;
    const std::filesystem::path whole = std::filesystem::absolute(arguments.module, error);
    const std::string path = whole.lexically_normal();
    stw_driver_error why = STW_DRIVER_ERROR_INIT;
    const stw_status storage = stepwell::drivers::find_driver(path.c_str(), &drivers.storage, &why);
    const std::string first = why.sentence;
    const stw_status memory = stepwell::drivers::find_driver(path.c_str(), &drivers.memory, &why);
    if (storage == STW_OK || memory == STW_OK) return;
    const stw_collective_ops *collective = nullptr;
    if (stepwell::drivers::find_driver(path.c_str(), &collective, nullptr) == STW_OK)
        refuse("'" + path + "' has a collective driver alone, and this suite is for storage and " +
               "memory; a group needs several ranks.");
    refuse(storage == memory ? first : first + " " + why.sentence);
}

void check_directories()
{
    if (arguments.directories.empty()) arguments.directories.emplace_back(".");
    for (std::string &directory : arguments.directories) {
        std::error_code error;
        const std::filesystem::path whole = std::filesystem::canonical(directory, error);
        if (error || !std::filesystem::is_directory(whole))
            refuse("'" + directory + "' is not a directory; give one that exists.");
        directory = whole;
    }
    setenv("STW_TEST_DIR", arguments.directories[0].c_str(), 1);
}

std::string label_of(std::string name)
{
    std::replace(name.begin(), name.end(), '-', '_');
    return name;
}

}  // namespace

std::vector<StorageCase> storage_cases()
{
    std::vector<StorageCase> cases;
    if (drivers.storage == nullptr) return cases;
    for (const std::string &directory : arguments.directories) {
        const std::string nth = arguments.directories.size() > 1
                                    ? "_in_" + std::to_string(cases.size() + 1)
                                    : std::string();
        cases.push_back(
            {label_of(drivers.storage->name) + nth, drivers.storage, arguments.options, directory});
    }
    return cases;
}

std::vector<MemoryCase> memory_cases()
{
    if (drivers.memory == nullptr) return {};
    return {{label_of(drivers.memory->name), drivers.memory, arguments.memory_options,
             arguments.memory_elsewhere}};
}

}  // namespace conformance

int main(int count, char **words)
{
    using namespace conformance;
    read_arguments(count, words);
    find_module();
    check_directories();
    int none = 1;
    testing::InitGoogleTest(&none, words);
    GTEST_FLAG_SET(filter, arguments.filter);
    GTEST_FLAG_SET(list_tests, arguments.list);
    const int result = RUN_ALL_TESTS();
    const auto &unit = *testing::UnitTest::GetInstance();
    if (!arguments.list && unit.test_to_run_count() == 0)
        refuse("No test has a name that matches '" + arguments.filter + "'; --list names them.");
    return result == 0 ? 0 : kFailed;
}
