/* Requests with random inputs: every operation of the table at every size, in one data mode.  Zero-mean values show
 * missing terms (sums nearly cancel), one-signed values show sums that are kept too narrow (they grow).  Statistics that
 * an earlier operation would have left are the reference's, rounded as they are stored. */
#include "parity/checks/random_request.h"

#include "core/base/philox.h"
#include "core/model/ops.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* One request under construction: every input so far, hidden ones too. */
typedef struct draft {
    parity_ask *q;
    parity_data_mode mode;
    const parity_ask_row *row;
    const assay_op *op;
    assay_op_binding sizes;
    json_t *derivation; /* attributes of derivations alone */
    const char *sweep;  /* symbols whose size is `swept`; NULL: as the row says */
    int64_t swept;
    ref_value values[ASK_MAX_SLOTS];
    int n;
    int planted; /* the input that holds the NaN or the infinity; -1: none does */
} draft;

/* --- size rows ---------------------------------------------------------------------------------------------- */

static int64_t size_of(const draft *d, const char *name)
{
    int64_t value = 0;
    (void)assay_op_symbol(&d->sizes, name, &value);
    return value;
}

/* An attribute that the table of operations does not give this one is for the derivations. */
static void put_attr(const draft *d, const char *key, const char *text)
{
    json_t *attrs = assay_op_attr_find(d->op, key) ? d->q->attrs : d->derivation;
    int64_t value;
    char *end;
    const double real = strtod(text, &end);
    json_t *v;
    if (assay_op_symbol(&d->sizes, text, &value))
        v = json_integer(value);
    else if (strcmp(text, "true") == 0 || strcmp(text, "false") == 0)
        v = json_boolean(text[0] == 't');
    else if (*end == '\0' && strpbrk(text, ".e") == NULL)
        v = json_integer((json_int_t)real);
    else
        v = *end == '\0' ? json_real(real) : json_string(text);
    json_object_set_new(attrs, key, v);
}

bool parity_ask_is_swept(const char *symbols, const char *key)
{
    const size_t n = strlen(key);
    for (const char *p = symbols; p != NULL && *p != '\0'; p += strcspn(p, ","), p += *p == ',')
        if (strncmp(p, key, n) == 0 && (p[n] == '\0' || p[n] == ','))
            return true;
    return false;
}

/* "T=3 K=5 | eps=1e-5 topk=K": symbols go to d->sizes, attributes to the request or to derivations. */
static assay_status read_sizes(draft *d, const char *text)
{
    bool attrs = false;
    for (const char *p = text; *p != '\0';) {
        const size_t length = strcspn(p, " ");
        const char *equals = memchr(p, '=', length);
        char key[48], value[48];
        if (length == 1 && *p == '|') {
            attrs = true;
        } else if (equals != NULL) {
            snprintf(key, sizeof key, "%.*s", (int)(equals - p), p);
            snprintf(value, sizeof value, "%.*s", (int)(length - (size_t)(equals + 1 - p)), equals + 1);
            if (attrs)
                put_attr(d, key, value);
            else
                ASSAY_CHECK(
                    assay_op_bind(&d->sizes, key,
                                  parity_ask_is_swept(d->sweep, key) ? d->swept : strtoll(value, NULL, 10)),
                    ASSAY_INTERNAL, "request: %s: size %s", d->row->op, key);
        }
        p += length;
        p += strspn(p, " ");
    }
    return assay_op_bind_where(d->op, &d->sizes);
}

/* What the table says of a slot, or the row here, where the table has no such slot. */
static assay_status shape_of(const draft *d, const parity_ask_slot *slot, ref_value *v)
{
    const assay_op_slot *row = assay_op_slot_find(d->op, slot->name, false);
    const assay_op_slot own = {.name = slot->name, .shape = slot->shape};
    ASSAY_CHECK(row != NULL || slot->hidden, ASSAY_INTERNAL, "request: %s has no input %s", d->row->op,
                slot->name);
    ASSAY_TRY(assay_op_slot_shape(d->op, slot->shape != NULL ? &own : row, &d->sizes, &v->ndim, v->shape));
    v->count = 1;
    for (int i = 0; i < v->ndim; i++)
        v->count *= v->shape[i];
    return ASSAY_OK;
}

