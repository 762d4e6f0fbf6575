// SPDX-License-Identifier: Apache-2.0
//
// stepwell.hpp: the C API for C++17: owners that give back what they hold, views as typed spans, a
// step that aborts unless it is ended. Header only, no run-time type information; compiles without
// exceptions too.
//
// ERRORS. A call that can fail is made through a Status or a Result<T>. With exceptions they are
// transparent: a failure is thrown as stw::Error, so Status is OK or a remark, and Result<T> always
// has its value. Without (-fno-exceptions, or STW_NO_EXCEPTIONS defined before the include) the
// same functions return the failure: look at ok() before value(). Both are written alike:
//
//     stw::Runtime runtime = stw::Runtime::open(options).value();
//
// Destructors report nothing; call the named function (close, release, end) where the status
// matters.
//
// LIFETIME. Declare in the order of use: Runtime before Tensor, Phase and Optimizer, those before
// Views, Step and Operation; destructors then run in the order that the C API asks for. Owners move
// and do not copy; a moved-from owner is empty and its destructor does nothing.
//
// THREADS. An object belongs to one thread at a time, as every C++ object does; the library behind
// it takes calls from any thread. What a call waits for is said beside its C function.
#ifndef STEPWELL_HPP
#define STEPWELL_HPP

#include <stepwell/stepwell.h>

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <initializer_list>
#include <type_traits>
#include <utility>
#include <vector>

#if !defined(STW_NO_EXCEPTIONS) && !defined(__cpp_exceptions)
#define STW_NO_EXCEPTIONS 1
#endif
#if !defined(STW_NO_EXCEPTIONS)
#include <exception>
#include <stdexcept>
// A failure that is thrown need not be looked at.
#define STW_NODISCARD_STATUS
#else
#define STW_NODISCARD_STATUS [[nodiscard]]
#endif

