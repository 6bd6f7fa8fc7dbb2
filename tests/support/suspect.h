/* One record of an operation, made by the reference with one thing changed; what was changed is not recorded. */
#ifndef TESTS_SUPPORT_SUSPECT_H
#define TESTS_SUPPORT_SUSPECT_H

#include "parity/judge/suspect.h"
#include "tests/support/parity.h"

typedef struct call {
    ref_value in[ASSAY_MAX_SLOTS];
    int n_in;
    ref_replay_result out;
} call;

typedef struct planted {
    const char *op, *attrs;
    /* "slot:kind:shape ...": a activation in (-1, 1), w positive, c s tables of rope, pM (3 i) mod M, nM one more, dM i / M */
    const char *slots;
    assay_dtype act;
    const char *actual;     /* attributes that really ran, over those that are recorded */
    void (*plant)(call *c); /* changes what the operation reads */
    void (*after)(call *c); /* changes what it made */
    unsigned rounding;      /* results as far off as this alone allows */
    bool narrow;            /* all results are stored in act */
    const char *expected;   /* NULL: nothing may be named */
} planted;

static inline ref_value *slot_of(call *c, const char *slot)
{
    for (int i = 0; i < c->n_in; i++)
        if (strcmp(c->in[i].slot, slot) == 0)
            return &c->in[i];
    for (int i = 0; i < c->out.n_outputs; i++)
        if (strcmp(c->out.outputs[i].slot, slot) == 0)
            return &c->out.outputs[i];
    cr_assert_fail("no slot %s", slot);
    return NULL;
}

static inline double noise_at(int64_t i)
{
    uint64_t z = (uint64_t)(i + 1) * 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return (double)((z ^ z >> 31) >> 11) * 0x1p-53;
}

static inline void fill(ref_value *v, const char *kind, assay_dtype act, int64_t seed)
{
    const bool integer = strchr("pnd", *kind) != NULL;
    const int64_t m = integer ? atoll(kind + 1) : 1;
    v->dtype = integer ? ASSAY_I64 : *kind == 'a' || *kind == 'w' ? act : ASSAY_F32;
    v->value = integer ? NULL : malloc((size_t)v->count * sizeof *v->value);
    v->ivalue = integer ? malloc((size_t)v->count * sizeof *v->ivalue) : NULL;
    const int64_t columns = v->shape[v->ndim - 1];
    for (int64_t i = 0; i < v->count; i++) {
        const double angle = (double)(i / columns) * pow(50.0, -(double)(i % columns) / (double)columns);
        const double u = noise_at(1000 * seed + i);
        if (integer)
            v->ivalue[i] = *kind == 'd' ? i / m : 3 * i % m + (*kind == 'n');
        else
            v->value[i] = ref_round(*kind == 'c'   ? cos(angle)
                                    : *kind == 's' ? sin(angle)
                                    : *kind == 'w' ? 0.5 + u
                                                   : 2.0 * u - 1.0,
                                    v->dtype);
    }
}

static inline void read_slots(call *c, const planted *p)
{
    char text[512], *rest = NULL;
    snprintf(text, sizeof text, "%s", p->slots);
    for (char *word = strtok_r(text, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest)) {
        ref_value *v = &c->in[c->n_in++];
        char *part = NULL, *slot = strtok_r(word, ":", &part), *kind = strtok_r(NULL, ":", &part);
        snprintf(v->slot, sizeof v->slot, "%s", slot);
        v->count = 1;
        for (char *n = strtok_r(part, ",", &part); n != NULL; n = strtok_r(NULL, ",", &part)) {
            v->shape[v->ndim++] = atoll(n);
            v->count *= atoll(n);
        }
        fill(v, kind, p->act, c->n_in);
    }
}

/* The weight of another layer, which the trace holds, too. */
static inline void fill_other_weight(ref_value *v)
{
    for (int64_t i = 0; i < v->count; i++)
        v->value[i] = ref_round(noise_at(777 + i) - 0.5, v->dtype);
}

static inline void free_call(call *c)
{
    for (int i = 0; i < c->n_in; i++) {
        free(c->in[i].value);
        free(c->in[i].ivalue);
    }
    ref_replay_free(&c->out);
}

/* The number next to y that the wide bound admits and the narrow one does not; y itself where there is none. */
static inline double as_far_off(double y, double narrow, double wide, assay_dtype stored)
{
    double ratio;
    for (int k = 1; k <= 16; k++) {
        const double x = ref_round(y + wide * k / 8.0, stored);
        if (!ref_admissible(x, y, narrow, stored, &ratio) && ref_admissible(x, y, wide, stored, &ratio))
            return x;
    }
    return ref_round(y, stored);
}

/* Results as far from the truth as the rounding of intermediate ones allows, and nothing else does. */
static inline void run_rounded(const planted *p, const json_t *attrs, call *c,
                               const assay_declaration *declared)
{
    assay_declaration loose = *declared;
    ref_replay_result narrow, wide;
    loose.all.rounding |= p->rounding;
    for (int k = 0; k < c->out.n_outputs; k++)
        c->out.outputs[k].dtype = p->narrow ? p->act : c->out.outputs[k].dtype;
    must(ref_replay(p->op, attrs, declared, c->in, c->n_in, c->out.outputs, c->out.n_outputs, &narrow));
    must(ref_replay(p->op, attrs, &loose, c->in, c->n_in, c->out.outputs, c->out.n_outputs, &wide));
    for (int k = 0; k < wide.n_outputs; k++) {
        ref_value *v = &c->out.outputs[k];
        for (int64_t i = 0; wide.outputs[k].bound != NULL && i < v->count; i++)
            v->value[i] =
                as_far_off(v->value[i], narrow.outputs[k].bound[i], wide.outputs[k].bound[i], v->dtype);
    }
    ref_replay_free(&wide);
    ref_replay_free(&narrow);
}

