// SPDX-License-Identifier: Apache-2.0
// Making and mapping the segment, and the text of a slot.
#include "lib/collective/segment.h"

#include "lib/support/assert.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstring>
#include <new>

namespace stepwell::collective {
namespace {

constexpr uint32_t kReadsMax = 16;  // of a text that changes meanwhile

static_assert(std::atomic<uint64_t>::is_always_lock_free);

std::string path_of(const SegmentName &name)
{
    return format_text("/stepwell-%016" PRIx64 "%016" PRIx64, name[0], name[1]);
}

Status failed(const char *what, uint64_t bytes, int os_errno)
{
    stw_status code = STW_ERROR_IO;
    if (os_errno == EACCES || os_errno == EPERM || os_errno == EROFS) code = STW_ERROR_PERMISSION;
    if (os_errno == ENOSPC || os_errno == ENOMEM) code = STW_ERROR_MEMORY;
    if (os_errno == EMFILE || os_errno == ENFILE) code = STW_ERROR_LIMIT;
    return Status::os_error(code, os_errno,
                            "The ranks of this host cannot share memory: %s %" PRIu64
                            " bytes in /dev/shm failed",
                            what, bytes);
}

// A descriptor for as long as a scope.
struct File {
    explicit File(int opened) : fd(opened) {}
    ~File()
    {
        if (fd >= 0) ::close(fd);
    }
    File(const File &) = delete;
    File &operator=(const File &) = delete;
    const int fd;
};

}  // namespace

struct Segment::Header {
    uint64_t layout;
    uint64_t bytes;
    SegmentName name;
    uint64_t ranks;
    uint64_t reserved[3];
    std::atomic<uint64_t> disks[kHostDisksMax];  // 0: free
};

void RankSlot::write(uint64_t number, std::string_view text)
{
    const uint64_t size = std::min<uint64_t>(text.size(), kStandingBytesMax);
    const uint64_t now = sequence.load(std::memory_order_relaxed);
    // Release on every word: whoever sees one of a later text also sees the odd sequence.
    sequence.store(now + 1, std::memory_order_relaxed);
    collective.store(number, std::memory_order_release);
    bytes.store(size, std::memory_order_release);
    for (uint64_t at = 0; at < size; at += sizeof(uint64_t)) {
        uint64_t word = 0;
        std::memcpy(&word, text.data() + at, std::min(sizeof word, size - at));
        words[at / sizeof word].store(word, std::memory_order_release);
    }
    sequence.store(now + 2, std::memory_order_release);
}

bool RankSlot::read(uint64_t &number_out, std::string &text_out) const
{
    for (uint32_t i = 0; i < kReadsMax; ++i) {
        const uint64_t before = sequence.load(std::memory_order_acquire);
        const uint64_t number = collective.load(std::memory_order_acquire);
        const uint64_t size =
            std::min<uint64_t>(bytes.load(std::memory_order_acquire), kStandingBytesMax);
        uint64_t copy[kStandingBytesMax / 8];
        for (uint64_t at = 0; at < size; at += sizeof(uint64_t)) {
            copy[at / sizeof(uint64_t)] =
                words[at / sizeof(uint64_t)].load(std::memory_order_acquire);
        }
        if (before % 2 != 0 || sequence.load(std::memory_order_relaxed) != before) continue;
        number_out = number;
        text_out.assign(reinterpret_cast<const char *>(copy), size);
        return true;
    }
    return false;
}

Segment::Segment() : process_(getpid()) {}

bool Segment::is_mapped() const
{
    return memory_ != nullptr && process_ == getpid();
}

void Segment::lay_out(uint32_t ranks)
{
    ranks_ = ranks;
    bytes_ = sizeof(Header) + ranks * (sizeof(RankSlot) + kHostDisksMax * sizeof(FairLane));
    if (!memory_) return;
    slots_ = reinterpret_cast<RankSlot *>(static_cast<uint8_t *>(memory_) + sizeof(Header));
    lanes_ = reinterpret_cast<FairLane *>(slots_ + ranks);
}

// Fresh pages are zeros, and zeros are a segment in which nobody is yet.
Status Segment::map(int file)
{
    static_assert(sizeof(Header) % alignof(RankSlot) == 0);
    static_assert(alignof(FairLane) <= alignof(RankSlot));
    const int flags = file >= 0 ? MAP_SHARED : MAP_SHARED | MAP_ANONYMOUS;
    memory_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, flags, file, 0);
    if (memory_ == MAP_FAILED) {
        memory_ = nullptr;
        return failed("mapping", bytes_, errno);
    }
    // A fork of a rank is no rank.
    madvise(memory_, bytes_, MADV_DONTFORK);
    lay_out(static_cast<uint32_t>(ranks_));
    return {};
}