/* --- values ------------------------------------------------------------------------------------------------- */

static uint64_t draw_of(const parity_draws *d, int64_t i, uint64_t below)
{
    return assay_philox_below(d->seed, 100 + (uint64_t)d->input, (uint64_t)i, below);
}

static uint64_t draw(const draft *d, int64_t i, uint64_t below)
{
    return draw_of(&(parity_draws){.seed = (uint64_t)d->q->n, .input = d->n}, i, below);
}

/* In [0, 1), a multiple of 2^-20. */
static double uniform_of(const parity_draws *d, int64_t i)
{
    return (double)draw_of(d, i, 1 << 20) * 0x1p-20;
}

static double uniform(const draft *d, int64_t i)
{
    return (double)draw(d, i, 1 << 20) * 0x1p-20;
}

/* One element of one input. */
static bool is_planted(const draft *d, int64_t i)
{
    return d->n == d->planted && i == (d->q->n * 7 + 3) % d->values[d->n].count;
}

/* Seldom an element is zero, of either sign; not beside a NaN or an infinity, whose products they would be.  Which one is no draw: the
 * others keep their values. */
static bool is_zero(parity_data_mode mode, const parity_draws *d, int64_t i, double *zero)
{
    enum { PERIOD = 47, NEGATIVE = 5, POSITIVE = 29 };
    const int64_t place = (i + 11 * d->input + (int64_t)(d->seed % PERIOD) * 7) % PERIOD;
    *zero = place == NEGATIVE ? -0.0 : 0.0;
    return mode != PARITY_NAN && mode != PARITY_INFINITY && (place == NEGATIVE || place == POSITIVE);
}

double parity_mode_value(parity_data_mode mode, const parity_draws *d, int64_t i, double scale, bool planted)
{
    double zero;
    if (is_zero(mode, d, i, &zero))
        return zero;
    const double u = uniform_of(d, i);
    const double sign = ((i >> (d->input % 3)) & 1) != 0 ? -1.0 : 1.0;
    uint64_t other = 0;
    if (mode == PARITY_HEAVY_TAILED || mode == PARITY_SUBNORMAL) /* none of the draws of the values */
        other = draw_of(d, i + ((int64_t)1 << 40), 1 << 12);
    switch (mode) {
    case PARITY_ONE_SIGNED:
        return scale * (0.25 + 0.75 * u);
    case PARITY_HEAVY_TAILED: /* one of 2^k elements is 4^k times as large */
        return scale * (2.0 * u - 1.0) * ldexp(1.0, 2 * __builtin_ctzll(other | 1 << 12) - 12);
    case PARITY_SIGN_STRUCTURED:
        return scale * sign * (0.25 + 0.75 * u);
    case PARITY_CANCELLATION:
        return (i & 1) == 0 ? scale * (0.25 + 0.75 * u)
                            : -scale * (0.25 + 0.75 * uniform_of(d, i - 1)) * (1.0 + 0x1p-6 * u);
    case PARITY_SUBNORMAL:
        return scale * (2.0 * u - 1.0) * ((other & 1) != 0 ? 0x1p-127 : 1.0);
    case PARITY_HUGE:
        return scale * (2.0 * u - 1.0) * 0x1p30;
    case PARITY_NAN:
    case PARITY_INFINITY:
        if (planted)
            return mode == PARITY_NAN ? (double)NAN : sign * (double)INFINITY;
        return scale * (2.0 * u - 1.0);
    default:
        return scale * (2.0 * u - 1.0);
    }
}

static double mode_value(const draft *d, const parity_ask_slot *slot, int64_t i)
{
    const parity_draws draws = {.seed = (uint64_t)d->q->n, .input = d->n};
    return parity_mode_value(d->mode, &draws, i, slot->scale != 0.0 ? slot->scale : 1.0, is_planted(d, i));
}

