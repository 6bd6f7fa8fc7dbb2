/* Two traces, tensor by tensor in the order in which the run made them: what differs in value first, what only one of them
 * holds last.
 *
 * Two runs of one engine, layout and precision must hold the same tensors of the same dtypes.  Others are compared in what
 * both hold: collectives, and the dtype in which an engine keeps a tensor, belong to the engine and the layout.  Where one trace
 * has Hugging Face's names and the other ours, the tensors of the former are walked and each is laid beside the piece of ours that
 * it is. */
#include "parity/run/diff.h"
#include "core/base/text.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SHOWN = 12 };

typedef struct diff {
    const parity_index *a, *b;
    const parity_diff_options *o;
    const parity_aligner *names; /* NULL: one vocabulary */
    diff_compare compare;
    FILE *out;
    json_t *rows, *first_of_rank, *missing[2]; /* rows NULL: no JSON */
    int64_t passed, failed, skipped;
    bool text;
    int64_t only_one[2]; /* tensors of the first, the second trace alone */
    int64_t local;       /* in both, of one rank each, and not compared */
    int64_t unmapped;    /* of a foreign trace: no row names them */
    bool has_first;      /* the first difference: */
    diff_pair first_pair;
    parity_result first_result;
    diff_attributes attributes;
} diff;

/* Order of execution: step by step, forward before backward; inside a phase by microbatch, then by rank and
 * record (later pipeline stages hold higher ranks; backward runs them in reverse). */
typedef struct item {
    const parity_entry *e;
    int rank;
    int64_t order;
    bool single; /* one rank: its records are in order already */
} item;

static int by_number(int64_t x, int64_t y)
{
    return (x > y) - (x < y);
}

static int compare_items(const void *p, const void *q)
{
    const item *x = p, *y = q;
    int c = by_number(x->e->step, y->e->step);
    if (x->single)
        return c ? c : by_number(x->order, y->order);
    c = c ? c : by_number((int64_t)x->e->phase, (int64_t)y->e->phase);
    c = c ? c : by_number(x->e->microbatch, y->e->microbatch);
    if (c == 0 && x->rank != y->rank)
        c = x->e->phase == ASSAY_PHASE_BACKWARD ? by_number(y->rank, x->rank) : by_number(x->rank, y->rank);
    return c ? c : by_number(x->order, y->order);
}

static assay_status sort_entries(const parity_index *x, item **out)
{
    item *items = malloc(((size_t)x->n + 1) * sizeof *items);
    ASSAY_CHECK(items, ASSAY_OUT_OF_MEMORY, "order of %lld tensors", (long long)x->n);
    for (int64_t i = 0; i < x->n; i++) {
        const parity_piece *first = &x->entries[i].pieces[0];
        items[i] =
            (item){&x->entries[i], first->record->rank, first->order, assay_trace_world(x->trace) == 1};
    }
    qsort(items, (size_t)x->n, sizeof *items, compare_items);
    *out = items;
    return ASSAY_OK;
}

/* --- what is said ------------------------------------------------------------------------------------------- */

/* Names and words of a trace are anybody's. */
static void print_text(FILE *out, const char *text)
{
    char line[PARITY_TEXT];
    snprintf(line, sizeof line, "%s", text);
    assay_clean_text(line);
    fputs(line, out);
}

static void print_line(FILE *out, const char *before, const char *text)
{
    fputs(before, out);
    print_text(out, text);
    fputc('\n', out);
}

static void print_place(const diff *d, const parity_entry *e, const parity_entry *other)
{
    print_text(d->out, e->name);
    if (other != NULL && strcmp(other->name, e->name) != 0) {
        fputs(" = ", d->out);
        print_text(d->out, other->name);
    }
    fprintf(d->out, "  (phase %s, step %lld", assay_phase_name(e->phase), (long long)e->step);
    if (e->microbatch >= 0)
        fprintf(d->out, ", microbatch %lld", (long long)e->microbatch);
    fprintf(d->out, ")\n");
}

