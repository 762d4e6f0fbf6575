// SPDX-License-Identifier: Apache-2.0
// Regions of manifests, and the order in which they and the blocks come to the disk.
#include "lib/store/generations.h"

#include "lib/store/checksum.h"
#include "lib/store/sync_io.h"
#include "lib/support/assert.h"

#include <algorithm>
#include <cinttypes>
#include <cstring>

namespace stepwell::store {

namespace {

// FORMAT OF THE FILE, version 1: 64 KiB of header (magic, version, regions, UUID, bytes of a
// region; their checksum), then the regions.
constexpr uint8_t kKeepMagic[8] = {'S', 'T', 'W', 'K', 'E', 'P', '\r', '\n'};
constexpr uint64_t kHeaderBytes = 64 << 10;
constexpr uint32_t kNoRegion = UINT32_MAX;
constexpr const char *kWhat = "the generations";

struct Header {
    uint8_t magic[8];
    uint32_t version;
    uint32_t regions;
    uint8_t uuid[16];
    uint64_t region_bytes;
    uint64_t sum;  // of what is before
};
static_assert(sizeof(Header) == 48 && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__);

uint64_t sum_of(const Header &header)
{
    return checksum(&header, offsetof(Header, sum), 0);
}

GenerationInfo info_of(const Manifest &manifest)
{
    GenerationInfo info;
    info.id = manifest.id;
    info.time_unix_ns = manifest.time_unix_ns;
    info.tensors = manifest.tensors.size();
    for (const StoredTensor &tensor : manifest.tensors) info.bytes += tensor.bytes;
    info.left_out = manifest.left_out;
    info.label = manifest.label;
    info.metadata = manifest.metadata;
    return info;
}

bool lists(const std::vector<GenerationId> &ids, const GenerationId &id)
{
    return std::find(ids.begin(), ids.end(), id) != ids.end();
}

}  // namespace

// Metadata, a block's entry and the tensors that lie in it; a model of many small tensors has
// several in a block.
uint64_t Generations::region_bytes(uint64_t slots)
{
    const uint64_t bytes = kMetadataBytesMax + (512 << 10) + slots * 256;
    return (bytes + kHeaderBytes - 1) / kHeaderBytes * kHeaderBytes;
}

uint64_t Generations::file_bytes(uint64_t slots, uint32_t kept)
{
    return kHeaderBytes + (uint64_t{kept} + 1) * region_bytes(slots);
}

Generations::Generations(const GenerationsOptions &options, Store &store)
    : options_(options),
      store_(store),
      path_(store.name(0)),
      ops_(store.ops(0)),
      kept_(options.kept),
      regions_(uint64_t{options.kept} + 1)
{
    uint64_t slots = 0;
    for (uint32_t path = 0; path < store.paths(); ++path) slots += store.superblock(path).slots;
    region_bytes_ = region_bytes(slots);
}

Result<std::unique_ptr<Generations>> Generations::open(const GenerationsOptions &options,
                                                       Store &store)
{
    STW_ASSERT(options.kept >= 1 && options.kept <= kGenerationsMax);
    std::unique_ptr<Generations> made(new Generations(options, store));
    const bool finds = options.stay == Stay::kOpen;
    STW_TRY(made->open_file(finds));
    STW_TRY(finds ? made->read_header() : made->write_header());
    for (uint32_t region = 0; finds && region < made->regions_.size(); ++region) {
        STW_TRY(made->look_at(region));
    }
    return made;
}

Status Generations::open_file(bool finds)
{
    stw_storage_options driver{};
    driver.struct_size = sizeof driver;
    driver.queue_depth = 1;
    driver.path = path_.c_str();
    driver.bytes = bytes();
    driver.options = options_.driver_options.empty() ? nullptr : options_.driver_options.c_str();
    driver.name = options_.name.c_str();
    driver.name_access = finds ? STW_STORAGE_NAME_OPEN
                               : (options_.stay == Stay::kCreate ? STW_STORAGE_NAME_CREATE
                                                                 : STW_STORAGE_NAME_REPLACE);
    stw_driver_error error = STW_DRIVER_ERROR_INIT;
    const stw_status code = ops_.open(options_.services, &driver, &storage_, &error);
    if (code >= 0) return {};
    storage_ = nullptr;
    if (code == STW_ERROR_MISMATCH) {
        return Status::error(code,
                             "The generations in '%s' ('%s') are not %u: %s Give generations_kept "
                             "as the store was made with.",
                             path_.c_str(), options_.name.c_str(), kept_, error.sentence);
    }
    Status status = Status::error(code, "%s", error.sentence[0] ? error.sentence : "no sentence");
    status.mutable_detail().os_errno = error.os_errno;
    status.mutable_detail().needed_bytes = error.needed_bytes;
    status.mutable_detail().free_bytes = error.free_bytes;
    return status;
}

Generations::~Generations()
{
    (void)close(0);
}

Status Generations::close(uint64_t wait_ns)
{
    if (storage_ == nullptr) return {};
    const stw_status code = ops_.close(storage_, wait_ns);
    if (code != STW_ERROR_TIMEOUT) storage_ = nullptr;
    if (code >= 0) return {};
    return Status::error(code, "The generations in '%s' could not be closed (status %d).",
                         path_.c_str(), code);
}

uint64_t Generations::bytes() const
{
    return kHeaderBytes + regions_.size() * region_bytes_;
}

uint64_t Generations::offset_of(uint32_t region) const
{
    return kHeaderBytes + region * region_bytes_;
}

// ---------------------------------------------------------------------------------- the file ----

// A region holds whatever the disk had there: no manifest of this store, whose UUID is new.
Status Generations::write_header()
{
    Header header{};
    std::memcpy(header.magic, kKeepMagic, sizeof kKeepMagic);
    header.version = 1;
    header.regions = static_cast<uint32_t>(regions_.size());
    std::memcpy(header.uuid, store_.uuid().data(), sizeof header.uuid);
    header.region_bytes = region_bytes_;
    header.sum = sum_of(header);
    SyncIo io(ops_, storage_, *options_.services, options_.timeout_ns, path_, kWhat);
    STW_TRY(io.write(0, &header, sizeof header));
    return flush();
}

Status Generations::read_header()
{
    Header header{};
    SyncIo io(ops_, storage_, *options_.services, options_.timeout_ns, path_, kWhat);
    STW_TRY(io.read(0, &header, sizeof header));
    const Header nothing{};
    if (std::memcmp(&header, &nothing, sizeof header) == 0) {
        return Status::error(STW_ERROR_NOT_FOUND,
                             "The store '%s' in '%s' was made and never finished; it holds no "
                             "generation.",
                             options_.name.c_str(), path_.c_str());
    }
    const bool whole = std::memcmp(header.magic, kKeepMagic, sizeof kKeepMagic) == 0 &&
                       header.sum == sum_of(header) && header.version == 1;
    if (!whole || header.regions != regions_.size() || header.region_bytes != region_bytes_) {
        return Status::error(STW_ERROR_FORMAT,
                             "'%s/%s' is damaged, or of another version: its header does not say "
                             "%zu manifests of %" PRIu64 " bytes under a checksum that holds.",
                             path_.c_str(), options_.name.c_str(), regions_.size(), region_bytes_);
    }
    if (std::memcmp(header.uuid, store_.uuid().data(), sizeof header.uuid) == 0) return {};
    return Status::error(STW_ERROR_NOT_FOUND,
                         "'%s/%s' has the generations of a store that was overwritten since; the "
                         "one that is there has none.",
                         path_.c_str(), options_.name.c_str());
}

// A region without a manifest is no error: one that was being written when the power went.
Status Generations::look_at(uint32_t index)
{
    Result<Manifest> manifest = read(index);
    if (!manifest.ok()) {
        const stw_status code = manifest.status().code();
        if (code == STW_ERROR_IO) damage_ = manifest.status().sentence();
        if (code == STW_ERROR_IO) return {};
        if (code != STW_ERROR_FORMAT) return manifest.status();
        uint8_t header[kManifestHeaderBytes];
        SyncIo io(ops_, storage_, *options_.services, options_.timeout_ns, path_, kWhat);
        STW_TRY(io.read(offset_of(index), header, sizeof header));
        if (is_of_store(header, store_.uuid())) damage_ = manifest.status().sentence();
        return {};
    }
    // Two of version 1 may be one that was written twice.
    if (region_of(manifest.value().id) != kNoRegion) {
        damage_ = format_text("Two manifests in '%s/%s' are generation %" PRIu64
                              ", and one of them lies in the place of another.",
                              path_.c_str(), options_.name.c_str(), manifest.value().id.number);
        return {};
    }
    regions_[index] = {manifest.value().id, manifest.value().kept, true};
    return {};
}

Result<Manifest> Generations::read(uint32_t region)
{
    std::vector<uint8_t> bytes(kManifestHeaderBytes);
    SyncIo io(ops_, storage_, *options_.services, options_.timeout_ns, path_, kWhat);
    STW_TRY(io.read(offset_of(region), bytes.data(), bytes.size()));
    const uint64_t size = manifest_bytes(bytes.data(), region_bytes_);
    if (size > 0) {
        bytes.resize(size);
        STW_TRY(io.read(offset_of(region), bytes.data(), size));
    }
    return decode_manifest(bytes.data(), bytes.size(), store_.uuid(), region,
                           (path_ + "/" + options_.name).c_str());
}

Status Generations::flush()
{
    return flush_file(ops_, storage_, path_ + "/" + options_.name);
}

Status Generations::erase(const std::vector<uint32_t> &regions)
{
    if (regions.empty()) return {};
    const uint8_t zeros[kManifestHeaderBytes] = {};
    SyncIo io(ops_, storage_, *options_.services, options_.timeout_ns, path_, kWhat);
    for (const uint32_t region : regions) {
        STW_TRY(io.write(offset_of(region), zeros, sizeof zeros));
    }
    STW_TRY(flush());
    for (const uint32_t region : regions) regions_[region] = Region();
    return {};
}

// --------------------------------------------------------------------------------- reopening ----

std::vector<GenerationId> resumable(const std::vector<std::vector<GenerationId>> &found,
                                    uint32_t kept)
{
    std::vector<GenerationId> ids;
    for (const GenerationId &id : found.front()) {
        const bool common = std::all_of(found.begin(), found.end(),
                                        [&](const auto &others) { return lists(others, id); });
        if (common && ids.size() < kept) ids.push_back(id);
    }
    return ids;
}

// The newest manifest says which others there were when it was written: one that it does not list
// was dropped before that, and its slots may hold other things by now.
std::vector<GenerationId> Generations::found() const
{
    const Region *newest = nullptr;
    for (const Region &region : regions_) {
        if (region.whole && (newest == nullptr || region.id > newest->id)) newest = &region;
    }
    std::vector<GenerationId> ids;
    if (newest == nullptr) return ids;
    for (const Region &region : regions_) {
        if (!region.whole) continue;
        if (&region == newest || lists(newest->kept, region.id)) ids.push_back(region.id);
    }
    std::sort(ids.begin(), ids.end(), std::greater<>());
    return ids;
}

uint32_t Generations::region_of(const GenerationId &id) const
{
    for (uint32_t region = 0; region < regions_.size(); ++region) {
        if (regions_[region].whole && regions_[region].id == id) return region;
    }
    return kNoRegion;
}

Result<Manifest> Generations::resume(const GenerationId &id,
                                     const std::vector<GenerationId> &resumable)
{
    STW_ASSERT(lists(resumable, id) && region_of(id) != kNoRegion);
    STW_ASSERT(resumable.size() <= kept_);
    Result<Manifest> chosen = read(region_of(id));
    if (!chosen.ok()) return chosen;
    // What was dropped first: with what is newer goes the reason why it is not looked for.
    std::vector<uint32_t> dropped;
    std::vector<uint32_t> newer;
    for (uint32_t region = 0; region < regions_.size(); ++region) {
        if (!regions_[region].whole) continue;
        if (regions_[region].id > id) {
            newer.push_back(region);
        } else if (!lists(resumable, regions_[region].id)) {
            dropped.push_back(region);
        }
    }
    STW_TRY(erase(dropped));
    STW_TRY(erase(newer));
    for (const GenerationId &kept : resumable) {
        if (kept > id) continue;
        const uint32_t region = region_of(kept);
        Result<Manifest> manifest = kept == id ? chosen : read(region);
        if (!manifest.ok()) return manifest;
        for (const Placement &block : manifest.value().blocks) {
            STW_TRY(store_.load(block, region));
        }
        infos_.push_back(info_of(manifest.value()));
        count_slots(manifest.value());
    }
    store_.loaded();
    slots_counted_.clear();
    return chosen;
}

void Generations::count_slots(const Manifest &manifest)
{
    for (const StoredTensor &tensor : manifest.tensors) {
        for (const uint32_t block : tensor.blocks) {
            if (block == kNoBlock) continue;
            const Placement &place = manifest.blocks[block];
            if (slots_counted_.emplace(place.path, place.slot).second)
                ++slots_by_tensor_[tensor.name];
        }
    }
}

// ---------------------------------------------------------------------------------- one more ----

uint64_t Generations::next_number() const
{
    return infos_.empty() ? 1 : infos_.front().id.number + 1;
}

bool Generations::is_kept(uint32_t region) const
{
    return std::any_of(infos_.begin(), infos_.end(), [&](const GenerationInfo &info) {
        return regions_[region].whole && regions_[region].id == info.id;
    });
}

Result<uint32_t> Generations::begin()
{
    if (!stuck_.ok()) return stuck_;
    STW_ASSERT(attempt_region_ == kNoRegion);
    for (uint32_t region = 0; region < regions_.size(); ++region) {
        if (is_kept(region)) continue;
        attempt_region_ = region;
        attempt_written_ = false;
        return region;
    }
    return Status::error(STW_ERROR_INTERNAL,
                         "No region is left in '%s/%s' for a generation: %zu are kept in %zu.",
                         path_.c_str(), options_.name.c_str(), infos_.size(), regions_.size());
}

Status Generations::prepare(Manifest manifest)
{
    STW_ASSERT(attempt_region_ != kNoRegion);
    manifest.region = attempt_region_;
    manifest.kept.clear();
    for (const GenerationInfo &info : infos_) manifest.kept.push_back(info.id);
    const std::vector<uint8_t> bytes = encode(manifest, store_.uuid());
    if (bytes.size() > region_bytes_) {
        return Status::error(STW_ERROR_LIMIT,
                             "The manifest of generation %" PRIu64
                             " takes %s, and the store in '%s' has %s for one; give less metadata, "
                             "shorter names, or a store with a larger budget.",
                             manifest.id.number, bytes_text(bytes.size()).c_str(), path_.c_str(),
                             bytes_text(region_bytes_).c_str());
    }
    // Blocks before the manifest that says they are there.
    Status status = store_.flush();
    if (status.ok()) {
        attempt_written_ = true;
        SyncIo io(ops_, storage_, *options_.services, options_.timeout_ns, path_, kWhat);
        status = io.write(offset_of(attempt_region_), bytes.data(), bytes.size());
    }
    if (status.ok()) status = flush();
    if (status.code() == STW_ERROR_SYNC || status.code() == STW_ERROR_TIMEOUT) stuck_ = status;
    STW_TRY(std::move(status));
    regions_[attempt_region_] = {manifest.id, manifest.kept, true};
    attempt_ = info_of(manifest);
    return {};
}

// Its manifest stays where it is, and is not looked for any more.
void Generations::drop_oldest()
{
    const uint32_t region = region_of(infos_.back().id);
    infos_.pop_back();
    regions_[region].whole = false;
    store_.drop(region);
}

void Generations::commit()
{
    STW_ASSERT(attempt_region_ != kNoRegion && regions_[attempt_region_].whole);
    infos_.insert(infos_.begin(), std::move(attempt_));
    attempt_region_ = kNoRegion;
    if (infos_.size() > kept_) drop_oldest();
}

Status Generations::refuse()
{
    STW_ASSERT(attempt_region_ != kNoRegion);
    const uint32_t region = attempt_region_;
    attempt_region_ = kNoRegion;
    if (attempt_written_) {
        Status erased = stuck_.ok() ? erase({region}) : stuck_;
        if (!erased.ok()) {
            stuck_ = erased;
            return erased;
        }
    }
    store_.drop(region);
    return {};
}

void Generations::doubt(const Status &why)
{
    STW_ASSERT(attempt_region_ != kNoRegion);
    attempt_region_ = kNoRegion;
    stuck_ = Status::error(why.code(),
                           "generation %" PRIu64
                           " is undecided, as the vote on it was not heard; the store is to be "
                           "opened again on all ranks before another one is taken: %s",
                           attempt_.id.number, why.sentence());
    // Those who have heard the vote may have dropped the oldest; nobody needs it but to go back.
    if (infos_.size() < kept_ || infos_.size() < 2) return;
    const uint32_t oldest = region_of(infos_.back().id);
    if (!erase({oldest}).ok()) return;
    infos_.pop_back();
    store_.drop(oldest);
}

}  // namespace stepwell::store
