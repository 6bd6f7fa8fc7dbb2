/* Declared arithmetic as JSON. */
#include "core/base/arith.h"
#include "core/base/json_text.h"

#include <string.h>

static const char *const order_names[] = {
    [ASSAY_ORDER_NONE] = "none",       [ASSAY_ORDER_SEQUENTIAL] = "sequential",
    [ASSAY_ORDER_TREE] = "tree",       [ASSAY_ORDER_TENSOR_CORE] = "tensor_core",
    [ASSAY_ORDER_UNKNOWN] = "unknown",
};
enum { ORDER_COUNT = sizeof order_names / sizeof order_names[0] };

static const struct {
    assay_rounding bit;
    const char *word;
} roundings[] = {
    {ASSAY_ROUND_BEFORE_GAMMA, "before_gamma"},
    {ASSAY_ROUND_BEFORE_UP, "before_up"},
    {ASSAY_ROUND_PRODUCTS, "products"},
    {ASSAY_ROUND_SCORES, "scores"},
    {ASSAY_ROUND_ANGLES, "angles"},
    {ASSAY_ROUND_HEADS, "heads"},
    {ASSAY_ROUND_PARTIAL_SUMS, "partial_sums"},
    {ASSAY_ROUND_TIES, "ties"},
    {ASSAY_ROUND_EVERY, "every"},
    {ASSAY_ROUND_STATISTICS, "statistics"},
    {ASSAY_ROUND_RESIDUAL, "residual"},
    {ASSAY_ROUND_NORM, "norm"},
    {ASSAY_ROUND_PROBS, "probs"},
};
enum { ROUNDING_COUNT = sizeof roundings / sizeof roundings[0] };

const char *assay_order_name(assay_order order)
{
    const int64_t index = (int64_t)order;
    return index >= 0 && index < ORDER_COUNT ? order_names[index] : "?";
}

assay_arith assay_arith_elementwise(void)
{
    const assay_arith a = {
        .accumulate = ASSAY_F32,
        .order = ASSAY_ORDER_NONE,
        .lanes = 1,
        .split = 1,
        .math_ulp = 2,
    };
    return a;
}

bool assay_arith_equal(const assay_arith *a, const assay_arith *b)
{
    return a->accumulate == b->accumulate && a->order == b->order && a->lanes == b->lanes &&
           a->split == b->split && a->k_step == b->k_step && a->guard_bits == b->guard_bits &&
           a->fma == b->fma && a->atomics == b->atomics && a->math_ulp == b->math_ulp && a->tile == b->tile &&
           a->rounding == b->rounding;
}

void assay_arith_describe(const assay_arith *a, char *out, size_t capacity)
{
    char order[64] = "", more[384] = ""; /* every word of rounding has room */
    if (a->order == ASSAY_ORDER_NONE)
        snprintf(order, sizeof order, "element-wise");
    else if (a->order == ASSAY_ORDER_TREE)
        snprintf(order, sizeof order, "tree of %d lanes", a->lanes);
    else if (a->order == ASSAY_ORDER_TENSOR_CORE)
        snprintf(order, sizeof order, "tensor core, k_step %d, guard bits %d", a->k_step, a->guard_bits);
    else if (a->order == ASSAY_ORDER_UNKNOWN)
        snprintf(order, sizeof order, "order unknown");
    else
        snprintf(order, sizeof order, "%s", assay_order_name(a->order));
    size_t n = 0;
    if (a->split > 1)
        n += (size_t)snprintf(more, sizeof more, ", split %d", a->split);
    if (a->tile > 0)
        n += (size_t)snprintf(more + n, sizeof more - n, ", tiles of %d", a->tile);
    if (a->math_ulp > 0)
        n += (size_t)snprintf(more + n, sizeof more - n, ", math %d ulp", a->math_ulp);
    for (int i = 0; i < ROUNDING_COUNT; i++)
        if (a->rounding & roundings[i].bit)
            n += (size_t)snprintf(more + n, sizeof more - n, ", rounds %s", roundings[i].word);
    snprintf(more + n, sizeof more - n, "%s", a->atomics ? ", atomics" : "");
    snprintf(out, capacity, "%s %s%s%s", assay_dtype_name(a->accumulate), order, a->fma ? ", fma" : "", more);
}

static void put_flag(assay_json_text *t, const char *key, bool flag)
{
    assay_json_text_key(t, key);
    assay_json_text_value(t, flag ? json_true() : json_false());
}