namespace stw {

// ---------------------------------------------------------------------------------- errors -----

#if !defined(STW_NO_EXCEPTIONS)
/// A failed call: what() is the library's sentence, info() the same as numbers.
class Error : public std::runtime_error {
public:
    explicit Error(const stw_error_info &info) : std::runtime_error(info.sentence), info_(info) {}
    stw_status code() const noexcept { return info_.status; }
    const stw_error_info &info() const noexcept { return info_; }

private:
    stw_error_info info_;
};
#endif

namespace detail {

/// Of this thread's last failed call.
inline stw_error_info last_error(stw_status code) noexcept
{
    stw_error_info info{};
    info.struct_size = sizeof info;
    (void)stw_last_error_info(&info);
    info.status = code;
    return info;
}

inline void raise(stw_status code)
{
#if !defined(STW_NO_EXCEPTIONS)
    if (code < 0) throw Error(last_error(code));
#else
    (void)code;
#endif
}

template <class T> constexpr uint32_t size_of() noexcept
{
    return static_cast<uint32_t>(sizeof(T));
}

}  // namespace detail

/// The outcome of a call without a value. Above 0 it is success with a remark (PENDING, SKIPPED).
/// Without exceptions, the sentence is stw_last_error() until this thread's next call.
class STW_NODISCARD_STATUS Status {
public:
    constexpr Status() noexcept = default;
    /// Throws stw::Error when `code` is a failure and exceptions are on.
    explicit Status(stw_status code) : code_(code) { detail::raise(code); }
    bool ok() const noexcept { return code_ >= 0; }
    stw_status code() const noexcept { return code_; }

private:
    stw_status code_ = STW_OK;
};

/// A value, or (without exceptions only) the code of the failure.
template <class T> class [[nodiscard]] Result {
public:
    Result(T value) noexcept : value_(std::move(value)) {}
    /// A failure; with exceptions it is thrown here.
    explicit Result(stw_status code) : code_(code) { detail::raise(code); }
    bool ok() const noexcept { return code_ >= 0; }
    stw_status code() const noexcept { return code_; }
    /// Without a value there is nothing to go on with: the process is aborted.
    T value() &&
    {
        if (!ok()) std::abort();
        return std::move(value_);
    }
    T &value() &
    {
        if (!ok()) std::abort();
        return value_;
    }

private:
    T value_{};
    stw_status code_ = STW_OK;
};

// ----------------------------------------------------------------------------------- owners ----

namespace detail {

/// One C handle with one owner. `Close` gives it back; its status is for those who ask.
template <class Handle, class Close> class Owner {
public:
    Owner() noexcept = default;
    explicit Owner(Handle *handle) noexcept : handle_(handle) {}
    Owner(const Owner &) = delete;
    Owner &operator=(const Owner &) = delete;
    Owner(Owner &&other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
    Owner &operator=(Owner &&other) noexcept
    {
        if (this != &other) {
            drop();
            handle_ = std::exchange(other.handle_, nullptr);
        }
        return *this;
    }
    ~Owner() { drop(); }

    /// The handle for calls of the C API; still owned here.
    Handle *get() const noexcept { return handle_; }
    explicit operator bool() const noexcept { return handle_ != nullptr; }
    /// Gives ownership to the caller.
    Handle *detach() noexcept { return std::exchange(handle_, nullptr); }

protected:
    /// On failure (BUSY, as a rule) nothing has changed and the handle is still owned.
    stw_status close_now() noexcept
    {
        if (!handle_) return STW_OK;
        const stw_status code = Close()(handle_);
        if (code >= 0) handle_ = nullptr;
        return code;
    }

private:
    void drop() noexcept
    {
        if (handle_) (void)Close()(std::exchange(handle_, nullptr));
    }

    Handle *handle_ = nullptr;
};

struct CloseRuntime {
    stw_status operator()(stw_runtime *runtime) const noexcept
    {
        return stw_runtime_close(runtime, 0, 0);
    }
};
struct DestroyTensor {
    stw_status operator()(stw_tensor *tensor) const noexcept
    {
        return stw_tensor_destroy(&tensor, 1);
    }
};
struct DestroyPhase {
    stw_status operator()(stw_phase *phase) const noexcept { return stw_phase_destroy(phase); }
};
struct FreeOperation {
    stw_status operator()(stw_operation *operation) const noexcept
    {
        return stw_operation_free(operation);
    }
};

}  // namespace detail

/// Tiers, budgets and threads.
///
/// The destructor closes and waits for I/O in flight; views that are still open make it give up and
/// leak, as the C API says (close() tells).
class Runtime : public detail::Owner<stw_runtime, detail::CloseRuntime> {
public:
    using Owner::Owner;
    /// Blocks until everything stands. Errors: as stw_runtime_open().
    static Result<Runtime> open(const stw_runtime_options &options)
    {
        stw_runtime *runtime = nullptr;
        const stw_status code = stw_runtime_open(&options, &runtime);
        if (code < 0) return Result<Runtime>(code);
        return Runtime(runtime);
    }
    /// Blocks until I/O in flight is done. BUSY while views or operations are open.
    Status close() { return Status(close_now()); }
    /// Blocks until updates, reduces and write-back are done. Returns the first background error.
    Status drain(uint64_t timeout_ns = 0) { return Status(stw_runtime_drain(get(), timeout_ns)); }
    /// Wakes every waiting thread with INTERRUPTED. Never blocks.
    Status interrupt() { return Status(stw_runtime_interrupt(get())); }
    Status clear_error() { return Status(stw_runtime_clear_error(get())); }
    /// Totals of a tier since open. Never blocks.
    Result<stw_tier_stats> tier(uint32_t tier, uint32_t device = 0) const
    {
        stw_tier_stats stats = STW_TIER_STATS_INIT;
        const stw_status code = stw_tier_stats_get(get(), tier, device, &stats);
        if (code < 0) return Result<stw_tier_stats>(code);
        return stats;
    }
};

/// The stw_ dtype of a C++ type; half types have none of their own, view them as uint16_t.
template <class T> constexpr uint32_t dtype_of() noexcept
{
    if constexpr (std::is_same_v<T, float>)
        return STW_F32;
    else if constexpr (std::is_same_v<T, double>)
        return STW_F64;
    else if constexpr (std::is_same_v<T, int64_t>)
        return STW_I64;
    else if constexpr (std::is_same_v<T, int32_t>)
        return STW_I32;
    else if constexpr (std::is_same_v<T, int16_t>)
        return STW_I16;
    else if constexpr (std::is_same_v<T, int8_t>)
        return STW_I8;
    else if constexpr (std::is_same_v<T, uint8_t>)
        return STW_U8;
    else if constexpr (std::is_same_v<T, bool>)
        return STW_BOOL;
    else
        return 0;
}

/// One tensor; destroyed with its owner (its views must have ended, its optimizer too).
class Tensor : public detail::Owner<stw_tensor, detail::DestroyTensor> {
public:
    using Owner::Owner;
    /// Takes no memory. Never blocks. Errors: as stw_tensor_create().
    static Result<Tensor> create(const Runtime &runtime, const stw_tensor_spec &spec)
    {
        stw_tensor *tensor = nullptr;
        const stw_status code = stw_tensor_create(runtime.get(), &spec, 1, &tensor);
        if (code < 0) return Result<Tensor>(code);
        return Tensor(tensor);
    }
    /// The short way: name, shape and dtype, and who it is for.
    static Result<Tensor> create(const Runtime &runtime, const char *name,
                                 std::initializer_list<uint64_t> shape, uint32_t dtype = STW_F32,
                                 uint32_t role = STW_ROLE_OTHER)
    {
        stw_tensor_spec spec = STW_TENSOR_SPEC_INIT;
        spec.name = name;
        spec.dtype = dtype;
        spec.role = role;
        // More dimensions than there are: the library refuses the number, the rest is not read.
        spec.dimensions = static_cast<uint32_t>(shape.size());
        uint32_t i = 0;
        for (const uint64_t extent : shape) {
            if (i < STW_DIMENSIONS_MAX) spec.shape[i++] = extent;
        }
        return create(runtime, spec);
    }
    /// BUSY while views or an optimizer hold it; then it is still owned.
    Status destroy() { return Status(close_now()); }
    /// Copies all of it from the caller's memory; blocks until the source is free again.
    Status write(const void *source) { return Status(stw_tensor_write(get(), source, nullptr)); }
    Status write(const void *source, const stw_copy_options &options)
    {
        return Status(stw_tensor_write(get(), source, &options));
    }
    /// Copies all of it to the caller's memory; blocks until it is there.
    Status read(void *destination) const
    {
        return Status(stw_tensor_read(get(), destination, nullptr));
    }
    Status read(void *destination, const stw_copy_options &options) const
    {
        return Status(stw_tensor_read(get(), destination, &options));
    }
    Status fill(double value) { return Status(stw_tensor_fill(get(), value, nullptr)); }
    /// The contents are dead: EMPTY from now on, nothing is written back. BUSY with views open.
    Status discard()
    {
        stw_tensor *tensor = get();
        return Status(stw_tensor_discard(&tensor, 1));
    }
    Result<stw_tensor_info> info() const
    {
        stw_tensor_info info{};
        info.struct_size = detail::size_of<stw_tensor_info>();
        const stw_status code = stw_tensor_info_get(get(), &info);
        if (code < 0) return Result<stw_tensor_info>(code);
        return info;
    }
};

/// What to fetch: `stw::want(w)`, `stw::want(gradient, STW_REDUCE)`, or a range of elements.
inline stw_fetch_request want(stw_tensor *tensor, uint32_t access = STW_READ,
                              uint32_t tier = STW_TIER_DEFAULT, uint64_t element_begin = 0,
                              uint64_t element_count = 0) noexcept
{
    stw_fetch_request request = STW_FETCH_REQUEST_INIT;
    request.tensor = tensor;
    request.access = access;
    request.tier = tier;
    request.element_begin = element_begin;
    request.element_count = element_count;
    return request;
}
inline stw_fetch_request want(const Tensor &tensor, uint32_t access = STW_READ,
                              uint32_t tier = STW_TIER_DEFAULT, uint64_t element_begin = 0,
                              uint64_t element_count = 0) noexcept
{
    return want(tensor.get(), access, tier, element_begin, element_count);
}

// ------------------------------------------------------------------------------------ views ----

/// Elements of one view. Borrowed: ends with the Views it came from. std::span is C++20.
template <class T> class Span {
public:
    constexpr Span() noexcept = default;
    constexpr Span(T *data, size_t size) noexcept : data_(data), size_(size) {}
    constexpr T *data() const noexcept { return data_; }
    constexpr size_t size() const noexcept { return size_; }
    constexpr bool empty() const noexcept { return size_ == 0; }
    constexpr T *begin() const noexcept { return data_; }
    constexpr T *end() const noexcept { return data_ + size_; }
    constexpr T &operator[](size_t index) const noexcept { return data_[index]; }

private:
    T *data_ = nullptr;
    size_t size_ = 0;
};

/// One view of a set; a reference to it, so it ends with its Views.
class View {
public:
    explicit View(const stw_view &view) noexcept : view_(&view) {}
    /// The bytes as elements of T: as many as fit. READ views give const elements only if T is
    /// const; writing through one is a race with other readers.
    template <class T> Span<T> as() const noexcept
    {
        return Span<T>(static_cast<T *>(view_->pointer),
                       static_cast<size_t>(view_->bytes / sizeof(T)));
    }
    void *data() const noexcept { return view_->pointer; }
    uint64_t bytes() const noexcept { return view_->bytes; }
    const stw_view &get() const noexcept { return *view_; }

private:
    const stw_view *view_;
};

/// The views of one fetch: all of them or none. Given back together.
///
/// While an exception unwinds through its scope, the destructor releases with STW_RELEASE_ABANDON:
/// a write that ended half way leaves no contents behind.
class Views {
public:
    Views() noexcept = default;
    Views(const Views &) = delete;
    Views &operator=(const Views &) = delete;
    Views(Views &&other) noexcept { swap(other); }
    Views &operator=(Views &&other) noexcept
    {
        Views taken(std::move(other));
        swap(taken);
        return *this;
    }
    ~Views() { (void)give_back(unwinding() ? uint32_t{STW_RELEASE_ABANDON} : flags_); }

