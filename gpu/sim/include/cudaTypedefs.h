/* The types of the driver interface; its function pointer types (PFN_cuXxx) are not declared: nothing hands such pointers out. */
#ifndef ASSAY_SIM_CUDA_TYPEDEFS_H
#define ASSAY_SIM_CUDA_TYPEDEFS_H
#include "cuda.h"
#endif
