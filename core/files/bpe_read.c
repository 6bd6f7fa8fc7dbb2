/* tokenizer.json: what it holds, held to what core/files/bpe.h supports.  Memory follows what the file holds, never a number in
 * it. */
#include "core/files/bpe_internal.h"

#include "core/base/json.h"
#include "core/base/text.h"
#include <stdlib.h>
#include <string.h>

enum { MAX_TOKENS = 1 << 22, MAX_MERGES = 1 << 23, MAX_ADDED = 1 << 16, MAX_WORD = 1 << 16, PATTERN = 1024 };

/* --- bytes and the characters that stand for them ----------------------------------------------------------- */

/* GPT-2's: printable bytes are themselves, the others U+0100 and up in order. */
static void byte_alphabet(int16_t byte_of[512])
{
    int next = 256;
    for (int i = 0; i < 512; i++)
        byte_of[i] = -1;
    for (int b = 0; b < 256; b++) {
        const bool printable = (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || (b >= 0xae && b <= 0xff);
        byte_of[printable ? b : next++] = (int16_t)b;
    }
}

/* The bytes that a token's text stands for; false: some character stands for none, and *out is the text itself. */
static bool to_bytes(const int16_t byte_of[512], const char *text, char *out, size_t *length)
{
    size_t used = 0, step;
    for (const char *c = text; *c != '\0'; c += step) {
        uint32_t point;
        step = assay_utf8_next(c, &point);
        if (step == 0 || point >= 512 || byte_of[point] < 0) {
            *length = strlen(text);
            memcpy(out, text, *length + 1);
            return false;
        }
        out[used++] = (char)byte_of[point];
    }
    out[used] = '\0';
    *length = used;
    return true;
}

/* --- small parts -------------------------------------------------------------------------------------------- */

/* The member "type", "" where there is none. */
static const char *type_of(const json_t *object)
{
    const char *type = json_string_value(json_object_get(object, "type"));
    return type != NULL ? type : "";
}

static bool absent(const json_t *value)
{
    return value == NULL || json_is_null(value);
}

static assay_status read_normalizer(assay_bpe *t, const json_t *n, const char *path)
{
    if (absent(n))
        return ASSAY_OK;
    if (strcmp(type_of(n), "NFC") == 0) {
        t->nfc = true;
        return ASSAY_OK;
    }
    const json_t *list = json_object_get(n, "normalizers");
    ASSAY_CHECK(strcmp(type_of(n), "Sequence") == 0 && json_is_array(list), ASSAY_UNSUPPORTED,
                "%s: normalizer '%.64s': expected NFC or none", path, type_of(n));
    for (size_t i = 0; i < json_array_size(list); i++) {
        ASSAY_CHECK(strcmp(type_of(json_array_get(list, i)), "NFC") == 0, ASSAY_UNSUPPORTED,
                    "%s: normalizer '%.64s' in a Sequence: expected NFC", path,
                    type_of(json_array_get(list, i)));
        t->nfc = true;
    }
    return ASSAY_OK;
}

static assay_status read_byte_level(assay_bpe *t, const json_t *p, const char *path)
{
    static const char *const allowed[] = {"type", "add_prefix_space", "trim_offsets", "use_regex", NULL};
    bool trim;
    ASSAY_TRY(assay_json_only(p, allowed, path));
    t->use_regex = true;
    ASSAY_TRY(assay_json_get_bool(p, "add_prefix_space", true, path, &t->add_prefix_space));
    ASSAY_TRY(assay_json_get_bool(p, "trim_offsets", false, path, &trim));
    return assay_json_get_bool(p, "use_regex", false, path, &t->use_regex);
}

static assay_status read_split(assay_bpe *t, const json_t *p, const char *path)
{
    static const char *const allowed[] = {"type", "pattern", "behavior", "invert", NULL};
    char pattern[PATTERN], behavior[32];
    bool invert = false;
    ASSAY_TRY(assay_json_only(p, allowed, path));
    const json_t *how = json_object_get(p, "pattern");
    ASSAY_CHECK(json_is_object(how) && json_object_get(how, "Regex") != NULL, ASSAY_UNSUPPORTED,
                "%s: pre_tokenizer Split: expected a pattern that is a Regex", path);
    ASSAY_TRY(assay_json_get_string(how, "Regex", true, path, pattern, sizeof pattern));
    ASSAY_TRY(assay_json_get_string(p, "behavior", true, path, behavior, sizeof behavior));
    ASSAY_TRY(assay_json_get_bool(p, "invert", false, path, &invert));
    ASSAY_CHECK(strcmp(behavior, "Isolated") == 0 && !invert, ASSAY_UNSUPPORTED,
                "%s: pre_tokenizer Split with behavior '%s'%s: expected Isolated", path, behavior,
                invert ? " inverted" : "");
    return assay_bpe_split_of(pattern, path, &t->split);
}

static assay_status read_pre_tokenizer(assay_bpe *t, const json_t *p, const char *path)
{
    if (strcmp(type_of(p), "ByteLevel") == 0)
        return read_byte_level(t, p, path);
    const json_t *list = json_object_get(p, "pretokenizers");
    const json_t *split = json_array_get(list, 0), *bytes = json_array_get(list, 1);
    ASSAY_CHECK(strcmp(type_of(p), "Sequence") == 0 && json_array_size(list) == 2 &&
                    strcmp(type_of(split), "Split") == 0 && strcmp(type_of(bytes), "ByteLevel") == 0,
                ASSAY_UNSUPPORTED,
                "%s: pre_tokenizer '%.64s' of %zu parts (%.64s, %.64s): expected ByteLevel, or a Sequence of "
                "Split and ByteLevel",
                path, type_of(p), json_array_size(list), type_of(split), type_of(bytes));
    ASSAY_TRY(read_split(t, split, path));
    return read_byte_level(t, bytes, path);
}

static assay_status read_decoder(const json_t *d, const char *path)
{
    ASSAY_CHECK(absent(d) || strcmp(type_of(d), "ByteLevel") == 0, ASSAY_UNSUPPORTED,
                "%s: decoder '%.64s': expected ByteLevel", path, type_of(d));
    return ASSAY_OK;
}

/* --- the post-processor ------------------------------------------------------------------------------------- */

/* The ids of one special token of a template. */
static assay_status add_special(const json_t *special, const char *name, const char *path, int64_t *ids,
                                int *n)
{
    const json_t *list = json_object_get(json_object_get(special, name), "ids");
    ASSAY_CHECK(json_is_array(list) && json_array_size(list) > 0, ASSAY_FORMAT,
                "%s: post_processor: special token '%.64s' without ids", path, name);
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *id = json_array_get(list, i);
        ASSAY_CHECK(json_is_integer(id) && *n < ASSAY_BPE_TEMPLATE, ASSAY_FORMAT,
                    "%s: post_processor: special token '%.64s': expected at most %d ids", path, name,
                    ASSAY_BPE_TEMPLATE);
        ids[(*n)++] = json_integer_value(id);
    }
    return ASSAY_OK;
}