static double real_value(const draft *d, const parity_ask_slot *slot, int64_t i)
{
    const double turn = 8.0 * atan(1.0);
    /* hidden: what is derived of -inf is often finite */
    const bool own = slot->hidden || slot->fill == ASK_POSITIVE || slot->fill == ASK_TURN_COS ||
                     slot->fill == ASK_TURN_SIN;
    if (own && is_planted(d, i))
        return d->mode == PARITY_NAN ? (double)NAN : (double)INFINITY;
    switch (slot->fill) {
    case ASK_UNREAD:
        return (double)NAN;
    case ASK_POSITIVE:
        return (slot->scale != 0.0 ? slot->scale : 1.0) * uniform(d, i);
    case ASK_TURN_COS:
        return cos(turn * (double)assay_philox_below((uint64_t)d->q->n, 7, (uint64_t)i, 1 << 20) * 0x1p-20);
    case ASK_TURN_SIN:
        return sin(turn * (double)assay_philox_below((uint64_t)d->q->n, 7, (uint64_t)i, 1 << 20) * 0x1p-20);
    default:
        return mode_value(d, slot, i);
    }
}

static int64_t attr_of(const draft *d, const char *key)
{
    return json_integer_value(json_object_get(d->q->attrs, key));
}

/* `of` is the symbol that the slot names: the limit, or the sum. */
static void fill_counts(const draft *d, ref_value *v, int64_t of)
{
    for (int64_t i = 0; i < of && v->count > 0; i++)
        v->ivalue[draw(d, i, (uint64_t)(v->count + 1) / 2 + 1) % (uint64_t)v->count]++;
}

/* Rows of different experts, ascending. */
static void fill_choice(const draft *d, ref_value *v, int64_t experts)
{
    const int64_t k = v->ndim == 2 ? v->shape[1] : 1;
    for (int64_t row = 0; row < v->count / (k > 0 ? k : 1); row++) {
        int64_t left = k;
        for (int64_t e = 0; e < experts && left > 0; e++)
            if ((int64_t)draw(d, row * experts + e, (uint64_t)(experts - e)) < left)
                v->ivalue[row * k + k - left--] = e;
    }
}

static void fill_shuffle(const draft *d, ref_value *v)
{
    for (int64_t i = 0; i < v->count; i++) {
        const int64_t j = (int64_t)draw(d, i, (uint64_t)i + 1);
        v->ivalue[i] = v->ivalue[j];
        v->ivalue[j] = i;
    }
}

/* Some outside of the piece; of an operation that leaves an id out, every third token has it. */
static int64_t id_of(const draft *d, int64_t i, int64_t v)
{
    const json_t *padding = json_object_get(d->q->attrs, "padding_idx");
    if (json_integer_value(padding) >= 0 && padding != NULL && draw(d, i + (1 << 20), 3) == 0)
        return json_integer_value(padding);
    return (int64_t)draw(d, i, (uint64_t)(v + 2 * attr_of(d, "vocab_start") + 1));
}

static int64_t integer_value(const draft *d, const parity_ask_slot *slot, int64_t i, int64_t of)
{
    const int64_t v = size_of(d, "V"), batch = size_of(d, "B"), q = size_of(d, "Sq"), k = size_of(d, "Sk");
    switch (slot->fill) {
    case ASK_TARGETS:
        if (draw(d, i, 4) == 0)
            return -100;
        return attr_of(d, "vocab_start") + (v > 0 ? (int64_t)draw(d, i + (1 << 20), (uint64_t)v) : 0);
    case ASK_IDS:
        return id_of(d, i, v);
    case ASK_QUERY_POSITION:
        return k - q + i / batch;
    case ASK_KEY_POSITION:
        return i / batch;
    case ASK_FIRST_KEY:
        return (k - q + i / batch) / 3 * 2;
    default:
        return (int64_t)draw(d, i, (uint64_t)of);
    }
}

static assay_status fill_integers(const draft *d, const parity_ask_slot *slot, ref_value *v)
{
    int64_t of = 1;
    ASSAY_CHECK(slot->of == NULL || assay_op_symbol(&d->sizes, slot->of, &of), ASSAY_INTERNAL,
                "request: %s: no size %s", d->row->op, slot->of);
    if (slot->fill == ASK_COUNTS)
        fill_counts(d, v, of);
    else if (slot->fill == ASK_CHOICE)
        fill_choice(d, v, of);
    else if (slot->fill == ASK_SHUFFLE)
        fill_shuffle(d, v);
    else
        for (int64_t i = 0; i < v->count; i++)
            v->ivalue[i] = integer_value(d, slot, i, of);
    for (int64_t i = 0; i < v->count && slot->absent && (d->mode == PARITY_NAN || d->mode == PARITY_INFINITY);
         i += 2)
        v->ivalue[i] = -1;
    return ASSAY_OK;
}

