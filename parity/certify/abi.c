/* The words of the interface: names of trials, dtypes, arithmetic, and the generated header of indices. */
#include "parity/certify/certify.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#define CERTIFY_NAME(name, text, claim) text,
#define CERTIFY_CLAIM(name, text, claim) claim,
static const char *const names[] = {CERTIFY_TRIAL_MAP(CERTIFY_NAME)};
static const char *const claims[] = {CERTIFY_TRIAL_MAP(CERTIFY_CLAIM)};

const char *certify_trial_name(certify_trial t)
{
    return names[t];
}

const char *certify_trial_claim(certify_trial t)
{
    return claims[t];
}

void certify_bad(certify_board *b, certify_trial t, const char *fmt, ...)
{
    certify_tally *tally = &b->trial[t];
    va_list args;
    if (tally->bad++ > 0)
        return;
    va_start(args, fmt);
    (void)vsnprintf(tally->first, sizeof tally->first, fmt, args);
    va_end(args);
}

int64_t certify_findings(const certify_board *b)
{
    int64_t n = 0;
    for (int t = 0; t < CERTIFY_TRIALS; t++)
        n += b->trial[t].bad;
    return n;
}

static const assay_dtype dtypes[] = {ASSAY_DTYPE_COUNT, ASSAY_F32, ASSAY_BF16, ASSAY_F64, ASSAY_I64};
enum { N_DTYPES = sizeof dtypes / sizeof *dtypes };

assay_dtype certify_dtype_of(int32_t abi_dtype)
{
    return abi_dtype > 0 && abi_dtype < N_DTYPES ? dtypes[abi_dtype] : ASSAY_DTYPE_COUNT;
}

int32_t certify_abi_dtype(assay_dtype dtype)
{
    for (int32_t i = 1; i < N_DTYPES; i++)
        if (dtypes[i] == dtype)
            return i;
    return 0;
}

/* Through JSON, whose reader holds every limit of a declaration. */
assay_status certify_arith_of(const assay_kernel_arith *a, const char *what, assay_arith *out)
{
    ASSAY_CHECK(
        a->accumulate == ASSAY_KERNEL_F32 || a->accumulate == ASSAY_KERNEL_F64, ASSAY_INVALID_ARGUMENT,
        "%s: accumulate: expected ASSAY_KERNEL_F32 or ASSAY_KERNEL_F64, found %d", what, a->accumulate);
    ASSAY_CHECK(a->order >= ASSAY_KERNEL_ORDER_NONE && a->order <= ASSAY_KERNEL_ORDER_UNKNOWN,
                ASSAY_INVALID_ARGUMENT, "%s: order: found %d", what, a->order);
    ASSAY_CHECK(a->rounding < 2u * ASSAY_KERNEL_ROUND_PROBS, ASSAY_INVALID_ARGUMENT,
                "%s: rounding: found 0x%x", what, (unsigned)a->rounding);
    const assay_arith made = {.accumulate = certify_dtype_of(a->accumulate),
                              .order = (assay_order)a->order,
                              .lanes = a->lanes != 0 ? a->lanes : 1,
                              .split = a->split != 0 ? a->split : 1,
                              .k_step = a->k_step,
                              .guard_bits = a->guard_bits,
                              .fma = a->fma != 0,
                              .atomics = a->atomics != 0,
                              .math_ulp = a->math_ulp,
                              .tile = a->tile,
                              .rounding = a->rounding};
    json_t *text = assay_arith_to_json(&made);
    ASSAY_CHECK(text != NULL, ASSAY_OUT_OF_MEMORY, "%s", what);
    const assay_status st = assay_arith_from_json(text, what, out);
    json_decref(text);
    return st;
}

assay_status certify_arith_adapted(const assay_arith *was, const assay_kernel_arith *a, const char *slot,
                                   assay_arith *out)
{
    char what[80];
    snprintf(what, sizeof what, "adapt: output %s", slot);
    ASSAY_TRY(certify_arith_of(a, what, out));
    const struct {
        const char *name;
        int was, now;
    } kept[] = {{"accumulate", certify_abi_dtype(was->accumulate), certify_abi_dtype(out->accumulate)},
                {"k_step", was->k_step, out->k_step},
                {"guard_bits", was->guard_bits, out->guard_bits},
                {"fma", was->fma, out->fma},
                {"atomics", was->atomics, out->atomics},
                {"math_ulp", was->math_ulp, out->math_ulp},
                {"rounding", (int)was->rounding, (int)out->rounding}};
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++)
        ASSAY_CHECK(kept[i].was == kept[i].now, ASSAY_INVALID_ARGUMENT,
                    "%s: %s: expected %d, as the description's outputs declare, found %d: adapt() changes "
                    "order, lanes, split and tile alone",
                    what, kept[i].name, kept[i].was, kept[i].now);
    return ASSAY_OK;
}

/* --- assay_kernel_ops.h ------------------------------------------------------------------------------------- */
static void upper(FILE *f, const char *text)
{
    for (; *text != '\0'; text++)
        fputc(toupper((unsigned char)*text), f);
}

static void write_index(FILE *f, const char *kind, const char *op, const char *name, int index)
{
    fprintf(f, "    ASSAY_KERNEL_%s_", kind);
    upper(f, op);
    fputc('_', f);
    upper(f, name);
    fprintf(f, " = %d,\n", index);
}

static void write_row(FILE *f, const assay_op *op)
{
    char line[4096];
    assay_op_describe(op, line, sizeof line);
    fprintf(f, "\n/* %s\n   sums: %s */\nenum {\n", line, op->sums[0] != '\0' ? op->sums : "none");
    for (int i = 0; i < assay_op_n_slots(op); i++)
        write_index(f, "SLOT", op->name, op->slots[i].name, i);
    for (int i = 0; i < assay_op_n_attrs(op); i++)
        write_index(f, "ATTR", op->name, op->attrs[i].name, i);
    fprintf(f, "};\n");
}

assay_status certify_abi_header(char **out)
{
    size_t bytes = 0;
    *out = NULL;
    FILE *f = open_memstream(out, &bytes);
    ASSAY_CHECK(f != NULL, ASSAY_OUT_OF_MEMORY, "assay_kernel_ops.h");
    fputs("/* Indices of slots and attributes of every operation: `assay certify --abi-header` writes this "
          "file from "
          "the table of operations\n"
          " * (core/model/ops.c), and a test holds the two equal.  A line: operation | inputs | updated | "
          "outputs | "
          "attributes; docs/OPS.md\n"
          " * says what each is. */\n"
          "#ifndef ASSAY_KERNEL_OPS_H\n#define ASSAY_KERNEL_OPS_H\n\n/* clang-format off */\n",
          f);
    for (int i = 0; assay_op_at(i) != NULL; i++)
        write_row(f, assay_op_at(i));
    fputs("\n/* clang-format on */\n\n#endif\n", f);
    ASSAY_CHECK(fclose(f) == 0 && *out != NULL, ASSAY_OUT_OF_MEMORY, "assay_kernel_ops.h");
    return ASSAY_OK;
}