Result<std::unique_ptr<Segment>> Segment::create(uint32_t ranks)
{
    std::unique_ptr<Segment> made(new Segment());
    made->lay_out(ranks);
    if (getrandom(made->name_.data(), sizeof made->name_, 0) != sizeof made->name_) {
        return failed("naming", made->bytes_, errno);
    }
    const File file(shm_open(path_of(made->name_).c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC,
                             S_IRUSR | S_IWUSR));
    if (file.fd < 0) return failed("creating", made->bytes_, errno);
    made->named_ = true;
    // Taken now: a write to a page that the file system has no room for would be a signal.
    const int cause = posix_fallocate(file.fd, 0, static_cast<off_t>(made->bytes_));
    if (cause != 0) return failed("taking", made->bytes_, cause);
    STW_TRY(made->map(file.fd));
    new (made->memory_) Header{kSegmentLayout, made->bytes_, made->name_, ranks, {}, {}};
    return made;
}

Result<std::unique_ptr<Segment>> Segment::open(const SegmentName &name, uint32_t ranks)
{
    std::unique_ptr<Segment> made(new Segment());
    made->name_ = name;
    made->lay_out(ranks);
    const File file(shm_open(path_of(name).c_str(), O_RDWR | O_CLOEXEC, 0));
    // It was made before its name was told, and is removed early only by who made it.
    if (file.fd < 0 && errno == ENOENT) {
        return Status::os_error(STW_ERROR_PEER, ENOENT,
                                "The ranks of this host cannot share memory: the rank that made "
                                "'%s' in /dev/shm has ended, or could not join itself",
                                path_of(name).c_str());
    }
    if (file.fd < 0) return failed("opening", made->bytes_, errno);
    struct stat found {};
    if (fstat(file.fd, &found) != 0) return failed("asking for", made->bytes_, errno);
    if (found.st_uid != geteuid() || static_cast<uint64_t>(found.st_size) != made->bytes_) {
        return Status::error(STW_ERROR_PERMISSION,
                             "The ranks of this host cannot share memory: '%s' in /dev/shm has "
                             "%lld bytes of user %u, not %" PRIu64 " of user %u.",
                             path_of(name).c_str(), static_cast<long long>(found.st_size),
                             static_cast<unsigned>(found.st_uid), made->bytes_,
                             static_cast<unsigned>(geteuid()));
    }
    STW_TRY(made->map(file.fd));
    const auto *header = static_cast<const Header *>(made->memory_);
    if (header->layout != kSegmentLayout || header->name != name || header->ranks != ranks) {
        return Status::error(STW_ERROR_MISMATCH,
                             "The ranks of this host cannot share memory: its layout is %" PRIx64
                             " for %" PRIu64 " ranks, here it is %" PRIx64
                             " for %u; use one build of the library.",
                             header->layout, header->ranks, kSegmentLayout, ranks);
    }
    return made;
}

Result<std::unique_ptr<Segment>> Segment::alone()
{
    std::unique_ptr<Segment> made(new Segment());
    made->lay_out(1);
    STW_TRY(made->map(-1));
    return made;
}

Segment::~Segment()
{
    if (process_ != getpid()) return;
    forget_name();
    if (memory_) munmap(memory_, bytes_);
}

void Segment::forget_name()
{
    if (named_) shm_unlink(path_of(name_).c_str());
    named_ = false;
}

RankSlot &Segment::slot(uint32_t index) const
{
    STW_ASSERT(index < ranks_);
    return slots_[index];
}

FairLane *Segment::lanes(uint64_t disk) const
{
    if (disk == 0) return nullptr;
    auto *header = static_cast<Header *>(memory_);
    for (uint32_t i = 0; i < kHostDisksMax; ++i) {
        uint64_t found = 0;
        const bool made = header->disks[i].compare_exchange_strong(found, disk);
        if (made || found == disk) return lanes_ + i * ranks_;
    }
    return nullptr;
}

}  // namespace stepwell::collective
