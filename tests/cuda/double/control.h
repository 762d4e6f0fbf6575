/* SPDX-License-Identifier: Apache-2.0
 * How a test steers the test double of the CUDA driver and asks it what it saw. Exported by the
 * same library. None of these calls is counted, fails by injection or tells the host anything that
 * a CUDA call would have had to tell it. Any thread may call them.
 *
 * One thread runs all streams, so a kernel or host function that waits for another stream waits
 * for ever: hold a stream instead.
 *
 * STW_CUDA_DOUBLE holds options, "key=value" with commas between; a size may end in K, M or G:
 *   seed=1         of the delays and of the choice among streams that could go on
 *   delay_us=20    an operation begins up to so much later than it could
 *   devices=1      0: cuInit finds no device
 *   memory=256M    of each device
 *   driver=13000   what cuDriverGetVersion says; entry points that came later refuse to work
 *   unified=0      1: device and host share their memory
 *   attribute=102:0
 *                  a device attribute has this value; without 102, virtual memory management, its
 *                  entry points are not supported
 *   busy=0         1: no primary context can be had
 *   queue=1024     a call that enqueues waits while its stream has so many operations that have not
 *                  ended
 *   cost=copy_ns:500
 *                  what something takes in virtual time, see Costs in options.h
 *   batch_max=0    not 0: a batch of more copies is an invalid value; so is, always, one of host
 *                  memory that is not registered, or with attribute=91:0 of any host memory
 *   register_max=0 not 0: host memory is registered in pieces of at most so many bytes
 *   fail=cuMemAlloc_v2:3:2
 *                  the third call of cuMemAlloc_v2 from now on returns 2; call 0: every call
 *   exit=0         not 0: a process with violations or leaks prints them and ends with this status
 */
#ifndef STW_CUDA_DOUBLE_CONTROL_H
#define STW_CUDA_DOUBLE_CONTROL_H

#include <stddef.h>
#include <stdint.h>

#include "tests/cuda/double/kernel.h"

