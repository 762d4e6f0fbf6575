// SPDX-License-Identifier: Apache-2.0
// The base of the classes in all rooms above this one, and types that their headers only refer to.
// Their sources include grounds.h for the definitions that most of them need.
#pragma once

struct stw_copy_options;
struct stw_phase;
struct stw_policy;
struct stw_runtime_options;
struct stw_tensor;
struct stw_tensor_spec;
struct stw_view;

namespace stepwell::collective {
struct Range;
}  // namespace stepwell::collective
namespace stepwell::observe {
struct LinkTotal;
}  // namespace stepwell::observe
namespace stepwell::residency {
class Core;
struct Commands;
}  // namespace stepwell::residency

namespace stepwell {

using residency::Commands;
using residency::Core;

class AccessRecorder;
class BackgroundErrors;
class Dispatcher;
class HandleTable;
class ReleaseHint;
class ViewTable;
struct FetchPlan;
struct Machine;
struct Phase;
struct RequestedRange;
struct ThreadState;
struct ViewSlot;
struct Waiter;

struct Ground {
    Machine &machine_;
    Dispatcher &dispatch_;
    HandleTable &handles_;
    ViewTable &views_;
    BackgroundErrors &errors_;
    AccessRecorder &recorder_;
};

struct Grounded : Ground {
    explicit Grounded(const Ground &ground) : Ground(ground) {}
    Grounded(const Grounded &) = delete;
    Grounded &operator=(const Grounded &) = delete;
};

}  // namespace stepwell
