/* Records as our own writer puts them, read without a JSON tree: a trace has ten thousands of them.  Anything else
 * that is legal, and everything that is not, is left to the JSON reader (trace_record.c), which says what is wrong. */
#include "core/base/json_cursor.h"
#include "core/files/trace_internal.h"

#include <stdlib.h>
#include <string.h>

/* "[[[0,2],[6,2]],[[0,8]]]" */
static void segments(assay_cursor *c, assay_shard *s)
{
    assay_cursor_expect(c, "[");
    for (int d = 0; d < s->ndim && c->good; d++) {
        if (d > 0)
            assay_cursor_expect(c, ",");
        assay_cursor_expect(c, "[");
        assay_segment read[ASSAY_MAX_SEGMENTS];
        int n_read = 0;
        while (c->good && !assay_cursor_is(c, "]")) {
            int64_t pair[2] = {0, 0};
            if (n_read > 0)
                assay_cursor_expect(c, ",");
            const int n = assay_cursor_integers(c, pair, 2);
            c->good = c->good && n == 2 && n_read < ASSAY_MAX_SEGMENTS;
            if (c->good)
                read[n_read++] = (assay_segment){pair[0], pair[1]};
        }
        assay_shard_set(s, d, read, n_read);
    }
    assay_cursor_expect(c, "]");
}

static void shard(assay_cursor *c, assay_shard *s)
{
    int64_t shape[ASSAY_MAX_DIMS];
    const int ndim = assay_cursor_integers(c, shape, ASSAY_MAX_DIMS);
    for (int d = 0; d < ndim; d++)
        c->good = c->good && shape[d] >= 0;
    if (!c->good)
        return;
    assay_shard_whole(s, shape, ndim);
    if (!assay_cursor_is(c, ",\"local_shape\":"))
        return;
    const int local = assay_cursor_integers(c, s->local_shape, ASSAY_MAX_DIMS);
    c->good = c->good && local == ndim;
    for (int d = 0; d < ndim; d++)
        c->good = c->good && s->local_shape[d] >= 0;
    assay_cursor_expect(c, ",\"segments\":");
    segments(c, s);
}

static void phase(assay_cursor *c, assay_phase *out)
{
    char text[32];
    assay_cursor_string(c, text, sizeof text);
    int k = 0;
    while (k < ASSAY_PHASE_COUNT && strcmp(text, assay_phase_name((assay_phase)k)) != 0)
        k++;
    c->good = c->good && k < ASSAY_PHASE_COUNT;
    *out = (assay_phase)k;
}

static void kind(assay_cursor *c, assay_piece_kind *out)
{
    char text[16];
    int k = 0;
    *out = ASSAY_PIECE_SHARD;
    if (!assay_cursor_is(c, ",\"kind\":\""))
        return;
    assay_cursor_string(c, text, sizeof text);
    while (k <= ASSAY_PIECE_LOCAL && strcmp(text, assay_piece_kind_name((assay_piece_kind)k)) != 0)
        k++;
    c->good = c->good && k <= ASSAY_PIECE_LOCAL;
    *out = (assay_piece_kind)k;
}

static void members(assay_cursor *c, assay_trace_tensor *t)
{
    assay_cursor_expect(c, "{\"type\":\"tensor\",\"id\":");
    t->id = assay_cursor_integer(c);
    assay_cursor_expect(c, ",\"name\":\"");
    assay_cursor_string(c, t->name, sizeof t->name);
    assay_cursor_expect(c, ",\"phase\":\"");
    phase(c, &t->phase);
    assay_cursor_expect(c, ",\"step\":");
    t->step = assay_cursor_integer(c);
    assay_cursor_expect(c, ",\"microbatch\":");
    t->microbatch = assay_cursor_integer(c);
    assay_cursor_expect(c, ",\"dtype\":\"");
    assay_cursor_dtype(c, &t->dtype);
    assay_cursor_expect(c, ",\"global_shape\":");
    shard(c, &t->shard);
    kind(c, &t->kind);
    if (assay_cursor_is(c, ",\"partial_group\":\""))
        assay_cursor_string(c, t->partial_group, sizeof t->partial_group);
    if (assay_cursor_is(c, ",\"rows_id\":")) {
        t->rows_id = assay_cursor_integer(c);
        c->good = c->good && t->rows_id >= 0;
    }
    t->has_scale = assay_cursor_is(c, ",\"scale\":");
    if (t->has_scale) {
        t->scale_id = assay_cursor_integer(c);
        c->good = c->good && t->scale_id >= 0;
    }
    assay_cursor_expect(c, ",\"hash\":\"");
    assay_cursor_string(c, t->hash, sizeof t->hash);
    assay_cursor_expect(c, "}");
}

