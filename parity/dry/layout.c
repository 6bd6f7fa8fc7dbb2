/* `assay layout`: what a layout puts where, or (with --layout) a dry run of a plan of any size. */
#include "parity/dry/dry_svg.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct layout_options {
    dry_options dry;
    char explain[ASSAY_LAYOUT_TEXT]; /* the argument */
    const char *last;                /* option of a dry run that was given, for messages */
} layout_options;

/* --- explaining --------------------------------------------------------------------------------------------- */

static void print_group(const assay_grid *g, assay_group kind, int *ranks)
{
    printf("  %-10s", assay_group_name(kind));
    for (int r = 0; r < g->world; r++) {
        int index = -1;
        const int n = assay_grid_group(g, kind, r, ranks, &index);
        if (index != 0)
            continue;
        for (int i = 0; i < n; i++)
            printf("%s%d", i == 0 ? " {" : ",", ranks[i]);
        putchar('}');
    }
    putchar('\n');
}

static assay_status explain_model(assay_grid *g, const char *dir)
{
    assay_model_spec *spec = NULL;
    assay_status st = ASSAY_OK;
    assay_model_config *c = malloc(sizeof *c);
    ASSAY_CHECK(c != NULL, ASSAY_OUT_OF_MEMORY, "model configuration");
    ASSAY_TRY_GOTO(assay_config_load(dir, c), st, done);
    ASSAY_TRY_GOTO(assay_grid_check_model(g, c), st, done);
    ASSAY_TRY_GOTO(assay_spec_build(c, &spec), st, done);
    for (int r = 0; r < g->world; r++) {
        int64_t total = 0;
        printf("\nrank %d holds\n", r);
        for (int64_t i = 0; i < spec->n_params; i++) {
            const assay_param_spec *p = &spec->params[i];
            assay_shard s;
            if (!assay_param_on_rank(p, g, c, r))
                continue;
            ASSAY_TRY_GOTO(assay_param_shard(p, g, r, &s), st, done);
            printf("  %-58s", p->name);
            for (int d = 0; d < s.ndim; d++) {
                printf(d == 0 ? " [" : ", ");
                for (int k = 0; k < s.n_segments[d]; k++)
                    printf("%s%lld:%lld", k > 0 ? "+" : "", (long long)s.segments[d][k].start,
                           (long long)(s.segments[d][k].start + s.segments[d][k].length));
                if (d == s.ndim - 1)
                    putchar(']');
            }
            putchar('\n');
            total += assay_shard_count(&s);
        }
        printf("  %lld elements\n", (long long)total);
    }
done:
    assay_spec_destroy(spec);
    free(c);
    return st;
}

static assay_status explain_layout(const char *text, const char *model, const char *svg)
{
    assay_parallel_config p;
    assay_grid g;
    char canonical[ASSAY_LAYOUT_TEXT];
    ASSAY_TRY(assay_layout_parse(text, &p));
    ASSAY_TRY(assay_layout_check_supported(&p));
    ASSAY_TRY(assay_grid_make(&p, &g));
    assay_layout_format(&p, canonical);
    if (svg[0] != '\0') {
        ASSAY_CHECK(
            model[0] == '\0', ASSAY_INVALID_ARGUMENT,
            "--svg of a model: expected --layout %s in place of the argument: bytes are those of a dry run",
            text);
        ASSAY_TRY(dry_grid_svg(&g, canonical, svg));
    }
    if (strcmp(svg, "-") == 0)
        return ASSAY_OK;
    int *ranks = calloc((size_t)g.world, sizeof *ranks);
    ASSAY_CHECK(ranks != NULL, ASSAY_OUT_OF_MEMORY, "groups");
    printf("layout %s: %d rank%s, data parallel %d, expert data parallel %d\n", canonical, g.world,
           g.world == 1 ? "" : "s", p.data_parallel_size, g.edp);
    printf("%6s %4s %4s %4s %4s | %4s %4s %4s\n", "rank", "tp", "cp", "dp", "pp", "etp", "ep", "edp");
    for (int r = 0; r < g.world; r++) {
        assay_coords c;
        assay_grid_coords(&g, r, &c);
        printf("%6d %4d %4d %4d %4d | %4d %4d %4d\n", r, c.tp, c.cp, c.dp, c.pp, c.etp, c.ep, c.edp);
    }
    puts("groups");
    for (int k = 0; k < ASSAY_GROUP_COUNT; k++)
        print_group(&g, (assay_group)k, ranks);
    free(ranks);
    return model[0] != 0 ? explain_model(&g, model) : ASSAY_OK;
}

