// SPDX-License-Identifier: Apache-2.0
// Another machine: a folder with the files of its /proc and /sys, gone when this is.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

namespace stepwell::cli {

class Machine {
public:
    Machine()
    {
        std::string name = (std::filesystem::temp_directory_path() / "stepwell-cli-XXXXXX");
        if (mkdtemp(name.data()) != nullptr) root_ = name;
    }
    Machine(const Machine &) = delete;
    Machine &operator=(const Machine &) = delete;
    ~Machine()
    {
        std::error_code ignored;
        if (!root_.empty()) std::filesystem::remove_all(root_, ignored);
    }

    void file(const std::string &path, const std::string &text) const
    {
        std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
        std::ofstream(root_ + path) << text;
    }
    void link(const std::string &path, const std::string &target) const
    {
        std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
        std::filesystem::create_symlink(target, root_ + path);
    }
    const std::string &root() const { return root_; }

private:
    std::string root_;
};

}  // namespace stepwell::cli
