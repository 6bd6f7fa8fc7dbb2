/* `assay batch`: a batch file from text. */
#include "core/files/checkpoint_folder.h"
#include "core/model/config.h"
#include "parity/parity.h"
#include "parity/run/data.h"
#include <stdlib.h>
#include <string.h>

typedef struct batch_options {
    parity_data_options data;
    char model[ASSAY_PATH], out[ASSAY_PATH];
    int64_t train_iters, seed;
} batch_options;

static assay_status on_option(void *user, const char *name, const char *text)
{
    batch_options *o = user;
    bool mine;
    ASSAY_CHECK(name != NULL, ASSAY_INVALID_ARGUMENT, "unexpected argument \"%s\"", text);
    ASSAY_TRY(parity_data_option(&o->data, name, text, &mine));
    if (mine)
        return ASSAY_OK;
    if (strcmp(name, "train_iters") == 0)
        return assay_option_count("train-iters", text, 1, (int64_t)1 << 40, &o->train_iters);
    if (strcmp(name, "seed") == 0)
        return assay_option_count(name, text, 0, INT64_MAX, &o->seed);
    return assay_option_text(name, text, strcmp(name, "model") == 0 ? o->model : o->out, ASSAY_PATH);
}

static assay_status make(const batch_options *o)
{
    parity_data_made made;
    int64_t vocab = 0;
    ASSAY_CHECK(o->out[0] != '\0', ASSAY_INVALID_ARGUMENT,
                "--out: expected the file to write, found nothing");
    ASSAY_TRY(assay_checkpoint_outside("--out ", o->out));
    if (o->model[0] != '\0') {
        assay_model_config *config = malloc(sizeof *config);
        ASSAY_CHECK(config != NULL, ASSAY_OUT_OF_MEMORY, "model configuration");
        const assay_status st = assay_config_load(o->model, config);
        vocab = config->vocab_size;
        free(config);
        ASSAY_TRY(st);
    }
    ASSAY_TRY(parity_data_write(&o->data, (uint64_t)o->seed, o->train_iters, vocab, o->out, &made));
    parity_data_say(&o->data, &made, stdout);
    printf("wrote %s, sha256 %s\n", o->out, made.sha256);
    return ASSAY_OK;
}

int parity_main_batch(int argc, char **argv)
{
    static const assay_extra_option extra[] = {
        PARITY_DATA_OPTION_ROWS,
        {"train_iters", "N", "optimizer steps (default 1)"},
        {"seed", "N", "of the order of the data and of masked labels (default 1234)"},
        {"model", "DIR", "hold the tokenizer to this model's vocabulary"},
        {"out", "FILE", "the batch file to write (safetensors); it must not exist"},
        {NULL, NULL, NULL}};
    batch_options o = {.train_iters = 1, .seed = 1234};
    parity_data_default(&o.data);
    assay_status st = assay_options_parse(
        argc, argv,
        "Makes a batch file of optimizer steps from text, for assay step, run and bench.\vExamples:\n"
        "  assay batch --data TEXTS --seq-length 64 --global-batch-size 8 \\\n"
        "              --train-iters 100 --out b.safetensors\n"
        "  assay batch --data a.txt --tokenizer tokenizer.json --model DIR \\\n"
        "              --seq-length 128 --out b.safetensors\n",
        "", NULL, 0, extra, on_option, &o);
    if (st == ASSAY_OK)
        st = make(&o);
    if (st != ASSAY_OK) {
        assay_error_print(stderr, "assay batch", 0);
        return 2;
    }
    return 0;
}
