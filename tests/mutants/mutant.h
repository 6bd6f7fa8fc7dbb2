/* Read before every file of a build with mutants, and of no other (tests/mutants/plant.cmake). */
#ifndef ASSAY_MUTANT_H
#define ASSAY_MUTANT_H

#include <stdbool.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif
/* ASSAY_MUTANT of the environment, "" where it is not set. */
extern const char *assay_mutant_name;
#ifdef __cplusplus
}
#endif

static inline bool assay_mutant(const char *name)
{
    return strcmp(assay_mutant_name, name) == 0;
}

#endif
