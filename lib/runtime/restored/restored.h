// SPDX-License-Identifier: Apache-2.0
// Tensors of the resumed generation until the program creates them, and the slots that generations
// keep.
#pragma once

#include "lib/runtime/addresses/sink.h"

struct stw_tensor;
struct stw_tensor_spec;

namespace stepwell::store {
struct Manifest;
struct StoredTensor;
}  // namespace stepwell::store

namespace stepwell {

struct CommitWork;
struct Durable;
class RestoredTensors final : public PackObserver, Grounded {
public:
    RestoredTensors(const Ground &ground, TransferSink &sink);
    ~RestoredTensors() override;

    void expect_tensors(store::Manifest manifest);
    void take_restored(const std::string &name, bool taken) STW_REQUIRES(runtime_lock);
    void pack_freed(residency::PackId pack) override STW_REQUIRES(runtime_lock);
    Status freeze_durable(residency::TensorId tensor, bool frozen) STW_REQUIRES(runtime_lock);
    [[nodiscard]] Status check_thawed(const stw_tensor &tensor) const STW_REQUIRES(runtime_lock);
    void note_kept(const CommitWork &work) STW_REQUIRES(runtime_lock);
    void note_left_out(CommitWork *work) STW_REQUIRES(runtime_lock);
    uint64_t restored_count(const std::string &name);
    Result<residency::TensorId> make_tensor(const residency::TensorSpec &wanted,
                                            const std::string &words, stw_tensor *tensor)
        STW_REQUIRES(runtime_lock);
    Status check_durable(const stw_tensor_spec &spec, const residency::Policy &policy) const;

    std::unique_ptr<Durable> durable;  // null: only scratch data

private:
    [[nodiscard]] const store::StoredTensor *find_restored(const std::string &name) const
        STW_REQUIRES(runtime_lock);
    static Status check_restored(const store::StoredTensor &there, const std::string &words);
    Result<residency::TensorId> restore_tensor(const residency::TensorSpec &wanted,
                                               const store::StoredTensor &there)
        STW_REQUIRES(runtime_lock);
    void withhold_kept() STW_REQUIRES(runtime_lock);
    void note_gone(uint64_t blocks, residency::PackId pack = residency::kNone)
        STW_REQUIRES(runtime_lock);
    [[nodiscard]] uint64_t kept_slots(residency::TensorId tensor) const STW_REQUIRES(runtime_lock);
    Result<residency::TensorId> make_durable(const residency::TensorSpec &wanted,
                                             const std::string &words, stw_tensor *tensor)
        STW_REQUIRES(runtime_lock);

    TransferSink &sink_;
};

}  // namespace stepwell