/* Takes slot "lse" out of what the reference makes of "attention_fwd" on the inputs so far. */
static assay_status derive(const draft *d, const parity_ask_slot *slot, ref_value *v)
{
    char op[48];
    const char *dot = strchr(slot->of, '.');
    const assay_declaration arith = assay_declaration_make(assay_arith_elementwise());
    ref_replay_result result;
    snprintf(op, sizeof op, "%.*s", (int)(dot - slot->of), slot->of);
    json_t *attrs = json_copy(d->q->attrs);
    json_object_update(attrs, d->derivation);
    const assay_status made = ref_replay(op, attrs, &arith, d->values, d->n, NULL, 0, &result);
    json_decref(attrs);
    ASSAY_TRY(made);
    ref_value *from = NULL;
    for (int i = 0; i < result.n_outputs; i++)
        if (strcmp(result.outputs[i].slot, dot + 1) == 0)
            from = &result.outputs[i];
    assay_status st = ASSAY_OK;
    ASSAY_CHECK_GOTO(from != NULL && from->count == v->count, ASSAY_INTERNAL, st, done,
                     "request: %s: the reference has no %s of %lld elements", d->row->op, slot->of,
                     (long long)v->count);
    v->dtype = from->ivalue != NULL ? ASSAY_I64 : strcmp(slot->name, "o") == 0 ? d->q->act : ASSAY_F32;
    for (int64_t i = 0; i < v->count && from->ivalue != NULL; i++)
        v->ivalue[i] = from->ivalue[i];
    for (int64_t i = 0; i < v->count && from->ivalue == NULL; i++)
        v->value[i] = ref_round(from->value[i], v->dtype);
done:
    ref_replay_free(&result);
    return st;
}

static assay_dtype dtype_of(const draft *d, const parity_ask_slot *slot)
{
    const assay_op_slot *row = assay_op_slot_find(d->op, slot->name, false);
    switch (slot->fill) {
    case ASK_DEFAULT:
        return row != NULL && row->dtype == ASSAY_CLASS_F32   ? ASSAY_F32
               : row != NULL && row->dtype == ASSAY_CLASS_F64 ? ASSAY_F64
                                                              : d->q->act;
    case ASK_ACT:
        return d->q->act;
    case ASK_F64:
        return ASSAY_F64;
    case ASK_POSITIVE:
        return row != NULL && row->dtype == ASSAY_CLASS_F64 ? ASSAY_F64 : ASSAY_F32;
    case ASK_F32:
    case ASK_UNREAD:
    case ASK_TURN_COS:
    case ASK_TURN_SIN:
    case ASK_FROM: /* derive() knows */
        return ASSAY_F32;
    default:
        return ASSAY_I64;
    }
}

/* --- a request ---------------------------------------------------------------------------------------------- */

static double from_value(const parity_ask *q, int64_t i)
{
    return q->values[i];
}

static void write_slot(draft *d, const ref_value *v)
{
    if (v->dtype == ASSAY_I64) {
        parity_ask_bytes(d->q, v->slot, ASSAY_I64, v->ndim, v->shape, v->ivalue);
        return;
    }
    d->q->values = v->value;
    parity_ask_real(d->q, v->slot, v->dtype, v->ndim, v->shape, from_value);
    d->q->values = NULL;
}

static bool is_there(const draft *d, const parity_ask_slot *slot)
{
    return slot->when == NULL || size_of(d, slot->when) != 0;
}

