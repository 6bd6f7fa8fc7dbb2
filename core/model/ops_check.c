/* Refusal of calls that their row does not allow. */
#include "core/base/text.h"
#include "core/model/ops_internal.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- attributes --------------------------------------------------------------------------------------------- */
static const json_t *attr_value(const json_t *attrs, const char *name)
{
    const json_t *v = json_object_get(attrs, name);
    return json_is_null(v) ? NULL : v;
}

static int word_index(const char *words, const char *word)
{
    const size_t n = strlen(word);
    int index = 0;
    for (const char *c = words; *c; index++) {
        const size_t length = strcspn(c, "|");
        if (length == n && strncmp(c, word, n) == 0)
            return index;
        c += length + (c[length] == '|' ? 1 : 0);
    }
    return -1;
}

static const char *const type_words[] = {"an integer", "a number", "true or false",
                                         "a word",     "a dtype",  "a list of counts"};

/* For messages: made where one is written. */
static const char *shown(const json_t *v, char out[64])
{
    char *dump = json_dumps(v, JSON_COMPACT | JSON_ENCODE_ANY);
    snprintf(out, 64, "%.60s", dump ? dump : "?");
    free(dump);
    return out;
}

static bool is_type(const assay_op_attr *a, const json_t *v)
{
    switch (a->type) {
    case ASSAY_ATTR_INT:
        return json_is_integer(v);
    case ASSAY_ATTR_DOUBLE:
        return json_is_number(v); /* JSON has no infinity */
    case ASSAY_ATTR_BOOL:
        return json_is_boolean(v);
    case ASSAY_ATTR_WORD:
    case ASSAY_ATTR_DTYPE:
        return json_is_string(v);
    case ASSAY_ATTR_INTS:
        for (size_t i = 0; i < json_array_size(v); i++)
            if (!json_is_integer(json_array_get(v, i)) || json_integer_value(json_array_get(v, i)) < 0)
                return false;
        return json_is_array(v);
    }
    return false;
}

static assay_status check_attr(const assay_op *op, const assay_op_attr *a, const json_t *v)
{
    char found[64];
    ASSAY_CHECK(is_type(a, v), ASSAY_INVALID_ARGUMENT, "%s: attribute %s: expected %s, found %s", op->name,
                a->name, type_words[a->type], shown(v, found));
    const bool bounded = a->min < a->max && (a->type == ASSAY_ATTR_INT || a->type == ASSAY_ATTR_DOUBLE);
    const double number = bounded ? json_number_value(v) : 0.0;
    ASSAY_CHECK(!bounded || (number >= a->min && number <= a->max), ASSAY_INVALID_ARGUMENT,
                "%s: attribute %s: expected a value in [%g, %g], found %s", op->name, a->name, a->min, a->max,
                shown(v, found));
    ASSAY_CHECK(a->type != ASSAY_ATTR_WORD || word_index(a->words, json_string_value(v)) >= 0,
                ASSAY_INVALID_ARGUMENT, "%s: attribute %s: expected one of %s, found %s", op->name, a->name,
                a->words, shown(v, found));
    assay_dtype dtype;
    if (a->type == ASSAY_ATTR_DTYPE && assay_dtype_from_name(json_string_value(v), &dtype) != ASSAY_OK)
        ASSAY_FAIL(ASSAY_INVALID_ARGUMENT, "%s: attribute %s: expected a dtype, found %s", op->name, a->name,
                   shown(v, found));
    return ASSAY_OK;
}

/* The attribute's JSON value, NULL when it is absent and has a default. */
static assay_status fetch(const assay_op *op, const json_t *attrs, const char *name, assay_attr_type type,
                          const assay_op_attr **row, const json_t **value)
{
    *row = assay_op_attr_find(op, name);
    ASSAY_CHECK(*row && (*row)->type == type, ASSAY_INTERNAL, "%s: the operation has no attribute %s of %s",
                op->name, name, type_words[type]);
    *value = attr_value(attrs, name);
    ASSAY_CHECK(*value || (*row)->otherwise, ASSAY_INVALID_ARGUMENT,
                "%s: attribute %s: expected %s, found none", op->name, name, type_words[type]);
    return *value ? check_attr(op, *row, *value) : ASSAY_OK;
}