static assay_status read_template(assay_bpe *t, const json_t *p, const char *path)
{
    const json_t *single = json_object_get(p, "single");
    bool behind = false;
    for (size_t i = 0; i < json_array_size(single); i++) {
        const json_t *piece = json_array_get(single, i), *token = json_object_get(piece, "SpecialToken");
        const char *name = json_string_value(json_object_get(token, "id"));
        if (json_object_get(piece, "Sequence") != NULL) {
            ASSAY_CHECK(!behind, ASSAY_UNSUPPORTED, "%s: post_processor: a template with the text twice",
                        path);
            behind = true;
            continue;
        }
        ASSAY_CHECK(name != NULL, ASSAY_FORMAT,
                    "%s: post_processor: expected Sequence or SpecialToken at %zu of the template", path, i);
        ASSAY_TRY(add_special(json_object_get(p, "special_tokens"), name, path,
                              behind ? t->behind : t->before, behind ? &t->n_behind : &t->n_before));
    }
    ASSAY_CHECK(behind, ASSAY_FORMAT, "%s: post_processor: a template without the text", path);
    return ASSAY_OK;
}

static assay_status read_post_processor(assay_bpe *t, const json_t *p, const char *path, bool nested)
{
    if (absent(p) || strcmp(type_of(p), "ByteLevel") == 0)
        return ASSAY_OK;
    if (strcmp(type_of(p), "TemplateProcessing") == 0 && t->n_before == 0 && t->n_behind == 0)
        return read_template(t, p, path);
    const json_t *list = json_object_get(p, "processors");
    ASSAY_CHECK(!nested && strcmp(type_of(p), "Sequence") == 0 && json_is_array(list), ASSAY_UNSUPPORTED,
                "%s: post_processor '%.64s': expected ByteLevel, TemplateProcessing or a Sequence of them",
                path, type_of(p));
    for (size_t i = 0; i < json_array_size(list); i++)
        ASSAY_TRY(read_post_processor(t, json_array_get(list, i), path, true));
    return ASSAY_OK;
}

