// SPDX-License-Identifier: Apache-2.0
// The format: eight bytes, the size of a JSON object that follows; in it by name dtype, shape and
// the range of bytes behind the object (github.com/huggingface/safetensors, README).
#include "checkpoint.h"

#include "files.h"
#include "text.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

namespace stepwell::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using simulate::Layer;
using simulate::Model;

constexpr uint64_t kHeaderMax = 100'000'000;  // as the format has it
constexpr const char *kEnding = ".safetensors";

struct Stored {
    std::string name;
    uint64_t elements = 0;
    uint32_t element_bytes = 0;
    bool floats = false;
};

[[noreturn]] void refuse(const std::string &file, const std::string &why)
{
    throw Refused("'" + printable(file) + "' " + why + ".");
}

// 0: a dtype that the format does not have, or one smaller than a byte.
uint32_t bytes_of(const std::string &dtype)
{
    static const std::map<std::string, uint32_t> known = {
        {"F64", 8}, {"F32", 4}, {"F16", 2},  {"BF16", 2},   {"F8_E4M3", 1}, {"F8_E5M2", 1},
        {"I64", 8}, {"I32", 4}, {"I16", 2},  {"I8", 1},     {"U64", 8},     {"U32", 4},
        {"U16", 2}, {"U8", 1},  {"BOOL", 1}, {"F8_E8M0", 1}};
    const auto found = known.find(dtype);
    return found == known.end() ? 0 : found->second;
}

json header_of(const std::string &file, uint64_t *behind_out)
{
    std::error_code error;
    const fs::file_status status = fs::status(file, error);
    if (error) refuse(file, "cannot be read: " + error.message());
    if (!fs::is_regular_file(status)) refuse(file, "is no regular file");
    errno = 0;
    std::ifstream stream(file, std::ios::binary);
    if (!stream) refuse(file, std::string("cannot be read: ") + std::strerror(errno));
    std::array<unsigned char, 8> size{};
    stream.read(reinterpret_cast<char *>(size.data()), size.size());
    if (!stream) refuse(file, "has no 8 bytes: it is no file of safetensors");
    uint64_t bytes = 0;
    for (size_t i = size.size(); i > 0; --i) bytes = bytes << 8 | size[i - 1];
    const uint64_t all = fs::file_size(file);
    if (bytes > kHeaderMax || bytes > all - size.size()) {
        refuse(file, "says that its header has " + std::to_string(bytes) + " bytes, of " +
                         std::to_string(all) + ": it is no file of safetensors, or not all of one");
    }
    std::string text(bytes, '\0');
    stream.read(text.data(), static_cast<std::streamsize>(bytes));
    json header = json::parse(text, nullptr, false);
    if (!stream || !header.is_object()) refuse(file, "has a header that is no JSON object");
    *behind_out = all - size.size() - bytes;
    return header;
}

Stored stored_of(const std::string &file, const std::string &name, const json &entry,
                 uint64_t behind)
{
    const auto bad = [&](const std::string &why) {
        refuse(file, "has a tensor '" + printable(name) + "' " + why);
    };
    const bool whole = entry.is_object() && entry.contains("dtype") && entry["dtype"].is_string() &&
                       entry.contains("shape") && entry["shape"].is_array() &&
                       entry.contains("data_offsets") && entry["data_offsets"].is_array() &&
                       entry["data_offsets"].size() == 2 &&
                       entry["data_offsets"][0].is_number_unsigned() &&
                       entry["data_offsets"][1].is_number_unsigned();
    if (!whole) bad("without dtype, shape and data_offsets");
    Stored found{name, 1, bytes_of(entry["dtype"]), false};
    const std::string dtype = entry["dtype"];
    if (found.element_bytes == 0) bad("of dtype '" + printable(dtype) + "', which is not known");
    found.floats = dtype[0] == 'F' || dtype == "BF16";
    for (const json &each : entry["shape"]) {
        if (!each.is_number_unsigned() ||
            __builtin_mul_overflow(found.elements, each.get<uint64_t>(), &found.elements))
            bad("whose shape is no list of sizes");
    }
    const uint64_t begin = entry["data_offsets"][0];
    const uint64_t end = entry["data_offsets"][1];
    uint64_t bytes = 0;
    if (__builtin_mul_overflow(found.elements, uint64_t{found.element_bytes}, &bytes) ||
        begin > end || end > behind || end - begin != bytes) {
        bad("at bytes " + std::to_string(begin) + " to " + std::to_string(end) + " of " +
            std::to_string(behind) + ", which its shape and dtype do not take");
    }
    return found;
}

std::vector<std::string> files_of(const std::string &path)
{
    if (!fs::is_directory(path)) return {path};
    std::error_code error;
    std::vector<std::string> files;
    for (fs::directory_iterator at(path, error), end; !error && at != end; at.increment(error))
        if (at->path().extension() == kEnding) files.push_back(at->path());
    if (error) refuse(path, "cannot be read: " + error.message());
    std::sort(files.begin(), files.end());
    return files;
}

