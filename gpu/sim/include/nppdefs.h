/* Stands before the CUDA toolkit's header of this name, which must not be mixed with the simulator's. */
#error "gpu/sim: <nppdefs.h>: NPP is not modelled by the simulator (docs/SIMULATOR.md)"
