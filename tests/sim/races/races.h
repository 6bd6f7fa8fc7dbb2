/* Small kernels for the race checker: racy ones, whose lines are marked with the comments a: NAME and b: NAME, and clean ones. */
#ifndef TESTS_SIM_RACES_H
#define TESTS_SIM_RACES_H

#include "gpu/launch.cuh"

struct race_case {
    const char *name;
    const char *kind;  /* of the report; NULL: none may come */
    const char *words; /* that the report must hold as well */
    const char *file;
    void (*body)(int *x, int *y); /* 4096 integers each, all 0 */
    int reports =
        0; /* how many lines there must be, of a launch that ends with cudaErrorIllegalAddress; 0: not looked at */
    const char *also = nullptr; /* the kind of another report, of the line marked c: NAME */
    int marks =
        -1; /* which lines the report has to name: 2: a and b, 1: a, 0: none; -1: 2 of a race, else 1 */
};

/* A case that declares its marks. */
#define MARKED(name, kind, words, marks)                                                                     \
    {                                                                                                        \
#name, kind, words, __FILE__, run_##name, 0, nullptr, marks                                          \
    }

extern const race_case RACES_IN_BLOCKS[], RACES_IN_GRIDS[], RACES_OF_MEMORY[], COOPERATIVE[], BAD_ACCESS[],
    RACES_OF_TILES[], RACES_WITH_LIBRARIES[], CLEAN[];

#define LAUNCH_CASE(name, grid, block, bytes)                                                                \
    static void run_##name(int *x, int *y)                                                                   \
    {                                                                                                        \
        (void)GPU_LAUNCH(name, grid, block, bytes, nullptr, x, y);                                           \
    }

#endif
