/* The child of a trial: loads the library and answers the requests with it, call by call. */
#include "parity/certify/trial.h"
#include "parity/certify/shapes.h"

#include "core/base/file.h"
#include "parity/checks/request.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

bool trial_stops(const trial *t)
{
    return t->fail_fast && certify_findings(t->board) > 0;
}

void trial_now(trial *t, const call_record *r, const char *what)
{
    char shapes[192] = "", attrs[128] = "";
    size_t n = 0;
    for (int i = 0; i < assay_op_n_slots(r->kernel->op) && n + 56 < sizeof shapes; i++) {
        const call_slot *s = &r->slot[i];
        if (!s->present)
            continue;
        n += (size_t)snprintf(shapes + n, sizeof shapes - n, " %.24s[", r->kernel->op->slots[i].name);
        for (int d = 0; d < s->ndim && n + 16 < sizeof shapes; d++)
            n += (size_t)snprintf(shapes + n, sizeof shapes - n, "%s%lld", d > 0 ? "," : "",
                                  (long long)s->shape[d]);
        n += (size_t)snprintf(shapes + n, sizeof shapes - n, "]");
    }
    char rank[48] = "";
    if (r->comm != NULL)
        snprintf(rank, sizeof rank, ", rank %d of %d", r->comm->rank, r->comm->n_ranks);
    certify_call_text(r->kernel->op, NULL, r->asked->attrs, attrs, sizeof attrs);
    snprintf(t->board->now, sizeof t->board->now, "%s%.80s (%s%s%s%s%s)", what, r->asked->instance,
             assay_dtype_name(r->act), shapes, attrs[0] != '\0' ? "; " : "", attrs, rank);
}

/* A fault of the host in device memory: the simulator has named it before it came here. */
static const certify_device *watched;
static int64_t watched_reports;

static bool what_the_simulator_says(char *text, size_t capacity)
{
    return device_reported(watched, watched_reports, text, capacity);
}

/* Of a library that brings the simulator and keeps its tensors in host memory. */
static void note_reports(trial *t)
{
    char report[320];
    if (t->device.reports == NULL || t->kernel.device != NULL)
        return;
    t->board->trial[CERTIFY_SIMULATOR].calls++;
    if (device_reported(&t->device, watched_reports, report, sizeof report))
        certify_bad(t->board, CERTIFY_SIMULATOR, "%.300s, in %.400s", report, t->board->now);
}

assay_status trial_call(trial *t, const call_record *r, call_form form, call_ready *c, int32_t *code)
{
    ASSAY_TRY(call_prepare(r, form, &t->arena, &t->shadows, c));
    watched_reports = t->device.reports != NULL ? t->device.reports() : 0;
    guard_limit(t->limit);
    *code = call_run(r, c, t->board);
    guard_limit(0);
    t->board->trial[CERTIFY_CRASH].calls++;
    t->board->trial[CERTIFY_TIME].calls++;
    note_reports(t);
    call_inspect(r, c, t->board);
    return ASSAY_OK;
}

void trial_compare(trial *t, const call_record *r, const call_ready *c, certify_trial which)
{
    t->board->trial[which].calls++;
    for (int i = 0; i < assay_op_n_slots(r->kernel->op); i++) {
        const call_slot *s = &r->slot[i];
        if (!call_is_output(r, i) || (c->form.without && call_may_be_absent(r, i)))
            continue;
        unsigned char *now = malloc(s->bytes + 1);
        const size_t bytes = now != NULL ? call_collect(r, c, i, now) : 0;
        size_t k = 0;
        while (now != NULL && k < bytes && now[k] == s->after[k])
            k++;
        free(now);
        if (k == bytes)
            continue;
        certify_bad(t->board, which, "%s: element %lld has other bits than in the first run, in %s",
                    r->kernel->op->slots[i].name, (long long)(k / (size_t)assay_dtype_bytes(s->dtype)),
                    t->board->now);
        return;
    }
}

/* --- answers ------------------------------------------------------------------------------------------------ */
static assay_status copy_input(assay_trace_writer *w, const assay_trace_tensor *from, int64_t *id)
{
    assay_trace_tensor x = *from;
    ASSAY_TRY(assay_trace_write_tensor(w, &x, from->data));
    *id = x.id;
    return ASSAY_OK;
}

