// SPDX-License-Identifier: Apache-2.0
// How a store is found, created or resumed, with the same result on all ranks.
#pragma once

#include "lib/runtime/recording/ground.h"
#include "lib/support/status.h"

#include <vector>

struct stw_nvme_options;

namespace stepwell::collective {
struct FoundGenerations;
struct Record;
}  // namespace stepwell::collective
namespace stepwell::store {
enum class Stay;
class Store;
struct StoreOptions;
}  // namespace stepwell::store

namespace stepwell {

class RestoredTensors;

class DurableOpen final : Grounded {
public:
    DurableOpen(const Ground &ground, RestoredTensors &restored)
        : Grounded(ground), restored_(restored)
    {
    }

    void close_durable(uint64_t timeout_ns);
    static uint32_t generations_kept(const stw_runtime_options &options);
    static uint64_t store_blocks(const stw_runtime_options &options, uint32_t index);
    // `nvme` is what options.nvme points to.
    static void find_budgets(const stw_runtime_options &options, stw_nvme_options *nvme);
    Status agree_store(collective::Record mine, std::vector<collective::Record> &all,
                       bool *heard_out);
    Status open_durable(const stw_runtime_options &options, store::StoreOptions &store,
                        Status before, std::unique_ptr<store::Store> *store_out);

private:
    static std::pair<uint32_t, uint32_t> durable_place(const stw_runtime_options &options);
    Status exchange_found(const collective::FoundGenerations &mine,
                          std::vector<collective::FoundGenerations> *all);
    static Status check_ranks_there(const stw_runtime_options &options);
    Status open_parts(const stw_runtime_options &options, store::StoreOptions &store,
                      store::Stay stay, std::unique_ptr<store::Store> *store_out);
    void remove_parts(const stw_runtime_options &options, bool with_generations);
    [[nodiscard]] uint16_t files_there(const stw_runtime_options &options) const;
    Status agree_open(const stw_runtime_options &options, const Status &mine);
    Status make_store(const stw_runtime_options &options, store::StoreOptions &store, Status before,
                      std::unique_ptr<store::Store> *store_out);
    Status find_store(const stw_runtime_options &options, store::StoreOptions &store, Status before,
                      std::unique_ptr<store::Store> *store_out);

    RestoredTensors &restored_;
};

}  // namespace stepwell