static void print_statistics(const diff *d, const diff_statistics *s)
{
    if (s->max > 0.0)
        fprintf(d->out, "    max %.3g, mean %.3g, relative %.3g, cosine %.9g\n", s->max, s->mean, s->relative,
                s->cosine);
}

static void print_failure(const diff *d, const diff_pair *p, const parity_result *r, const diff_statistics *s)
{
    if (!d->text)
        return;
    if (d->failed == 1)
        fprintf(d->out, "first difference: ");
    else if (d->failed <= SHOWN)
        fprintf(d->out, "  then: ");
    else
        return;
    print_place(d, p->e, p->o);
    print_line(d->out, "    ", r->message);
    print_statistics(d, s);
    if (r->diagnosis[0])
        print_line(d->out, "    looks like: ", r->diagnosis);
}

static void note_first(diff *d, const diff_pair *p, const parity_result *r)
{
    if (d->has_first)
        return;
    d->has_first = true;
    d->first_pair = *p;
    d->first_result = *r;
}

/* The first attribute that differs, unless a tensor differs before what its operation makes. */
static const diff_attribute *attribute_before(const diff *d)
{
    const diff_attribute *a = d->attributes.n > 0 ? &d->attributes.row[0] : NULL;
    const bool later =
        a != NULL && d->has_first && d->first_pair.o != NULL && a->position > d->first_pair.position;
    return later ? NULL : a;
}

/* The last line. */
/* The first rank that ended early, and why; NULL: none did. */
static const char *aborted_rank(const diff *d, int *rank, const char **of)
{
    for (int k = 0; k < 2; k++) {
        const assay_trace *t = k == 0 ? d->a->trace : d->b->trace;
        *of = k == 0 ? "first" : "second";
        for (*rank = 0; *rank < assay_trace_world(t); ++*rank)
            if (assay_trace_aborted(t, *rank) != NULL)
                return assay_trace_aborted(t, *rank);
    }
    return NULL;
}

static void sentence_of(const diff *d, char *out, size_t capacity)
{
    int rank;
    const char *of, *aborted = aborted_rank(d, &rank, &of);
    if (!d->has_first && d->skipped > 0 && d->attributes.n == 0)
        snprintf(out, capacity,
                 "NOT CHECKED: %lld tensors agree, %lld could not be compared, the first of which is named "
                 "above.",
                 (long long)d->passed, (long long)d->skipped);
    else if (!d->has_first && d->attributes.n == 0 && d->passed > 0 && aborted != NULL)
        snprintf(out, capacity,
                 "NOT CHECKED: %lld tensors agree, but rank %d of the %s run ended early: %.300s",
                 (long long)d->passed, rank, of, aborted);
    else
        diff_sentence(d->has_first ? &d->first_pair : NULL, &d->first_result, attribute_before(d),
                      d->failed + d->attributes.n, d->passed, out, capacity);
}

static json_t *number(double x)
{
    return isfinite(x) ? json_real(x) : json_null();
}

static void add_row(const diff *d, const diff_pair *p, const parity_result *r, const diff_statistics *s)
{
    char name[PARITY_TEXT];
    if (d->rows == NULL)
        return;
    snprintf(name, sizeof name, "%s", p->e->name);
    assay_clean_text(name);
    json_t *row = json_pack("{s:s,s:s,s:I,s:I,s:s}", "name", name, "phase", assay_phase_name(p->e->phase),
                            "step", (json_int_t)p->e->step, "microbatch", (json_int_t)p->e->microbatch,
                            "verdict", parity_verdict_name(r->verdict));
    if (p->o != NULL && p->row != NULL)
        json_object_set_new(row, "other_name", json_string(p->o->name));
    json_object_set_new(row, "max", number(s->max));
    json_object_set_new(row, "mean", number(s->mean));
    json_object_set_new(row, "relative", number(s->relative));
    json_object_set_new(row, "cosine", number(s->cosine));
    json_object_set_new(row, "error_over_allowed", number(r->ratio));
    if (r->message[0] != '\0')
        json_object_set_new(row, "message", json_string(r->message));
    if (r->diagnosis[0] != '\0')
        json_object_set_new(row, "diagnosis", json_string(r->diagnosis));
    json_array_append_new(d->rows, row);
}