/* --- vocabulary, merges, added tokens ----------------------------------------------------------------------- */

static assay_status add_token(assay_bpe *t, const int16_t byte_of[512], const char *text, int64_t id,
                              bool special, const char *path)
{
    assay_bpe_token *k = &t->tokens[t->n_tokens];
    const size_t length = strlen(text);
    ASSAY_CHECK(length > 0 && length <= MAX_WORD, ASSAY_FORMAT,
                "%s: token %lld: expected 1 to %d bytes, found %zu", path, (long long)id, MAX_WORD, length);
    ASSAY_CHECK(id >= 0 && id < INT32_MAX, ASSAY_FORMAT,
                "%s: token '%.64s': expected an id from 0 to %d, found %lld", path, text, INT32_MAX - 1,
                (long long)id);
    *k = (assay_bpe_token){.id = id, .special = special};
    k->bytes = malloc(length + 1);
    ASSAY_CHECK(k->bytes != NULL, ASSAY_OUT_OF_MEMORY, "%s: out of memory", path);
    k->mapped = to_bytes(byte_of, text, k->bytes, &k->length);
    t->n_tokens++;
    return ASSAY_OK;
}

/* Where the added token is one of the vocabulary, too, that entry becomes it (mark_special). */
static assay_status read_added_token(assay_bpe *t, const int16_t byte_of[512], const json_t *a,
                                     const json_t *vocab, const char *path)
{
    static const char *const allowed[] = {"id",     "content",    "single_word", "lstrip",
                                          "rstrip", "normalized", "special",     NULL};
    assay_bpe_added_token *k = &t->added[t->n_added];
    bool single_word = false;
    ASSAY_TRY(assay_json_only(a, allowed, path));
    const char *content = json_string_value(json_object_get(a, "content"));
    ASSAY_CHECK(content != NULL && content[0] != '\0', ASSAY_FORMAT,
                "%s: added_tokens: %lld: expected a content", path, (long long)t->n_added);
    *k = (assay_bpe_added_token){.content = content, .length = strlen(content)};
    ASSAY_TRY(assay_json_get_i64(a, "id", true, 0, INT32_MAX - 1, path, &k->id));
    ASSAY_TRY(assay_json_get_bool(a, "single_word", false, path, &single_word));
    ASSAY_TRY(assay_json_get_bool(a, "lstrip", false, path, &k->lstrip));
    ASSAY_TRY(assay_json_get_bool(a, "rstrip", false, path, &k->rstrip));
    ASSAY_TRY(assay_json_get_bool(a, "normalized", false, path, &k->normalized));
    ASSAY_TRY(assay_json_get_bool(a, "special", false, path, &k->special));
    ASSAY_CHECK(!single_word, ASSAY_UNSUPPORTED, "%s: added token '%.64s': single_word", path, content);
    const json_t *same = json_object_get(vocab, content);
    ASSAY_CHECK(same == NULL || (json_is_integer(same) && json_integer_value(same) == k->id), ASSAY_FORMAT,
                "%s: added token '%.64s' has id %lld, the vocabulary another", path, content,
                (long long)k->id);
    if (same == NULL)
        ASSAY_TRY(add_token(t, byte_of, content, k->id, k->special, path));
    /* Its text, which the file's JSON does not outlive. */
    char *copy = strdup(content);
    ASSAY_CHECK(copy != NULL, ASSAY_OUT_OF_MEMORY, "%s: out of memory", path);
    k->content = copy;
    t->n_added++;
    return ASSAY_OK;
}

static assay_status read_tokens(assay_bpe *t, const json_t *root, const json_t *vocab, const char *path)
{
    const json_t *added = json_object_get(root, "added_tokens");
    const size_t n = json_object_size(vocab), n_added = json_array_size(added);
    int16_t byte_of[512];
    const char *text;
    json_t *id;
    ASSAY_CHECK(json_is_object(vocab) && n > 0 && n <= MAX_TOKENS, ASSAY_FORMAT,
                "%s: model.vocab: expected an object of 1 to %d tokens", path, MAX_TOKENS);
    ASSAY_CHECK(absent(added) || (json_is_array(added) && n_added <= MAX_ADDED), ASSAY_FORMAT,
                "%s: added_tokens: expected a list of at most %d", path, MAX_ADDED);
    byte_alphabet(byte_of);
    t->tokens = calloc(n + n_added + 1, sizeof *t->tokens);
    t->added = calloc(n_added + 1, sizeof *t->added);
    ASSAY_CHECK(t->tokens && t->added, ASSAY_OUT_OF_MEMORY, "%s: out of memory for %zu tokens", path, n);
    json_object_foreach((json_t *)(uintptr_t)vocab, text, id)
    {
        ASSAY_CHECK(json_is_integer(id), ASSAY_FORMAT, "%s: model.vocab: '%.64s': expected an id", path,
                    text);
        ASSAY_TRY(add_token(t, byte_of, text, json_integer_value(id), false, path));
    }
    for (size_t i = 0; i < n_added; i++)
        ASSAY_TRY(read_added_token(t, byte_of, json_array_get(added, i), vocab, path));
    return ASSAY_OK;
}

