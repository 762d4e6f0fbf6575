// SPDX-License-Identifier: Apache-2.0
// Modules: which are loaded, which are refused and how, and that nothing is left of those.
#include "tests/conformance/support.h"

#include <filesystem>
#include <fstream>
#include <sstream>

#include <fcntl.h>
#include <sys/stat.h>

namespace conformance {
namespace {

using stepwell::drivers::find_driver;

constexpr uid_t kNobody = 65534;

// A directory that may be trusted, below /tmp, with copies of modules that the build made.
class Modules : public testing::Test {
protected:
    std::string directory_ = "/tmp/stepwell-modules-XXXXXX";
    stw_driver_error error_ = STW_DRIVER_ERROR_INIT;
    const stw_storage_ops *ops_ = nullptr;

    void SetUp() override
    {
        ASSERT_NE(mkdtemp(directory_.data()), nullptr);
        directory_ = std::filesystem::canonical(directory_);
        if (find_driver((directory_ + "/none.so").c_str(), &ops_, &error_) == STW_ERROR_PERMISSION)
            GTEST_SKIP() << "no module below /tmp is safe here: " << error_.sentence;
    }
    void TearDown() override
    {
        EXPECT_FALSE(is_mapped(directory_)) << "a module that was refused is still mapped";
        std::filesystem::remove_all(directory_);
    }
    // The module `name` of the build as libstepwell-<as>.so; its path.
    std::string copy(const std::string &name, const std::string &as)
    {
        const std::string path = directory_ + "/libstepwell-" + as + ".so";
        std::filesystem::copy_file(std::string(TEST_MODULES) + "/libstepwell-" + name + ".so",
                                   path);
        EXPECT_EQ(chmod(path.c_str(), 0644), 0);
        return path;
    }
    std::string copy(const std::string &name) { return copy(name, name); }
    stw_status find(const std::string &name)
    {
        error_ = STW_DRIVER_ERROR_INIT;
        return find_driver(name.c_str(), &ops_, &error_, directory_.c_str());
    }
    static bool is_mapped(const std::string &path)
    {
        std::ifstream maps("/proc/self/maps");
        for (std::string line; std::getline(maps, line);)
            if (line.find(path) != std::string::npos) return true;
        return false;
    }
    static size_t descriptors()
    {
        const std::filesystem::directory_iterator open("/proc/self/fd");
        return static_cast<size_t>(std::distance(begin(open), end(open)));
    }
    // Refused with this status and each of these words, and nothing is left of it.
    void refuses(const std::string &name, stw_status status, const std::vector<std::string> &words)
    {
        const size_t open = descriptors();
        ops_ = nullptr;
        EXPECT_EQ(find(name), status) << error_.sentence;
        for (const std::string &word : words)
            EXPECT_NE(std::string(error_.sentence).find(word), std::string::npos)
                << "'" << word << "' is not in: " << error_.sentence;
        EXPECT_EQ(ops_, nullptr);
        EXPECT_EQ(descriptors(), open);
        EXPECT_FALSE(is_mapped(directory_)) << name;
    }
};

// What is loaded stays, so it is loaded by a process of its own.
template <class Body> int in_process(Body &&body)
{
    const int status = in_child(body);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

TEST_F(Modules, AreFoundByNameAndByAbsolutePathOnce)
{
    const std::string path = copy("ram");
    EXPECT_EQ(in_process([&] {
                  const size_t open = descriptors();
                  const stw_memory_ops *memory = nullptr;
                  if (find("ram") != STW_OK || std::string(ops_->name) != "ram") return 1;
                  const stw_storage_ops *first = ops_;
                  if (find(path) != STW_OK || ops_ != first) return 2;
                  if (find_driver(path.c_str(), &memory, nullptr) != STW_OK) return 3;
                  if (std::string(memory->name) != "ram") return 4;
                  if (!is_mapped(path)) return 5;
                  return descriptors() == open ? 0 : 6;
              }),
              0);
}

TEST_F(Modules, AFileWithoutItsDriversNameIsFoundByItsPathAlone)
{
    const std::string path = copy("ram", "other");
    refuses("other", STW_ERROR_INVALID, {path, "calls its driver 'ram'"});
    EXPECT_EQ(in_process([&] { return find(path) == STW_OK ? 0 : 1; }), 0);
}

TEST_F(Modules, ABuiltInDriverIsNotShadowed)
{
    const std::string path = copy("shadow", "posix");
    ASSERT_EQ(find("posix"), STW_OK);
    EXPECT_EQ(ops_, stepwell::drivers::storage_driver("posix"));
    refuses(path, STW_ERROR_INVALID, {path, "'posix', which is one that is built in"});
}

TEST_F(Modules, OnlyTheModuleDirectoryAndAbsolutePathsAreLookedAt)
{
    copy("ram");
    setenv("LD_LIBRARY_PATH", directory_.c_str(), 1);
    const std::filesystem::path before = std::filesystem::current_path();
    std::filesystem::current_path(directory_);
    refuses("./libstepwell-ram.so", STW_ERROR_INVALID, {"'./libstepwell-ram.so'", "absolute path"});
    refuses("tmp/../libstepwell-ram.so", STW_ERROR_INVALID, {"absolute path"});
    refuses("libstepwell-ram.so", STW_ERROR_UNSUPPORTED, {"'libstepwell-ram.so'"});
    ops_ = nullptr;
    EXPECT_EQ(find_driver("ram", &ops_, &error_), STW_ERROR_UNSUPPORTED);
    EXPECT_NE(std::string(error_.sentence).find("/stepwell/libstepwell-ram.so'"), std::string::npos)
        << error_.sentence;
    std::filesystem::current_path(before);
    unsetenv("LD_LIBRARY_PATH");
}

TEST_F(Modules, AnUnknownNameIsToldWhatThereIs)
{
    refuses(
        "tape", STW_ERROR_UNSUPPORTED,
        {"no storage driver 'tape'", directory_ + "/libstepwell-tape.so", "\"aio\", \"posix\""});
    refuses("", STW_ERROR_UNSUPPORTED, {"no storage driver ''"});
    refuses("..", STW_ERROR_UNSUPPORTED, {"no storage driver '..'"});
    const stw_memory_ops *memory = nullptr;
    EXPECT_EQ(find_driver("tape", &memory, &error_), STW_ERROR_UNSUPPORTED);
    EXPECT_NE(std::string(error_.sentence).find("\"cpu-discrete\""), std::string::npos);
}

TEST_F(Modules, AMissingFileIsNotFound)
{
    const std::string path = directory_ + "/missing.so";
    refuses(path, STW_ERROR_NOT_FOUND, {path, "is not there"});
    EXPECT_EQ(error_.os_errno, ENOENT);
    refuses(directory_ + "/no/way/missing.so", STW_ERROR_NOT_FOUND, {directory_ + "/no'"});
}

TEST_F(Modules, WhatOthersMayWriteIsNotLoaded)
{
    const std::string path = copy("ram");
    for (const mode_t mode : {0646, 0664, 0666}) {
        ASSERT_EQ(chmod(path.c_str(), mode), 0);
        char octal[8];
        std::snprintf(octal, sizeof octal, "%04o", mode);
        refuses(path, STW_ERROR_PERMISSION,
                {path, "user " + std::to_string(geteuid()), std::string("mode ") + octal,
                 "chmod go-w '" + path + "'"});
        refuses("ram", STW_ERROR_PERMISSION, {path});
    }
}

TEST_F(Modules, WhatLiesWhereOthersMayWriteIsNotLoaded)
{
    const std::string inner = directory_ + "/inner";
    ASSERT_TRUE(std::filesystem::create_directory(inner));
    const std::string path = inner + "/libstepwell-ram.so";
    std::filesystem::rename(copy("ram"), path);
    for (const mode_t mode : {0757, 0775}) {
        ASSERT_EQ(chmod(inner.c_str(), mode), 0);
        refuses(path, STW_ERROR_PERMISSION,
                {path, "the directory '" + inner + "'", "chmod go-w '" + inner + "'"});
    }
    ASSERT_EQ(chmod(inner.c_str(), 0755), 0);
    ASSERT_EQ(chmod(directory_.c_str(), 0777), 0);  // further up
    refuses(path, STW_ERROR_PERMISSION, {"chmod go-w '" + directory_ + "'"});
    ASSERT_EQ(chmod(directory_.c_str(), 01777), 0);  // entries of a sticky one are their owners'
    EXPECT_EQ(in_process([&] { return find(path) == STW_OK ? 0 : 1; }), 0);
}

TEST_F(Modules, WhatBelongsToAnotherUserIsNotLoaded)
{
    const std::string path = copy("ram");
    if (chown(path.c_str(), kNobody, kNobody) != 0) GTEST_SKIP() << "only root can give files away";
    refuses(path, STW_ERROR_PERMISSION,
            {path, "belongs to user 65534", "chown root '" + path + "'"});
    ASSERT_EQ(chown(path.c_str(), geteuid(), getegid()), 0);
    ASSERT_EQ(chown(directory_.c_str(), kNobody, kNobody), 0);
    refuses(path, STW_ERROR_PERMISSION,
            {"the directory '" + directory_ + "' belongs to user 65534"});
}

// The user's own module is that user's to load; root's is everybody's.
TEST_F(Modules, TheEffectiveUserIsTrusted)
{
    const std::string path = copy("ram");
    if (geteuid() != 0) GTEST_SKIP() << "only root can be another user";
    ASSERT_EQ(chmod(directory_.c_str(), 0755), 0);
    const auto find_as_nobody = [&] {
        return setgid(kNobody) == 0 && setuid(kNobody) == 0 && find(path) == STW_OK ? 0 : 1;
    };
    EXPECT_EQ(in_process(find_as_nobody), 0);
    ASSERT_EQ(chown(path.c_str(), kNobody, kNobody), 0);
    EXPECT_EQ(in_process(find_as_nobody), 0);
    ASSERT_EQ(chown(path.c_str(), 4711, kNobody), 0);
    EXPECT_EQ(in_process(find_as_nobody), 1);
}

TEST_F(Modules, SymbolicLinksAreNotFollowed)
{
    const std::string path = copy("ram");
    const std::string link = directory_ + "/libstepwell-link.so";
    const std::string folder = directory_ + "/folder";
    ASSERT_EQ(symlink(path.c_str(), link.c_str()), 0);
    ASSERT_EQ(symlink(directory_.c_str(), folder.c_str()), 0);
    refuses(link, STW_ERROR_PERMISSION, {"'" + link + "' is a symbolic link", "'" + path + "'"});
    refuses("link", STW_ERROR_PERMISSION, {"'" + link + "' is a symbolic link"});
    refuses(folder + "/libstepwell-ram.so", STW_ERROR_PERMISSION,
            {"'" + folder + "' is a symbolic link", "'" + path + "'"});
    std::filesystem::remove(path);
    refuses(link, STW_ERROR_PERMISSION, {"It points nowhere"});
}

TEST_F(Modules, OnlyASharedLibraryIsOpened)
{
    const std::string text = directory_ + "/text.so";
    const std::string fifo = directory_ + "/fifo.so";
    std::ofstream(text) << "no library\n";
    ASSERT_EQ(chmod(text.c_str(), 0644), 0);
    ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
    refuses(text, STW_ERROR_INVALID, {text, "not a shared library"});
    refuses(fifo, STW_ERROR_INVALID, {fifo, "not a regular file"});
    refuses(directory_, STW_ERROR_INVALID, {"not a regular file"});
    // A name of dlopen's own, which would be another file.
    refuses(directory_ + "/$LIB/libstepwell-ram.so", STW_ERROR_INVALID, {"the '$' in its path"});
    refuses("/" + std::string(5000, 'x'), STW_ERROR_INVALID, {"5001 bytes is too long"});
}

TEST_F(Modules, AHeadOfALibraryIsNoLibrary)
{
    const std::string path = copy("ram");
    std::filesystem::resize_file(path, 100);
    refuses(path, STW_ERROR_UNSUPPORTED, {path, "does not load here"});
}

TEST_F(Modules, TablesThatDoNotFitAreRefused)
{
    const std::string other = copy("other_abi");
    refuses("other_abi", STW_ERROR_UNSUPPORTED,
            {other, "ABI " + std::to_string(STW_DRIVER_ABI + 1),
             "has " + std::to_string(STW_DRIVER_ABI)});
    refuses(other, STW_ERROR_UNSUPPORTED, {other});
    refuses(copy("no_symbol"), STW_ERROR_INVALID, {"does not export stw_driver_module_get"});
    refuses(copy("incomplete"), STW_ERROR_INVALID, {"'incomplete' lacks an operation"});
    refuses(copy("small_table"), STW_ERROR_INVALID, {"sizeof(stw_driver_module)"});
    refuses(copy("small_driver"), STW_ERROR_INVALID, {"a table of 72 bytes", "at least 80"});
    refuses(copy("no_driver"), STW_ERROR_INVALID, {"neither a storage driver nor a memory or a"});
    refuses(copy("no_table"), STW_ERROR_UNSUPPORTED, {"no driver for this machine"});
}

// Built with the headers of the first release of this ABI: behind its end lie operations that would
// be lies, if anybody read them.
TEST_F(Modules, ATableThatEndsEarlierIsFilledUp)
{
    const std::string path = copy("older");
    EXPECT_EQ(in_process([&] {
                  const stw_memory_ops *memory = nullptr;
                  if (find("older") != STW_OK) return 1;
                  if (find_driver(path.c_str(), &memory, nullptr) != STW_OK) return 2;
                  if (ops_->struct_size != sizeof *ops_ || ops_->close == nullptr) return 3;
                  if (ops_->give_back != nullptr || ops_->take_back != nullptr) return 4;
                  if (memory->close == nullptr || memory->home != nullptr) return 5;
                  if (memory->give_back != nullptr || memory->take_back != nullptr) return 6;
                  const stw_storage_ops *first = ops_;
                  return find(path) == STW_OK && ops_ == first ? 0 : 7;
              }),
              0);
}

// Of a group that this build does not know nobody can call an operation.
TEST_F(Modules, ATableThatGoesOnIsCut)
{
    const std::string path = copy("newer");
    EXPECT_EQ(in_process([&] {
                  const stw_memory_ops *memory = nullptr;
                  if (find("newer") != STW_OK) return 1;
                  if (find_driver(path.c_str(), &memory, nullptr) != STW_OK) return 2;
                  if (ops_->struct_size != sizeof *ops_) return 3;
                  if (ops_->capabilities != STW_STORAGE_IN_MEMORY) return 4;
                  return memory->capabilities == STW_MEMORY_HOST_ACCESS ? 0 : 5;
              }),
              0);
}

TEST_F(Modules, ADriverOfTheOtherKindIsUnsupported)
{
    const std::string path = copy("incomplete");
    const stw_memory_ops *memory = nullptr;
    EXPECT_EQ(find_driver(path.c_str(), &memory, &error_), STW_ERROR_UNSUPPORTED);
    EXPECT_NE(std::string(error_.sentence).find("has no memory driver"), std::string::npos);
    EXPECT_FALSE(is_mapped(directory_));
}

// Its table ends behind `close`, and the library has one in full.
TEST_F(Modules, ACollectiveDriverIsFoundByNameAndIsNoOtherKind)
{
    const std::string path = copy("alone");
    EXPECT_EQ(in_process([&] {
                  const stw_collective_ops *ops = nullptr;
                  const stw_collective_ops *again = nullptr;
                  const char *directory = directory_.c_str();
                  if (find_driver("alone", &ops, nullptr, directory) != STW_OK) return 1;
                  if (find_driver(path.c_str(), &again, nullptr) != STW_OK || ops != again)
                      return 2;
                  if (ops->struct_size != sizeof *ops || ops->close == nullptr) return 3;
                  return ops->split == nullptr && ops->abort == nullptr ? 0 : 4;
              }),
              0);
    refuses("alone", STW_ERROR_UNSUPPORTED, {"has no storage driver"});
}

// Tables of the first releases end before the kind.
TEST_F(Modules, AModuleWithoutACollectiveDriverSaysSo)
{
    for (const char *name : {"ram", "older"}) {
        const std::string path = copy(name);
        const stw_collective_ops *ops = nullptr;
        EXPECT_EQ(find_driver(path.c_str(), &ops, &error_), STW_ERROR_UNSUPPORTED);
        EXPECT_NE(std::string(error_.sentence).find("has no collective driver"), std::string::npos)
            << error_.sentence;
    }
    const stw_collective_ops *ops = nullptr;
    EXPECT_EQ(find_driver("tape", &ops, &error_, directory_.c_str()), STW_ERROR_UNSUPPORTED);
    EXPECT_NE(std::string(error_.sentence).find("no collective driver 'tape'"), std::string::npos);
    EXPECT_NE(std::string(error_.sentence).find("none is built in"), std::string::npos);
}

TEST_F(Modules, AModuleWhoseStackIsAbsentSaysWhatIsMissing)
{
    const std::string path = copy("needs_absent");
    // Of a name that the search path of the tests does not find either.
    const std::string known = "libstepwell_absent.so";
    std::stringstream library;
    library << std::ifstream(path, std::ios::binary).rdbuf();
    std::string bytes = library.str();
    for (size_t at = 0; (at = bytes.find(known, at)) != std::string::npos; ++at)
        bytes.replace(at, known.size(), "libstepwell_nobody.so");
    std::ofstream(path, std::ios::binary) << bytes;
    refuses(path, STW_ERROR_UNSUPPORTED, {path, "libstepwell_nobody.so"});
    refuses("needs_absent", STW_ERROR_UNSUPPORTED, {"libstepwell_nobody.so"});
}

}  // namespace
}  // namespace conformance
