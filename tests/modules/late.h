/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The test's side of the module "late": what a program enqueues on its streams, and what the driver
 * was asked for. Looked up with dlsym in the loaded module.
 */
#ifndef TESTS_MODULES_LATE_H
#define TESTS_MODULES_LATE_H

#include <stdint.h>

enum { LATE_STREAMS = 4 }; /* handles 0x100, 0x200, ...; also STW_STREAM_LEGACY and _PER_THREAD */
#define LATE_STREAM(i) ((void *)(uintptr_t)(0x100 * ((i) + 1)))

typedef struct late_calls {
    uint64_t checks, marks, copies_after, streams_after, pinned_bytes;
} late_calls;

/* Work for a stream: it is done when somebody who comes behind it begins, and not before. */
typedef void (*late_work)(void *arg);
typedef int late_enqueue_fn(void *stream, late_work work, void *arg);
/* All work of the stream is done when this returns, with what it comes behind. */
typedef void late_synchronise_fn(void *stream);
typedef late_calls late_counted_fn(void);
/* Marks on this stream fail from now on, as of one that is lost; NULL: of none. */
typedef void late_lose_fn(void *stream);

#endif