/* --- first difference of every rank ------------------------------------------------------------------------- */

/* Whether the piece holds a bad element; unknown ones (another order of axes) do. */
static bool piece_is_bad(const assay_shard *s, const unsigned char *bad)
{
    for (int64_t i = 0; bad != NULL && i < assay_shard_count(s); i++) {
        int64_t local[ASSAY_MAX_DIMS], global = 0;
        parity_unflatten(i, s->local_shape, s->ndim, local);
        for (int d = 0; d < s->ndim; d++)
            global = global * s->global_shape[d] + assay_shard_global_index(s, d, local[d]);
        if (bad[global])
            return true;
    }
    return bad == NULL;
}

static void note_ranks(diff *d, const diff_pair *p, const unsigned char *bad)
{
    const parity_entry *of[2] = {p->e, p->o};
    const bool local = p->o != NULL && !(parity_entry_assembles(p->e) && parity_entry_assembles(p->o));
    for (int k = 0; k < 2; k++)
        for (int64_t i = 0; of[k] != NULL && i < of[k]->n; i++) {
            const assay_trace_tensor *t = of[k]->pieces[i].record;
            char key[16];
            snprintf(key, sizeof key, "%d", t->rank);
            if (t->rank < 0 || t->rank >= ASSAY_MAX_WORLD || json_object_get(d->first_of_rank, key) != NULL ||
                !(local && bad != NULL ? bad[i] != 0
                                       : piece_is_bad(&t->shard, t->kind == ASSAY_PIECE_SHARD ? bad : NULL)))
                continue;
            json_object_set_new(d->first_of_rank, key, json_string(p->e->name));
        }
}

static void print_ranks(const diff *d)
{
    const char *key;
    json_t *name;
    int shown = 0;
    if (!d->text || json_object_size(d->first_of_rank) < 2)
        return;
    json_object_foreach(d->first_of_rank, key, name)
    {
        if (shown++ == SHOWN)
            break;
        fprintf(d->out, "  rank %s: first difference in ", key);
        print_line(d->out, "", json_string_value(name));
    }
    if (json_object_size(d->first_of_rank) > SHOWN)
        fprintf(d->out, "  and %zu more ranks\n", json_object_size(d->first_of_rank) - SHOWN);
}

/* --- comparing ---------------------------------------------------------------------------------------------- */

static const parity_entry *in_other(const diff *d, const parity_index *other, const parity_entry *e,
                                    const assay_name_row **row)
{
    *row = NULL;
    return d->names != NULL ? parity_aligner_find(d->names, other, e, row)
                            : parity_index_find(other, e->name, e->phase, e->step, e->microbatch);
}

/* Behind outputs that agree, under their name: what their readers were given. */
static assay_status compare_later(diff *d, diff_pair *p, parity_result *r, diff_statistics *s,
                                  unsigned char **bad)
{
    if (r->verdict != PARITY_PASS || (p->e->later == NULL && p->o->later == NULL))
        return ASSAY_OK;
    p->e = p->e->later != NULL ? p->e->later : p->e;
    p->o = p->o->later != NULL ? p->o->later : p->o;
    free(*bad);
    *bad = NULL;
    ASSAY_TRY(diff_compare_pair(&d->compare, p, r, s, bad));
    diff_say_later(r);
    return ASSAY_OK;
}

