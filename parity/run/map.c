/* `assay map`: what another framework's tensors are called here, and in which order of axes. */
#include "core/model/names.h"
#include "core/run/options.h"
#include "parity/parity.h"

#include <stdlib.h>
#include <string.h>

typedef struct map_options {
    char model[ASSAY_PATH], map[ASSAY_PATH];
    bool json;
} map_options;

static assay_status on_option(void *user, const char *name, const char *text)
{
    map_options *o = user;
    ASSAY_CHECK(name != NULL, ASSAY_INVALID_ARGUMENT, "unexpected argument \"%s\"", text);
    if (strcmp(name, "json") == 0) {
        o->json = true;
        return ASSAY_OK;
    }
    char *out = strcmp(name, "model") == 0 ? o->model : o->map;
    ASSAY_CHECK(strlen(text) < ASSAY_PATH, ASSAY_LIMIT, "--%s: too long", name);
    snprintf(out, ASSAY_PATH, "%s", text);
    return ASSAY_OK;
}

static void print_row(const assay_name_row *r, FILE *out)
{
    char how[160] = "";
    size_t used = 0;
    if (r->axes != ASSAY_AXES_SAME)
        used += (size_t)snprintf(how + used, sizeof how - used, "  %s", assay_name_axes_word(r->axes));
    if (r->relation != ASSAY_RELATION_EQUAL)
        used +=
            (size_t)snprintf(how + used, sizeof how - used, "  %s", assay_name_relation_word(r->relation));
    if (r->n_pieces > 0)
        snprintf(how + used, sizeof how - used, "  %s %lld+%lld of %lld%s",
                 r->parameter ? "rows" : "features", (long long)r->pieces[0].dst,
                 (long long)r->pieces[0].rows, (long long)r->extent, r->n_pieces > 1 ? ", ..." : "");
    fprintf(out, "%-10s %-58s %s%s\n", r->parameter ? "parameter" : assay_phase_name(r->their_phase),
            r->theirs, r->ours, how);
}

static json_t *row_to_json(const assay_name_row *r)
{
    json_t *pieces = json_array();
    for (int i = 0; i < r->n_pieces; i++)
        json_array_append_new(pieces, json_pack("[I,I,I]", (json_int_t)r->pieces[i].dst,
                                                (json_int_t)r->pieces[i].src, (json_int_t)r->pieces[i].rows));
    json_t *row = json_pack("{s:s,s:s}", "theirs", r->theirs, "ours", r->ours);
    if (r->parameter) {
        json_object_set_new(row, "parameter", json_true());
    } else {
        json_object_set_new(row, "axes", json_string(assay_name_axes_word(r->axes)));
        json_object_set_new(row, "relation", json_string(assay_name_relation_word(r->relation)));
        json_object_set_new(row, "phase", json_string(assay_phase_name(r->phase)));
        json_object_set_new(row, "their_phase", json_string(assay_phase_name(r->their_phase)));
    }
    if (r->n_pieces > 0) {
        json_object_set(row, "pieces", pieces);
        json_object_set_new(row, "extent", json_integer(r->extent));
        json_object_set_new(row, "their_extent", json_integer(r->their_extent));
    }
    json_decref(pieces);
    return row;
}

static assay_status print_json(const assay_names *names, FILE *out)
{
    json_t *rows = json_array(), *root;
    for (int64_t i = 0; i < assay_names_count(names); i++)
        json_array_append_new(rows, row_to_json(assay_names_at(names, i)));
    root = json_pack("{s:s,s:i,s:o}", "format", "assay-map", "version", 1, "rows", rows);
    ASSAY_CHECK(root != NULL, ASSAY_OUT_OF_MEMORY, "map");
    json_dumpf(root, out, JSON_INDENT(1));
    fputc('\n', out);
    json_decref(root);
    return ASSAY_OK;
}

static void print_text(const assay_names *names, FILE *out)
{
    int64_t parameters = 0;
    for (int64_t i = 0; i < assay_names_count(names); i++) {
        print_row(assay_names_at(names, i), out);
        parameters += assay_names_at(names, i)->parameter;
    }
    fprintf(out, "%lld parameters, each also in", (long long)parameters);
    for (const assay_name_state *s = assay_name_states() + 1; s->theirs != NULL; s++)
        fprintf(out, "%s %s (%s) = %s (%s)", s == assay_name_states() + 1 ? "" : ",", s->theirs,
                assay_phase_name(s->their_phase), s->ours, assay_phase_name(s->phase));
    fprintf(out, "\n%lld other tensors\n", (long long)(assay_names_count(names) - parameters));
}

static assay_status print_map(const map_options *o)
{
    assay_model_config *config = malloc(sizeof *config);
    assay_model_spec *spec = NULL;
    assay_names *names = NULL;
    assay_status st = ASSAY_OK;
    ASSAY_CHECK(config != NULL, ASSAY_OUT_OF_MEMORY, "model configuration");
    ASSAY_CHECK_GOTO(o->model[0] != '\0', ASSAY_INVALID_ARGUMENT, st, done,
                     "--model: expected a Hugging Face folder, found nothing");
    ASSAY_TRY_GOTO(assay_config_load(o->model, config), st, done);
    ASSAY_TRY_GOTO(assay_spec_build(config, &spec), st, done);
    ASSAY_TRY_GOTO(assay_names_build(spec, &names), st, done);
    if (o->map[0] != '\0')
        ASSAY_TRY_GOTO(assay_names_add_file(names, o->map), st, done);
    if (o->json)
        st = print_json(names, stdout);
    else
        print_text(names, stdout);
done:
    assay_names_destroy(names);
    assay_spec_destroy(spec);
    free(config);
    return st;
}

int parity_main_map(int argc, char **argv)
{
    static const assay_extra_option extra[] = {
        {"model", "DIR", "the Hugging Face folder whose class gives the rows"},
        {"map", "FILE", "rows of your own, which go first (docs/DEBUG.md)"},
        {"json", NULL, "print the rows as such a file"},
        {NULL, NULL, NULL}};
    map_options o = {.json = false};
    assay_status st = assay_options_parse(argc, argv,
                                          "Prints what Hugging Face's parameters, gradients and module "
                                          "outputs are called here, in which order of "
                                          "axes, and which pieces of a fused tensor they are.\vExample:\n"
                                          "  assay map --model DIR\n",
                                          "", NULL, 0, extra, on_option, &o);
    if (st == ASSAY_OK)
        st = print_map(&o);
    if (st != ASSAY_OK) {
        assay_error_print(stderr, "assay map", 0);
        return 2;
    }
    return 0;
}
