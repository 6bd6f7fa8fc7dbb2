/* What PaddleNLP's trainer writes beside the tensors: trainer_state.json, the scheduler, random streams, signs of an asynchronous
 * save. */
#include "core/base/file.h"
#include "core/files/paddle_internal.h"

#include <stdlib.h>
#include <string.h>

/* --- scheduler.pdparams ------------------------------------------------------------------------------------- */
/* Opcodes of pickle protocol 4 that a dict of two short words and two numbers needs.  Anything else, above all whatever names or
 * calls a function, is refused. */
enum {
    OP_PROTO = 0x80,
    OP_FRAME = 0x95,
    OP_EMPTY_DICT = '}',
    OP_MEMOIZE = 0x94,
    OP_MARK = '(',
    OP_SHORT_TEXT = 0x8c,
    OP_INT1 = 'K',
    OP_INT2 = 'M',
    OP_INT4 = 'J',
    OP_FLOAT = 'G',
    OP_SET_ITEM = 's',
    OP_SET_ITEMS = 'u',
    OP_STOP = '.'
};

typedef struct pickle {
    const unsigned char *at, *end;
    const char *what;
    char key[32];
    bool has_key, begun, stopped;
    int64_t epoch;
    double rate;
    bool has_epoch, has_rate;
} pickle;

static assay_status take(pickle *k, size_t n, const unsigned char **out)
{
    *out = k->at;
    ASSAY_CHECK((size_t)(k->end - k->at) >= n, ASSAY_FORMAT, "%s: cut off", k->what);
    k->at += n;
    return ASSAY_OK;
}

static uint64_t little(const unsigned char *b, int n)
{
    uint64_t v = 0;
    for (int i = n - 1; i >= 0; i--)
        v = v << 8 | b[i];
    return v;
}

static double big_double(const unsigned char *b)
{
    uint64_t v = 0;
    double out;
    for (int i = 0; i < 8; i++)
        v = v << 8 | b[i];
    memcpy(&out, &v, sizeof out);
    return out;
}

static assay_status value(pickle *k, bool integer, int64_t i, double x)
{
    ASSAY_CHECK(k->has_key, ASSAY_FORMAT, "%s: a number without a name", k->what);
    k->has_key = false;
    if (strcmp(k->key, "last_epoch") == 0 && integer && !k->has_epoch) {
        k->epoch = i;
        k->has_epoch = true;
        return ASSAY_OK;
    }
    ASSAY_CHECK(strcmp(k->key, "last_lr") == 0 && !k->has_rate, ASSAY_FORMAT,
                "%s: expected last_epoch, an integer, and last_lr, once each, found '%s'", k->what, k->key);
    k->rate = integer ? (double)i : x;
    k->has_rate = true;
    ASSAY_CHECK(k->rate == k->rate && k->rate - k->rate == 0.0, ASSAY_FORMAT, "%s: last_lr is not finite",
                k->what);
    return ASSAY_OK;
}

static assay_status text(pickle *k)
{
    const unsigned char *b;
    ASSAY_TRY(take(k, 1, &b));
    const size_t n = b[0];
    ASSAY_CHECK(n < sizeof k->key && !k->has_key, ASSAY_FORMAT, "%s: expected a short name", k->what);
    ASSAY_TRY(take(k, n, &b));
    memcpy(k->key, b, n);
    k->key[n] = '\0';
    k->has_key = true;
    return ASSAY_OK;
}

