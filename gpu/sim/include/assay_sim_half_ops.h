/* The operators and intrinsics that CUDA spells alike for half and bfloat16.  Included by cuda_fp16.h and
 * cuda_bf16.h with ASSAY_SIM_HALF  the scalar type      ASSAY_SIM_HALF2  the pair type ASSAY_SIM_FROM_F64(x)
 * correctly rounded bits defined; no include guard, on purpose.  Sums, products and quotients of two short
 * floats computed in float and rounded once more are correctly rounded (float has at least 2p+2 bits for both
 * formats). */

static inline ASSAY_SIM_HALF operator+(const ASSAY_SIM_HALF &a, const ASSAY_SIM_HALF &b)
{
    return ASSAY_SIM_HALF(float(a) + float(b));
}
static inline ASSAY_SIM_HALF operator-(const ASSAY_SIM_HALF &a, const ASSAY_SIM_HALF &b)
{
    return ASSAY_SIM_HALF(float(a) - float(b));
}
static inline ASSAY_SIM_HALF operator*(const ASSAY_SIM_HALF &a, const ASSAY_SIM_HALF &b)
{
    return ASSAY_SIM_HALF(float(a) * float(b));
}
static inline ASSAY_SIM_HALF operator/(const ASSAY_SIM_HALF &a, const ASSAY_SIM_HALF &b)
{
    return ASSAY_SIM_HALF(float(a) / float(b));
}
static inline ASSAY_SIM_HALF &operator+=(ASSAY_SIM_HALF &a, const ASSAY_SIM_HALF &b)
{
    return a = a + b;
}
static inline ASSAY_SIM_HALF &operator-=(ASSAY_SIM_HALF &a, const ASSAY_SIM_HALF &b)
{
    return a = a - b;
}
static inline ASSAY_SIM_HALF &operator*=(ASSAY_SIM_HALF &a, const ASSAY_SIM_HALF &b)
{
    return a = a * b;
}
static inline ASSAY_SIM_HALF &operator/=(ASSAY_SIM_HALF &a, const ASSAY_SIM_HALF &b)
{
    return a = a / b;
}
static inline ASSAY_SIM_HALF operator+(const ASSAY_SIM_HALF &a)
{
    return a;
}
static inline ASSAY_SIM_HALF operator-(const ASSAY_SIM_HALF &a)
{
    return ASSAY_SIM_HALF(-float(a));
}
static inline bool operator==(const ASSAY_SIM_HALF &a, const ASSAY_SIM_HALF &b)
{
    return float(a) == float(b);
}
static inline bool operator!=(const ASSAY_SIM_HALF &a, const ASSAY_SIM_HALF &b)
{
    return float(a) != float(b);
}
static inline bool operator<(const ASSAY_SIM_HALF &a, const ASSAY_SIM_HALF &b)
{
    return float(a) < float(b);
}
static inline bool operator<=(const ASSAY_SIM_HALF &a, const ASSAY_SIM_HALF &b)
{
    return float(a) <= float(b);
}
static inline bool operator>(const ASSAY_SIM_HALF &a, const ASSAY_SIM_HALF &b)
{
    return float(a) > float(b);
}
static inline bool operator>=(const ASSAY_SIM_HALF &a, const ASSAY_SIM_HALF &b)
{
    return float(a) >= float(b);
}

