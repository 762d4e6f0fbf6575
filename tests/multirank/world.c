/* SPDX-License-Identifier: Apache-2.0 */
/* Ranks as threads. A collective is done by those who take part: once all have posted where their
 * bytes are, each takes what it needs from the others, and nobody leaves before all have. */
#include "tests/multirank/world.h"

#include "tests/multirank/half.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { RANKS_MAX = 16, WORKS = 64, CUTS = 2 };

struct post {
    const void *from;
    void *to;
    uint64_t count;
    uint32_t dtype;
    int kind; /* 1: all_gather, 2: reduce_scatter, 3: all_reduce */
};

struct work {
    struct post posts[RANKS_MAX];
    uint32_t posted;
    uint32_t taken;
    uint32_t left;
};

struct world {
    uint32_t size;
    pthread_mutex_t mutex;
    pthread_barrier_t barrier;
    struct work works[WORKS];
    uint64_t next[RANKS_MAX]; /* work of each rank */
    bool took[RANKS_MAX];
    bool aborted;
    struct world *parts[CUTS][RANKS_MAX]; /* by colour */
};

struct rank_of_world {
    struct world *world;
    uint32_t rank;
    uint64_t number; /* of the work under way; its id is that, or on odd ranks always the same */
    bool under_way;
    enum engine_fault fault;
    struct rank_of_world *parts[CUTS];
};

void check(bool holds, const char *text, const char *file, int line)
{
    if (holds) return;
    printf("# %s:%d: does not hold: %s\n# the library says: %s\n", file, line, text,
           stw_last_error());
    fflush(stdout);
    _exit(1);
}

static struct world *make_world(uint32_t ranks)
{
    struct world *world = calloc(1, sizeof *world);
    world->size = ranks;
    pthread_mutex_init(&world->mutex, NULL);
    pthread_barrier_init(&world->barrier, NULL, ranks);
    return world;
}

static void free_world(struct world *world)
{
    if (!world) return;
    for (uint32_t i = 0; i < CUTS * RANKS_MAX; ++i) {
        free_world(world->parts[i / RANKS_MAX][i % RANKS_MAX]);
    }
    pthread_barrier_destroy(&world->barrier);
    pthread_mutex_destroy(&world->mutex);
    free(world);
}

static uint64_t id_of(const struct rank_of_world *self)
{
    return self->rank % 2 == 0 ? self->number : 7;
}

static stw_status post(struct rank_of_world *self, struct post what, uint64_t *work_out)
{
    struct world *world = self->world;
    HOLDS(!self->under_way); /* one at a time */
    if (self->fault == ENGINE_STARTS_NOTHING) return STW_ERROR_DEVICE;
    pthread_mutex_lock(&world->mutex);
    self->number = world->next[self->rank]++;
    struct work *work = &world->works[self->number % WORKS];
    work->posts[self->rank] = what;
    work->posted += self->fault != ENGINE_IS_SILENT;
    world->took[self->rank] = false;
    pthread_mutex_unlock(&world->mutex);
    self->under_way = true;
    *work_out = id_of(self);
    return STW_OK;
}

static uint64_t bytes_of(uint32_t dtype)
{
    HOLDS(dtype == STW_F32 || dtype == STW_BF16 || dtype == STW_F16); /* what these tests sum */
    return dtype == STW_F32 ? sizeof(float) : sizeof(uint16_t);
}

static void add(const struct work *work, uint32_t ranks, uint64_t begin, uint64_t count, void *to,
                uint32_t dtype, bool into_to)
{
    for (uint64_t i = 0; i < count; ++i) {
        float sum = 0.0F;
        for (uint32_t rank = 0; rank < ranks; ++rank) {
            const void *from = into_to ? work->posts[rank].to : work->posts[rank].from;
            sum += value_in(from, begin + i, dtype);
        }
        put_value(to, i, dtype, sum);
    }
}

