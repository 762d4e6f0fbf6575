// SPDX-License-Identifier: Apache-2.0
// Ring: a queue in one piece of memory that it keeps: what comes and goes all the time asks for
// none, and an element is found by a mask. Grows by doubling; elements move then.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace stepwell {

template <class T> class Ring {
public:
    [[nodiscard]] size_t size() const { return size_; }
    [[nodiscard]] bool empty() const { return size_ == 0; }
    T &operator[](size_t at) { return slots_[(first_ + at) & (slots_.size() - 1)]; }
    const T &operator[](size_t at) const { return slots_[(first_ + at) & (slots_.size() - 1)]; }
    T &front() { return (*this)[0]; }
    const T &front() const { return (*this)[0]; }
    T &back() { return (*this)[size_ - 1]; }
    const T &back() const { return (*this)[size_ - 1]; }

    void push_back(T value)
    {
        if (size_ == slots_.size()) grow();
        ++size_;
        back() = std::move(value);
    }
    void pop_front()
    {
        ++first_;
        --size_;
    }

private:
    void grow()
    {
        constexpr size_t kFirst = 16;  // a power of two
        std::vector<T> more(slots_.empty() ? kFirst : 2 * slots_.size());
        for (size_t i = 0; i < size_; ++i) more[i] = std::move((*this)[i]);
        slots_.swap(more);
        first_ = 0;
    }

    std::vector<T> slots_;  // as many as a power of two
    size_t first_ = 0;      // counts on; the mask makes a slot of it
    size_t size_ = 0;
};

}  // namespace stepwell
