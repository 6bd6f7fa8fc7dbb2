/* In the simulator what CUDA's header of this name declares is in cublas_v2.h. */
#include "cublas_v2.h"
