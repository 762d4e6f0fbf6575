// SPDX-License-Identifier: Apache-2.0
// A file of a test's own, read back by another JSON parser.
#pragma once

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace stepwell::report {

class WrittenFile {
public:
    WrittenFile()
    {
        std::string pattern = std::filesystem::temp_directory_path() / "stepwell-report-XXXXXX";
        EXPECT_NE(mkdtemp(pattern.data()), nullptr);
        directory_ = pattern;
        path_ = directory_ / "file.json";
    }
    ~WrittenFile() { std::filesystem::remove_all(directory_); }
    WrittenFile(const WrittenFile &) = delete;
    WrittenFile &operator=(const WrittenFile &) = delete;

    [[nodiscard]] const char *path() const { return path_.c_str(); }
    [[nodiscard]] nlohmann::json parsed() const
    {
        std::ifstream in(path_);
        return nlohmann::json::parse(in, nullptr, false);
    }

private:
    std::filesystem::path directory_;
    std::string path_;
};

}  // namespace stepwell::report
