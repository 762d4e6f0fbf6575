// SPDX-License-Identifier: Apache-2.0
// Runtime: constructs the rooms in order, opens and closes them. All else is done by the rooms.
#pragma once

#include "lib/collective/node.h"
#include "lib/observe/log_relay.h"
#include "lib/profile/tuning.h"
#include "lib/runtime/addresses/room.h"
#include "lib/runtime/budgets/budgets.h"
#include "lib/runtime/calls/masters.h"
#include "lib/runtime/calls/room.h"
#include "lib/runtime/copies/room.h"
#include "lib/runtime/dispatch/dispatcher.h"
#include "lib/runtime/dispatch/errors.h"
#include "lib/runtime/durable/room.h"
#include "lib/runtime/handles/table.h"
#include "lib/runtime/handles/views.h"
#include "lib/runtime/machine/machine.h"
#include "lib/runtime/machine/meters.h"
#include "lib/runtime/optimizers/table.h"
#include "lib/runtime/planning/room.h"
#include "lib/runtime/ranks/room.h"
#include "lib/runtime/recording/recorder.h"
#include "lib/runtime/report/room.h"
#include "lib/runtime/restored/restored.h"
#include "lib/runtime/tensors/room.h"
#include "lib/runtime/updates/room.h"
#include "lib/runtime/victims/victims.h"
#include "lib/runtime/views/room.h"
#include "lib/transfer/engine.h"

#include <memory>

namespace stepwell {

class Runtime final {
public:
    static Result<Runtime *> open(const stw_runtime_options &options, stw_runtime *handle);
    // BUSY with a list if views or operations are open; TIMEOUT if I/O does not end.
    Status close(uint64_t timeout_ns, bool deferred);
    ~Runtime();
    Status drain(uint64_t timeout_ns);

private:
    std::unique_ptr<observe::LogRelay> log_relay_;  // with touches

public:
    Machine machine;
    HandleTable handles;
    ViewTable view_table;
    Dispatcher dispatch;
    BackgroundErrors errors{dispatch, handles};
    Meters meters{dispatch, machine};
    AccessRecorder recorder{dispatch, handles, machine, view_table};
    Ground ground{machine, dispatch, handles, view_table, errors, recorder};
    AddressesRoom addresses{
        .table{ground}, .metadata{ground, addresses.table}, .sink{ground, addresses.table}};
    RestoredTensors restored{ground, addresses.sink};
    TensorsRoom tensors;
    ViewRoom views{.streams{ground, addresses.table},
                   .sleepers{ground},
                   .ends{ground, addresses.table, tensors.buffers, tensors.zeros, tensors.registry,
                         views.streams},
                   .hits{ground, views.streams, views.ends}};
    UpdatesRoom updates{
        .devices{ground, tensors.placement, views.streams},
        .pieces{ground, addresses.table, tensors.buffers, views.sleepers, updates.devices}};
    CopiesRoom copies{.chunks{ground, addresses.table, restored, tensors.placement, tensors.zeros,
                              tensors.registry, views.sleepers, updates.pieces},
                      .snapshots{ground, addresses.table, tensors.placement, tensors.buffers,
                                 tensors.zeros, views.sleepers, views.ends, views.hits}};
    PlanningRoom planning{.models{ground, meters},
                          .plans{ground, addresses.metadata, tensors.registry, planning.models},
                          .prefetcher{ground, addresses.metadata, planning.plans}};
    ProgramVictims victims{ground, addresses.metadata};
    RanksRoom ranks{.memory{ground, views.streams},
                    .shards{ground, addresses.table, ranks.memory},
                    .collectives{ground, ranks.memory},
                    .wholes{ground, addresses.table, addresses.metadata, addresses.sink,
                            tensors.zeros, meters, ranks.memory, ranks.shards, ranks.collectives},
                    .sums{ground, addresses.table, tensors.buffers, updates.pieces, meters,
                          ranks.memory, ranks.shards, ranks.collectives, ranks.wholes}};
    OptimizerTable optimizers{ground,         tensors.placement, tensors.zeros,   restored,
                              addresses.sink, tensors.registry,  views.sleepers,  ranks.collectives,
                              ranks.wholes,   ranks.sums,        updates.devices, updates.pieces};
    CallsRoom calls;
    Masters masters{ground,        optimizers,       views.sleepers,
                    copies.chunks, copies.snapshots, calls.reductions};
    DurableRoom durable{.opening{ground, restored},
                        .commits{ground, restored, tensors.zeros, tensors.registry, views.sleepers,
                                 ranks.shards, ranks.collectives, optimizers, durable.opening}};
    Budgets budgets{ground,   tensors.placement, copies.snapshots,
                    restored, addresses.sink,    planning.prefetcher};
    ReportRoom report{.reporter{ground, addresses.metadata, meters, planning.plans, victims,
                                optimizers, calls.reductions, calls.steps},
                      .page{ground, optimizers, report.reporter, meters}};

private:
    Runtime(const stw_runtime_options &options, stw_runtime *handle, uint64_t whole_blocks);
    void add_hooks();
    Status open_tiers(const stw_runtime_options &options);
    Status open_memories(const stw_runtime_options &options);
    Status open_memory(residency::PlaceId place, const char *driver, memory::TierOptions asked);
    Status open_devices(const stw_runtime_options &options, bool streams);
    Status open_store(const stw_runtime_options &options, profile::Tuning &tuning,
                      std::unique_ptr<store::Store> *store_out);
    Status store_options(const stw_runtime_options &options, const profile::Tuning &tuning,
                         store::StoreOptions *store_out);
    static residency::Config tiers_config(const stw_runtime_options &options, uint64_t whole_blocks,
                                          uint64_t bucket_blocks);
    Status open_engine(const stw_runtime_options &options, std::unique_ptr<store::Store> store);
    Status close_tiers(uint64_t timeout_ns);
    void pin_host_memory();
    void open_ordering();
    Status open_touches(const stw_runtime_options &options);
    static Status agree_wholes(const stw_runtime_options &options, uint64_t *blocks_out);
    Status join_host(collective::NodeOptions node);
    void connect_ranks();
    Status join_ranks(const stw_runtime_options &options, uint64_t whole_blocks);
    void share_disks(const stw_runtime_options &options, transfer::EngineOptions *engine);
    static uint64_t bucket_blocks(const stw_runtime_options &options);
    void leave_ranks();
    stw_group *group_ = nullptr;          // made for this runtime alone
    stw_group *replica_group_ = nullptr;  // likewise
};

}  // namespace stepwell