static assay_status add_slot(draft *d, const parity_ask_slot *slot)
{
    ref_value *v = &d->values[d->n];
    memset(v, 0, sizeof *v);
    if (!is_there(d, slot))
        return ASSAY_OK;
    snprintf(v->slot, sizeof v->slot, "%s", slot->name);
    v->dtype = dtype_of(d, slot);
    ASSAY_TRY(shape_of(d, slot, v));
    v->value = calloc((size_t)v->count + 1, sizeof *v->value);
    v->ivalue = calloc((size_t)v->count + 1, sizeof *v->ivalue);
    assay_status st = ASSAY_OK;
    ASSAY_CHECK_GOTO(v->value != NULL && v->ivalue != NULL, ASSAY_OUT_OF_MEMORY, st, done, "request: %s",
                     d->row->op);
    if (slot->fill == ASK_FROM)
        ASSAY_TRY_GOTO(derive(d, slot, v), st, done);
    else if (v->dtype == ASSAY_I64)
        ASSAY_TRY_GOTO(fill_integers(d, slot, v), st, done);
    for (int64_t i = 0; i < v->count && v->dtype != ASSAY_I64 && slot->fill != ASK_FROM; i++)
        v->value[i] = ref_round(real_value(d, slot, i), v->dtype);
    if (!slot->hidden)
        write_slot(d, v);
done:
    /* The replay takes the array that is there for the kind. */
    free(v->dtype == ASSAY_I64 ? (void *)v->value : (void *)v->ivalue);
    if (v->dtype == ASSAY_I64)
        v->value = NULL;
    else
        v->ivalue = NULL;
    d->n++;
    return st;
}

/* Calls body for the slots of the row, or for those of the operation. */
static assay_status each_slot(draft *d, assay_status (*body)(draft *d, const parity_ask_slot *slot))
{
    for (int i = 0; i < ASK_MAX_SLOTS && d->row->slots[i].name != NULL; i++)
        ASSAY_TRY(body(d, &d->row->slots[i]));
    for (int i = 0; d->row->slots[0].name == NULL && i < assay_op_n_slots(d->op); i++) {
        const assay_op_slot *row = &d->op->slots[i];
        char recorded[32];
        if (row->role == ASSAY_SLOT_OUT || row->optional)
            continue;
        snprintf(recorded, sizeof recorded, "%s%s", row->name, row->role == ASSAY_SLOT_INOUT ? "_in" : "");
        ASSAY_TRY(body(d, &(parity_ask_slot){.name = recorded}));
    }
    return ASSAY_OK;
}

/* Whether an input can hold a NaN of its own: what an earlier operation would have left of one comes from there. */
static assay_status takes_planted(draft *d, const parity_ask_slot *slot, bool *takes)
{
    ref_value v = {.dtype = dtype_of(d, slot)};
    *takes = false;
    if (slot->fill == ASK_FROM || slot->fill == ASK_UNREAD || v.dtype == ASSAY_I64)
        return ASSAY_OK;
    ASSAY_TRY(shape_of(d, slot, &v));
    *takes = v.count > 0;
    return ASSAY_OK;
}

static assay_status count_planted(draft *d, const parity_ask_slot *slot)
{
    bool takes;
    if (!is_there(d, slot))
        return ASSAY_OK;
    ASSAY_TRY(takes_planted(d, slot, &takes));
    d->planted += takes;
    return ASSAY_OK;
}

/* d->planted: how many of those that take one are left. */
static assay_status find_planted(draft *d, const parity_ask_slot *slot)
{
    bool takes;
    if (!is_there(d, slot) || d->planted < 0)
        return ASSAY_OK;
    ASSAY_TRY(takes_planted(d, slot, &takes));
    d->planted -= takes;
    d->n++;
    return ASSAY_OK;
}

/* Another input in each request of an operation: one that swallows a NaN would not be seen beside another that spreads one. */
static assay_status choose_planted(draft *d)
{
    d->planted = -1;
    if (d->mode != PARITY_NAN && d->mode != PARITY_INFINITY)
        return ASSAY_OK;
    d->planted = 0;
    ASSAY_TRY(each_slot(d, count_planted));
    const int n = d->planted;
    d->planted = n > 0 ? (int)(d->q->n % n) : -1;
    if (n == 0)
        return ASSAY_OK;
    ASSAY_TRY(each_slot(d, find_planted));
    d->planted = d->n - 1;
    d->n = 0;
    return ASSAY_OK;
}

/* Dimensions in brackets are there where the sizes of the row say how long they are. */
static void settle_brackets(draft *d)
{
    d->sizes.brackets = true;
    for (int i = 0; i < assay_op_n_slots(d->op) && d->sizes.brackets; i++) {
        const assay_op_slot *slot = &d->op->slots[i];
        int64_t shape[ASSAY_OP_DIMS];
        int ndim;
        if (strchr(slot->shape, '[') != NULL &&
            assay_op_slot_shape(d->op, slot, &d->sizes, &ndim, shape) != ASSAY_OK) {
            assay_error_clear();
            d->sizes.brackets = false;
        }
    }
}

