// SPDX-License-Identifier: Apache-2.0
#include "report_file.h"

#include "signals.h"
#include "text.h"

#include <cstdlib>
#include <filesystem>

namespace stepwell::cli {

namespace {

// A directory of our own for a report, gone when this is.
class Scratch {
public:
    Scratch()
    {
        std::error_code error;
        std::string name = (std::filesystem::temp_directory_path(error) / "stepwell-XXXXXX");
        for (std::string place : {name, std::string("/dev/shm/stepwell-XXXXXX")}) {
            if (mkdtemp(place.data()) == nullptr) continue;
            path_ = place;
            return;
        }
    }
    Scratch(const Scratch &) = delete;
    Scratch &operator=(const Scratch &) = delete;
    ~Scratch()
    {
        std::error_code ignored;
        if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
    }
    // "" where no directory can be made.
    std::string file() const { return path_.empty() ? "" : path_ + "/report.json"; }

private:
    const SignalsHeld signals_;
    std::string path_;
};

}  // namespace

std::string read_report(stw_runtime *runtime, std::string *error_out)
{
    const Scratch scratch;
    const std::string file = scratch.file();
    if (file.empty()) {
        *error_out = "No directory for a report can be made; set TMPDIR to one that can be "
                     "written.";
        return "";
    }
    if (stw_report_write(runtime, file.c_str()) < 0) {
        *error_out = stw_last_error();
        return "";
    }
    return read_text(file);
}

}  // namespace stepwell::cli
