/* Megatron-LM's pipeline_model_parallel_layout: a text read once, stage by stage. */
#include "core/model/pipeline_layout.h"

#include <string.h>

/* What has been read so far, and whom it is told. */
typedef struct reader {
    const char *text; /* for messages; NULL: the text was checked before */
    int stage;
    int64_t layers, in_stage;
    bool embedding, loss;
    bool (*ends)(void *user, int stage, int64_t first, int64_t count); /* a stage is complete; true: enough */
    void *user;
    bool enough;
} reader;

static assay_status complain(const reader *r, const char *what)
{
    ASSAY_FAIL(ASSAY_INVALID_ARGUMENT, "pipeline_model_parallel_layout '%.80s': %s", r->text, what);
}

static void end_stage(reader *r)
{
    if (!r->enough && r->ends)
        r->enough = r->ends(r->user, r->stage, r->layers - r->in_stage, r->in_stage);
    r->stage++;
    r->in_stage = 0;
}

/* One character, `count` times. */
static assay_status apply(reader *r, char c, int64_t count)
{
    if (count == 0)
        return ASSAY_OK;
    if (r->loss)
        return complain(r,
                        c == 'L' ? "L (the loss) is there more than once" : "something follows L (the loss)");
    switch (c) {
    case 'E':
        if (count > 1 || r->embedding)
            return complain(r, "E (the embedding) is there more than once");
        if (r->stage > 0 || r->layers > 0)
            return complain(r, "E (the embedding) is not the first of all");
        r->embedding = true;
        return ASSAY_OK;
    case 't':
        if (r->layers + count > ASSAY_MAX_PIPELINE_LAYERS)
            return complain(r, "more layers than any model has");
        r->layers += count;
        r->in_stage += count;
        return ASSAY_OK;
    case '|':
        if (r->stage + count >= ASSAY_MAX_VIRTUAL_STAGES)
            return complain(r, "more virtual stages than are supported");
        for (int64_t i = 0; i < count && !r->enough; i++)
            end_stage(r);
        return ASSAY_OK;
    case 'L':
        if (count > 1)
            return complain(r, "L (the loss) is there more than once");
        r->loss = true;
        return ASSAY_OK;
    case 'm':
        ASSAY_FAIL(ASSAY_UNSUPPORTED,
                   "pipeline_model_parallel_layout '%.80s': m: layers of multi-token prediction are not "
                   "supported in this version",
                   r->text);
    default:
        ASSAY_FAIL(ASSAY_INVALID_ARGUMENT,
                   "pipeline_model_parallel_layout '%.80s': expected E, t, m, L, | or (...)*N, found '%.1s'",
                   r->text, (const char[]){c, '\0'});
    }
}

/* "*" and one to four digits; *at stays and *count is 1 where there is no "*". */
static bool read_times(const char **at, const char *end, int64_t *count)
{
    const char *p = *at;
    *count = 1;
    if (p == end || *p != '*')
        return true;
    int64_t n = 0;
    const char *first = ++p;
    for (; p != end && *p >= '0' && *p <= '9'; p++) {
        if (p - first == 4)
            return false;
        n = 10 * n + (*p - '0');
    }
    *at = p;
    *count = n;
    return p != first;
}

/* Units in [at, end). */
static assay_status read_units(reader *r, const char *at, const char *end)
{
    while (at != end && !r->enough) {
        const char c = *at++;
        int64_t count;
        if (!read_times(&at, end, &count))
            return complain(r, "expected a number of at most four digits behind *");
        ASSAY_TRY(apply(r, c, count));
    }
    return ASSAY_OK;
}

static assay_status read_all(reader *r, const char *at)
{
    const char *end = at + strlen(at);
    while (at != end && !r->enough) {
        const char *open = memchr(at, '(', (size_t)(end - at));
        ASSAY_TRY(read_units(r, at, open ? open : end));
        if (!open)
            break;
        const char *close = memchr(open, ')', (size_t)(end - open));
        int64_t count;
        if (!close || close == open + 1 || memchr(open + 1, '(', (size_t)(close - open - 1)))
            return complain(r, "expected (...)*N around at least one character and no other parenthesis");
        at = close + 1;
        if (at == end || *at != '*' || !read_times(&at, end, &count))
            return complain(r, "expected * and a number of at most four digits behind a parenthesis");
        for (int64_t i = 0; i < count && !r->enough; i++)
            ASSAY_TRY(read_units(r, open + 1, close));
    }
    if (!r->enough)
        end_stage(r);
    return ASSAY_OK;
}