static inline void run_call(const planted *p, call *c, const assay_declaration *declared)
{
    json_t *attrs = json_loads(p->attrs, 0, NULL),
           *actual = json_loads(p->actual ? p->actual : "{}", 0, NULL);
    cr_assert(attrs != NULL && actual != NULL, "%s: %s", p->op, p->actual);
    json_object_update(attrs, actual);
    must(ref_replay(p->op, attrs, declared, c->in, c->n_in, NULL, 0, &c->out));
    if (p->rounding != 0 || p->narrow)
        run_rounded(p, attrs, c, declared);
    json_decref(actual);
    json_decref(attrs);
}

static inline int64_t put_value(assay_trace_writer *w, const char *name, const ref_value *v)
{
    const int64_t flat[1] = {v->count};
    assay_trace_tensor t = tensor_of(name, ASSAY_PHASE_FORWARD, v->dtype, v->ndim > 0 ? v->ndim : 1,
                                     v->ndim > 0 ? v->shape : flat);
    void *data = malloc((size_t)v->count * 8 + 8);
    for (int64_t i = 0; i < v->count; i++) {
        if (v->dtype == ASSAY_I64)
            ((int64_t *)data)[i] = v->ivalue[i];
        else if (v->dtype == ASSAY_F32)
            ((float *)data)[i] = (float)v->value[i];
        else {
            const float x = (float)ref_round(v->value[i], ASSAY_BF16);
            memcpy((uint16_t *)data + i, (const char *)&x + 2, 2);
        }
    }
    must(assay_trace_write_tensor(w, &t, data));
    free(data);
    return t.id;
}

/* honest: the record as it would be without the change, first of the same name. */
static inline void record(const char *dir, const planted *p, bool honest)
{
    json_t *header = json_pack("{s:s}", "engine", "torch");
    assay_trace_writer *w;
    must(assay_trace_writer_open(&w, dir, 0, 1, header, false));
    json_decref(header);
    if (strstr(p->slots, "weight:") != NULL) {
        call other = {.n_in = 0};
        read_slots(&other, p);
        fill_other_weight(slot_of(&other, "weight"));
        put_value(w, "other.weight", slot_of(&other, "weight"));
        free_call(&other);
    }
    for (int k = honest ? 0 : 1; k < 2; k++) {
        const planted plain = {
            .op = p->op, .attrs = p->attrs, .slots = p->slots, .act = p->act, .narrow = p->narrow};
        assay_trace_op o = op_of(p->op, "layer", ASSAY_PHASE_FORWARD);
        call seen = {.n_in = 0}, ran = {.n_in = 0};
        char name[64];
        read_slots(&seen, p);
        read_slots(&ran, p);
        o.arith.all.order = ASSAY_ORDER_SEQUENTIAL;
        o.attrs = json_loads(p->attrs, 0, NULL);
        if (k == 1 && p->plant)
            p->plant(&ran);
        run_call(k == 1 ? p : &plain, &ran, &o.arith);
        if (k == 1 && p->after)
            p->after(&ran);
        for (int i = 0; i < seen.n_in; i++) {
            snprintf(name, sizeof name, "in.%s%d", seen.in[i].slot, k);
            op_in(&o, seen.in[i].slot, put_value(w, name, &seen.in[i]));
        }
        for (int i = 0; i < ran.out.n_outputs; i++) {
            ref_value *y = &ran.out.outputs[i];
            if (strcmp(y->slot, "lse") == 0) { /* as of another framework */
                snprintf(o.internal[o.n_internal++], ASSAY_SLOT_NAME, "lse");
                continue;
            }
            for (int d = 0; y->ndim == 0 && d < ran.n_in;
                 d++) /* of the shape of an input with as many elements */
                if (ran.in[d].count == y->count && ran.in[d].value != NULL) {
                    y->ndim = ran.in[d].ndim;
                    memcpy(y->shape, ran.in[d].shape, sizeof y->shape);
                }
            snprintf(name, sizeof name, "out.%s%d", y->slot, k);
            op_out(&o, y->slot, put_value(w, name, y));
        }
        must(assay_trace_write_op(w, &o));
        json_decref(o.attrs);
        free_call(&ran);
        free_call(&seen);
    }
    close_writer(w);
}

/* The record fails, and its cause is the expected sentence. */
static inline void expect_cause(const planted *p, int row)
{
    char dir[256], why[PARITY_TEXT] = "";
    record(fresh_path(dir, "t"), p, row % 2 == 1);
    assay_trace *t = open_trace(dir);
    parity_report *r = new_report();
    must(parity_check_local(t, r));
    const parity_claim *f = first_failure(r);
    cr_expect_not_null(f, "row %d: %s %s: passes", row, p->op, p->expected);
    if (f != NULL)
        must(parity_suspect(t, parity_claim_op(t, f), why));
    cr_expect(strcmp(why, p->expected ? p->expected : "") == 0, "row %d: %s: found \"%s\", expected \"%s\"",
              row, p->op, why, p->expected ? p->expected : "");
    parity_report_destroy(r);
    assay_trace_close(t);
    remove_path(dir);
}

#endif
