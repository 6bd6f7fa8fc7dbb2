/* The files of a report folder, and what a run tells about itself in them. */
#include "parity/run/report_write.h"
#include "core/base/file.h"
#include "core/base/log.h"
#include "parity/run/run.h"
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int summary_fd = -1; /* standard output as it was */

assay_status parity_report_claim_stdout(const char *summary)
{
    if (strcmp(summary, "-") != 0)
        return ASSAY_OK;
    fflush(stdout);
    summary_fd = dup(STDOUT_FILENO);
    ASSAY_CHECK(summary_fd >= 0 && dup2(STDERR_FILENO, STDOUT_FILENO) >= 0, ASSAY_IO, "--summary -: %s",
                strerror(errno));
    return ASSAY_OK;
}

assay_status parity_report_open_summary(const char *summary)
{
    return summary[0] == '\0' || strcmp(summary, "-") == 0 ? ASSAY_OK : assay_write_file(summary, "", 0);
}

static assay_status write_fd(const char *text, size_t bytes)
{
    while (bytes > 0) {
        const ssize_t n = write(summary_fd, text, bytes);
        ASSAY_CHECK(n > 0 || (n < 0 && errno == EINTR), ASSAY_IO, "standard output: %s", strerror(errno));
        text += n > 0 ? n : 0;
        bytes -= n > 0 ? (size_t)n : 0;
    }
    return ASSAY_OK;
}

static assay_status write_summary(const parity_report *r, const json_t *facts, const char *summary)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *f = open_memstream(&text, &bytes);
    ASSAY_CHECK(f != NULL, ASSAY_OUT_OF_MEMORY, "%s", summary);
    assay_status st = parity_report_summary(r, facts, f);
    const bool ok = ferror(f) == 0;
    if ((fclose(f) != 0 || !ok) && st == ASSAY_OK)
        st = ASSAY_ERROR(ASSAY_OUT_OF_MEMORY, "%s", summary);
    if (st == ASSAY_OK)
        st = strcmp(summary, "-") == 0 ? write_fd(text, bytes) : assay_write_file(summary, text, bytes);
    free(text);
    return st;
}

/* results.jsonl is as large as all other files of a report many times over: it is written, and waits for the disk, beside them. */
typedef struct lines {
    const parity_report *r;
    char path[ASSAY_PATH + 32];
    assay_status st;
    char message[PARITY_TEXT];
} lines;

static void *write_lines(void *user)
{
    lines *w = user;
    w->st = parity_report_jsonl(w->r, w->path);
    if (w->st != ASSAY_OK)
        snprintf(w->message, sizeof w->message, "%s", assay_error_message());
    return NULL;
}

static assay_status write_pages(const parity_report *r, const char *dir, const char *title,
                                const json_t *facts)
{
    char path[ASSAY_PATH + 32];
    snprintf(path, sizeof path, "%s/junit.xml", dir);
    ASSAY_TRY(parity_report_junit(r, path, facts));
    snprintf(path, sizeof path, "%s/index.html", dir);
    return parity_report_html(r, path, title, facts);
}

static assay_status write_results(const parity_report *r, const char *dir, const char *title,
                                  const json_t *facts)
{
    lines w = {.r = r};
    pthread_t thread;
    snprintf(w.path, sizeof w.path, "%s/results.jsonl", dir);
    const bool beside = pthread_create(&thread, NULL, write_lines, &w) == 0;
    if (!beside) {
        ASSAY_TRY(parity_report_jsonl(r, w.path));
        return write_pages(r, dir, title, facts);
    }
    const assay_status st = write_pages(r, dir, title, facts);
    pthread_join(thread, NULL);
    if (w.st != ASSAY_OK)
        assay_error_clear(); /* whatever befell the pages: what the results say comes first */
    ASSAY_CHECK(w.st == ASSAY_OK, w.st, "%s", w.message);
    return st;
}