static assay_status ask(draft d, const char *text)
{
    parity_ask *q = d.q;
    d.op = assay_op_find(d.row->op);
    parity_ask_begin(q, d.row->op);
    d.derivation = json_object();
    assay_status st = read_sizes(&d, text);
    settle_brackets(&d);
    if (st == ASSAY_OK)
        st = choose_planted(&d);
    if (st == ASSAY_OK)
        st = each_slot(&d, add_slot);
    if (st == ASSAY_OK) {
        parity_ask_finish(q);
        st = q->st;
    }
    json_decref(d.derivation);
    for (int i = 0; i < d.n; i++) {
        free(d.values[i].value);
        free(d.values[i].ivalue);
    }
    return st;
}

static const char *const mode_names[PARITY_MODE_COUNT] = {
    "zero_mean", "one_signed", "heavy_tailed", "sign_structured", "cancellation",
    "subnormal", "huge",       "nan",          "infinity",
};

const char *parity_data_mode_name(parity_data_mode mode)
{
    return mode_names[mode];
}

static const char *tier_of(parity_data_mode mode)
{
    static const char *const tiers[PARITY_MODE_COUNT] = {
        "local.zero_mean",    "local.one_signed", "local.heavy_tailed", "local.sign_structured",
        "local.cancellation", "local.subnormal",  "local.huge",         "local.nan",
        "local.infinity",
    };
    return tiers[mode];
}

static bool is_asked(const parity_ask *q, const parity_ask_row *row, parity_data_mode mode)
{
    return q->st == ASSAY_OK && parity_ask_wants(q, row->op) &&
           parity_data_mode_refusal(row->op, mode) == NULL;
}

void parity_ask_random(parity_ask *q, parity_data_mode mode)
{
    q->tier = tier_of(mode);
    for (const parity_ask_row *row = parity_ask_table; row->op != NULL; row++)
        for (int i = 0; i < ASK_MAX_SIZES && row->sizes[i] != NULL && is_asked(q, row, mode); i++)
            q->st = ask((draft){.q = q, .mode = mode, .row = row}, row->sizes[i]);
}

static const parity_ask_row *first_row(const char *op)
{
    for (const parity_ask_row *row = parity_ask_table; row->op != NULL; row++)
        if (strcmp(row->op, op) == 0)
            return row;
    return NULL;
}

void parity_ask_size(parity_ask *q, const char *tier, const char *op, const char *sizes)
{
    const parity_ask_row *row = first_row(op);
    q->tier = tier;
    if (row != NULL && is_asked(q, row, PARITY_ZERO_MEAN))
        q->st = ask((draft){.q = q, .mode = PARITY_ZERO_MEAN, .row = row}, sizes);
}

void parity_ask_one(parity_ask *q, parity_data_mode mode, const char *op, const char *sizes,
                    const char *symbols, int64_t value)
{
    const parity_ask_row *row = first_row(op);
    q->tier = tier_of(mode);
    if (is_asked(q, row, mode))
        q->st = ask((draft){.q = q, .mode = mode, .row = row, .sweep = symbols, .swept = value}, sizes);
}

const char *parity_ask_first_sizes(const char *op)
{
    return first_row(op)->sizes[0];
}

void parity_ask_widths(parity_ask *q, parity_data_mode mode)
{
    q->tier = tier_of(mode);
    for (const parity_ask_widths_row *w = parity_ask_widths_table; w->op != NULL; w++) {
        const parity_ask_row *row = first_row(w->op);
        for (int i = 0; i < 4 && w->sizes[i] != NULL && is_asked(q, row, mode); i++)
            q->st = ask((draft){.q = q, .mode = mode, .row = row}, w->sizes[i]);
    }
}

/* Calls body for every value of the symbols of a sweep row. */
typedef void (*on_swept)(void *user, const parity_ask_row *row, const char *sizes, const char *symbols,
                         int64_t value);

