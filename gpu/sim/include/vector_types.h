/* Built-in vector types of CUDA, laid out and aligned as CUDA documents them, so that a kernel that reads a
 * float4 through reinterpret_cast sees the same bytes here and on a GPU.
 * Source: CUDA C++ Programming Guide, "Built-in Vector Types" (alignment table). */
#ifndef ASSAY_SIM_VECTOR_TYPES_H
#define ASSAY_SIM_VECTOR_TYPES_H

#define ASSAY_SIM_ALIGN(n) __attribute__((aligned(n)))

#define ASSAY_SIM_VECTOR(name, scalar, align2, align4)                                                       \
    typedef struct name##1                                                                                   \
    {                                                                                                        \
        scalar x;                                                                                            \
    }                                                                                                        \
    name##1;                                                                                                 \
    typedef struct ASSAY_SIM_ALIGN(align2) name##2                                                           \
    {                                                                                                        \
        scalar x, y;                                                                                         \
    }                                                                                                        \
    name##2;                                                                                                 \
    typedef struct name##3                                                                                   \
    {                                                                                                        \
        scalar x, y, z;                                                                                      \
    }                                                                                                        \
    name##3;                                                                                                 \
    typedef struct ASSAY_SIM_ALIGN(align4) name##4                                                           \
    {                                                                                                        \
        scalar x, y, z, w;                                                                                   \
    }                                                                                                        \
    name##4;

ASSAY_SIM_VECTOR(char, signed char, 2, 4)
ASSAY_SIM_VECTOR(uchar, unsigned char, 2, 4)
ASSAY_SIM_VECTOR(short, short, 4, 8)
ASSAY_SIM_VECTOR(ushort, unsigned short, 4, 8)
ASSAY_SIM_VECTOR(int, int, 8, 16)
ASSAY_SIM_VECTOR(uint, unsigned int, 8, 16)
ASSAY_SIM_VECTOR(long, long, 16, 16)
ASSAY_SIM_VECTOR(ulong, unsigned long, 16, 16)
ASSAY_SIM_VECTOR(longlong, long long, 16, 16)
ASSAY_SIM_VECTOR(ulonglong, unsigned long long, 16, 16)
ASSAY_SIM_VECTOR(float, float, 8, 16)
ASSAY_SIM_VECTOR(double, double, 16, 16)

#undef ASSAY_SIM_VECTOR

typedef struct dim3 {
    unsigned int x, y, z;
#ifdef __cplusplus
    constexpr dim3(unsigned int vx = 1, unsigned int vy = 1, unsigned int vz = 1) : x(vx), y(vy), z(vz)
    {
    }
    constexpr dim3(uint3 v) : x(v.x), y(v.y), z(v.z)
    {
    }
    constexpr operator uint3() const
    {
        return uint3{x, y, z};
    }
#endif
} dim3;

#endif