static assay_status compare_one(diff *d, const diff_pair *pair)
{
    diff_pair copy = *pair, *p = &copy;
    parity_result r;
    diff_statistics s;
    unsigned char *bad = NULL;
    assay_status st = diff_compare_pair(&d->compare, p, &r, &s, &bad);
    if (st == ASSAY_OK)
        st = compare_later(d, p, &r, &s, &bad);
    if (st != ASSAY_OK) {
        free(bad);
        return st;
    }
    d->passed += r.verdict == PARITY_PASS;
    d->failed += r.verdict == PARITY_FAIL;
    d->skipped += r.verdict == PARITY_SKIP;
    if (r.verdict == PARITY_FAIL) {
        note_first(d, p, &r);
        print_failure(d, p, &r, &s);
        note_ranks(d, p, bad);
    } else if (r.verdict == PARITY_SKIP && d->skipped == 1 && d->text) {
        fprintf(d->out, "not compared: ");
        print_place(d, p->e, p->o);
        print_line(d->out, "    ", r.message);
    }
    add_row(d, p, &r, &s);
    free(bad);
    return ASSAY_OK;
}

/* What a rank has for itself is compared where the other run has the same ranks. */
static bool is_compared(const diff *d, const parity_entry *e)
{
    return parity_entry_assembles(e) || (d->compare.alike && d->names == NULL);
}

static assay_status compare_common(diff *d, const item *items)
{
    for (int64_t i = 0; i < d->compare.walked->n; i++) {
        diff_pair p = {
            .e = items[i].e, .position = i, .walked_is_second = d->compare.walked == d->b && d->a != d->b};
        p.o = in_other(d, d->compare.other, p.e, &p.row);
        if (p.o == NULL)
            continue;
        if (is_compared(d, p.e) && is_compared(d, p.o))
            ASSAY_TRY(compare_one(d, &p));
        else
            d->local++;
    }
    return ASSAY_OK;
}

/* What one trace holds alone: a difference between runs that are alike. */
static void add_missing(diff *d, const parity_entry *e, int which)
{
    static const char *const of[] = {"second", "first"};
    const diff_pair p = {.e = e};
    const diff_statistics none = {0};
    parity_result r;
    d->only_one[which]++;
    if (d->rows != NULL)
        json_array_append_new(d->missing[which], json_pack("[s,s,I,I]", e->name, assay_phase_name(e->phase),
                                                           (json_int_t)e->step, (json_int_t)e->microbatch));
    if (!d->compare.alike || d->compare.noise != NULL)
        return;
    parity_result_init(&r);
    parity_result_fail(&r, "missing from the %s trace", of[which]);
    d->failed++;
    note_first(d, &p, &r);
    print_failure(d, &p, &r, &none);
    add_row(d, &p, &r, &none);
}

/* Entries of `other` that a walked one was laid beside. */
static assay_status count_missing(diff *d, const item *items)
{
    const parity_index *walked = d->compare.walked, *other = d->compare.other;
    const int first = walked == d->a ? 0 : 1;
    unsigned char *used = calloc((size_t)other->n + 1, 1);
    ASSAY_CHECK(used != NULL, ASSAY_OUT_OF_MEMORY, "%lld tensors", (long long)other->n);
    for (int64_t i = 0; i < walked->n; i++) {
        const assay_name_row *row;
        const parity_entry *e = items[i].e, *o = in_other(d, other, e, &row);
        if (o != NULL)
            used[o - other->entries] = 1;
        if (o != NULL || !is_compared(d, e))
            continue;
        add_missing(d, e, first);
        d->unmapped += d->names != NULL && row == NULL;
    }
    for (int64_t i = 0; i < other->n; i++)
        if (!used[i] && is_compared(d, &other->entries[i]))
            add_missing(d, &other->entries[i], 1 - first);
    free(used);
    return ASSAY_OK;
}

/* Attributes are words of one vocabulary: beside ours assay check judges those of another framework. */
static assay_status compare_attributes(diff *d, const item *items)
{
    const parity_index *x = d->compare.walked;
    if (d->names != NULL)
        return ASSAY_OK;
    int64_t *positions = malloc(((size_t)x->n + 1) * sizeof *positions);
    ASSAY_CHECK(positions != NULL, ASSAY_OUT_OF_MEMORY, "%lld positions", (long long)x->n);
    for (int64_t i = 0; i < x->n; i++)
        positions[items[i].e - x->entries] = i;
    const assay_status st = diff_compare_attributes(&d->compare, positions, &d->attributes);
    free(positions);
    return st;
}

