// SPDX-License-Identifier: Apache-2.0
// stepwell/hpp/span.hpp: elements of a view, and their dtype.
#ifndef STEPWELL_HPP_SPAN_HPP
#define STEPWELL_HPP_SPAN_HPP

#include <stepwell/stepwell.h>

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace stw {

/// The stw_ dtype of a C++ type; half types have no C++ type, view them as uint16_t.
template <class T> constexpr uint32_t dtype_of() noexcept
{
    if constexpr (std::is_same_v<T, float>)
        return STW_F32;
    else if constexpr (std::is_same_v<T, double>)
        return STW_F64;
    else if constexpr (std::is_same_v<T, int64_t>)
        return STW_I64;
    else if constexpr (std::is_same_v<T, int32_t>)
        return STW_I32;
    else if constexpr (std::is_same_v<T, int16_t>)
        return STW_I16;
    else if constexpr (std::is_same_v<T, int8_t>)
        return STW_I8;
    else if constexpr (std::is_same_v<T, uint8_t>)
        return STW_U8;
    else if constexpr (std::is_same_v<T, bool>)
        return STW_BOOL;
    else
        return 0;
}

/// Bits per element; 0 for a dtype that this library does not know.
inline uint32_t dtype_bits(uint32_t dtype) noexcept
{
    return stw_dtype_bits(dtype);
}

/// Elements of one view. Borrowed: ends with the Views it came from. std::span is C++20.
template <class T> class Span {
public:
    constexpr Span() noexcept = default;
    constexpr Span(T *data, size_t size) noexcept : data_(data), size_(size) {}
    constexpr T *data() const noexcept { return data_; }
    constexpr size_t size() const noexcept { return size_; }
    constexpr bool empty() const noexcept { return size_ == 0; }
    constexpr T *begin() const noexcept { return data_; }
    constexpr T *end() const noexcept { return data_ + size_; }
    constexpr T &operator[](size_t index) const noexcept { return data_[index]; }

private:
    T *data_ = nullptr;
    size_t size_ = 0;
};

}  // namespace stw

#endif  // STEPWELL_HPP_SPAN_HPP
