/* Which of its kernels OpenBLAS runs. */
#include "ref/fast/blas_core.h"

#include <cblas.h>
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The second start finds here what the library had chosen at the first. */
static const char guard[] = "ASSAY_OPENBLAS_CORE_BEFORE", coretype[] = "OPENBLAS_CORETYPE";

ref_cpu ref_cpu_here(void)
{
    ref_cpu cpu = {0};
#if defined(__x86_64__)
    __builtin_cpu_init();
    cpu.sse42 = __builtin_cpu_supports("sse4.2");
    cpu.avx = __builtin_cpu_supports("avx");
    cpu.avx2 = __builtin_cpu_supports("avx2");
    cpu.fma = __builtin_cpu_supports("fma");
    cpu.avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512cd") &&
                 __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                 __builtin_cpu_supports("avx512vl");
    cpu.avx512_bf16 = __builtin_cpu_supports("avx512bf16");
#endif
    return cpu;
}

/* The line of types that OpenBLAS takes on CPUs of Intel, newest first; one of the first N_CHOICES is worth a restart. */
enum { N_CHOICES = 5, N_TYPES = 10 };
static const char *const types[N_TYPES] = {"Cooperlake", "SkylakeX", "Haswell", "Sandybridge", "Nehalem",
                                           "Dunnington", "Penryn",   "Core2",   "Atom",        "Prescott"};

static bool can(const ref_cpu *cpu, int type)
{
    const bool haswell = cpu->avx && cpu->avx2 && cpu->fma, skylakex = haswell && cpu->avx512;
    const bool able[N_CHOICES] = {skylakex && cpu->avx512_bf16, skylakex, haswell, cpu->avx, cpu->sse42};
    return able[type];
}

const char *ref_blas_core_choose(const ref_cpu *cpu, const char *corename,
                                 bool (*library_has)(const char *type))
{
    int chosen = 0;
    while (chosen < N_TYPES && strcmp(types[chosen], corename) != 0)
        chosen++;
    for (int k = 0; k < N_CHOICES && k < chosen && chosen < N_TYPES; k++)
        if (can(cpu, k) && library_has(types[k]))
            return types[k];
    return NULL;
}

/* A library with DYNAMIC_ARCH has a table of kernels for each type that it was built with. */
static bool library_has(const char *type)
{
    char symbol[48];
    snprintf(symbol, sizeof symbol, "gotoblas_%s", type);
    for (char *c = symbol + strlen("gotoblas_"); *c != '\0'; c++)
        if (*c >= 'a' && *c <= 'z')
            *c = (char)(*c - 'a' + 'A');
    return dlsym(RTLD_DEFAULT, symbol) != NULL;
}

static bool is_set(const char *name)
{
    const char *value = getenv(name);
    return value != NULL && value[0] != '\0';
}

bool ref_blas_core_tell(void)
{
    if (is_set(coretype) || is_set(guard))
        return false;
    const ref_cpu cpu = ref_cpu_here();
    const char *before = openblas_get_corename(), *type = ref_blas_core_choose(&cpu, before, library_has);
    return type != NULL && setenv(guard, before, 1) == 0 && setenv(coretype, type, 1) == 0;
}

void ref_blas_core_untell(void)
{
    if (!is_set(guard))
        return;
    unsetenv(coretype);
    unsetenv(guard);
}

void ref_blas_core_describe(char *out, size_t capacity)
{
    const char *core = openblas_get_corename();
    if (is_set(guard))
        snprintf(out, capacity, "%s, chosen by assay (the library alone: %s)", core, getenv(guard));
    else if (is_set(coretype))
        snprintf(out, capacity, "%s, chosen by the user (OPENBLAS_CORETYPE=%s)", core, getenv(coretype));
    else
        snprintf(out, capacity, "%s, chosen by the library", core);
}
