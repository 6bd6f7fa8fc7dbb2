/* Illegal calls of the engine's operations: in front of the table of operations, as a request of the door, and behind it, as operands of
 * the operation's own function.  Each has to be refused with a message that names what is wrong. */
#include "parity/certify/engine.h"

#include "core/base/file.h"
#include "parity/certify/symbols.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* Ways to break the records, and in the same order what they are about. */
typedef struct breakages {
    json_t *entries, *about;
    const assay_trace *request;
    const assay_trace_op *op; /* the record that is being broken */
    const assay_op *row;
    int64_t record;
    bool failed;
} breakages;

enum { RECORDS = 4, RESTARTS = 20, OUT_OF_RANGE = 1 << 30, ANSWER_BYTES = 64 << 20 };

/* One way: `says` in words, `names` has to stand in the message ("": any slot or attribute of the operation). */
/* The one entry that an engine may find nothing to break of: a call without a workspace. */
static const char less_workspace[] = "a workspace of one byte less";

static void add(breakages *b, json_t *entry, const char *says, const char *names)
{
    json_t *about = json_pack("{s:s, s:s, s:s, s:s}", "op", b->row->name, "instance", b->op->instance, "says",
                              says, "names", names);
    b->failed = json_array_append_new(b->entries, entry) != 0 || b->failed;
    b->failed = json_array_append_new(b->about, about) != 0 || b->failed;
}

static void add_slot(breakages *b, const char *slot, const char *what, json_t *value, bool kernel,
                     const char *says, const char *names)
{
    char text[160];
    json_t *entry = json_pack("{s:I, s:s, s:s, s:b}", "record", (json_int_t)b->record, "slot", slot, "what",
                              what, "kernel", kernel);
    if (value != NULL)
        b->failed = json_object_set_new(entry, "value", value) != 0 || b->failed;
    snprintf(text, sizeof text, "%s%s", says, kernel ? ", past the table" : "");
    add(b, entry, text, names);
}

/* --- slots ------------------------------------------------------------------------------------------------------- */

/* A tensor of the record; dtype ASSAY_DTYPE_COUNT: an output, whose extents are not known here. */
typedef struct tried_slot {
    const assay_op_slot *row;
    char name[40]; /* as it is recorded, or of the row where it is tried behind the table */
    assay_dtype dtype;
    int ndim;
    bool kernel;
} tried_slot;

static bool is_present(const breakages *b, const assay_op_slot *row)
{
    for (int i = 0; i < b->op->n_inputs; i++)
        if (assay_op_slot_find(b->row, b->op->inputs[i].slot, false) == row)
            return true;
    if (row->role != ASSAY_SLOT_OUT)
        return false;
    const assay_op_slot *like =
        row->optional && row->like != NULL ? assay_op_slot_find(b->row, row->like, false) : NULL;
    return like == NULL || is_present(b, like);
}

/* Whether another tensor of the record, or an attribute, says what the symbol is.  In front of the table there are no outputs. */
static bool contradicts(const breakages *b, const tried_slot *s, const char *symbol)
{
    for (int i = 0; i < assay_op_n_attrs(b->row); i++)
        if (b->row->attrs[i].symbol != NULL && strcmp(b->row->attrs[i].symbol, symbol) == 0)
            return true;
    for (int i = 0; i < assay_op_n_slots(b->row); i++) {
        const assay_op_slot *other = &b->row->slots[i];
        if (other != s->row && certify_slot_has_symbol(other, symbol) && is_present(b, other) &&
            (s->kernel || other->role != ASSAY_SLOT_OUT))
            return true;
    }
    return false;
}

static void break_shape(breakages *b, const tried_slot *s)
{
    char says[128], symbol[8];
    for (int d = 0; d < s->ndim; d++) {
        certify_symbol_of(s->row, d, symbol);
        if (!certify_is_number(s->row, d) && (symbol[0] == '\0' || !contradicts(b, s, symbol)))
            continue;
        snprintf(says, sizeof says, "an extra element in dimension %d of %s", d, s->name);
        add_slot(b, s->name, "extent", json_integer(d), s->kernel, says, "");
        snprintf(says, sizeof says, "no elements in dimension %d of %s", d, s->name);
        add_slot(b, s->name, "empty", json_integer(d), s->kernel, says, "");
    }
    snprintf(says, sizeof says, "a negative extent of %s", s->name);
    if (s->ndim > 0)
        add_slot(b, s->name, "negative", json_integer(0), s->kernel, says, s->name);
}

