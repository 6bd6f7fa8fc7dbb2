/* The calls that a description takes ("H>=1 H<=4096 H%8=0 dropout_p=0"), and a call in the same words. */
#include "parity/certify/shapes.h"

#include "parity/certify/certify.h"

#include <stdlib.h>
#include <string.h>

/* --- one condition ------------------------------------------------------------------------------------------- */
static bool parse(const char *word, certify_condition *c)
{
    char *end;
    const size_t n = strcspn(word, "<>=%");
    *c = (certify_condition){.modulus = 0};
    if (n == 0 || n >= sizeof c->name || word[n] == '\0')
        return false;
    memcpy(c->name, word, n);
    const char *p = word + n;
    if (*p == '%') {
        c->modulus = strtoll(p + 1, &end, 10);
        if (end == p + 1 || c->modulus < 1 || *end != '=')
            return false;
        p = end;
    }
    c->sign = *p++;
    c->equal = c->sign == '=' || *p == '=';
    p += c->sign != '=' && *p == '=';
    snprintf(c->value, sizeof c->value, "%s", p);
    return *p != '\0' && strlen(p) < sizeof c->value && strpbrk(p, "<>=%") == NULL;
}

bool certify_condition_read(const char **at, certify_condition *out, char *why, size_t capacity)
{
    char word[128];
    const char *p = *at;
    const size_t length = strcspn(p, " ");
    snprintf(why, capacity, "%.*s", (int)length, p);
    snprintf(word, sizeof word, "%.*s", (int)length, p);
    p += length;
    *at = p + strspn(p, " ");
    return length < sizeof word && parse(word, out);
}

static const char *first_of(const char *shapes)
{
    return shapes != NULL ? shapes + strspn(shapes, " ") : "";
}

const assay_op_attr *certify_condition_attr(const assay_op *op, const certify_condition *c)
{
    return op != NULL ? assay_op_attr_find(op, c->name) : NULL;
}

static int compared(const certify_condition *c, bool less, bool same)
{
    return c->sign == '=' ? same : c->sign == '<' ? less || (c->equal && same) : !less && (c->equal || !same);
}

static int holds_integer(const certify_condition *c, int64_t value)
{
    char *end;
    const int64_t limit = strtoll(c->value, &end, 10), v = c->modulus > 0 ? value % c->modulus : value;
    return *end != '\0' ? -1 : compared(c, v < limit, v == limit);
}

static int holds_number(const certify_condition *c, double value)
{
    char *end;
    const double limit = strtod(c->value, &end);
    return *end != '\0' || c->modulus > 0 ? -1 : compared(c, value < limit, value == limit);
}

/* "softmax" of "softmax|sigmoid" */
static bool is_listed(const char *words, const char *word)
{
    const size_t n = strlen(word);
    for (const char *p = words; p != NULL && *p != '\0'; p += strcspn(p, "|"), p += *p == '|')
        if (strcspn(p, "|") == n && strncmp(p, word, n) == 0)
            return true;
    return false;
}

/* Whether the condition can be read for such an attribute at all. */
static bool readable(const assay_op_attr *row, const certify_condition *c)
{
    const bool only_equal = c->sign == '=' && c->modulus == 0;
    assay_dtype dtype;
    bool known;
    switch (row->type) {
    case ASSAY_ATTR_INT:
        return holds_integer(c, 0) >= 0;
    case ASSAY_ATTR_DOUBLE:
        return holds_number(c, 0.0) >= 0;
    case ASSAY_ATTR_BOOL:
        return only_equal && is_listed("true|false", c->value);
    case ASSAY_ATTR_WORD:
        return only_equal && is_listed(row->words, c->value);
    case ASSAY_ATTR_DTYPE:
        known = assay_dtype_from_name(c->value, &dtype) == ASSAY_OK;
        assay_error_clear();
        return only_equal && known;
    default:
        return false;
    }
}

/* The attribute's value in the call; attrs NULL: any. */
static int holds_attr(const assay_op *op, const assay_op_attr *row, const certify_condition *c,
                      const json_t *attrs)
{
    int64_t integer = 0;
    double number = 0.0;
    bool flag = false;
    const char *word = json_string_value(json_object_get(attrs, row->name));
    if (!readable(row, c))
        return -1;
    if (attrs == NULL)
        return 1;
    assay_status st = ASSAY_OK;
    if (row->type == ASSAY_ATTR_INT)
        st = assay_op_attr_int(op, attrs, row->name, &integer);
    else if (row->type == ASSAY_ATTR_DOUBLE)
        st = assay_op_attr_double(op, attrs, row->name, &number);
    else if (row->type == ASSAY_ATTR_BOOL)
        st = assay_op_attr_bool(op, attrs, row->name, &flag);
    if (st != ASSAY_OK) {
        assay_error_clear();
        return -1;
    }
    if (row->type == ASSAY_ATTR_INT)
        return holds_integer(c, integer);
    if (row->type == ASSAY_ATTR_DOUBLE)
        return holds_number(c, number);
    if (row->type == ASSAY_ATTR_BOOL)
        return flag == (strcmp(c->value, "true") == 0);
    word = word != NULL ? word : row->otherwise;
    return word != NULL && strcmp(word, c->value) == 0;
}

/* --- all of them --------------------------------------------------------------------------------------------- */
int certify_shapes_take(const char *shapes, const assay_op *op, const assay_op_binding *binding,
                        const json_t *attrs, char *why, size_t capacity)
{
    certify_condition c;
    for (const char *p = first_of(shapes); *p != '\0';) {
        int64_t value;
        if (!certify_condition_read(&p, &c, why, capacity))
            return -1;
        const assay_op_attr *row = certify_condition_attr(op, &c);
        const int one = row != NULL                                ? holds_attr(op, row, &c, attrs)
                        : assay_op_symbol(binding, c.name, &value) ? holds_integer(&c, value)
                                                                   : -1;
        if (one != 1)
            return one;
    }
    return 1;
}