static void each_swept(const parity_ask_sweep_row *s, on_swept body, void *user)
{
    enum { MOST = 256 };
    const parity_ask_row *row = first_row(s->op);
    for (int k = 0; k < 4 && s->symbols[k] != NULL; k++) {
        const char *symbols = s->symbols[k];
        const bool some = symbols[0] == '+' || symbols[0] == '-', within = symbols[0] == '-';
        for (const int64_t *v = parity_ask_boundaries; *v >= 0; v++)
            if (!(some && *v == 0) && !(within && *v > MOST))
                body(user, row, s->sizes != NULL ? s->sizes : row->sizes[0], symbols + some, *v);
    }
}

typedef struct in_mode {
    parity_ask *q;
    parity_data_mode mode;
} in_mode;

static void ask_swept(void *user, const parity_ask_row *row, const char *sizes, const char *symbols,
                      int64_t value)
{
    const in_mode *m = user;
    if (is_asked(m->q, row, m->mode))
        m->q->st =
            ask((draft){.q = m->q, .mode = m->mode, .row = row, .sweep = symbols, .swept = value}, sizes);
}

void parity_ask_sweep(parity_ask *q, parity_data_mode mode)
{
    in_mode m = {q, mode};
    q->tier = tier_of(mode);
    for (const parity_ask_sweep_row *s = parity_ask_sweep_table; s->op != NULL; s++)
        each_swept(s, ask_swept, &m);
}

typedef struct shapes {
    parity_on_shape on;
    void *user;
} shapes;

static void on_swept_shape(void *user, const parity_ask_row *row, const char *sizes, const char *symbols,
                           int64_t value)
{
    const shapes *s = user;
    (void)row;
    s->on(s->user, sizes, symbols, value);
}

void parity_ask_each_shape(const char *op, parity_on_shape on, void *user)
{
    shapes s = {on, user};
    for (const parity_ask_row *row = parity_ask_table; row->op != NULL; row++)
        for (int i = 0; i < ASK_MAX_SIZES && row->sizes[i] != NULL && strcmp(row->op, op) == 0; i++)
            on(user, row->sizes[i], NULL, 0);
    for (const parity_ask_sweep_row *row = parity_ask_sweep_table; row->op != NULL; row++)
        if (strcmp(row->op, op) == 0)
            each_swept(row, on_swept_shape, &s);
    for (const parity_ask_long_row *row = parity_ask_long_table; row->op != NULL; row++)
        if (strcmp(row->op, op) == 0)
            parity_ask_each_long(row, on, user);
}

/* --- a rotation of the modes -------------------------------------------------------------------------------- */
typedef struct rotation {
    parity_ask *q;
    int64_t first, turn, shape; /* number of the first record and of the next shape */
    parity_on_asked on;
    void *user;
} rotation;

static void ask_turned(void *user, const parity_ask_row *row, const char *sizes, const char *symbols,
                       int64_t value)
{
    rotation *r = user;
    const parity_data_mode mode = (parity_data_mode)((r->turn + r->shape) % PARITY_MODE_COUNT);
    const parity_asked asked = {row->op, sizes, symbols, value, mode, r->shape++};
    if (!is_asked(r->q, row, mode))
        return;
    r->q->tier = tier_of(mode);
    r->q->n = r->first + asked.shape;
    if (r->q->w != NULL)
        r->q->st = ask((draft){.q = r->q, .mode = mode, .row = row, .sweep = symbols, .swept = value}, sizes);
    if (r->q->st == ASSAY_OK)
        r->q->st = r->on(r->user, &asked);
}

void parity_ask_rotation(parity_ask *q, int64_t turn, parity_on_asked on, void *user)
{
    rotation r = {q, q->n, turn, 0, on, user};
    for (const parity_ask_row *row = parity_ask_table; row->op != NULL; row++)
        for (int i = 0; i < ASK_MAX_SIZES && row->sizes[i] != NULL; i++)
            ask_turned(&r, row, row->sizes[i], NULL, 0);
    for (const parity_ask_sweep_row *s = parity_ask_sweep_table; s->op != NULL; s++)
        each_swept(s, ask_turned, &r);
    for (const parity_ask_sweep_row *s = parity_ask_tile_table; s->op != NULL; s++)
        each_swept(s, ask_turned, &r);
}
