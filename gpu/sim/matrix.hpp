/* How matrix units add (matrix_multiply.cpp), for matrix.cpp, wmma.cpp and wgmma.cpp. */
#ifndef ASSAY_SIM_MATRIX_HPP
#define ASSAY_SIM_MATRIX_HPP

namespace sim
{

/* c and k products, by the model that is configured; size: of each the product of its factors' power_below; exact: their sum in double. */
float matrix_step(float c, const double *product, const double *size, int k, double exact);

/* The row and the column of register r of a lane's 16 x 8 result. */
static inline int result_row(int lane, int r)
{
    return (lane >> 2) + (r >> 1) * 8;
}
static inline int result_column(int lane, int r)
{
    return 2 * (lane & 3) + (r & 1);
}

constexpr int most_rows = 64, most_columns = 256, most_k = 256, step_k = 16;

/* Rows are a line longer than what they hold: at distances of a power of two they would share few lines of the cache. */
typedef double matrix_row[most_columns + 8];
struct tiles {
    double a[most_rows][most_k + 8];
    matrix_row b[most_k];
    float c[most_rows][most_columns + 16];
};
/* Of this thread of the operating system. */
tiles &matrix_tiles();
/* c [rows][columns] += a [rows][k] b [k][columns], k ascending in steps of 16, by the model that is configured.  b: t.b, or another's. */
void matrix_multiply(tiles &t, const matrix_row *b, int rows, int columns, int k);
/* c + the sum of k products under the truncating model; size as in matrix_step. */
float truncated_sum(float c, const double *product, const double *size, int k);
/* The power of two at or below |x|, with its sign; 0, infinities (of NaN, too). */
double power_below(double x);

} /* namespace sim */

#endif
