// SPDX-License-Identifier: Apache-2.0
// The tools of the conformance tests.
#include "tests/conformance/support.h"

#include <cstring>
#include <ctime>
#include <filesystem>

namespace conformance {

Directory::Directory(const std::string &base)
{
    const char *given = std::getenv("STW_TEST_DIR");
    std::filesystem::path place = base;
    if (place.empty()) place = given != nullptr ? given : std::filesystem::current_path();
    path_ = (place / "conformance-XXXXXX").string();
    if (mkdtemp(path_.data()) == nullptr) ADD_FAILURE() << "no directory in " << place;
}

Directory::~Directory()
{
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
}

size_t Directory::entries() const
{
    size_t n = 0;
    for ([[maybe_unused]] const auto &entry : std::filesystem::directory_iterator(path_)) ++n;
    return n;
}

Buffer::Buffer(uint64_t bytes) : bytes_(bytes)
{
    constexpr uint64_t kAlignment = 64 << 10;
    const uint64_t whole = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    data_ = static_cast<uint8_t *>(std::aligned_alloc(kAlignment, whole));
    std::memset(data_, 0xa5, whole);
}

void Buffer::fill(uint64_t seed)
{
    fill_pattern(data_, bytes_, seed);
}

bool Buffer::holds(uint64_t seed) const
{
    return has_pattern(data_, bytes_, seed);
}

static uint8_t pattern(uint64_t seed, uint64_t place)
{
    return static_cast<uint8_t>(((place + 1) * 0x9e3779b97f4a7c15 ^ seed * 0xbf58476d1ce4e5b9) >>
                                29);
}

void fill_pattern(uint8_t *data, uint64_t bytes, uint64_t seed)
{
    for (uint64_t i = 0; i < bytes; ++i) data[i] = pattern(seed, i);
}

bool has_pattern(const uint8_t *data, uint64_t bytes, uint64_t seed)
{
    for (uint64_t i = 0; i < bytes; ++i)
        if (data[i] != pattern(seed, i)) return false;
    return true;
}

Recorder::Recorder()
{
    services_ = {sizeof services_, STW_DRIVER_ABI, this, now, log};
}

uint64_t Recorder::now(void *user)
{
    auto *self = static_cast<Recorder *>(user);
    if (self->virtual_) return self->now_ns_;
    timespec time = {};
    clock_gettime(CLOCK_MONOTONIC, &time);
    return static_cast<uint64_t>(time.tv_sec) * kSecond + static_cast<uint64_t>(time.tv_nsec);
}

void Recorder::log(void *user, uint32_t level, const char *topic, const char *line)
{
    auto *self = static_cast<Recorder *>(user);
    const std::lock_guard<std::mutex> lock(self->mutex_);
    self->lines_.push_back(std::to_string(level) + " " + topic + ": " + line);
}

std::vector<std::string> Recorder::lines() const
{
    const std::lock_guard<std::mutex> lock(mutex_);
    return lines_;
}

stw_status Storage::open(const std::string &path, uint64_t bytes, uint32_t queue_depth,
                         const char *name, uint32_t name_access)
{
    stw_storage_options options = {};
    options.struct_size = sizeof options;
    options.queue_depth = queue_depth;
    options.path = path.c_str();
    options.bytes = bytes;
    options.options = options_.c_str();
    options.name = name;
    options.name_access = name_access;
    const stw_status status = ops_->open(recorder_.services(), &options, &storage_, &error_);
    if (status != STW_OK) return status;
    info_.struct_size = sizeof info_;
    ops_->info(storage_, &info_);
    return STW_OK;
}

stw_status Storage::try_close(uint64_t wait_ns)
{
    const stw_status status = ops_->close(storage_, wait_ns);
    if (status == STW_OK) storage_ = nullptr;
    return status;
}

void Storage::close()
{
    if (storage_ == nullptr) return;
    EXPECT_EQ(try_close(kPatience), STW_OK);
    storage_ = nullptr;
}

uint64_t Storage::unit() const
{
    return std::max<uint64_t>(4096, info_.alignment_bytes);
}

stw_status Storage::submit(const stw_io &io)
{
    uint32_t accepted = 0;
    const stw_status status = ops_->submit(storage_, &io, 1, &accepted);
    EXPECT_EQ(accepted, status == STW_OK ? 1u : 0u);
    return status;
}

std::vector<stw_io_done> Storage::collect(size_t n)
{
    std::vector<stw_io_done> all;
    while (all.size() < n) {
        stw_io_done done[16];
        const uint32_t taken = ops_->poll(storage_, done, 16, kPatience);
        if (taken == 0) {
            ADD_FAILURE() << "only " << all.size() << " of " << n << " completions came";
            break;
        }
        all.insert(all.end(), done, done + taken);
    }
    return all;
}

int64_t Storage::run(uint32_t kind, void *data, uint64_t offset_bytes, uint64_t bytes)
{
    const stw_io io = {4711, data, offset_bytes, bytes, kind, 0};
    const stw_status status = submit(io);
    if (status != STW_OK) return status;
    const std::vector<stw_io_done> done = collect(1);
    if (done.size() != 1) return -1;
    EXPECT_EQ(done[0].tag, 4711u);
    return done[0].result;
}

stw_status Memory::open(uint64_t bytes, uint32_t block_bytes, uint64_t address_bytes,
                        int32_t ordinal)
{
    stw_memory_options options = {};
    options.struct_size = sizeof options;
    options.ordinal = ordinal;
    options.bytes = bytes;
    options.block_bytes = block_bytes;
    options.address_bytes = address_bytes;
    if (!options_.empty()) options.options = options_.c_str();
    block_bytes_ = block_bytes;
    const stw_status status = ops_->open(nullptr, &options, &memory_, &error_);
    if (status != STW_OK) return status;
    info_.struct_size = sizeof info_;
    ops_->info(memory_, &info_);
    return STW_OK;
}

bool Memory::can(uint64_t capability) const
{
    if ((ops_->capabilities & capability) != 0) return true;
    if (capability != STW_MEMORY_HOST_ACCESS || ops_->shares_host == nullptr) return false;
    stw_memory_options options = {};
    options.struct_size = sizeof options;
    options.bytes = kMiB;
    options.block_bytes = 64 << 10;
    if (!options_.empty()) options.options = options_.c_str();
    uint32_t shares = 0;
    return ops_->shares_host(&options, &shares) == STW_OK && shares != 0;
}

void Memory::close()
{
    if (memory_ == nullptr) return;
    EXPECT_EQ(ops_->close(memory_), STW_OK);
    memory_ = nullptr;
}

uint8_t *Memory::block(uint32_t index) const
{
    return static_cast<uint8_t *>(info_.base) + uint64_t{index} * block_bytes_;
}

}  // namespace conformance
