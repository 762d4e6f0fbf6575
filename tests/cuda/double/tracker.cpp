// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda/double/tracker.h"

#include "tests/cuda/double/control.h"

#include <algorithm>

namespace stepwell::cuda_double {
namespace {

using Wide = unsigned long long;  // for printf

std::string range_text(const Piece &piece, const Range &range)
{
    return text("[0x%llx, +%llu)", Wide{piece.address + (range.begin - piece.key)},
                Wide{range.end - range.begin});
}

Range keys_of(const Piece &piece)
{
    return {piece.key, piece.key + piece.bytes};
}

struct Wrong {
    int kind;
    const char *sentence;  // later one, its verb, range, earlier one
};

Wrong judge(bool earlier_wrote, bool writes)
{
    if (!writes)
        return {STW_DOUBLE_USED_BEFORE_READY,
                "%s %s %s, but is not ordered after %s, which writes these bytes."};
    if (earlier_wrote)
        return {STW_DOUBLE_WRITTEN_TWICE,
                "%s %s %s, but is not ordered after %s, which writes these bytes too."};
    return {STW_DOUBLE_OVERWRITTEN_IN_USE,
            "%s %s %s, but is not ordered after %s, which reads these bytes."};
}

}  // namespace

std::string name(const Epoch &epoch)
{
    return text("%s #%llu on stream %llu", epoch.what, Wide{epoch.serial}, Wide{epoch.stream});
}

bool Tracker::touch(const Touch &touch, const Epoch &self, const Clock &before, int kernel_device)
{
    const Place place = memory_.resolve(touch.address, touch.bytes, &pieces_);
    if (place == Place::kNowhere || place == Place::kPageable) {
        report_.add(STW_DOUBLE_BAD_ADDRESS,
                    text("%s %s [0x%llx, +%llu), which is not mapped, runs over an end, or is host "
                         "memory that is not registered; order no work on memory before it is "
                         "there.",
                         name(self).c_str(), touch.writes ? "writes" : "reads", Wide{touch.address},
                         Wide{touch.bytes}));
        return false;
    }
    const Clock &after = touch.any_time ? host_ : before;
    for (const Piece &piece : pieces_) {
        if (!accessible(piece, touch, self, kernel_device)) return false;
        for (const Conflict &conflict :
             accesses_.conflicts(keys_of(piece), touch.writes, self, after)) {
            const Wrong wrong = judge(conflict.earlier_wrote, touch.writes);
            const std::string range = range_text(piece, conflict.range);
            char sentence[512];
            std::snprintf(sentence, sizeof sentence, wrong.sentence, name(self).c_str(),
                          touch.writes ? "writes" : "reads", range.c_str(),
                          name(conflict.earlier).c_str());
            report_.add(wrong.kind, sentence);
        }
        accesses_.record(keys_of(piece), touch.writes, self, after);
    }
    uses_.record({touch.address, touch.address + touch.bytes}, false, self, before);
    settle_if_large();
    return true;
}

void Tracker::host_touch(const Touch &touch, const char *what)
{
    const char *verb = touch.writes ? "writes" : "reads";
    if (memory_.resolve(touch.address, touch.bytes, &pieces_) == Place::kNowhere) {
        report_.add(STW_DOUBLE_BAD_ADDRESS,
                    text("%s %s [0x%llx, +%llu), which is not mapped.", what, verb,
                         Wide{touch.address}, Wide{touch.bytes}));
        return;
    }
    for (const Piece &piece : pieces_)
        for (const Conflict &conflict :
             accesses_.conflicts(keys_of(piece), touch.writes, {}, host_))
            report_.add(STW_DOUBLE_HOST_TOO_EARLY,
                        text("%s %s %s while %s, which %s these bytes, may still run: nothing has "
                             "told the host that it ended.",
                             what, verb, range_text(piece, conflict.range).c_str(),
                             name(conflict.earlier).c_str(),
                             conflict.earlier_wrote ? "writes" : "reads"));
}

bool Tracker::gone(Address address, uint64_t bytes, const char *what)
{
    const Range range{address, address + bytes};
    const std::vector<Conflict> users = uses_.conflicts(range, true, {}, host_);
    for (const Conflict &user : users)
        report_.add(STW_DOUBLE_GONE_IN_USE,
                    text("%s takes away [0x%llx, +%llu) while %s, which touches these bytes, may "
                         "still run: nothing has told the host that it ended.",
                         what, Wide{user.range.begin}, Wide{user.range.end - user.range.begin},
                         name(user.earlier).c_str()));
    uses_.forget(range);
    // Memory of a device is never named the same again; a host address soon is.
    accesses_.forget(range);
    return users.empty();
}

bool Tracker::accessible(const Piece &piece, const Touch &touch, const Epoch &self,
                         int kernel_device)
{
    if (piece.mapping == nullptr) return true;
    const auto &access = piece.mapping->access;
    const uint8_t needed = touch.writes ? kAccessReadWrite : kAccessRead;
    const auto enough = [&](uint8_t granted) { return (granted & needed) == needed; };
    const bool some = std::any_of(access.begin(), access.end(), enough);
    if (kernel_device < 0 ? some : enough(access[static_cast<size_t>(kernel_device)])) return true;
    const bool elsewhere = some && kernel_device >= 0;
    report_.add(elsewhere ? STW_DOUBLE_WRONG_CONTEXT : STW_DOUBLE_BAD_ADDRESS,
                text("%s %s [0x%llx, +%llu), to which %s has no such access; %s.",
                     name(self).c_str(), touch.writes ? "writes" : "reads", Wide{piece.address},
                     Wide{piece.bytes}, kernel_device < 0 ? "any device" : "its device",
                     elsewhere ? "it is memory of another device"
                               : "a mapping has none before cuMemSetAccess grants it"));
    return false;
}

// What has been settled need not be looked at again by anybody.
void Tracker::settle_if_large()
{
    if (accesses_.cells() + uses_.cells() < settle_at_) return;
    accesses_.settle(host_);
    uses_.settle(host_);
    settle_at_ = std::max<size_t>(256, 2 * (accesses_.cells() + uses_.cells()));
}

}  // namespace stepwell::cuda_double
