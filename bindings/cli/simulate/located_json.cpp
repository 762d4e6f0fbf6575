// SPDX-License-Identifier: Apache-2.0
// nlohmann's parser tells events, not places. It takes one character at a time from an iterator of
// ours that counts lines, and a string has been taken to its last quote when it is told.
#include "located_json.h"

#include "text.h"
#include "whole_file.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <iterator>

#include <nlohmann/json.hpp>

namespace stepwell::cli {
namespace {

constexpr size_t kDepthMax = 16;
constexpr size_t kFileBytesMax = 16 << 20;

[[noreturn]] void refuse_line(const std::string &file, uint32_t line, const std::string &why)
{
    throw Refused(printable(file) + ":" + std::to_string(line) + ": " + why);
}

struct Place {
    uint32_t line = 1;
    bool at_start = false;  // of a line: nothing of it has been taken
    // Of a token that ends where the next character begins.
    [[nodiscard]] uint32_t before() const { return at_start ? line - 1 : line; }
};

struct Counting {
    using iterator_category = std::input_iterator_tag;
    using value_type = char;
    using difference_type = std::ptrdiff_t;
    using pointer = const char *;
    using reference = const char &;

    const char *at = nullptr;
    Place *place = nullptr;

    reference operator*() const { return *at; }
    Counting &operator++()
    {
        place->at_start = *at == '\n';
        if (place->at_start) ++place->line;
        ++at;
        return *this;
    }
    Counting operator++(int)
    {
        const Counting before = *this;
        ++*this;
        return before;
    }
    bool operator==(const Counting &other) const { return at == other.at; }
    bool operator!=(const Counting &other) const { return at != other.at; }
};

// Builds the tree; the newest open array or object is the last of open_.
class Builder : public nlohmann::json_sax<nlohmann::json> {
public:
    Builder(const std::string &file, const Place *place) : file_(file), place_(place) {}

    bool null() override { return put({}, place_->line); }
    bool boolean(bool value) override
    {
        Located located;
        located.kind = Located::Kind::kBoolean;
        located.boolean = value;
        return put(std::move(located), place_->line);
    }
    bool number_integer(number_integer_t value) override
    {
        return put_number(static_cast<double>(value));
    }
    bool number_unsigned(number_unsigned_t value) override
    {
        return put_number(static_cast<double>(value));
    }
    bool number_float(number_float_t value, const string_t &) override { return put_number(value); }
    bool string(string_t &value) override
    {
        Located located;
        located.kind = Located::Kind::kString;
        located.text = value;
        return put(std::move(located), place_->line);
    }
    bool binary(binary_t &) override { return false; }
    bool start_object(std::size_t) override { return open(Located::Kind::kObject); }
    bool end_object() override { return close(); }
    bool start_array(std::size_t) override { return open(Located::Kind::kArray); }
    bool end_array() override { return close(); }
    bool key(string_t &name) override
    {
        Located &object = open_.back();
        if (std::find(object.keys.begin(), object.keys.end(), name) != object.keys.end())
            refuse_line(file_, place_->line,
                        "the key '" + path() + printable(name) + "' is there twice.");
        object.keys.push_back(name);
        return true;
    }
    bool parse_error(std::size_t, const std::string &,
                     const nlohmann::detail::exception &error) override
    {
        std::string_view why = parser_words(error.what());
        const size_t begin = why.rfind(" - ");
        if (begin != std::string_view::npos) why.remove_prefix(begin + 3);
        refuse_line(file_, place_->before(), "is no JSON: " + printable(why) + ".");
    }

    Located take() { return std::move(root_); }

private:
    // Of the object that is open: "links[0]."
    [[nodiscard]] std::string path() const
    {
        std::string words;
        for (size_t i = 0; i + 1 < open_.size(); ++i) {
            const Located &outer = open_[i];
            const bool list = outer.kind == Located::Kind::kArray;
            words += list ? "[" + std::to_string(outer.items.size()) + "]"
                          : (words.empty() ? "" : ".") + printable(outer.keys.back());
        }
        return words + (words.empty() ? "" : ".");
    }
    bool put_number(double value)
    {
        Located located;
        located.kind = Located::Kind::kNumber;
        located.number = value;
        // The parser has to see what follows to know that a number ends.
        return put(std::move(located), place_->before());
    }
    bool put(Located located, uint32_t line)
    {
        located.line = line;
        if (open_.empty())
            root_ = std::move(located);
        else
            open_.back().items.push_back(std::move(located));
        return true;
    }
    bool open(Located::Kind kind)
    {
        if (open_.size() == kDepthMax)
            refuse_line(file_, place_->line, "is nested deeper than anything known here.");
        Located located;
        located.kind = kind;
        located.line = place_->line;
        open_.push_back(std::move(located));
        return true;
    }
    bool close()
    {
        Located located = std::move(open_.back());
        open_.pop_back();
        const uint32_t line = located.line;
        return put(std::move(located), line);
    }

    const std::string &file_;
    const Place *place_;
    std::vector<Located> open_;
    Located root_;
};

}  // namespace

const char *kind_name(Located::Kind kind)
{
    switch (kind) {
    case Located::Kind::kNull: return "null";
    case Located::Kind::kBoolean: return "true or false";
    case Located::Kind::kNumber: return "a number";
    case Located::Kind::kString: return "text";
    case Located::Kind::kArray: return "a list";
    case Located::Kind::kObject: return "an object";
    }
    return "nothing known";
}

Located parse_located(std::string_view text, const std::string &file)
{
    // The parser would take it for the end.
    const size_t nul = text.find('\0');
    if (nul != std::string_view::npos) {
        const auto lines = std::count(text.begin(), text.begin() + static_cast<long>(nul), '\n');
        refuse_line(file, static_cast<uint32_t>(lines + 1), "is no JSON: a byte of it is zero.");
    }
    Place place;
    Builder builder(file, &place);
    const Counting begin{text.data(), &place};
    const Counting end{text.data() + text.size(), &place};
    nlohmann::json::sax_parse(begin, end, &builder);
    Located root = builder.take();
    if (root.kind != Located::Kind::kObject)
        refuse_line(file, root.line,
                    std::string("is ") + kind_name(root.kind) + ", not an object of keys.");
    return root;
}

Located read_located(const std::string &file)
{
    std::string text;
    const int cause = read_whole(file, kFileBytesMax, &text);
    const std::string name = "'" + printable(file) + "'";
    if (cause == EFBIG) throw Refused("The file " + name + " is no file of at most 16 MiB.");
    if (cause != 0)
        throw Refused("The file " + name + " cannot be read: " + std::strerror(cause) + ".");
    return parse_located(text, file);
}

}  // namespace stepwell::cli
