/* Slots, attributes and symbols of an operation as variables of the file that launch.c writes, and the checks of a call. */
#include "parity/certify/launch.h"

#include <ctype.h>
#include <string.h>

#define LETTERS "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"

/* --- names ---------------------------------------------------------------------------------------------------- */

void launch_variable(const char *name, char out[64])
{
    static const char *const words[] = {"do", "default", "int", "float", "double", "const", "act", "stream"};
    bool word = false;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        word = word || strcmp(name, words[i]) == 0;
    snprintf(out, 64, "%.60s%s", name, word ? "_" : "");
}

bool launch_has_word(const char *text, const char *word)
{
    const size_t n = strlen(word);
    for (const char *p = text; (p = strstr(p, word)) != NULL; p += n)
        if ((p == text || !(isalnum((unsigned char)p[-1]) || p[-1] == '_')) &&
            !(isalnum((unsigned char)p[n]) || p[n] == '_'))
            return true;
    return false;
}

static bool bound(const launch_file *s, const char *symbol)
{
    for (int i = 0; i < s->n_symbols; i++)
        if (strcmp(s->symbol[i], symbol) == 0)
            return true;
    return false;
}

static bool bind(launch_file *s, const char *symbol)
{
    if (bound(s, symbol) || s->n_symbols == LAUNCH_SYMBOLS)
        return false;
    snprintf(s->symbol[s->n_symbols++], LAUNCH_SYMBOL, "%.15s", symbol);
    return true;
}

/* Whether every symbol of an expression ("2*F") has its value. */
static bool computable(const launch_file *s, const char *expression)
{
    for (const char *p = expression; *p != '\0';) {
        char symbol[LAUNCH_SYMBOL] = "";
        const size_t n = strspn(p, LETTERS);
        snprintf(symbol, sizeof symbol, "%.*s", (int)n, p);
        if (n > 0 && !bound(s, symbol))
            return false;
        p += n > 0 ? n : 1;
    }
    return true;
}

static bool is_symbol(const char *expression)
{
    return strspn(expression, LETTERS) == strlen(expression);
}

/* --- a slot --------------------------------------------------------------------------------------------------- */
static const char *type_of(const assay_op_slot *slot, const char **dtype)
{
    switch (slot->dtype) {
    case ASSAY_CLASS_ACT:
    case ASSAY_CLASS_PAR:
        *dtype = "c->act";
        return "act";
    case ASSAY_CLASS_F32:
        *dtype = "ASSAY_KERNEL_F32";
        return "float";
    case ASSAY_CLASS_F64:
        *dtype = "ASSAY_KERNEL_F64";
        return "double";
    case ASSAY_CLASS_I64:
        *dtype = "ASSAY_KERNEL_I64";
        return "int64_t";
    default:
        return NULL;
    }
}

/* Extents by dimension, in the row's words; how many, -1: a form that is not known here. */
static int split_shape(const char *shape, char out[ASSAY_OP_DIMS][32])
{
    int n = 0;
    for (const char *p = shape; *p != '\0' || n == 0;) {
        const size_t length = strcspn(p, ",");
        if (n == ASSAY_OP_DIMS || length == 0 || length >= 32 ||
            strspn(p, LETTERS "0123456789*/+()") < length)
            return -1;
        memcpy(out[n], p, length);
        out[n++][length] = '\0';
        p += length;
        p += *p == ',';
    }
    return n;
}

static assay_status write_slot(launch_file *s, int index)
{
    const assay_op_slot *slot = &s->op->slots[index];
    char name[64], dims[ASSAY_OP_DIMS][32];
    const char *dtype = "", *type = type_of(slot, &dtype);
    const int n = split_shape(slot->shape, dims);
    ASSAY_CHECK(type != NULL && n >= 0 && !slot->optional && !slot->numbered, ASSAY_UNSUPPORTED,
                "--cu: slot %s of %s (optional, of several pieces, or of a dtype or shape that follows from "
                "others) is not written for a launch: write the C interface (parity/assay_kernel.h)",
                slot->name, s->op->name);
    fprintf(s->out, "    ASSAY_TRY_CODE(check(c->slot[%d], %s, %d));\n", index, dtype, n);
    for (int d = 0; d < n; d++)
        if (is_symbol(dims[d]) && bind(s, dims[d]))
            fprintf(s->out, "    const int64_t %s = c->slot[%d]->shape[%d];\n    (void)%s;\n", dims[d], index,
                    d, dims[d]);
    launch_variable(slot->name, name);
    fprintf(s->out, "    %s *%s = (%s *)c->slot[%d]->data;\n    (void)%s;\n", type, name, type, index, name);
    return ASSAY_OK;
}

