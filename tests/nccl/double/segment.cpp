// SPDX-License-Identifier: Apache-2.0
#include "tests/nccl/double/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

namespace stepwell::nccl_double {
namespace {

constexpr uint64_t kStatesBytes = 4096;
static_assert(sizeof(RankState) * kRanksMax <= kStatesBytes);
static_assert(std::atomic<uint64_t>::is_always_lock_free);

}  // namespace

std::shared_ptr<Segment> Segment::open(const std::string &name, int ranks)
{
    std::shared_ptr<Segment> segment(new Segment);
    segment->name_ = name;
    segment->ranks_ = ranks;
    const uint64_t bytes = kStatesBytes + 2 * kRoomBytes * static_cast<uint64_t>(ranks);
    const int file = shm_open(name.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (file < 0) return nullptr;
    void *memory = MAP_FAILED;
    if (ftruncate(file, static_cast<off_t>(bytes)) == 0)
        memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
    close(file);
    if (memory == MAP_FAILED) return nullptr;
    segment->bytes_ = bytes;
    segment->states_ = static_cast<RankState *>(memory);
    segment->rooms_ = static_cast<char *>(memory) + kStatesBytes;
    return segment;
}

Segment::~Segment()
{
    if (states_ != nullptr) munmap(states_, bytes_);
}

void Segment::hide()
{
    shm_unlink(name_.c_str());
}

char *Segment::room(int rank, uint64_t collective) const
{
    return rooms_ + (static_cast<uint64_t>(rank) * 2 + collective % 2) * kRoomBytes;
}

bool Segment::all_joined() const
{
    return all([](const RankState &rank) { return rank.process.load() != 0; });
}

}  // namespace stepwell::nccl_double
