/* The list of targets.  Those of the judge need its library and the reference: FUZZ_JUDGE. */
#include "tests/fuzz/fuzz.h"

#include <string.h>

const fuzz_target fuzz_targets[] = {
    {"safetensors", fuzz_safetensors}, /* one file, as it is */
    {"folder", fuzz_folder},           /* a model folder: an index and its shards */
    {"batches", fuzz_batches},         /* a batch file */
    {"checkpoint", fuzz_checkpoint},   /* a manifest with hashes that hold, and the files of ranks */
    {"paddle", fuzz_paddle},           /* a folder of PaddleNLP's, or its pickled scheduler */
    {"trace", fuzz_trace},             /* index, records, data */
    {"record", fuzz_record},           /* a line of a trace, through both of its readers */
    {"config", fuzz_config},           /* config.json */
    {"layout", fuzz_layout},           /* the text of a layout */
    {"options", fuzz_options},         /* a command line, or the member "training" of a case */
    {"map", fuzz_map},                 /* a map file */
    {"tokenizer", fuzz_tokenizer},     /* tokenizer.json and a text */
    {"text", fuzz_text},               /* a text, through the tokenizers of golden/ */
    {"dataset", fuzz_dataset},         /* .idx and .bin, or a text */
    {"adapter", fuzz_adapter},         /* adapter_config.json and its tensors */
    {"pattern", fuzz_pattern},         /* a regular expression and a text */
    {"quantized", fuzz_quantized},     /* config.json and fp8 tensors with scales */
#ifdef FUZZ_JUDGE
    {"replay", fuzz_replay},   /* a trace through the judge: every operation computed again */
    {"case", fuzz_case},       /* a case file */
    {"results", fuzz_results}, /* results.jsonl of a part */
#endif
    {NULL, NULL},
};

const fuzz_target *fuzz_target_find(const char *name)
{
    for (const fuzz_target *t = fuzz_targets; t->name != NULL; t++)
        if (strcmp(t->name, name) == 0)
            return t;
    return NULL;
}