/* An attribute, and the symbol that it defines where no slot did. */
static void write_attr(launch_file *s, int index)
{
    const assay_op_attr *attr = &s->op->attrs[index];
    char name[64];
    launch_variable(attr->name, name);
    if (bound(s, attr->name))
        return;
    if (attr->type == ASSAY_ATTR_DOUBLE)
        fprintf(s->out, "    const double %s = c->attr[%d]->number;\n    (void)%s;\n", name, index, name);
    else if (attr->type == ASSAY_ATTR_INT || attr->type == ASSAY_ATTR_BOOL)
        fprintf(s->out, "    const int64_t %s = c->attr[%d]->integer;\n    (void)%s;\n", name, index, name);
    else if (attr->type == ASSAY_ATTR_WORD)
        fprintf(s->out, "    const char *%s = c->attr[%d]->word;\n    (void)%s;\n", name, index, name);
    if (attr->symbol != NULL && bind(s, attr->symbol))
        fprintf(s->out, "    const int64_t %s = c->attr[%d]->integer;\n    (void)%s;\n", attr->symbol, index,
                attr->symbol);
}

/* --- a call --------------------------------------------------------------------------------------------------- */
static void refuse_unless(const launch_file *s, const char *left, const char *right)
{
    fprintf(s->out, "    if (%s != (int64_t)(%s))\n        return ASSAY_KERNEL_INVALID;\n", left, right);
}

/* What an extent is divided by ("A/P"), which has to divide. */
static void hold_divisor(const launch_file *s, const char *expression)
{
    const char *slash = strchr(expression, '/');
    const size_t n = slash != NULL ? strspn(slash + 1, LETTERS) : 0;
    if (n > 0 && strspn(expression, LETTERS) == (size_t)(slash - expression))
        fprintf(s->out, "    if (%.*s == 0 || %.*s %% %.*s != 0)\n        return ASSAY_KERNEL_INVALID;\n",
                (int)n, slash + 1, (int)(slash - expression), expression, (int)n, slash + 1);
}

static assay_status hold_slot(const launch_file *s, int index)
{
    const assay_op_slot *slot = &s->op->slots[index];
    char dims[ASSAY_OP_DIMS][32], extent[64];
    const int n = split_shape(slot->shape, dims);
    for (int d = 0; d < n; d++) {
        ASSAY_CHECK(computable(s, dims[d]), ASSAY_UNSUPPORTED,
                    "--cu: nothing says the extent %s of slot %s of %s: write the C interface "
                    "(parity/assay_kernel.h)",
                    dims[d], slot->name, s->op->name);
        snprintf(extent, sizeof extent, "c->slot[%d]->shape[%d]", index, d);
        hold_divisor(s, dims[d]);
        refuse_unless(s, extent, dims[d]);
    }
    return ASSAY_OK;
}

/* "Tq=B*Sq;Tk=B*Sk" */
static void hold_where(const launch_file *s)
{
    for (const char *p = s->op->where; p != NULL && *p != '\0'; p += strcspn(p, ";"), p += *p == ';') {
        char left[LAUNCH_SYMBOL], right[64];
        const size_t n = strcspn(p, "="), m = strcspn(p, ";");
        snprintf(left, sizeof left, "%.*s", (int)n, p);
        snprintf(right, sizeof right, "%.*s", (int)(m - n - 1), p + n + 1);
        if (computable(s, left) && computable(s, right))
            refuse_unless(s, left, right);
    }
}

assay_status launch_write_variables(launch_file *s)
{
    char value[64];
    s->n_symbols = 0;
    for (int i = 0; i < assay_op_n_slots(s->op); i++)
        ASSAY_TRY(write_slot(s, i));
    for (int i = 0; i < assay_op_n_attrs(s->op); i++)
        write_attr(s, i);
    for (int i = 0; i < assay_op_n_slots(s->op); i++)
        ASSAY_TRY(hold_slot(s, i));
    for (int i = 0; i < assay_op_n_attrs(s->op); i++) {
        snprintf(value, sizeof value, "c->attr[%d]->integer", i);
        if (s->op->attrs[i].symbol != NULL)
            refuse_unless(s, value, s->op->attrs[i].symbol);
    }
    hold_where(s);
    return ASSAY_OK;
}
