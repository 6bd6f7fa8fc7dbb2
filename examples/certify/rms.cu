/* A plain CUDA kernel for `assay certify --cu`: rmsnorm_fwd (docs/OPS.md 3), a block for each row.
 *
 *   assay certify --cu examples/certify/rms.cu --operation rmsnorm_fwd \
 *       --launch 'rms<act><<<T, 256>>>(y, rstd, x, gamma, eps, H)'          (--compiler nvcc: on a device) */
template <class T> __global__ void rms(T *y, float *rstd, const T *x, const T *gamma, float eps, long columns)
{
    __shared__ float part[256];
    const T *row = x + blockIdx.x * columns;
    float sum = 0.0f;
    for (long i = threadIdx.x; i < columns; i += blockDim.x)
        sum += (float)row[i] * (float)row[i];
    part[threadIdx.x] = sum;
    __syncthreads();
    for (unsigned n = blockDim.x / 2; n > 0; n /= 2) {
        if (threadIdx.x < n)
            part[threadIdx.x] += part[threadIdx.x + n];
        __syncthreads();
    }
    const float r = rsqrtf(part[0] / (float)columns + eps);
    if (threadIdx.x == 0)
        rstd[blockIdx.x] = r;
    for (long i = threadIdx.x; i < columns; i += blockDim.x)
        y[blockIdx.x * columns + i] = (T)((float)row[i] * r * (float)gamma[i]);
}