/* --- options ------------------------------------------------------------------------------------------------ */

static assay_status number(const char *name, const char *text, int64_t max, int64_t *out)
{
    char *end = NULL;
    const long long value = strtoll(text, &end, 10);
    ASSAY_CHECK(end != text && *end == '\0' && value >= 1 && value <= max, ASSAY_INVALID_ARGUMENT,
                "--%s: expected an integer from 1 to %lld, found %s", name, (long long)max, text);
    *out = value;
    return ASSAY_OK;
}

static assay_status word(const char *name, const char *text, char *out, size_t capacity)
{
    ASSAY_CHECK(strlen(text) < capacity, ASSAY_LIMIT, "--%s: at most %zu characters", name, capacity - 1);
    snprintf(out, capacity, "%s", text);
    return ASSAY_OK;
}

static assay_status precision(const char *text, assay_precision *out)
{
    for (int i = 0; i < ASSAY_PRECISION_COUNT; i++)
        if (strcmp(text, assay_precision_name((assay_precision)i)) == 0) {
            *out = (assay_precision)i;
            return ASSAY_OK;
        }
    ASSAY_FAIL(ASSAY_INVALID_ARGUMENT, "--precision: expected fp64, fp32 or bf16, found %s", text);
}

static assay_status coefficient(const char *text, double *out)
{
    char *end = NULL;
    *out = strtod(text, &end);
    ASSAY_CHECK(end != text && *end == '\0' && *out >= 0.0 && *out <= 1e6, ASSAY_INVALID_ARGUMENT,
                "--moe-aux-loss-coeff: expected a number from 0 to 1e6, found %s", text);
    return ASSAY_OK;
}

static assay_status on_layout_option(void *user, const char *name, const char *text)
{
    layout_options *l = user;
    dry_options *o = &l->dry;
    const int64_t most = (int64_t)1 << 30;
    if (name == NULL) {
        ASSAY_CHECK(l->explain[0] == '\0', ASSAY_INVALID_ARGUMENT, "expected one layout, found %s and %s",
                    l->explain, text);
        return word("layout", text, l->explain, sizeof l->explain);
    }
    if (strcmp(name, "model") == 0)
        return word(name, text, o->model, sizeof o->model);
    if (strcmp(name, "svg") == 0)
        return word(name, text, o->svg, sizeof o->svg);
    l->last = name;
    if (strcmp(name, "layout") == 0)
        return word(name, text, o->layout, sizeof o->layout);
    if (strcmp(name, "out") == 0)
        return word(name, text, o->out, sizeof o->out);
    if (strcmp(name, "fault") == 0)
        return word(name, text, o->fault, sizeof o->fault);
    if (strcmp(name, "precision") == 0)
        return precision(text, &o->precision);
    if (strcmp(name, "world") == 0)
        return number(name, text, ASSAY_MAX_WORLD, &o->world);
    if (strcmp(name, "micro_batch_size") == 0)
        return number("micro-batch-size", text, 1 << 16, &o->micro_batch_size);
    if (strcmp(name, "num_microbatches") == 0)
        return number("num-microbatches", text, 1 << 16, &o->num_microbatches);
    if (strcmp(name, "seq_length") == 0)
        return number("seq-length", text, most, &o->seq_length);
    if (strcmp(name, "moe_aux_loss_coeff") == 0)
        return coefficient(text, &o->moe_aux_loss_coeff);
    o->numeric = true;
    return ASSAY_OK;
}

/* --- the verb ----------------------------------------------------------------------------------------------- */

static int fail(void)
{
    assay_error_print(stderr, "assay layout", 0);
    return 2;
}

