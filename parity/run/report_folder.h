/* The folder of a report: only one that assay made, by one run at a time. */
#ifndef PARITY_REPORT_FOLDER_H
#define PARITY_REPORT_FOLDER_H

#include "core/base/status.h"

/* Makes the folder, or takes one that is empty or carries assay's marker (.assay-report); anything else is refused, and
 * nothing in it is touched.  *lock is held until it is closed, by forked children, too: a second run is refused by the
 * process number of the first, also after that one was killed, for as long as something of it still runs.
 * ASSAY_INVALID_ARGUMENT: somebody else's folder; ASSAY_IO: cannot be made, or is in use. */
assay_status parity_report_folder_open(const char *dir, int *lock);
/* An empty folder DIR/work for scratch: that of an earlier run is deleted when it carries a marker of its own. */
assay_status parity_report_folder_work(const char *dir);
/* Deletes the report of an earlier run: one that does not come to its end leaves no older verdict.  ASSAY_IO. */
assay_status parity_report_folder_clear(const char *dir);

/* Removes the reference runs that tasks of a case left for each other in its folder. */
assay_status parity_report_folder_drop_runs(const char *case_dir);

#endif
