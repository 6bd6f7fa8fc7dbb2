/* Preloaded by a test: an OpenBLAS that is older than the CPU.  It takes its oldest kernels unless it is told others. */
#include <stdlib.h>

char *openblas_get_corename(void);

char *openblas_get_corename(void)
{
    static char oldest[] = "Prescott";
    char *told = getenv("OPENBLAS_CORETYPE");
    return told != NULL && told[0] != '\0' ? told : oldest;
}
