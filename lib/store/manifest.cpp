// SPDX-License-Identifier: Apache-2.0
// A manifest to bytes and back. The reader takes nothing that is not there: each count is compared
// with the bytes that are left before anything is allocated for it.
#include "lib/store/manifest.h"

#include "lib/store/checksum.h"

#include <cinttypes>
#include <cstring>

namespace stepwell::store {

namespace {

constexpr uint8_t kManifestMagic[8] = {'S', 'T', 'W', 'G', 'E', 'N', '\r', '\n'};
constexpr uint32_t kVersion = 2;
constexpr uint32_t kWithoutRegion = 1;
constexpr uint64_t kSumBytes = 8;
constexpr uint64_t kKeptBytes = 16;
constexpr uint64_t kBlockBytes = 28;
constexpr uint64_t kTensorBytes = 32;  // without blocks and text
constexpr uint64_t kCountBytes = 12;   // without text

class Writer {
public:
    template <class T> void put(T value)
    {
        for (size_t i = 0; i < sizeof(T); ++i)
            bytes_.push_back(static_cast<uint8_t>(value >> (8 * i)));
    }
    void put_bytes(const void *data, size_t size)
    {
        const auto *from = static_cast<const uint8_t *>(data);
        bytes_.insert(bytes_.end(), from, from + size);
    }
    void put_text(const std::string &text)
    {
        put<uint32_t>(static_cast<uint32_t>(text.size()));
        put_bytes(text.data(), text.size());
    }
    void set_size(uint64_t size)
    {
        for (size_t i = 0; i < 8; ++i) bytes_[16 + i] = static_cast<uint8_t>(size >> (8 * i));
    }
    std::vector<uint8_t> take() { return std::move(bytes_); }
    [[nodiscard]] const std::vector<uint8_t> &bytes() const { return bytes_; }

private:
    std::vector<uint8_t> bytes_;
};

// Past the end everything reads as zero, and bad() says so.
class Reader {
public:
    Reader(const uint8_t *bytes, uint64_t size) : at_(bytes), left_(size) {}

    template <class T> T get()
    {
        T value = 0;
        if (!has(sizeof(T))) return value;
        for (size_t i = 0; i < sizeof(T); ++i)
            value |= static_cast<T>(static_cast<T>(at_[i]) << (8 * i));
        skip(sizeof(T));
        return value;
    }
    std::string get_text()
    {
        const auto size = get<uint32_t>();
        if (!has(size)) return {};
        std::string text(reinterpret_cast<const char *>(at_), size);
        skip(size);
        return text;
    }
    // Whether so many entries of at least so many bytes each can follow.
    bool fits(uint64_t count, uint64_t each)
    {
        if (count <= left_ / each) return true;
        bad_ = true;
        return false;
    }
    [[nodiscard]] bool bad() const { return bad_; }
    [[nodiscard]] uint64_t left() const { return left_; }

private:
    bool has(uint64_t size)
    {
        bad_ |= size > left_;
        return !bad_;
    }
    void skip(uint64_t size)
    {
        at_ += size;
        left_ -= size;
    }