static assay_status write_output(assay_trace_writer *w, const call_record *r, const call_ready *c, int i,
                                 bool shadow, int64_t *id)
{
    const call_slot *s = &r->slot[i];
    assay_trace_tensor x;
    memset(&x, 0, sizeof x);
    x.phase = r->asked->phase;
    x.step = r->asked->step;
    x.microbatch = r->asked->microbatch;
    x.dtype = shadow && assay_dtype_is_float(s->dtype) ? ASSAY_F32 : s->dtype;
    x.kind = ASSAY_PIECE_LOCAL;
    x.rows_id = -1;
    snprintf(x.name, sizeof x.name, "%.120s.%s", r->asked->instance, r->kernel->op->slots[i].name);
    assay_shard_whole(&x.shard, s->shape, s->ndim);
    unsigned char *bytes = malloc(2 * s->bytes + 1); /* a shadow may be twice as wide */
    ASSAY_CHECK(bytes != NULL, ASSAY_OUT_OF_MEMORY, "%s", x.name);
    if (x.dtype != s->dtype || (shadow && x.dtype == ASSAY_F32 && c->shadow[i] != NULL))
        memcpy(bytes, c->shadow_tensor[i].data, c->shadows->buffer[i].bytes);
    else
        call_collect(r, c, i, bytes);
    const assay_status st = assay_trace_write_tensor(w, &x, bytes);
    free(bytes);
    *id = x.id;
    return st;
}

assay_status trial_write(assay_trace_writer *w, const assay_trace *request, const call_record *r,
                         const call_ready *c, bool shadow)
{
    assay_trace_op op = *r->asked;
    op.arith = r->declared;
    op.n_outputs = 0;
    for (int i = 0; i < op.n_inputs; i++)
        ASSAY_TRY(copy_input(w, assay_trace_tensor_by_id(request, r->asked->rank, r->asked->inputs[i].tensor),
                             &op.inputs[i].tensor));
    for (int i = 0; i < assay_op_n_slots(r->kernel->op); i++) {
        if (!call_is_output(r, i))
            continue;
        snprintf(op.outputs[op.n_outputs].slot, ASSAY_SLOT_NAME, "%s", r->kernel->op->slots[i].name);
        ASSAY_TRY(write_output(w, r, c, i, shadow, &op.outputs[op.n_outputs].tensor));
        op.n_outputs++;
    }
    return assay_trace_write_op(w, &op);
}

/* --- one record --------------------------------------------------------------------------------------------- */

void trial_written(trial *t, const call_record *r, const call_ready *c)
{
    t->board->trial[CERTIFY_WRITTEN].calls++;
    for (int i = 0; i < assay_op_n_slots(r->kernel->op); i++) {
        const call_slot *s = &r->slot[i];
        if (!call_is_output(r, i) || s->before != NULL)
            continue;
        const size_t width = (size_t)assay_dtype_bytes(s->dtype);
        const unsigned char *now = c->tensor[i].data;
        int64_t missing = 0, first = -1;
        for (size_t e = 0; e < s->bytes / width; e++) {
            size_t k = 0;
            while (k < width && s->after[e * width + k] == FILL_ONES && now[e * width + k] == FILL_ODD)
                k++;
            if (k < width)
                continue;
            missing++;
            first = first < 0 ? (int64_t)e : first;
        }
        if (missing > 0)
            certify_bad(t->board, CERTIFY_WRITTEN,
                        "%lld of %lld elements of %s are never written, the first is "
                        "element %lld, in %s",
                        (long long)missing, (long long)(s->bytes / width), r->kernel->op->slots[i].name,
                        (long long)first, t->board->now);
    }
}

/* A call outside the declared shapes gets an error code, and nothing is written. */
static assay_status try_outside(trial *t, const call_record *r)
{
    call_ready c;
    int32_t code;
    trial_now(t, r, "a call outside the declared shapes: ");
    ASSAY_TRY(trial_call(t, r, call_plain(GUARD_END, FILL_ONES), &c, &code));
    t->board->trial[CERTIFY_ACCEPTS].calls++;
    t->board->refused++;
    if (code == ASSAY_KERNEL_OK)
        certify_bad(t->board, CERTIFY_ACCEPTS, "no error code for %s", t->board->now);
    else if (!call_untouched(r, &c))
        certify_bad(t->board, CERTIFY_ACCEPTS,
                    "an output is written although error code %d is returned, in %s", code, t->board->now);
    return ASSAY_OK;
}