static void mark_special(assay_bpe *t)
{
    for (int64_t i = 0; i < t->n_added; i++) {
        const assay_bpe_token *k = t->added[i].special ? assay_bpe_find_id(t, t->added[i].id) : NULL;
        if (k != NULL)
            t->tokens[k - t->tokens].special = true;
    }
}

/* Both forms of a merge, as the texts of its two tokens. */
static assay_status merge_texts(const json_t *merge, int64_t rank, const char *path, char *buffer,
                                const char **left, const char **right)
{
    *left = json_string_value(json_array_get(merge, 0));
    *right = json_string_value(json_array_get(merge, 1));
    const char *text = json_string_value(merge);
    if (text != NULL && strlen(text) <= 2 * MAX_WORD) {
        snprintf(buffer, 2 * MAX_WORD + 2, "%s", text);
        char *space = strchr(buffer, ' ');
        if (space != NULL && strchr(space + 1, ' ') == NULL) {
            *space = '\0';
            *left = buffer;
            *right = space + 1;
        }
    }
    ASSAY_CHECK(*left != NULL && *right != NULL && (text != NULL || json_array_size(merge) == 2),
                ASSAY_FORMAT, "%s: model.merges: %lld: expected two tokens", path, (long long)rank);
    return ASSAY_OK;
}

static assay_status add_merge(assay_bpe *t, const json_t *vocab, const char *left, const char *right,
                              int64_t rank, const char *path, char *joined)
{
    ASSAY_CHECK(strlen(left) + strlen(right) <= 2 * MAX_WORD, ASSAY_FORMAT,
                "%s: model.merges: %lld: longer than %d bytes", path, (long long)rank, 2 * MAX_WORD);
    snprintf(joined, 2 * MAX_WORD + 2, "%s%s", left, right);
    const json_t *a = json_object_get(vocab, left), *b = json_object_get(vocab, right),
                 *ab = json_object_get(vocab, joined);
    ASSAY_CHECK(a != NULL && b != NULL && ab != NULL, ASSAY_FORMAT,
                "%s: model.merges: %lld: '%.64s' is no token of the vocabulary", path, (long long)rank,
                a == NULL   ? left
                : b == NULL ? right
                            : joined);
    const assay_status st =
        assay_bpe_merge_add(t, json_integer_value(a), json_integer_value(b), rank, json_integer_value(ab));
    return st == ASSAY_OK ? st : assay_hop(assay_context(st, "%s", path), __FILE__, __LINE__, __func__);
}

static assay_status read_merges(assay_bpe *t, const json_t *merges, const json_t *vocab, const char *path)
{
    const size_t n = json_array_size(merges);
    assay_status st = ASSAY_OK;
    ASSAY_CHECK(json_is_array(merges) && n <= MAX_MERGES, ASSAY_FORMAT,
                "%s: model.merges: expected a list of at most %d", path, MAX_MERGES);
    t->n_merges = 16;
    while (t->n_merges < 2 * n)
        t->n_merges *= 2;
    t->merges = malloc(t->n_merges * sizeof *t->merges);
    char *buffer = malloc(2 * (2 * MAX_WORD + 2));
    ASSAY_CHECK_GOTO(t->merges && buffer, ASSAY_OUT_OF_MEMORY, st, done, "%s: out of memory for %zu merges",
                     path, n);
    for (size_t i = 0; i < t->n_merges; i++)
        t->merges[i].rank = -1;
    for (size_t i = 0; i < n; i++) {
        const char *left, *right;
        ASSAY_TRY_GOTO(merge_texts(json_array_get(merges, i), (int64_t)i, path, buffer, &left, &right), st,
                       done);
        ASSAY_TRY_GOTO(add_merge(t, vocab, left, right, (int64_t)i, path, buffer + 2 * MAX_WORD + 2), st,
                       done);
    }
done:
    free(buffer);
    return st;
}

