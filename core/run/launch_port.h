/* The address at which the ranks of one launch meet. */
#ifndef ASSAY_CORE_RUN_LAUNCH_PORT_H
#define ASSAY_CORE_RUN_LAUNCH_PORT_H

#include "core/base/status.h"
#include <stddef.h>

/* `address`: 127.0.0.1 and a port that no other program is given while *out, a socket, is open; rank 0 may listen on it.  ASSAY_IO. */
assay_status assay_launch_port(int *out, char *address, size_t capacity);

#endif
