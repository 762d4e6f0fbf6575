// SPDX-License-Identifier: Apache-2.0
// One thread of a stress run: a random program over the public API, the same for the same seed and
// number. It checks every byte it is shown.
#pragma once

#include "world.h"

namespace stress {

// Values stay whole numbers that a float holds exactly.
constexpr uint64_t kValueMax = 1u << 23;

class Actor {
public:
    Actor(World &world, uint32_t number);
    // Gives everything it owns and shares its first contents. One thread, before run().
    void settle();
    void run(uint64_t operations);
    // Checks and releases a view that another thread fetched.
    void open_parcel(const World::Parcel &parcel);

private:
    uint64_t random(uint64_t below) { return next_random(&state_) % below; }
    bool chance(uint32_t percent) { return random(100) < percent; }
    // OK, or an outcome that the caller may meet; anything else fails the run.
    bool accept(const char *what, stw_status status, bool empty_allowed);
    stw_fetch_options options(uint32_t flags) const;
    uint32_t a_tier();

    // shared.cpp: tensors that everybody writes
    struct Claim {
        Shared *tensor = nullptr;
        stw_fetch_request request = STW_FETCH_REQUEST_INIT;
        stw_view view{};
        bool abandoned = false;
    };
    uint32_t choose(Claim *claims, uint32_t count_max, uint32_t first);
    void range(Claim &claim);
    bool fetch(Claim *claims, uint32_t n, uint32_t flags);
    bool fetch_async(Claim *claims, uint32_t n, uint32_t flags);
    void use(Claim &claim);
    void verify(const Shared &tensor, const stw_view &view, const char *when);
    void write(Claim &claim);
    void give_back(Claim *claims, uint32_t n);
    void share_operation();
    void nested(Claim *claims, uint32_t n);
    void repair(Shared &tensor);

    // estate.cpp: tensors that this actor alone changes
    void own_operation();
    void write_own(Owned &owned);
    void fill_own(Owned &owned);
    void discard_own(Owned &owned);
    void freeze_own(Owned &owned);
    void restore(Owned &owned);
    void commit(Owned &owned, stw_status status, uint64_t value, uint64_t distrust);
    void read_owned(Owned &owned, bool copies);
    void copy_owned();
    stw_status copy_behind(const stw_fetch_request *requests, uint32_t n, stw_view *views);
    void check_owned(const Owned &owned, const float *values, uint64_t count, uint64_t floor,
                     uint64_t distrust, float slack = 0);
    Owned &any_owned();

    // train.cpp: its parameters and their gradients
    void train();
    stw_status step_early(uint32_t parameter);
    void reduce_into(uint32_t parameter, uint64_t amount);
    bool reduce_view(stw_tensor *gradient, uint64_t elements, uint64_t amount);
    void sum_operation();
    void restart_parameters();
    void raise(uint64_t (&after)[2]);
    void abort_step();
    void ask_before_verdict(uint32_t parameter);
    void recover();
    bool empty_gradient(uint32_t parameter);

    // touch.cpp: boards, and parameters without a view
    void board_operation();
    void touch_owned(const Owned &owned);
    void touch_part(Board &board);
    void look_at(Board &board);
    void copy_part(Board &board);
    void view_board(Board &board);
    void check_part(const Board &board, uint32_t part, const volatile float *values, uint64_t floor,
                    const char *how);
    void renew_board(Board &board);
    void freeze_board(Board &board);
    template <class Lock> Lock locked(std::shared_mutex &mutex);

    // hints, evictions, statistics
    void hint_operation();
    void evict_operation();
    void commit_operation();
    stw_tensor *any_tensor();
    void step_operation();
    const char *operate(uint64_t kind);
    // Repeats what an interrupt ended.
    template <class Call> stw_status again(Call &&call)
    {
        stw_status status = call();
        while (status == STW_ERROR_INTERRUPTED && world_.features.interrupts) status = call();
        return status;
    }

    World &world_;
    Estate &mine_;
    const uint32_t number_;
    uint64_t state_;
    bool step_open_ = false;
    uint32_t touched_ = 0;    // a bit for each gradient that train() reduced into
    uint64_t locked_ns_ = 0;  // in the present operation, for another actor and not for the library
    std::vector<float> scratch_;
};

// Time that passes in it is no call's.
template <class Lock> Lock Actor::locked(std::shared_mutex &mutex)
{
    const uint64_t begin = World::now_ns();
    Lock lock(mutex);
    locked_ns_ += World::now_ns() - begin;
    return lock;
}

}  // namespace stress
