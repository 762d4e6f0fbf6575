/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A forked child: every call says FORKED, its end harms nobody, and the parent goes on.
 */
#include "program.h"

#include <sys/wait.h>

/* The thread sanitizer would end a child that starts threads, as the runtime of its own does. */
const char *__tsan_default_options(void);
const char *__tsan_default_options(void)
{
    return "die_after_fork=0";
}

/* The leak sanitizer calls lost what only the stacks of threads that were not forked know. */
static int is_child;
int __lsan_is_turned_off(void);
int __lsan_is_turned_off(void)
{
    return is_child;
}

#define FORKED(call) CHECK((call) == STW_ERROR_FORKED && strstr(stw_last_error(), "fork"))

static void not_called(void *user, stw_operation *operation, stw_status status)
{
    (void)user, (void)operation, (void)status;
    CHECK(0);
}

static void child(stw_runtime *runtime, stw_tensor *tensor, stw_phase *phase, stw_view *view,
                  stw_operation *operation)
{
    stw_tensor *found = NULL;
    stw_view other;
    float value = 0;
    is_child = 1;
    stw_fetch_request request = {.struct_size = sizeof request, .tensor = tensor};
    FORKED(stw_fetch(runtime, NULL, &request, 1, &other));
    FORKED(stw_tensor_read(tensor, &value, NULL));
    FORKED(stw_tensor_find(runtime, "t", &found));
    FORKED(stw_release(view, 1, STW_STREAM_HOST, 0));
    FORKED(stw_step_begin(phase));
    FORKED(stw_operation_poll(operation));
    FORKED(stw_operation_on_done(operation, not_called, NULL));
    FORKED(stw_operation_notify_fd(operation, -1));
    FORKED(stw_operation_free(operation));
    FORKED(stw_runtime_drain(runtime, 0));
    FORKED(stw_runtime_interrupt(runtime));
    FORKED(stw_runtime_close(runtime, 0, 0));
    FORKED(stw_runtime_close(runtime, STW_CLOSE_DEFERRED, 0));
    /*
     * A runtime of the child's own works, while the parent's is open. Not under gcc's thread
     * sanitizer: to that, a thread on a stack of one of the parent's is the same thread once more.
     */
#if !defined(__SANITIZE_THREAD__)
    runtime = open_small(".", NULL);
    tensor = make_tensor(runtime, "t", 40 * BLOCK / 4);
    CHECK(stw_tensor_fill(tensor, 5, NULL) == STW_OK);
    CHECK(stw_runtime_close(runtime, 0, 0) == STW_OK);
#endif
    exit(0); /* with handlers, as a program would */
}

#if defined(__has_feature)
#define STW_THREAD_SANITIZER __has_feature(thread_sanitizer)
#else
#define STW_THREAD_SANITIZER 0
#endif

/* The child has no thread but the callback's, and ends when that returns. */
typedef struct forking {
    stw_runtime *runtime;
    pid_t child;
} forking;

static void fork_and_return(void *user, stw_operation *operation, stw_status status)
{
    forking *here = user;
    (void)operation;
    CHECK(status == STW_ERROR_CANCELLED);
    here->child = fork();
    if (here->child != 0) return;
    is_child = 1;
    FORKED(stw_runtime_close(here->runtime, 0, 0));
#if defined(__SANITIZE_THREAD__) || STW_THREAD_SANITIZER
    _exit(0); /* that sanitizer cannot end a thread in a child */
#endif
}

static void a_callback_forks(stw_runtime *runtime, stw_tensor *tensor)
{
    stw_fetch_request request = STW_FETCH_REQUEST_INIT;
    stw_operation *operation = NULL;
    forking here = {runtime, -1};
    stw_view view;
    int status;
    /* It waits for a view that is not this thread's. */
    stw_fetch_options options = {.struct_size = sizeof options, .flags = STW_FETCH_HAND_OVER};
    request.tensor = tensor, request.access = STW_READ_WRITE, request.element_count = 1000;
    CHECK(stw_fetch(runtime, &options, &request, 1, &view) == STW_OK);
    CHECK(stw_fetch_async(runtime, NULL, &request, 1, &operation) == STW_OK);
    CHECK(stw_operation_on_done(operation, fork_and_return, &here) == STW_OK);
    CHECK(here.child == -1);
    CHECK(stw_operation_free(operation) == STW_OK);
    CHECK(stw_release(&view, 1, STW_STREAM_HOST, 0) == STW_OK);
    CHECK(stw_runtime_close(runtime, 0, 0) == STW_OK); /* and so after the callback */
    CHECK(here.child > 0);
    CHECK(waitpid(here.child, &status, 0) == here.child);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(void)
{
    stw_runtime *runtime = open_small(".", NULL);
    stw_tensor *tensor = make_tensor(runtime, "t", 40 * BLOCK / 4);
    stw_fetch_request request = STW_FETCH_REQUEST_INIT;
    float *values = malloc(40 * BLOCK);
    stw_operation *operation = NULL;
    stw_phase *phase = NULL;
    stw_view view;
    int status;
    CHECK(values);
    CHECK(stw_phase_create(runtime, "p", &phase) == STW_OK);
    for (int i = 0; i < 40 * BLOCK / 4; ++i) values[i] = (float)i;
    CHECK(stw_tensor_write(tensor, values, NULL) == STW_OK);
    for (int round = 0; round < 5; ++round) {
        request.tensor = tensor, request.element_begin = 100, request.element_count = 1000;
        CHECK(stw_fetch(runtime, NULL, &request, 1, &view) == STW_OK);
        CHECK(stw_fetch_async(runtime, NULL, &request, 1, &operation) == STW_OK);
        pid_t pid = fork();
        if (pid == 0) child(runtime, tensor, phase, &view, operation);
        /* The parent works on meanwhile. */
        CHECK(stw_release(&view, 1, STW_STREAM_HOST, 0) == STW_OK);
        CHECK(stw_operation_free(operation) == STW_OK);
        CHECK(stw_tensor_write(tensor, values, NULL) == STW_OK);
        CHECK(waitpid(pid, &status, 0) == pid);
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
        memset(values, 0, 40 * BLOCK);
        CHECK(stw_tensor_read(tensor, values, NULL) == STW_OK);
        for (int i = 0; i < 40 * BLOCK / 4; ++i) CHECK(values[i] == (float)i);
    }
    a_callback_forks(runtime, tensor);
    free(values);
    return 0;
}