    /// Blocks until the bytes are there, or the timeout. Errors: as stw_fetch().
    static Result<Views> fetch(const Runtime &runtime,
                               const std::vector<stw_fetch_request> &requests,
                               const stw_fetch_options *options = nullptr)
    {
        Views views;
        views.stream_ = options ? options->stream : STW_STREAM_HOST;
        views.views_.resize(requests.size());
        const auto n = static_cast<uint32_t>(requests.size());
        const stw_status code =
            stw_fetch(runtime.get(), options, requests.data(), n, views.views_.data());
        if (code >= 0) return views;
        views.views_.clear();
        return Result<Views>(code);
    }
    /// Takes over views that a C call has filled.
    static Views adopt(std::vector<stw_view> views, void *stream = STW_STREAM_HOST) noexcept
    {
        Views adopted;
        adopted.views_ = std::move(views);
        adopted.stream_ = stream;
        return adopted;
    }

    size_t size() const noexcept { return views_.size(); }
    View operator[](size_t index) const noexcept { return View(views_[index]); }
    /// STW_RELEASE_* for the destructor and for release() without flags.
    void set_release_flags(uint32_t flags) noexcept { flags_ = flags; }
    /// Gives all back now. Never blocks. The views end whatever the status says.
    Status release() { return Status(give_back(flags_)); }
    Status release(uint32_t flags) { return Status(give_back(flags)); }

private:
    stw_status give_back(uint32_t flags) noexcept
    {
        if (views_.empty()) return STW_OK;
        const stw_status code =
            stw_release(views_.data(), static_cast<uint32_t>(views_.size()), stream_, flags);
        views_.clear();
        return code;
    }
    bool unwinding() const noexcept
    {
#if !defined(STW_NO_EXCEPTIONS)
        return std::uncaught_exceptions() > exceptions_;
#else
        return false;
#endif
    }
    void swap(Views &other) noexcept
    {
        std::swap(views_, other.views_);
        std::swap(stream_, other.stream_);
        std::swap(flags_, other.flags_);
    }