static const char *other_dtype(const breakages *b, const tried_slot *s)
{
    const assay_trace_tensor *like = NULL;
    for (int i = 0; s->row->like != NULL && i < b->op->n_inputs; i++)
        if (strcmp(b->op->inputs[i].slot, s->row->like) == 0)
            like = assay_trace_op_tensor(b->request, b->op, s->row->like);
    switch (s->row->dtype) {
    case ASSAY_CLASS_ANY:
        return NULL;
    case ASSAY_CLASS_I64:
    case ASSAY_CLASS_F64:
        return "F32";
    case ASSAY_CLASS_FLOAT:
        return "I64";
    default: /* what it has to be like may be F64 */
        return like != NULL && like->dtype == ASSAY_F64 ? "F32" : "F64";
    }
}

static void break_slot(breakages *b, const tried_slot *s)
{
    char says[128];
    const char *dtype = other_dtype(b, s);
    if (!s->row->optional || (s->row->role == ASSAY_SLOT_OUT && s->row->like != NULL)) {
        snprintf(says, sizeof says, "no tensor for %s", s->name);
        add_slot(b, s->name, "absent", NULL, s->kernel, says, s->name);
    }
    snprintf(says, sizeof says, "no data for %s", s->name);
    add_slot(b, s->name, "no_data", NULL, s->kernel, says, s->name);
    if (dtype != NULL) {
        snprintf(says, sizeof says, "%s of dtype %s", s->name, dtype);
        add_slot(b, s->name, "dtype", json_string(dtype), s->kernel, says, s->name);
    }
    if (s->row->below != NULL && !s->kernel) {
        snprintf(says, sizeof says, "an index out of range in %s", s->name);
        add_slot(b, s->name, "index", json_integer(OUT_OF_RANGE), false, says, s->name);
        snprintf(says, sizeof says, "an index below the range in %s", s->name);
        add_slot(b, s->name, "index", json_integer(-2), false, says, s->name);
    }
    snprintf(says, sizeof says, "%s at an address that is not aligned", s->name);
    if (s->kernel)
        add_slot(b, s->name, "address", NULL, true, says, s->name);
    break_shape(b, s);
}

static int dimensions_of(const assay_op_slot *row)
{
    int n = row->shape[0] != '\0';
    for (const char *p = row->shape; *p != '\0'; p++)
        n += *p == ',';
    return n;
}

static void break_slots(breakages *b)
{
    for (int i = 0; i < b->op->n_inputs; i++) {
        const assay_trace_tensor *x = assay_trace_op_tensor(b->request, b->op, b->op->inputs[i].slot);
        tried_slot s = {.row = assay_op_slot_find(b->row, b->op->inputs[i].slot, false),
                        .dtype = x->dtype,
                        .ndim = x->shard.ndim};
        snprintf(s.name, sizeof s.name, "%s", b->op->inputs[i].slot);
        /* where several extents are recorded in one's place, dimensions are not those of the row */
        s.ndim = s.ndim == dimensions_of(s.row) ? s.ndim : 0;
        break_slot(b, &s);
    }
    for (int i = 0; i < assay_op_n_slots(b->row); i++) {
        tried_slot s = {.row = &b->row->slots[i], .dtype = ASSAY_DTYPE_COUNT, .kernel = true};
        const assay_trace_tensor *x = NULL;
        if (!is_present(b, s.row))
            continue;
        for (int k = 0; k < b->op->n_inputs; k++)
            if (assay_op_slot_find(b->row, b->op->inputs[k].slot, false) == s.row)
                x = assay_trace_op_tensor(b->request, b->op, b->op->inputs[k].slot);
        snprintf(s.name, sizeof s.name, "%s", s.row->name);
        s.ndim = x == NULL || x->shard.ndim == dimensions_of(s.row) ? dimensions_of(s.row) : 0;
        break_slot(b, &s);
    }
}

