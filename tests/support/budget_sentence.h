/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a BUDGET sentence says has to add up: "5.8 MiB needed; budget 10.0 MiB = 4.0 MiB for
 * gathered wholes + 6.0 MiB free". The sum of the parts is the total, as far as sizes are rounded,
 * and what is needed is more than the last part, which can be had.
 */
#ifndef STEPWELL_TESTS_SUPPORT_BUDGET_SENTENCE_H
#define STEPWELL_TESTS_SUPPORT_BUDGET_SENTENCE_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct budget_size {
    double bytes, error; /* of rounding, at most */
    const char *end;     /* behind its unit; NULL: there is none */
} budget_size;

static inline budget_size budget_size_at(const char *text)
{
    static const struct {
        const char *name;
        double bytes;
    } units[] = {{" bytes", 1}, {" KiB", 1024}, {" MiB", 1048576}, {" GiB", 1073741824}};
    budget_size size = {0, 0, NULL};
    char *end = NULL;
    size_t i;
    if (*text < '0' || *text > '9') return size;
    size.bytes = strtod(text, &end);
    for (i = 0; i < sizeof units / sizeof units[0]; ++i) {
        if (strncmp(end, units[i].name, strlen(units[i].name)) != 0) continue;
        size.error = i == 0 ? 0 : 0.0501 * units[i].bytes;
        size.bytes *= units[i].bytes;
        size.end = end + strlen(units[i].name);
        return size;
    }
    return size;
}

/* The size whose last character is before `end`. */
static inline budget_size budget_size_before(const char *text, const char *end)
{
    const budget_size none = {0, 0, NULL};
    const char *at;
    for (at = end; at > text && end - at < 40; --at) {
        const budget_size size = budget_size_at(at - 1);
        const int begins = at - 1 == text || strchr("0123456789.", at[-2]) == NULL;
        if (size.end == end && begins) return size;
    }
    return none;
}

/* NULL, or what is wrong with it. */
static inline const char *budget_sentence_wrong(const char *text)
{
    /* These have no sizes to tell. */
    static const char *const others[] = {"gives way", "no tier that the CPU works in",
                                         "no memory is left", "host_bytes add up",
                                         "leave none for path"};
    const char *at = text;
    double left = -1;
    int sums = 0;
    size_t i;
    while ((at = strstr(at, " = ")) != NULL) {
        const budget_size total = budget_size_before(text, at);
        double sum = 0, error = total.error;
        at += 3;
        if (total.end == NULL) continue;
        for (;;) {
            const budget_size part = budget_size_at(at);
            if (part.end == NULL) return "a part of a sum is no size";
            sum += part.bytes, error += part.error;
            left = part.bytes + part.error;
            at = part.end + strcspn(part.end, "+;,(");
            if (*at != '+') break;
            at += 2;
        }
        if (fabs(sum - total.bytes) > error) return "the parts are not the total";
        ++sums;
    }
    if (sums == 0) {
        for (i = 0; i < sizeof others / sizeof others[0]; ++i) {
            if (strstr(text, others[i]) != NULL) return NULL;
        }
        return "there is no sum in it";
    }
    at = strstr(text, " needed");
    if (at != NULL && strstr(text, "in one piece") == NULL) {
        const budget_size needed = budget_size_before(text, at);
        if (needed.end == NULL) return "what is needed is no size";
        if (needed.bytes + needed.error <= left - 2 * needed.error) {
            return "there is as much as is needed";
        }
    }
    return NULL;
}

#endif
