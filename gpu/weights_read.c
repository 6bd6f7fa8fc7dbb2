/* Parts of a parameter straight from a mapped safetensors file: nothing is larger than what is asked for. */
#include "gpu/weights_read.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* --- element types of files --------------------------------------------------------------------------------- */
static float from_bits(uint32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static float half_to_float(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exponent = (h >> 10) & 0x1Fu, fraction = h & 0x3FFu;
    if (exponent == 31)
        return from_bits(sign | 0x7F800000u | fraction << 13);
    if (exponent > 0)
        return from_bits(sign | (exponent + 112) << 23 | fraction << 13);
    const float magnitude = (float)fraction * 0x1p-24f; /* exact: subnormal halves are normal floats */
    return sign ? -magnitude : magnitude;
}

/* OCP OFP8 E4M3: 4 bits of exponent, no infinity, one NaN. */
static float e4m3_to_float(uint8_t code)
{
    const uint32_t sign = (uint32_t)(code & 0x80u) << 24, exponent = (code >> 3) & 0xFu, fraction = code & 7u;
    if ((code & 0x7Fu) == 0x7Fu)
        return from_bits(sign | 0x7FC00000u);
    if (exponent > 0)
        return from_bits(sign | (exponent + 120) << 23 | fraction << 20);
    const float magnitude = (float)fraction * 0x1p-9f;
    return sign ? -magnitude : magnitude;
}

/* OCP MX E8M0: a power of two; 2^-127 is a subnormal float. */
static float e8m0_to_float(uint8_t code)
{
    return code == 0xFF ? from_bits(0x7FC00000u) : code == 0 ? 0x1p-127f : from_bits((uint32_t)code << 23);
}

static float scale_at(const assay_block_scales *s, int64_t element)
{
    const int64_t i = assay_block_scale_at(s, element);
    const char *from = (const char *)s->scale->data + i * assay_dtype_bytes(s->scale->dtype);
    uint16_t half;
    float wide;
    switch (s->scale->dtype) {
    case ASSAY_F32:
        memcpy(&wide, from, 4);
        return wide;
    case ASSAY_BF16:
        memcpy(&half, from, 2);
        return from_bits((uint32_t)half << 16);
    default:
        return e8m0_to_float((uint8_t)*from);
    }
}

static assay_status convert(const assay_tensor_info *t, const assay_block_scales *s, int64_t at, int64_t n,
                            float *out)
{
    const char *from = (const char *)t->data + at * assay_dtype_bytes(t->dtype);
    for (int64_t i = 0; i < n; i++) {
        uint16_t half;
        double wide;
        switch (t->dtype) {
        case ASSAY_F32:
            memcpy(&out[i], from + i * 4, 4);
            break;
        case ASSAY_BF16:
            memcpy(&half, from + i * 2, 2);
            out[i] = from_bits((uint32_t)half << 16);
            break;
        case ASSAY_F16:
            memcpy(&half, from + i * 2, 2);
            out[i] = half_to_float(half);
            break;
        case ASSAY_F8_E4M3: /* one rounding: a product of two floats */
            out[i] = e4m3_to_float((uint8_t)from[i]) * scale_at(s, at + i);
            break;
        case ASSAY_F64:
            memcpy(&wide, from + i * 8, 8);
            out[i] = (float)wide;
            break;
        default:
            ASSAY_FAIL(ASSAY_UNSUPPORTED, "%s: dtype %s of a weight, expected F32, BF16, F16, F64 or F8_E4M3",
                       t->name, assay_dtype_name(t->dtype));
        }
    }
    return ASSAY_OK;
}

/* --- where the elements of a parameter lie --------------------------------------------------------------------- */
/* Elements [dst, dst + n) of the canonical tensor are [src, src + n) of a tensor of the file. */
struct gpu_stored_run {
    int64_t dst, src, n;
    int part;
};

static int by_place(const void *a, const void *b)
{
    const struct gpu_stored_run *x = a, *y = b;
    return (x->dst > y->dst) - (x->dst < y->dst);
}

static assay_status find_parts(gpu_stored_param *s, const assay_tensorfile *file, const assay_quantization *q)
{
    const assay_param_spec *spec = s->spec;
    int64_t n = 0, at = 0;
    for (int i = 0; i < spec->n_parts; i++)
        n += spec->parts[i].n_pieces;
    s->runs = calloc((size_t)n + 1, sizeof *s->runs);
    s->tensors = calloc((size_t)spec->n_parts + 1, sizeof(const assay_tensor_info *));
    s->scales = calloc((size_t)spec->n_parts + 1, sizeof *s->scales);
    s->not_finite = calloc((size_t)spec->n_parts + 1, sizeof *s->not_finite);
    ASSAY_CHECK(s->runs && s->tensors && s->scales && s->not_finite, ASSAY_OUT_OF_MEMORY, "%s: %lld pieces",
                spec->name, (long long)n);
    for (int i = 0; i < spec->n_parts; i++) {
        const assay_hf_part *part = &spec->parts[i];
        const int64_t row = assay_hf_part_row_length(part);
        assay_status st = assay_tensorfile_get(file, part->name, ASSAY_DTYPE_COUNT, part->shape, part->ndim,
                                               &s->tensors[i]);
        if (st == ASSAY_OK)
            st = assay_block_scales_of(file, q, s->tensors[i], &s->scales[i]);
        if (st != ASSAY_OK)
            return assay_context(st, "%s: for %s", assay_tensorfile_path(file), spec->name);
        s->not_finite[i].first = -1;
        for (int k = 0; k < part->n_pieces; k++) {
            const assay_hf_piece *piece = &part->pieces[k];
            s->runs[at++] = (struct gpu_stored_run){piece->dst * row, piece->src * row, piece->rows * row, i};
        }
    }
    qsort(s->runs, (size_t)n, sizeof *s->runs, by_place);
    s->n_runs = n;
    return ASSAY_OK;
}

assay_status gpu_stored_param_open(gpu_stored_param *s, const assay_tensorfile *file,
                                   const assay_quantization *q, const assay_param_spec *spec)
{
    *s = (gpu_stored_param){.spec = spec};
    const assay_status st = find_parts(s, file, q);
    if (st != ASSAY_OK)
        gpu_stored_param_close(s);
    return st;
}

void gpu_stored_param_close(gpu_stored_param *s)
{
    free(s->runs);
    free(s->tensors);
    free(s->scales);
    free(s->not_finite);
    *s = (gpu_stored_param){0};
}

/* The last run that begins at or before an element. */
static int64_t run_at(const gpu_stored_param *s, int64_t element)
{
    int64_t low = 0, high = s->n_runs;
    while (high - low > 1) {
        const int64_t middle = low + (high - low) / 2;
        if (s->runs[middle].dst <= element)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Canonical elements [from, from + n). */
static assay_status read_elements(gpu_stored_param *s, int64_t from, int64_t n, float *out)
{
    for (int64_t k = run_at(s, from); n > 0; k++) {
        ASSAY_CHECK(k < s->n_runs && from >= s->runs[k].dst && from < s->runs[k].dst + s->runs[k].n,
                    ASSAY_INTERNAL, "%s: no tensor of the file holds element %lld", s->spec->name,
                    (long long)from);
        const struct gpu_stored_run *r = &s->runs[k];
        const int64_t inside = from - r->dst, left = r->n - inside, take = left < n ? left : n;
        ASSAY_TRY(convert(s->tensors[r->part], &s->scales[r->part], r->src + inside, take, out));
        gpu_count_not_finite(out, take, r->src + inside, &s->not_finite[r->part]);
        from += take;
        out += take;
        n -= take;
    }
    return ASSAY_OK;
}

/* Columns [from, to) of a local row. */
static assay_status read_row(gpu_stored_param *s, const assay_shard *piece, int64_t row, int64_t from,
                             int64_t to, float *out)
{
    const int last = piece->ndim - 1;
    const int64_t start = gpu_shard_row_start(piece, row);
    int64_t begin = 0; /* local column at which the segment begins */
    for (int k = 0; k < piece->n_segments[last]; k++) {
        const assay_segment *g = &piece->segments[last][k];
        const int64_t end = begin + g->length, a = from > begin ? from : begin, b = to < end ? to : end;
        if (a < b)
            ASSAY_TRY(read_elements(s, start + g->start + a - begin, b - a, out + a - from));
        begin = end;
    }
    return ASSAY_OK;
}

assay_status gpu_stored_param_read(gpu_stored_param *s, const assay_shard *piece, int64_t first, int64_t n,
                                   float *out)
{
    const int64_t columns = piece->local_shape[piece->ndim - 1];
    for (int64_t i = 0; i < n;) {
        const int64_t row = (first + i) / columns, from = (first + i) % columns;
        const int64_t left = columns - from, take = left < n - i ? left : n - i;
        ASSAY_TRY(read_row(s, piece, row, from, from + take, out + i));
        i += take;
    }
    return ASSAY_OK;
}

/* --- numbers that are none --------------------------------------------------------------------------------------- */
void gpu_count_not_finite(const float *x, int64_t n, int64_t start, assay_not_finite *f)
{
    for (int64_t i = 0; i < n; i++) {
        if (isfinite(x[i]))
            continue;
        f->first = f->first < 0 || start + i < f->first ? start + i : f->first;
        f->nan += isnan(x[i]) != 0;
        f->infinite += isnan(x[i]) == 0;
    }
}

bool gpu_stored_param_warn(const gpu_stored_param *s, const char *folder, bool speaks)
{
    bool any = false;
    for (int i = 0; i < s->spec->n_parts; i++) {
        const assay_hf_part *part = &s->spec->parts[i];
        char text[256];
        if (s->not_finite[i].first < 0)
            continue;
        any = true;
        assay_not_finite_text(&s->not_finite[i], part->shape, part->ndim, text, sizeof text);
        if (speaks)
            fprintf(stderr, "WARNING: %s: %s: %s\n", folder, part->name, text);
    }
    return any;
}
