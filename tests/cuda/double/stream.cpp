// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda/double/stream.h"

#include <algorithm>

#include <sys/prctl.h>

namespace stepwell::cuda_double {

namespace {

constexpr std::chrono::microseconds kLookAgain{50};

}  // namespace

thread_local const Operation *running_operation = nullptr;

Scheduler::Scheduler(std::mutex &lock, Tracker &tracker, Timing &timing, const Options &options)
    : lock_(lock),
      tracker_(tracker),
      timing_(timing),
      options_(options),
      delays_(static_cast<uint32_t>(options.seed * 2 + 1)),
      choices_(static_cast<uint32_t>(options.seed * 2 + 2))
{
}

Scheduler::~Scheduler()
{
    {
        std::lock_guard guard(lock_);
        closing_ = true;
    }
    work_.notify_one();
    if (thread_.joinable()) thread_.join();
}

Stream *Scheduler::create(Context *context, bool blocking, bool is_default)
{
    auto stream = std::make_unique<Stream>();
    stream->context = context;
    stream->blocking = blocking;
    stream->is_default = is_default;
    stream->number = ++streams_made_;
    stream->slot = take_slot();
    stream->held = hold_all_;
    stream->handle = stream.get();
    // CUDA gives the handle of a destroyed stream to the next one, whatever the old one still does.
    if (!is_default && !free_handles_.empty()) {
        stream->handle = free_handles_.back();
        free_handles_.pop_back();
    }
    streams_.push_back(std::move(stream));
    return streams_.back().get();
}

void Scheduler::destroy(Stream *stream)
{
    stream->destroyed = true;
    if (!stream->is_default) free_handles_.push_back(stream->handle);
    retired_.push_back(stream->slot);
}

Stream *Scheduler::find(void *handle)
{
    const auto found =
        std::find_if(streams_.rbegin(), streams_.rend(),
                     [handle](const auto &stream) { return stream->handle == handle; });
    return found != streams_.rend() ? found->get() : nullptr;
}

// The caller has the lock.
void Scheduler::await_room(Stream &stream)
{
    if (stream.queue.size() < options_.queue) return;
    std::unique_lock lock(lock_, std::adopt_lock);
    ++blocked_;
    while (stream.queue.size() >= options_.queue) {
        const OperationPtr oldest = stream.queue.front();
        ended_.wait(lock, [&] { return oldest->ended; });
        timing_.not_before(oldest->times.end_ns);
    }
    --blocked_;
    lock.release();
}

OperationPtr Scheduler::submit(Stream &stream, Request request)
{
    await_room(stream);
    auto operation = std::make_shared<Operation>();
    operation->epoch = {stream.slot, ++sequences_[stream.slot], request.what, stream.number,
                        ++serial_};
    if (request.after != nullptr) {
        stream.clock.join(request.after->clock);
        if (!request.after->ended) operation->after.push_back(request.after);
    }
    uint64_t ready_ns = order(stream, *operation);
    if (request.after != nullptr) ready_ns = std::max(ready_ns, request.after->times.end_ns);
    for (const Touch &touch : request.touches) {
        const int device = request.kernel ? stream.context->device : -1;
        if (tracker_.touch(touch, operation->epoch, stream.clock, device)) continue;
        if (!request.kernel) return nullptr;
        operation->fault = kIllegalAddress;
    }
    operation->clock = stream.clock;
    // Whoever enqueues behind another thread's call has come to that call's time.
    timing_.not_before(stream.called_ns);
    stream.called_ns = timing_.now();
    operation->times = timing_.place(stream.context->device, request.work, ready_ns);
    operation->touches = std::move(request.touches);
    operation->run = std::move(request.run);
    operation->ready = std::move(request.ready);
    operation->tells_host = request.tells_host;
    operation->begins_at = std::chrono::steady_clock::now();
    // Half of them at once, so that streams also run up against each other.
    if (options_.delay_us > 0 && delays_() % 2 == 0)
        operation->begins_at += std::chrono::microseconds(delays_() % (options_.delay_us + 1));
    stream.last = operation;
    if (stream.queue.empty()) active_.push_back(&stream);
    stream.queue.push_back(operation);
    if (!thread_.joinable()) thread_ = std::thread([this] { run(); });
    work_.notify_one();
    return operation;
}

void Scheduler::wait_event(Stream &stream, const OperationPtr &record, const char *what)
{
    Request request;
    request.what = what;
    request.after = record;
    submit(stream, std::move(request));
}

void Scheduler::wait(std::unique_lock<std::mutex> &lock, const OperationPtr &operation)
{
    ended_.wait(lock, [&] { return operation->ended; });
    tracker_.host().join(operation->clock);
    timing_.woken(operation->times.end_ns);
}

void Scheduler::drain(std::unique_lock<std::mutex> &lock, const Context *context)
{
    const uint64_t last = serial_;
    ended_.wait(lock, [&] {
        return std::none_of(active_.begin(), active_.end(), [&](const Stream *stream) {
            const bool its = context == nullptr || stream->context == context;
            return its && stream->queue.front()->epoch.serial <= last;
        });
    });
}

void Scheduler::drop(std::unique_lock<std::mutex> &lock, Address address, uint64_t bytes)
{
    OperationPtr running;
    for (Stream *stream : active_) {
        for (const OperationPtr &operation : stream->queue) {
            const auto overlaps = [&](const Touch &touch) {
                return touch.address < address + bytes && address < touch.address + touch.bytes;
            };
            const auto &touches = operation->touches;
            if (std::none_of(touches.begin(), touches.end(), overlaps)) continue;
            if (operation->running)
                running = operation;
            else
                operation->dropped = true;
        }
    }
    if (running != nullptr) ended_.wait(lock, [&] { return running->ended; });
}

void Scheduler::abandon(std::unique_lock<std::mutex> &lock)
{
    abandoning_ = true;
    work_.notify_one();
    ended_.wait(lock, [&] { return active_.empty(); });
    abandoning_ = false;
}

void Scheduler::hold_all(bool hold)
{
    hold_all_ = hold;
    for (auto &stream : streams_) {
        stream->held = hold;
        stream->let_go = 0;
    }
    work_.notify_one();
}

uint64_t Scheduler::pending() const
{
    uint64_t pending = 0;
    for (const Stream *stream : active_) pending += stream->queue.size();
    return pending;
}

// One of a destroyed stream, if the host knows that its work ended: then whatever the new stream
// does is ordered after that anyway, and clocks stay short.
uint32_t Scheduler::take_slot()
{
    for (uint32_t &slot : retired_) {
        if (!tracker_.host().covers({slot, sequences_[slot]})) continue;
        const uint32_t taken = slot;
        slot = retired_.back();
        retired_.pop_back();
        return taken;
    }
    sequences_.push_back(0);
    return static_cast<uint32_t>(sequences_.size() - 1);
}

// What comes before the next operation of the stream: what the host knows, and by the rule of the
// legacy stream all work of blocking streams before it, or its own before theirs.
uint64_t Scheduler::order(Stream &stream, Operation &operation)
{
    uint64_t ready_ns = stream.last != nullptr ? stream.last->times.end_ns : 0;
    const auto behind = [&](const Stream &other) {
        stream.clock.join(other.clock);
        if (other.last != nullptr) ready_ns = std::max(ready_ns, other.last->times.end_ns);
        if (other.last != nullptr && !other.last->ended) operation.after.push_back(other.last);
    };
    stream.clock.join(tracker_.host());
    Stream *legacy = stream.context->legacy;
    if (&stream == legacy) {
        for (const auto &other : streams_)
            if (other.get() != legacy && other->blocking && other->context == stream.context)
                behind(*other);
    } else if (stream.blocking && legacy != nullptr) {
        behind(*legacy);
    }
    stream.clock.advance(stream.slot, operation.epoch.sequence);
    return ready_ns;
}

void Scheduler::run()
{
    // Delays are far below the 50 microseconds that the system may be late by default.
    prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
    std::unique_lock lock(lock_);
    while (!closing_) {
        Time next = Time::max();
        Stream *stream = pick(std::chrono::steady_clock::now(), &next);
        if (stream != nullptr)
            execute(lock, *stream);
        else if (next == Time::max())
            work_.wait(lock);
        else
            work_.wait_until(lock, next);
    }
}

Stream *Scheduler::pick(Time now, Time *next_out)
{
    Stream *picked = nullptr;
    uint32_t candidates = 0;
    for (Stream *stream : active_) {
        if (!may_begin(*stream)) continue;
        Time begins_at = stream->queue.front()->begins_at;
        // Nobody tells this thread when that has changed.
        if (waits_outside(*stream)) begins_at = std::max(begins_at, now + kLookAgain);
        if (begins_at > now && !abandoning_) {
            *next_out = std::min(*next_out, begins_at);
        } else if (choices_() % ++candidates == 0) {
            picked = stream;
        }
    }
    return picked;
}

bool Scheduler::may_begin(const Stream &stream) const
{
    if (abandoning_) return true;
    if (stream.held && stream.let_go == 0) return false;
    const auto &after = stream.queue.front()->after;
    return std::all_of(after.begin(), after.end(),
                       [](const OperationPtr &operation) { return operation->ended; });
}

// For something that no stream of this process does.
bool Scheduler::waits_outside(const Stream &stream) const
{
    const Operation &operation = *stream.queue.front();
    if (operation.ready == nullptr || operation.dropped) return false;
    return stream.context->sticky == 0 && !operation.ready();
}

void Scheduler::execute(std::unique_lock<std::mutex> &lock, Stream &stream)
{
    const OperationPtr operation = stream.queue.front();
    operation->running = true;
    if (stream.let_go > 0) --stream.let_go;
    int &sticky = stream.context->sticky;
    const bool skip = abandoning_ || sticky != 0;
    if (!skip && operation->fault != 0) sticky = operation->fault;
    if (!skip && operation->tells_host) tracker_.host().join(operation->clock);
    std::function<void()> run = std::move(operation->run);
    const bool runs = !skip && !operation->dropped && operation->fault == 0 && run != nullptr;
    lock.unlock();
    running_operation = operation.get();
    if (runs) run();
    running_operation = nullptr;
    run = nullptr;
    operation->ready = nullptr;
    lock.lock();
    operation->running = false;
    operation->ended = true;
    operation->after.clear();
    stream.queue.pop_front();
    if (stream.queue.empty()) std::erase(active_, &stream);
    ended_.notify_all();
}

}  // namespace stepwell::cuda_double