static assay_status step(pickle *k)
{
    const unsigned char *b;
    ASSAY_TRY(take(k, 1, &b));
    switch (b[0]) {
    case OP_PROTO:
        ASSAY_TRY(take(k, 1, &b));
        ASSAY_CHECK(b[0] >= 2 && b[0] <= 5, ASSAY_UNSUPPORTED, "%s: pickle protocol %d", k->what, b[0]);
        return ASSAY_OK;
    case OP_FRAME:
        return take(k, 8, &b);
    case OP_MEMOIZE:
    case OP_MARK:
    case OP_SET_ITEM:
    case OP_SET_ITEMS:
        return ASSAY_OK;
    case OP_EMPTY_DICT:
        ASSAY_CHECK(!k->begun, ASSAY_UNSUPPORTED, "%s: a dict in a dict", k->what);
        k->begun = true;
        return ASSAY_OK;
    case OP_SHORT_TEXT:
        return text(k);
    case OP_INT1:
        ASSAY_TRY(take(k, 1, &b));
        return value(k, true, b[0], 0.0);
    case OP_INT2:
        ASSAY_TRY(take(k, 2, &b));
        return value(k, true, (int64_t)little(b, 2), 0.0);
    case OP_INT4:
        ASSAY_TRY(take(k, 4, &b));
        return value(k, true, (int32_t)little(b, 4), 0.0);
    case OP_FLOAT:
        ASSAY_TRY(take(k, 8, &b));
        return value(k, false, 0, big_double(b));
    case OP_STOP:
        k->stopped = true;
        return ASSAY_OK;
    default:
        ASSAY_FAIL(
            ASSAY_UNSUPPORTED,
            "%s: a pickle with opcode 0x%02x: only a dict of last_epoch and last_lr is read, nothing is "
            "executed",
            k->what, b[0]);
    }
}

assay_status assay_paddle_scheduler_parse(const unsigned char *bytes, size_t n, const char *what,
                                          int64_t *last_epoch, double *last_lr)
{
    pickle k = {.at = bytes, .end = bytes + n, .what = what};
    while (!k.stopped)
        ASSAY_TRY(step(&k));
    ASSAY_CHECK(k.at == k.end && k.begun && !k.has_key && k.has_epoch && k.has_rate && k.epoch >= 0,
                ASSAY_FORMAT, "%s: expected a dict of last_epoch and last_lr", what);
    *last_epoch = k.epoch;
    *last_lr = k.rate;
    return ASSAY_OK;
}

static size_t put_text(unsigned char *out, const char *word)
{
    const size_t n = strlen(word);
    out[0] = OP_SHORT_TEXT;
    out[1] = (unsigned char)n;
    for (size_t i = 0; i < n; i++)
        out[2 + i] = (unsigned char)word[i];
    out[n + 2] = OP_MEMOIZE;
    return n + 3;
}

size_t assay_paddle_scheduler_format(unsigned char out[64], int64_t last_epoch, double last_lr)
{
    unsigned char *body = out + 11;
    size_t n = 0;
    uint64_t bits;
    memcpy(&bits, &last_lr, sizeof bits);
    body[n++] = OP_EMPTY_DICT;
    body[n++] = OP_MEMOIZE;
    body[n++] = OP_MARK;
    n += put_text(body + n, "last_epoch");
    body[n++] = OP_INT4;
    for (int i = 0; i < 4; i++)
        body[n++] = (unsigned char)((uint64_t)last_epoch >> (8 * i));
    n += put_text(body + n, "last_lr");
    body[n++] = OP_FLOAT;
    for (int i = 7; i >= 0; i--)
        body[n++] = (unsigned char)(bits >> (8 * i));
    body[n++] = OP_SET_ITEMS;
    body[n++] = OP_STOP;
    out[0] = OP_PROTO;
    out[1] = 4;
    out[2] = OP_FRAME;
    for (int i = 0; i < 8; i++)
        out[3 + i] = (unsigned char)((uint64_t)n >> (8 * i));
    return n + 11;
}

