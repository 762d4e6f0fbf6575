// SPDX-License-Identifier: Apache-2.0
// The runtime's state of an optimizer, in addition to lib/update's object: the state tensors that
// it made and the tensors that it holds. One thread at a time per optimizer, and a commit beside
// it.
#pragma once

#include "lib/runtime/handles/handles.h"
#include "lib/update/optimizer.h"

#include <map>
#include <set>
#include <string_view>
#include <utility>

namespace stepwell {

struct OwnedState {
    stw_tensor *parameter = nullptr;
    stw_tensor *tensor = nullptr;
    uint64_t number = 0;  // of all that the optimizer has made, in their order
};

// The states by parameter and name. The names are the library's, or OptimizerBody::custom's.
using OwnedStates = std::map<std::pair<residency::TensorId, std::string_view>, OwnedState>;

// The parts of a master that its parameter lacks, see update::Entry. No states of the API.
inline constexpr const char *kMasterLow = "master_low";
inline constexpr const char *kMasterOpen = "master_open";

// The master of a parameter as it is kept.
struct KeptMaster {
    stw_tensor *whole = nullptr;  // null where it is in parts
    stw_tensor *low = nullptr;
    stw_tensor *open = nullptr;
    bool is_remade = false;  // by the next update, from the parameter
};

struct OptimizerBody : TensorHolder {
    uint32_t algorithm = 0;
    stw_optimizer *handle = nullptr;  // null once destroyed
    std::unique_ptr<update::Optimizer> optimizer;
    OwnedStates states;
    uint64_t states_made = 0;          // ever
    std::set<uint32_t> shared_groups;  // of parameters that all ranks update
    uint64_t shared_hash = 0;          // of these parameters, their parts and groups
    // Held while `optimizer` gets entries or is destroyed: a commit reads its counts on another
    // thread. Taken before the runtime's lock.
    Mutex changes;
    update::EarlyState early = update::EarlyState::kGoes;  // as the program was told
    bool durable = false;  // its states and counts are part of generations
    bool has_policy = false;
    stw_policy policy = STW_POLICY_INIT;
    stw_custom_update custom{};
    bool has_average = false;
    uint32_t state_dtype = STW_F32;  // of the moments
    std::vector<std::string> custom_names;
    std::vector<const char *> custom_pointers;
};

}  // namespace stepwell
