// SPDX-License-Identifier: Apache-2.0
// stepwell/hpp/runtime.hpp: open and close, generations, tiers and devices, hints, statistics.
#ifndef STEPWELL_HPP_RUNTIME_HPP
#define STEPWELL_HPP_RUNTIME_HPP

#include <stepwell/hpp/owner.hpp>
#include <stepwell/hpp/tensor_ref.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace stw {

namespace detail {

struct CloseRuntime {
    stw_status operator()(stw_runtime *runtime) const noexcept
    {
        return stw_runtime_close(runtime, 0, 0);
    }
};

/// Whether a close with this outcome has left the runtime open. Any other failure is one of earlier
/// background work, reported by a completed close.
inline bool stays_open(stw_status closed) noexcept
{
    return closed == STW_ERROR_BUSY || closed == STW_ERROR_TIMEOUT ||
           closed == STW_ERROR_INTERRUPTED || closed == STW_ERROR_FORKED ||
           closed == STW_ERROR_INVALID || closed == STW_ERROR_INTERNAL;
}

/// Calls the policy's function object. Exceptions are caught, and its scores are then 0.
template <class Rank>
void call_rank(void *rank, uint32_t tier, uint32_t device, const stw_victim *victims, uint32_t n,
               double *scores_out) noexcept
{
#if !defined(STW_NO_EXCEPTIONS)
    try {
        (*static_cast<Rank *>(rank))(tier, device, victims, n, scores_out);
    } catch (...) {
        for (uint32_t i = 0; i < n; ++i) scores_out[i] = 0;
    }
#else
    (*static_cast<Rank *>(rank))(tier, device, victims, n, scores_out);
#endif
}

}  // namespace detail

/// Tiers, budgets and threads.
/// The destructor closes and waits for I/O in flight; with views still open it gives up and leaks,
/// as the C API requires (close() returns the error).
class Runtime : public detail::Owner<stw_runtime, detail::CloseRuntime> {
public:
    using Owner::Owner;
    /// Blocks until all is open. Errors: as stw_runtime_open().
    static Result<Runtime> open(const stw_runtime_options &options)
    {
        stw_runtime *runtime = nullptr;
        const stw_status code = stw_runtime_open(&options, &runtime);
        if (code < 0) return Result<Runtime>(code);
        return Runtime(runtime);
    }
    /// Blocks until I/O in flight is done. BUSY while views or operations are open; with
    /// STW_CLOSE_DEFERRED views may be, and the memory is freed with the last of them.
    Status close(uint32_t flags = 0, uint64_t timeout_ns = 0)
    {
        if (!get()) return Status();
        const stw_status code = stw_runtime_close(get(), flags, timeout_ns);
        if (!detail::stays_open(code)) drop_handle();
        return Status(code);
    }
    /// Blocks until updates, reduces and write-back are done. Returns the first background error.
    Status drain(uint64_t timeout_ns = 0) { return Status(stw_runtime_drain(get(), timeout_ns)); }
    /// Wakes every waiting thread with INTERRUPTED. Never blocks.
    Status interrupt() { return Status(stw_runtime_interrupt(get())); }
    /// The first background error since the last clear; its status is OK when there is none.
    /// Returned, not thrown. Never blocks.
    stw_error_info background_error() const noexcept
    {
        stw_error_info info{};
        info.struct_size = detail::size_of<stw_error_info>();
        const stw_status code = stw_runtime_error(get(), &info);
        return info.status == code ? info : detail::last_error(code);
    }
    Status clear_error() { return Status(stw_runtime_clear_error(get())); }

    /// By name. Never blocks. NOT_FOUND when there is none.
    Result<TensorRef> find(const char *name) const
    {
        stw_tensor *tensor = nullptr;
        const stw_status code = stw_tensor_find(get(), name, &tensor);
        if (code < 0) return Result<TensorRef>(code);
        return TensorRef(tensor);
    }
    /// The tensor created after `previous`, the first without one; empty after the last.
    Result<TensorRef> next(TensorRef previous = TensorRef()) const
    {
        stw_tensor *tensor = nullptr;
        const stw_status code = stw_tensor_next(get(), previous.get(), &tensor);
        if (code < 0) return Result<TensorRef>(code);
        return TensorRef(tensor);
    }

    /// Makes the present contents of all durable tensors a generation, and returns its number. A
    /// collective. Blocks until it is on stable storage on all ranks.
    Result<uint64_t> commit(const stw_commit_options &options = STW_COMMIT_OPTIONS_INIT)
    {
        uint64_t generation = 0;
        const stw_status code = stw_commit(get(), &options, &generation);
        if (code < 0) return Result<uint64_t>(code);
        return generation;
    }
    /// The short form: a label (null: none) and the program's own bytes, which are copied.
    Result<uint64_t> commit(const char *label, const std::string &metadata = std::string())
    {
        stw_commit_options options = STW_COMMIT_OPTIONS_INIT;
        options.label = label;
        options.metadata = metadata.data();
        options.metadata_bytes = metadata.size();
        return commit(options);
    }
    /// Information about a generation; 0: the newest. Never blocks. NOT_FOUND lists the existing
    /// ones.
    Result<stw_generation_info> generation(uint64_t generation = 0) const
    {
        stw_generation_info info{};
        info.struct_size = detail::size_of<stw_generation_info>();
        const stw_status code = stw_generation_get(get(), generation, &info);
        if (code < 0) return Result<stw_generation_info>(code);
        return info;
    }
    /// The bytes that this rank passed to its commit; 0: to the newest. Never blocks.
    Result<std::string> generation_metadata(uint64_t generation = 0) const
    {
        std::string metadata;
        uint64_t bytes = 0;
        do {  // Again if another thread has committed more bytes since their number was read.
            metadata.resize(static_cast<size_t>(bytes));
            const stw_status code = stw_generation_metadata(
                get(), generation, metadata.empty() ? nullptr : &metadata[0], metadata.size(),
                &bytes);
            if (code < 0) return Result<std::string>(code);
        } while (bytes > metadata.size());
        metadata.resize(static_cast<size_t>(bytes));
        return metadata;
    }

