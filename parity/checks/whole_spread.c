/* How far one more run may lie from the truth when r runs lie as far as they do.
 *
 * The errors of a slice are a vector of a law with covariance C, of the candidate and of each perturbed run alike.  The sum of
 * squares of one run is distributed nearly as tr C / nu times a chi-square with nu = (tr C)^2 / tr C^2 degrees of freedom
 * (Satterthwaite).  nu is not known, and it matters when it is small: four runs of errors along one direction say
 * little about the fifth.
 *
 * For differences x, y of two pairs of runs that have no run in common, E (x.y)^2 = 4 tr C^2 and E |x|^2 = 2 tr C: the squared
 * cosine between them is 1 / nu on average, exactly 1 where all errors have one direction.  Three ways to pair four runs are
 * three cosines.  Where all directions are alike, few cosines are enough: the candidate's sum of squares has nu degrees of freedom
 * itself, so its ratio to the runs' follows F(nu, r nu), whose tail lies below that of t^2 = F(1, r nu), from which kappa is taken.
 * A factor with many small errors beside it is called wrong too often: four runs that draw little of the factor have a spread that
 * is too small and cosines that do not show it.  So what four runs call wrong is judged again with sixteen, twelve cosines among
 * them.  How often: tests/parity/test_whole_spread.c, docs/TOLERANCES.md section 7. */
#include "parity/checks/whole.h"

#include <assert.h>
#include <math.h>

double parity_whole_kappa(double nu)
{
    const double z = 4.0, z2 = z * z, z3 = z2 * z, z5 = z3 * z2, z7 = z5 * z2;
    return z + (z3 + z) / (4.0 * nu) + (5.0 * z5 + 16.0 * z3 + 3.0 * z) / (96.0 * nu * nu) +
           (3.0 * z7 + 19.0 * z5 + 17.0 * z3 - 15.0 * z) / (384.0 * nu * nu * nu);
}

double parity_whole_freedom(double gram[PARITY_WHOLE_RUNS][PARITY_WHOLE_RUNS], int runs, int64_t n)
{
    static const int split[3][4] = {{1, 0, 3, 2}, {2, 0, 3, 1}, {3, 0, 2, 1}}; /* runs a - b beside c - d */
    static_assert(PARITY_WHOLE_FIRST_RUNS == 4 && PARITY_WHOLE_RUNS % 4 == 0, "two pairs of every four runs");
    double cosines = 0.0, splits = 0.0;
    for (int first = 0; first + 4 <= runs; first += 4)
        for (int i = 0; i < 3; i++) {
            const int a = first + split[i][0], b = first + split[i][1], c = first + split[i][2],
                      d = first + split[i][3];
            const double x = gram[a][a] + gram[b][b] - 2.0 * gram[a][b];
            const double y = gram[c][c] + gram[d][d] - 2.0 * gram[c][d];
            const double dot = gram[a][c] - gram[a][d] - gram[b][c] + gram[b][d];
            if (x > 0.0 && y > 0.0) {
                cosines += dot / x * (dot / y);
                splits += 1.0;
            }
        }
    return cosines * (double)n > splits ? fmax(1.0, splits / cosines) : (double)n;
}