// Files that the index of a checkpoint names have to be there.
void check_index(const std::string &path)
{
    const fs::path index = fs::path(path) / "model.safetensors.index.json";
    std::ifstream stream(index);
    if (!stream) return;
    const json found = json::parse(stream, nullptr, false);
    const bool whole =
        found.is_object() && found.contains("weight_map") && found["weight_map"].is_object();
    if (!whole) refuse(index, "is no index of a checkpoint: it has no object 'weight_map'");
    for (const auto &[name, file] : found["weight_map"].items()) {
        std::error_code ignored;
        const bool there =
            file.is_string() && fs::exists(fs::path(path) / file.get<std::string>(), ignored);
        if (!there) {
            refuse(index, "names a file for '" + printable(name) + "' that is not there: " +
                              printable(file.is_string() ? file.get<std::string>() : file.dump()));
        }
    }
}

// "model.layers.11.mlp.up.weight": the prefix "model.layers." and 11. Others are before them all.
std::pair<std::string, uint64_t> layer_of(const std::string &name)
{
    size_t begin = 0;
    while (begin < name.size()) {
        const size_t end = std::min(name.find('.', begin), name.size());
        uint64_t number = 0;
        const char *const last = name.data() + end;
        const auto read = std::from_chars(name.data() + begin, last, number);
        if (end > begin && read.ec == std::errc() && read.ptr == last)
            return {name.substr(0, begin), number};
        begin = end + 1;
    }
    return {"", 0};
}

}  // namespace

bool is_checkpoint(const std::string &path)
{
    std::error_code ignored;
    if (fs::path(path).extension() == kEnding) return true;
    return fs::is_directory(path, ignored);
}

Model read_checkpoint(const std::string &path, const CheckpointUse &use)
{
    using Layers = std::map<std::pair<std::string, uint64_t>, std::vector<Stored>>;
    Layers layers;
    std::map<uint32_t, uint64_t> elements_by_size;  // of floats
    std::map<std::string, std::string> seen;        // by name, the file of a tensor
    check_index(path);
    for (const std::string &file : files_of(path)) {
        uint64_t behind = 0;
        const json header = header_of(file, &behind);
        for (const auto &[name, entry] : header.items()) {
            if (name == "__metadata__") continue;
            Stored stored = stored_of(file, name, entry, behind);
            const auto [known, is_new] = seen.emplace(name, file);
            if (!is_new) {
                refuse(file, "has a tensor '" + printable(name) + "' that '" +
                                 printable(known->second) + "' has as well");
            }
            if (stored.elements == 0) continue;
            if (stored.floats) elements_by_size[stored.element_bytes] += stored.elements;
            layers[layer_of(name)].push_back(std::move(stored));
        }
    }
    if (seen.empty()) refuse(path, "has no tensor: it is no checkpoint of safetensors");
    if (elements_by_size.empty()) refuse(path, "has no tensor of floating-point numbers to train");
    Model model;
    model.name = printable((fs::path(path) / "").parent_path().filename().string());
    // Parameters of another size are counted as so many of the usual one as have their bytes.
    model.parameter_bytes =
        std::max_element(elements_by_size.begin(), elements_by_size.end(),
                         [](const auto &a, const auto &b) { return a.second < b.second; })
            ->first;
    model.gradient_bytes = model.parameter_bytes;
    const std::map<std::string, uint64_t> values = {
        {"adamw", 2}, {"momentum", 1}, {"adagrad", 1}, {"sgd", 0}};
    if (values.count(use.optimizer) == 0)
        throw Refused("--optimizer takes adamw, momentum, adagrad or sgd, not '" +
                      printable(use.optimizer) + "'.");
    const bool has_masters = model.parameter_bytes < 4;
    model.state_bytes = 4 * (values.at(use.optimizer) + (has_masters ? 1 : 0));
    model.splits_masters = model.parameter_bytes == 2;
    model.recomputes = false;
    for (const auto &[place, tensors] : layers) {
        Layer layer;
        layer.name = place.first.empty() ? "others" : place.first + std::to_string(place.second);
        layer.activation_bytes = use.activation_bytes / layers.size();
        for (const Stored &stored : tensors) {
            simulate::Part part;
            part.name = stored.name;
            const uint64_t bytes = stored.elements * stored.element_bytes;
            part.parameters = std::max<uint64_t>(bytes / model.parameter_bytes, 1);
            part.forward_flops = 2 * use.tokens * static_cast<double>(part.parameters);
            part.frozen = !stored.floats;
            layer.parts.push_back(std::move(part));
        }
        model.layers.push_back(std::move(layer));
    }
    return model;
}

}  // namespace stepwell::cli
