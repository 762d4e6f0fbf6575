// SPDX-License-Identifier: Apache-2.0
// A core with a device, a host and an nvme tier, and a shell that carries its commands out by hand,
// one transfer at a time, so that a test can stand between any two of them.
#pragma once

#include "lib/residency/core.h"

#include <deque>
#include <map>

#include <gtest/gtest.h>

namespace stepwell::residency {

constexpr PlaceId kDevice = 0;
constexpr PlaceId kHost = 1;
constexpr PlaceId kNvme = 2;
constexpr uint64_t kBlock = 4096;

class CoreTest : public testing::Test {
protected:
    // Device and nvme with a host in between; 0: no such tier.
    void open(uint32_t device_blocks, uint32_t host_blocks, uint32_t nvme_blocks, bool maps = true,
              uint32_t copies = 1)
    {
        Config config;
        config.block_bytes = kBlock;
        config.tensors_max = 128;
        config.durable_copies = copies;
        PlaceConfig device;
        device.tier = Tier::kDevice;
        device.blocks = device_blocks;
        device.maps = device.cpu_access = maps;
        PlaceConfig host;
        host.blocks = host_blocks;
        host.cpu_access = true;
        PlaceConfig nvme;
        nvme.tier = Tier::kNvme;
        nvme.blocks = nvme_blocks;
        config.places = {device, host, nvme};
        core_ = std::make_unique<Core>(config);
        allowed_ = (device_blocks ? 1u : 0u) | (host_blocks ? 2u : 0u) | (nvme_blocks ? 4u : 0u);
    }

    TensorSpec spec(const char *name, uint64_t bytes)
    {
        TensorSpec spec;
        spec.name = name;
        spec.bytes = bytes;
        spec.policy.allowed = allowed_;
        spec.policy.home = kDevice;
        return spec;
    }
    TensorId create(const char *name, uint64_t bytes) { return create(spec(name, bytes)); }
    TensorId create(const TensorSpec &spec)
    {
        Result<TensorId> made = core_->create(spec);
        EXPECT_TRUE(made.ok()) << made.status().sentence();
        return made.ok() ? made.value() : kNone;
    }

    Request all_of(TensorId tensor, Access access, PlaceId place = kDevice)
    {
        Request request;
        request.tensor = tensor;
        request.access = access;
        request.place = place;
        request.byte_count = core_->spec(tensor).bytes;
        return request;
    }
    FetchId ask(std::vector<Request> requests, uint32_t flags = 0, Instant deadline = kNever,
                BlockId touched = kNone)
    {
        FetchAsked asked;
        asked.requests = std::move(requests);
        asked.flags = flags;
        asked.deadline = deadline;
        asked.touched = touched;
        if ((flags & kFetchPrefetch) != 0) asked.urgency = Class::kHint;
        asked_.push_back(asked);
        Commands out;
        const FetchId id = core_->fetch(asked, out);
        by_id_[id] = asked;
        take(out);
        return id;
    }
    FetchId ask(TensorId tensor, Access access, PlaceId place = kDevice)
    {
        return ask({all_of(tensor, access, place)});
    }

    // Every command is kept until a test looks at it.
    void take(Commands &out)
    {
        for (Transfer &transfer : out.transfers) transfers_.push_back(transfer);
        for (const TransferId id : out.promotes) promotes_.push_back(id);
        for (Granted &granted : out.granted) granted_[granted.fetch] = granted;
        for (Refused &refused : out.refused) refused_[refused.fetch] = refused.status;
        for (BackgroundError &error : out.errors) errors_.push_back(error);
        out.clear();
        EXPECT_EQ(core_->check(), "");
    }
    void finish_next(const Status &status = {})
    {
        ASSERT_FALSE(transfers_.empty());
        const Transfer transfer = transfers_.front();
        transfers_.pop_front();
        Commands out;
        core_->transfer_done(transfer.id, status, out);
        take(out);
    }
    void finish_all()
    {
        for (int i = 0; i < 100000 && !transfers_.empty(); i++) finish_next();
    }

