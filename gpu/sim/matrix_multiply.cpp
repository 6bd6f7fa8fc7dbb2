/* Arithmetic of matrix units on tiles that are already in the simulator's own arrays.  Compiled with vectors and without sanitizers, under
 * which it is half of a test's time: nothing here reads an address of a kernel, and matrix_multiply() checks every bound first. */
#include "matrix.hpp"
#include "simt.hpp"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

namespace sim
{

/* --- exact sums --------------------------------------------------------------------------------------------- */

/* Every step of 16: the products and their sum are exact enough in double, and rounded once.  ROWS x WIDTH sums at once, or each
 * addition waits for the one before, and b is read anew for every row.  FMA: a product of two operands of matrix units is exact in
 * double, so that the bits are the same. */
template <int ROWS, int WIDTH, bool FMA>
static inline __attribute__((always_inline)) void multiply_block(tiles &t, const matrix_row *b, int i, int j,
                                                                 int k)
{
    for (int s = 0; s < k; s += step_k) {
        double sum[ROWS][WIDTH];
        for (int r = 0; r < ROWS; ++r)
            for (int y = 0; y < WIDTH; ++y)
                sum[r][y] = static_cast<double>(t.c[i + r][j + y]);
        for (int x = s; x < s + step_k; ++x)
            for (int r = 0; r < ROWS; ++r)
                for (int y = 0; y < WIDTH; ++y)
                    sum[r][y] = FMA ? __builtin_fma(t.a[i + r][x], b[x][j + y], sum[r][y])
                                    : sum[r][y] + t.a[i + r][x] * b[x][j + y];
        for (int r = 0; r < ROWS; ++r)
            for (int y = 0; y < WIDTH; ++y)
                t.c[i + r][j + y] = static_cast<float>(sum[r][y]);
    }
}
template <int ROWS, int WIDTH, bool FMA>
static inline __attribute__((always_inline)) void multiply_exact(tiles &t, const matrix_row *b, int rows,
                                                                 int columns, int k)
{
    static_assert(16 % ROWS == 0, "tiles have whole sixteens of rows");
    int j = 0;
    for (; j + WIDTH <= columns; j += WIDTH)
        for (int i = 0; i < rows; i += ROWS)
            multiply_block<ROWS, WIDTH, FMA>(t, b, i, j, k);
    for (; j < columns; j += 8)
        for (int i = 0; i < rows; i += ROWS)
            multiply_block<ROWS, 8, FMA>(t, b, i, j, k);
}

/* --- the truncating model -------------------------------------------------------------------------------------- */

/* As published: the terms of a step and the sum are cut to the grid of the largest of them, which has guard_bits more than the
 * accumulator, and the new sum is cut to fp32.  Exponents are read from the bits, and columns of a row taken together, for vectors.
 * Which term is the largest: the largest product (value), or the one whose factors' exponents have the largest sum, whose product may be
 * twice as large (factors). */

constexpr int bias = 1023, fraction_bits = 52;
constexpr double largest_float = 3.4028234663852886e38;

/* Of a normal number, infinity or NaN.  Terms are products of two numbers of at most eight bits of exponent: normal in double. */
static inline __attribute__((always_inline)) int64_t exponent_of(double x)
{
    int64_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (bits >> fraction_bits & 0x7ff) - bias;
}

static inline __attribute__((always_inline)) double power_of_two(int64_t exponent)
{
    const uint64_t bits = static_cast<uint64_t>(exponent + bias) << fraction_bits;
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

double power_below(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    bits &= ~((uint64_t{1} << fraction_bits) - 1);
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* c [WIDTH] += the sums of product [terms][WIDTH] over its rows: one step of the model for each column.  size: numbers of the exponents
 * that count; product itself, or products of the factors' powers of two. */
template <int WIDTH>
static inline __attribute__((always_inline)) void truncated_step(float *c, const double (*product)[WIDTH],
                                                                 const double (*size)[WIDTH], int terms,
                                                                 int guard_bits)
{
    double largest[WIDTH], plain[WIDTH], sum[WIDTH];
    for (int y = 0; y < WIDTH; ++y) {
        plain[y] = static_cast<double>(c[y]);
        largest[y] = fabs(plain[y]);
    }
    for (int k = 0; k < terms; ++k) {
        for (int y = 0; y < WIDTH; ++y) {
            largest[y] = fabs(size[k][y]) > largest[y] ? fabs(size[k][y]) : largest[y];
            plain[y] += product[k][y];
        }
    }
    /* Powers of two: to multiply with the inverse is to divide. */
    double inverse[WIDTH];
    for (int y = 0; y < WIDTH; ++y) {
        inverse[y] = power_of_two(23 + guard_bits - exponent_of(largest[y]));
        sum[y] = trunc(static_cast<double>(c[y]) * inverse[y]);
    }
    for (int k = 0; k < terms; ++k)
        for (int y = 0; y < WIDTH; ++y)
            sum[y] += trunc(product[k][y] * inverse[y]);
    for (int y = 0; y < WIDTH; ++y) {
        const double total = sum[y] * power_of_two(exponent_of(largest[y]) - 23 - guard_bits);
        const int64_t e = exponent_of(total), unit = e < -126 ? -149 : e - 23;
        const double cut = trunc(total * power_of_two(-unit)) * power_of_two(unit);
        const bool special =
            !(largest[y] <= largest_float) || largest[y] == 0.0; /* infinities and NaN; zeros */
        c[y] = static_cast<float>(special ? plain[y] : total == 0.0 ? 0.0 : cut);
    }
}

float truncated_sum(float c, const double *product, const double *size, int k)
{
    const int terms = config().matrix_terms;
    double column[16][1], sizes[16][1];
    for (int x = 0; x < k; x += terms) {
        const int n = k - x < terms ? k - x : terms;
        for (int y = 0; y < n; ++y) {
            column[y][0] = product[x + y];
            sizes[y][0] = config().matrix_by_factors ? size[x + y] : product[x + y];
        }
        truncated_step<1>(&c, column, sizes, n, config().matrix_guard_bits);
    }
    return c;
}

template <int WIDTH>
static inline __attribute__((always_inline)) void multiply_truncated(tiles &t, const matrix_row *b, int rows,
                                                                     int columns, int k)
{
    const int terms = config().matrix_terms, guard = config().matrix_guard_bits;
    const bool by_factors = config().matrix_by_factors;
    double product[16][WIDTH], size[16][WIDTH];
    for (int i = 0; i < rows; ++i) {
        for (int j = 0; j < columns; j += WIDTH) {
            for (int s = 0; s < k; s += terms) {
                for (int x = 0; x < terms; ++x)
                    for (int y = 0; y < WIDTH; ++y)
                        product[x][y] = t.a[i][s + x] * b[s + x][j + y];
                for (int x = 0; by_factors && x < terms; ++x)
                    for (int y = 0; y < WIDTH; ++y)
                        size[x][y] = power_below(t.a[i][s + x]) * power_below(b[s + x][j + y]);
                truncated_step<WIDTH>(&t.c[i][j], product, by_factors ? size : product, terms, guard);
            }
        }
    }
}

/* --- by the processor and the model that is configured ------------------------------------------------------------ */

template <int ROWS, int WIDTH, bool FMA>
static inline __attribute__((always_inline)) void multiply(tiles &t, const matrix_row *b, int rows,
                                                           int columns, int k)
{
    if (config().matrix_truncates)
        multiply_truncated<8>(t, b, rows, columns, k);
    else
        multiply_exact<ROWS, WIDTH, FMA>(t, b, rows, columns, k);
}

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) static void multiply_avx2(tiles &t, const matrix_row *b, int rows,
                                                              int columns, int k)
{
    multiply<2, 16, true>(t, b, rows, columns, k);
}
#if defined(__clang__) /* takes the widest vectors anyway, and knows no such word */
#define WIDE_TARGET "avx512f"
#else
#define WIDE_TARGET "avx512f,prefer-vector-width=512"
#endif
__attribute__((target(WIDE_TARGET))) static void multiply_avx512(tiles &t, const matrix_row *b, int rows,
                                                                 int columns, int k)
{
    multiply<4, 32, true>(t, b, rows, columns, k);
}
static const bool has_avx512 = __builtin_cpu_supports("avx512f") != 0;
#endif

void matrix_multiply(tiles &t, const matrix_row *b, int rows, int columns, int k)
{
    if (rows < 0 || rows > most_rows || rows % 16 != 0 || columns < 0 || columns > most_columns ||
        columns % 8 != 0 || k < 0 || k > most_k || k % step_k != 0)
        abort(); /* who called has reported such sizes of a kernel */
#if defined(__x86_64__)
    if (config().fma && has_avx512) {
        multiply_avx512(t, b, rows, columns, k);
        return;
    }
    if (config().fma) {
        multiply_avx2(t, b, rows, columns, k);
        return;
    }
#endif
    multiply<1, 32, false>(t, b, rows, columns, k);
}

} /* namespace sim */