/* Says how the runs differ when they do. */
static bool are_alike(const assay_trace *s, const assay_trace *t, FILE *out)
{
    static const char *const keys[] = {"engine", "layout", "precision"};
    bool alike = assay_trace_world(s) == assay_trace_world(t);
    for (int k = 0; k < 3; k++)
        alike =
            alike && strcmp(assay_trace_header_text(s, keys[k]), assay_trace_header_text(t, keys[k])) == 0;
    for (int k = 0; !alike && out != NULL && k < 6; k++) {
        fputs(k == 0 ? "" : k == 3 ? " against " : " ", out);
        print_text(out, assay_trace_header_text(k < 3 ? s : t, keys[k % 3]));
    }
    if (out != NULL)
        fputs(alike ? "" : ": what both hold\n", out);
    return alike;
}

double diff_gradient_scale(const assay_trace *t)
{
    const json_t *scale = json_object_get(assay_trace_header(t), "gradient_scale");
    const double x = json_is_number(scale) ? json_number_value(scale) : 1.0;
    return isfinite(x) && x > 0.0 ? x : 1.0;
}

/* Between two layouts a factor is one of the axes that differ; between equal ones any. */
static void scales_of(const assay_trace *s, const assay_trace *t, parity_scales *out)
{
    parity_scales a;
    parity_scales_from_trace(s, &a);
    parity_scales_from_trace(t, out);
    const parity_scales b = *out;
    if (a.tp == b.tp && a.dp == b.dp && a.ep == b.ep && a.pp == b.pp && a.cp == b.cp)
        return;
    *out = (parity_scales){1, 1, 1, 1, 1, 1, 1, 1};
    out->tp = a.tp != b.tp ? b.tp : 1;
    out->dp = a.dp != b.dp ? b.dp : 1;
    out->ep = a.ep != b.ep ? b.ep : 1;
    out->pp = a.pp != b.pp ? b.pp : 1;
    out->cp = a.cp != b.cp ? b.cp : 1;
}

/* --- one diff ----------------------------------------------------------------------------------------------- */

static assay_dtype unit_of(const parity_diff_options *o, const assay_trace *s, const assay_trace *t)
{
    const bool bf16 = strcmp(assay_trace_header_text(s, "precision"), "bf16") == 0 ||
                      strcmp(assay_trace_header_text(t, "precision"), "bf16") == 0;
    return o->noise == PARITY_NOISE_BF16 || (o->noise == PARITY_NOISE_AUTO && bf16) ? ASSAY_BF16 : ASSAY_F32;
}

static double longest_extent(const parity_index *x)
{
    int64_t longest = 1;
    for (int64_t i = 0; i < x->n; i++) {
        const assay_shard *s = &x->entries[i].pieces[0].record->shard;
        for (int k = 0; k < s->ndim; k++)
            longest = s->global_shape[k] > longest ? s->global_shape[k] : longest;
    }
    return (double)longest;
}

/* Runs of the reference need names (its own are ours), a batch and weights. */
static assay_status make_noise(diff *d, const parity_aligner *names, parity_noise *n)
{
    const bool foreign_b = parity_names_are_foreign(d->b->trace);
    *n = (parity_noise){.unit = unit_of(d->o, d->a->trace, d->b->trace),
                        .longest = fmax(longest_extent(d->a), longest_extent(d->b)),
                        .foreign_roundings = names != NULL ? 3 : 1};
    d->compare.noise = n;
    if (d->o->model == NULL || d->o->model[0] == '\0')
        return ASSAY_OK;
    ASSAY_CHECK(names != NULL, ASSAY_UNSUPPORTED,
                "--noise with --model: expected a trace with Hugging Face's names, whose recorded batch the "
                "reference runs on");
    ASSAY_TRY(parity_reference_create(&n->runs, names, d->o->model, foreign_b ? d->b : d->a,
                                      n->unit == ASSAY_BF16 ? ASSAY_PRECISION_BF16 : ASSAY_PRECISION_FP32));
    d->compare.translate = d->names == NULL ? names : NULL;
    n->runs->perturb = sqrt((double)n->foreign_roundings);
    return parity_reference_run(n->runs, PARITY_REFERENCE_RUNS);
}