static void take(struct world *world, struct work *work, uint32_t rank)
{
    const struct post *mine = &work->posts[rank];
    for (uint32_t from = 0; from < world->size; ++from) {
        HOLDS(work->posts[from].kind == mine->kind && work->posts[from].count == mine->count);
    }
    if (mine->kind == 1) {
        for (uint32_t from = 0; from < world->size; ++from) {
            char *to = (char *)mine->to + from * mine->count;
            if (to != work->posts[from].from) memcpy(to, work->posts[from].from, mine->count);
        }
    } else if (mine->kind == 2) {
        add(work, world->size, rank * mine->count, mine->count, mine->to, mine->dtype, false);
    }
}

static stw_status poll(void *user, uint64_t id)
{
    struct rank_of_world *self = user;
    struct world *world = self->world;
    stw_status status = STW_PENDING;
    HOLDS(self->under_way && id == id_of(self)); /* nobody asks for what is over */
    if (self->fault == ENGINE_ENDS_NOTHING) {
        self->under_way = false;
        return STW_ERROR_IO;
    }
    pthread_mutex_lock(&world->mutex);
    struct work *work = &world->works[self->number % WORKS];
    /* What is over stays so, whatever became of the others since; a sum for all may be not yet. */
    const bool over =
        work->taken == world->size && (work->left > 0 || work->posts[self->rank].kind != 3);
    if (world->aborted && !over) {
        status = STW_ERROR_PEER;
    } else if (work->posted == world->size) {
        if (!world->took[self->rank]) {
            world->took[self->rank] = true;
            take(world, work, self->rank);
            ++work->taken;
        }
        if (work->taken == world->size) {
            const struct post *mine = &work->posts[self->rank];
            /* In place, so by one for all, before anybody leaves. */
            if (mine->kind == 3 && work->left == 0) {
                const uint64_t bytes = mine->count * bytes_of(mine->dtype);
                void *sum = malloc(bytes + 1);
                add(work, world->size, 0, mine->count, sum, mine->dtype, true);
                for (uint32_t to = 0; to < world->size; ++to) {
                    memcpy(work->posts[to].to, sum, bytes);
                }
                free(sum);
            }
            if (++work->left == world->size) memset(work, 0, sizeof *work);
            status = STW_OK;
        }
    }
    pthread_mutex_unlock(&world->mutex);
    self->under_way = status == STW_PENDING;
    return status;
}

static stw_status all_gather(void *user, const void *shard, void *whole, uint64_t shard_bytes,
                             uint32_t tier, uint32_t device, void *stream, uint64_t *work_out)
{
    HOLDS(tier == STW_TIER_HOST && device == 0 && stream == NULL);
    const struct post what = {shard, whole, shard_bytes, 0, 1};
    return post(user, what, work_out);
}

static stw_status reduce_scatter(void *user, const void *whole, void *shard,
                                 uint64_t shard_elements, uint32_t dtype, uint32_t tier,
                                 uint32_t device, void *stream, uint64_t *work_out)
{
    HOLDS(tier == STW_TIER_HOST && device == 0 && stream == NULL && bytes_of(dtype) > 0);
    const struct post what = {whole, shard, shard_elements, dtype, 2};
    return post(user, what, work_out);
}

static stw_status all_reduce(void *user, void *data, uint64_t elements, uint32_t dtype,
                             uint32_t tier, uint32_t device, void *stream, uint64_t *work_out)
{
    HOLDS(tier == STW_TIER_HOST && device == 0 && stream == NULL);
    const struct post what = {NULL, data, elements, dtype, 3};
    return post(user, what, work_out);
}

static stw_status abort_all(void *user)
{
    struct rank_of_world *self = user;
    pthread_mutex_lock(&self->world->mutex);
    self->world->aborted = true;
    pthread_mutex_unlock(&self->world->mutex);
    return STW_OK;
}

