/* Folders of PaddleNLP's. */
#include "core/files/paddle.h"
#include "tests/fuzz/fuzz.h"

#include <stdlib.h>
#include <string.h>

static void on_finding(void *user, bool wrong, const char *text)
{
    int64_t *n = user;
    FUZZ_LAW(text[0] != '\0', "a finding without words");
    *n += wrong;
}

/* What is said to be there can be read, whole. */
static void read_all(const assay_paddle *p)
{
    const assay_model_spec *spec = assay_paddle_spec(p);
    for (int64_t i = 0; i < spec->n_params; i++) {
        const assay_param_spec *param = &spec->params[i];
        int64_t count, n = 0;
        float powers[64];
        if (!assay_shape_count(param->shape, param->ndim, &count) || count > 1 << 20)
            continue;
        for (int r = 0; r <= ASSAY_PADDLE_MOMENT2; r++) {
            const assay_dtype dtype = assay_paddle_has(p, (assay_paddle_role)r, i);
            if (dtype == ASSAY_DTYPE_COUNT)
                continue;
            const size_t size = (size_t)count * (size_t)assay_dtype_bytes(dtype);
            void *to = malloc(size + 1);
            FUZZ_LAW(to != NULL, "%zu bytes", size);
            if (assay_paddle_read(p, (assay_paddle_role)r, i, to) == ASSAY_OK)
                (void)fuzz_touch(to, size);
            free(to);
        }
        for (int r = ASSAY_PADDLE_POW1; r <= ASSAY_PADDLE_POW2; r++)
            if (assay_paddle_powers(p, (assay_paddle_role)r, i, powers, 64, &n) == ASSAY_OK)
                FUZZ_LAW(n <= 64, "%lld powers", (long long)n);
    }
}

/* What the writer makes of two numbers the reader reads; what the reader takes it reads alike again. */
static void check_scheduler(const uint8_t *data, size_t bytes)
{
    int64_t epoch, again;
    double rate, rate_again;
    unsigned char text[64];
    if (assay_paddle_scheduler_parse(data, bytes, "scheduler", &epoch, &rate) != ASSAY_OK)
        return;
    FUZZ_LAW(epoch >= 0 && rate - rate == 0.0, "epoch %lld", (long long)epoch);
    if (epoch > INT32_MAX)
        return;
    const size_t n = assay_paddle_scheduler_format(text, epoch, rate);
    FUZZ_LAW(n <= sizeof text, "%zu bytes", n);
    fuzz_must(assay_paddle_scheduler_parse(text, n, "scheduler", &again, &rate_again));
    FUZZ_LAW(again == epoch && memcmp(&rate, &rate_again, sizeof rate) == 0, "epoch %lld", (long long)epoch);
}

void fuzz_paddle(const uint8_t *data, size_t bytes)
{
    static const char *const names[] = {"config.json",
                                        "model.safetensors.index.json",
                                        "model-00001-of-00001.safetensors",
                                        "optimizer.safetensors.index.json",
                                        "optimizer-00001-of-00001.safetensors",
                                        "optimizer.tp00.safetensors",
                                        "optimizer.tp01.safetensors",
                                        "master_weights.safetensors.index.json",
                                        "master_weights-00001-of-00001.safetensors",
                                        "trainer_state.json",
                                        "scheduler.pdparams",
                                        NULL};
    fuzz_section sections[FUZZ_SECTIONS];
    assay_paddle *p;
    int64_t wrong = 0;
    const int n = fuzz_sections(data, bytes, names, sections);
    if (n == 0) {
        check_scheduler(data, bytes);
        return;
    }
    fuzz_write_sections(sections, n);
    (void)assay_paddle_is(fuzz_path(""));
    for (int i = 0; i < n; i++)
        if (strcmp(sections[i].name, "scheduler.pdparams") == 0)
            check_scheduler(sections[i].data, sections[i].bytes);
    if (assay_paddle_open(&p, fuzz_path(""), on_finding, &wrong) != ASSAY_OK)
        return;
    read_all(p);
    assay_paddle_close(p);
}