static assay_status make_names(diff *d, parity_aligner **names)
{
    const bool foreign[2] = {parity_names_are_foreign(d->a->trace), parity_names_are_foreign(d->b->trace)};
    const bool has_map = d->o->map != NULL && d->o->map[0] != '\0';
    const bool has_model = d->o->model != NULL && d->o->model[0] != '\0';
    d->compare.walked = d->a;
    d->compare.other = d->b;
    ASSAY_CHECK(!has_model || has_map || foreign[0] != foreign[1] || d->o->noise != PARITY_NOISE_NONE,
                ASSAY_INVALID_ARGUMENT,
                "--model %s: has no meaning for two traces with names of one kind, but with --noise or --map",
                d->o->model);
    if (foreign[0] == foreign[1] && !has_map) {
        return has_model && foreign[0] && d->o->noise != PARITY_NOISE_NONE
                   ? parity_aligner_create(names, d->o->model, NULL, NULL)
                   : ASSAY_OK;
    }
    const bool second = foreign[1] || (!foreign[0] && has_map && assay_trace_is_foreign(d->b->trace));
    d->compare.walked = second ? d->b : d->a;
    d->compare.other = second ? d->a : d->b;
    ASSAY_TRY(
        parity_aligner_create(names, d->o->model, assay_trace_header(d->compare.other->trace), d->o->map));
    d->names = *names;
    return ASSAY_OK;
}

static void print_summary(const diff *d)
{
    if (d->failed > SHOWN)
        fprintf(d->out, "  and %lld more\n", (long long)(d->failed - SHOWN));
    print_ranks(d);
    diff_print_attributes(&d->attributes, d->out);
    if ((!d->compare.alike || d->compare.noise != NULL) && d->only_one[0] + d->only_one[1] > 0)
        fprintf(d->out, "in one trace only, not compared: %lld in the first, %lld in the second\n",
                (long long)d->only_one[0], (long long)d->only_one[1]);
    if (d->local > 0)
        fprintf(
            d->out,
            "%lld tensors are those of one rank each (local): between runs that are not alike they are not "
            "compared\n",
            (long long)d->local);
    if (d->unmapped > 0)
        fprintf(d->out, "%lld of them have a name that no row of assay map knows (--map FILE adds rows)\n",
                (long long)d->unmapped);
    const bool bits = d->o->tolerance < 0.0 && d->compare.noise == NULL;
    if (!d->compare.alike && d->failed > 0 && bits)
        fputs(
            "compared bit for bit; --tolerance R accepts what rounding in another order makes, --noise auto "
            "what the precision explains\n",
            d->out);
    if (d->failed == 0)
        fprintf(d->out, "no difference in %lld tensors%s\n", (long long)d->passed,
                bits                       ? ", bit for bit"
                : d->compare.noise == NULL ? ""
                : d->compare.noise->runs   ? ", beyond what perturbed runs of the reference show"
                                           : ", beyond what rounding explains");
    fprintf(d->out, "%lld passed, %lld failed, %lld skipped\n", (long long)d->passed, (long long)d->failed,
            (long long)d->skipped);
    char sentence[2 * PARITY_TEXT];
    sentence_of(d, sentence, sizeof sentence);
    fprintf(d->out, "%s\n", sentence);
}

