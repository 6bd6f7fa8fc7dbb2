/* The mutant that this process runs with.  ci/mutants.sh sets ASSAY_MUTANT; a name that no file has changes nothing, and the
 * script then says that nothing was caught. */
#include "tests/mutants/mutant.h"
#include <stdlib.h>

const char *assay_mutant_name = "";

__attribute__((constructor)) static void read_name(void)
{
    const char *name = getenv("ASSAY_MUTANT");
    assay_mutant_name = name ? name : "";
}