bool assay_trace_tensor_from_text(const char *text, size_t bytes, assay_trace_tensor *t)
{
    assay_cursor c = {.at = text, .end = text + bytes, .good = true};
    *t = (assay_trace_tensor){.id = -1, .rows_id = -1, .scale_id = -1};
    members(&c, t);
    if (!c.good || c.at != c.end || t->id < 0 || strlen(t->hash) != ASSAY_HASH_HEX - 1 ||
        strspn(t->hash, "0123456789abcdef") != ASSAY_HASH_HEX - 1)
        return false;
    if (assay_trace_check_tensor(t) == ASSAY_OK)
        return true;
    assay_error_clear(); /* the JSON reader words it */
    return false;
}

/* --- operations: the part of a line between its numbers and its slots comes again and again ------------------------- */

struct assay_trace_parts {
    int64_t n, capacity;
    struct known {
        uint64_t hash;
        size_t bytes;
        char *text;        /* from behind the variant up to the inputs */
        assay_trace_op op; /* read by the JSON reader from a line with this part */
    } * known;
    int32_t *slots; /* by hash, 0: none, else the number of one of `known` from 1; twice `capacity` */
};
enum { MOST_PARTS = 4096 };

static uint64_t hash_of(const char *text, size_t bytes)
{
    uint64_t hash = bytes * UINT64_C(0x9e3779b97f4a7c15), word = 0;
    for (; bytes >= 8; text += 8, bytes -= 8) {
        memcpy(&word, text, 8);
        hash = (hash ^ word) * UINT64_C(0xff51afd7ed558ccd);
        hash ^= hash >> 32;
    }
    word = 0;
    memcpy(&word, text, bytes);
    hash = (hash ^ word) * UINT64_C(0xc4ceb9fe1a85ec53);
    return hash ^ hash >> 29;
}

static const struct known *find_part(const assay_trace_parts *p, const char *text, size_t bytes)
{
    const uint64_t hash = hash_of(text, bytes), room = 2 * (uint64_t)p->capacity;
    if (room == 0)
        return NULL;
    for (uint64_t at = hash % room; p->slots[at] != 0; at = (at + 1) % room) {
        const struct known *k = &p->known[p->slots[at] - 1];
        if (k->hash == hash && k->bytes == bytes && memcmp(k->text, text, bytes) == 0)
            return k;
    }
    return NULL;
}

/* `{"x":12,"weight":3}`, each name once. */
static void op_slots(assay_cursor *c, assay_trace_slot *slots, int *n)
{
    *n = 0;
    assay_cursor_expect(c, "{");
    while (c->good && !assay_cursor_is(c, "}")) {
        if (*n > 0)
            assay_cursor_expect(c, ",");
        assay_cursor_expect(c, "\"");
        if (*n == ASSAY_MAX_SLOTS) {
            c->good = false;
            return;
        }
        assay_trace_slot *s = &slots[*n];
        assay_cursor_string(c, s->slot, sizeof s->slot);
        assay_cursor_expect(c, ":");
        s->tensor = assay_cursor_integer(c);
        c->good = c->good && s->slot[0] != '\0';
        for (int i = 0; i < *n; i++)
            c->good = c->good && strcmp(slots[i].slot, s->slot) != 0;
        ++*n;
    }
}

/* Cuts a line into its numbers, which are read, the part, and its slots, which are read; false: not as the writer puts it. */
static bool op_line(const char *text, size_t bytes, assay_trace_op *op, const char **part, size_t *part_bytes)
{
    static const char inputs[] = ",\"inputs\":";
    assay_cursor c = {.at = text, .end = text + bytes, .good = true};
    assay_cursor_expect(&c, "{\"type\":\"op\",\"sequence\":");
    op->sequence = assay_cursor_integer(&c);
    assay_cursor_expect(&c, ",\"op\":\"");
    assay_cursor_string(&c, op->op, sizeof op->op);
    assay_cursor_expect(&c, ",\"instance\":\"");
    assay_cursor_string(&c, op->instance, sizeof op->instance);
    assay_cursor_expect(&c, ",\"phase\":\"");
    phase(&c, &op->phase);
    assay_cursor_expect(&c, ",\"step\":");
    op->step = assay_cursor_integer(&c);
    assay_cursor_expect(&c, ",\"microbatch\":");
    op->microbatch = assay_cursor_integer(&c);
    assay_cursor_expect(&c, ",\"variant\":");
    const int64_t variant = assay_cursor_integer(&c);
    op->variant = (int)variant;
    if (!c.good || op->sequence < 0 || op->op[0] == '\0' || op->step < 0 || op->microbatch < -1 ||
        variant < 0 || variant > INT32_MAX)
        return false;
    *part = c.at;
    const char *tail = c.end - (sizeof inputs - 1); /* the last one: a part may have the word inside */
    while (tail > c.at && memcmp(tail, inputs, sizeof inputs - 1) != 0)
        tail--;
    if (tail <= c.at)
        return false;
    *part_bytes = (size_t)(tail - c.at);
    c.at = tail + sizeof inputs - 1;
    op_slots(&c, op->inputs, &op->n_inputs);
    assay_cursor_expect(&c, ",\"outputs\":");
    op_slots(&c, op->outputs, &op->n_outputs);
    assay_cursor_expect(&c, "}");
    return c.good && c.at == c.end;
}