static assay_status print_json(const diff *d, int code)
{
    json_t *root = json_pack("{s:s,s:i,s:I,s:I,s:I,s:I,s:I,s:i}", "format", "assay-diff", "version", 1,
                             "passed", (json_int_t)d->passed, "failed", (json_int_t)d->failed, "skipped",
                             (json_int_t)d->skipped, "only_in_first", (json_int_t)d->only_one[0],
                             "only_in_second", (json_int_t)d->only_one[1], "exit_code", code);
    ASSAY_CHECK(root != NULL, ASSAY_OUT_OF_MEMORY, "JSON");
    char sentence[2 * PARITY_TEXT];
    sentence_of(d, sentence, sizeof sentence);
    json_object_set_new(root, "sentence", json_string(sentence));
    json_object_set_new(root, "local_not_compared", json_integer((json_int_t)d->local));
    int rank;
    const char *of, *aborted = aborted_rank(d, &rank, &of);
    if (aborted != NULL)
        json_object_set_new(root, "ended_early", json_pack("{s:s,s:i}", "run", of, "rank", rank));
    json_object_set_new(root, "attributes", diff_attributes_json(&d->attributes));
    json_object_set(root, "first_difference_of_rank", d->first_of_rank);
    json_object_set(root, "missing_from_second", d->missing[0]);
    json_object_set(root, "missing_from_first", d->missing[1]);
    json_object_set(root, "tensors", d->rows);
    json_dumpf(root, d->out, JSON_INDENT(1));
    fputc('\n', d->out);
    json_decref(root);
    return ASSAY_OK;
}

static assay_status diff_indexes(diff *d, int *exit_code)
{
    int rank;
    const char *of;
    parity_aligner *names = NULL;
    parity_noise noise = {0};
    item *items = NULL;
    assay_status st = ASSAY_OK;
    ASSAY_TRY_GOTO(make_names(d, &names), st, done);
    if (d->o->noise != PARITY_NOISE_NONE)
        ASSAY_TRY_GOTO(make_noise(d, names, &noise), st, done);
    ASSAY_TRY_GOTO(sort_entries(d->compare.walked, &items), st, done);
    ASSAY_TRY_GOTO(compare_common(d, items), st, done);
    ASSAY_TRY_GOTO(count_missing(d, items), st, done);
    ASSAY_TRY_GOTO(compare_attributes(d, items), st, done);
    /* Nothing compared is not a pass, nor is what one run did before it ended early. */
    *exit_code = d->failed + d->attributes.n > 0                                           ? 1
                 : d->passed == 0 || d->skipped > 0 || aborted_rank(d, &rank, &of) != NULL ? 2
                                                                                           : 0;
    if (d->text)
        print_summary(d);
    else
        st = print_json(d, *exit_code);
done:
    free(items);
    parity_reference_destroy(noise.runs);
    parity_aligner_destroy(names);
    return st;
}

assay_status parity_diff_traces(const char *dir_a, const char *dir_b, const parity_diff_options *o, FILE *out,
                                int *exit_code)
{
    assay_status st = ASSAY_OK;
    assay_trace *s = NULL, *t = NULL;
    parity_index *x = NULL, *y = NULL;
    diff d = {.o = o,
              .out = out,
              .text = !o->json,
              .first_of_rank = json_object(),
              .missing = {json_array(), json_array()}};
    *exit_code = 2;
    d.compare.tolerance = o->tolerance;
    ASSAY_TRY_GOTO(assay_trace_open(&s, dir_a, true), st, done);
    ASSAY_TRY_GOTO(assay_trace_open(&t, dir_b, true), st, done);
    ASSAY_TRY_GOTO(parity_index_create(&x, s), st, done);
    ASSAY_TRY_GOTO(parity_index_create(&y, t), st, done);
    d.a = x;
    d.b = y;
    d.rows = o->json ? json_array() : NULL;
    if (d.text) {
        parity_say_aborted(s, out);
        parity_say_aborted(t, out);
    }
    d.compare.scale[0] = diff_gradient_scale(s);
    d.compare.scale[1] = diff_gradient_scale(t);
    d.compare.alike = are_alike(s, t, d.text ? out : NULL);
    scales_of(s, t, &d.compare.scales);
    st = diff_indexes(&d, exit_code);
done:
    json_decref(d.rows);
    json_decref(d.first_of_rank);
    json_decref(d.missing[0]);
    json_decref(d.missing[1]);
    parity_index_destroy(y);
    parity_index_destroy(x);
    assay_trace_close(t);
    assay_trace_close(s);
    return st;
}
