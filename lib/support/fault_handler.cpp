// SPDX-License-Identifier: Apache-2.0
// The handler of SIGSEGV. Watches lie in a static table that it walks without a lock; a count of
// users keeps a watch from going while a thread sleeps by it. A child of fork has none of them.
#include "lib/support/fault_handler.h"

#include "lib/support/assert.h"
#include "lib/support/thread_annotations.h"

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <thread>

#include <linux/futex.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <ucontext.h>
#include <unistd.h>

namespace stepwell {

namespace {

constexpr uint32_t kServed = 1;
constexpr uint32_t kRefused = 2;
constexpr uint32_t kWatchesMax = 16;

constinit Mutex watches_mutex;  // of opens and closes

void futex(std::atomic<uint32_t> *word, int operation, uint32_t value)
{
    static_assert(sizeof *word == sizeof(uint32_t));
    syscall(SYS_futex, word, operation | FUTEX_PRIVATE_FLAG, value, nullptr, nullptr, 0);
}

uintptr_t instruction_of([[maybe_unused]] const void *context)
{
#if defined(__x86_64__)
    const auto *machine = &static_cast<const ucontext_t *>(context)->uc_mcontext;
    return static_cast<uintptr_t>(machine->gregs[REG_RIP]);
#elif defined(__aarch64__)
    return static_cast<const ucontext_t *>(context)->uc_mcontext.pc;
#else
    return 0;
#endif
}

// The general registers: an instruction that has got no further has the same ones.
uint64_t registers_of([[maybe_unused]] const void *context)
{
    uint64_t hash = 0xcbf29ce484222325;
    [[maybe_unused]] const auto add = [&hash](uint64_t value) {
        hash = (hash ^ value) * 0x100000001b3;
        hash ^= hash >> 32;
    };
#if defined(__x86_64__)
    const auto *machine = &static_cast<const ucontext_t *>(context)->uc_mcontext;
    for (int at = REG_R8; at <= REG_RIP; ++at) add(static_cast<uint64_t>(machine->gregs[at]));
#elif defined(__aarch64__)
    const auto *machine = &static_cast<const ucontext_t *>(context)->uc_mcontext;
    for (const auto value : machine->regs) add(value);
    add(machine->sp);
    add(machine->pc);
#endif
    return hash;
}

bool is_write([[maybe_unused]] const void *context)
{
#if defined(__x86_64__)
    constexpr greg_t kWrite = 2;  // of the page fault's error code
    const auto *machine = &static_cast<const ucontext_t *>(context)->uc_mcontext;
    return (machine->gregs[REG_ERR] & kWrite) != 0;
#else
    return false;
#endif
}

}  // namespace

struct FaultWatch::Slot {
    std::atomic<uint32_t> users{0};  // threads in the handler that look at it
    std::atomic<bool> active{false};
    std::atomic<pid_t> process{0};
    std::atomic<uintptr_t> begin{UINTPTR_MAX};
    std::atomic<uintptr_t> end{0};
    std::atomic<MemoryFault *> first{nullptr};
    std::atomic<int> wake{-1};  // an eventfd that counts
    Mutex taking;
    MemoryFault *taken STW_GUARDED_BY(taking) = nullptr;  // from `first`
    bool used STW_GUARDED_BY(watches_mutex) = false;
};

struct FaultHandler {
    using Slot = FaultWatch::Slot;

    using Action = struct sigaction;

    static Slot slots[kWatchesMax];
    static uint32_t watches STW_GUARDED_BY(watches_mutex);
    // A program may put its own handler over ours, and pass on to ours; the next time another one
    // of these lies over that, so that no two pass on to each other. Written before it is there.
    static constexpr uint32_t kEntries = 4;
    static Action before[kEntries];
    static uint32_t entry STW_GUARDED_BY(watches_mutex);

    using Entry = void (*)(int, siginfo_t *, void *);
    template <uint32_t kEntry> static void enter(int number, siginfo_t *info, void *context)
    {
        on_fault(number, info, context, before[kEntry]);
    }
    static constexpr Entry kEntry[kEntries] = {enter<0>, enter<1>, enter<2>, enter<3>};

    static bool is_ours(uint32_t at)
    {
        Action now = {};
        sigaction(SIGSEGV, nullptr, &now);
        return (now.sa_flags & SA_SIGINFO) != 0 && now.sa_sigaction == kEntry[at];
    }

    static Slot *free_slot() STW_REQUIRES(watches_mutex)
    {
        for (Slot &slot : slots)
            if (!slot.used) return &slot;
        return nullptr;
    }

    static bool install() STW_REQUIRES(watches_mutex)
    {
        if (watches > 0) return true;
        if (entry == kEntries) return false;
        Action mine = {};
        mine.sa_sigaction = kEntry[entry];
        // On the alternate stack, as an overflow of the other one must reach who was there before.
        mine.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
        sigaction(SIGSEGV, nullptr, &before[entry]);
        return sigaction(SIGSEGV, &mine, nullptr) == 0;
    }

    // A handler installed later may have saved the address of ours: then it stays installed.
    static void remove() STW_REQUIRES(watches_mutex)
    {
        if (is_ours(entry))
            sigaction(SIGSEGV, &before[entry], nullptr);
        else
            ++entry;
    }

    static void on_fault(int number, siginfo_t *info, void *context, const Action &next)
    {
        const int error = errno;
        MemoryFault fault;
        fault.address = reinterpret_cast<uintptr_t>(info->si_addr);
        fault.writes = is_write(context);
        fault.thread = static_cast<pid_t>(syscall(SYS_gettid));
        fault.instruction = instruction_of(context);
        fault.registers = registers_of(context);
        const bool by_kernel = info->si_code > 0;  // else it was sent
        if (!by_kernel || !offer(fault)) pass_on(number, info, context, next, fault.sentence);
        errno = error;
    }

