/* Dry run: the table and the JSON. */
#include "parity/dry/dry.h"

#include <string.h>
#include <sys/resource.h>

static const char *const what[] = {"every rank is in exactly one group of each kind",
                                   "every parameter, gradient and state has the owners it should",
                                   "every token is read once", "every call is met by all its members"};
static const char *const kinds[] = {"groups", "owners", "data", "calls"};
static const char *const recomputes[] = {"none", "selective", "full"};
static const double gib = 1024.0 * 1024.0 * 1024.0;

static int64_t failures(const dry *d, const char *check)
{
    int64_t n = 0;
    for (int i = 0; i < d->n_findings; i++)
        n += strcmp(d->findings[i].check, check) == 0;
    return n;
}

static void print_claims(const dry *d, FILE *out)
{
    for (int k = 0; k < 4; k++) {
        const int64_t failed = failures(d, kinds[k]);
        fprintf(out, "%s %-7s %9lld  %s\n", failed ? "FAIL" : "pass", kinds[k], (long long)d->n_claims[k],
                what[k]);
    }
    if (d->exact)
        fprintf(out, "     calls of every rank, each with its own groups\n");
    else
        fprintf(out, "     calls of %lld ranks, one of every class, on %d stages\n", (long long)d->n_asked,
                d->stages);
    for (int i = 0; i < d->n_findings; i++)
        fprintf(out, "FAIL %s: %s\n", d->findings[i].check, d->findings[i].text);
}

static void print_memory_row(const dry *d, FILE *out, const char *name, const dry_memory *m)
{
    fprintf(out, "%-9s %6d %10.3f %9.3f %8.3f %8.3f", name, m->rank, m->parameters / gib, m->gradients / gib,
            m->masters / gib, m->moments / gib);
    for (int k = 0; k < DRY_RECOMPUTES; k++)
        fprintf(out, " %9.3f", m->activations[k] / gib);
    fprintf(out, " %10.3f\n", dry_memory_total(m, 0) / gib);
    (void)d;
}

static const dry_memory *largest(const dry *d)
{
    const dry_memory *most = &d->memory[0];
    for (int s = 1; s < d->stages; s++)
        if (dry_memory_total(&d->memory[s], 0) > dry_memory_total(most, 0))
            most = &d->memory[s];
    return most;
}

static void print_memory(const dry *d, FILE *out)
{
    char name[24];
    fputs("\nmemory, GiB; activations kept without recomputation, with selective, with full\n", out);
    fprintf(out, "%-9s %6s %10s %9s %8s %8s %9s %9s %9s %10s\n", "", "rank", "parameters", "gradients",
            "masters", "moments", recomputes[0], recomputes[1], recomputes[2], "total");
    for (int s = 0; s < d->stages; s++) {
        snprintf(name, sizeof name, "stage %d", s);
        print_memory_row(d, out, name, &d->memory[s]);
    }
    print_memory_row(d, out, "largest", largest(d));
    print_memory_row(d, out, "smallest", &d->least);
}

static bool used(const dry *d, int kind)
{
    for (int s = 0; s < d->stages; s++)
        if (d->wire[s].bytes[kind] > 0.0)
            return true;
    return false;
}

static void print_wire(const dry *d, FILE *out)
{
    fputs("\nsent by a rank in a step, GiB (calls), by kind of group\n", out);
    fprintf(out, "%-9s %6s", "", "rank");
    for (int k = 0; k < ASSAY_GROUP_COUNT; k++)
        if (used(d, k))
            fprintf(out, " %19s", assay_group_name((assay_group)k));
    fprintf(out, " %11s\n", "total");
    for (int s = 0; s < d->stages; s++) {
        const dry_wire *w = &d->wire[s];
        char name[24];
        snprintf(name, sizeof name, "stage %d", s);
        fprintf(out, "%-9s %6d", name, w->rank);
        for (int k = 0; k < ASSAY_GROUP_COUNT; k++)
            if (used(d, k))
                fprintf(out, " %11.4f (%5lld)", w->bytes[k] / gib, (long long)w->calls[k]);
        fprintf(out, " %11.4f\n", w->total / gib);
    }
}