void trial_workspace(trial *t, const call_record *r, const call_ready *c)
{
    const assay_kernel *k = r->kernel->k;
    if (k->workspace == NULL)
        return;
    t->board->trial[CERTIFY_WORKSPACE].calls++;
    guard_inside(true);
    const size_t again = k->workspace(&c->call);
    guard_inside(false);
    if (again != r->workspace_bytes)
        certify_bad(t->board, CERTIFY_WORKSPACE, "asks for %zu bytes without data and for %zu with it, in %s",
                    r->workspace_bytes, again, t->board->now);
}

static assay_status try_taken(trial *t, const assay_trace *request, call_record *r)
{
    call_ready c;
    int32_t code;
    call_form form = call_plain(GUARD_END, FILL_ONES);
    form.locked = true;
    trial_now(t, r, "");
    ASSAY_TRY(trial_call(t, r, form, &c, &code));
    t->board->trial[CERTIFY_ACCEPTS].calls++;
    if (code != ASSAY_KERNEL_OK) {
        certify_bad(t->board, CERTIFY_ACCEPTS, "error code %d for a call that the description takes: %s",
                    code, t->board->now);
        return ASSAY_OK;
    }
    certify_note_extents(&t->board->most, &r->binding);
    for (int i = 0; i < ASSAY_OP_SLOTS; i++)
        if (call_is_output(r, i))
            call_collect(r, &c, i, r->slot[i].after);
    ASSAY_TRY(trial_write(t->answer, request, r, &c, false));
    if (t->once)
        return ASSAY_OK;
    trial_workspace(t, r, &c);
    form = call_plain(GUARD_START, FILL_ODD);
    form.data_absent = true;
    trial_now(t, r, "the second run of ");
    ASSAY_TRY(trial_call(t, r, form, &c, &code));
    if (code != ASSAY_KERNEL_OK)
        certify_bad(t->board, CERTIFY_REPEAT, "error code %d in %s", code, t->board->now);
    else if (t->deterministic)
        trial_compare(t, r, &c, CERTIFY_REPEAT);
    trial_written(t, r, &c);
    if (t->second != NULL)
        ASSAY_TRY(trial_write(t->second, request, r, &c, false));
    return trial_variations(t, request, r);
}

/* Whether a tool that watches the process sees this record: lattice inputs, and where the sizes themselves are looked at, those of one data
 * mode. */
static bool is_watched(const trial *t, const assay_trace_op *asked)
{
    char first[64];
    const int n = snprintf(first, sizeof first, "local.%s.", parity_data_mode_name((parity_data_mode)0));
    return parity_asked_on_lattice(asked) || (t->races && strncmp(asked->instance, first, (size_t)n) == 0);
}

/* A record's one run, for a tool that watches the process; for the race checker one more, at addresses that are no better aligned than was
 * declared. */
static assay_status try_watched(trial *t, const call_record *r)
{
    call_ready c;
    int32_t code;
    trial_now(t, r, "");
    ASSAY_TRY(trial_call(t, r, call_plain(GUARD_END, FILL_ONES), &c, &code));
    if (!t->races)
        return ASSAY_OK;
    /* what the trial `races` takes over: a call that fails is none that was looked at */
    if (code != ASSAY_KERNEL_OK)
        certify_bad(t->board, CERTIFY_SIMULATOR, "error code %d in %s", code, t->board->now);
    trial_now(t, r, "the second run of ");
    ASSAY_TRY(trial_call(t, r, call_plain(GUARD_START, FILL_ODD), &c, &code));
    if (code != ASSAY_KERNEL_OK)
        certify_bad(t->board, CERTIFY_SIMULATOR, "error code %d in %s", code, t->board->now);
    return ASSAY_OK;
}

static assay_status try_record(trial *t, const assay_trace *request, const assay_trace_op *asked,
                               assay_dtype act)
{
    call_record r;
    if ((t->exact || t->races) && !is_watched(t, asked))
        return ASSAY_OK;
    assay_status st = call_read(&r, &t->kernel, request, asked, act, NULL);
    if (st == ASSAY_OK && (t->exact || t->races))
        st = r.taken ? try_watched(t, &r) : ASSAY_OK;
    else if (st == ASSAY_OK)
        st = r.taken ? try_taken(t, request, &r) : t->once ? ASSAY_OK : try_outside(t, &r);
    call_forget(&r);
    return st;
}