static inline ASSAY_SIM_HALF __hadd(ASSAY_SIM_HALF a, ASSAY_SIM_HALF b)
{
    return a + b;
}
static inline ASSAY_SIM_HALF __hsub(ASSAY_SIM_HALF a, ASSAY_SIM_HALF b)
{
    return a - b;
}
static inline ASSAY_SIM_HALF __hmul(ASSAY_SIM_HALF a, ASSAY_SIM_HALF b)
{
    return a * b;
}
static inline ASSAY_SIM_HALF __hadd_rn(ASSAY_SIM_HALF a, ASSAY_SIM_HALF b)
{
    return a + b;
}
static inline ASSAY_SIM_HALF __hsub_rn(ASSAY_SIM_HALF a, ASSAY_SIM_HALF b)
{
    return a - b;
}
static inline ASSAY_SIM_HALF __hmul_rn(ASSAY_SIM_HALF a, ASSAY_SIM_HALF b)
{
    return a * b;
}
static inline ASSAY_SIM_HALF __hdiv(ASSAY_SIM_HALF a, ASSAY_SIM_HALF b)
{
    return a / b;
}
static inline ASSAY_SIM_HALF __hneg(ASSAY_SIM_HALF a)
{
    return -a;
}
static inline ASSAY_SIM_HALF __habs(ASSAY_SIM_HALF a)
{
    return ASSAY_SIM_HALF(fabsf(float(a)));
}
static inline ASSAY_SIM_HALF __hfma(ASSAY_SIM_HALF a, ASSAY_SIM_HALF b, ASSAY_SIM_HALF c)
{
    ASSAY_SIM_HALF r;
    r.__x = ASSAY_SIM_FROM_F64(assay_sim_fma_to_odd(double(float(a)), double(float(b)), double(float(c))));
    return r;
}
static inline bool __heq(ASSAY_SIM_HALF a, ASSAY_SIM_HALF b)
{
    return a == b;
}
static inline bool __hne(ASSAY_SIM_HALF a, ASSAY_SIM_HALF b)
{
    return float(a) < float(b) || float(a) > float(b); /* ordered: false for a NaN */
}
static inline bool __hlt(ASSAY_SIM_HALF a, ASSAY_SIM_HALF b)
{
    return a < b;
}
static inline bool __hle(ASSAY_SIM_HALF a, ASSAY_SIM_HALF b)
{
    return a <= b;
}
static inline bool __hgt(ASSAY_SIM_HALF a, ASSAY_SIM_HALF b)
{
    return a > b;
}
static inline bool __hge(ASSAY_SIM_HALF a, ASSAY_SIM_HALF b)
{
    return a >= b;
}
static inline bool __hisnan(ASSAY_SIM_HALF a)
{
    return float(a) != float(a);
}
static inline int __hisinf(ASSAY_SIM_HALF a)
{
    return float(a) == INFINITY ? 1 : float(a) == -INFINITY ? -1 : 0;
}
static inline ASSAY_SIM_HALF __hmax(ASSAY_SIM_HALF a, ASSAY_SIM_HALF b)
{
    return ASSAY_SIM_HALF(fmaxf(float(a), float(b)));
}
static inline ASSAY_SIM_HALF __hmin(ASSAY_SIM_HALF a, ASSAY_SIM_HALF b)
{
    return ASSAY_SIM_HALF(fminf(float(a), float(b)));
}
static inline ASSAY_SIM_HALF __hmax_nan(ASSAY_SIM_HALF a, ASSAY_SIM_HALF b)
{
    return __hisnan(a) || __hisnan(b) ? ASSAY_SIM_HALF(NAN) : __hmax(a, b);
}
static inline ASSAY_SIM_HALF __hmin_nan(ASSAY_SIM_HALF a, ASSAY_SIM_HALF b)
{
    return __hisnan(a) || __hisnan(b) ? ASSAY_SIM_HALF(NAN) : __hmin(a, b);
}
static inline ASSAY_SIM_HALF hsqrt(ASSAY_SIM_HALF a)
{
    return ASSAY_SIM_HALF(sqrt(double(float(a))));
}
static inline ASSAY_SIM_HALF hrsqrt(ASSAY_SIM_HALF a)
{
    return ASSAY_SIM_HALF(1.0 / sqrt(double(float(a))));
}
static inline ASSAY_SIM_HALF hrcp(ASSAY_SIM_HALF a)
{
    return ASSAY_SIM_HALF(1.0f / float(a));
}
static inline ASSAY_SIM_HALF hexp(ASSAY_SIM_HALF a)
{
    return ASSAY_SIM_HALF(exp(double(float(a))));
}
static inline ASSAY_SIM_HALF hlog(ASSAY_SIM_HALF a)
{
    return ASSAY_SIM_HALF(log(double(float(a))));
}
static inline ASSAY_SIM_HALF hexp2(ASSAY_SIM_HALF a)
{
    return ASSAY_SIM_HALF(exp2(double(float(a))));
}
static inline ASSAY_SIM_HALF hlog2(ASSAY_SIM_HALF a)
{
    return ASSAY_SIM_HALF(log2(double(float(a))));
}
static inline ASSAY_SIM_HALF htanh(ASSAY_SIM_HALF a)
{
    return ASSAY_SIM_HALF(tanh(double(float(a))));
}
static inline ASSAY_SIM_HALF hrint(ASSAY_SIM_HALF a)
{
    return ASSAY_SIM_HALF(rintf(float(a)));
}
static inline ASSAY_SIM_HALF hfloor(ASSAY_SIM_HALF a)
{
    return ASSAY_SIM_HALF(floorf(float(a)));
}
static inline ASSAY_SIM_HALF hceil(ASSAY_SIM_HALF a)
{
    return ASSAY_SIM_HALF(ceilf(float(a)));
}
static inline ASSAY_SIM_HALF htrunc(ASSAY_SIM_HALF a)
{
    return ASSAY_SIM_HALF(truncf(float(a)));
}

