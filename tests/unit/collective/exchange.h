// SPDX-License-Identifier: Apache-2.0
// An exchange between the threads or forked processes of a test: a barrier and room for the records
// in memory that both share. A forked rank ends with the test that made it.
#pragma once

#include "lib/support/status.h"

#include <gtest/gtest.h>

#include <csignal>
#include <cstring>
#include <functional>
#include <new>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>
#include <vector>

namespace stepwell::testing {

// Zeros that forks share.
template <class T> class Shared {
public:
    Shared()
        : memory_(
              mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0))
    {
        if (memory_ == MAP_FAILED) throw std::bad_alloc();
    }
    ~Shared() { munmap(memory_, sizeof(T)); }
    Shared(const Shared &) = delete;
    Shared &operator=(const Shared &) = delete;
    T *operator->() const { return static_cast<T *>(memory_); }
    T &operator*() const { return *static_cast<T *>(memory_); }

private:
    void *memory_;
};

class Exchange {
public:
    explicit Exchange(uint32_t ranks) : ranks_(ranks)
    {
        pthread_barrierattr_t attributes;
        pthread_barrierattr_init(&attributes);
        pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
        pthread_barrier_init(&room_->barrier, &attributes, ranks);
        pthread_barrierattr_destroy(&attributes);
    }

    Status operator()(uint32_t rank, const void *record, void *records, uint32_t bytes)
    {
        if (uint64_t{bytes} * ranks_ > sizeof room_->bytes) {
            return Status::error(STW_ERROR_LIMIT, "A record of %u bytes is too large.", bytes);
        }
        std::memcpy(room_->bytes + uint64_t{rank} * bytes, record, bytes);
        pthread_barrier_wait(&room_->barrier);
        std::memcpy(records, room_->bytes, uint64_t{ranks_} * bytes);
        pthread_barrier_wait(&room_->barrier);
        return {};
    }
    // Waits until all ranks are here.
    void meet() { pthread_barrier_wait(&room_->barrier); }

    std::function<Status(const void *, void *, uint32_t)> of(uint32_t rank)
    {
        return [this, rank](const void *record, void *records, uint32_t bytes) {
            return (*this)(rank, record, records, bytes);
        };
    }

private:
    struct Room {
        pthread_barrier_t barrier;
        uint8_t bytes[16'384];
    };
    const uint32_t ranks_;
    Shared<Room> room_;
};

// A rank in a process of its own, until the test ends it.
class ForkedRank {
public:
    explicit ForkedRank(const std::function<void()> &body) : pid_(fork())
    {
        if (pid_ != 0) return;
        body();
        _exit(0);
    }
    ~ForkedRank()
    {
        if (pid_ > 0) end(SIGKILL);
    }
    ForkedRank(const ForkedRank &) = delete;
    ForkedRank &operator=(const ForkedRank &) = delete;

    // Returns once the process is stopped.
    void stop() const
    {
        int status = 0;
        ASSERT_EQ(kill(pid_, SIGSTOP), 0);
        ASSERT_EQ(waitpid(pid_, &status, WUNTRACED), pid_);
        ASSERT_TRUE(WIFSTOPPED(status));
    }
    // Returns once it is gone.
    void end(int signal)
    {
        kill(pid_, signal);
        waitpid(pid_, nullptr, 0);
        pid_ = -1;
    }
    // The exit status of a body that returns.
    int wait()
    {
        int status = 0;
        waitpid(pid_, &status, 0);
        pid_ = -1;
        return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    }
    [[nodiscard]] pid_t pid() const { return pid_; }

private:
    pid_t pid_;
};

}  // namespace stepwell::testing
