/* One sentence: what differs first in the order of execution, and what mistake it looks like. */
#include "core/base/text.h"
#include "parity/run/diff.h"

#include <string.h>

/* "gradient of X", with the word that a recorder appends to the name taken off again. */
static void subject_of(const parity_entry *e, char *out, size_t capacity)
{
    static const char suffix[] = ".grad";
    const size_t n = strlen(e->name), k = sizeof suffix - 1;
    const bool gradient = n > k && strcmp(e->name + n - k, suffix) == 0 && e->phase != ASSAY_PHASE_FORWARD;
    const char *when = e->phase == ASSAY_PHASE_GRAD           ? ", before it is reduced over ranks"
                       : e->phase == ASSAY_PHASE_REDUCED_GRAD ? ", after every reduction"
                                                              : "";
    snprintf(out, capacity, "%s%.*s%s", gradient ? "gradient of " : "", (int)(gradient ? n - k : n), e->name,
             when);
}

void diff_sentence(const diff_pair *first, const parity_result *r, const diff_attribute *attribute,
                   int64_t failed, int64_t passed, char *out, size_t capacity)
{
    char subject[PARITY_TEXT], where[64] = "", before[PARITY_TEXT] = "";
    if (attribute != NULL)
        diff_attribute_text(attribute, before, sizeof before);
    if (first == NULL && attribute != NULL) {
        snprintf(out, capacity, "WRONG: %s; %lld tensors that both runs hold agree.", before,
                 (long long)passed);
        return;
    }
    if (first == NULL) {
        snprintf(out, capacity,
                 passed > 0 ? "RIGHT: %lld tensors that both runs hold agree."
                            : "NOT CHECKED: the runs hold no tensor in common (%lld compared).",
                 (long long)passed);
        return;
    }
    subject_of(first->e, subject, sizeof subject);
    if (first->e->microbatch >= 0)
        snprintf(where, sizeof where, ", microbatch %lld", (long long)first->e->microbatch);
    snprintf(out, capacity, "WRONG: %s%s%.300s (%s, step %lld%s): %.480s%s", before,
             before[0] != '\0' ? "; the first tensor that differs is " : "", subject,
             assay_phase_name(first->e->phase), (long long)first->e->step, where,
             r->diagnosis[0] != '\0' ? r->diagnosis : r->message,
             failed > 1 ? ".  (What differs behind it may follow from this.)" : ".");
    assay_clean_text(out);
}
