/* How matrix units add (matrix.cpp), for matrix.cpp and wmma.cpp. */
#ifndef ASSAY_SIM_MATRIX_HPP
#define ASSAY_SIM_MATRIX_HPP

namespace sim
{

/* c and k products, by the model that is configured; exact: their sum in double. */
float matrix_step(float c, const double *product, int k, double exact);

} /* namespace sim */

#endif