bool certify_shapes_narrow(const char *shapes, const assay_op *op)
{
    certify_condition c;
    char why[96];
    for (const char *p = first_of(shapes); *p != '\0';) {
        if (!certify_condition_read(&p, &c, why, sizeof why) || certify_condition_attr(op, &c) != NULL)
            return true;
        const bool not_empty = c.sign == '>' && c.modulus == 0 &&
                               (strcmp(c.value, "0") == 0 || (c.equal && strcmp(c.value, "1") == 0));
        if (!not_empty)
            return true;
    }
    return false;
}

/* Every symbol of the row with the value 1, and "T, H" of them. */
static void symbols_of(const assay_op *op, assay_op_binding *all, char *names, size_t capacity)
{
    size_t n = 0;
    *all = (assay_op_binding){.n = 0};
    for (int i = 0; i < assay_op_n_slots(op); i++)
        for (const char *p = op->slots[i].shape; *p != '\0';) {
            char symbol[8] = "";
            const size_t k = strspn(p, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz");
            if (k > 0 && k < sizeof symbol) {
                memcpy(symbol, p, k);
                (void)assay_op_bind(all, symbol, 1);
            }
            p += k > 0 ? k : 1;
        }
    for (int i = 0; i < assay_op_n_attrs(op); i++)
        if (op->attrs[i].symbol != NULL)
            (void)assay_op_bind(all, op->attrs[i].symbol, 1);
    for (int i = 0; i < all->n && n < capacity; i++)
        n += (size_t)snprintf(names + n, capacity - n, "%s%s", i > 0 ? ", " : "", all->symbols[i].name);
}

assay_status certify_shapes_check(const char *shapes, const assay_op *op, const char *who)
{
    assay_op_binding all;
    char symbols[160] = "none", attributes[512] = "none", why[96];
    size_t n = 0;
    symbols_of(op, &all, symbols, sizeof symbols);
    for (int i = 0; i < assay_op_n_attrs(op) && n < sizeof attributes; i++)
        if (op->attrs[i].type != ASSAY_ATTR_INTS)
            n += (size_t)snprintf(attributes + n, sizeof attributes - n, "%s%s%s%s", n > 0 ? ", " : "",
                                  op->attrs[i].name, op->attrs[i].words != NULL ? "=" : "",
                                  op->attrs[i].words != NULL ? op->attrs[i].words : "");
    for (const char *p = first_of(shapes); *p != '\0'; p += strcspn(p, " "), p += strspn(p, " ")) {
        char one[256];
        snprintf(one, sizeof one, "%.*s", (int)strcspn(p, " "), p);
        ASSAY_CHECK(certify_shapes_take(one, op, &all, NULL, why, sizeof why) >= 0, ASSAY_INVALID_ARGUMENT,
                    "%s: expected conditions such as H>=1 H<=4096 H%%8=0 dropout_p=0; symbols of %s: %s; "
                    "attributes: %s; found %s",
                    who, op->name, symbols, attributes, why);
    }
    return ASSAY_OK;
}

void certify_shapes_split(const char *shapes, const assay_op *op, char *symbols, char *attributes,
                          size_t capacity)
{
    certify_condition c;
    char why[160];
    symbols[0] = attributes[0] = '\0';
    for (const char *p = first_of(shapes); *p != '\0';) {
        const bool read = certify_condition_read(&p, &c, why, sizeof why);
        char *into = read && certify_condition_attr(op, &c) != NULL ? attributes : symbols;
        const size_t n = strlen(into);
        snprintf(into + n, capacity - n, "%s%s", n > 0 ? " " : "", why);
    }
}

/* --- a call -------------------------------------------------------------------------------------------------- */

/* The value of an attribute as a condition would say it; "": what the row says of an absent one, or a list. */
static void attr_text(const assay_op_attr *row, const json_t *attrs, char *out, size_t capacity)
{
    const json_t *v = json_object_get(attrs, row->name);
    out[0] = '\0';
    if (json_is_string(v))
        snprintf(out, capacity, "%s", json_string_value(v));
    else if (json_is_boolean(v))
        snprintf(out, capacity, "%s", json_is_true(v) ? "true" : "false");
    else if (json_is_integer(v))
        snprintf(out, capacity, "%lld", (long long)json_integer_value(v));
    else if (json_is_real(v))
        snprintf(out, capacity, "%.9g", json_real_value(v));
    if (row->otherwise != NULL && strcmp(out, row->otherwise) == 0)
        out[0] = '\0';
}

void certify_call_text(const assay_op *op, const assay_op_binding *binding, const json_t *attrs, char *out,
                       size_t capacity)
{
    char value[64];
    size_t n = 0;
    out[0] = '\0';
    for (int i = 0; binding != NULL && i < binding->n && n + 32 < capacity; i++)
        n += (size_t)snprintf(out + n, capacity - n, "%s%s=%lld", n > 0 ? " " : "", binding->symbols[i].name,
                              (long long)binding->symbols[i].value);
    for (int i = 0; i < assay_op_n_attrs(op); i++) {
        attr_text(&op->attrs[i], attrs, value, sizeof value);
        if (value[0] != '\0' && op->attrs[i].symbol == NULL &&
            n + strlen(value) + strlen(op->attrs[i].name) + 3 < capacity)
            n += (size_t)snprintf(out + n, capacity - n, "%s%s=%s", n > 0 ? " " : "", op->attrs[i].name,
                                  value);
    }
}
