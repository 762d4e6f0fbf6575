// SPDX-License-Identifier: Apache-2.0
// What the conformance tests share: a directory on a real file system, aligned memory, services
// that record, and the one way to open, drive and close a driver. The suite of all drivers is that
// of StorageCase and MemoryCase; whoever links it says which these are: built_in.cpp in our tests,
// driver_conformance.cpp in the program that authors of drivers run.
#pragma once

#include <stepwell/driver.h>

#include "drivers/registry.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

namespace conformance {

constexpr uint64_t kSecond = 1'000'000'000;
constexpr uint64_t kPatience = 30 * kSecond;  // longer than any healthy wait
constexpr uint64_t kMiB = 1 << 20;

// A directory made under `base`, or under STW_TEST_DIR or the working directory; removed when it
// goes.
class Directory {
public:
    explicit Directory(const std::string &base = "");
    ~Directory();
    const std::string &path() const { return path_; }
    size_t entries() const;

private:
    std::string path_;
};

// Page-aligned memory, so that it suits every driver.
class Buffer {
public:
    explicit Buffer(uint64_t bytes);
    ~Buffer() { std::free(data_); }
    Buffer(const Buffer &) = delete;
    Buffer &operator=(const Buffer &) = delete;
    uint8_t *data() const { return data_; }
    uint64_t bytes() const { return bytes_; }
    void fill(uint64_t seed);  // a pattern that differs at every place and for every seed
    bool holds(uint64_t seed) const;

private:
    uint8_t *data_;
    uint64_t bytes_;
};
void fill_pattern(uint8_t *data, uint64_t bytes, uint64_t seed);
bool has_pattern(const uint8_t *data, uint64_t bytes, uint64_t seed);

// A clock that stands still until it is told, or the real one; and every line that was logged.
class Recorder {
public:
    Recorder();
    const stw_services *services() const { return &services_; }
    void use_virtual_clock() { virtual_ = true; }
    void advance(uint64_t by_ns) { now_ns_ += by_ns; }
    std::vector<std::string> lines() const;

private:
    static uint64_t now(void *user);
    static void log(void *user, uint32_t level, const char *topic, const char *line);

    stw_services services_ = {};
    std::atomic<bool> virtual_{false};
    std::atomic<uint64_t> now_ns_{1};
    mutable std::mutex mutex_;
    std::vector<std::string> lines_;
};

// A driver to put through the suite, with options for its open and a place for its files.
struct StorageCase {
    std::string label;  // a part of the tests' names: letters, digits, '_'
    const stw_storage_ops *ops;
    std::string options;
    std::string directory;  // "": see Directory
};
inline std::ostream &operator<<(std::ostream &out, const StorageCase &one)
{
    return out << one.ops->name << " with '" << one.options << "' in '" << one.directory << "'";
}
struct MemoryCase {
    std::string label;
    const stw_memory_ops *ops;
    std::string options = {};
    bool elsewhere = false;  // not the RAM of this machine, though the CPU reaches it
};
inline std::ostream &operator<<(std::ostream &out, const MemoryCase &one)
{
    return out << one.ops->name << " with '" << one.options << "'";
}
// Asked for once, when the tests are registered.
std::vector<StorageCase> storage_cases();
std::vector<MemoryCase> memory_cases();

// An open storage driver. Closes at the end, and expects that to work.
class Storage {
public:
    Storage(const stw_storage_ops *ops, const std::string &options) : options_(options), ops_(ops)
    {
    }
    Storage(const char *driver, const std::string &options)
        : Storage(stepwell::drivers::storage_driver(driver), options)
    {
    }
    ~Storage() { close(); }
    Storage(const Storage &) = delete;
    Storage &operator=(const Storage &) = delete;

    stw_status open(const std::string &path, uint64_t bytes, uint32_t queue_depth,
                    const char *name = nullptr, uint32_t name_access = 0);
    void close();
    stw_status try_close(uint64_t wait_ns);

    // One request, alone, to its end: its result.
    int64_t run(uint32_t kind, void *data, uint64_t offset_bytes, uint64_t bytes);
    stw_status submit(const stw_io &io);
    std::vector<stw_io_done> collect(size_t n);

    const stw_storage_ops *ops() const { return ops_; }
    stw_storage *get() const { return storage_; }
    const stw_storage_info &info() const { return info_; }
    const stw_driver_error &error() const { return error_; }
    std::string sentence() const { return error_.sentence; }
    Recorder &recorder() { return recorder_; }
    uint64_t unit() const;  // a request size that suits the driver

private:
    std::string options_;
    const stw_storage_ops *ops_;
    stw_storage *storage_ = nullptr;
    stw_storage_info info_ = {};
    stw_driver_error error_ = STW_DRIVER_ERROR_INIT;
    Recorder recorder_;
};

// The suite of every storage driver.
class StorageConformance : public testing::TestWithParam<StorageCase> {
protected:
    Directory directory_{GetParam().directory};
    Storage storage_{GetParam().ops, GetParam().options};

    // Throws where it does not open: the test has failed, and its body has nothing to call.
    void open(uint64_t bytes = 4 * kMiB, uint32_t queue_depth = 8)
    {
        const stw_status status = storage_.open(directory_.path(), bytes, queue_depth);
        if (status != STW_OK)
            throw std::runtime_error(std::string("open: ") + stw_status_string(status) + ": " +
                                     storage_.sentence());
    }
    const stw_storage_ops &ops() { return *storage_.ops(); }
    bool in_memory() { return (ops().capabilities & STW_STORAGE_IN_MEMORY) != 0; }
};
constexpr const char *kNoDirectory = "this driver keeps its bytes in memory, not in a directory";

// An open memory driver.
class Memory {
public:
    explicit Memory(const stw_memory_ops *ops) : ops_(ops) {}
    explicit Memory(const MemoryCase &one) : ops_(one.ops), options_(one.options) {}
    explicit Memory(const char *driver) : Memory(stepwell::drivers::memory_driver(driver)) {}
    ~Memory() { close(); }
    Memory(const Memory &) = delete;
    Memory &operator=(const Memory &) = delete;

    stw_status open(uint64_t bytes, uint32_t block_bytes, uint64_t address_bytes,
                    int32_t ordinal = 0);
    void close();
    uint8_t *block(uint32_t index) const;

    const stw_memory_ops *ops() const { return ops_; }
    stw_memory *get() const { return memory_; }
    const stw_memory_info &info() const { return info_; }
    const stw_driver_error &error() const { return error_; }
    std::string sentence() const { return error_.sentence; }
    uint32_t block_bytes() const { return block_bytes_; }
    // Of STW_MEMORY_HOST_ACCESS, also where the driver says so of its first device.
    bool can(uint64_t capability) const;

private:
    const stw_memory_ops *ops_;
    const std::string options_;
    stw_memory *memory_ = nullptr;
    stw_memory_info info_ = {};
    stw_driver_error error_ = STW_DRIVER_ERROR_INIT;
    uint32_t block_bytes_ = 0;
};

// Runs `body` in a child and gives its wait status; the body's value is the exit code.
template <class Body> int in_child(Body &&body);

}  // namespace conformance

#include <sys/wait.h>
#include <unistd.h>

template <class Body> int conformance::in_child(Body &&body)
{
    const pid_t child = fork();
    if (child == 0) _exit(body());
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    return status;
}