/* --- canonical form ------------------------------------------------------------------------------------------- */

/* Equal inner stages are one (...)*N; what is neither the first stage nor the last is inner. */
typedef struct writer {
    char *out;
    size_t used;
    int last;
    int64_t run, count; /* inner stages of `count` layers that wait to be written */
} writer;

static void put(writer *w, const char *text)
{
    const size_t n = strlen(text);
    if (w->used + n < ASSAY_PIPELINE_LAYOUT)
        memcpy(w->out + w->used, text, n + 1);
    w->used += n;
}

static void put_layers(writer *w, int64_t count)
{
    char text[32];
    snprintf(text, sizeof text, "t*%lld", (long long)count);
    if (count > 0)
        put(w, count == 1 ? "t" : text);
}

static void put_run(writer *w)
{
    char text[32];
    if (w->run > 1)
        put(w, "(");
    if (w->run > 0) {
        put_layers(w, w->count);
        put(w, "|");
    }
    snprintf(text, sizeof text, ")*%lld", (long long)w->run);
    if (w->run > 1)
        put(w, text);
    w->run = 0;
}

static bool write_stage(void *user, int stage, int64_t first, int64_t count)
{
    writer *w = user;
    (void)first;
    if (stage > 0 && stage < w->last) {
        if (w->run > 0 && w->count != count)
            put_run(w);
        w->count = count;
        w->run++;
        return false;
    }
    put_run(w);
    if (stage == 0)
        put(w, "E");
    put_layers(w, count);
    put(w, stage == w->last ? "L" : "|");
    return false;
}

assay_status assay_pipeline_layout_parse(const char *text, char canonical[ASSAY_PIPELINE_LAYOUT],
                                         assay_pipeline_layout *out)
{
    char plain[4 * ASSAY_PIPELINE_LAYOUT];
    size_t n = 0;
    ASSAY_CHECK(strlen(text) < sizeof plain, ASSAY_INVALID_ARGUMENT,
                "pipeline_model_parallel_layout '%.32s...': more than %zu characters", text,
                sizeof plain - 1);
    for (const char *c = text; *c != '\0'; c++)
        if (*c != ',')
            plain[n++] = *c;
    plain[n] = '\0';
    reader r = {.text = text};
    ASSAY_TRY(read_all(&r, plain));
    if (!r.embedding)
        return complain(&r, "there is no E (the embedding)");
    if (!r.loss)
        return complain(&r, "there is no L (the loss)");
    writer w = {.out = canonical, .last = r.stage - 1};
    reader again = {.text = text, .ends = write_stage, .user = &w};
    ASSAY_TRY(read_all(&again, plain));
    ASSAY_CHECK(w.used < ASSAY_PIPELINE_LAYOUT, ASSAY_LIMIT,
                "pipeline_model_parallel_layout '%.80s': more than %d characters in its shortest form", text,
                ASSAY_PIPELINE_LAYOUT - 1);
    *out = (assay_pipeline_layout){.stages = r.stage, .layers = r.layers};
    return ASSAY_OK;
}

/* --- questions ------------------------------------------------------------------------------------------------ */

typedef struct question {
    int stage;     /* asked for, -1: the one that has the layer */
    int64_t layer; /* asked for */
    int64_t first, count;
} question;

static bool answer(void *user, int stage, int64_t first, int64_t count)
{
    question *q = user;
    if (q->stage < 0 ? q->layer >= first + count : stage != q->stage)
        return false;
    *q = (question){.stage = stage, .layer = q->layer, .first = first, .count = count};
    return true;
}

static void ask(const char *text, question *q)
{
    reader r = {.text = text, .ends = answer, .user = q};
    if (read_all(&r, text) != ASSAY_OK)
        assay_error_clear();
}

void assay_pipeline_layout_stage(const char *text, int stage, int64_t *first, int64_t *count)
{
    question q = {.stage = stage};
    ask(text, &q);
    *first = q.first;
    *count = q.count;
}

int assay_pipeline_layout_stage_of(const char *text, int64_t layer)
{
    question q = {.stage = -1, .layer = layer};
    ask(text, &q);
    return q.stage;
}