/* --- the files ---------------------------------------------------------------------------------------------- */
static assay_status read_state(assay_paddle *p)
{
    char path[ASSAY_PADDLE_PATH + 300];
    json_t *state = NULL;
    assay_paddle_facts *f = &p->facts;
    if (!assay_paddle_listed(p, "trainer_state.json")) {
        if (f->has_optimizer)
            assay_paddle_say(p, true,
                             "trainer_state.json: missing: PaddleNLP begins at step 0 with old states");
        return ASSAY_OK;
    }
    ASSAY_TRY(assay_paddle_path(p, "trainer_state.json", path));
    assay_status st = assay_json_load(&state, path);
    if (st == ASSAY_OK)
        st = assay_json_get_i64(state, "global_step", true, 0, INT64_MAX, path, &f->step);
    if (st == ASSAY_OK)
        st = assay_json_get_i64(state, "consumed_samples", false, 0, INT64_MAX, path, &f->consumed_samples);
    json_decref(state);
    if (st != ASSAY_OK)
        assay_paddle_say_error(p);
    if (f->step > 0 && f->consumed_samples == 0)
        assay_paddle_say(
            p, false,
            "trainer_state.json: consumed_samples 0 at step %lld: PaddleNLP does not read it, but counts "
            "step x batch of the run that goes on",
            (long long)f->step);
    return ASSAY_OK;
}

static assay_status read_scheduler(assay_paddle *p)
{
    char path[ASSAY_PADDLE_PATH + 300];
    char *bytes = NULL;
    uint64_t n = 0;
    assay_paddle_facts *f = &p->facts;
    if (!assay_paddle_listed(p, "scheduler.pdparams")) {
        if (f->has_optimizer)
            assay_paddle_say(p, true, "scheduler.pdparams: missing: PaddleNLP does not resume without it");
        return ASSAY_OK;
    }
    ASSAY_TRY(assay_paddle_path(p, "scheduler.pdparams", path));
    assay_status st = assay_read_file(path, 4096, &bytes, &n);
    if (st == ASSAY_OK)
        st = assay_paddle_scheduler_parse((unsigned char *)bytes, (size_t)n, path, &f->last_epoch,
                                          &f->learning_rate);
    free(bytes);
    if (st != ASSAY_OK)
        assay_paddle_say_error(p);
    else if (f->step >= 0 && f->last_epoch != f->step)
        assay_paddle_say(p, true,
                         "scheduler.pdparams: stale: of step %lld, trainer_state.json is of step %lld",
                         (long long)f->last_epoch, (long long)f->step);
    return ASSAY_OK;
}

static void check_random(const assay_paddle *p)
{
    for (int64_t i = 0; i < p->n_listing; i++)
        if (strncmp(p->listing[i], "rng_state", 9) == 0)
            return;
    if (p->facts.has_optimizer)
        assay_paddle_say(p, false, "rng_state*.pth: none: PaddleNLP goes on with fresh random streams");
}

/* Asynchronous: every rank writes a sign of every kind when it is done. */
static void check_signs(const assay_paddle *p)
{
    static const char *const words[] = {".model_weight.done.", ".optimizer_weight.done.",
                                        ".master_weight.done."};
    int n[3] = {0};
    for (int64_t i = 0; i < p->n_listing; i++)
        for (int k = 0; k < 3; k++)
            n[k] += strncmp(p->listing[i], words[k], strlen(words[k])) == 0;
    const int most = n[0] > n[1] ? n[0] : n[1];
    if (most > 0 && (n[0] != n[1] || (p->facts.files[ASSAY_PADDLE_FILES_MASTERS] > 0 && n[2] != most)))
        assay_paddle_say(
            p, true,
            "an asynchronous save that did not end: %d ranks say that the model is written, %d the "
            "optimizer, %d the masters",
            n[0], n[1], n[2]);
}

assay_status assay_paddle_read_trainer(assay_paddle *p)
{
    p->facts.step = p->facts.consumed_samples = p->facts.last_epoch = -1;
    ASSAY_TRY(read_state(p));
    ASSAY_TRY(read_scheduler(p));
    check_random(p);
    check_signs(p);
    return ASSAY_OK;
}