    const uint8_t *at_;
    uint64_t left_;
    bool bad_ = false;
};

Status refuse(const char *name, const char *why)
{
    return Status::error(STW_ERROR_FORMAT, "A manifest in '%s' is damaged or foreign: %s.", name,
                         why);
}

Placement get_block(Reader &reader)
{
    Placement block;
    block.path = reader.get<uint32_t>();
    block.slot = reader.get<uint32_t>();
    block.sealed_as = reader.get<uint32_t>();
    block.generation = reader.get<uint32_t>();
    block.bytes = reader.get<uint32_t>();
    block.sum = reader.get<uint64_t>();
    return block;
}

Status get_tensor(Reader &reader, uint64_t blocks, const char *name, StoredTensor *tensor)
{
    tensor->bytes = reader.get<uint64_t>();
    tensor->offset = reader.get<uint64_t>();
    tensor->flags = reader.get<uint32_t>();
    const auto count = reader.get<uint32_t>();
    if (!reader.fits(count, 4))
        return refuse(name, "a tensor has more blocks than there are bytes");
    for (uint32_t i = 0; i < count; ++i) {
        const auto block = reader.get<uint32_t>();
        if (block != kNoBlock && block >= blocks)
            return refuse(name, "a tensor names a block that is not in it");
        tensor->blocks.push_back(block);
    }
    tensor->name = reader.get_text();
    tensor->words = reader.get_text();
    if (tensor->name.empty()) return refuse(name, "a tensor has no name");
    if ((tensor->flags & ~uint32_t{StoredTensor::kHasContents | StoredTensor::kShares}) != 0)
        return refuse(name, "a tensor has flags that this build does not know");
    return {};
}

Status get_lists(Reader &reader, const char *name, Manifest *manifest)
{
    const auto kept = reader.get<uint32_t>();
    const auto blocks = reader.get<uint32_t>();
    const auto tensors = reader.get<uint32_t>();
    const auto counts = reader.get<uint32_t>();
    if (kept > kKeepsMax || !reader.fits(kept, kKeptBytes) || !reader.fits(blocks, kBlockBytes) ||
        !reader.fits(tensors, kTensorBytes) || !reader.fits(counts, kCountBytes))
        return refuse(name, "a list is longer than its bytes");
    if (manifest->region != kAnyRegion) (void)reader.get<uint64_t>();
    for (uint32_t i = 0; i < kept; ++i) {
        const auto number = reader.get<uint64_t>();
        manifest->kept.push_back({number, reader.get<uint64_t>()});
    }
    manifest->blocks.reserve(blocks);
    for (uint32_t i = 0; i < blocks; ++i) manifest->blocks.push_back(get_block(reader));
    manifest->tensors.resize(tensors);
    for (StoredTensor &tensor : manifest->tensors)
        STW_TRY(get_tensor(reader, blocks, name, &tensor));
    manifest->counts.resize(counts);
    for (StoredCount &count : manifest->counts) {
        count.count = reader.get<uint64_t>();
        count.name = reader.get_text();
    }
    return {};
}

}  // namespace

uint64_t stored_bytes(size_t name, size_t words, uint64_t blocks)
{
    return kTensorBytes + 4 * blocks + name + words;
}

std::vector<uint8_t> encode(const Manifest &manifest, const Uuid &uuid)
{
    Writer out;
    out.put_bytes(kManifestMagic, sizeof kManifestMagic);
    out.put<uint32_t>(manifest.region == kAnyRegion ? kWithoutRegion : kVersion);
    out.put<uint32_t>(manifest.left_out);
    out.put<uint64_t>(0);
    out.put_bytes(uuid.data(), uuid.size());
    out.put<uint64_t>(manifest.id.number);
    out.put<uint64_t>(manifest.id.token);
    out.put<uint64_t>(manifest.time_unix_ns);
    out.put<uint32_t>(static_cast<uint32_t>(manifest.kept.size()));
    out.put<uint32_t>(static_cast<uint32_t>(manifest.blocks.size()));
    out.put<uint32_t>(static_cast<uint32_t>(manifest.tensors.size()));
    out.put<uint32_t>(static_cast<uint32_t>(manifest.counts.size()));
    if (manifest.region != kAnyRegion) out.put<uint64_t>(manifest.region);
    for (const GenerationId &id : manifest.kept) {
        out.put<uint64_t>(id.number);
        out.put<uint64_t>(id.token);
    }
    for (const Placement &block : manifest.blocks) {
        out.put<uint32_t>(block.path);
        out.put<uint32_t>(block.slot);
        out.put<uint32_t>(block.sealed_as);
        out.put<uint32_t>(block.generation);
        out.put<uint32_t>(static_cast<uint32_t>(block.bytes));
        out.put<uint64_t>(block.sum);
    }
    for (const StoredTensor &tensor : manifest.tensors) {
        out.put<uint64_t>(tensor.bytes);
        out.put<uint64_t>(tensor.offset);
        out.put<uint32_t>(tensor.flags);
        out.put<uint32_t>(static_cast<uint32_t>(tensor.blocks.size()));
        for (const uint32_t block : tensor.blocks) out.put<uint32_t>(block);
        out.put_text(tensor.name);
        out.put_text(tensor.words);
    }
    for (const StoredCount &count : manifest.counts) {
        out.put<uint64_t>(count.count);
        out.put_text(count.name);
    }
    out.put_text(manifest.label);
    out.put_text(manifest.metadata);
    out.set_size(out.bytes().size() + kSumBytes);
    out.put<uint64_t>(checksum(out.bytes().data(), out.bytes().size(), 0));
    return out.take();
}

uint64_t manifest_bytes(const uint8_t *header, uint64_t most)
{
    if (std::memcmp(header, kManifestMagic, sizeof kManifestMagic) != 0) return 0;
    Reader reader(header + 16, 8);
    const auto size = reader.get<uint64_t>();
    return size < kManifestHeaderBytes + kSumBytes || size > most ? 0 : size;
}

bool is_of_store(const uint8_t *header, const Uuid &uuid)
{
    return std::memcmp(header, kManifestMagic, sizeof kManifestMagic) == 0 &&
           std::memcmp(header + 24, uuid.data(), uuid.size()) == 0;
}

namespace {

// That of a misdirected write is whole, and there is another one of its generation, or will be.
Status check_region(const uint8_t *bytes, uint64_t size, uint64_t region, const char *name)
{
    Reader reader(bytes + kManifestHeaderBytes, size - kManifestHeaderBytes);
    const auto own = reader.get<uint64_t>();
    if (own == region) return {};
    return Status::error(STW_ERROR_FORMAT,
                         "A manifest in '%s' is damaged or foreign: it was written for region "
                         "%" PRIu64 ", and lies in region %" PRIu64 ".",
                         name, own, region);
}

}  // namespace

Result<Manifest> decode_manifest(const uint8_t *bytes, uint64_t size, const Uuid &uuid,
                                 uint64_t region, const char *name)
{
    if (size < kManifestHeaderBytes + kSumBytes || manifest_bytes(bytes, size) != size)
        return refuse(name, "it does not begin as one, or says another size");
    Reader sum(bytes + size - kSumBytes, kSumBytes);
    if (sum.get<uint64_t>() != checksum(bytes, size - kSumBytes, 0))
        return refuse(name, "its checksum is not that of its bytes");
    Reader reader(bytes + 8, size - 8 - kSumBytes);
    const auto version = reader.get<uint32_t>();
    if (version != kVersion && version != kWithoutRegion)
        return refuse(name, "this build does not read its format version");
    const auto left_out = reader.get<uint32_t>();
    (void)reader.get<uint64_t>();
    if (std::memcmp(bytes + 24, uuid.data(), uuid.size()) != 0)
        return refuse(name, "it is another store's");
    for (size_t i = 0; i < uuid.size() / 8; ++i) (void)reader.get<uint64_t>();
    Manifest manifest;
    manifest.left_out = left_out;
    if (version != kWithoutRegion) {
        STW_TRY(check_region(bytes, size, region, name));
        manifest.region = region;
    }
    manifest.id.number = reader.get<uint64_t>();
    manifest.id.token = reader.get<uint64_t>();
    manifest.time_unix_ns = reader.get<uint64_t>();
    STW_TRY(get_lists(reader, name, &manifest));
    manifest.label = reader.get_text();
    manifest.metadata = reader.get_text();
    if (reader.bad()) return refuse(name, "it ends in the middle of a field");
    if (reader.left() != 0) return refuse(name, "bytes are left behind its end");
    return manifest;
}

}  // namespace stepwell::store
