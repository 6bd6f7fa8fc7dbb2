/* The files of a report folder. */
#ifndef PARITY_REPORT_WRITE_H
#define PARITY_REPORT_WRITE_H

#include "parity/parity.h"

/* results.jsonl, junit.xml, index.html, facts.json in `dir`, and the summary in Markdown where one is asked for.  facts: what the
 * run tells about itself; its member "times" (seconds and seed of each task) is not for people. */
assay_status parity_report_write(const parity_report *r, const char *dir, const char *title,
                                 const json_t *facts, const char *summary);

/* Date, host, version and command of this process. */
void parity_report_facts(json_t *facts, int argc, char *const *argv);

/* What a part told about itself joins what others told: numbers are added, texts that differ stand side by side, tasks are
 * united. */
assay_status parity_report_join_facts(json_t *all, const json_t *part);

/* Writes the summary's file, empty: that it cannot be written is known before the first task. */
assay_status parity_report_open_summary(const char *summary);

/* --summary -: the summary alone goes to standard output, everything else from here on to standard error. */
assay_status parity_report_claim_stdout(const char *summary);

#endif
