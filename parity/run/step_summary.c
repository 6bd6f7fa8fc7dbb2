/* What `assay step` says of the file it wrote: loss, gradient norm, names. */
#include "parity/run/step_summary.h"
#include "core/files/tensorfile.h"
#include "parity/judge/judge.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static assay_status read_numbers(const assay_tensorfile *f, const char *name, double **out, int64_t *n)
{
    const assay_tensor_info *t = assay_tensorfile_find(f, name);
    *out = NULL;
    *n = 0;
    if (t == NULL)
        return ASSAY_OK;
    ASSAY_TRY(parity_decode_all(t->data, t->count, t->dtype, out));
    *n = t->count;
    return ASSAY_OK;
}

/* sqrt of the sum of squares of every grad.* */
static assay_status norm_of_gradients(const assay_tensorfile *f, double *out, int64_t *n)
{
    double sum = 0.0;
    *n = 0;
    for (int64_t i = 0; i < assay_tensorfile_count(f); i++) {
        const assay_tensor_info *t = assay_tensorfile_at(f, i);
        if (strncmp(t->name, "grad.", 5) != 0)
            continue;
        double *g = NULL;
        ASSAY_TRY(parity_decode_all(t->data, t->count, t->dtype, &g));
        for (int64_t k = 0; k < t->count; k++)
            sum += g[k] * g[k];
        free(g);
        (*n)++;
    }
    *out = sqrt(sum);
    return ASSAY_OK;
}

static void print_step(FILE *out, int64_t step, int64_t steps, double loss, const double *norm,
                       const assay_tensor_info *zeros)
{
    if (steps > 1)
        fprintf(out, "step %lld: ", (long long)step);
    fprintf(out, "loss %.6f", loss);
    if (norm != NULL)
        fprintf(out, "  gradient norm %.6g", *norm);
    if (zeros != NULL && zeros->dtype == ASSAY_I64 && step < zeros->count)
        fprintf(out, "  zeros in gradients %lld",
                (long long)parity_decode_integer(zeros->data, step, ASSAY_I64));
    fputc('\n', out);
    if (!isfinite(loss) || (norm != NULL && !isfinite(*norm)))
        fprintf(stderr, "assay step: warning: step %lld: the %s is not a finite number\n", (long long)step,
                !isfinite(loss) ? "loss" : "gradient norm");
}

static assay_status print_numbers(const assay_tensorfile *f, FILE *out)
{
    double *loss = NULL, *norm = NULL, one = 0.0;
    int64_t steps, norms, gradients;
    assay_status st = ASSAY_OK;
    ASSAY_TRY_GOTO(read_numbers(f, "loss", &loss, &steps), st, done);
    ASSAY_TRY_GOTO(read_numbers(f, "grad_norm", &norm, &norms), st, done);
    ASSAY_TRY_GOTO(norm_of_gradients(f, &one, &gradients), st, done);
    for (int64_t i = 0; i < steps; i++)
        print_step(out, i, steps, loss[i],
                   i < norms       ? &norm[i]
                   : gradients > 0 ? &one
                                   : NULL,
                   assay_tensorfile_find(f, "num_zeros_in_grad"));
done:
    free(norm);
    free(loss);
    return st;
}

assay_status parity_step_summary(const assay_train_options *o, FILE *out)
{
    assay_tensorfile *f = NULL;
    ASSAY_TRY(assay_tensorfile_open(&f, o->out));
    const assay_status st = print_numbers(f, out);
    if (st == ASSAY_OK)
        fprintf(out, "wrote %s (%lld tensors)%s%s%s%s\n", o->out, (long long)assay_tensorfile_count(f),
                o->trace[0] != '\0' ? ", trace " : "", o->trace, o->save[0] != '\0' ? ", checkpoint " : "",
                o->save);
    assay_tensorfile_close(f);
    return st;
}
