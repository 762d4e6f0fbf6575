// SPDX-License-Identifier: Apache-2.0
// JSON whose values know their lines, and a reader of objects that takes what it knows and refuses
// the rest: every sentence names file, line and key. Throws Refused.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace stepwell::cli {

// "FILE:LINE: KEY ...", one sentence.
class Refused : public std::runtime_error {
public:
    using std::runtime_error::runtime_error;
};

struct Located {
    enum class Kind : uint8_t { kNull, kBoolean, kNumber, kString, kArray, kObject };
    Kind kind = Kind::kNull;
    uint32_t line = 1;
    bool boolean = false;
    double number = 0;
    std::string text;
    std::vector<std::string> keys;  // of an object, beside its items
    std::vector<Located> items;
};

const char *kind_name(Located::Kind kind);

// A file of at most 16 MiB, an object at its top.
Located read_located(const std::string &file);
Located parse_located(std::string_view text, const std::string &file);

enum class Unit : uint8_t { kBytes, kBytesPerSecond, kFlops, kFlopsPerSecond, kSeconds, kCount };

// "32 GB", "1.6 GB/s", "70 TFLOPS", "5 us", "1.5 T": the value in the unit itself. Else what is
// wrong with it is in `why`.
bool parse_quantity(std::string_view text, Unit unit, double *value, std::string *why);
// As parse_quantity takes it: "1 MB".
std::string quantity_text(double value, Unit unit);

// One object of a file, key by key. What was not taken when it is done is refused.
class Keys {
public:
    Keys(const std::string &file, const Located &object, std::string path);

    // Null where it is not there.
    const Located *find(const char *key);
    const Located &need(const char *key);
    bool has(const char *key) { return find(key) != nullptr; }

    // KEY: "32 GB", or KEY with the unit's ending (_bytes, _bytes_per_s, ...): a number.
    double quantity(const char *key, Unit unit, double least, double most);
    double quantity_or(const char *key, Unit unit, double least, double most, double otherwise);
    uint64_t whole(const char *key, uint64_t least, uint64_t most);
    uint64_t whole_or(const char *key, uint64_t least, uint64_t most, uint64_t otherwise);
    double number(const char *key, double least, double most);
    std::string word(const char *key);
    std::string word_or(const char *key, const char *otherwise);
    bool boolean_or(const char *key, bool otherwise);
    // The index in `names`.
    size_t choice(const char *key, const std::vector<const char *> &names);
    Keys object(const char *key);
    std::vector<Keys> objects(const char *key);  // at least one
    // "source": where the numbers come from. For readers; must be text where it is there.
    void source() { word_or("source", ""); }

    void done() const;
    [[noreturn]] void refuse(const char *key, const std::string &why) const;
    [[noreturn]] void refuse_all(const std::string &why) const;
    [[nodiscard]] const std::string &path() const { return path_; }

private:
    [[nodiscard]] std::string name_of(const char *key) const;
    const Located &typed(const char *key, Located::Kind kind);
    // `said`: as the file has it.
    double checked(const char *key, double value, double least, double most, Unit unit,
                   const std::string &said);
    double checked(const char *key, double value, double least, double most);

    const std::string *file_;
    const Located *object_;
    std::string path_;
    std::vector<bool> taken_;
    std::vector<std::string> known_;
};

}  // namespace stepwell::cli