assay_status assay_op_attr_int(const assay_op *op, const json_t *attrs, const char *name, int64_t *out)
{
    const assay_op_attr *row = NULL;
    const json_t *v = NULL;
    ASSAY_TRY(fetch(op, attrs, name, ASSAY_ATTR_INT, &row, &v));
    if (v == NULL && assay_op_attr_find(op, row->otherwise))
        return assay_op_attr_int(op, attrs, row->otherwise, out);
    *out = v ? (int64_t)json_integer_value(v) : strtoll(row->otherwise, NULL, 10);
    return ASSAY_OK;
}

assay_status assay_op_attr_double(const assay_op *op, const json_t *attrs, const char *name, double *out)
{
    const assay_op_attr *row = NULL;
    const json_t *v = NULL;
    ASSAY_TRY(fetch(op, attrs, name, ASSAY_ATTR_DOUBLE, &row, &v));
    *out = v ? json_number_value(v) : strtod(row->otherwise, NULL);
    return ASSAY_OK;
}

assay_status assay_op_attr_bool(const assay_op *op, const json_t *attrs, const char *name, bool *out)
{
    const assay_op_attr *row = NULL;
    const json_t *v = NULL;
    ASSAY_TRY(fetch(op, attrs, name, ASSAY_ATTR_BOOL, &row, &v));
    *out = v ? json_is_true(v) : strcmp(row->otherwise, "true") == 0;
    return ASSAY_OK;
}

assay_status assay_op_attr_word(const assay_op *op, const json_t *attrs, const char *name, int *out)
{
    const assay_op_attr *row = assay_op_attr_find(op, name);
    const json_t *v;
    const assay_attr_type type = row && row->type == ASSAY_ATTR_DTYPE ? ASSAY_ATTR_DTYPE : ASSAY_ATTR_WORD;
    ASSAY_TRY(fetch(op, attrs, name, type, &row, &v));
    const char *word = v ? json_string_value(v) : row->otherwise;
    if (type == ASSAY_ATTR_WORD) {
        *out = word_index(row->words, word);
        return ASSAY_OK;
    }
    assay_dtype dtype = ASSAY_DTYPE_COUNT; /* "act", "send": the caller knows */
    if (v || (isupper((unsigned char)word[0]) && word[1] != '\0'))
        ASSAY_TRY(assay_dtype_from_name(word, &dtype));
    *out = (int)dtype;
    return ASSAY_OK;
}

/* `act` is the one attribute that every request may carry: the dtype that its slots leave open. */
static assay_status check_attrs(const assay_op *op, const json_t *attrs, assay_op_binding *b)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)attrs, key, value)
    {
        const assay_op_attr *a = assay_op_attr_find(op, key);
        ASSAY_CHECK(a || strcmp(key, "act") == 0, ASSAY_INVALID_ARGUMENT,
                    "%s: the operation has no attribute %.40s", op->name, key);
        if (a && !json_is_null(value))
            ASSAY_TRY(check_attr(op, a, value));
    }
    for (int i = 0; i < assay_op_n_attrs(op); i++) {
        const assay_op_attr *a = &op->attrs[i];
        ASSAY_CHECK(a->otherwise || attr_value(attrs, a->name), ASSAY_INVALID_ARGUMENT,
                    "%s: attribute %s: expected %s, found none", op->name, a->name, type_words[a->type]);
        int64_t v;
        if (a->symbol == NULL)
            continue;
        ASSAY_TRY(assay_op_attr_int(op, attrs, a->name, &v));
        ASSAY_CHECK(assay_op_bind(b, a->symbol, v), ASSAY_INTERNAL, "%s: attribute %s: symbol %s", op->name,
                    a->name, a->symbol);
    }
    return ASSAY_OK;
}

