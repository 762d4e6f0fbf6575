// SPDX-License-Identifier: Apache-2.0
// A storage thread's blocks that other processes read too: asked for before they are read, looked
// at again while another reads them, copied one between two fills of the device's queue.
#include "lib/transfer/storage_thread.h"

#include "lib/support/assert.h"

namespace stepwell::transfer {

using Answer = SharedRead::Answer;

namespace {

// All waits for other processes of one block together; after that its own disk is read.
constexpr uint64_t kSharedWaitNs = 250'000'000;

}  // namespace

// Keeps close from returning while a hook runs. False: none may be called any more.
bool Engine::Parts::enter_hook()
{
    MutexLock lock(mutex);
    if (closing) return false;
    ++callbacks;
    return true;
}

void Engine::Parts::leave_hook()
{
    MutexLock lock(mutex);
    --callbacks;
    if (closing) changed.notify_all();
}

SharedKey StorageThread::key_of(const Task &task) const
{
    return {task.job.shared_block, store_.content(task.place), task.place.bytes};
}

SharedRead StorageThread::look(const Task &task)
{
    const SharedReadHooks &hooks = parts_.options.shared;
    if (!parts_.enter_hook()) return {};
    const bool may_wait = parts_.now() - task.shared_since_ns < kSharedWaitNs;
    const SharedRead read = hooks.look(hooks.user, key_of(task), may_wait);
    parts_.leave_hook();
    return read;
}

// False: the block is read here and now.
bool StorageThread::is_shared(Task &task)
{
    if (!may_share(task)) return false;
    task.shared_since_ns = parts_.now();
    task.shared = look(task);
    if (task.shared.answer == Answer::kAlone || task.shared.answer == Answer::kRead) return false;
    shared_.push_back(&task);
    return true;
}

// Of the blocks that wait for others: what is to be read here begins, and one is copied.
void StorageThread::take_shared()
{
    for (size_t i = 0; i < shared_.size();) {
        Task &task = *shared_[i];
        if (task.shared.answer == Answer::kLater) task.shared = look(task);
        if (task.shared.answer == Answer::kLater) {
            ++i;
            continue;
        }
        shared_.erase(shared_.begin() + static_cast<ptrdiff_t>(i));
        if (task.shared.answer != Answer::kCopy) {
            begin_own(task);
            continue;
        }
        copy_shared(task);
        return;
    }
}

void StorageThread::copy_shared(Task &task)
{
    const SharedReadHooks &hooks = parts_.options.shared;
    const SharedRead read = task.shared;
    task.shared = {};
    parts_.hop_begin(task, Link::kNone);
    Status status = map_once(task);
    bool right = false;
    if (parts_.enter_hook()) {
        if (status.ok()) {
            right = hooks.copy(hooks.user, read, key_of(task), task.data);
        } else {
            hooks.let_go(hooks.user, read);
        }
        parts_.leave_hook();
    }
    // As after a read: nothing else tells that the other rank wrote what it should.
    if (right) right = store_.sum(task.place, task.data) == task.place.sum;
    parts_.hop_end(task, Link::kNone, right);
    if (status.ok() && !right) return begin_own(task);
    task.status = std::move(status);
    if (right) {
        const Link link = parts_.storage_link(task);
        parts_.links.shared(link, parts_.hop_memory(task, link), task.job.transfer.bytes);
    }
    if (right && task.route == Route::kReadStaged) {
        parts_.queue_copy(task);
    } else {
        parts_.finish(task, outbox_);
    }
}

// Before whoever wanted the block may change it.
void StorageThread::give_shared(Task &task)
{
    const SharedReadHooks &hooks = parts_.options.shared;
    const SharedRead read = task.shared;
    task.shared = {};
    if (read.answer != Answer::kRead || !parts_.enter_hook()) return;
    if (task.status.ok()) {
        hooks.offer(hooks.user, read, key_of(task), task.data);
    } else {
        hooks.withdraw(hooks.user, read);
    }
    parts_.leave_hook();
}

}  // namespace stepwell::transfer
