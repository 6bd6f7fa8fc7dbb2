/* nvcuda::wmma against plain loops: every shape, type and layout.  Prints what tests/sim/test_cc.c expects. */
#include <mma.h>
#include <stdio.h>
#include <vector>

using namespace nvcuda;

template <class T> struct tag {
    typedef T memory;
};
template <> struct tag<wmma::precision::tf32> {
    typedef float memory;
};

template <int m, int n, int k, class T, class A, class B, class C, class D>
__global__ void product(D *d, const typename tag<T>::memory *a, const typename tag<T>::memory *b, const C *c,
                        int lda, int ldb, int ldc, wmma::layout_t layout, float alpha)
{
    wmma::fragment<wmma::matrix_a, m, n, k, T, A> fa;
    wmma::fragment<wmma::matrix_b, m, n, k, T, B> fb;
    wmma::fragment<wmma::accumulator, m, n, k, C> fc;
    wmma::fragment<wmma::accumulator, m, n, k, D> fd;
    wmma::load_matrix_sync(fa, a, lda);
    wmma::load_matrix_sync(fb, b, ldb);
    wmma::load_matrix_sync(fc, c, ldc, layout);
    if constexpr (std::is_same<T, wmma::precision::tf32>::value) {
        for (int i = 0; i < fa.num_elements; ++i)
            fa.x[i] = wmma::__float_to_tf32(fa.x[i]);
        for (int i = 0; i < fb.num_elements; ++i)
            fb.x[i] = wmma::__float_to_tf32(fb.x[i]);
    }
    wmma::mma_sync(fd, fa, fb, fc);
    wmma::mma_sync(fd, fa, fb, fd);
    for (int i = 0; i < fd.num_elements; ++i)
        fd.x[i] = static_cast<D>(alpha * static_cast<float>(fd.x[i]));
    wmma::store_matrix_sync(d, fd, ldc, layout);
}

static int failures;

static unsigned draw(unsigned n)
{
    static unsigned state = 1;
    state = state * 1664525u + 1013904223u;
    return (state >> 16) % n;
}

/* A leading dimension that every type may have. */
static int room(int n)
{
    return n <= 16 ? 32 : 48;
}

static int at(int row, int column, int ld, bool by_column)
{
    return by_column ? column * ld + row : row * ld + column;
}

/* Small integers, of which every sum is exact in all of the types. */
template <int m, int n, int k, class T, class A, class B, class C, class D> void one(bool by_column)
{
    typedef typename tag<T>::memory E;
    constexpr bool ca = std::is_same<A, wmma::col_major>::value, cb = std::is_same<B, wmma::col_major>::value;
    const int lda = room(ca ? m : k), ldb = room(cb ? k : n), ldc = room(by_column ? m : n);
    std::vector<E> a(48 * 48), b(48 * 48);
    std::vector<C> c(48 * 48);
    std::vector<D> d(48 * 48);
    for (int i = 0; i < 48 * 48; ++i) {
        a[i] = E(float(int(draw(5)) - (std::is_same<T, unsigned char>::value ? 0 : 2)));
        b[i] = E(float(draw(3)));
        c[i] = C(float(draw(9)));
        d[i] = D(0.0f);
    }
    E *pa, *pb;
    C *pc;
    D *pd;
    cudaMalloc(&pa, a.size() * sizeof(E));
    cudaMalloc(&pb, b.size() * sizeof(E));
    cudaMalloc(&pc, c.size() * sizeof(C));
    cudaMalloc(&pd, d.size() * sizeof(D));
    cudaMemcpy(pa, a.data(), a.size() * sizeof(E), cudaMemcpyHostToDevice);
    cudaMemcpy(pb, b.data(), b.size() * sizeof(E), cudaMemcpyHostToDevice);
    cudaMemcpy(pc, c.data(), c.size() * sizeof(C), cudaMemcpyHostToDevice);
    cudaMemcpy(pd, d.data(), d.size() * sizeof(D), cudaMemcpyHostToDevice);
    product<m, n, k, T, A, B, C, D><<<1, 32>>>(pd, pa, pb, pc, lda, ldb, ldc,
                                               by_column ? wmma::mem_col_major : wmma::mem_row_major, 2.0f);
    if (cudaMemcpy(d.data(), pd, d.size() * sizeof(D), cudaMemcpyDeviceToHost) != cudaSuccess)
        ++failures;
    for (int i = 0; i < m; ++i) {
        for (int j = 0; j < n; ++j) {
            float sum = float(c[at(i, j, ldc, by_column)]);
            for (int twice = 0; twice < 2; ++twice) {
                for (int x = 0; x < k; ++x)
                    sum += float(a[at(i, x, lda, ca)]) * float(b[at(x, j, ldb, cb)]);
            }
            failures += !(float(d[at(i, j, ldc, by_column)]) == 2.0f * sum);
        }
    }
    cudaFree(pa);
    cudaFree(pb);
    cudaFree(pc);
    cudaFree(pd);
}

