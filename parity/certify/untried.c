/* What a certificate says that it has not tried. */
#include "parity/certify/certify.h"

#include "parity/checks/request.h"

#include <string.h>

void certify_add_uncalled(json_t *list, const certify_result *r, const certify_trial *trials, size_t n)
{
    char text[96];
    for (size_t i = 0; i < n; i++)
        if (r->board.trial[trials[i]].calls == 0) {
            snprintf(text, sizeof text, "%s: no call came to this trial", certify_trial_name(trials[i]));
            json_array_append_new(list, json_string(text));
        }
}

static void untried(json_t *list, const char *text)
{
    json_array_append_new(list, json_string(text));
}

bool certify_has_flag(const json_t *subject, const char *flag)
{
    const json_t *flags = json_object_get(json_object_get(subject, "description"), "flags");
    for (size_t i = 0; i < json_array_size(flags); i++)
        if (strcmp(json_string_value(json_array_get(flags, i)), flag) == 0)
            return true;
    return false;
}

/* A flag, or a member that is a text. */
static bool is_declared(const json_t *subject, const char *word)
{
    const char *text = json_string_value(json_object_get(json_object_get(subject, "description"), word));
    return certify_has_flag(subject, word) || (text != NULL && text[0] != '\0');
}

/* What no collective has. */
static bool of_rows(certify_trial t)
{
    return t == CERTIFY_BATCH || t == CERTIFY_STRIDES || t == CERTIFY_SHADOW;
}

static const char *no_sanitizer(void)
{
    return certify_sanitizer_installed()
               ? "compute-sanitizer: no call came to it, there are no lattice inputs"
               : "compute-sanitizer (not found in PATH)";
}

void certify_list_stopped(certify_result *r)
{
    r->not_tried = json_array();
    untried(r->not_tried, "what comes behind the first failure: --fail-fast");
}

void certify_list_untried(certify_result *r, const char *tier)
{
    static const struct {
        certify_trial trial;
        const char *flag; /* of the description; NULL: none belongs to it */
        const char *text, *declared;
    } rows[] = {
        {CERTIFY_EXACT, NULL, "lattice inputs: there are none for this operation", NULL},
        {CERTIFY_SPECIAL, NULL, "NaN and infinities", NULL},
        {CERTIFY_THREADS, "deterministic",
         "other numbers of threads: the description does not say deterministic",
         "other numbers of threads: deterministic is declared, and no call was run with them"},
        {CERTIFY_BATCH, "batch_invariant", "batch invariance: not declared",
         "batch invariance: declared, and no output has rows of its own"},
        {CERTIFY_WORKSPACE, NULL, "workspace: the kernel asks for none", NULL},
        {CERTIFY_STRIDES, "row_strides", "rows with gaps: not declared, a call with them has to be refused",
         "rows with gaps: declared, and no call has two rows to put one between"},
        {CERTIFY_IN_PLACE, "in_place", "outputs in an input's memory: not declared",
         "outputs in an input's memory: declared, and no call has an output of as many bytes"},
        {CERTIFY_SHADOW, "shadow", "F32 shadows: not declared",
         "F32 shadows: declared, and no call has an output that has one"},
        {CERTIFY_SIMULATOR, NULL, "barriers, races and masks: the library has no kernels for the simulator",
         NULL},
        {CERTIFY_STREAM, NULL, "stream order: tensors lie in host memory", NULL},
    };
    static const char no_checker[] = "the library is built without the race checker (assay-cc --races)";
    static const certify_trial always[] = {CERTIFY_CRASH,  CERTIFY_TIME,   CERTIFY_ACCEPTS,
                                           CERTIFY_GUARDS, CERTIFY_INPUTS, CERTIFY_WRITTEN,
                                           CERTIFY_LOCAL,  CERTIFY_REPEAT, CERTIFY_ARGUMENTS},
                               ranks[] = {CERTIFY_MESSAGES, CERTIFY_RANKS};
    char text[256];
    const json_t *description = json_object_get(r->subject, "description");
    r->not_tried = json_array();
    certify_add_extents(r->not_tried, r);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (r->board.trial[rows[i].trial].calls == 0 && !(r->op->collective && of_rows(rows[i].trial)))
            untried(r->not_tried, rows[i].flag != NULL && is_declared(r->subject, rows[i].flag)
                                      ? rows[i].declared
                                      : rows[i].text);
    certify_add_uncalled(r->not_tried, r, always, sizeof always / sizeof *always);
    certify_add_uncalled(r->not_tried, r, ranks, r->op->collective ? 2 : 0);
    if (r->board.trial[CERTIFY_SIMULATOR].calls > 0 && r->board.trial[CERTIFY_RACES].calls == 0 &&
        !json_is_true(json_object_get(description, "race_checker"))) {
        snprintf(text, sizeof text, "races between threads, reads of memory that nobody wrote: %s",
                 r->no_races[0] != '\0' ? r->no_races : no_checker);
        untried(r->not_tried, text);
    }
    if (r->op->collective)
        untried(r->not_tried,
                "ranks that really run at once: they take turns where they call the communicator; "
                "a real network, memory order between devices");
    if (!certify_has_flag(r->subject, "deterministic"))
        untried(r->not_tried, "equal bits from run to run: not declared");
    for (int m = 0; m < PARITY_MODE_COUNT; m++)
        if (parity_data_mode_refusal(r->op->name, (parity_data_mode)m) != NULL) {
            snprintf(text, sizeof text, "%s data: %s", parity_data_mode_name((parity_data_mode)m),
                     parity_data_mode_refusal(r->op->name, (parity_data_mode)m));
            untried(r->not_tried, text);
        }
    if (r->board.refused > 0) {
        snprintf(text, sizeof text,
                 "%lld calls outside the declared shapes: tried for their error code alone",
                 (long long)r->board.refused);
        untried(r->not_tried, text);
    }
    if (r->board.trial[CERTIFY_STREAM].calls > 0 &&
        !json_is_true(json_object_get(description, "asynchronous")))
        untried(r->not_tried, "whether run() waits for more than it has to: it is done when it returns");
    if (strcmp(tier, "gpu") != 0)
        untried(r->not_tried,
                "a real device: its arithmetic, memory order, streams and timing; compute-sanitizer");
    else if (r->board.trial[CERTIFY_SANITIZER].calls == 0)
        untried(r->not_tried, no_sanitizer());
    if (r->throughput != NULL)
        return;
    snprintf(text, sizeof text, "throughput: %s",
             strcmp(tier, "sim") == 0    ? "the simulator's times say nothing about a device"
             : strcmp(tier, "host") == 0 ? "tensors lie in host memory; it is measured on a device alone"
                                         : r->no_throughput);
    untried(r->not_tried, text);
}