/* A byte without a token would be lost from every text. */
static assay_status read_bytes(assay_bpe *t, const char *path)
{
    for (int b = 0; b < 256; b++) {
        const char byte = (char)b;
        const assay_bpe_token *k = assay_bpe_find_bytes(t, &byte, 1);
        ASSAY_CHECK(k != NULL, ASSAY_UNSUPPORTED,
                    "%s: model.vocab: no token for byte %d: a tokenizer that loses text is not read", path,
                    b);
        t->byte_id[b] = k->id;
    }
    return ASSAY_OK;
}

/* --- the file ----------------------------------------------------------------------------------------------- */

static assay_status check_model(assay_bpe *t, const json_t *m, const char *path)
{
    static const char *const allowed[] = {"type",
                                          "dropout",
                                          "unk_token",
                                          "continuing_subword_prefix",
                                          "end_of_word_suffix",
                                          "fuse_unk",
                                          "byte_fallback",
                                          "ignore_merges",
                                          "vocab",
                                          "merges",
                                          NULL};
    static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    bool byte_fallback = false;
    ASSAY_CHECK(json_is_object(m), ASSAY_FORMAT, "%s: expected a model", path);
    /* Old files of GPT-2 leave it out. */
    ASSAY_CHECK(json_object_get(m, "type") == NULL || strcmp(type_of(m), "BPE") == 0, ASSAY_UNSUPPORTED,
                "%s: model '%.64s': expected BPE", path, type_of(m));
    ASSAY_TRY(assay_json_only(m, allowed, path));
    ASSAY_CHECK(absent(json_object_get(m, "dropout")), ASSAY_UNSUPPORTED, "%s: model.dropout", path);
    for (size_t i = 0; i < 2; i++) {
        const json_t *affix = json_object_get(m, affixes[i]);
        const char *text = json_string_value(affix);
        ASSAY_CHECK(absent(affix) || (text != NULL && text[0] == '\0'), ASSAY_UNSUPPORTED,
                    "%s: model.%s: expected none", path, affixes[i]);
    }
    ASSAY_TRY(assay_json_get_bool(m, "byte_fallback", false, path, &byte_fallback));
    ASSAY_CHECK(!byte_fallback, ASSAY_UNSUPPORTED, "%s: model.byte_fallback", path);
    return assay_json_get_bool(m, "ignore_merges", false, path, &t->ignore_merges);
}

static assay_status read_root(assay_bpe *t, const json_t *root, const char *path)
{
    static const char *const allowed[] = {
        "version",       "truncation",     "padding", "added_tokens", "normalizer",
        "pre_tokenizer", "post_processor", "decoder", "model",        NULL};
    const json_t *model = json_object_get(root, "model");
    ASSAY_TRY(assay_json_only(root, allowed, path));
    ASSAY_CHECK(absent(json_object_get(root, "truncation")), ASSAY_UNSUPPORTED, "%s: truncation", path);
    ASSAY_CHECK(absent(json_object_get(root, "padding")), ASSAY_UNSUPPORTED, "%s: padding", path);
    ASSAY_TRY(check_model(t, model, path));
    ASSAY_TRY(read_normalizer(t, json_object_get(root, "normalizer"), path));
    ASSAY_TRY(read_pre_tokenizer(t, json_object_get(root, "pre_tokenizer"), path));
    ASSAY_TRY(read_post_processor(t, json_object_get(root, "post_processor"), path, false));
    ASSAY_TRY(read_decoder(json_object_get(root, "decoder"), path));
    ASSAY_TRY(read_tokens(t, root, json_object_get(model, "vocab"), path));
    ASSAY_TRY(assay_bpe_tables_make(t, path));
    mark_special(t);
    ASSAY_TRY(read_merges(t, json_object_get(model, "merges"), json_object_get(model, "vocab"), path));
    ASSAY_TRY(read_bytes(t, path));
    for (int i = 0; i < t->n_before + t->n_behind; i++) {
        const int64_t id = i < t->n_before ? t->before[i] : t->behind[i - t->n_before];
        ASSAY_CHECK(assay_bpe_find_id(t, id) != NULL, ASSAY_FORMAT, "%s: post_processor: id %lld is no token",
                    path, (long long)id);
    }
    return ASSAY_OK;
}

assay_status assay_bpe_read(assay_bpe *t, const char *path)
{
    json_t *root = NULL;
    ASSAY_TRY(assay_json_load(&root, path));
    assay_status st = ASSAY_OK;
    ASSAY_CHECK_GOTO(json_is_object(root), ASSAY_FORMAT, st, done, "%s: expected a JSON object", path);
    st = read_root(t, root, path);
done:
    json_decref(root);
    return st;
}