/* --- a dtype ------------------------------------------------------------------------------------------------ */
assay_status trial_open(assay_trace_writer **w, const char *dir, const char *name, const char *act, int rank,
                        int ranks)
{
    char path[ASSAY_PATH];
    json_t *header =
        json_pack("{s:s, s:s}", "engine", "kernel", "precision", strcmp(act, "F32") == 0 ? "fp32" : "bf16");
    snprintf(path, sizeof path, "%s/%s.%s", dir, name, act);
    const assay_status st = assay_trace_writer_open(w, path, rank, ranks, header, false);
    json_decref(header);
    return st;
}

assay_status trial_close(assay_trace_writer **w)
{
    assay_status st = ASSAY_OK;
    if (*w != NULL) {
        st = assay_trace_end_step(*w);
        if (st == ASSAY_OK)
            st = assay_trace_writer_close(*w);
    }
    assay_trace_writer_destroy(*w);
    *w = NULL;
    return st;
}

static assay_status try_illegal_calls(trial *t, const assay_trace *request, assay_dtype act)
{
    t->legal = 0;
    for (int64_t i = 0; i < assay_trace_n_ops(request, 0) && t->legal < 3 && !trial_stops(t); i++) {
        call_record r;
        assay_status st = call_read(&r, &t->kernel, request, assay_trace_op_at(request, 0, i), act, NULL);
        if (st == ASSAY_OK && r.taken)
            st = trial_illegal(t, &r);
        call_forget(&r);
        ASSAY_TRY(st);
    }
    return ASSAY_OK;
}

static assay_status try_dtype(trial *t, const char *dir, assay_dtype act)
{
    char path[ASSAY_PATH];
    const char *name = assay_dtype_name(act);
    assay_trace *request = NULL;
    assay_status st = ASSAY_OK;
    snprintf(path, sizeof path, "%s/request.%s", dir, name);
    ASSAY_TRY(assay_trace_open(&request, path, false));
    if (!t->exact && !t->races)
        ASSAY_TRY_GOTO(trial_open(&t->answer, dir, t->answers, name, 0, 1), st, done);
    if (!t->once && !t->deterministic)
        ASSAY_TRY_GOTO(trial_open(&t->second, dir, "second", name, 0, 1), st, done);
    if (t->second != NULL && t->kernel.device != NULL)
        ASSAY_TRY_GOTO(trial_open(&t->late, dir, "late", name, 0, 1), st, done);
    if (!t->once && (t->kernel.k->flags & ASSAY_KERNEL_SHADOW) != 0)
        ASSAY_TRY_GOTO(trial_open(&t->shadow, dir, "shadow", name, 0, 1), st, done);
    for (int64_t i = 0; i < assay_trace_n_ops(request, 0) && !trial_stops(t); i++)
        ASSAY_TRY_GOTO(try_record(t, request, assay_trace_op_at(request, 0, i), act), st, done);
    if (!t->once)
        ASSAY_TRY_GOTO(try_illegal_calls(t, request, act), st, done);
    ASSAY_TRY_GOTO(trial_close(&t->answer), st, done);
    ASSAY_TRY_GOTO(trial_close(&t->second), st, done);
    ASSAY_TRY_GOTO(trial_close(&t->shadow), st, done);
    ASSAY_TRY_GOTO(trial_close(&t->late), st, done);
done:
    assay_trace_writer_destroy(t->answer);
    assay_trace_writer_destroy(t->second);
    assay_trace_writer_destroy(t->shadow);
    assay_trace_writer_destroy(t->late);
    t->answer = t->second = t->shadow = t->late = NULL;
    assay_trace_close(request);
    return st;
}

/* --- the process -------------------------------------------------------------------------------------------- */
static assay_status describe(const trial *t, const char *dir)
{
    char path[ASSAY_PATH];
    json_t *text;
    assay_status st = ASSAY_OK;
    ASSAY_TRY(certify_kernel_json(&t->kernel, &text));
    json_object_set_new(text, "simulator", json_boolean(t->device.reports != NULL));
    json_object_set_new(text, "race_checker", json_boolean(t->device.checks_races));
    if (t->kernel.device != NULL) {
        json_t *device = NULL;
        ASSAY_TRY_GOTO(device_json(t->kernel.device, &device), st, done);
        json_object_set_new(text, "device", device);
    }
    snprintf(path, sizeof path, "%s/description.json", dir);
    st = assay_json_save(text, path);
done:
    json_decref(text);
    return st;
}