/* "Tq=B*Sq;Tk=B*Sk" */
assay_status assay_op_bind_where(const assay_op *op, assay_op_binding *b)
{
    char text[64];
    assay_copy_text(text, sizeof text, op->where ? op->where : "");
    for (char *next, *c = text; *c; c = next) {
        char *equals = strchr(c, '='), *end = c + strcspn(c, ";");
        int64_t v;
        next = *end ? end + 1 : end;
        *end = *equals = '\0';
        ASSAY_CHECK(assay_op_evaluate(b, equals + 1, &v) && assay_op_bind(b, c, v), ASSAY_INVALID_ARGUMENT,
                    "%s: the attributes give no value for %s = %s", op->name, c, equals + 1);
    }
    return ASSAY_OK;
}

/* --- slots -------------------------------------------------------------------------------------------------- */
static const assay_op_operand *find_operand(const assay_op_operand *list, int n, const char *name)
{
    const size_t length = strlen(name);
    for (int i = 0; i < n; i++)
        if (strncmp(list[i].slot, name, length) == 0 &&
            (list[i].slot[length] == '\0' || list[i].slot[length] == '.' ||
             strcmp(list[i].slot + length, "_in") == 0))
            return &list[i];
    return NULL;
}

static bool takes_dtype(assay_dtype *known, assay_dtype found)
{
    if (*known == ASSAY_DTYPE_COUNT && assay_dtype_is_float(found))
        *known = found;
    return *known == found;
}

/* The dtype that the slot must have; ASSAY_DTYPE_COUNT: nothing is demanded. */
static assay_status wanted_dtype(const assay_op *op, const assay_op_slot *s, const json_t *attrs,
                                 const assay_op_operand *in, int n_in, const assay_op_binding *b,
                                 assay_dtype *out)
{
    const assay_op_operand *other = NULL;
    int word = ASSAY_DTYPE_COUNT;
    *out = ASSAY_DTYPE_COUNT;
    switch (s->dtype) {
    case ASSAY_CLASS_ACT:
        *out = b->act;
        break;
    case ASSAY_CLASS_PAR:
        *out = b->par;
        break;
    case ASSAY_CLASS_F32:
        *out = b->act == ASSAY_F64 || b->par == ASSAY_F64 ? ASSAY_F64 : ASSAY_F32; /* the fp64 recipe */
        break;
    case ASSAY_CLASS_F64:
        *out = ASSAY_F64;
        break;
    case ASSAY_CLASS_I64:
        *out = ASSAY_I64;
        break;
    case ASSAY_CLASS_SAME:
        other = find_operand(in, n_in, s->like);
        *out = other ? other->dtype : ASSAY_DTYPE_COUNT;
        break;
    case ASSAY_CLASS_ATTR:
        ASSAY_TRY(assay_op_attr_word(op, attrs, s->like, &word));
        *out = word == ASSAY_DTYPE_COUNT ? b->act : (assay_dtype)word;
        break;
    case ASSAY_CLASS_FLOAT:
    case ASSAY_CLASS_ANY:
        break;
    }
    return ASSAY_OK;
}

typedef struct call {
    const assay_op *op;
    const json_t *attrs;
    const assay_op_operand *in, *out;
    int n_in, n_out;
} call;

static assay_status check_dtype(const call *c, const assay_op_slot *s, const assay_op_operand *v,
                                assay_op_binding *b)
{
    assay_dtype wanted;
    if (s->dtype == ASSAY_CLASS_ACT && takes_dtype(&b->act, v->dtype))
        return ASSAY_OK;
    if (s->dtype == ASSAY_CLASS_PAR && takes_dtype(&b->par, v->dtype))
        return ASSAY_OK;
    ASSAY_TRY(wanted_dtype(c->op, s, c->attrs, c->in, c->n_in, b, &wanted));
    const bool any = wanted == ASSAY_DTYPE_COUNT && s->dtype != ASSAY_CLASS_FLOAT &&
                     s->dtype != ASSAY_CLASS_ACT && s->dtype != ASSAY_CLASS_PAR;
    ASSAY_CHECK(any || (wanted == ASSAY_DTYPE_COUNT ? assay_dtype_is_float(v->dtype) : v->dtype == wanted),
                ASSAY_INVALID_ARGUMENT, "%s: slot %s: expected dtype %s, found %s", c->op->name, v->slot,
                wanted == ASSAY_DTYPE_COUNT ? "of a real number" : assay_dtype_name(wanted),
                assay_dtype_name(v->dtype));
    return ASSAY_OK;
}

