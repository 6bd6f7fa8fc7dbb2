/* Drawn weights of a rank: every element is the formula of docs/CONVENTIONS.md at its global index, whatever the piece and
 * the number of threads. */
#include "core/base/hash.h"
#include "core/base/log.h"
#include "core/base/philox.h"
#include "core/files/tensorwriter.h"
#include "gpu/model.h"
#include "gpu/weights_read.h"
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static float formula(const char *name, double std, uint64_t seed, int64_t at)
{
    return (float)((double)assay_philox_normal4(seed, assay_name_hash(name), (uint64_t)at) *
                   (std * ASSAY_PHILOX_UNIT));
}

/* A piece of two segments in each dimension, as of [gate; up] blocks and zig-zag columns. */
static assay_shard scattered(int64_t rows, int64_t columns)
{
    assay_shard s;
    assay_shard_whole(&s, (const int64_t[]){rows, columns}, 2);
    for (int d = 0; d < 2; d++) {
        const int64_t n = s.global_shape[d], quarter = n / 4;
        const assay_segment cut[2] = {{n - quarter, quarter}, {quarter, quarter}}; /* in the other order */
        assay_shard_set(&s, d, cut, 2);
        s.local_shape[d] = 2 * quarter;
    }
    cr_assert_eq(assay_shard_check(&s, "piece"), ASSAY_OK, "%s", assay_error_message());
    return s;
}

static void agrees(const assay_shard *s, int threads)
{
    assay_param_spec p = {.init = ASSAY_INIT_NORMAL};
    const int64_t n = assay_shard_count(s);
    float *piece = malloc(((size_t)n + 1) * sizeof *piece);
    snprintf(p.name, sizeof p.name, "decoder.layers.3.mlp.linear_fc1.weight");
    memset(piece, 0xff, ((size_t)n + 1) * sizeof *piece);
    gpu_draw_part(&p, s, 0.02, 77, threads, 0, n, piece);
    int64_t bad = 0;
    for (int64_t i = 0; i < n; i++) {
        int64_t index[ASSAY_MAX_DIMS], rest = i, at = 0;
        for (int d = s->ndim - 1; d >= 0; d--) {
            index[d] = assay_shard_global_index(s, d, rest % s->local_shape[d]);
            rest /= s->local_shape[d];
        }
        for (int d = 0; d < s->ndim; d++)
            at = at * s->global_shape[d] + index[d];
        const float expected = formula(p.name, 0.02, 77, at);
        bad += memcmp(&piece[i], &expected, sizeof expected) != 0;
    }
    cr_expect_eq(bad, 0, "%lld of %lld elements, %d threads", (long long)bad, (long long)n, threads);
    uint32_t behind;
    memcpy(&behind, &piece[n], sizeof behind);
    cr_expect_eq(behind, UINT32_MAX, "nothing is written behind the piece");
    free(piece);
}

Test(engine_weights, every_element_is_the_formula_at_its_global_index)
{
    static const int threads[] = {1, 2, 3, 16};
    const int64_t shapes[][2] = {{1, 1}, {3, 5}, {257, 131}, {400, 700}};
    for (size_t t = 0; t < sizeof threads / sizeof *threads; t++) {
        for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
            assay_shard s;
            assay_shard_whole(&s, shapes[i], 2);
            agrees(&s, threads[t]);
        }
        assay_shard s = scattered(8, 12);
        agrees(&s, threads[t]);
        s = scattered(1024, 800);
        agrees(&s, threads[t]);
        assay_shard_whole(&s, (const int64_t[]){90001}, 1);
        agrees(&s, threads[t]);
        assay_shard_whole(&s, (const int64_t[]){0, 7}, 2);
        agrees(&s, threads[t]);
    }
}

/* Ones and zeros, and what is drawn around them where a standard deviation is asked for. */
Test(engine_weights, constants_and_what_is_drawn_around_them)
{
    const int64_t n = 70000;
    float *piece = calloc((size_t)n, sizeof *piece);
    assay_shard s;
    assay_shard_whole(&s, &n, 1);
    for (int one = 0; one < 2; one++)
        for (int drawn = 0; drawn < 2; drawn++) {
            const assay_param_spec p = {.init = one ? ASSAY_INIT_ONE : ASSAY_INIT_ZERO, .name = "b"};
            const double std = drawn ? 0.02 : 0.0;
            int64_t bad = 0;
            gpu_draw_part(&p, &s, std, 77, 2, 0, n, piece);
            for (int64_t i = 0; i < n; i++) {
                const int64_t z = assay_philox_normal4(77, assay_name_hash("b"), (uint64_t)i);
                bad += piece[i] != (float)((double)one + (double)z * (std * ASSAY_PHILOX_UNIT));
            }
            cr_expect_eq(bad, 0, "around %d, standard deviation %g: %d elements", one, std, (int)bad);
        }
    free(piece);
}

