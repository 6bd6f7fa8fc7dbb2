/* Stands before the CUDA toolkit's header of this name, which must not be mixed with the simulator's. */
#error                                                                                                       \
    "gpu/sim: <math_constants.h>: the CUDART constants is not modelled by the simulator (docs/SIMULATOR.md)"