template <int m, int n, int k, class T, class C, class D> void layouts()
{
    one<m, n, k, T, wmma::row_major, wmma::col_major, C, D>(false);
    one<m, n, k, T, wmma::col_major, wmma::row_major, C, D>(true);
}

template <class T, class C, class D> void shapes()
{
    layouts<16, 16, 16, T, C, D>();
    layouts<32, 8, 16, T, C, D>();
    layouts<8, 32, 16, T, C, D>();
}

/* 1 + 16 products of 2^-26: what a step of 16 does with terms below the last bit of the sum. */
__global__ void small_terms(float *out)
{
    wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> a;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major> b;
    wmma::fragment<wmma::accumulator, 16, 16, 16, float> c;
    wmma::fill_fragment(a, half(0.0001220703125f));
    wmma::fill_fragment(b, half(0.0001220703125f));
    wmma::fill_fragment(c, 1.0f);
    wmma::mma_sync(c, a, b, c);
    wmma::store_matrix_sync(out, c, 16, wmma::mem_row_major);
}

/* Sums that leave their type, with and without saturation. */
__global__ void limits(float *f, int *whole)
{
    wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> a;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::row_major> b;
    wmma::fragment<wmma::accumulator, 16, 16, 16, half> c, d;
    wmma::fill_fragment(a, half(200.0f));
    wmma::fill_fragment(b, half(200.0f));
    wmma::fill_fragment(c, half(0.0f));
    for (int saturate = 0; saturate < 2; ++saturate) {
        wmma::mma_sync(d, a, b, c, saturate != 0);
        if (threadIdx.x == 0)
            f[saturate] = float(d.x[0]);
    }
    wmma::fragment<wmma::matrix_a, 16, 16, 16, signed char, wmma::row_major> ia;
    wmma::fragment<wmma::matrix_b, 16, 16, 16, signed char, wmma::row_major> ib;
    wmma::fragment<wmma::accumulator, 16, 16, 16, int> ic, id;
    wmma::fill_fragment(ia, 1);
    wmma::fill_fragment(ib, 1);
    wmma::fill_fragment(ic, 2147483640);
    for (int saturate = 0; saturate < 2; ++saturate) {
        wmma::mma_sync(id, ia, ib, ic, saturate != 0);
        if (threadIdx.x == 0)
            whole[saturate] = id.x[0];
    }
}

int main()
{
    shapes<half, float, float>();
    shapes<half, half, half>();
    shapes<half, half, float>();
    shapes<half, float, half>();
    shapes<__nv_bfloat16, float, float>();
    shapes<signed char, int, int>();
    shapes<unsigned char, int, int>();
    one<16, 16, 16, half, wmma::row_major, wmma::row_major, float, float>(true);
    one<16, 16, 16, half, wmma::col_major, wmma::col_major, float, float>(false);
    layouts<16, 16, 8, wmma::precision::tf32, float, float>();
    layouts<8, 8, 4, double, double, double>();
    printf("%d wrong\n", failures);
    float *out, h[2];
    int *whole, w[2];
    cudaMalloc(&out, 256 * sizeof(float));
    cudaMalloc(&whole, 2 * sizeof(int));
    small_terms<<<1, 32>>>(out);
    cudaMemcpy(h, out, sizeof h, cudaMemcpyDeviceToHost);
    printf("small terms %a\n", h[0]);
    limits<<<1, 32>>>(out, whole);
    cudaMemcpy(h, out, sizeof h, cudaMemcpyDeviceToHost);
    cudaMemcpy(w, whole, sizeof w, cudaMemcpyDeviceToHost);
    printf("limits %g %g %d %d\n", h[0], h[1], w[0], w[1]);
    cudaFree(out);
    cudaFree(whole);
    return failures != 0;
}
