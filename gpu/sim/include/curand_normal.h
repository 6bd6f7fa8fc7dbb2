/* Stands before the CUDA toolkit's header of this name, which must not be mixed with the simulator's. */
#error "gpu/sim: <curand_normal.h>: cuRAND is not modelled by the simulator (docs/SIMULATOR.md)"