static void show_shape(const assay_op_operand *v, char *out, size_t capacity)
{
    size_t used = (size_t)snprintf(out, capacity, "[");
    for (int d = 0; d < v->ndim && used < capacity; d++)
        used += (size_t)snprintf(out + used, capacity - used, "%s%" PRId64, d ? "," : "", v->shape[d]);
    if (used < capacity)
        snprintf(out + used, capacity - used, "]");
}

/* "[T,64]": the shape text with what is bound. */
static void show_wanted(const assay_op_slot *s, const assay_op_binding *b, char *out, size_t capacity)
{
    assay_op_dims d;
    size_t used = (size_t)snprintf(out, capacity, "[");
    assay_op_dims_parse(s->shape, b->brackets, &d);
    for (int i = 0; i < d.n && used < capacity; i++) {
        int64_t v;
        if (assay_op_evaluate(b, d.dim[i], &v))
            used +=
                (size_t)snprintf(out + used, capacity - used, "%s%s%s%" PRId64, i ? "," : "",
                                 isdigit((unsigned char)d.dim[i][0]) && strlen(d.dim[i]) < 3 ? "" : d.dim[i],
                                 isdigit((unsigned char)d.dim[i][0]) && strlen(d.dim[i]) < 3 ? "" : "=", v);
        else
            used += (size_t)snprintf(out + used, capacity - used, "%s%s", i ? "," : "", d.dim[i]);
    }
    if (used < capacity)
        snprintf(out + used, capacity - used, "]");
}

static assay_status check_shape(const call *c, const assay_op_slot *s, const assay_op_operand *v,
                                assay_op_binding *b)
{
    char wanted[128], found[128];
    assay_op_binding before = *b;
    bool extents = true; /* a negative one would be the symbol's value, and other slots would contradict it */
    for (int d = 0; d < v->ndim; d++)
        extents = extents && v->shape[d] >= 0;
    if (extents && (s->numbered || assay_op_match(b, s, v->shape, v->ndim)))
        return ASSAY_OK;
    show_shape(v, found, sizeof found);
    ASSAY_CHECK(extents, ASSAY_INVALID_ARGUMENT,
                "%s: slot %s: expected extents that are not negative, found %s", c->op->name, v->slot, found);
    show_wanted(s, &before, wanted, sizeof wanted);
    ASSAY_FAIL(ASSAY_INVALID_ARGUMENT, "%s: slot %s: expected shape %s, found %s", c->op->name, v->slot,
               wanted, found);
}

/* Every recorded slot is one of the row, once. */
static assay_status check_names(const assay_op *op, const assay_op_operand *list, int n, bool output)
{
    for (int i = 0; i < n; i++) {
        ASSAY_CHECK(assay_op_slot_find(op, list[i].slot, output), ASSAY_INVALID_ARGUMENT,
                    "%s: the operation has no %s slot %s", op->name, output ? "output" : "input",
                    list[i].slot);
        for (int k = 0; k < i; k++)
            ASSAY_CHECK(strcmp(list[k].slot, list[i].slot) != 0, ASSAY_INVALID_ARGUMENT,
                        "%s: slot %s is there twice", op->name, list[i].slot);
    }
    return ASSAY_OK;
}

/* The row's slots in its order: those there are of the right kind, and none that must be is missing. */
static assay_status check_slots(const call *c, assay_op_binding *b, bool output)
{
    const assay_op_operand *list = output ? c->out : c->in;
    const int n = output ? c->n_out : c->n_in;
    for (int i = 0; i < assay_op_n_slots(c->op); i++) {
        const assay_op_slot *s = &c->op->slots[i];
        if (s->role != ASSAY_SLOT_INOUT && (s->role == ASSAY_SLOT_OUT) != output)
            continue;
        bool there = false;
        for (int k = 0; k < n; k++) {
            if (assay_op_slot_find(c->op, list[k].slot, output) != s)
                continue;
            there = true;
            if (list[k].ndim < 0)
                continue;
            ASSAY_TRY(check_dtype(c, s, &list[k], b));
            ASSAY_TRY(check_shape(c, s, &list[k], b));
        }
        ASSAY_CHECK(there || s->optional, ASSAY_INVALID_ARGUMENT,
                    "%s: slot %s%s: expected a tensor, found none", c->op->name, s->name,
                    s->role == ASSAY_SLOT_INOUT && !output ? "_in" : "");
        const bool with = s->optional && output && s->like && s->dtype != ASSAY_CLASS_SAME &&
                          find_operand(c->in, c->n_in, s->like) != NULL;
        ASSAY_CHECK(!output || s->dtype == ASSAY_CLASS_SAME || !s->optional || !s->like || there == with,
                    ASSAY_INVALID_ARGUMENT, "%s: slot %s: expected %s, found %s", c->op->name, s->name,
                    with ? "a tensor" : "none", there ? "one" : "none");
    }
    return ASSAY_OK;
}