/* --- attributes, and what belongs to no slot ------------------------------------------------------------------------ */
static void add_attr(breakages *b, const char *name, json_t *value, const char *says)
{
    char text[128];
    json_t *entry = json_pack("{s:I, s:s}", "record", (json_int_t)b->record, "attr", name);
    if (value != NULL)
        b->failed = json_object_set_new(entry, "value", value) != 0 || b->failed;
    else
        b->failed = json_object_set_new(entry, "what", json_string("absent")) != 0 || b->failed;
    snprintf(text, sizeof text, "attribute %s: %s", name, says);
    add(b, entry, text, name);
}

static json_t *number_of(const assay_op_attr *a, double value)
{
    return a->type == ASSAY_ATTR_INT ? json_integer((json_int_t)value) : json_real(value);
}

static void break_attr(breakages *b, const assay_op_attr *a)
{
    const double far = 9e15; /* above it a number and its neighbour may be one */
    if (a->otherwise == NULL)
        add_attr(b, a->name, NULL, "absent");
    if (a->type == ASSAY_ATTR_WORD || a->type == ASSAY_ATTR_DTYPE) {
        add_attr(b, a->name, json_string("no_such_word"), "a word that it does not have");
        add_attr(b, a->name, json_integer(3), "a number");
    } else {
        add_attr(b, a->name, json_string("many"), "a word");
    }
    if ((a->type == ASSAY_ATTR_INT || a->type == ASSAY_ATTR_DOUBLE) && a->min < a->max) {
        if (a->min > -far)
            add_attr(b, a->name, number_of(a, a->min - 1.0), "below its range");
        if (a->max < far)
            add_attr(b, a->name, number_of(a, a->max + 1.0), "above its range");
    }
    const json_t *now = json_object_get(b->op->attrs, a->name);
    bool said = false; /* an input says the extent, too */
    for (int i = 0; i < assay_op_n_slots(b->row) && a->symbol != NULL; i++)
        said = said || (b->row->slots[i].role != ASSAY_SLOT_OUT && is_present(b, &b->row->slots[i]) &&
                        certify_slot_has_symbol(&b->row->slots[i], a->symbol));
    if (said && json_is_integer(now)) {
        json_t *entry = json_pack("{s:I, s:s, s:I}", "record", (json_int_t)b->record, "attr", a->name,
                                  "value", (json_int_t)json_integer_value(now) + 1);
        char says[128];
        snprintf(says, sizeof says, "attribute %s: another extent than the tensors", a->name);
        add(b, entry, says, "");
    }
}

static void break_call(breakages *b)
{
    char other[64];
    for (int i = 0; i < assay_op_n_attrs(b->row); i++)
        break_attr(b, &b->row->attrs[i]);
    add_attr(b, "no_such_attribute", json_integer(1), "the operation has none of this name");
    add_slot(b, "no_such_slot", "unknown", NULL, false, "a slot that the operation does not have",
             "no_such_slot");
    add(b, json_pack("{s:I, s:s, s:b}", "record", (json_int_t)b->record, "what", "workspace", "kernel", true),
        less_workspace, "workspace");
    snprintf(other, sizeof other, "%s_", b->row->name);
    add(b, json_pack("{s:I, s:s}", "record", (json_int_t)b->record, "operation", other),
        "an operation that there is not", other);
    snprintf(other, sizeof other, "%s=k99", b->row->family);
    add(b, json_pack("{s:s}", "variant", other), "a variant that there is not", "k99");
}

/* --- records ---------------------------------------------------------------------------------------------------------- */

/* A number, or a symbol that stands nowhere else. */
static bool alone_with(const assay_trace_op *op, const assay_op_slot *row, int d)
{
    const assay_op *of = assay_op_find(op->op);
    char symbol[8];
    certify_symbol_of(row, d, symbol);
    return certify_is_number(row, d) ||
           (symbol[0] != '\0' && !certify_symbol_is_shared(of, (int)(row - of->slots), symbol));
}

