/* What lies beside the weights of a model folder and belongs to it: tokenizer, templates, processors, code.  Nothing is left behind without a
 * word. */
#include "core/base/file.h"
#include "parity/weights/weights.h"

#include <dirent.h>
#include <errno.h>
#include <fnmatch.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define COPY_LIMIT ((uint64_t)1 << 28)

/* Of transformers' tokenizers and processors (vocab_files_names, save_pretrained), of mistral-common, and code that auto_map names with what it
 * imports. */
static const char *const copied[] = {"generation_config.json",
                                     "tokenizer.json",
                                     "tokenizer_config.json",
                                     "special_tokens_map.json",
                                     "added_tokens.json",
                                     "vocab.json",
                                     "vocab.txt",
                                     "entity_vocab.json",
                                     "dict.txt",
                                     "emoji.json",
                                     "byte_maps.json",
                                     "*.tokenizer",
                                     "merges.txt",
                                     "*.model",
                                     "*.tiktoken",
                                     "tekken.json",
                                     "chat_template*.jinja",
                                     "chat_template.json",
                                     "preprocessor_config.json",
                                     "image_preprocessor_config.json",
                                     "video_preprocessor_config.json",
                                     "processor_config.json",
                                     "audio_tokenizer_config.json",
                                     "*.py",
                                     NULL};
/* Written anew, weights in any form, and what a checkpoint says of itself: nobody misses them. */
static const char *const own[] = {"config.json",   "assay_origin.json",
                                  "manifest.json", "state.json",
                                  "*.safetensors", "*.safetensors.index.json",
                                  "*.bin",         "*.bin.index.json",
                                  "*.pt",          "*.pth",
                                  "*.ckpt",        "*.h5",
                                  "*.msgpack",     "*.gguf",
                                  "*.onnx",        NULL};
static const char templates[] = "additional_chat_templates";

static bool is_like(const char *const *patterns, const char *name)
{
    for (int i = 0; patterns[i] != NULL; i++)
        if (fnmatch(patterns[i], name, 0) == 0)
            return true;
    return false;
}

static assay_status path_in(char out[PATH_MAX], const char *folder, const char *name)
{
    const int n = snprintf(out, PATH_MAX, "%s/%s", folder, name);
    ASSAY_CHECK(n > 0 && n < PATH_MAX, ASSAY_LIMIT, "%.200s: the path is too long", folder);
    return ASSAY_OK;
}

static assay_status copy_file(const char *from, const char *to)
{
    char *text;
    uint64_t bytes;
    ASSAY_TRY(assay_read_file(from, COPY_LIMIT, &text, &bytes));
    const assay_status st = assay_write_file(to, text, bytes);
    free(text);
    return st;
}

/* Sorted names of a folder, the hidden ones left out. */
static int is_seen(const struct dirent *e)
{
    return e->d_name[0] != '.';
}

/* Every file of a folder that has no folders worth a copy. */
static assay_status copy_templates(const char *from, const char *to)
{
    char source[PATH_MAX], target[PATH_MAX];
    struct dirent **list = NULL;
    struct stat sb;
    assay_status st = assay_mkdir_p(to);
    const int n = scandir(from, &list, is_seen, alphasort);
    for (int i = 0; i < n; i++) {
        if (st == ASSAY_OK)
            st = path_in(source, from, list[i]->d_name);
        if (st == ASSAY_OK)
            st = path_in(target, to, list[i]->d_name);
        if (st == ASSAY_OK && stat(source, &sb) == 0 && S_ISREG(sb.st_mode))
            st = copy_file(source, target);
        free(list[i]);
    }
    free((void *)list);
    return st;
}

/* *is_copied: whether the entry belongs to the model and is there now. */
static assay_status copy_entry(const char *from, const char *to, const char *name, bool *is_copied,
                               bool *folder)
{
    char source[PATH_MAX], target[PATH_MAX];
    struct stat sb;
    ASSAY_TRY(path_in(source, from, name));
    ASSAY_TRY(path_in(target, to, name));
    *is_copied = *folder = false;
    if (stat(source, &sb) != 0) /* a link to nothing is left behind like any other file */
        return ASSAY_OK;
    *folder = S_ISDIR(sb.st_mode);
    *is_copied = *folder ? strcmp(name, templates) == 0 : S_ISREG(sb.st_mode) && is_like(copied, name);
    if (!*is_copied)
        return ASSAY_OK;
    return *folder ? copy_templates(source, target) : copy_file(source, target);
}

assay_status parity_folder_copy(const char *from, const char *to)
{
    char left[1024] = "";
    size_t used = 0;
    assay_status st = ASSAY_OK;
    struct dirent **list = NULL;
    const int n = scandir(from, &list, is_seen, alphasort);
    ASSAY_CHECK(n >= 0, ASSAY_IO, "%s: %s", from, strerror(errno));
    for (int i = 0; i < n; i++) {
        const char *name = list[i]->d_name;
        bool is_copied = false, folder = false;
        if (st == ASSAY_OK)
            st = copy_entry(from, to, name, &is_copied, &folder);
        if (st == ASSAY_OK && !is_copied && !is_like(own, name) && used < sizeof left)
            used += (size_t)snprintf(left + used, sizeof left - used, "%s%.80s%s", used > 0 ? ", " : "", name,
                                     folder ? "/" : "");
        free(list[i]);
    }
    free((void *)list);
    if (st == ASSAY_OK && left[0] != '\0')
        fprintf(stderr, "WARNING: %s: not copied: %s%s\n", from, left, used >= sizeof left ? "..." : "");
    return st;
}
