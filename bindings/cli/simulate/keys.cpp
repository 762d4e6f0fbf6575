// SPDX-License-Identifier: Apache-2.0
#include "located_json.h"

#include "text.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace stepwell::cli {
namespace {

const char *ending_of(Unit unit)
{
    switch (unit) {
    case Unit::kBytes: return "_bytes";
    case Unit::kBytesPerSecond: return "_bytes_per_s";
    case Unit::kFlops: return "_flop";
    case Unit::kFlopsPerSecond: return "_flop_per_s";
    case Unit::kSeconds: return "_s";
    case Unit::kCount: return "";
    }
    return "";
}

std::string short_number(double value)
{
    char text[32];
    std::snprintf(text, sizeof text, "%.6g", value);
    return text;
}

}  // namespace

Keys::Keys(const std::string &file, const Located &object, std::string path)
    : file_(&file), object_(&object), path_(std::move(path)), taken_(object.items.size())
{
}

std::string Keys::name_of(const char *key) const
{
    return path_.empty() ? key : path_ + "." + key;
}

void Keys::refuse(const char *key, const std::string &why) const
{
    uint32_t line = object_->line;
    for (size_t i = 0; i < object_->keys.size(); ++i)
        if (object_->keys[i] == key) line = object_->items[i].line;
    throw Refused(printable(*file_) + ":" + std::to_string(line) + ": " + printable(name_of(key)) +
                  " " + why + ".");
}

void Keys::refuse_all(const std::string &why) const
{
    throw Refused(printable(*file_) + ":" + std::to_string(object_->line) + ": " +
                  (path_.empty() ? "the file" : printable(path_)) + " " + why + ".");
}

const Located *Keys::find(const char *key)
{
    if (std::find(known_.begin(), known_.end(), key) == known_.end()) known_.push_back(key);
    for (size_t i = 0; i < object_->keys.size(); ++i) {
        if (object_->keys[i] != key) continue;
        taken_[i] = true;
        return &object_->items[i];
    }
    return nullptr;
}

const Located &Keys::need(const char *key)
{
    const Located *found = find(key);
    if (found == nullptr) refuse(key, "is missing");
    return *found;
}

const Located &Keys::typed(const char *key, Located::Kind kind)
{
    const Located &value = need(key);
    if (value.kind != kind)
        refuse(key, std::string("is ") + kind_name(value.kind) + ", not " + kind_name(kind));
    return value;
}

double Keys::checked(const char *key, double value, double least, double most, Unit unit,
                     const std::string &said)
{
    if (value >= least && value <= most) return value;
    const std::string from = quantity_text(least, unit);
    refuse(key, "is " + said + "; it can be " +
                    (least == most ? from : "from " + from + " to " + quantity_text(most, unit)));
}

double Keys::checked(const char *key, double value, double least, double most)
{
    return checked(key, value, least, most, Unit::kCount, short_number(value));
}

double Keys::quantity(const char *key, Unit unit, double least, double most)
{
    const std::string plain = std::string(key) + ending_of(unit);
    const Located *number = unit == Unit::kCount ? nullptr : find(plain.c_str());
    const Located *value = find(key);
    if (number != nullptr && value != nullptr)
        refuse(key, "is there twice, with its unit in the value and in the key; leave one of them");
    if (number != nullptr) {
        typed(plain.c_str(), Located::Kind::kNumber);
        return checked(plain.c_str(), number->number, least, most);
    }
    if (value == nullptr) refuse(key, "is missing");
    if (unit == Unit::kCount && value->kind == Located::Kind::kNumber)
        return checked(key, value->number, least, most);
    if (value->kind == Located::Kind::kNumber)
        refuse(key, "is a number without a unit; write it as text with one, or call the key '" +
                        plain + "'");
    typed(key, Located::Kind::kString);
    double result = 0;
    std::string why;
    if (!parse_quantity(value->text, unit, &result, &why)) refuse(key, "is no value: " + why);
    return checked(key, result, least, most, unit, "'" + printable(value->text) + "'");
}

double Keys::quantity_or(const char *key, Unit unit, double least, double most, double otherwise)
{
    const std::string plain = std::string(key) + ending_of(unit);
    if (!has(key) && !has(plain.c_str())) return otherwise;
    return quantity(key, unit, least, most);
}

uint64_t Keys::whole(const char *key, uint64_t least, uint64_t most)
{
    const double value = typed(key, Located::Kind::kNumber).number;
    checked(key, value, static_cast<double>(least), static_cast<double>(most));
    if (value != std::floor(value))
        refuse(key, "is " + short_number(value) + ", which is no whole number");
    return static_cast<uint64_t>(value);
}

uint64_t Keys::whole_or(const char *key, uint64_t least, uint64_t most, uint64_t otherwise)
{
    return has(key) ? whole(key, least, most) : otherwise;
}

double Keys::number(const char *key, double least, double most)
{
    return checked(key, typed(key, Located::Kind::kNumber).number, least, most);
}

std::string Keys::word(const char *key)
{
    const std::string &text = typed(key, Located::Kind::kString).text;
    if (text.empty()) refuse(key, "is empty");
    return text;
}

std::string Keys::word_or(const char *key, const char *otherwise)
{
    return has(key) ? word(key) : otherwise;
}

bool Keys::boolean_or(const char *key, bool otherwise)
{
    return has(key) ? typed(key, Located::Kind::kBoolean).boolean : otherwise;
}

size_t Keys::choice(const char *key, const std::vector<const char *> &names)
{
    const std::string text = word(key);
    std::string known;
    for (size_t i = 0; i < names.size(); ++i) {
        if (text == names[i]) return i;
        known += std::string(i == 0 ? "" : i + 1 == names.size() ? " or " : ", ") + names[i];
    }
    refuse(key, "is '" + printable(text) + "'; it can be " + known);
}

Keys Keys::object(const char *key)
{
    const Located &value = typed(key, Located::Kind::kObject);
    return {*file_, value, name_of(key)};
}

std::vector<Keys> Keys::objects(const char *key)
{
    const Located &list = typed(key, Located::Kind::kArray);
    if (list.items.empty()) refuse(key, "is empty");
    std::vector<Keys> result;
    for (size_t i = 0; i < list.items.size(); ++i) {
        const std::string name = name_of(key) + "[" + std::to_string(i) + "]";
        if (list.items[i].kind != Located::Kind::kObject)
            throw Refused(printable(*file_) + ":" + std::to_string(list.items[i].line) + ": " +
                          name + " is " + kind_name(list.items[i].kind) + ", not an object.");
        result.emplace_back(*file_, list.items[i], name);
    }
    return result;
}

void Keys::done() const
{
    for (size_t i = 0; i < taken_.size(); ++i) {
        if (taken_[i]) continue;
        std::string known;
        for (const std::string &key : known_) known += (known.empty() ? "" : ", ") + key;
        refuse(object_->keys[i].c_str(), "is not known; the keys there are " + known);
    }
}

}  // namespace stepwell::cli
