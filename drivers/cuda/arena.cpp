// SPDX-License-Identifier: Apache-2.0
#include "drivers/cuda/arena.h"

#include "drivers/common/edge.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

namespace stepwell::drivers::cuda {

namespace {

constexpr uint64_t kWaitNs = 1'000'000'000;
constexpr auto kLookEvery = std::chrono::microseconds(100);
constexpr uint64_t kLargestPiece = uint64_t{64} << 20;

}  // namespace

int Arena::open(uint64_t bytes, uint64_t block_bytes, Pieces pieces)
{
    bytes_ = bytes;
    block_bytes_ = block_bytes;
    pieces_ = pieces;
    return can_map() ? open_mapped() : open_plain();
}

stw_status Arena::open_shared(const stw_memory_options &options, int node,
                              stw_driver_error *error_out)
{
    shared_ = std::make_unique<SharedArena>();
    if (const stw_status status = shared_->open(options, node, error_out)) return status;
    bytes_ = options.bytes;
    block_bytes_ = options.block_bytes;
    base_ = reinterpret_cast<Address>(shared_->base());
    remark_ = shared_->remark();
    add_remark("The device shares its memory with the CPU, and no tensor has a fixed address "
               "there; unified=off gives it memory of its own.");
    return STW_OK;
}

// Asked once; if the device cannot, the remark names the consequences.
bool Arena::can_map()
{
    const MappingApi &api = mapping();
    const char *why = "the driver has no virtual memory management";
    int value = 0;
    size_t granularity = 0;
    properties_.location.id = context_.device();
    if (api.there) {
        why = "the device has no virtual memory management";
        const int error = api.attribute(&value, kAttributeMapping, context_.device());
        if (error != kSuccess) value = 0;
    }
    if (value != 0) {
        if (api.attribute(&value, kAttributeRdmaMapping, context_.device()) == kSuccess)
            properties_.rdma_capable = value != 0;
        if (api.granularity(&granularity, &properties_, kGranularityMinimum) != kSuccess)
            granularity = 0;
    }
    if (granularity != 0 && block_bytes_ % granularity == 0) return true;
    remark_ = "The budget of this device cannot change and no tensor has a fixed address: ";
    remark_ += granularity == 0
                   ? std::string(why) + "."
                   : "blocks of " + std::to_string(block_bytes_ >> 10) +
                         " KiB are smaller than the " + std::to_string(granularity >> 10) +
                         " KiB that it places at a time; use blocks of 2 MiB.";
    return false;
}

// CUDA aligns an allocation as it likes, which for a large one is more than a block.
int Arena::open_plain()
{
    const Api &api = context_.api();
    if (const int error = api.memory_alloc(&allocated_, bytes_)) return error;
    if (allocated_ % block_bytes_ != 0) {
        api.memory_free(std::exchange(allocated_, 0));
        if (const int error = api.memory_alloc(&allocated_, bytes_ + block_bytes_)) return error;
    }
    base_ = (allocated_ + block_bytes_ - 1) / block_bytes_ * block_bytes_;
    return kSuccess;
}

// A size that is too large is refused before thousands of handles are made.
int Arena::open_mapped()
{
    size_t free_bytes = 0;
    size_t total_bytes = 0;
    if (const int error = context_.api().memory_info(&free_bytes, &total_bytes)) return error;
    if (bytes_ > free_bytes) return kOutOfMemory;
    if (const int error = mapping().reserve(&reserved_, bytes_, block_bytes_, 0, 0)) return error;
    base_ = reserved_;
    const MutexLock lock(mutex_);
    handles_.assign(bytes_ / block_bytes_, 0);
    const int error = open_pieces();
    if (is_permanent())
        add_remark("The memory of this device is permanent: its budget cannot change. "
                   "arena=shrinks gives memory back.");
    return error == kSuccess ? allow(base_, bytes_) : error;
}

int Arena::open_pieces()
{
    for (uint32_t block = 0; block < handles_.size(); block += piece_of(block).blocks) {
        const uint64_t bytes = piece_of(block).blocks * block_bytes_;
        if (const int error = create(bytes, &handles_[block])) return error;
        const int error = mapping().map(address_of(block), bytes, 0, handles_[block], 0);
        if (error == kSuccess) continue;
        mapping().release(std::exchange(handles_[block], 0));
        return error;
    }
    return kSuccess;
}

uint64_t Arena::largest_piece() const
{
    if (!is_permanent()) return block_bytes_;
    return pieces_ == Pieces::kOne ? bytes_ : std::max(kLargestPiece, block_bytes_);
}

// Pieces of the largest size come first; the rest is cut into halves of that size, the larger ones
// first.
Arena::Piece Arena::piece_of(uint32_t block) const
{
    const auto all = static_cast<uint32_t>(bytes_ / block_bytes_);
    auto blocks = static_cast<uint32_t>(largest_piece() / block_bytes_);
    uint32_t first = 0;
    for (; blocks > 1; blocks /= 2) {
        const uint32_t end = first + (all - first) / blocks * blocks;
        if (block < end) return {first + (block - first) / blocks * blocks, blocks};
        first = end;
    }
    return {block, 1};
}

int Arena::allow(Address address, uint64_t bytes) const
{
    const MemoryAccess access{properties_.location};
    return mapping().set_access(address, bytes, &access, 1);
}

MemoryHandle Arena::handle(uint32_t block)
{
    const MutexLock lock(mutex_);
    return handles_[block];
}

int Arena::create(uint64_t bytes, MemoryHandle *handle_out)
{
    MemoryHandle made = 0;
    const int error = mapping().create(&made, bytes, &properties_, 0);
    if (error == kSuccess) *handle_out = made;
    return error;
}

// A lost device takes nothing back; its memory is freed with the context.
Arena::~Arena()
{
    if (allocated_ != 0) context_.api().memory_free(allocated_);
    if (reserved_ == 0) return;
    const MutexLock lock(mutex_);
    for (uint32_t block = 0; block < handles_.size(); ++block) unback(block);
    mapping().unreserve(reserved_, bytes_);
}

int Arena::back(uint32_t block)
{
    MemoryHandle handle = 0;
    if (const int error = create(block_bytes_, &handle)) return error;
    int error = mapping().map(address_of(block), block_bytes_, 0, handle, 0);
    if (error == kSuccess) {
        error = allow(address_of(block), block_bytes_);
        if (error != kSuccess) mapping().unmap(address_of(block), block_bytes_);
    }
    if (error != kSuccess) mapping().release(handle);
    if (error == kSuccess) handles_[block] = handle;
    return error;
}

int Arena::unback(uint32_t block)
{
    if (handles_[block] == 0) return kSuccess;
    const uint64_t bytes = piece_of(block).blocks * block_bytes_;
    if (const int error = mapping().unmap(address_of(block), bytes)) return error;
    return mapping().release(std::exchange(handles_[block], 0));
}

bool Arena::in_range(uint32_t first, uint32_t count) const
{
    const uint64_t blocks = bytes_ / block_bytes_;
    return count > 0 && first < blocks && count <= blocks - first;
}

// The library has ordered the copies after all work that still uses the blocks.
stw_status Arena::await_copies()
{
    Copies::Fence fence(context_);
    if (const int error = copies_.set(fence)) return context_.library().failed(error);
    const Deadline deadline = Deadline::after(kWaitNs);
    for (;;) {
        const int error = fence.passed();
        if (error != kNotReady) return context_.library().failed(error);
        if (deadline.passed()) return STW_ERROR_TIMEOUT;
        std::this_thread::sleep_for(kLookEvery);
    }
}

stw_status Arena::give_back(uint32_t first, uint32_t count)
{
    if (!in_range(first, count)) return STW_ERROR_INVALID;
    if (stays()) return STW_ERROR_UNSUPPORTED;
    if (const stw_status status = await_copies()) return status;
    if (shared_) return shared_->give_back(first, count);
    const MutexLock lock(mutex_);
    for (uint32_t block = first; block < first + count; ++block)
        if (const int error = unback(block)) return context_.library().failed(error);
    return STW_OK;
}

stw_status Arena::take_back(uint32_t first, uint32_t count, stw_driver_error *error_out)
{
    if (!in_range(first, count))
        return fail(error_out, STW_ERROR_INVALID, {},
                    "The device's memory has %llu blocks, and not %u from block %u on.",
                    static_cast<unsigned long long>(bytes_ / block_bytes_), count, first);
    if (shared_) return shared_->take_back(first, count, error_out);
    if (stays()) return fail(error_out, STW_ERROR_UNSUPPORTED, {}, "%s", remark_.c_str());
    const MutexLock lock(mutex_);
    std::vector<uint32_t> taken;
    int error = kSuccess;
    for (uint32_t block = first; block < first + count && error == kSuccess; ++block) {
        if (handles_[block] != 0) continue;
        error = back(block);
        if (error == kSuccess) taken.push_back(block);
    }
    if (error == kSuccess) return STW_OK;
    for (const uint32_t block : taken) unback(block);
    size_t free_bytes = 0;
    size_t total_bytes = 0;
    context_.api().memory_info(&free_bytes, &total_bytes);
    const uint64_t needed = count * block_bytes_;
    return fail(error_out, Library::status_of(error), {0, needed, free_bytes},
                "The device has no %s to take back, %s are free of %s, and what is taken may be "
                "another program's or the framework's (%s).",
                bytes_text(needed).c_str(), bytes_text(free_bytes).c_str(),
                bytes_text(total_bytes).c_str(), context_.library().text(error).c_str());
}

}  // namespace stepwell::drivers::cuda