    std::vector<stw_view> views_;
    void *stream_ = STW_STREAM_HOST;
    uint32_t flags_ = 0;
#if !defined(STW_NO_EXCEPTIONS)
    int exceptions_ = std::uncaught_exceptions();
#endif
};

// ------------------------------------------------------------------------------- operations ----

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
    /// Blocks at most timeout_ns (0: the runtime's default); STW_PENDING is no failure.
    Status wait(uint64_t timeout_ns = 0) { return Status(stw_operation_wait(get(), timeout_ns)); }
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

// --------------------------------------------------------------------------- phases and steps --

/// A repeating unit: "train", "eval", "decode".
class Phase : public detail::Owner<stw_phase, detail::DestroyPhase> {
public:
    using Owner::Owner;
    static Result<Phase> create(const Runtime &runtime, const char *name)
    {
        stw_phase *phase = nullptr;
        const stw_status code = stw_phase_create(runtime.get(), name, &phase);
        if (code < 0) return Result<Phase>(code);
        return Phase(phase);
    }
    /// BUSY while a step is open; then it is still owned.
    Status destroy() { return Status(close_now()); }
};

/// One run of a phase. Leaving its scope without end() aborts it: every view fetched in it is given
/// back as abandoned and its gradients are dropped. Neither blocks.
class Step {
public:
    Step() noexcept = default;
    Step(const Step &) = delete;
    Step &operator=(const Step &) = delete;
    Step(Step &&other) noexcept
        : phase_(std::exchange(other.phase_, nullptr)), stream_(other.stream_)
    {
    }
    Step &operator=(Step &&other) noexcept
    {
        Step taken(std::move(other));
        std::swap(phase_, taken.phase_);
        std::swap(stream_, taken.stream_);
        return *this;
    }
    ~Step()
    {
        if (phase_) (void)stw_step_abort(phase_, stream_);
    }

