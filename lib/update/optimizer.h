// SPDX-License-Identifier: Apache-2.0
// An optimizer: which tensors belong together, hyper-parameters and step counts, and its steps,
// streamed through the pipeline behind the call. A step asks for its verdict first (norm, finite or
// not) where somebody wants one, and then updates each parameter as its bytes come by.
// Tensors come in as ids with their dtypes; who made them and their names are the runtime's affair.
#pragma once

#include <stepwell/optimizer.h>

#include "lib/support/status.h"
#include "lib/update/kernels/kernels.h"
#include "lib/update/pipeline.h"
#include "lib/update/tiers.h"
#include "lib/update/verdict.h"

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace stepwell::update {

constexpr uint32_t kStatesMax = 8;  // of one parameter, master and average not counted

// A parameter, or a part of a packed one. All parts of a parameter have the same tensors.
struct Entry {
    TensorId parameter = kNone;
    TensorId gradient = kNone;
    TensorId master = kNone;  // fp32; kNone where the parameter itself is fp32
    // Instead of a master, of a bf16 parameter: its parts, see kernels::SplitMaster. The entry is
    // all of the parameter, and the packs of all its tensors have multiples of 8 elements before
    // them.
    TensorId low = kNone;
    TensorId open = kNone;     // a bit per element
    TensorId average = kNone;  // fp32; kNone where the optimizer keeps none
    TensorId states[kStatesMax] = {kNone, kNone, kNone, kNone, kNone, kNone, kNone, kNone};
    uint32_t state_count = 0;
    uint32_t parameter_dtype = 0;  // STW_F32, STW_F16, STW_BF16
    uint32_t gradient_dtype = 0;
    uint32_t state_dtype = STW_F32;  // or STW_BF16, where the kernel is one of ours
    uint32_t group = 0;              // of hyper-parameters
    uint64_t element_begin = 0;      // of the parameter, the gradient and all states
    uint64_t element_count = 0;
    stw_tensor *handle = nullptr;  // of the parameter, for the caller's own kernel
    const char *name = "";         // of the parameter, and lives as long
    bool counted = true;  // in a verdict; what several ranks have alike, one of them counts
};

// The states an algorithm keeps beside the master, in the order of Entry::states; the names are
// those of stw_optimizer_state and static, or the custom update's. They must read as zeros until
// written. Empty for plain SGD.
struct StateNames {
    const char *names[kStatesMax] = {};
    uint32_t count = 0;
};
StateNames state_names(uint32_t algorithm, const stw_hyper &hyper, const stw_custom_update *custom);

struct StepOptions {
    uint32_t flags = 0;          // STW_UPDATE_*
    bool wants_verdict = false;  // wait for it, and measure even if neither clip nor skip needs it
    const TensorId *parameters = nullptr;  // null: all
    uint32_t parameter_count = 0;
    const void *const *gradients = nullptr;  // in place of the tensors', of each parameter or null
    double gradient_scale = 0.0;             // 0: 1.0
    double clip_norm = 0.0;                  // 0: no clip
    double norm_type = 0.0;                  // 0: 2; or infinity
    uint64_t timeout_ns = UINT64_MAX;
    uint32_t thread = 0;  // the caller's number, see Pipeline::verdict_from()
    // Of several ranks, for a step that has a verdict: it waits for Optimizer::agreed().
    Agreement *agreement = nullptr;
    bool returns = false;  // once begun, whatever is wanted: the caller comes back with result()
};

constexpr uint32_t kEarlyTrialRounds = 5;  // that are measured, of each way
constexpr uint32_t kEarlyTrialBetween = 500;

// Whether an optimizer updates before the verdict where it is asked to; trials aside.
enum class EarlyState : uint8_t {
    kGoes,
    kMisses,      // too many of the last verdicts were others than early updates assume
    kDoesNotPay,  // steps were longer with them
};

// Whether a step of these options has a verdict at all.
[[nodiscard]] bool has_verdict(const StepOptions &options);

// `norm` is infinity if a gradient is not finite, and NaN where nothing asked for it. The clip
// coefficient is min(1, clip_norm / (norm + 1e-6)), in double.
struct StepResult {
    bool skipped = false;
    double norm = 0.0;
    double clip_coefficient = 1.0;
    uint64_t nonfinite = 0;
    uint64_t updated = 0;  // parameters; before the last one is through, those to be
    uint64_t without_gradient = 0;
    uint64_t early = 0;   // of those updated, before the verdict
    uint64_t undone = 0;  // parameters that were, and set back, since the verdict was another one
};

using TorchOrder = std::optional<kernels::SquareRoot>;

class Optimizer {
public:
    // `custom` is copied and needed for STW_OPTIMIZER_CUSTOM only; its names stay the caller's.
    // `average_decay`: of the parameters' moving average, between 0 and 1; 0: none is kept.
    // `torch_order`: updates have torch.optim's bits, with these roots; of fp32 states alone.
    static Result<std::unique_ptr<Optimizer>> create(Pipeline &pipeline, uint32_t algorithm,
                                                     const stw_custom_update *custom,
                                                     double average_decay = 0.0,
                                                     TorchOrder torch_order = {});
    // Nothing is pending: wait() before.
    ~Optimizer();
    Optimizer(const Optimizer &) = delete;
    Optimizer &operator=(const Optimizer &) = delete;

    // All or none. INVALID, EXISTS (overlapping parts), MISMATCH (parts with different tensors),
    // BUSY (a step is pending). One at a time.
    Status add(const Entry *entries, uint32_t n);
    // From the next step on, also where a step is pending. INVALID, also when the group's
    // parameters have no tensor for a state that these need (momentum).
    Status set_hyper(uint32_t group, const stw_hyper &hyper);
    // What the group has now; the defaults of STW_HYPER_INIT where nothing was set.
    [[nodiscard]] stw_hyper hyper(uint32_t group) const;
    // Updates that were decided, among them one under way; those that are through. Setting is BUSY
    // while a step is pending. NOT_FOUND.
    Result<uint64_t> count(TensorId parameter) const;
    Result<uint64_t> completed(TensorId parameter) const;
    Status set_count(TensorId parameter, uint64_t count);
    // What an update of the parameter works on at once, a block of each: it, its gradient, states.
    [[nodiscard]] std::vector<TensorId> tensors(TensorId parameter) const;
    [[nodiscard]] bool has(TensorId parameter) const;
    // The parameter's master, if it is in parts, becomes this fp32 tensor, which is its master from
    // then on: written behind the call from the parts, or from the parameter if the next update
    // would make it anew; it stays EMPTY if there is none yet. The parts become EMPTY and are no
    // tensors of the optimizer any more. Waits for the steps under way and for the master. OK,
    // TIMEOUT, INTERRUPTED, CLOSED; `begun_out`: it will be. One at a time, as steps are.
    Status join_master(TensorId parameter, TensorId master, uint64_t timeout_ns, bool *begun_out);
    // Whether the next update of the parameter makes its fp32 master anew, since it has none yet or
    // was written after its last update. Waits for its update under way. BUSY before a verdict,
    // TIMEOUT, INTERRUPTED. One at a time, as steps are.
    Result<bool> remakes_master(TensorId parameter, uint64_t timeout_ns);
    // fp32 masters that the next update makes anew, since their parameters were written after the
    // last one. Of parameters that are claimed: nobody writes or updates them meanwhile.
    [[nodiscard]] std::vector<TensorId> stale_masters() const;

    // Waits until may_begin(), then claims all tensors of this one, then waits, where asked to, for
    // the verdict or for the last byte. With a timeout or an interrupt after the claims only the
    // call ends: the step goes on. result_out is written where the call waited and returns OK or
    // SKIPPED.
    // Returns OK, SKIPPED; INVALID, NOT_FOUND, TIMEOUT, INTERRUPTED, CLOSED; the cause if a
    // gradient could not be read for the verdict (nothing is updated then and the gradients are
    // kept); with STW_UPDATE_WAIT the first cause a parameter missed its update for. Neither waited
    // for: always OK once claimed, see result(). One at a time.
    Status step(const StepOptions &options, StepResult *result_out);
    // The parts of all ranks, for the step that told its own. Once; any thread, no lock held.
    void agreed(const Verdict &all);
    // The last step's: OK, SKIPPED, PENDING, or what step() said or would have said of the verdict.
    // A step that nobody wants a verdict of has one when it is through.
    Status result(StepResult *result_out) const;
    // Until the last byte of all steps is updated. OK, TIMEOUT, INTERRUPTED.
    Status wait(uint64_t timeout_ns);
    // Whether a step is under way.
    [[nodiscard]] bool pending() const;
    [[nodiscard]] EarlyState early_state() const;
    // The name of a parameter that early steps have left to the next one's verdict; null: none. As
    // Pipeline::prefer().
    [[nodiscard]] const char *awaits_verdict() const;
    // Whether a step of these options would begin at once: nothing is under way, or neither it nor
    // what is has a verdict, and it names parameters of which none is in a step.
    [[nodiscard]] bool may_begin(const StepOptions &options) const;

    // Whether a step of these options would not return while views of the tensor are open; claimed:
    // work on it is under way, which waits for them.
    [[nodiscard]] bool waits_for_views(const StepOptions &options, TensorId tensor,
                                       bool claimed) const;

    // Gives the room for older contents of parameters back that are in no step; it is asked for
    // again at their next early step. False: there was none. Any thread, no lock held.
    bool give_older_back();

    // The inside, for the jobs of its steps.
    struct Parts;

private:
    explicit Optimizer(std::unique_ptr<Parts> parts);

    std::unique_ptr<Parts> parts_;
};

}  // namespace stepwell::update