/* Every input has elements, and two where it may have them and something else says how many: fewer allow more. */
static bool is_full(const assay_trace *request, const assay_trace_op *op, uint64_t *slots)
{
    *slots = 0;
    for (int i = 0; i < op->n_inputs; i++) {
        const assay_trace_tensor *t = assay_trace_op_tensor(request, op, op->inputs[i].slot);
        const assay_op_slot *row = assay_op_slot_find(assay_op_find(op->op), op->inputs[i].slot, false);
        if (t == NULL || row == NULL || t->bytes == 0)
            return false;
        for (int d = 0; d < t->shard.ndim; d++)
            if (t->shard.local_shape[d] < 2 &&
                !(t->shard.ndim == dimensions_of(row) && alone_with(op, row, d)))
                return false;
        *slots |= 1ull << (row - assay_op_find(op->op)->slots);
    }
    return true;
}

/* The first full record of each set of tensors that are there, at most RECORDS of an operation. */
static void break_operation(breakages *b, certify_result *r)
{
    uint64_t seen[RECORDS], slots;
    int n = 0;
    b->row = r->op;
    for (int64_t i = 0; i < assay_trace_n_ops(b->request, 0) && n < RECORDS; i++) {
        const assay_trace_op *op = assay_trace_op_at(b->request, 0, i);
        bool known = false;
        if (strcmp(op->op, r->op->name) != 0 || !is_full(b->request, op, &slots))
            continue;
        for (int k = 0; k < n; k++)
            known = known || seen[k] == slots;
        if (known)
            continue;
        seen[n++] = slots;
        b->op = op;
        b->record = i;
        break_slots(b);
        break_call(b);
    }
    if (n == 0)
        certify_bad(&r->board, CERTIFY_ARGUMENTS,
                    "no call of %s could be broken: an extent is below 2 in each of them", r->op->name);
}

/* --- what the engine said ------------------------------------------------------------------------------------------------ */
static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text != NULL ? text : "";
}

/* The word stands alone in the text. */
static bool has_word(const char *text, const char *word)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_";
    const size_t n = strlen(word);
    for (const char *p = strstr(text, word); p != NULL && n > 0; p = strstr(p + 1, word))
        if ((p == text || strchr(letters, p[-1]) == NULL) && (p[n] == '\0' || strchr(letters, p[n]) == NULL))
            return true;
    return false;
}

static bool names_it(const assay_op *op, const char *message, const char *name)
{
    if (name[0] != '\0')
        return has_word(message, name);
    for (int i = 0; i < assay_op_n_slots(op); i++) {
        char before[48];
        snprintf(before, sizeof before, "%s_in", op->slots[i].name);
        if (has_word(message, op->slots[i].name) || has_word(message, before))
            return true;
    }
    for (int i = 0; i < assay_op_n_attrs(op); i++)
        if (has_word(message, op->attrs[i].name))
            return true;
    return false;
}

static void judge_entry(const engine_trial *t, const json_t *about, const char *status, const char *message)
{
    static const char *const refusals[] = {"INVALID_ARGUMENT", "UNSUPPORTED", "LIMIT", "NOT_FOUND"};
    certify_result *r = engine_result_of(t, text_of(about, "op"));
    const char *says = text_of(about, "says"), *instance = text_of(about, "instance");
    bool refused = false;
    if (strcmp(status, "NOTHING") == 0 && strcmp(says, less_workspace) == 0)
        return;
    r->board.trial[CERTIFY_ARGUMENTS].calls++;
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++)
        refused = refused || strcmp(status, refusals[i]) == 0;
    if (strcmp(status, "OK") == 0)
        certify_bad(&r->board, CERTIFY_ARGUMENTS, "no error code for %s in %s (%s)", says, instance, t->act);
    else if (!refused)
        certify_bad(&r->board, CERTIFY_ARGUMENTS, "%s in %s (%s): %s: %s", says, instance, t->act, status,
                    message);
    else if (!names_it(r->op, message, text_of(about, "names")))
        certify_bad(&r->board, CERTIFY_ARGUMENTS, "%s in %s (%s): the message does not name it: %s", says,
                    instance, t->act, message);
}

/* Reads the lines about `list`, which come in its order: what is answered is that entry and no other.  *answered: how many have an answer;
 * *died: the last one that began has none. */
