// SPDX-License-Identifier: Apache-2.0
//
// stepwell/hpp/operation.hpp: asynchronous fetches.
#ifndef STEPWELL_HPP_OPERATION_HPP
#define STEPWELL_HPP_OPERATION_HPP

#include <stepwell/hpp/owner.hpp>
#include <stepwell/hpp/views.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace stw {

namespace detail {

struct FreeOperation {
    stw_status operator()(stw_operation *operation) const noexcept
    {
        return stw_operation_free(operation);
    }
};

}  // namespace detail

/// One asynchronous fetch. The destructor frees it: uncollected views are cancelled.
class Operation : public detail::Owner<stw_operation, detail::FreeOperation> {
public:
    using Owner::Owner;
    /// Never blocks. Errors: as stw_fetch_async().
    static Result<Operation> fetch(const Runtime &runtime,
                                   const std::vector<stw_fetch_request> &requests,
                                   const stw_fetch_options *options = nullptr)
    {
        stw_operation *operation = nullptr;
        const auto n = static_cast<uint32_t>(requests.size());
        const stw_status code =
            stw_fetch_async(runtime.get(), options, requests.data(), n, &operation);
        if (code < 0) return Result<Operation>(code);
        Operation made(operation);
        made.count_ = requests.size();
        return made;
    }
    /// STW_PENDING while it is under way. Never blocks.
    Status poll() { return Status(stw_operation_poll(get())); }
    /// Blocks at most timeout_ns (0: the runtime's default); STW_PENDING is not a failure.
    Status wait(uint64_t timeout_ns = 0) { return Status(stw_operation_wait(get(), timeout_ns)); }
    /// Calls `done` once when it is over, on a thread of the library, or now on this one if it is
    /// over already. It may call functions that never block, and must not throw. Never blocks.
    Status on_done(stw_done_fn done, void *user)
    {
        return Status(stw_operation_on_done(get(), done, user));
    }
    /// The same with any callable that takes the final stw_status. It is kept until then.
    template <class Done> Status on_done(Done done)
    {
        auto kept = std::make_unique<Done>(std::move(done));
        const auto call = [](void *user, stw_operation *, stw_status status) {
            const std::unique_ptr<Done> mine(static_cast<Done *>(user));
            (*mine)(status);
        };
        const stw_status code = stw_operation_on_done(get(), call, kept.get());
        if (code >= 0) (void)kept.release();  // the call has it, or had
        return Status(code);
    }
    /// Adds 1 to an eventfd of the caller when it is over; -1 removes it. Never blocks.
    Status notify_fd(int fd) { return Status(stw_operation_notify_fd(get(), fd)); }
    /// Requests it to end early: then with CANCELLED, or with OK if too late. Never blocks.
    Status cancel() { return Status(stw_operation_cancel(get())); }
    /// Waits, then takes the views. Once only.
    Result<Views> collect(void *stream = STW_STREAM_HOST)
    {
        stw_status code = STW_PENDING;
        while (code == STW_PENDING) code = stw_operation_wait(get(), 0);
        std::vector<stw_view> views(count_);
        if (code >= 0) {
            code = stw_fetch_collect(get(), stream, views.data(), static_cast<uint32_t>(count_));
        }
        if (code < 0) return Result<Views>(code);
        return Views::adopt(std::move(views), stream);
    }

private:
    size_t count_ = 0;
};

}  // namespace stw

#endif  // STEPWELL_HPP_OPERATION_HPP