/* Takes from `from` what the part of a line says. */
static bool take_part(const assay_trace_op *from, assay_trace_op *op)
{
    memcpy(op->variant_name, from->variant_name, sizeof op->variant_name);
    op->arith = from->arith;
    op->recompute = from->recompute;
    memcpy(op->fused, from->fused, sizeof op->fused);
    op->fused_part = from->fused_part;
    if (from->n_group_ranks > 0) {
        const size_t bytes = (size_t)from->n_group_ranks * sizeof *from->group_ranks;
        int *ranks = malloc(bytes);
        if (!ranks)
            return false;
        memcpy(ranks, from->group_ranks, bytes);
        op->group_ranks = ranks;
        op->n_group_ranks = from->n_group_ranks;
        memcpy(op->group, from->group, sizeof op->group);
    }
    op->attrs = json_incref(from->attrs);
    return true;
}

bool assay_trace_op_from_text(const assay_trace_parts *p, const char *text, size_t bytes, int rank,
                              assay_trace_op *op)
{
    const char *part = NULL;
    size_t part_bytes = 0;
    *op = (assay_trace_op){.sequence = -1, .rank = rank};
    if (!op_line(text, bytes, op, &part, &part_bytes))
        return false;
    const struct known *k = find_part(p, part, part_bytes);
    if (!k)
        return false;
    op->arith = k->op.arith;
    if (assay_trace_check_declaration(op) != ASSAY_OK) {
        assay_error_clear(); /* the JSON reader words it */
        return false;
    }
    return take_part(&k->op, op);
}

static void place(int32_t *slots, int64_t capacity, uint64_t hash, int64_t number)
{
    const uint64_t room = capacity > 0 ? 2 * (uint64_t)capacity : 1;
    uint64_t at = hash % room;
    while (slots[at] != 0)
        at = (at + 1) % room;
    slots[at] = (int32_t)number;
}

static bool grow(assay_trace_parts *p)
{
    const int64_t capacity = p->capacity ? 2 * p->capacity : 64;
    struct known *known = realloc(p->known, (size_t)capacity * sizeof *known);
    if (known)
        p->known = known;
    int32_t *slots = calloc((size_t)capacity * 2, sizeof *slots);
    if (!known || !slots) {
        free(slots);
        return false;
    }
    free(p->slots);
    p->slots = slots;
    p->capacity = capacity;
    for (int64_t i = 0; i < p->n; i++)
        place(slots, capacity, p->known[i].hash, i + 1);
    return true;
}

void assay_trace_parts_add(assay_trace_parts *p, const char *text, size_t bytes, const assay_trace_op *op)
{
    assay_trace_op again;
    const char *part = NULL;
    size_t part_bytes = 0;
    bool by_slots = op->n_internal > 0; /* what depends on the names of the slots is read each time */
    for (int i = 0; i < op->n_outputs; i++)
        by_slots = by_slots || op->substituted[i];
    if (by_slots || p->n == MOST_PARTS || !op_line(text, bytes, &again, &part, &part_bytes) ||
        find_part(p, part, part_bytes) || (p->n == p->capacity && !grow(p)) || p->capacity == 0)
        return;
    struct known k = {.hash = hash_of(part, part_bytes), .bytes = part_bytes, .text = malloc(part_bytes + 1)};
    if (!k.text || !take_part(op, &k.op)) {
        free(k.text);
        return;
    }
    memcpy(k.text, part, part_bytes);
    p->known[p->n++] = k;
    place(p->slots, p->capacity, k.hash, p->n);
}

assay_trace_parts *assay_trace_parts_create(void)
{
    return calloc(1, sizeof(assay_trace_parts));
}

void assay_trace_parts_destroy(assay_trace_parts *p)
{
    for (int64_t i = 0; p && i < p->n; i++) {
        free(p->known[i].text);
        free((int *)(uintptr_t)p->known[i].op.group_ranks);
        json_decref(p->known[i].op.attrs);
    }
    if (p) {
        free(p->known);
        free(p->slots);
    }
    free(p);
}
