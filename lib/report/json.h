// SPDX-License-Identifier: Apache-2.0
// A JSON writer: values out in order, straight into a sink. Keeps track of commas and nesting,
// escapes strings (what is not UTF-8 becomes U+FFFD), writes integers exactly and doubles in their
// shortest form that reads back the same; what is not finite is null. One thread at a time.
#pragma once

#include <cstdint>
#include <string_view>

namespace stepwell::report {

// Where the bytes go.
struct ByteSink {
    void (*put)(void *user, std::string_view bytes);
    void *user;
};

constexpr uint32_t kJsonDepthMax = 32;

class JsonWriter {
public:
    // `indent`: spaces per level; 0: everything in one line. What the sink names is borrowed.
    explicit JsonWriter(ByteSink sink, uint32_t indent = 2) : sink_(sink), indent_(indent) {}

    void begin_object() { open('{'); }
    void end_object() { close('}'); }
    void begin_array() { open('['); }
    void end_array() { close(']'); }
    void key(std::string_view name);
    // Until it is switched off: in one line, for lists of thousands of numbers.
    void compact(bool on) { compact_ = on; }

    void string(std::string_view text);
    void number(uint64_t value);
    void number(int64_t value);
    void number(double value);
    // Nanoseconds as microseconds with three digits behind the point, exactly.
    void microseconds(uint64_t ns);
    void boolean(bool value);
    void null();

    void member(std::string_view name, std::string_view text) { key(name), string(text); }
    void member(std::string_view name, const char *text) { key(name), string(text); }
    void member(std::string_view name, uint64_t value) { key(name), number(value); }
    void member(std::string_view name, uint32_t value) { key(name), number(uint64_t{value}); }
    void member(std::string_view name, int32_t value) { key(name), number(int64_t{value}); }
    void member(std::string_view name, double value) { key(name), number(value); }
    void member(std::string_view name, bool value) { key(name), boolean(value); }

private:
    void open(char bracket);
    void close(char bracket);
    void value();  // what stands before a value: a comma, a line break
    void line_break();
    void quoted(std::string_view text);

    void put(std::string_view bytes) { sink_.put(sink_.user, bytes); }

    const ByteSink sink_;
    const uint32_t indent_;
    uint32_t depth_ = 0;
    bool filled_[kJsonDepthMax + 1] = {};  // the level has an element already
    bool after_key_ = false;
    bool compact_ = false;
};

}  // namespace stepwell::report