assay_status parity_report_write(const parity_report *r, const char *dir, const char *title,
                                 const json_t *facts, const char *summary)
{
    char path[ASSAY_PATH + 32];
    assay_status st = ASSAY_OK;
    json_t *shown = json_copy((json_t *)(uintptr_t)facts);
    ASSAY_CHECK(shown != NULL, ASSAY_OUT_OF_MEMORY, "report");
    json_object_del(shown, "times");
    ASSAY_TRY_GOTO(write_results(r, dir, title, facts), st, done);
    snprintf(path, sizeof path, "%s/facts.json", dir);
    ASSAY_TRY_GOTO(assay_json_save(facts, path), st, done);
    if (summary[0] != '\0')
        ASSAY_TRY_GOTO(write_summary(r, shown, summary), st, done);
done:
    json_decref(shown);
    return st;
}

static const char *commit = "unknown";

void parity_set_commit(const char *text)
{
    commit = text;
}

const char *parity_commit(void)
{
    return commit;
}

void parity_report_facts(json_t *facts, int argc, char *const *argv)
{
    char text[PARITY_TEXT] = "", word[2 * ASSAY_PATH], host[256] = "";
    const time_t now = time(NULL);
    struct tm utc;
    if (gmtime_r(&now, &utc) != NULL && strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc) > 0)
        json_object_set_new(facts, "date", json_string(text));
    if (gethostname(host, sizeof host - 1) == 0)
        json_object_set_new(facts, "host", json_string(host));
    json_object_set_new(facts, "version", json_string(parity_version()));
    json_object_set_new(facts, "commit", json_string(parity_commit()));
    /* argv begins with "assay run"; a command that does not fit says so. */
    size_t used = (size_t)snprintf(text, sizeof text, "%s", argc > 0 ? argv[0] : "");
    for (int i = 1; i < argc && used + 5 < sizeof text; i++) {
        parity_shell_word(argv[i], word, sizeof word);
        const bool fits = used + strlen(word) + 6 < sizeof text;
        used += (size_t)snprintf(text + used, sizeof text - used, " %s", fits ? word : "...");
        if (!fits)
            break;
    }
    json_object_set_new(facts, "command", json_string(text)); /* nothing where it is no UTF-8 */
}

static bool holds_text(const char *all, const char *one)
{
    const size_t n = strlen(one);
    for (const char *at = strstr(all, one); at != NULL && n > 0; at = strstr(at + 1, one))
        if ((at == all || at[-1] == ' ') && (at[n] == '\0' || at[n] == ';'))
            return true;
    return n == 0;
}

static assay_status join_text(json_t *all, const char *key, const char *before, const char *more)
{
    if (holds_text(before, more))
        return ASSAY_OK;
    json_t *both = json_sprintf("%s; %s", before, more);
    ASSAY_CHECK(both != NULL && json_object_set_new(all, key, both) == 0, ASSAY_OUT_OF_MEMORY, "report");
    return ASSAY_OK;
}

assay_status parity_report_join_facts(json_t *all, const json_t *part)
{
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)part, key, value)
    {
        json_t *before = json_object_get(all, key);
        if (before == NULL)
            ASSAY_CHECK(json_object_set_new(all, key, json_deep_copy(value)) == 0, ASSAY_OUT_OF_MEMORY,
                        "report");
        else if (json_is_object(before) && json_is_object(value))
            ASSAY_CHECK(json_object_update(before, value) == 0, ASSAY_OUT_OF_MEMORY, "report");
        else if (json_is_string(before) && json_is_string(value))
            ASSAY_TRY(join_text(all, key, json_string_value(before), json_string_value(value)));
        else if (json_is_integer(before) && json_is_integer(value))
            json_integer_set(before, json_integer_value(before) + json_integer_value(value));
        else if (json_is_number(before) && json_is_number(value))
            json_object_set_new(all, key, json_real(json_number_value(before) + json_number_value(value)));
    }
    return ASSAY_OK;
}
