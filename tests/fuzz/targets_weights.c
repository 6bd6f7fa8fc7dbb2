/* Folders from elsewhere: adapters in PEFT's form, and models with fp8 weights and their scales. */
#include "core/base/pattern.h"
#include "core/files/adapter.h"
#include "core/model/quantization.h"
#include "tests/fuzz/fuzz.h"

#include <string.h>

/* What is accepted is whole: modules ascend and are found, a low-rank part has both matrices of its rank. */
static void check_module(const assay_adapter *a, int64_t i)
{
    const assay_lora_module *m = &a->modules[i];
    uint64_t sum = 0;
    bool targeted;
    FUZZ_LAW(i == 0 || strcmp(a->modules[i - 1].name, m->name) < 0, "%s: order", m->name);
    FUZZ_LAW(assay_adapter_find(a, m->name) == m, "%s: not found", m->name);
    for (int k = 0; k < ASSAY_LORA_KINDS; k++)
        if (m->part[k] != NULL)
            sum += fuzz_touch(m->part[k]->data, m->part[k]->bytes);
    volatile uint64_t used = sum;
    (void)used;
    if (m->r == 0) {
        FUZZ_LAW(m->part[ASSAY_LORA_WHOLE] != NULL, "%s: nothing", m->name);
        return;
    }
    const bool embedding = m->part[ASSAY_LORA_A] == NULL;
    const assay_tensor_info *x = m->part[embedding ? ASSAY_LORA_EMBEDDING_A : ASSAY_LORA_A];
    const assay_tensor_info *y = m->part[embedding ? ASSAY_LORA_EMBEDDING_B : ASSAY_LORA_B];
    FUZZ_LAW(x && y && x->ndim == 2 && y->ndim == 2 && x->shape[0] == m->r && y->shape[1] == m->r, "%s: rank",
             m->name);
    FUZZ_LAW((m->part[ASSAY_LORA_MAGNITUDE] != NULL) == a->use_dora, "%s: magnitude", m->name);
    FUZZ_LAW(assay_adapter_targets(a, m->name, &targeted) == ASSAY_OK && targeted, "%s: target", m->name);
}

void fuzz_adapter(const uint8_t *data, size_t bytes)
{
    static const char *const names[] = {"adapter_config.json", "adapter_model.safetensors", NULL};
    fuzz_section sections[FUZZ_SECTIONS];
    assay_adapter a;
    const int n = fuzz_sections(data, bytes, names, sections);
    if (n == 0)
        return;
    fuzz_write_sections(sections, n);
    if (assay_adapter_open(&a, fuzz_path("")) != ASSAY_OK)
        return;
    FUZZ_LAW(a.n > 0 && a.r >= 1, "%lld modules, rank %lld", (long long)a.n, (long long)a.r);
    for (int64_t i = 0; i < a.n; i++)
        check_module(&a, i);
    assay_adapter_close(&a);
}

/* A text of two lines: a pattern, and what it is asked of. */
void fuzz_pattern(const uint8_t *data, size_t bytes)
{
    char pattern[2048], text[256];
    bool matches;
    const uint8_t *end = memchr(data, '\n', bytes);
    const size_t n = end == NULL ? bytes : (size_t)(end - data), rest = end == NULL ? 0 : bytes - n - 1;
    if (n >= sizeof pattern || rest >= sizeof text || memchr(data, '\0', bytes) != NULL)
        return;
    memcpy(pattern, data, n);
    memcpy(text, data + bytes - rest, rest);
    pattern[n] = text[rest] = '\0';
    const assay_status st = assay_pattern_match(pattern, text, "pattern", &matches);
    /* A name without signs is that name alone. */
    if (n > 0 && strspn(pattern, "abcdefghijklmnopqrstuvwxyz_0123456789") == n)
        FUZZ_LAW(n > 1024 || (st == ASSAY_OK && matches == (strcmp(pattern, text) == 0)), "%s of %s", pattern,
                 text);
}

void fuzz_quantized(const uint8_t *data, size_t bytes)
{
    static const char *const names[] = {"config.json", "model.safetensors", NULL};
    fuzz_section sections[FUZZ_SECTIONS];
    assay_quantization q;
    assay_tensorfile *f;
    const int n = fuzz_sections(data, bytes, names, sections);
    if (n == 0)
        return;
    fuzz_write_sections(sections, n);
    if (assay_quantization_of_folder(fuzz_path(""), &q) != ASSAY_OK ||
        assay_tensorfile_open(&f, fuzz_path("")) != ASSAY_OK)
        return;
    for (int64_t i = 0; i < assay_tensorfile_count(f); i++) {
        const assay_tensor_info *t = assay_tensorfile_at(f, i);
        assay_block_scales s;
        FUZZ_LAW(q.fp8 || !assay_is_block_scale(f, &q, t->name), "%s: a scale of nothing", t->name);
        if (assay_block_scales_of(f, &q, t, &s) != ASSAY_OK || s.scale == NULL)
            continue;
        FUZZ_LAW(t->dtype == ASSAY_F8_E4M3 && q.fp8, "%s: scaled", t->name);
        /* every element has a scale that is there */
        for (int64_t k = 0; k < t->count; k++) {
            const int64_t at = assay_block_scale_at(&s, k);
            FUZZ_LAW(at >= 0 && at < s.scale->count, "%s: element %lld has scale %lld of %lld", t->name,
                     (long long)k, (long long)at, (long long)s.scale->count);
        }
    }
    assay_tensorfile_close(f);
}
