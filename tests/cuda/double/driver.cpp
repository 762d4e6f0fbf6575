// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda/double/driver.h"

#include "tests/cuda/double/control.h"

#include <cstdio>
#include <cstdlib>

#include <pthread.h>
#include <unistd.h>

namespace stepwell::cuda_double {
namespace {

std::atomic<Driver *> made_driver = nullptr;

// What a graph would not have in it, though it may depend on it.
bool is_unsafe(Entry entry)
{
    switch (entry) {
    case Entry::cuDevicePrimaryCtxRetain:
    case Entry::cuDevicePrimaryCtxRelease_v2:
    case Entry::cuCtxSynchronize:
    case Entry::cuMemAlloc_v2:
    case Entry::cuMemFree_v2:
    case Entry::cuMemHostAlloc:
    case Entry::cuMemFreeHost:
    case Entry::cuMemHostRegister_v2:
    case Entry::cuMemHostUnregister:
    case Entry::cuMemcpy:
    case Entry::cuMemsetD8_v2:
    case Entry::cuMemAddressReserve:
    case Entry::cuMemAddressFree:
    case Entry::cuMemCreate:
    case Entry::cuMemRelease:
    case Entry::cuMemMap:
    case Entry::cuMemUnmap:
    case Entry::cuMemSetAccess:
    case Entry::cuModuleLoadData:
    case Entry::cuModuleLoadDataEx:
    case Entry::cuModuleUnload:
    case Entry::cuLibraryLoadData:
    case Entry::cuLibraryUnload:
    case Entry::cuStreamQuery:
    case Entry::cuStreamSynchronize:
    case Entry::cuEventQuery:
    case Entry::cuEventSynchronize: return true;
    default: return false;
    }
}

// Whether what is recorded anywhere forbids unsafe calls to the thread.
bool is_forbidden(State &state, const Thread &thread)
{
    if (thread.capture_mode == kCaptureModeRelaxed) return false;
    bool forbidden = false;
    state.scheduler.each([&](const Stream &stream) {
        forbidden |= stream.captures &&
                     (thread.capture_mode == kCaptureModeGlobal || stream.captured_by == &thread);
    });
    return forbidden;
}

Options options_of_environment()
{
    const char *given = std::getenv("STW_CUDA_DOUBLE");
    const std::optional<Options> options = parse_options(given != nullptr ? given : "");
    if (options) return *options;
    std::fprintf(stderr, "STW_CUDA_DOUBLE='%s' is not understood.\n", given);
    std::abort();
}

// A process that was asked to end with a status of its own if anything was wrong.
__attribute__((destructor)) void judge_at_exit()
{
    Driver *driver = Driver::if_made();
    if (driver == nullptr || driver->forked()) return;
    std::lock_guard guard(driver->lock);
    State &state = driver->state();
    if (state.options.exit == 0) return;
    const std::vector<std::string> lines = leaks(state, driver->threads);
    for (const Violation &violation : state.report.violations())
        std::fprintf(stderr, "cuda double: %s\n", violation.sentence.c_str());
    for (const std::string &line : lines) std::fprintf(stderr, "cuda double: %s\n", line.c_str());
    std::fflush(nullptr);
    if (state.report.count() + lines.size() > 0) _exit(static_cast<int>(state.options.exit));
}

}  // namespace

// Never destroyed: its thread and those of the program may outlive static destructors.
Driver &Driver::get()
{
    static Driver *driver = new Driver;
    made_driver.store(driver, std::memory_order_release);
    return *driver;
}

Driver *Driver::if_made()
{
    return made_driver.load(std::memory_order_acquire);
}

Driver::Driver()
{
    pthread_atfork(nullptr, nullptr, [] {
        Driver &driver = get();
        driver.forked_.store(driver.state_->initialized, std::memory_order_relaxed);
    });
    if (!reset(options_of_environment())) {
        std::fprintf(stderr, "The double of the CUDA driver has no memory to begin with.\n");
        std::abort();
    }
}

bool Driver::reset(const Options &options)
{
    auto fresh = std::make_unique<State>(lock, options);
    if (!fresh->memory.open(options)) return false;
    std::unique_lock guard(lock);
    if (state_ != nullptr) state_->scheduler.abandon(guard);
    fresh->generation = ++generation_;
    std::swap(state_, fresh);
    guard.unlock();
    return true;
}

Thread::Thread()
{
    Driver &driver = Driver::get();
    driver.threads.insert(this);  // a call has the lock
}

Thread::~Thread()
{
    Driver &driver = Driver::get();
    if (driver.forked()) return;
    std::lock_guard guard(driver.lock);
    driver.threads.erase(this);
    State &state = driver.state();
    if (generation != state.generation) return;
    if (pushes > 0)
        state.report.add(STW_DOUBLE_CONTEXT_STACK,
                         text("A thread ended with %lld contexts pushed that were not popped.",
                              static_cast<long long>(pushes)));
    for (auto &[context, stream] : own_streams) state.scheduler.destroy(stream);
}

Thread &Thread::current(uint64_t generation)
{
    thread_local Thread thread;
    if (thread.generation != generation) {
        thread.stack.clear();
        thread.own_streams.clear();
        thread.pushes = 0;
        thread.capture_mode = kCaptureModeGlobal;
        thread.generation = generation;
    }
    return thread;
}

int refuse(Call &call, Needs needs)
{
    State &state = call.state;
    ++state.calls[static_cast<size_t>(call.entry)];
    if (running_operation != nullptr) {
        state.report.add(STW_DOUBLE_CALL_IN_HOST_FUNCTION,
                         text("%s was called from within %s, where nothing may call CUDA.",
                              call.name(), name(running_operation->epoch).c_str()));
        return kNotPermitted;
    }
    Context *context = call.thread.context();
    if (const int code = state.failures.next(call.entry); code != 0) {
        if (is_sticky(code) && context != nullptr) break_context(state, *context, code);
        return code;
    }
    if (needs == Needs::kNothing) return kSuccess;
    if (!state.initialized) return kNotInitialized;
    if (static_cast<uint64_t>(entry_point(call.entry).since) > state.options.driver)
        return kNewerDriverNeeded;
    if (is_unsafe(call.entry) && is_forbidden(state, call.thread))
        return break_captures(call, nullptr);
    if (needs == Needs::kInit) return kSuccess;
    if (context == nullptr) return kInvalidContext;
    if (context->retained == 0) return kContextIsDestroyed;
    call.context = context;
    return context->sticky;
}

int break_captures(Call &call, const Context *context)
{
    int result = kSuccess;
    call.scheduler().each([&](Stream &stream) {
        if (!stream.captures || (context != nullptr && stream.context != context)) return;
        result = kCaptureUnsupported;
        call.state.report.add(STW_DOUBLE_CAPTURE_BROKEN,
                              text("%s was called while stream %llu records a graph, which it "
                                   "makes invalid.",
                                   call.name(), static_cast<unsigned long long>(stream.number)));
    });
    return result;
}

void wait_implicitly(Call &call)
{
    bool busy = false;
    bool held = false;
    call.scheduler().each([&](const Stream &stream) {
        if (stream.context != call.context) return;
        busy |= !stream.queue.empty();
        held |= stream.held;
    });
    if (!busy) return;
    ++call.state.implicit_waits;
    if (!held) call.scheduler().drain(call.lock, call.context);
}

int find_stream(Call &call, void *handle, Stream **stream_out)
{
    const auto value = reinterpret_cast<uintptr_t>(handle);
    if (value <= kStreamPerThread) {
        Context *context = call.context;
        Stream *&stream =
            value == kStreamPerThread ? call.thread.own_streams[context] : context->legacy;
        if (stream == nullptr) stream = call.scheduler().create(context, true, true);
        *stream_out = stream;
        return kSuccess;
    }
    Stream *stream = call.scheduler().find(handle);
    if (stream == nullptr || stream->destroyed || stream->is_default) {
        call.state.report.add(
            STW_DOUBLE_DEAD_HANDLE,
            text("%s was given the stream %p, which %s.", call.name(), handle,
                 stream != nullptr && stream->destroyed ? "was destroyed" : "never was one"));
        return kInvalidHandle;
    }
    *stream_out = stream;
    return stream->context->sticky;
}

int find_event(Call &call, void *handle, Event **event_out)
{
    const auto entry = call.state.events.find(handle);
    if (entry == call.state.events.end() || entry->second->destroyed) {
        const bool was = entry != call.state.events.end();
        call.state.report.add(STW_DOUBLE_DEAD_HANDLE,
                              text("%s was given the event %p, which %s.", call.name(), handle,
                                   was ? "was destroyed" : "never was one"));
        return kInvalidHandle;
    }
    *event_out = entry->second.get();
    return entry->second->context->sticky;
}

void break_context(State &state, Context &context, int code)
{
    context.sticky = code;
    state.scheduler.changed();
}

bool is_sticky(int code)
{
    switch (code) {
    case kEccUncorrectable:
    case kIllegalAddress:
    case kLaunchTimeout:
    case kAssert:
    case kHardwareStackError:
    case kIllegalInstruction:
    case kMisalignedAddress:
    case kInvalidAddressSpace:
    case kInvalidPc:
    case kLaunchFailed: return true;
    default: return false;
    }
}

// What a broken context had cannot be given back, so it is nobody's leak.
std::vector<std::string> leaks(State &state, const std::set<Thread *> &threads)
{
    std::array<bool, kDevicesMax> broken{};
    for (const Context &context : state.contexts)
        broken[static_cast<size_t>(context.device)] = context.sticky != 0;
    const auto counts = [&](const Context *context) { return context->sticky == 0; };
    std::vector<std::string> lines = state.memory.alive(broken);
    state.scheduler.each([&](const Stream &stream) {
        if (!stream.destroyed && !stream.is_default && counts(stream.context))
            lines.push_back(text("Stream %llu was not destroyed.",
                                 static_cast<unsigned long long>(stream.number)));
    });
    for (const auto &[handle, event] : state.events)
        if (!event->destroyed && counts(event->context))
            lines.push_back(text("The event %p was not destroyed.", handle));
    for (const auto &[handle, module] : state.modules)
        if (!module->unloaded && (module->context == nullptr || counts(module->context)))
            lines.push_back(text("The module %p was not unloaded.", handle));
    for (const Context &context : state.contexts)
        if (context.retained > 0)
            lines.push_back(text("The primary context of device %d is still retained %llu times.",
                                 context.device,
                                 static_cast<unsigned long long>(context.retained)));
    for (const Thread *thread : threads)
        if (thread->generation == state.generation && thread->pushes > 0)
            lines.push_back(text("A thread has %lld contexts pushed that it did not pop.",
                                 static_cast<long long>(thread->pushes)));
    return lines;
}

}  // namespace stepwell::cuda_double
