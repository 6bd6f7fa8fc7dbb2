/* The engine's pipeline schedule as a list. */
#include "core/base/log.h"
#include "gpu/parallel/pipeline.h"
#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

/* --- order -------------------------------------------------------------------------------------------------- */
/* "F0 F1 B0 ..." of one stage, "F0a F0b ..." with chunks; actions of one round are joined by '+'. */
static void text_of(int stages, int chunks, int stage, int64_t microbatches, char out[256])
{
    gpu_schedule s;
    size_t used = 0;
    cr_assert_eq(gpu_pipeline_schedule(stages, chunks, stage, microbatches, &s), ASSAY_OK);
    cr_assert_eq(s.n, 2 * microbatches * chunks);
    out[0] = '\0';
    for (int64_t i = 0; i < s.n; i++) {
        const gpu_action *a = &s.list[i];
        used += (size_t)snprintf(out + used, 256 - used, "%s%c%lld",
                                 i == 0      ? ""
                                 : a->joined ? "+"
                                             : " ",
                                 a->forward ? 'F' : 'B', (long long)a->microbatch);
        if (chunks > 1)
            used += (size_t)snprintf(out + used, 256 - used, "%c", 'a' + a->chunk);
    }
    gpu_pipeline_schedule_free(&s);
}

Test(engine_schedule, is_that_of_megatron)
{
    static const struct {
        int stages, chunks, stage;
        int64_t microbatches;
        const char *text;
    } rows[] = {
        {1, 1, 0, 2, "F0 B0 F1 B1"},
        {2, 1, 0, 3, "F0 F1 B0 F2 B1 B2"},
        {2, 1, 1, 3, "F0 B0 F1 B1 F2 B2"},
        {3, 1, 0, 2, "F0 F1 B0 B1"},
        {3, 1, 0, 4, "F0 F1 F2 B0 F3 B1 B2 B3"},
        {3, 1, 1, 4, "F0 F1 B0 F2 B1 F3 B2 B3"},
        {4, 1, 0, 1, "F0 B0"},
        {4, 1, 3, 2, "F0 B0 F1 B1"},
        {2, 1, 0, 0, ""},
        {2, 2, 0, 1, "F0a F0b B0b B0a"},
        {2, 2, 1, 2, "F0a F1a F0b+B0b F1b+B1b B0a B1a"},
        {2, 2, 0, 4, "F0a F1a F0b F1b F2a+B0b F3a+B1b F2b+B0a F3b+B1a B2b B3b B2a B3a"},
        {2, 2, 1, 4, "F0a F1a F0b+B0b F1b+B1b F2a+B0a F3a+B1a F2b+B2b F3b+B3b B2a B3a"},
        {3, 2, 2, 3, "F0a F1a F2a F0b+B0b F1b+B1b F2b+B2b B0a B1a B2a"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char text[256];
        text_of(rows[i].stages, rows[i].chunks, rows[i].stage, rows[i].microbatches, text);
        cr_expect_str_eq(text, rows[i].text, "stage %d of %d, %d chunks, %lld microbatches", rows[i].stage,
                         rows[i].stages, rows[i].chunks, (long long)rows[i].microbatches);
    }
}

Test(engine_schedule, places_hold_what_is_between_forward_and_backward)
{
    gpu_schedule s;
    cr_assert_eq(gpu_pipeline_schedule(4, 1, 1, 8, &s), ASSAY_OK);
    cr_expect_eq(gpu_pipeline_in_flight(&s, 0), 3);
    gpu_pipeline_schedule_free(&s);
    cr_assert_eq(gpu_pipeline_schedule(2, 2, 0, 4, &s), ASSAY_OK);
    cr_expect_eq(gpu_pipeline_in_flight(&s, 0), 4);
    cr_expect_eq(gpu_pipeline_in_flight(&s, 1), 2);
    gpu_pipeline_schedule_free(&s);
}

Test(engine_schedule, interleaving_needs_groups_of_stages)
{
    gpu_schedule s;
    cr_expect_eq(gpu_pipeline_schedule(3, 2, 0, 4, &s), ASSAY_INVALID_ARGUMENT);
    cr_expect(strstr(assay_error_message(), "multiple of pp3 or at most that, found 4"), "%s",
              assay_error_message());
    cr_expect_null(s.list);
}

/* --- the stages meet ---------------------------------------------------------------------------------------- */
enum { MAX_STAGES = 6, MAX_MESSAGES = 512 };

/* A stage with what waits to travel after each round: NCCL sends and receives of one group end together. */
typedef struct stage {
    gpu_schedule s;
    int64_t done; /* actions of finished rounds */
    int64_t end;  /* of the round whose receives are asked for */
    bool waits;   /* a group is posted */
    int pending;  /* of its transfers */
} stage;

/* Messages from one rank to another in the order of posting: numbers of microbatch, virtual stage and direction. */
typedef struct line {
    int64_t sent[MAX_MESSAGES], asked[MAX_MESSAGES];
    int n_sent, n_asked, met;
} line;

typedef struct ring {
    int stages, chunks;
    stage at[MAX_STAGES];
    line lines[MAX_STAGES][MAX_STAGES];
} ring;

static int64_t message(const ring *r, const gpu_action *a, int virtual_stage)
{
    return (a->microbatch * r->stages * r->chunks + virtual_stage) * 2 + (a->forward ? 1 : 0);
}

/* The transfer of an action, if it has one: a send goes where its receive waits. */
static void post(ring *r, int rank, const gpu_action *a, bool send)
{
    const int last = r->stages * r->chunks - 1, v = a->chunk * r->stages + rank;
    const int other = a->forward == send ? v + 1 : v - 1; /* virtual stage at the other end */
    if (other < 0 || other > last)
        return;
    const int peer = other % r->stages;
    line *l = send ? &r->lines[rank][peer] : &r->lines[peer][rank];
    cr_assert_lt(send ? l->n_sent : l->n_asked, MAX_MESSAGES);
    if (send)
        l->sent[l->n_sent++] = message(r, a, v);
    else
        l->asked[l->n_asked++] = message(r, a, other);
    r->at[rank].pending++;
}

/* Posts what the round before made and what the next one needs. */
static void post_group(ring *r, int rank)
{
    stage *s = &r->at[rank];
    for (int64_t i = s->done; i < s->end; i++)
        post(r, rank, &s->s.list[i], true);
    s->done = s->end;
    for (int64_t i = s->done; i < s->s.n && (i == s->done || s->s.list[i].joined); i++)
        s->end = i + 1;
    for (int64_t i = s->done; i < s->end; i++)
        post(r, rank, &s->s.list[i], false);
    s->waits = true;
}

static bool meet(ring *r, int from, int to)
{
    line *l = &r->lines[from][to];
    const int before = l->met;
    for (; l->met < l->n_sent && l->met < l->n_asked; l->met++) {
        cr_assert_eq(l->sent[l->met], l->asked[l->met], "rank %d takes another message of %d", to, from);
        r->at[from].pending--;
        r->at[to].pending--;
    }
    return l->met > before;
}

/* Whether every stage comes to its end. */
static bool all_arrive(ring *r)
{
    for (bool moved = true; moved;) {
        moved = false;
        for (int i = 0; i < r->stages; i++) {
            stage *s = &r->at[i];
            if (s->waits && (s->pending > 0 || s->done == s->s.n))
                continue;
            post_group(r, i);
            moved = true;
        }
        for (int i = 0; i < r->stages; i++)
            for (int k = 0; k < r->stages; k++)
                moved = meet(r, i, k) || moved;
    }
    bool all = true;
    for (int i = 0; i < r->stages; i++)
        all = all && r->at[i].done == r->at[i].s.n && r->at[i].pending == 0;
    return all;
}

/* No circle of stages that wait for each other, and two messages between the same ranks come in the order in which they
 * are asked for (two stages: forward and backward take the same way). */
Test(engine_schedule, stages_never_wait_in_a_circle)
{
    static ring r;
    int ran = 0;
    for (int stages = 1; stages <= MAX_STAGES; stages++)
        for (int chunks = 1; chunks <= (stages > 1 ? 4 : 1); chunks++)
            for (int64_t n = 0; n <= 3 * stages; n++) {
                if (chunks > 1 && n > stages && n % stages != 0)
                    continue;
                memset(&r, 0, sizeof r);
                r.stages = stages;
                r.chunks = chunks;
                for (int i = 0; i < stages; i++)
                    cr_assert_eq(gpu_pipeline_schedule(stages, chunks, i, n, &r.at[i].s), ASSAY_OK);
                cr_expect(all_arrive(&r), "%d stages, %d chunks, %lld microbatches", stages, chunks,
                          (long long)n);
                for (int i = 0; i < stages; i++)
                    gpu_pipeline_schedule_free(&r.at[i].s);
                ran++;
            }
    cr_expect_gt(ran, 100);
}

/* The same with a forward and the backward after it in rounds of their own: the reason for rounds. */
Test(engine_schedule, without_rounds_they_would)
{
    static ring r;
    memset(&r, 0, sizeof r);
    r.stages = r.chunks = 2;
    for (int i = 0; i < 2; i++) {
        cr_assert_eq(gpu_pipeline_schedule(2, 2, i, 4, &r.at[i].s), ASSAY_OK);
        for (int64_t k = 0; k < r.at[i].s.n; k++)
            r.at[i].s.list[k].joined = false;
    }
    cr_expect_not(all_arrive(&r));
    for (int i = 0; i < 2; i++)
        gpu_pipeline_schedule_free(&r.at[i].s);
}
