/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The reference of fetch.hit: what StarPU takes to acquire and release a handle whose bytes are
 * already in main memory. Knows nothing of Stepwell. Prints one JSON line a round.
 *
 * usage: starpu_acquire ROUNDS
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include <starpu.h>

enum { ELEMENTS = 262144, PAIRS = 200000 };

static double now_s(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + (double)time.tv_nsec * 1e-9;
}

static int round_trip(starpu_data_handle_t handle, int pairs, double *seconds_out)
{
    const double begin = now_s();
    int i;
    for (i = 0; i < pairs; ++i) {
        if (starpu_data_acquire(handle, STARPU_R) != 0) return -1;
        starpu_data_release(handle);
    }
    *seconds_out = now_s() - begin;
    return 0;
}

int main(int argc, char **argv)
{
    const int rounds = argc > 1 ? atoi(argv[1]) : 7;
    float *values = calloc(ELEMENTS, sizeof *values);
    starpu_data_handle_t handle;
    double seconds = 0;
    int i, result;

    if (values == NULL || starpu_init(NULL) != 0) {
        fprintf(stderr, "starpu_acquire: StarPU does not start here\n");
        return 2;
    }
    starpu_vector_data_register(&handle, STARPU_MAIN_RAM, (uintptr_t)values, ELEMENTS,
                                sizeof *values);
    result = round_trip(handle, PAIRS / 10, &seconds);
    for (i = 0; i < rounds && result == 0; ++i) {
        result = round_trip(handle, PAIRS, &seconds);
        printf("{\"what\": \"starpu\", \"ns\": %.3f}\n", seconds * 1e9 / PAIRS);
    }
    starpu_data_unregister(handle);
    starpu_shutdown();
    free(values);
    return result == 0 ? 0 : 2;
}