static int dry_run(const dry_options *o)
{
    struct timespec begin, end;
    dry *d = malloc(sizeof *d);
    if (d == NULL) {
        fputs("assay layout: out of memory\n", stderr);
        return 2;
    }
    (void)clock_gettime(CLOCK_MONOTONIC, &begin);
    assay_status st = dry_make(d, o);
    (void)clock_gettime(CLOCK_MONOTONIC, &end);
    const double seconds = (double)(end.tv_sec - begin.tv_sec) + 1e-9 * (double)(end.tv_nsec - begin.tv_nsec);
    const bool alone = strcmp(o->svg, "-") == 0;
    int code = 2;
    if (st == ASSAY_OK && o->out[0] != '\0')
        st = dry_save(d, seconds);
    if (st == ASSAY_OK && o->svg[0] != '\0')
        st = dry_svg(d, o->svg);
    if (st == ASSAY_OK) {
        int64_t claims = 0;
        if (!alone)
            dry_print(d, stdout);
        for (int k = 0; k < 4; k++)
            claims += d->n_claims[k];
        code = d->n_failed > 0 ? 1 : 0;
        fprintf(alone ? stderr : stdout, "\n%.1f s\n%lld passed, %lld failed, 0 skipped\n", seconds,
                (long long)(claims - d->n_failed), (long long)d->n_failed);
        fflush(stdout);
        if (o->numeric && code == 0)
            code = dry_numeric(d, alone ? stderr : stdout);
    } else {
        (void)fail();
    }
    dry_free(d);
    free(d);
    return code;
}

int parity_main_layout(int argc, char **argv)
{
    static const assay_extra_option extra[] = {
        {"model", "DIR|NAME", "a model folder (or, in a dry run, the name of a public configuration)"},
        {"layout", "LAYOUT", "check this plan without running it"},
        {"world", "N", "ranks; dp is what the layout leaves of them"},
        {"precision", "P", "fp64, fp32 or bf16 (default bf16)"},
        {"micro_batch_size", "B", "sequences of a microbatch (default 1)"},
        {"num_microbatches", "M", "microbatches of a data-parallel rank in a step (default 2 pp)"},
        {"seq_length", "S", "tokens of a sequence (default 8192)"},
        {"moe_aux_loss_coeff", "X", "auxiliary loss of a mixture of experts (default 0.001)"},
        {"numeric", NULL, "then shrink model and layout and run both engines under the judge"},
        {"out", "FILE", "the same as JSON"},
        {"svg", "FILE|-",
         "draw it: ranks, what stages hold, with --model bytes of each rank; -: alone, to standard output"},
        {"fault", "TEXT", "plant owner:PARAMETER, group:KIND, swap:RANK or lost:RANK"},
        {NULL, NULL, NULL}};
    char names[256], doc[1600];
    layout_options o = {.dry = {.precision = ASSAY_PRECISION_BF16,
                                .micro_batch_size = 1,
                                .seq_length = 8192,
                                .moe_aux_loss_coeff = 0.001}};
    dry_model_names(names, sizeof names);
    snprintf(doc, sizeof doc,
             "Explains a layout: rank grid, groups, and the pieces of a model on each rank.  With --layout: "
             "a dry run, "
             "which checks a plan of up to %d ranks without running it: groups, owners of every element, the "
             "order of "
             "all calls between ranks, memory and bytes sent.\vExamples:\n"
             "  assay layout tp2,sp,ep2,dp2 --model DIR\n"
             "  assay layout --world 16384 --model llama-3.1-405b --layout tp8,sp,pp2,zero1\n"
             "  assay layout --model DIR --layout tp2,pp2,dp2 --numeric --out plan.json\n"
             "  assay layout --model DIR --layout tp2,pp2,dp2 --svg layout.svg\n\n"
             "Public configurations: %s.\n",
             ASSAY_MAX_WORLD, names);
    if (assay_options_parse(argc, argv, doc, "[LAYOUT]", NULL, 0, extra, on_layout_option, &o) != ASSAY_OK)
        return fail();
    if (o.dry.layout[0] != '\0') {
        if (o.explain[0] == '\0' && o.dry.model[0] != '\0')
            return dry_run(&o.dry);
        fprintf(stderr, "assay layout: --layout: expected %s\n",
                o.explain[0] ? "no other layout beside it" : "--model, a folder or a name");
        return 2;
    }
    if (o.explain[0] == '\0' || o.last != NULL) {
        if (o.last != NULL)
            fprintf(stderr, "assay layout: --%s belongs to a dry run: expected --layout\n", o.last);
        else
            fputs("assay layout: expected one layout, like tp2,sp,ep2,dp2\n", stderr);
        return 2;
    }
    return explain_layout(o.explain, o.dry.model, o.dry.svg) == ASSAY_OK ? 0 : fail();
}
