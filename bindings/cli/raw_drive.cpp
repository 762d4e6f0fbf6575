// SPDX-License-Identifier: Apache-2.0
#include "raw_drive.h"

#include "text.h"
#include "tier.h"

#include <algorithm>
#include <atomic>
#include <barrier>
#include <cerrno>
#include <cstring>
#include <memory>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

namespace stepwell::cli {

namespace {

constexpr uint64_t kHugePageBytes = 2 << 20;
constexpr double kTrialSeconds = 0.3;

Failed failed(const std::string &what, const std::string &directory)
{
    const int cause = errno;
    return Failed(what + " in '" + printable(directory) + "' failed: " + std::strerror(cause) +
                  ".");
}

using Buffer = std::unique_ptr<char, void (*)(void *)>;

// In huge pages, as the library's memory is: a request over small ones is many pieces to a drive.
Buffer buffer_of(uint64_t bytes)
{
    const uint64_t whole = (bytes + kHugePageBytes - 1) / kHugePageBytes * kHugePageBytes;
    Buffer memory(static_cast<char *>(std::aligned_alloc(kHugePageBytes, whole)), std::free);
    if (memory) madvise(memory.get(), whole, MADV_HUGEPAGE);
    return memory;
}

int unnamed_file(const std::string &directory)
{
    const int file = open(directory.c_str(), O_TMPFILE | O_RDWR | O_DIRECT | O_CLOEXEC, 0600);
    if (file >= 0 || (errno != EOPNOTSUPP && errno != EISDIR)) return file;
    std::string name = directory + "/.stepwell-bench-XXXXXX";
    const int named = mkostemp(name.data(), O_DIRECT | O_CLOEXEC);
    if (named >= 0) unlink(name.c_str());
    return named;
}

}  // namespace

RawDrive::RawDrive(const std::string &directory, uint64_t bytes)
    : directory_(directory), file_(unnamed_file(directory)), bytes_(bytes)
{
    if (file_ < 0) throw failed("Opening a file for direct I/O", directory);
    try {
        if (fallocate(file_, 0, 0, static_cast<off_t>(bytes)) != 0)
            throw failed("Reserving " + bytes_text(bytes), directory);
        run(false, Way{}, 1e9);
    } catch (const Failed &) {
        close(file_);
        throw;
    }
}

RawDrive::~RawDrive()
{
    close(file_);
}

void RawDrive::find_best()
{
    constexpr uint64_t kRequests[] = {256 << 10, 1 << 20, 4 << 20};
    constexpr uint32_t kThreads[] = {4, 16, 32};
    for (const bool reads : {true, false}) {
        double most = 0;
        for (const uint64_t bytes : kRequests) {
            for (const uint32_t threads : kThreads) {
                const Way way = {bytes, threads};
                const double rate = run(reads, way, kTrialSeconds);
                if (rate > most) (reads ? reads_ : writes_) = way;
                most = std::max(most, rate);
            }
        }
    }
}

double RawDrive::read(double seconds_most) const
{
    return run(true, reads_, seconds_most);
}

double RawDrive::write(double seconds_most) const
{
    return run(false, writes_, seconds_most);
}

std::string RawDrive::setting(bool reads) const
{
    const Way &way = reads ? reads_ : writes_;
    return bytes_text(way.request_bytes) + " x " + std::to_string(way.threads);
}

double RawDrive::run(bool reads, const Way &way, double seconds_most) const
{
    std::atomic<uint64_t> next{0};
    std::atomic<uint64_t> moved{0};
    std::atomic<int> error{0};
    double begin = 0;
    // Threads that start and memory that is touched for the first time are not the drive's time.
    std::barrier start(way.threads, [&begin]() noexcept { begin = now_s(); });
    const auto work = [&] {
        const Buffer memory = buffer_of(way.request_bytes);
        if (memory)
            std::memset(memory.get(), 0x5a, way.request_bytes);
        else
            error = ENOMEM;
        start.arrive_and_wait();
        // One request at least: a drive that is busy elsewhere may take longer for it.
        for (bool first = true; error == 0 && (first || now_s() - begin < seconds_most);
             first = false) {
            const uint64_t at = next.fetch_add(way.request_bytes);
            if (at + way.request_bytes > bytes_) return;
            const auto offset = static_cast<off_t>(at);
            const ssize_t n = reads ? pread(file_, memory.get(), way.request_bytes, offset)
                                    : pwrite(file_, memory.get(), way.request_bytes, offset);
            if (n < 0) error = errno;
            if (n > 0) moved += static_cast<uint64_t>(n);
        }
    };
    std::vector<std::thread> threads;
    for (uint32_t i = 0; i < way.threads; ++i) threads.emplace_back(work);
    for (std::thread &thread : threads) thread.join();
    errno = error;
    if (errno != 0) throw failed(reads ? "Reading" : "Writing", directory_);
    return static_cast<double>(moved) / (now_s() - begin);
}

}  // namespace stepwell::cli
