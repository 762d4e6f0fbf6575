/* SPDX-License-Identifier: Apache-2.0 */
/* What moves between ranks is in the costs of a step, in the report and on the timeline. */
#include "tests/multirank/tensors.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint64_t bytes_between_ranks(stw_runtime *runtime)
{
    stw_link_stats stats = STW_LINK_STATS_INIT;
    SUCCEEDS(stw_link_stats_get(runtime, STW_LINK_RANKS, 0, &stats));
    return stats.bytes;
}

static char *text_of(const char *path)
{
    FILE *file = fopen(path, "r");
    HOLDS(file != NULL && fseek(file, 0, SEEK_END) == 0);
    const long bytes = ftell(file);
    char *text = malloc((size_t)bytes + 1);
    HOLDS(bytes > 0 && text != NULL);
    rewind(file);
    HOLDS(fread(text, 1, (size_t)bytes, file) == (size_t)bytes);
    text[bytes] = '\0';
    fclose(file);
    return text;
}

/* `begin` is there, and behind it, before the next `end`, `words`. */
static bool has(const char *text, const char *begin, const char *end, const char *words)
{
    const char *from = strstr(text, begin);
    const char *found = from ? strstr(from + strlen(begin), words) : NULL;
    const char *next = from ? strstr(from + strlen(begin), end) : NULL;
    return found && (!next || found < next);
}

CLAIM(a_step_counts_what_moved_between_ranks)
{
    const uint64_t n = (uint64_t)member->size * BLOCK / 4;
    stw_group *group = join(member);
    stw_runtime *runtime = open_on(group, member, 4 * member->size);
    stw_tensor *weight = make(runtime, "weight", n, STW_ROLE_PARAM, STW_PARTITION_SHARDED);
    stw_tensor *gradient = make(runtime, "gradient", n, STW_ROLE_GRAD, STW_PARTITION_SHARDED);
    stw_phase *phase = NULL;
    stw_step_stats stats = STW_STEP_STATS_INIT;
    write_shard(runtime, weight, 1);
    SUCCEEDS(stw_phase_create(runtime, "train", &phase));
    /* The same for each part of a shard that comes from, or goes to, each other rank. */
    const uint64_t once = (uint64_t)BLOCK * (member->size - 1);

    SUCCEEDS(stw_step_begin(phase));
    SUCCEEDS(stw_step_end(phase, &stats));
    HOLDS(stats.collective_bytes == 0);

    SUCCEEDS(stw_step_begin(phase));
    expect_whole(runtime, weight, n, 1);
    SUCCEEDS(stw_step_end(phase, &stats));
    HOLDS(stats.collective_bytes == once);
    HOLDS(stats.bound_ns <= stats.wall_ns);

    const uint64_t before = bytes_between_ranks(runtime);
    SUCCEEDS(stw_step_begin(phase));
    stw_view view = fetch(runtime, gradient, STW_REDUCE, STW_WHOLE);
    for (uint64_t i = 0; i < n; ++i) ((float *)view.pointer)[i] = 1.0F;
    let_go(&view, 0);
    SUCCEEDS(stw_runtime_drain(runtime, 0));
    SUCCEEDS(stw_step_end(phase, &stats));
    HOLDS(stats.collective_bytes == once);
    HOLDS(bytes_between_ranks(runtime) - before == once);

    char path[4096];
    char words[64];
    snprintf(path, sizeof path, "%s/run.json", member->directory);
    SUCCEEDS(stw_report_write(runtime, path));
    char *text = text_of(path);
    snprintf(words, sizeof words, "\"ranks\": %llu", (unsigned long long)once);
    HOLDS(strstr(text, words) != NULL);
    snprintf(words, sizeof words, "\"bytes\": %llu", (unsigned long long)(2 * once));
    HOLDS(has(text, "\"link\": \"ranks\"", "\"link\"", words));
    snprintf(words, sizeof words, ",%llu,1,", (unsigned long long)once);
    HOLDS(has(text, "\"lane\": \"ranks\"", "\"lane\"", words));
    free(text);
    snprintf(path, sizeof path, "%s/trace.json", member->directory);
    SUCCEEDS(stw_timeline_write(runtime, path));
    text = text_of(path);
    HOLDS(
        has(text, "\"name\":\"ranks\",\"cat\":\"transfer\"", "\"name\"", "\"tensor\":\"weight\""));
    free(text);

    SUCCEEDS(stw_tensor_destroy(&weight, 1));
    SUCCEEDS(stw_tensor_destroy(&gradient, 1));
    end(runtime, group, member);
}

/* Not each as if it had the host for itself. */
CLAIM(update_threads_are_the_ranks_part_of_the_host)
{
    stw_group *group = join(member);
    stw_runtime *runtime = NULL;
    char path[4096];
    char words[64];
    stw_runtime_options options = {.struct_size = sizeof options,
                                   .host_bytes = 64 * BLOCK,
                                   .block_bytes = BLOCK,
                                   .whole_bytes = 8 * BLOCK,
                                   .group = group};
    SUCCEEDS(stw_runtime_open(&options, &runtime));
    snprintf(path, sizeof path, "%s/threads.json", member->directory);
    SUCCEEDS(stw_report_write(runtime, path));
    char *text = text_of(path);
    snprintf(words, sizeof words, ", %u ranks on the host: ", member->size);
    HOLDS(strstr(text, words) != NULL);
    if (strstr(text, "a quota of") == NULL) {
        const long processors = strtol(strstr(text, "\"threads_why\": \"") + 16, NULL, 10);
        const long own = processors / (long)member->size;
        snprintf(words, sizeof words, "\"threads\": %ld,", own > 1 ? own : 1);
        HOLDS(processors > 0 && strstr(text, words) != NULL);
    }
    free(text);
    end(runtime, group, member);
}