    static bool offer(MemoryFault &fault)
    {
        for (Slot &slot : slots) {
            slot.users.fetch_add(1);
            const bool mine = slot.active.load() && slot.begin.load() <= fault.address &&
                              fault.address < slot.end.load() && slot.process.load() == getpid();
            if (mine) wait_in(slot, fault);
            slot.users.fetch_sub(1);
            if (mine) return fault.answer.load() == kServed;
        }
        return false;
    }

    static void wait_in(Slot &slot, MemoryFault &fault)
    {
        MemoryFault *head = slot.first.load();
        do fault.next = head;
        while (!slot.first.compare_exchange_weak(head, &fault));
        const uint64_t one = 1;
        (void)!::write(slot.wake.load(), &one, sizeof one);
        while (fault.answer.load() == 0) futex(&fault.answer, FUTEX_WAIT, 0);
    }

    // To the handler that was there before, in the mask that it asked for.
    static void pass_on(int number, siginfo_t *info, void *context, const Action &next,
                        const char *sentence)
    {
        const bool plain = (next.sa_flags & SA_SIGINFO) == 0;
        const bool ignores = plain && next.sa_handler == SIG_IGN;
        if (ignores || (plain && next.sa_handler == SIG_DFL))
            return end_process(number, info, ignores, sentence);
        sigset_t mask = next.sa_mask;
        if ((next.sa_flags & SA_NODEFER) == 0) sigaddset(&mask, number);
        pthread_sigmask(SIG_BLOCK, &mask, nullptr);  // until this handler returns
        if (plain)
            next.sa_handler(number);
        else
            next.sa_sigaction(number, info, context);
    }

    // By the touch itself, once more, so that its place is in the core file.
    static void end_process(int number, const siginfo_t *info, bool ignores, const char *sentence)
    {
        const bool sent = info->si_code <= 0;
        if (sent && ignores) return;
        if (sentence[0] != '\0') {
            (void)!::write(STDERR_FILENO, sentence, std::strlen(sentence));
            (void)!::write(STDERR_FILENO, "\n", 1);
        }
        Action normal = {};
        normal.sa_handler = SIG_DFL;
        sigaction(number, &normal, nullptr);
        if (sent) (void)raise(number);
    }
};

constinit FaultHandler::Slot FaultHandler::slots[kWatchesMax] = {};
constinit uint32_t FaultHandler::watches = 0;
constinit FaultHandler::Action FaultHandler::before[kEntries] = {};
constinit uint32_t FaultHandler::entry = 0;

Result<std::unique_ptr<FaultWatch>> FaultWatch::open()
{
    MutexLock lock(watches_mutex);
    Slot *const free = FaultHandler::free_slot();
    if (free == nullptr) {
        return Status::error(STW_ERROR_LIMIT,
                             "%u runtimes with STW_RUNTIME_FAULT_IN are open in this process, as "
                             "many as there can be; close one",
                             kWatchesMax);
    }
    if (!FaultHandler::install()) {
        return Status::error(STW_ERROR_LIMIT,
                             "other handlers of SIGSEGV came over the library's %u times; open the "
                             "runtime with STW_RUNTIME_FAULT_IN once, or after them",
                             FaultHandler::kEntries);
    }
    const int wake = eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE);
    if (wake < 0) {
        const int cause = errno;
        if (FaultHandler::watches == 0) FaultHandler::remove();
        return Status::os_error(STW_ERROR_LIMIT, cause, "no eventfd for faults");
    }
    std::unique_ptr<FaultWatch> watch(new FaultWatch(free));
    free->used = true;
    free->begin = UINTPTR_MAX;
    free->end = 0;
    free->wake = wake;
    free->process = getpid();
    free->active = true;
    ++FaultHandler::watches;
    return watch;
}

FaultWatch::~FaultWatch()
{
    slot_->active = false;
    // A thread that saw it active has its fault refused.
    while (slot_->users > 0) {
        MemoryFault *fault = slot_->first.exchange(nullptr);
        while (fault != nullptr) {
            MemoryFault *next = fault->next;
            answer(fault, false);
            fault = next;
        }
        std::this_thread::yield();
    }
    MutexLock lock(watches_mutex);
    if (--FaultHandler::watches == 0 && slot_->process == getpid()) FaultHandler::remove();
    ::close(slot_->wake);
    slot_->used = false;
}

void FaultWatch::cover(const void *begin, uint64_t bytes)
{
    const auto at = reinterpret_cast<uintptr_t>(begin);
    MutexLock lock(watches_mutex);
    slot_->begin = std::min(slot_->begin.load(), at);
    slot_->end = std::max<uintptr_t>(slot_->end.load(), at + bytes);
}

MemoryFault *FaultWatch::take()
{
    uint64_t one = 0;
    while (::read(slot_->wake, &one, sizeof one) < 0 && errno == EINTR) {}
    MutexLock lock(slot_->taking);
    if (slot_->taken == nullptr) slot_->taken = slot_->first.exchange(nullptr);
    MemoryFault *fault = slot_->taken;
    if (fault != nullptr) slot_->taken = fault->next;
    return fault;
}

// The fault lies on its thread's stack and is gone once it is answered.
void FaultWatch::answer(MemoryFault *fault, bool served)
{
    std::atomic<uint32_t> *word = &fault->answer;
    word->store(served ? kServed : kRefused);
    futex(word, FUTEX_WAKE, 1);
}

void FaultWatch::end(uint32_t takers)
{
    slot_->active = false;
    const uint64_t count = takers;
    if (count > 0) (void)!::write(slot_->wake, &count, sizeof count);
}

}  // namespace stepwell
