/* How far a trial went in each size: no more is known of larger ones. */
#include "parity/certify/certify.h"
#include "parity/certify/shapes.h"

#include "parity/checks/random_request.h"
#include <ctype.h>
#include <string.h>

/* How the line begins that a certificate has of it. */
static const char beyond[] = "sizes beyond ";

typedef struct largest {
    const assay_op *op;
    const char *shapes; /* conditions on symbols of the description */
    assay_op_binding most;
} largest;

static bool is_word_of(const char *text, const char *word)
{
    const size_t n = strlen(word);
    for (const char *p = strstr(text, word); p != NULL; p = strstr(p + 1, word))
        if ((p == text || !isalpha((unsigned char)p[-1])) && !isalnum((unsigned char)p[n]))
            return true;
    return false;
}

/* Other symbols of a size row are of how its data are made. */
static bool is_extent(const assay_op *op, const char *symbol)
{
    for (int i = 0; i < assay_op_n_slots(op); i++)
        if (is_word_of(op->slots[i].shape, symbol))
            return true;
    for (int i = 0; i < assay_op_n_attrs(op); i++)
        if (op->attrs[i].symbol != NULL && strcmp(op->attrs[i].symbol, symbol) == 0)
            return true;
    return false;
}

void certify_note_extents(assay_op_binding *most, const assay_op_binding *call)
{
    for (int i = 0; i < call->n; i++) {
        int k = 0;
        while (k < most->n && strcmp(most->symbols[k].name, call->symbols[i].name) != 0)
            k++;
        if (k == ASSAY_OP_SYMBOLS)
            continue;
        if (k == most->n)
            most->symbols[most->n++] = call->symbols[i];
        if (most->symbols[k].value < call->symbols[i].value)
            most->symbols[k].value = call->symbols[i].value;
    }
}

static void note(void *user, const char *sizes, const char *symbols, int64_t value)
{
    largest *l = user;
    assay_op_binding here;
    char why[96];
    if (parity_ask_bind_swept(l->op, sizes, symbols, value, &here) != ASSAY_OK) {
        assay_error_clear();
        return;
    }
    if (certify_shapes_take(l->shapes, NULL, &here, NULL, why, sizeof why) == 0)
        return;
    certify_note_extents(&l->most, &here);
}

void certify_add_extents(json_t *list, const certify_result *r)
{
    const char *shapes =
        json_string_value(json_object_get(json_object_get(r->subject, "description"), "shapes"));
    char text[256], symbols[512], attributes[512];
    certify_shapes_split(shapes != NULL ? shapes : "", r->op, symbols, attributes, sizeof symbols);
    largest l = {.op = r->op, .shapes = symbols};
    size_t n = (size_t)snprintf(text, sizeof text, "%s", beyond), none = n;
    parity_ask_each_shape(r->op->name, note, &l);
    for (int i = 0; i < l.most.n && n + 32 < sizeof text; i++) {
        int64_t value = l.most.symbols[i].value, taken;
        if (!is_extent(l.op, l.most.symbols[i].name))
            continue;
        if (assay_op_symbol(&r->board.most, l.most.symbols[i].name, &taken) && taken < value)
            value = taken; /* conditions on attributes leave calls out, too */
        n += (size_t)snprintf(text + n, sizeof text - n, "%s%s %lld", n > none ? ", " : "",
                              l.most.symbols[i].name, (long long)value);
    }
    if (n > none)
        json_array_append_new(list, json_string(text));
}

const char *certify_largest(const json_t *certificate)
{
    const json_t *list = json_object_get(certificate, "not_tried");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *text = json_string_value(json_array_get(list, i));
        if (text != NULL && strncmp(text, beyond, sizeof beyond - 1) == 0)
            return text + sizeof beyond - 1;
    }
    return NULL;
}
