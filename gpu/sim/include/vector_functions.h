/* make_int4() and its relatives, for C and C++. */
#ifndef ASSAY_SIM_VECTOR_FUNCTIONS_H
#define ASSAY_SIM_VECTOR_FUNCTIONS_H

#include "vector_types.h"

#define ASSAY_SIM_MAKE(name, scalar)                                                                         \
    static inline name##1 make_##name##1(scalar vx)                                                          \
    {                                                                                                        \
        name##1 v = {vx};                                                                                    \
        return v;                                                                                            \
    }                                                                                                        \
    static inline name##2 make_##name##2(scalar vx, scalar vy)                                               \
    {                                                                                                        \
        name##2 v = {vx, vy};                                                                                \
        return v;                                                                                            \
    }                                                                                                        \
    static inline name##3 make_##name##3(scalar vx, scalar vy, scalar vz)                                    \
    {                                                                                                        \
        name##3 v = {vx, vy, vz};                                                                            \
        return v;                                                                                            \
    }                                                                                                        \
    static inline name##4 make_##name##4(scalar vx, scalar vy, scalar vz, scalar vw)                         \
    {                                                                                                        \
        name##4 v = {vx, vy, vz, vw};                                                                        \
        return v;                                                                                            \
    }

ASSAY_SIM_MAKE(char, signed char)
ASSAY_SIM_MAKE(uchar, unsigned char)
ASSAY_SIM_MAKE(short, short)
ASSAY_SIM_MAKE(ushort, unsigned short)
ASSAY_SIM_MAKE(int, int)
ASSAY_SIM_MAKE(uint, unsigned int)
ASSAY_SIM_MAKE(long, long)
ASSAY_SIM_MAKE(ulong, unsigned long)
ASSAY_SIM_MAKE(longlong, long long)
ASSAY_SIM_MAKE(ulonglong, unsigned long long)
ASSAY_SIM_MAKE(float, float)
ASSAY_SIM_MAKE(double, double)

#undef ASSAY_SIM_MAKE

#endif