static inline ASSAY_SIM_HALF2 __hadd2(ASSAY_SIM_HALF2 a, ASSAY_SIM_HALF2 b)
{
    return ASSAY_SIM_HALF2(a.x + b.x, a.y + b.y);
}
static inline ASSAY_SIM_HALF2 __hsub2(ASSAY_SIM_HALF2 a, ASSAY_SIM_HALF2 b)
{
    return ASSAY_SIM_HALF2(a.x - b.x, a.y - b.y);
}
static inline ASSAY_SIM_HALF2 __hmul2(ASSAY_SIM_HALF2 a, ASSAY_SIM_HALF2 b)
{
    return ASSAY_SIM_HALF2(a.x * b.x, a.y * b.y);
}
static inline ASSAY_SIM_HALF2 __h2div(ASSAY_SIM_HALF2 a, ASSAY_SIM_HALF2 b)
{
    return ASSAY_SIM_HALF2(a.x / b.x, a.y / b.y);
}
static inline ASSAY_SIM_HALF2 __hneg2(ASSAY_SIM_HALF2 a)
{
    return ASSAY_SIM_HALF2(-a.x, -a.y);
}
static inline ASSAY_SIM_HALF2 __habs2(ASSAY_SIM_HALF2 a)
{
    return ASSAY_SIM_HALF2(__habs(a.x), __habs(a.y));
}
static inline ASSAY_SIM_HALF2 __hfma2(ASSAY_SIM_HALF2 a, ASSAY_SIM_HALF2 b, ASSAY_SIM_HALF2 c)
{
    return ASSAY_SIM_HALF2(__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y));
}
static inline ASSAY_SIM_HALF2 __hmax2(ASSAY_SIM_HALF2 a, ASSAY_SIM_HALF2 b)
{
    return ASSAY_SIM_HALF2(__hmax(a.x, b.x), __hmax(a.y, b.y));
}
static inline ASSAY_SIM_HALF2 __hmin2(ASSAY_SIM_HALF2 a, ASSAY_SIM_HALF2 b)
{
    return ASSAY_SIM_HALF2(__hmin(a.x, b.x), __hmin(a.y, b.y));
}
static inline ASSAY_SIM_HALF2 operator+(const ASSAY_SIM_HALF2 &a, const ASSAY_SIM_HALF2 &b)
{
    return __hadd2(a, b);
}
static inline ASSAY_SIM_HALF2 operator-(const ASSAY_SIM_HALF2 &a, const ASSAY_SIM_HALF2 &b)
{
    return __hsub2(a, b);
}
static inline ASSAY_SIM_HALF2 operator*(const ASSAY_SIM_HALF2 &a, const ASSAY_SIM_HALF2 &b)
{
    return __hmul2(a, b);
}
static inline ASSAY_SIM_HALF2 operator/(const ASSAY_SIM_HALF2 &a, const ASSAY_SIM_HALF2 &b)
{
    return __h2div(a, b);
}
static inline ASSAY_SIM_HALF2 &operator+=(ASSAY_SIM_HALF2 &a, const ASSAY_SIM_HALF2 &b)
{
    return a = a + b;
}
static inline ASSAY_SIM_HALF2 &operator*=(ASSAY_SIM_HALF2 &a, const ASSAY_SIM_HALF2 &b)
{
    return a = a * b;
}
static inline bool operator==(const ASSAY_SIM_HALF2 &a, const ASSAY_SIM_HALF2 &b)
{
    return a.x == b.x && a.y == b.y;
}
static inline bool operator!=(const ASSAY_SIM_HALF2 &a, const ASSAY_SIM_HALF2 &b)
{
    return a.x != b.x || a.y != b.y;
}
static inline float __low2float(ASSAY_SIM_HALF2 a)
{
    return float(a.x);
}
static inline float __high2float(ASSAY_SIM_HALF2 a)
{
    return float(a.y);
}
