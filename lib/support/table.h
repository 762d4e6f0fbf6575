// SPDX-License-Identifier: Apache-2.0
// Table: grows at its end in chunks that never move, and finds an element with two loads. For what
// is pointed to while more of it is made, and looked up all the time.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

namespace stepwell {

template <class T> class Table {
public:
    static constexpr size_t kChunk = 8;  // a power of two

    T &operator[](size_t at) { return chunks_[at / kChunk][at % kChunk]; }
    const T &operator[](size_t at) const { return chunks_[at / kChunk][at % kChunk]; }
    [[nodiscard]] size_t size() const { return size_; }
    [[nodiscard]] size_t bytes() const { return chunks_.size() * kChunk * sizeof(T); }
    // Bytes that emplace_back() would add.
    [[nodiscard]] size_t growth_bytes() const { return size_ % kChunk ? 0 : kChunk * sizeof(T); }
    // More than these for so many there never are.
    static constexpr size_t bytes_max(size_t size) { return (size + kChunk - 1) * sizeof(T); }

    void emplace_back()
    {
        if (size_ % kChunk == 0) chunks_.push_back(std::make_unique<T[]>(kChunk));
        ++size_;
    }

private:
    std::vector<std::unique_ptr<T[]>> chunks_;
    size_t size_ = 0;
};

}  // namespace stepwell