    /// Hints that these fetches are coming. Never blocks, never fails for lack of room.
    Status prefetch(const std::vector<stw_fetch_request> &requests)
    {
        const auto n = static_cast<uint32_t>(requests.size());
        return Status(stw_prefetch(get(), requests.data(), n));
    }
    /// Could these be fetched together if nothing else were pinned? BUDGET if not. Never blocks.
    Status fits(const std::vector<stw_fetch_request> &requests) const
    {
        const auto n = static_cast<uint32_t>(requests.size());
        return Status(stw_fetch_fits(get(), requests.data(), n));
    }
    /// Evicts every tensor from a tier; blocks until that is done. BUSY names open views.
    Status evict_all(uint32_t tier, uint32_t device = 0, uint64_t timeout_ns = 0)
    {
        return Status(stw_evict(get(), nullptr, 0, tier, device, timeout_ns));
    }
    /// Evicts these from it. None named: none are evicted.
    Status evict(const std::vector<stw_tensor *> &tensors, uint32_t tier, uint32_t device = 0,
                 uint64_t timeout_ns = 0)
    {
        if (tensors.empty()) return Status();
        const auto n = static_cast<uint32_t>(tensors.size());
        return Status(stw_evict(get(), tensors.data(), n, tier, device, timeout_ns));
    }
    /// To be called before a stream is destroyed on which views were fetched or released. Errors:
    /// as stw_stream_forget().
    Status forget_stream(void *stream) { return Status(stw_stream_forget(get(), stream)); }
    /// Changes a tier's budget: in force at return, or unchanged. 0: evicts everything. Blocks
    /// until the excess is evicted.
    Status set_budget(uint32_t tier, uint64_t bytes, uint32_t device = 0, uint64_t timeout_ns = 0)
    {
        return Status(stw_tier_set_budget(get(), tier, device, bytes, timeout_ns));
    }

    /// Lets rank(tier, device, victims, n, scores_out) decide what is evicted first: lower scores
    /// are, 0 keeps the default order. `rank` is borrowed until it is replaced or removed, or the
    /// runtime closed; it is called on a thread of the library. Blocks until a running call has
    /// returned.
    template <class Rank> Status set_victim_policy(Rank &rank, uint64_t timeout_ns = 0)
    {
        stw_victim_policy policy = STW_VICTIM_POLICY_INIT;
        policy.rank = detail::call_rank<Rank>;
        policy.user = &rank;
        return Status(stw_runtime_set_victim_policy(get(), &policy, timeout_ns));
    }
    Status remove_victim_policy(uint64_t timeout_ns = 0)
    {
        return Status(stw_runtime_set_victim_policy(get(), nullptr, timeout_ns));
    }

    /// Totals of a tier since open. Never blocks.
    Result<stw_tier_stats> tier(uint32_t tier, uint32_t device = 0) const
    {
        stw_tier_stats stats = STW_TIER_STATS_INIT;
        const stw_status code = stw_tier_stats_get(get(), tier, device, &stats);
        if (code < 0) return Result<stw_tier_stats>(code);
        return stats;
    }
    /// Totals of a link (STW_LINK_*) since open. Never blocks.
    Result<stw_link_stats> link(uint32_t link, uint32_t device = 0) const
    {
        stw_link_stats stats = STW_LINK_STATS_INIT;
        const stw_status code = stw_link_stats_get(get(), link, device, &stats);
        if (code < 0) return Result<stw_link_stats>(code);
        return stats;
    }
    Result<stw_device_info> device(uint32_t device = 0) const
    {
        stw_device_info info{};
        info.struct_size = detail::size_of<stw_device_info>();
        const stw_status code = stw_device_info_get(get(), device, &info);
        if (code < 0) return Result<stw_device_info>(code);
        return info;
    }
    /// A JSON report. Blocks for the file.
    Status write_report(const char *path) const { return Status(stw_report_write(get(), path)); }
    /// A Chrome trace. Blocks for the file.
    Status write_timeline(const char *path) const
    {
        return Status(stw_timeline_write(get(), path));
    }
};

/// A driver by its name, or a module's by its absolute path. Blocks while a module is loaded.
inline Result<stw_driver_info> driver_info(const char *driver)
{
    stw_driver_info info{};
    info.struct_size = detail::size_of<stw_driver_info>();
    const stw_status code = stw_driver_info_get(driver, &info);
    if (code < 0) return Result<stw_driver_info>(code);
    return info;
}

}  // namespace stw

#endif  // STEPWELL_HPP_RUNTIME_HPP