void dry_print(const dry *d, FILE *out)
{
    const int64_t sequences = d->o.num_microbatches * d->grid.size[ASSAY_AXIS_DP] * d->o.micro_batch_size;
    fprintf(out, "dry run of %s, layout %s: %d rank%s, %s\n", d->o.model, d->canonical, d->grid.world,
            d->grid.world == 1 ? "" : "s", assay_precision_name(d->o.precision));
    fprintf(
        out,
        "%.3f billion parameters; a step is %lld sequences of %lld tokens: %lld microbatch%s of %lld on each "
        "data-parallel rank\n\n",
        (double)d->n_parameters / 1e9, (long long)sequences, (long long)d->o.seq_length,
        (long long)d->o.num_microbatches, d->o.num_microbatches == 1 ? "" : "es",
        (long long)d->o.micro_batch_size);
    print_claims(d, out);
    print_memory(d, out);
    print_wire(d, out);
}

/* --- JSON --------------------------------------------------------------------------------------------------- */

static json_t *memory_json(const dry_memory *m)
{
    json_t *kept = json_object();
    for (int k = 0; k < DRY_RECOMPUTES; k++)
        json_object_set_new(kept, recomputes[k], json_real(m->activations[k]));
    return json_pack("{s:i, s:f, s:f, s:f, s:f, s:o}", "rank", m->rank, "parameters", m->parameters,
                     "gradients", m->gradients, "masters", m->masters, "moments", m->moments, "activations",
                     kept);
}

static json_t *wire_json(const dry_wire *w)
{
    json_t *groups = json_object();
    for (int k = 0; k < ASSAY_GROUP_COUNT; k++)
        if (w->calls[k] > 0)
            json_object_set_new(
                groups, assay_group_name((assay_group)k),
                json_pack("{s:I, s:f}", "calls", (json_int_t)w->calls[k], "bytes", w->bytes[k]));
    return json_pack("{s:i, s:f, s:o}", "rank", w->rank, "bytes", w->total, "groups", groups);
}

assay_status dry_save(const dry *d, double seconds)
{
    struct rusage usage;
    json_t *claims = json_object(), *findings = json_array(), *memory = json_array(), *wire = json_array();
    for (int k = 0; k < 4; k++)
        json_object_set_new(claims, kinds[k], json_integer(d->n_claims[k]));
    for (int i = 0; i < d->n_findings; i++)
        json_array_append_new(
            findings, json_pack("{s:s, s:s}", "check", d->findings[i].check, "text", d->findings[i].text));
    for (int s = 0; s < d->stages; s++) {
        json_array_append_new(memory, memory_json(&d->memory[s]));
        json_array_append_new(wire, wire_json(&d->wire[s]));
    }
    (void)getrusage(RUSAGE_SELF, &usage);
    json_t *root = json_pack(
        "{s:s, s:s, s:i, s:s, s:I, s:I, s:I, s:I, s:o, s:I, s:o, s:b, s:I, s:o, s:o, s:o, s:o, s:f, s:I}",
        "model", d->o.model, "layout", d->canonical, "world", d->grid.world, "precision",
        assay_precision_name(d->o.precision), "parameters", (json_int_t)d->n_parameters, "micro_batch_size",
        (json_int_t)d->o.micro_batch_size, "num_microbatches", (json_int_t)d->o.num_microbatches,
        "seq_length", (json_int_t)d->o.seq_length, "claims", claims, "failed", (json_int_t)d->n_failed,
        "findings", findings, "every_rank_asked_for_its_calls", (int)d->exact, "ranks_asked",
        (json_int_t)d->n_asked, "memory_of_stages", memory, "smallest_rank", memory_json(&d->least),
        "largest_rank", memory_json(largest(d)), "sent_in_a_step", wire, "seconds", seconds, "peak_kib",
        (json_int_t)usage.ru_maxrss);
    ASSAY_CHECK(root != NULL, ASSAY_OUT_OF_MEMORY, "%s", d->o.out);
    const assay_status st = assay_json_save(root, d->o.out);
    json_decref(root);
    return st;
}
