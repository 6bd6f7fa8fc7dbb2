/* The older place of NVTX's header. */
#include "nvtx3/nvToolsExt.h"