void assay_arith_put(assay_json_text *t, const assay_arith *a)
{
    assay_json_text_open(t, '{');
    assay_json_text_put_string(t, "accumulate", assay_dtype_name(a->accumulate));
    assay_json_text_put_string(t, "order", assay_order_name(a->order));
    assay_json_text_put_integer(t, "lanes", a->lanes);
    assay_json_text_put_integer(t, "split", a->split);
    assay_json_text_put_integer(t, "k_step", a->k_step);
    assay_json_text_put_integer(t, "guard_bits", a->guard_bits);
    put_flag(t, "fma", a->fma);
    put_flag(t, "atomics", a->atomics);
    assay_json_text_put_integer(t, "math_ulp", a->math_ulp);
    assay_json_text_put_integer(t, "tile", a->tile);
    if (a->rounding != 0) {
        assay_json_text_key(t, "rounding");
        assay_json_text_open(t, '[');
        for (int i = 0; i < ROUNDING_COUNT; i++)
            if (a->rounding & roundings[i].bit)
                assay_json_text_string(t, roundings[i].word);
        assay_json_text_close(t, ']');
    }
    assay_json_text_close(t, '}');
}

json_t *assay_arith_to_json(const assay_arith *a)
{
    assay_json_text t = {0};
    json_t *out = NULL;
    assay_arith_put(&t, a);
    if (assay_json_text_end(&t, "arith") == ASSAY_OK)
        out = json_loadb(t.text, t.n, 0, NULL);
    assay_json_text_free(&t);
    return out;
}

/* One more place; word: NULL where there was none. */
static assay_status add_rounding(const char *word, const char *what, unsigned *out)
{
    int i = 0;
    while (word != NULL && i < ROUNDING_COUNT && strcmp(roundings[i].word, word) != 0)
        i++;
    ASSAY_CHECK(
        word != NULL && i < ROUNDING_COUNT, ASSAY_UNSUPPORTED,
        "%s: rounding: expected before_gamma, before_up, products, scores, angles, heads, partial_sums, "
        "ties, every, statistics, residual, norm or probs, found '%.40s'",
        what, word != NULL ? word : "no word");
    ASSAY_CHECK(!(*out & roundings[i].bit), ASSAY_FORMAT, "%s: rounding: %s is there twice", what, word);
    *out |= roundings[i].bit;
    return ASSAY_OK;
}

assay_status assay_rounding_read(const char *words, const char *what, unsigned *out)
{
    char word[64];
    *out = 0;
    for (const char *p = words; *p != '\0';) {
        const size_t n = strcspn(p, ",");
        snprintf(word, sizeof word, "%.*s", (int)(n < sizeof word ? n : sizeof word - 1), p);
        ASSAY_TRY(add_rounding(word, what, out));
        p += n;
        p += *p == ',';
    }
    return ASSAY_OK;
}

/* ["before_gamma", ...], each once */
static assay_status read_rounding(const json_t *object, const char *what, unsigned *out)
{
    const json_t *list = json_object_get(object, "rounding");
    ASSAY_CHECK(list == NULL || json_is_null(list) || json_is_array(list), ASSAY_FORMAT,
                "%s: rounding: expected a list of words", what);
    for (size_t k = 0; k < json_array_size(list); k++)
        ASSAY_TRY(add_rounding(json_string_value(json_array_get(list, k)), what, out));
    return ASSAY_OK;
}

static assay_status read_count(const json_t *object, const char *key, int min, int max, const char *what,
                               int *out)
{
    int64_t value = *out;
    ASSAY_TRY(assay_json_get_i64(object, key, false, min, max, what, &value));
    *out = (int)value;
    return ASSAY_OK;
}

static assay_status read_words(const json_t *object, const char *what, assay_arith *a)
{
    char text[32];
    snprintf(text, sizeof text, "%s", assay_dtype_name(a->accumulate));
    ASSAY_TRY(assay_json_get_string(object, "accumulate", false, what, text, sizeof text));
    ASSAY_CHECK(strcmp(text, "F32") == 0 || strcmp(text, "F64") == 0, ASSAY_UNSUPPORTED,
                "%s: accumulate: expected F32 or F64, found '%s'", what, text);
    ASSAY_TRY(assay_dtype_from_name(text, &a->accumulate));
    snprintf(text, sizeof text, "%s", assay_order_name(a->order));
    ASSAY_TRY(assay_json_get_string(object, "order", false, what, text, sizeof text));
    for (int i = 0; i < ORDER_COUNT; i++) {
        if (strcmp(order_names[i], text) == 0) {
            a->order = (assay_order)i;
            return ASSAY_OK;
        }
    }
    ASSAY_FAIL(ASSAY_UNSUPPORTED,
               "%s: order: expected none, sequential, tree, tensor_core or unknown, found '%s'", what, text);
}