static assay_status check_call(const call *c, assay_dtype act, assay_dtype par, bool brackets,
                               assay_op_binding *b)
{
    *b = (assay_op_binding){.act = act, .par = par, .brackets = brackets};
    ASSAY_TRY(check_attrs(c->op, c->attrs, b));
    ASSAY_TRY(assay_op_bind_where(c->op, b));
    ASSAY_TRY(check_names(c->op, c->in, c->n_in, false));
    ASSAY_TRY(check_slots(c, b, false));
    if (c->n_out < 0)
        return ASSAY_OK;
    ASSAY_TRY(check_names(c->op, c->out, c->n_out, true));
    return check_slots(c, b, true);
}

static bool has_brackets(const assay_op *op)
{
    for (int i = 0; i < assay_op_n_slots(op); i++)
        if (strchr(op->slots[i].shape, '['))
            return true;
    return false;
}

/* Whether an input has more dimensions than its row without the bracketed ones: then the call is one with them, and so is what is said of it. */
static bool with_brackets(const call *c)
{
    for (int i = 0; i < c->n_in; i++) {
        const assay_op_slot *s = assay_op_slot_find(c->op, c->in[i].slot, false);
        assay_op_dims d;
        if (s == NULL || strchr(s->shape, '[') == NULL)
            continue;
        assay_op_dims_parse(s->shape, false, &d);
        if (d.fold < 0 && c->in[i].ndim > d.n)
            return true;
    }
    return false;
}

assay_status assay_op_check(const assay_op *op, const json_t *attrs, assay_dtype act, assay_dtype par,
                            const assay_op_operand *inputs, int n_inputs, const assay_op_operand *outputs,
                            int n_outputs, assay_op_binding *binding)
{
    const call c = {op, attrs, inputs, outputs, n_inputs, n_outputs};
    assay_op_binding mine, *b = binding ? binding : &mine;
    if (!has_brackets(op))
        return check_call(&c, act, par, false, b);
    const assay_status st = check_call(&c, act, par, true, b);
    if (st == ASSAY_OK || with_brackets(&c))
        return st;
    assay_error_clear();
    return check_call(&c, act, par, false, b);
}

assay_status assay_op_slot_shape(const assay_op *op, const assay_op_slot *slot,
                                 const assay_op_binding *binding, int *ndim, int64_t *shape)
{
    assay_op_dims d;
    assay_op_dims_parse(slot->shape, binding->brackets, &d);
    *ndim = d.n;
    for (int i = 0; i < d.n; i++)
        ASSAY_CHECK(assay_op_evaluate(binding, d.dim[i], &shape[i]), ASSAY_INVALID_ARGUMENT,
                    "%s: slot %s: nothing says its extent %s", op->name, slot->name, d.dim[i]);
    return ASSAY_OK;
}

assay_status assay_op_output(const assay_op *op, const assay_op_slot *slot, const json_t *attrs,
                             const assay_op_operand *inputs, int n_inputs, const assay_op_binding *binding,
                             assay_dtype *dtype, int *ndim, int64_t *shape)
{
    ASSAY_TRY(wanted_dtype(op, slot, attrs, inputs, n_inputs, binding, dtype));
    ASSAY_CHECK(*dtype != ASSAY_DTYPE_COUNT, ASSAY_INVALID_ARGUMENT, "%s: slot %s: nothing says its dtype",
                op->name, slot->name);
    return assay_op_slot_shape(op, slot, binding, ndim, shape);
}