static stw_group *join_as(const struct member *member, struct rank_of_world *self)
{
    static const stw_group_ops ops = {
        sizeof(stw_group_ops), 0, all_gather, reduce_scatter, all_reduce, poll, abort_all,
    };
    stw_group_options options = STW_GROUP_OPTIONS_INIT;
    stw_group *group = NULL;
    options.driver = STW_GROUP_CALLBACKS;
    options.flags = member->group_flags;
    options.rank = self->rank;
    options.size = self->world->size;
    options.ops = &ops;
    options.ops_user = self;
    options.timeout_ns = member->timeout_ns;
    SUCCEEDS(stw_group_create(&options, &group));
    return group;
}

stw_group *join(struct member *member)
{
    return join_as(member, member->world);
}

stw_group *join_part(struct member *member, uint32_t cut, uint32_t colour, uint32_t rank,
                     uint32_t size)
{
    struct rank_of_world *self = member->world;
    struct world *world = self->world;
    HOLDS(cut < CUTS && colour < RANKS_MAX && self->parts[cut] == NULL);
    pthread_mutex_lock(&world->mutex);
    if (!world->parts[cut][colour]) world->parts[cut][colour] = make_world(size);
    pthread_mutex_unlock(&world->mutex);
    self->parts[cut] = calloc(1, sizeof *self);
    self->parts[cut]->world = world->parts[cut][colour];
    self->parts[cut]->rank = rank;
    return join_as(member, self->parts[cut]);
}

void spoil(struct member *member, enum engine_fault fault)
{
    struct rank_of_world *self = member->world;
    self->fault = fault;
}

void meet(struct member *member)
{
    struct rank_of_world *self = member->world;
    pthread_barrier_wait(&self->world->barrier);
}

struct task {
    struct member member;
    struct rank_of_world self;
    claim_fn run;
    pthread_t thread;
};

static void *run_task(void *user)
{
    struct task *task = user;
    task->run(&task->member);
    return NULL;
}

static void run_claim(const struct claim *claim, uint32_t ranks, const char *directory)
{
    struct world *world = make_world(ranks);
    struct task *tasks = calloc(ranks, sizeof *tasks);
    for (uint32_t rank = 0; rank < ranks; ++rank) {
        struct task *task = &tasks[rank];
        task->self.world = world;
        task->self.rank = rank;
        task->member.rank = rank;
        task->member.size = ranks;
        task->member.timeout_ns = claim->timeout_ns;
        task->member.directory = directory;
        task->member.world = &task->self;
        task->run = claim->run;
        HOLDS(pthread_create(&task->thread, NULL, run_task, task) == 0);
    }
    for (uint32_t rank = 0; rank < ranks; ++rank) {
        pthread_join(tasks[rank].thread, NULL);
        for (uint32_t cut = 0; cut < CUTS; ++cut) free(tasks[rank].self.parts[cut]);
    }
    free(tasks);
    free_world(world);
}

/* [--ranks N] [claim] */
int main(int argc, char **argv)
{
    uint32_t ranks = 3;
    const char *only = NULL;
    for (int i = 1; i < argc; ++i) {
        if (strcmp(argv[i], "--ranks") == 0 && i + 1 < argc) {
            ranks = (uint32_t)strtoul(argv[++i], NULL, 10);
        } else {
            only = argv[i];
        }
    }
    char directory[] = "/tmp/stepwell-ranks-XXXXXX";
    HOLDS(ranks <= RANKS_MAX && mkdtemp(directory) != NULL);
    printf("1..%u\n", claims_count);
    for (uint32_t i = 0; i < claims_count; ++i) {
        if (only && strcmp(only, claims[i].name) != 0) {
            printf("ok %u - %s # SKIP another one was asked for\n", i + 1, claims[i].name);
            continue;
        }
        run_claim(&claims[i], ranks, directory);
        printf("ok %u - %s\n", i + 1, claims[i].name);
        fflush(stdout);
    }
    rmdir(directory);
    return 0;
}
