/* A user's map file: rows for tensors that the table does not know, or calls otherwise.
 *
 *   {"format": "assay-map", "version": 1, "rows": [
 *     {"theirs": "transformer.h.*.attn", "ours": "decoder.layers.*.self_attention.linear_proj.y", "axes": "batch_first"}, ...]}
 *
 * A star stands for the number of a layer.  Written by anybody: every member is checked before it is used. */
#include "core/base/json.h"
#include "core/model/names_internal.h"

#include <stdlib.h>
#include <string.h>

enum {
    MAX_ROWS = 1 << 16,
    MAX_NAMES = 1 << 18 /* with each * as every layer */,
    MAX_PIECES = 1 << 12,
    WHERE = 320
};
static const int64_t max_extent = (int64_t)1 << 40;

/* One of the words, or the first where the member is absent. */
static assay_status read_word(const json_t *object, const char *key, const char *const *words, int n_words,
                              const char *where, int *out)
{
    char text[40] = "";
    *out = 0;
    ASSAY_TRY(assay_json_get_string(object, key, false, where, text, sizeof text));
    if (json_object_get(object, key) == NULL)
        return ASSAY_OK;
    for (int i = 0; i < n_words; i++)
        if (strcmp(text, words[i]) == 0) {
            *out = i;
            return ASSAY_OK;
        }
    ASSAY_FAIL(ASSAY_FORMAT, "%s: %s: expected %s%s%s%s%s, found \"%s\"", where, key, words[0],
               n_words > 2 ? ", " : "", n_words > 2 ? words[1] : "", " or ", words[n_words - 1], text);
}

/* The text with its star, when it has one, as the layer's number. */
static assay_status expand(const char *text, int64_t layer, const char *where, char out[ASSAY_NAME])
{
    const char *star = strchr(text, '*');
    ASSAY_CHECK(text[0] != '\0' && (star == NULL || strchr(star + 1, '*') == NULL), ASSAY_FORMAT,
                "%s: expected a name with at most one *, found \"%.60s\"", where, text);
    const int length = star == NULL ? snprintf(out, ASSAY_NAME, "%s", text)
                                    : snprintf(out, ASSAY_NAME, "%.*s%lld%s", (int)(star - text), text,
                                               (long long)layer, star + 1);
    ASSAY_CHECK(length >= 0 && length < ASSAY_NAME, ASSAY_LIMIT,
                "%s: a name of %d bytes, expected at most %d", where, length, ASSAY_NAME - 1);
    return ASSAY_OK;
}

static assay_status read_piece(const json_t *piece, const char *where, const assay_name_row *row,
                               assay_hf_piece *out)
{
    int64_t number[3];
    ASSAY_CHECK(json_is_array(piece) && json_array_size(piece) == 3, ASSAY_FORMAT,
                "%s: pieces: expected [first of ours, first of theirs, how many]", where);
    for (size_t k = 0; k < 3; k++) {
        const json_t *x = json_array_get(piece, k);
        ASSAY_CHECK(json_is_integer(x) && json_integer_value(x) >= 0 && json_integer_value(x) <= max_extent,
                    ASSAY_FORMAT, "%s: pieces: expected integers from 0 on", where);
        number[k] = json_integer_value(x);
    }
    *out = (assay_hf_piece){.dst = number[0], .src = number[1], .rows = number[2]};
    ASSAY_CHECK(out->rows > 0 && out->dst + out->rows <= row->extent &&
                    out->src + out->rows <= row->their_extent,
                ASSAY_LIMIT,
                "%s: pieces: [%lld, %lld, %lld] leaves the %lld of ours (extent) or the %lld of theirs "
                "(their_extent)",
                where, (long long)out->dst, (long long)out->src, (long long)out->rows, (long long)row->extent,
                (long long)row->their_extent);
    return ASSAY_OK;
}

static assay_status read_pieces(assay_names *n, const json_t *object, const char *where, assay_name_row *row)
{
    const json_t *pieces = json_object_get(object, "pieces");
    if (pieces == NULL)
        return ASSAY_OK;
    ASSAY_CHECK(json_is_array(pieces) && json_array_size(pieces) > 0 && json_array_size(pieces) <= MAX_PIECES,
                ASSAY_FORMAT, "%s: pieces: expected a list of 1 to %d", where, MAX_PIECES);
    ASSAY_TRY(assay_json_get_i64(object, "extent", true, 1, max_extent, where, &row->extent));
    ASSAY_TRY(assay_json_get_i64(object, "their_extent", true, 1, max_extent, where, &row->their_extent));
    assay_hf_piece *made;
    ASSAY_TRY(assay_names_own(n, (int64_t)json_array_size(pieces), &made));
    int64_t covered = 0;
    for (size_t i = 0; i < json_array_size(pieces); i++) {
        ASSAY_TRY(read_piece(json_array_get(pieces, i), where, row, &made[i]));
        covered += made[i].rows;
        for (size_t k = 0; k < i; k++)
            ASSAY_CHECK(made[k].src + made[k].rows <= made[i].src ||
                            made[i].src + made[i].rows <= made[k].src,
                        ASSAY_FORMAT, "%s: pieces %zu and %zu share rows of theirs", where, k, i);
    }
    ASSAY_CHECK(covered == row->their_extent, ASSAY_FORMAT,
                "%s: pieces hold %lld of their_extent %lld: every row of theirs must be in one", where,
                (long long)covered, (long long)row->their_extent);
    row->n_pieces = (int)json_array_size(pieces);
    row->pieces = made;
    return ASSAY_OK;
}

