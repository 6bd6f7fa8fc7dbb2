/* The primitives; nvcuda::experimental::pipeline, which cuda::pipeline has replaced, is not modelled and not declared. */
#include "cuda_pipeline_primitives.h"