    /// BUSY when the phase has an open step. `stream` is where an abort gives the views back.
    static Result<Step> begin(const Phase &phase, void *stream = STW_STREAM_HOST)
    {
        const stw_status code = stw_step_begin(phase.get());
        if (code < 0) return Result<Step>(code);
        Step step;
        step.phase_ = phase.get();
        step.stream_ = stream;
        return step;
    }
    /// Ends the step, whatever the status says: a failure is the first background error.
    Status end(stw_step_stats *stats_out = nullptr)
    {
        return Status(stw_step_end(std::exchange(phase_, nullptr), stats_out));
    }
    Status abort() { return Status(stw_step_abort(std::exchange(phase_, nullptr), stream_)); }

private:
    stw_phase *phase_ = nullptr;
    void *stream_ = STW_STREAM_HOST;
};

// ------------------------------------------------------------------------------- optimizers ----

/// An optimizer; owns its states. Parameters and gradients must outlive it.
///
/// The destructor waits for a step under way (with the runtime's default timeout), since an
/// optimizer in the middle of one cannot be destroyed.
class Optimizer {
public:
    Optimizer() noexcept = default;
    Optimizer(const Optimizer &) = delete;
    Optimizer &operator=(const Optimizer &) = delete;
    Optimizer(Optimizer &&other) noexcept
        : runtime_(other.runtime_), optimizer_(std::exchange(other.optimizer_, nullptr))
    {
    }
    Optimizer &operator=(Optimizer &&other) noexcept
    {
        Optimizer taken(std::move(other));
        std::swap(runtime_, taken.runtime_);
        std::swap(optimizer_, taken.optimizer_);
        return *this;
    }
    ~Optimizer()
    {
        if (!optimizer_) return;
        if (stw_optimizer_destroy(optimizer_) != STW_ERROR_BUSY) return;
        (void)stw_runtime_drain(runtime_, 0);
        (void)stw_optimizer_destroy(optimizer_);
    }

    static Result<Optimizer> create(const Runtime &runtime, const stw_optimizer_options &options)
    {
        Optimizer made;
        made.runtime_ = runtime.get();
        const stw_status code = stw_optimizer_create(runtime.get(), &options, &made.optimizer_);
        if (code < 0) return Result<Optimizer>(code);
        return made;
    }
    stw_optimizer *get() const noexcept { return optimizer_; }
    explicit operator bool() const noexcept { return optimizer_ != nullptr; }
    /// Takes a parameter and its gradient in.
    Status add(const Tensor &parameter, const Tensor &gradient, uint32_t parameter_group = 0)
    {
        stw_optimizer_entry entry = STW_OPTIMIZER_ENTRY_INIT;
        entry.parameter_group = parameter_group;
        entry.parameter = parameter.get();
        entry.gradient = gradient.get();
        return Status(stw_optimizer_add(optimizer_, &entry, 1));
    }
    Status set_hyper(uint32_t parameter_group, const stw_hyper &hyper)
    {
        return Status(stw_optimizer_set_hyper(optimizer_, parameter_group, &hyper));
    }
    /// Returns at once: the update goes on behind the call.
    Status step(const stw_update_options &options = STW_UPDATE_OPTIONS_INIT)
    {
        return Status(stw_optimizer_step(optimizer_, &options, nullptr));
    }
    /// Blocks until the verdict (norm, skip) is known; the update goes on behind the call.
    Status step(const stw_update_options &options, stw_update_result *result_out)
    {
        return Status(stw_optimizer_step(optimizer_, &options, result_out));
    }
    /// A state of a parameter ("exp_avg", ...); owned by the optimizer.
    Result<stw_tensor *> state(const Tensor &parameter, const char *name) const
    {
        stw_tensor *tensor = nullptr;
        const stw_status code = stw_optimizer_state(optimizer_, parameter.get(), name, &tensor);
        if (code < 0) return Result<stw_tensor *>(code);
        return tensor;
    }

private:
    stw_runtime *runtime_ = nullptr;
    stw_optimizer *optimizer_ = nullptr;
};

}  // namespace stw

#undef STW_NODISCARD_STATUS

#endif  // STEPWELL_HPP