static assay_status read_phase(const json_t *object, const char *key, const char *where, assay_phase *out)
{
    char text[40] = "";
    ASSAY_TRY(assay_json_get_string(object, key, false, where, text, sizeof text));
    return text[0] != '\0' ? assay_phase_from_name(text, out) : ASSAY_OK;
}

static assay_status read_row(assay_names *n, const json_t *object, const char *where)
{
    static const char *const keys[] = {"theirs", "ours",         "axes",      "relation",
                                       "phase",  "their_phase",  "parameter", "pieces",
                                       "extent", "their_extent", NULL};
    static const char *const axes[] = {"same", "batch_first", "heads_first"};
    static const char *const relations[] = {"equal", "sorted_rows", "mean"};
    char theirs[ASSAY_NAME], ours[ASSAY_NAME];
    int word;
    assay_name_row row = {.phase = ASSAY_PHASE_FORWARD};
    ASSAY_CHECK(json_is_object(object), ASSAY_FORMAT, "%s: expected an object", where);
    ASSAY_TRY(assay_json_only(object, keys, where));
    ASSAY_TRY(assay_json_get_string(object, "theirs", true, where, theirs, sizeof theirs));
    ASSAY_TRY(assay_json_get_string(object, "ours", true, where, ours, sizeof ours));
    ASSAY_TRY(assay_json_get_bool(object, "parameter", false, where, &row.parameter));
    ASSAY_TRY(read_word(object, "axes", axes, ASSAY_AXES_COUNT, where, &word));
    row.axes = (assay_name_axes)word;
    ASSAY_TRY(read_word(object, "relation", relations, ASSAY_RELATION_COUNT, where, &word));
    row.relation = (assay_name_relation)word;
    ASSAY_TRY(read_phase(object, "phase", where, &row.phase));
    row.their_phase = row.phase;
    ASSAY_TRY(read_phase(object, "their_phase", where, &row.their_phase));
    ASSAY_CHECK(!row.parameter || (row.axes == ASSAY_AXES_SAME && row.relation == ASSAY_RELATION_EQUAL &&
                                   json_object_get(object, "phase") == NULL &&
                                   json_object_get(object, "their_phase") == NULL),
                ASSAY_FORMAT, "%s: a parameter has no axes, relation or phase of its own", where);
    ASSAY_TRY(read_pieces(n, object, where, &row));
    ASSAY_CHECK((strchr(theirs, '*') == NULL) == (strchr(ours, '*') == NULL), ASSAY_FORMAT,
                "%s: expected a * in both names or in none", where);
    const int64_t layers = strchr(theirs, '*') != NULL ? n->spec->config.num_layers : 1;
    ASSAY_CHECK(n->n + layers <= MAX_NAMES, ASSAY_LIMIT, "%s: more than %d names with those of every layer",
                where, MAX_NAMES);
    for (int64_t l = 0; l < layers; l++) {
        ASSAY_TRY(expand(theirs, l, where, row.theirs));
        ASSAY_TRY(expand(ours, l, where, row.ours));
        ASSAY_TRY(assay_names_add(n, &row));
    }
    return ASSAY_OK;
}

/* Rows [from, n) before the others. */
static assay_status rotate(assay_names *n, int64_t from)
{
    const size_t added = (size_t)(n->n - from);
    assay_name_row *rows = malloc((added + 1) * sizeof *rows);
    ASSAY_CHECK(rows != NULL, ASSAY_OUT_OF_MEMORY, "%zu names", added);
    memcpy(rows, n->rows + from, added * sizeof *rows);
    memmove(n->rows + added, n->rows, (size_t)from * sizeof *rows);
    memcpy(n->rows, rows, added * sizeof *rows);
    free(rows);
    n->n_of_user += (int64_t)added;
    return assay_names_sort(n);
}

assay_status assay_names_add_file(assay_names *n, const char *path)
{
    static const char *const keys[] = {"format", "version", "rows", NULL};
    json_t *root = NULL;
    char format[40] = "";
    int64_t version = 0;
    const int64_t before = n->n;
    assay_status st = ASSAY_OK;
    ASSAY_TRY(assay_json_load(&root, path));
    ASSAY_CHECK_GOTO(json_is_object(root), ASSAY_FORMAT, st, done, "%s: expected an object", path);
    ASSAY_TRY_GOTO(assay_json_only(root, keys, path), st, done);
    ASSAY_TRY_GOTO(assay_json_get_string(root, "format", true, path, format, sizeof format), st, done);
    ASSAY_TRY_GOTO(assay_json_get_i64(root, "version", true, 0, INT32_MAX, path, &version), st, done);
    ASSAY_CHECK_GOTO(strcmp(format, "assay-map") == 0 && version == 1, ASSAY_FORMAT, st, done,
                     "%s: expected format assay-map, version 1, found %s, version %lld", path, format,
                     (long long)version);
    const json_t *rows = json_object_get(root, "rows");
    ASSAY_CHECK_GOTO(json_is_array(rows) && json_array_size(rows) <= MAX_ROWS, ASSAY_FORMAT, st, done,
                     "%s: rows: expected a list of at most %d", path, MAX_ROWS);
    for (size_t i = 0; i < json_array_size(rows); i++) {
        char where[WHERE];
        snprintf(where, sizeof where, "%.240s: rows[%zu]", path, i);
        ASSAY_TRY_GOTO(read_row(n, json_array_get(rows, i), where), st, done);
    }
    st = rotate(n, before);
done:
    if (st != ASSAY_OK) {
        n->n = before;
        free(n->order); /* a file that is refused leaves the list as it was */
        n->order = NULL;
        const assay_status again = assay_names_sort(n);
        st = again != ASSAY_OK ? again : st;
    }
    json_decref(root);
    return st;
}