#ifdef __cplusplus
extern "C" {
#endif

#define STW_DOUBLE_API __attribute__((visibility("default")))

/* Kinds of violation. */
enum {
    STW_DOUBLE_USED_BEFORE_READY = 1, /* read, and not ordered after the write */
    STW_DOUBLE_OVERWRITTEN_IN_USE,    /* written, and not ordered after a read */
    STW_DOUBLE_WRITTEN_TWICE,         /* written, and not ordered after the last write */
    STW_DOUBLE_HOST_TOO_EARLY,        /* touched by the host while an operation may still run */
    STW_DOUBLE_GONE_IN_USE,           /* freed, unmapped or unregistered while one may still run */
    STW_DOUBLE_DEAD_HANDLE,   /* a stream, event or module that was destroyed or never was */
    STW_DOUBLE_BAD_ADDRESS,   /* not mapped, not accessible, or past the end */
    STW_DOUBLE_WRONG_CONTEXT, /* a stream, event or pointer of another context */
    STW_DOUBLE_CALL_IN_HOST_FUNCTION, /* CUDA called from a host function or a kernel */
    STW_DOUBLE_BATCH_OVERLAP,         /* copies of one batch touch the same bytes */
    STW_DOUBLE_CONTEXT_STACK,         /* a thread ended with pushed contexts, or popped too often */
    STW_DOUBLE_CAPTURED,              /* an event on a stream that records a graph */
    STW_DOUBLE_CAPTURE_BROKEN         /* a call that ended the capture of some stream as an error */
};

/* Drop all work, memory, handles, counters and violations, and begin again with these options
 * (NULL: those of the environment). Returns 0, or -1 where the options are not understood, and then
 * nothing has changed. Threads that were in a call must have left it. */
STW_DOUBLE_API int stw_double_reset(const char *options);

/* Calls of an entry point by its exported name; NULL: of all. Unknown names give UINT64_MAX. */
STW_DOUBLE_API uint64_t stw_double_calls(const char *entry);
STW_DOUBLE_API void stw_double_calls_reset(void);
/* Asynchronous copies from or to memory that was not registered: CUDA makes them wait. */
STW_DOUBLE_API uint64_t stw_double_pageable_copies(void);
/* Calls in which CUDA waits for all work of the device, made while there was some: memory that is
 * freed, and pinned memory that is allocated, freed or registered no more. They wait, but where a
 * stream is held; that tells the host nothing. */
STW_DOUBLE_API uint64_t stw_double_implicit_waits(void);

/* Violations since the last taking. */
STW_DOUBLE_API uint32_t stw_double_violations(void);
/* Kind of the one at `index`, 0 if there is none; its sentence, cut to `capacity` with its NUL. */
STW_DOUBLE_API int stw_double_violation(uint32_t index, char *text, size_t capacity);
/* How many there were; they are forgotten. `text` (may be NULL): a line for each. */
STW_DOUBLE_API uint32_t stw_double_take_violations(char *text, size_t capacity);
/* What is alive now that its owner should have given back: lines, and how many. */
STW_DOUBLE_API uint32_t stw_double_leaks(char *text, size_t capacity);

/* Calls of an entry point wait before they do anything, until they are let go; -1: unknown. */
STW_DOUBLE_API int stw_double_hold_calls(const char *entry, int hold);

/* As fail= above. Returns -1 for an unknown entry point. */
STW_DOUBLE_API int stw_double_fail(const char *entry, uint64_t nth, int code);
/* A device breaks: from now on the calls of its context return `code`, its work is dropped. */
STW_DOUBLE_API void stw_double_break(int device, int code);

/* Operations of a held stream do not begin; let go lets `operations` of them begin and goes on
 * holding, or with 0 ends the hold. A stream is named as in CUDA: 0 to 2 need a current context. */
STW_DOUBLE_API void stw_double_hold(void *stream);
STW_DOUBLE_API void stw_double_let_go(void *stream, uint64_t operations);
/* All streams, also those to come. */
STW_DOUBLE_API void stw_double_hold_all(int hold);
/* Streams alive now, default streams left out: how many; at most `capacity` are written. */
STW_DOUBLE_API uint32_t stw_double_streams(void **streams, uint32_t capacity);
/* A stream begins or ends to record a graph, in the global mode and by the calling thread: an event
 * that is recorded or waited for on it then is a violation, as it would draw others into the graph.
 * Calls that CUDA names unsafe return 900 and are a violation, but in a thread whose own mode
 * (cuThreadExchangeStreamCaptureMode) permits them; and to synchronise with the stream or its
 * context is one in any mode. */
STW_DOUBLE_API void stw_double_capture(void *stream, int captures);
/* Operations of a stream that have not ended; NULL: of all streams. */
STW_DOUBLE_API uint64_t stw_double_pending(void *stream);
/* Wait until all work has ended; for ever, while a stream that has some is held. To the host it has
 * not ended: only CUDA calls tell it that. */
STW_DOUBLE_API void stw_double_drain(void);

/* 1 where what is enqueued on the stream next comes after all that was enqueued on the other one by
 * now, by what streams, events and the host's waits say; 0 where it need not. */
STW_DOUBLE_API int stw_double_comes_after(void *stream, void *other);
/* Calls that wait now because a stream's queue is full. */
STW_DOUBLE_API uint64_t stw_double_blocked(void);

/* VIRTUAL TIME, in ns: see timing.h. Where an operation would be on hardware, whatever is held or
 * late here; so that tests judge overlap without a clock. Events have it too.
 * Of the calling thread: behind its last call and what it waited for. Threads of the library have
 * times of their own, which meet where they use one stream. */
STW_DOUBLE_API uint64_t stw_double_time(void);
/* All threads go on from the end of all work that was enqueued; returns that time. Without it a
 * thread that was told by another one that something is over knows no time of it: a lower bound. */
STW_DOUBLE_API uint64_t stw_double_settle(void);
/* Enqueue a kernel that touches nothing and takes so long. Returns a CUDA error. */
STW_DOUBLE_API int stw_double_compute(void *stream, uint64_t ns);
/* What an engine of a device has done: STW_DOUBLE_UP copies into it, _DOWN out of it, _COMPUTE the
 * rest. Returns -1 where there is none. */
enum { STW_DOUBLE_UP = 0, STW_DOUBLE_DOWN, STW_DOUBLE_COMPUTE };
typedef struct stw_double_engine {
    uint64_t operations, bytes, busy_ns;
} stw_double_engine;
STW_DOUBLE_API int stw_double_engine_totals(int device, int engine, stw_double_engine *totals_out);

/* Enqueue a kernel of the test's own: `work` runs in stream order and touches these ranges. `name`
 * stays the caller's and is used until reset. Returns a CUDA error. */
STW_DOUBLE_API int stw_double_consume(void *stream, const char *name,
                                      const stw_double_range *ranges, uint32_t count,
                                      void (*work)(void *user, stw_double_alias_of alias),
                                      void *user);

/* As that, but it does nothing and takes no virtual time: memory goes to another owner, who may
 * write it in stream order from now on. */
STW_DOUBLE_API int stw_double_touch(void *stream, const char *name, const stw_double_range *ranges,
                                    uint32_t count);

/* As stw_double_consume, but it does not begin before `ready` says 1: what it waits for is outside
 * of the process or of CUDA. That is asked often, with the double's lock held, so it makes no call.
 * A device that is broken does neither. */
STW_DOUBLE_API int stw_double_consume_when(void *stream, const char *name,
                                           const stw_double_range *ranges, uint32_t count,
                                           void (*work)(void *user, stw_double_alias_of alias),
                                           int (*ready)(void *user), void *user);

/* Where the bytes of a device address lie in this process; a host address is its own alias. */
STW_DOUBLE_API void *stw_double_alias(uint64_t address);
/* The host (or a disk on its behalf) touches device or pinned memory now. */
STW_DOUBLE_API void stw_double_host_reads(uint64_t address, uint64_t bytes);
STW_DOUBLE_API void stw_double_host_writes(uint64_t address, uint64_t bytes);

#ifdef __cplusplus
}
#endif

#endif