static assay_status read_lines(const engine_trial *t, const char *path, const json_t *about, size_t *answered,
                               bool *died)
{
    assay_status st = ASSAY_OK;
    char *text = NULL;
    uint64_t bytes = 0;
    *answered = 0;
    *died = false;
    ASSAY_TRY(assay_read_file(path, ANSWER_BYTES, &text, &bytes));
    for (char *line = text, *end; (end = strchr(line, '\n')) != NULL; line = end + 1) {
        json_t *found = json_loadb(line, (size_t)(end - line), 0, NULL);
        const json_t *entry = json_object_get(found, "entry"), *of = json_array_get(about, *answered);
        const char *status = text_of(found, "status");
        const bool in_turn =
            of != NULL && json_is_integer(entry) && json_integer_value(entry) == (json_int_t)*answered;
        if (!in_turn)
            json_decref(found);
        ASSAY_CHECK_GOTO(in_turn, ASSAY_MISMATCH, st, done,
                         "%s: expected the answer of entry %zu, found %.*s", path, *answered,
                         (int)(end - line < 80 ? end - line : 80), line);
        *died = status[0] == '\0';
        if (!*died) {
            judge_entry(t, of, status, text_of(found, "message"));
            ++*answered;
        }
        json_decref(found);
    }
done:
    free(text);
    return st;
}

static void drop_first(json_t *list, size_t n)
{
    while (n-- > 0)
        (void)json_array_remove(list, 0);
}

/* One process of the engine answers what it can of the list; a death is a finding of the entry that ran. */
static assay_status ask(const engine_trial *t, breakages *b)
{
    char list[ASSAY_PATH], option[ASSAY_PATH + 16], answer[ASSAY_PATH];
    const char *extra[] = {option, NULL};
    size_t done;
    bool died;
    engine_path(list, t, "illegal");
    engine_path(answer, t, "refusals");
    snprintf(option, sizeof option, "--illegal=%s", list);
    ASSAY_TRY(assay_json_save(b->entries, list));
    (void)remove(answer);
    const assay_status st = engine_answer(
        t, "request", "refusals", extra, 3.0 * t->o->call_limit + 0.02 * (double)json_array_size(b->entries));
    const assay_status read = read_lines(t, answer, b->about, &done, &died);
    if (read != ASSAY_OK)
        return read == ASSAY_MISMATCH ? read : st; /* else it did not even begin */
    ASSAY_CHECK(done > 0 || died || st != ASSAY_OK, ASSAY_INTERNAL, "%s: no answers", answer);
    if (died) {
        const json_t *about = json_array_get(b->about, done);
        certify_result *r = engine_result_of(t, text_of(about, "op"));
        r->board.trial[CERTIFY_ARGUMENTS].calls++;
        certify_bad(&r->board, st == ASSAY_TIMEOUT ? CERTIFY_TIME : CERTIFY_CRASH, "%s in %s (%s): %s",
                    text_of(about, "says"), text_of(about, "instance"), t->act,
                    st == ASSAY_OK ? "the engine ended without an answer" : assay_error_message());
    } else if (done == 0) {
        return st;
    }
    assay_error_clear();
    drop_first(b->entries, done + died);
    drop_first(b->about, done + died);
    return ASSAY_OK;
}

assay_status engine_try_illegal(const engine_trial *t)
{
    char path[ASSAY_PATH];
    assay_trace *request = NULL;
    breakages b = {.entries = json_array(), .about = json_array()};
    assay_status st;
    int runs = 0;
    engine_path(path, t, "request");
    ASSAY_TRY_GOTO(assay_trace_open(&request, path, true), st, done);
    b.request = request;
    for (int i = 0; i < t->n; i++)
        break_operation(&b, &t->results[i]);
    ASSAY_CHECK_GOTO(!b.failed && b.entries != NULL && b.about != NULL, ASSAY_OUT_OF_MEMORY, st, done,
                     "illegal calls");
    for (; json_array_size(b.entries) > 0 && runs <= RESTARTS; runs++)
        ASSAY_TRY_GOTO(ask(t, &b), st, done);
    if (json_array_size(b.entries) > 0) {
        const char *op = text_of(json_array_get(b.about, 0), "op");
        certify_bad(&engine_result_of(t, op)->board, CERTIFY_ARGUMENTS,
                    "%zu illegal calls from here on are not tried: the engine ended %d times",
                    json_array_size(b.entries), runs);
    }
done:
    json_decref(b.entries);
    json_decref(b.about);
    assay_trace_close(request);
    return st;
}