assay_status assay_arith_from_json(const json_t *object, const char *what, assay_arith *out)
{
    static const char *const allowed[] = {"accumulate", "order",      "lanes",    "split",
                                          "k_step",     "guard_bits", "fma",      "atomics",
                                          "math_ulp",   "tile",       "rounding", NULL};
    assay_arith a = assay_arith_elementwise();
    ASSAY_TRY(assay_json_only(object, allowed, what));
    ASSAY_TRY(read_words(object, what, &a));
    ASSAY_TRY(read_count(object, "lanes", 1, ASSAY_ARITH_MAX_LANES, what, &a.lanes));
    ASSAY_TRY(read_count(object, "split", 1, ASSAY_ARITH_MAX_SPLIT, what, &a.split));
    ASSAY_TRY(read_count(object, "k_step", 0, ASSAY_ARITH_MAX_K_STEP, what, &a.k_step));
    ASSAY_TRY(read_count(object, "guard_bits", 0, ASSAY_ARITH_MAX_GUARD_BITS, what, &a.guard_bits));
    ASSAY_TRY(assay_json_get_bool(object, "fma", false, what, &a.fma));
    ASSAY_TRY(assay_json_get_bool(object, "atomics", false, what, &a.atomics));
    ASSAY_TRY(read_count(object, "math_ulp", 0, ASSAY_ARITH_MAX_MATH_ULP, what, &a.math_ulp));
    ASSAY_TRY(read_count(object, "tile", 0, ASSAY_ARITH_MAX_TILE, what, &a.tile));
    ASSAY_TRY(read_rounding(object, what, &a.rounding));
    /* A tensor-core sum without its step length has no bound. */
    ASSAY_CHECK(a.order != ASSAY_ORDER_TENSOR_CORE || a.k_step >= 1, ASSAY_FORMAT,
                "%s: k_step: order tensor_core needs the terms per step, at least 1", what);
    *out = a;
    return ASSAY_OK;
}

/* --- one for each output ------------------------------------------------------------------------------------ */
assay_declaration assay_declaration_make(assay_arith all)
{
    return (assay_declaration){.all = all};
}

static int listed(const assay_declaration *d, const char *slot)
{
    int i = 0;
    while (i < d->n && strcmp(d->output[i].slot, slot) != 0)
        i++;
    return i;
}

static assay_status list(assay_declaration *d, const char *slot, assay_arith arith)
{
    const int i = listed(d, slot);
    ASSAY_CHECK(i < ASSAY_DECLARED_OUTPUTS && strlen(slot) < ASSAY_DECLARED_SLOT, ASSAY_LIMIT,
                "%.40s: more than %d outputs with an arithmetic of their own, or a name above %d bytes", slot,
                ASSAY_DECLARED_OUTPUTS, ASSAY_DECLARED_SLOT - 1);
    memcpy(d->output[i].slot, slot, strlen(slot) + 1);
    d->output[i].arith = arith;
    d->n += i == d->n;
    return ASSAY_OK;
}

assay_status assay_declaration_set(assay_declaration *d, const char *slot, assay_arith arith)
{
    if (listed(d, slot) == d->n && assay_arith_equal(&arith, &d->all))
        return ASSAY_OK;
    return list(d, slot, arith);
}

bool assay_declaration_rounds_beside(const assay_declaration *d, unsigned places)
{
    bool any = (d->all.rounding & ~places) != 0;
    for (int i = 0; i < d->n; i++)
        any = any || (d->output[i].arith.rounding & ~places) != 0;
    return any;
}

const assay_arith *assay_declaration_of(const assay_declaration *d, const char *slot)
{
    const int i = listed(d, slot);
    return i < d->n ? &d->output[i].arith : &d->all;
}

void assay_declaration_put_outputs(assay_json_text *t, const assay_declaration *d)
{
    assay_json_text_open(t, '{');
    for (int i = 0; i < d->n; i++) {
        assay_json_text_key(t, d->output[i].slot);
        assay_arith_put(t, &d->output[i].arith);
    }
    assay_json_text_close(t, '}');
}

assay_status assay_declaration_from_json(const json_t *all, json_t *outputs, assay_declaration *out)
{
    assay_declaration d = assay_declaration_make(assay_arith_elementwise());
    if (all)
        ASSAY_TRY(assay_arith_from_json(all, "arith", &d.all));
    ASSAY_CHECK(!outputs || json_is_object(outputs), ASSAY_FORMAT, "output_arith: expected an object");
    for (void *it = json_object_iter(outputs); it; it = json_object_iter_next(outputs, it)) {
        assay_arith a;
        char what[64];
        snprintf(what, sizeof what, "output_arith.%.40s", json_object_iter_key(it));
        ASSAY_TRY(assay_arith_from_json(json_object_iter_value(it), what, &a));
        ASSAY_TRY(list(&d, json_object_iter_key(it), a));
    }
    *out = d;
    return ASSAY_OK;
}
