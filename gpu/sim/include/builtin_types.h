/* In the simulator what CUDA's header of this name declares is in cuda_runtime.h. */
#include "cuda_runtime.h"