    void forgive()
    {
        Commands out;
        core_->forgive(out);
        take(out);
    }
    bool granted(FetchId id) { return granted_.count(id) > 0; }
    stw_status refusal(FetchId id) { return refused_.count(id) > 0 ? refused_[id].code() : STW_OK; }
    void release(FetchId id, bool far = false)
    {
        const FetchAsked &asked = by_id_[id];
        ASSERT_TRUE(granted(id));
        for (size_t i = 0; i < asked.requests.size(); i++) {
            const Request &request = asked.requests[i];
            const Grant &grant = granted_[id].grants[i];
            Commands out;
            if (grant.by_gate) {
                const bool last = core_->gate(request.tensor, grant.place).unpin();
                if (last || !core_->stuck_fetches().empty()) {
                    core_->gate_idle(request.tensor, out);
                }
                if (far) core_->release_hint(request.tensor, grant.place, true, out);
            } else {
                Release release;
                release.tensor = request.tensor;
                release.access = request.access;
                release.place = grant.place;
                release.byte_begin = request.byte_begin;
                release.byte_count = request.byte_count;
                release.far = far;
                release.beside_readers = (asked.flags & kFetchBesideReaders) != 0;
                core_->release(release, out);
            }
            take(out);
        }
    }
    // As an update changes a tensor that is on the device.
    FetchId ask_under(ClaimId claim, TensorId tensor)
    {
        FetchAsked asked;
        asked.claim = claim;
        asked.requests = {all_of(tensor, Access::kReadWrite)};
        Commands out;
        const FetchId fetch = core_->fetch(asked, out);
        take(out);
        return fetch;
    }
    void release_under(ClaimId claim, TensorId tensor, bool far = false)
    {
        Release release;
        release.tensor = tensor;
        release.access = Access::kReadWrite;
        release.place = kDevice;
        release.byte_count = all_of(tensor, Access::kReadWrite).byte_count;
        release.claim = claim;
        release.far = far;
        Commands out;
        core_->release(release, out);
        take(out);
    }
    void update_under(ClaimId claim, TensorId tensor, bool far)
    {
        ASSERT_TRUE(granted(ask_under(claim, tensor)));
        release_under(claim, tensor, far);
    }
    void unclaim(ClaimId claim, TensorId tensor)
    {
        Commands out;
        core_->unclaim_tensor(claim, tensor, false, out);
        take(out);
    }
    // Written, released, at rest.
    void fill(TensorId tensor, PlaceId place = kDevice)
    {
        const FetchId id = ask(tensor, Access::kWrite, place);
        finish_all();
        release(id);
        finish_all();
    }
    TensorId create_filled(const TensorSpec &spec)
    {
        const TensorId tensor = create(spec);
        fill(tensor);
        return tensor;
    }
    TensorId create_filled(const char *name, uint64_t bytes)
    {
        return create_filled(spec(name, bytes));
    }
    // Out of the device, to where it lives else.
    void evict(TensorId tensor)
    {
        Commands out;
        core_->evict(tensor, kDevice, out);
        take(out);
        finish_all();
    }
    bool resident(TensorId tensor, PlaceId place)
    {
        return (core_->residence(tensor) & (1u << place)) != 0;
    }
    static Status failure() { return Status::error(STW_ERROR_IO, "the test's disk failed"); }

    std::unique_ptr<Core> core_;
    uint32_t allowed_ = 0;
    Instant now_ = 1;
    std::deque<Transfer> transfers_;
    std::vector<TransferId> promotes_;
    std::map<FetchId, Granted> granted_;
    std::map<FetchId, Status> refused_;
    std::vector<BackgroundError> errors_;
    std::vector<FetchAsked> asked_;
    std::map<FetchId, FetchAsked> by_id_;
};

}  // namespace stepwell::residency