/* What is signed is what the first process said: none of the others may run under another description. */
static assay_status described_so(const trial *t, const char *dir)
{
    char path[ASSAY_PATH], *was_text = NULL, *now_text = NULL;
    json_t *said = NULL, *now = NULL, *value;
    const char *key;
    assay_status st = ASSAY_OK;
    snprintf(path, sizeof path, "%s/description.json", dir);
    ASSAY_TRY(assay_json_load(&said, path));
    ASSAY_TRY_GOTO(certify_kernel_json(&t->kernel, &now), st, done);
    json_object_foreach(now, key, value)
    {
        const json_t *was = json_object_get(said, key);
        if (json_equal(was, value))
            continue;
        was_text = was != NULL ? json_dumps(was, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
        now_text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);
        ASSAY_CHECK_GOTO(false, ASSAY_MISMATCH, st, done,
                         "the description says another %s in another process: expected %.100s, found %.100s",
                         key, was_text != NULL ? was_text : "none", now_text != NULL ? now_text : "none");
    }
done:
    free(was_text);
    free(now_text);
    json_decref(said);
    json_decref(now);
    return st;
}

static certify_board *map_board(const char *dir)
{
    char path[ASSAY_PATH];
    snprintf(path, sizeof path, "%s/board", dir);
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    void *map =
        fd >= 0 ? mmap(NULL, sizeof(certify_board), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
    if (fd >= 0)
        close(fd);
    return map != MAP_FAILED ? map : NULL;
}

static assay_status open_device(trial *t, const char *runtime)
{
    device_watch(&t->device, t->kernel.library);
    watched = &t->device;
    guard_explain(what_the_simulator_says);
    if (t->kernel.k->memory != ASSAY_KERNEL_MEMORY_DEVICE)
        return ASSAY_OK;
    ASSAY_TRY(device_open(&t->device, t->kernel.library, runtime));
    t->kernel.device = &t->device;
    t->arena.on_device = t->shadows.on_device = true;
    return ASSAY_OK;
}

static assay_status run(trial *t, const certify_options *o, const char *dir, const char *part)
{
    const struct rlimit no_core = {0, 0};
    (void)setrlimit(RLIMIT_CORE, &no_core);
    snprintf(t->board->now, sizeof t->board->now, "the library's start");
    ASSAY_TRY(guard_begin(t->board, &t->arena));
    guard_limit(t->limit);
    ASSAY_TRY(certify_kernel_open(&t->kernel, o->so, &t->storage));
    ASSAY_TRY(open_device(t, o->cuda_runtime));
    guard_limit(0);
    guard_inside(false);
    t->deterministic = (t->kernel.k->flags & ASSAY_KERNEL_DETERMINISTIC) != 0;
    t->exact = strcmp(part, "exact") == 0;
    t->races = strcmp(part, "races") == 0;
    t->once = t->exact || strcmp(part, "trial") != 0;
    t->answers = t->once ? part : "answer";
    t->fail_fast = o->fail_fast;
    t->arena.ends_guarded = t->shadows.ends_guarded = t->exact || t->device.reports != NULL; /* by the tool */
    if (strcmp(part, "describe") == 0)
        return describe(t, dir);
    if (!t->races) /* another library, of the same source */
        ASSAY_TRY(described_so(t, dir));
    if (strcmp(part, "time") == 0)
        return device_time(t, dir);
    for (int d = ASSAY_KERNEL_F32; d <= ASSAY_KERNEL_I64; d++)
        if ((t->kernel.k->dtypes & ASSAY_KERNEL_SET(d)) != 0 && !trial_stops(t))
            ASSAY_TRY((t->kernel.op->collective ? trial_collective : try_dtype)(t, dir, certify_dtype_of(d)));
    return ASSAY_OK;
}

int certify_child(const certify_options *o, const char *dir, const char *part)
{
    static trial t;
    t.board = map_board(dir);
    t.limit = o->call_limit;
    if (t.board == NULL) {
        fprintf(stderr, "assay certify: %s/board: %s\n", dir, strerror(errno));
        return 2;
    }
    const assay_status st = run(&t, o, dir, part);
    guard_limit(0);
    if (st != ASSAY_OK)
        snprintf(t.board->error, sizeof t.board->error, "%s", assay_error_message());
    t.board->done = st == ASSAY_OK;
    /* Not through exit handlers of the library. */
    (void)fflush(NULL);
    _exit(st == ASSAY_OK ? 0 : 2);
}
