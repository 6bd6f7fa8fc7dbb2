/* Options of `assay ckpt`: read, and refused by name where a verb would take them in silence. */
#include "parity/run/ckpt_options.h"

#include <stdio.h>
#include <string.h>

static const char *const use_name[CKPT_USES] = {[CKPT_INSPECT] = "inspect",
                                                [CKPT_VERIFY] = "verify",
                                                [CKPT_VERIFY_PADDLE] = "verify of a folder of PaddleNLP's",
                                                [CKPT_DIFF] = "diff",
                                                [CKPT_RESHARD] = "reshard",
                                                [CKPT_CONVERT] = "convert of a checkpoint",
                                                [CKPT_CONVERT_MODEL] = "convert of a model folder",
                                                [CKPT_CONVERT_PADDLE] = "convert of a folder of PaddleNLP's",
                                                [CKPT_EXPORT_PADDLE] = "convert --form paddle",
                                                [CKPT_MERGE] = "merge",
                                                [CKPT_LORA_MERGE] = "lora-merge",
                                                [CKPT_LORA_SAVE] = "lora-save"};

#define USE(x) (1u << CKPT_##x)
enum {
    ANY_CONVERT = (int)(USE(CONVERT) | USE(CONVERT_MODEL) | USE(CONVERT_PADDLE) | USE(EXPORT_PADDLE)),
    FP8 = (int)(USE(CONVERT_MODEL) | USE(MERGE) | USE(LORA_MERGE)),
    PATTERNS = (int)(USE(CONVERT_MODEL) | USE(MERGE))
};

/* Every option and who uses it.  A verb that gets another one refuses it: nothing that was asked for is left out in silence. */
static const struct {
    const char *name;
    unsigned uses;
} rows[] = {{"tensors", USE(INSPECT)},
            {"ignore_missing_keys", USE(VERIFY)},
            {"ignore_unexpected_keys", USE(VERIFY)},
            {"ignore_mismatched_keys", USE(VERIFY)},
            {"max_shard_size", USE(RESHARD) | USE(CONVERT) | USE(CONVERT_MODEL) | USE(CONVERT_PADDLE) |
                                   USE(MERGE) | USE(LORA_MERGE)},
            {"weights", USE(CONVERT) | USE(CONVERT_MODEL) | USE(CONVERT_PADDLE)},
            {"form", ANY_CONVERT},
            {"method", USE(MERGE)},
            {"base", USE(MERGE)},
            {"weight", USE(MERGE)},
            {"density", USE(MERGE)},
            {"t", USE(MERGE)},
            {"lambda", USE(MERGE)},
            {"normalize", USE(MERGE)},
            {"majority_sign_method", USE(MERGE)},
            {"merge_seed", USE(MERGE)},
            {"include", PATTERNS},
            {"exclude", PATTERNS},
            {"dtype", (unsigned)FP8 | USE(LORA_SAVE)},
            {"weight_block_size", FP8},
            {"scale_fmt", FP8}};
enum { ROWS = sizeof rows / sizeof *rows };
_Static_assert(ROWS <= 64, "ckpt_options.given has 64 bits");

static assay_status note_given(ckpt_options *o, const char *name)
{
    for (int i = 0; i < ROWS; i++)
        if (strcmp(rows[i].name, name) == 0) {
            o->given |= (uint64_t)1 << i;
            return ASSAY_OK;
        }
    ASSAY_FAIL(ASSAY_INTERNAL, "--%s: no row says which verb uses it", name);
}

/* As it is written on the command line: max_shard_size is --max-shard-size. */
static void spell(const char *name, char out[64])
{
    snprintf(out, 64, "%s", name);
    for (char *p = out; *p != '\0'; p++)
        if (*p == '_')
            *p = '-';
}

assay_status ckpt_options_check(const ckpt_options *o, ckpt_use use)
{
    for (int i = 0; i < ROWS; i++) {
        char name[64], others[400] = "";
        if ((o->given >> i & 1u) == 0 || (rows[i].uses >> use & 1u) != 0)
            continue;
        spell(rows[i].name, name);
        for (int u = 0; u < CKPT_USES; u++)
            if ((rows[i].uses >> u & 1u) != 0)
                snprintf(others + strlen(others), sizeof others - strlen(others), "%s%s",
                         others[0] != '\0' ? ", " : "", use_name[u]);
        ASSAY_FAIL(ASSAY_INVALID_ARGUMENT, "--%s: %s does not use it (it is of %s)", name, use_name[use],
                   others);
    }
    return ASSAY_OK;
}

assay_status ckpt_option(void *user, const char *name, const char *text)
{
    ckpt_options *o = user;
    if (name == NULL) {
        ASSAY_CHECK(o->n_paths < PARITY_MERGED + 2, ASSAY_INVALID_ARGUMENT, "%s: one argument too many",
                    text);
        return assay_option_folder("path", text, o->paths[o->n_paths++], ASSAY_PATH);
    }
    ASSAY_TRY(note_given(o, name));
    if (strcmp(name, "ignore_missing_keys") == 0)
        return assay_option_text("ignore-missing-keys", text, o->missing, sizeof o->missing);
    if (strcmp(name, "ignore_unexpected_keys") == 0)
        return assay_option_text("ignore-unexpected-keys", text, o->unexpected, sizeof o->unexpected);
    if (strcmp(name, "ignore_mismatched_keys") == 0)
        return assay_option_text("ignore-mismatched-keys", text, o->mismatched, sizeof o->mismatched);
    bool known;
    ASSAY_TRY(parity_weights_option(&o->tools, name, text, &known));
    if (known || strcmp(name, "tensors") == 0) {
        o->tensors = o->tensors || !known;
        return ASSAY_OK;
    }
    if (strcmp(name, "form") == 0) {
        ASSAY_CHECK(strcmp(text, "assay") == 0 || strcmp(text, "paddle") == 0, ASSAY_INVALID_ARGUMENT,
                    "--form: expected assay or paddle, found %.40s", text);
        o->paddle = strcmp(text, "paddle") == 0;
        return ASSAY_OK;
    }
    if (strcmp(name, "max_shard_size") == 0) {
        ASSAY_TRY(assay_option_count("max-shard-size", text, 1, (int64_t)1 << 53, &o->max_shard_size));
        o->tools.max_shard_size = o->max_shard_size;
        return ASSAY_OK;
    }
    if (strcmp(name, "weights") == 0) {
        ASSAY_CHECK(strcmp(text, "model") == 0 || strcmp(text, "masters") == 0, ASSAY_INVALID_ARGUMENT,
                    "--weights: expected model or masters, found %.40s", text);
        return assay_option_text("weights", text, o->weights, sizeof o->weights);
    }
    return ASSAY_OK;
}