/* Nanoseconds per element, shown with ASSAY_TEST_VERBOSE. */
Test(engine_weights, speed)
{
    const int64_t shape[2] = {2048, 8192}, n = shape[0] * shape[1];
    float *piece = malloc((size_t)n * sizeof *piece);
    const assay_param_spec p = {.init = ASSAY_INIT_NORMAL, .name = "w"};
    assay_shard s;
    if (getenv("ASSAY_TEST_VERBOSE")) {
        assay_shard_whole(&s, shape, 2);
        for (int threads = 1; threads <= 4; threads *= 2) {
            const double t = assay_monotonic_s();
            gpu_draw_part(&p, &s, 0.02, 77, threads, 0, n, piece);
            fprintf(stderr, "%d threads: %.1f ns\n", threads, (assay_monotonic_s() - t) * 1e9 / (double)n);
        }
    }
    free(piece);
}

/* --- from a file ------------------------------------------------------------------------------------------------ */
enum { VOCAB = 1 << 18, WIDTH = 48, PARTS = 8 }; /* 48 MiB of F32 */

/* The output layer of a model in a file; element i is i mod 251. */
static void write_table(const char *path, const char *name)
{
    const int64_t shape[2] = {VOCAB, WIDTH};
    float *x = malloc((size_t)VOCAB * WIDTH * sizeof *x);
    assay_tensorwriter *w;
    for (int64_t i = 0; i < (int64_t)VOCAB * WIDTH; i++)
        x[i] = (float)(i % 251);
    cr_assert_eq(assay_tensorwriter_create(&w, path), ASSAY_OK);
    cr_assert_eq(assay_tensorwriter_add_copy(w, name, ASSAY_F32, shape, 2, x), ASSAY_OK);
    cr_assert_eq(assay_tensorwriter_finish(w), ASSAY_OK, "%s", assay_error_message());
    assay_tensorwriter_destroy(w);
    free(x);
}

/* A row of /proc/self/status in bytes. */
static int64_t status_of(const char *row)
{
    char line[256];
    int64_t kib = -1;
    FILE *f = fopen("/proc/self/status", "r");
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, row, strlen(row)) == 0)
            kib = strtoll(line + strlen(row) + 1, NULL, 10);
    if (f)
        fclose(f);
    return kib * 1024;
}

/* In a child: part `part` of `parts` under a limit of that part and 4 MiB on everything that it allocates, and what it then
 * has touched, memory and file together, beside what it began with.  0: right; 1: wrong elements; 2: refused. */
