/* SIGINT and SIGTERM as a wish to stop at the end of the step. */
#ifndef ASSAY_RUN_STOP_H
#define ASSAY_RUN_STOP_H

#include "core/base/status.h"

ASSAY_BEGIN_DECLS

/* From here on the two signals are counted, and do nothing else. */
void assay_stop_catch(void);
int assay_stop_asked(void);

ASSAY_END_DECLS

#endif
