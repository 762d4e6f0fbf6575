// SPDX-License-Identifier: Apache-2.0
// Tensors that are read and written without a view. An actor writes its own part of a board, alone
// in that part, while others write theirs: no write may be lost, and nobody may see another
// tensor's bytes, whatever is fetched, evicted or committed meanwhile.
#include "actor.h"

#include <algorithm>

// To the thread sanitizer a mapping that changes is a write of all that lies there.
#define STRESS_TOUCHES __attribute__((no_sanitize("thread")))

namespace stress {
namespace {

constexpr uint64_t kStride = 61;  // some elements of each page

STRESS_TOUCHES void fill_part(volatile float *values, uint64_t count, float value)
{
    for (uint64_t i = 0; i < count; ++i) values[i] = value;
}

struct Range {
    float least, most;
};

STRESS_TOUCHES Range range_of(const volatile float *values, uint64_t count)
{
    Range range{values[0], values[0]};
    for (uint64_t i = 0; i < count; i += kStride) {
        const float value = values[i];
        range.least = std::min(range.least, value);
        range.most = std::max(range.most, value);
    }
    const float last = values[count - 1];
    return {std::min(range.least, last), std::max(range.most, last)};
}

}  // namespace

// Its update may be on the way: old and new elements beside each other.
void Actor::touch_owned(const Owned &owned)
{
    if (!owned.address || (owned.empties.load() & 1) != 0) return;
    uint64_t floor = owned.floor.load();
    if (owned.views.load() > 0) floor = 0;
    world_.counters.touches.fetch_add(1);
    const Range seen = range_of(owned.address, owned.elements);
    const uint64_t peak = std::max(owned.peak.load(), owned.ceiling.load());
    if (seen.least >= static_cast<float>(floor) && seen.most <= static_cast<float>(peak)) return;
    world_.fail("actor %u touched '%s': %g to %g; it must be in [%llu, %llu]", number_,
                owned.name.c_str(), static_cast<double>(seen.least), static_cast<double>(seen.most),
                static_cast<unsigned long long>(floor), static_cast<unsigned long long>(peak));
}

void Actor::check_part(const Board &board, uint32_t part, const volatile float *values,
                       uint64_t floor, const char *how)
{
    const uint64_t begin = world_.part_begin(board, part);
    const Range seen = range_of(values + begin, world_.part_begin(board, part + 1) - begin);
    const uint64_t ceiling = board.parts[part].ceiling.load();
    if (seen.least >= static_cast<float>(floor) && seen.most <= static_cast<float>(ceiling)) return;
    world_.fail("actor %u: part %u of '%s' %s: %g to %g; it must be in [%llu, %llu]", number_, part,
                board.name.c_str(), how, static_cast<double>(seen.least),
                static_cast<double>(seen.most), static_cast<unsigned long long>(floor),
                static_cast<unsigned long long>(ceiling));
}

void Actor::touch_part(Board &board)
{
    Board::Part &mine = board.parts[number_];
    const uint64_t value = mine.ceiling.load() + 1;
    const uint64_t begin = world_.part_begin(board, number_);
    mine.ceiling.store(value);
    world_.counters.touches.fetch_add(1);
    fill_part(board.address + begin, world_.part_begin(board, number_ + 1) - begin,
              static_cast<float>(value));
    mine.floor.store(value);
}

// Of its own part it knows all, of others' that they have been written.
void Actor::look_at(Board &board)
{
    const auto part = static_cast<uint32_t>(chance(40) ? number_ : random(world_.actors));
    const uint64_t floor = board.parts[part].floor.load();
    if (floor == 0) return;
    world_.counters.touches.fetch_add(1);
    check_part(board, part, board.address, floor, "touched");
}

// By copies from and to memory of this actor's.
void Actor::copy_part(Board &board)
{
    Board::Part &mine = board.parts[number_];
    const uint64_t floor = mine.floor.load();
    if (floor == 0) return;
    // Interrupted half way, a write of a part leaves a tensor that only a write of all heals.
    if (chance(50) || world_.features.interrupts) {
        scratch_.resize(board.elements);
        const auto read = [&] { return stw_tensor_read(board.tensor, scratch_.data(), nullptr); };
        if (!accept("read of a board", again(read), false)) return;
        check_part(board, number_, scratch_.data(), floor, "read");
        return;
    }
    const uint64_t value = floor + 1;
    stw_copy_options part = STW_COPY_OPTIONS_INIT;
    part.element_begin = world_.part_begin(board, number_);
    part.element_count = world_.part_begin(board, number_ + 1) - part.element_begin;
    mine.ceiling.store(value);
    scratch_.assign(part.element_count, static_cast<float>(value));
    const auto write = [&] { return stw_tensor_write(board.tensor, scratch_.data(), &part); };
    if (accept("write of a part", again(write), false)) mine.floor.store(value);
}

// A view that reads, with others writing beside it, or one of its own part to write into.
void Actor::view_board(Board &board)
{
    Board::Part &mine = board.parts[number_];
    const uint64_t floor = mine.floor.load();
    if (floor == 0) return;
    stw_fetch_request request = STW_FETCH_REQUEST_INIT;
    request.tensor = board.tensor;
    const bool writes = chance(40);
    const uint64_t begin = world_.part_begin(board, number_);
    const uint64_t count = world_.part_begin(board, number_ + 1) - begin;
    if (writes) {
        request.access = STW_READ_WRITE;
        request.element_begin = begin;
        request.element_count = count;
    }
    const stw_fetch_options with = options(STW_FETCH_WAIT_ROOM);
    stw_view view;
    if (!accept("fetch of a board", stw_fetch(world_.runtime, &with, &request, 1, &view), false))
        return;
    auto *values = static_cast<float *>(view.pointer);
    if (writes) {
        mine.ceiling.store(floor + 1);
        fill_part(values, count, static_cast<float>(floor + 1));
    } else {
        check_part(board, number_, values, floor, "in a view");
        touch_part(board);
        check_part(board, number_, values, mine.floor.load(), "in a view beside a touch");
    }
    accept("release of a board", stw_release(&view, 1, STW_STREAM_HOST, 0), false);
    if (writes) mine.floor.store(floor + 1);
}

void Actor::renew_board(Board &board)
{
    const auto alone = locked<std::unique_lock<std::shared_mutex>>(board.lock);
    const stw_status status = stw_tensor_destroy(&board.tensor, 1);
    if (status == STW_ERROR_BUSY && world_.setup.store) return;  // a commit has it
    if (!accept("destroy of a board", status, false)) return;
    world_.make_board(board);
    world_.newest_board.store(&board);
}

// Frozen, it is read by all and written by nobody.
void Actor::freeze_board(Board &board)
{
    const auto alone = locked<std::unique_lock<std::shared_mutex>>(board.lock);
    if (!accept("freeze", stw_tensor_freeze(board.tensor, 1), false)) return;
    stw_fetch_request request = STW_FETCH_REQUEST_INIT;
    request.tensor = board.tensor;
    request.access = STW_READ_WRITE;
    const stw_fetch_options with = options(STW_FETCH_WAIT_ROOM);
    stw_view view;
    const stw_status status = stw_fetch(world_.runtime, &with, &request, 1, &view);
    if (status != STW_ERROR_INVALID)
        world_.fail("a view that writes to a frozen tensor: status %d", status);
    look_at(board);
    accept("thaw", stw_tensor_freeze(board.tensor, 0), false);
}

void Actor::board_operation()
{
    Board *board = world_.newest_board.load();
    if (!board || chance(60)) board = world_.boards[random(world_.boards.size())];
    const uint64_t kind = random(100);
    if (kind < 4) return renew_board(*board);
    if (kind < 6) return freeze_board(*board);
    if (kind < 20) {
        if (chance(20)) return touch_owned(*world_.sums[random(world_.sums.size())]);
        const Estate &estate = world_.estates[random(world_.actors)];
        return touch_owned(*estate.parameters[random(estate.parameters.size())]);
    }
    const auto together = locked<std::shared_lock<std::shared_mutex>>(board->lock);
    if (kind < 55) {
        touch_part(*board);
    } else if (kind < 75) {
        look_at(*board);
    } else if (kind < 87) {
        copy_part(*board);
    } else {
        view_board(*board);
    }
}

}  // namespace stress
