// SPDX-License-Identifier: Apache-2.0
// An optimizer over a run of elements: reads gradient, master and states once, writes master,
// states and the parameter's rounded copy once.
#pragma once

#include "drivers/cuda/kernels/draws.h"
#include "drivers/cuda/kernels/elements.h"
#include "drivers/cuda/kernels/rules.h"

namespace stepwell::drivers::cuda {

// C++ has no empty arrays.
template <class Rule>
inline constexpr uint32_t kRoomForStates = Rule::kStates == 0 ? 1 : Rule::kStates;

// The operation of one thread.
template <class Rule> class Update {
public:
    template <uint32_t N> struct Loaded {
        Raw<N> gradient;
        Raw<N> master;
        Raw<N> states[kRoomForStates<Rule>];
    };

    STW_CODE explicit Update(const UpdateArguments &arguments)
        : arguments_(arguments), keys_(arguments.step)
    {
    }

    template <uint32_t N> STW_CODE Loaded<N> load(const Place &place) const
    {
        Loaded<N> loaded;
        loaded.gradient = load_raw<N>(gradient(), place);
        loaded.master = load_raw<N>(master(), place);
        STW_UNROLL
        for (uint32_t s = 0; s != Rule::kStates; ++s) {
            loaded.states[s] = load_raw<N>(state(s), place);
        }
        return loaded;
    }

    template <uint32_t N> STW_CODE void finish(const Place &place, const Loaded<N> &loaded)
    {
        const Coefficients &c = arguments_.coefficients;
        const Floats<N> gradient = decode(arguments_.gradient_dtype, loaded.gradient);
        Floats<N> master = decode(STW_F32, loaded.master);
        Floats<N> states[kRoomForStates<Rule>];
        STW_UNROLL
        for (uint32_t s = 0; s != Rule::kStates; ++s) {
            states[s] = decode(arguments_.states_dtype, loaded.states[s]);
        }
        STW_UNROLL
        for (uint32_t i = 0; i < N; ++i) {
            float own[kRoomForStates<Rule>];
            STW_UNROLL
            for (uint32_t s = 0; s != Rule::kStates; ++s) own[s] = states[s].at[i];
            master.at[i] =
                canonical(Rule::step(c, gradient.at[i] * c.gradient_scale, master.at[i], own));
            STW_UNROLL
            for (uint32_t s = 0; s != Rule::kStates; ++s) states[s].at[i] = canonical(own[s]);
        }
        STW_UNROLL
        for (uint32_t s = 0; s != Rule::kStates; ++s) store_state(s, place, states[s]);
        store_raw(this->master(), place, encode(STW_F32, master));
        if (arguments_.values_dtype != STW_F32) {
            store_raw(values(), place, encode(arguments_.values_dtype, master));
        }
    }

    // All arrays of the launch, to find groups; missing ones are replaced by others.
    STW_CODE Run run() const
    {
        const Array arrays[] = {
            master(),
            gradient(),
            arguments_.values_dtype != STW_F32 ? values() : master(),
            Rule::kStates > 0 ? state(0) : master(),
            Rule::kStates > 1 ? state(1) : master(),
        };
        return make_run(arguments_.count, arrays);
    }

private:
    STW_CODE Array master() const { return {arguments_.master, STW_F32}; }
    STW_CODE Array values() const { return {arguments_.values, arguments_.values_dtype}; }
    STW_CODE Array gradient() const { return {arguments_.gradient, arguments_.gradient_dtype}; }
    STW_CODE Array state(uint32_t s) const
    {
        return {arguments_.states[s], arguments_.states_dtype};
    }

    template <uint32_t N>
    STW_CODE void store_state(uint32_t s, const Place &place, const Floats<N> &state_values)
    {
        if (arguments_.states_dtype == STW_F32) {
            return store_raw(state(s), place, encode(STW_F32, state_values));
        }
        Raw<N> raw = {};
        STW_UNROLL
        for (uint32_t group = 0; group < N; group += kGroup) {
            uint32_t numbers[N == 1 ? 1 : kGroup];
            keys_.numbers(arguments_.first_element + place.group(group).element, s, numbers);
            STW_UNROLL
            for (uint32_t i = group; i < N && i < group + kGroup; ++i) {
                const uint32_t rounded = drawn_bf16(state_values.at[i], numbers[i - group]);
                raw.words[word_of(i)] |= rounded << shift_of(i);
            }
        }
        store_raw(state(s), place, raw);
    }

    const UpdateArguments &arguments_;
    Keys<kRoomForStates<Rule>> keys_;
};

template <class Rule, class Block>
STW_CODE void update(Block &block, const UpdateArguments &arguments)
{
    // two moments are enough loads at once
    constexpr uint32_t kBatch = Rule::kStates == 2 ? 1 : 2;
    run_block<kBatch>(block, Update<Rule>(arguments).run(),
                      [&] { return Update<Rule>(arguments); });
}

}  // namespace stepwell::drivers::cuda