static int read_limited(const char *path, const assay_param_spec *spec, int parts, int limit_parts)
{
    const int64_t slack = 4 << 20, part = (int64_t)VOCAB * WIDTH / parts;
    assay_shard s;
    gpu_stored_param stored;
    assay_tensorfile *file;
    assay_shard_whole(&s, spec->shape, 2);
    if (assay_shard_narrow(&s, 0, VOCAB / parts * (parts - 1), VOCAB / parts) != ASSAY_OK)
        return 4;
    if (assay_tensorfile_open(&file, path) != ASSAY_OK)
        return 4;
    if (gpu_stored_param_open(&stored, file, &(assay_quantization){0}, spec) != ASSAY_OK)
        return 4;
    const int64_t before = status_of("VmData"), resident = status_of("VmRSS");
    const rlim_t most = (rlim_t)(before + (int64_t)VOCAB * WIDTH / limit_parts * 4 + slack);
    if (setrlimit(RLIMIT_DATA, &(struct rlimit){most, most}) != 0)
        return 4;
    /* mmap: a sanitizer's malloc ends the process where there is no room */
    float *out =
        mmap(NULL, (size_t)part * sizeof *out, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (out == MAP_FAILED)
        return 2;
    if (gpu_stored_param_read(&stored, &s, 0, part, out) != ASSAY_OK)
        return 4;
    for (int64_t i = 0; i < part; i++)
        if (out[i] != (float)((part * (parts - 1) + i) % 251))
            return 1;
    if (status_of("VmHWM") - resident > 2 * part * 4 + slack)
        return 3;
    munmap(out, (size_t)part * sizeof *out);
    gpu_stored_param_close(&stored);
    assay_tensorfile_close(file);
    return 0;
}

static int in_child(const char *path, const assay_param_spec *spec, int parts, int limit_parts)
{
    int status = 0;
    const pid_t pid = fork();
    cr_assert_geq(pid, 0);
    if (pid == 0)
        _exit(read_limited(path, spec, parts, limit_parts));
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* A rank of eight allocates its part and touches its part of the file, and no more.  The limit bites: the whole does not fit
 * into it, and another rank's share is not enough. */
Test(engine_weights, a_rank_reads_and_allocates_its_part_alone)
{
    char folder[] = "/tmp/assay-weights-XXXXXX", path[64];
    assay_hf_piece piece = {0, 0, VOCAB};
    assay_hf_part part = {
        .name = "table", .ndim = 2, .shape = {VOCAB, WIDTH}, .n_pieces = 1, .pieces = &piece};
    const assay_param_spec spec = {
        .name = "output_layer.weight", .ndim = 2, .shape = {VOCAB, WIDTH}, .n_parts = 1, .parts = &part};
    cr_assert_not_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    write_table(path, "table");
    cr_expect_eq(in_child(path, &spec, PARTS, PARTS), 0);
    cr_expect_eq(in_child(path, &spec, 1, 1), 0);
    cr_expect_eq(in_child(path, &spec, 1, PARTS), 2,
                 "the limit would not have been met by reading all of it");
    unlink(path);
    rmdir(folder);
}

/* Rows and columns in pieces, from tensors that interleave, from any element on. */
Test(engine_weights, parts_of_a_piece_are_the_piece)
{
    char folder[] = "/tmp/assay-weights-XXXXXX", path[64];
    enum { ROWS = 24, COLUMNS = 10 };
    float x[ROWS / 2 * COLUMNS];
    const int64_t shape[2] = {ROWS / 2, COLUMNS};
    assay_tensorwriter *w;
    assay_tensorfile *file;
    gpu_stored_param stored;
    /* rows 0-5 and 12-17 of the first tensor, the others of the second, the blocks of each in the other order */
    assay_hf_piece a[2] = {{12, 0, 6}, {0, 6, 6}}, b[2] = {{6, 6, 6}, {18, 0, 6}};
    assay_hf_part parts[2] = {
        {.name = "a", .ndim = 2, .shape = {ROWS / 2, COLUMNS}, .n_pieces = 2, .pieces = a},
        {.name = "b", .ndim = 2, .shape = {ROWS / 2, COLUMNS}, .n_pieces = 2, .pieces = b}};
    const assay_param_spec spec = {
        .name = "p", .ndim = 2, .shape = {ROWS, COLUMNS}, .n_parts = 2, .parts = parts};
    cr_assert_not_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    cr_assert_eq(assay_tensorwriter_create(&w, path), ASSAY_OK);
    for (int t = 0; t < 2; t++) { /* element = its flat place in the canonical tensor */
        for (int k = 0; k < 2; k++)
            for (int64_t i = 0; i < 6 * COLUMNS; i++)
                x[parts[t].pieces[k].src * COLUMNS + i] = (float)(parts[t].pieces[k].dst * COLUMNS + i);
        cr_assert_eq(assay_tensorwriter_add_copy(w, parts[t].name, ASSAY_F32, shape, 2, x), ASSAY_OK);
    }
    cr_assert_eq(assay_tensorwriter_finish(w), ASSAY_OK, "%s", assay_error_message());
    assay_tensorwriter_destroy(w);
    cr_assert_eq(assay_tensorfile_open(&file, path), ASSAY_OK);
    cr_assert_eq(gpu_stored_param_open(&stored, file, &(assay_quantization){0}, &spec), ASSAY_OK, "%s",
                 assay_error_message());
    const assay_shard s = scattered(ROWS, COLUMNS);
    const int64_t n = assay_shard_count(&s), width = s.local_shape[1];
    int64_t bad = 0;
    for (int64_t first = 0; first < n; first++)
        for (int64_t many = 0; many <= n - first; many++) {
            float out[ROWS * COLUMNS + 1];
            out[many] = -1.0f;
            cr_assert_eq(gpu_stored_param_read(&stored, &s, first, many, out), ASSAY_OK, "%s",
                         assay_error_message());
            for (int64_t i = 0; i < many; i++)
                bad += out[i] != (float)(assay_shard_global_index(&s, 0, (first + i) / width) * COLUMNS +
                                         assay_shard_global_index(&s, 1, (first + i) % width));
            bad += out[many] != -1.0f;
        }
    cr_expect_eq(bad, 0, "%lld elements", (long long)bad);
    gpu_stored_param_close(&stored);
    assay_tensorfile_close(file);
    unlink(path);
    rmdir(folder);
}

/* Every code of a weight times every code of a scale, as torch reads the codes (golden/make_fp8.py), rounded to F32 once. */
Test(engine_weights, fp8_codes_times_scales)
{
    char folder[] = "/tmp/assay-weights-XXXXXX", path[64];
    enum { CODES = 256 };
    static unsigned char weights[CODES * CODES], scales[CODES];
    static float found[CODES * CODES];
    const int64_t shape[2] = {CODES, CODES}, grid[2] = {1, CODES};
    assay_tensorwriter *w;
    assay_tensorfile *file, *golden;
    gpu_stored_param stored;
    assay_shard whole;
    assay_hf_piece piece = {0, 0, CODES};
    assay_hf_part part = {
        .name = "x.weight", .ndim = 2, .shape = {CODES, CODES}, .n_pieces = 1, .pieces = &piece};
    const assay_param_spec spec = {
        .name = "p", .ndim = 2, .shape = {CODES, CODES}, .n_parts = 1, .parts = &part};
    const assay_quantization q = {.fp8 = true, .block = {CODES, 1}};
    for (int i = 0; i < CODES * CODES; i++)
        weights[i] = (unsigned char)(i / CODES);
    for (int i = 0; i < CODES; i++)
        scales[i] = (unsigned char)i;
    cr_assert_not_null(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    cr_assert_eq(assay_tensorwriter_create(&w, path), ASSAY_OK);
    cr_assert_eq(assay_tensorwriter_add_ref(w, "x.weight", ASSAY_F8_E4M3, shape, 2, weights), ASSAY_OK);
    cr_assert_eq(assay_tensorwriter_add_ref(w, "x.weight_scale_inv", ASSAY_F8_E8M0, grid, 2, scales),
                 ASSAY_OK);
    cr_assert_eq(assay_tensorwriter_finish(w), ASSAY_OK, "%s", assay_error_message());
    assay_tensorwriter_destroy(w);
    cr_assert_eq(assay_tensorfile_open(&file, path), ASSAY_OK);
    cr_assert_eq(assay_tensorfile_open(&golden, ASSAY_SOURCE_DIR "/golden/fp8/codes.safetensors"), ASSAY_OK);
    cr_assert_eq(gpu_stored_param_open(&stored, file, &q, &spec), ASSAY_OK, "%s", assay_error_message());
    assay_shard_whole(&whole, shape, 2);
    cr_assert_eq(gpu_stored_param_read(&stored, &whole, 0, CODES * CODES, found), ASSAY_OK);
    const assay_tensor_info *a = assay_tensorfile_find(golden, "e4m3_value"),
                            *b = assay_tensorfile_find(golden, "e8m0_value");
    cr_assert(a != NULL && b != NULL && a->dtype == ASSAY_F64 && b->dtype == ASSAY_F64 && a->count == CODES);
    int64_t bad = 0;
    for (int64_t i = 0; i < CODES * CODES; i++) {
        double x, y;
        memcpy(&x, (const char *)a->data + i / CODES * 8, sizeof x);
        memcpy(&y, (const char *)b->data + i % CODES * 8, sizeof y);
        const float expected = (float)(x * y);
        const bool same = expected != expected ? found[i] != found[i] : memcmp(&expected, &found[i], 4) == 0;
        bad += !same;
    }
    cr_expect_eq(bad, 0, "%lld products", (long long)bad);
    gpu_stored_param_close(&stored);
    assay_tensorfile_close(golden);
    assay_tensorfile_close(file);
    unlink(path);
    rmdir(folder);
}
