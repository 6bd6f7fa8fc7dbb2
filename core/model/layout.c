/* Short form of a layout: "tp2,sp,ep2,dp2,zero1". */
#include "core/model/layout.h"

#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct layout_word {
    const char *prefix;
    size_t offset; /* of an int in assay_parallel_config */
    int min, max;
} layout_word;

#define FIELD(member) offsetof(assay_parallel_config, member)
/* In the order of the canonical text.  No prefix is a prefix of another followed by digits only, so that the
 * first whose rest is a number is the right one. */
static const layout_word words[] = {
    {"tp", FIELD(tensor_model_parallel_size), 1, ASSAY_MAX_WORLD},
    {"cp", FIELD(context_parallel_size), 1, ASSAY_MAX_WORLD},
    {"pp", FIELD(pipeline_model_parallel_size), 1, ASSAY_MAX_WORLD},
    {"vpp", FIELD(virtual_pipeline_model_parallel_size), 1, ASSAY_MAX_WORLD},
    {"ep", FIELD(expert_model_parallel_size), 1, ASSAY_MAX_WORLD},
    {"etp", FIELD(expert_tensor_parallel_size), 1, ASSAY_MAX_WORLD},
    {"dp", FIELD(data_parallel_size), 1, ASSAY_MAX_WORLD},
    {"zero", FIELD(zero_stage), 0, 3},
    {"hsdp", FIELD(num_distributed_optimizer_instances), 1, ASSAY_MAX_WORLD},
};
enum { N_WORDS = sizeof words / sizeof words[0], SP_SEEN = N_WORDS, CP_COMM_SEEN, N_SEEN };

static const char *const cp_comm_names[ASSAY_CP_COMM_COUNT] = {
    [ASSAY_CP_ALL_GATHER] = "all_gather", [ASSAY_CP_A2A] = "a2a", [ASSAY_CP_P2P] = "p2p"};

const char *assay_cp_comm_name(assay_cp_comm_type type)
{
    const int64_t index = (int64_t)type;
    return index >= 0 && index < ASSAY_CP_COMM_COUNT ? cp_comm_names[index] : "?";
}

static int *field_of(assay_parallel_config *p, const layout_word *word)
{
    return (int *)(void *)((char *)p + word->offset);
}

static int value_of(const assay_parallel_config *p, const layout_word *word)
{
    int value;
    memcpy(&value, (const char *)p + word->offset, sizeof value);
    return value;
}

/* One to five decimal digits, the whole of [text, end). */
static bool parse_number(const char *text, const char *end, int *out)
{
    int value = 0;
    if (text == end || end - text > 5)
        return false;
    for (; text != end; text++) {
        if (*text < '0' || *text > '9')
            return false;
        value = value * 10 + (*text - '0');
    }
    *out = value;
    return true;
}

static assay_status parse_word(const char *text, const char *word, const char *end, bool *seen,
                               assay_parallel_config *p)
{
    const int length = (int)(end - word);
    if (length == 2 && memcmp(word, "sp", 2) == 0) {
        ASSAY_CHECK(!seen[SP_SEEN], ASSAY_INVALID_ARGUMENT, "layout '%s': 'sp' is given twice", text);
        seen[SP_SEEN] = true;
        p->sequence_parallel = true;
        return ASSAY_OK;
    }
    for (int i = 0; i < ASSAY_CP_COMM_COUNT; i++) {
        if (length != (int)strlen(cp_comm_names[i]) || memcmp(word, cp_comm_names[i], (size_t)length) != 0)
            continue;
        ASSAY_CHECK(!seen[CP_COMM_SEEN], ASSAY_INVALID_ARGUMENT,
                    "layout '%s': '%s' is a second word for how attention talks over cp", text,
                    cp_comm_names[i]);
        seen[CP_COMM_SEEN] = true;
        p->cp_comm_type = (assay_cp_comm_type)i;
        return ASSAY_OK;
    }
    for (int i = 0; i < N_WORDS; i++) {
        const int prefix = (int)strlen(words[i].prefix);
        int value;
        if (length <= prefix || memcmp(word, words[i].prefix, (size_t)prefix) != 0 ||
            !parse_number(word + prefix, end, &value))
            continue;
        ASSAY_CHECK(!seen[i], ASSAY_INVALID_ARGUMENT, "layout '%s': '%s' is given twice", text,
                    words[i].prefix);
        ASSAY_CHECK(value >= words[i].min && value <= words[i].max, ASSAY_INVALID_ARGUMENT,
                    "layout '%s': '%.*s': expected %s%d to %s%d", text, length, word, words[i].prefix,
                    words[i].min, words[i].prefix, words[i].max);
        seen[i] = true;
        *field_of(p, &words[i]) = value;
        return ASSAY_OK;
    }
    ASSAY_FAIL(ASSAY_INVALID_ARGUMENT,
               "layout '%s': unknown word '%.*s', expected tpN ppN cpN epN etpN dpN vppN sp zeroN "
               "hsdpN all_gather a2a p2p or 1",
               text, length, word);
}

/* Smallest dp for which ep*etp divides tp*cp*dp. */
static int smallest_dp(const assay_parallel_config *p)
{
    const int64_t expert = (int64_t)p->expert_model_parallel_size * p->expert_tensor_parallel_size;
    const int64_t rest = (int64_t)p->tensor_model_parallel_size * p->context_parallel_size;
    int64_t a = expert, b = rest;
    while (b != 0) {
        const int64_t r = a % b;
        a = b;
        b = r;
    }
    /* More than ASSAY_MAX_WORLD ranks are refused by assay_grid_make; keep the value an int here. */
    const int64_t dp = expert / a;
    return dp > ASSAY_MAX_WORLD ? ASSAY_MAX_WORLD : (int)dp;
}

assay_status assay_layout_parse(const char *text, assay_parallel_config *out)
{
    assay_parallel_config p = {
        .tensor_model_parallel_size = 1,
        .pipeline_model_parallel_size = 1,
        .virtual_pipeline_model_parallel_size = 1,
        .context_parallel_size = 1,
        .expert_model_parallel_size = 1,
        .expert_tensor_parallel_size = 1,
        .data_parallel_size = 0,
        .num_distributed_optimizer_instances = 1,
    };
    ASSAY_CHECK(strlen(text) < ASSAY_LAYOUT_TEXT, ASSAY_INVALID_ARGUMENT,
                "layout '%.32s...': more than %d characters", text, ASSAY_LAYOUT_TEXT - 1);
    bool seen[N_SEEN] = {false};
    if (strcmp(text, "1") != 0) {
        const char *word = text;
        for (;;) {
            const char *end = word + strcspn(word, ",");
            ASSAY_TRY(parse_word(text, word, end, seen, &p));
            if (*end == '\0')
                break;
            word = end + 1;
        }
    }
    ASSAY_CHECK(!seen[CP_COMM_SEEN] || p.context_parallel_size > 1, ASSAY_INVALID_ARGUMENT,
                "layout '%s': '%s' needs cp of at least 2, found cp%d", text,
                assay_cp_comm_name(p.cp_comm_type), p.context_parallel_size);
    if (p.data_parallel_size == 0)
        p.data_parallel_size = smallest_dp(&p);
    *out = p;
    return ASSAY_OK;
}

void assay_layout_format(const assay_parallel_config *p, char out[ASSAY_LAYOUT_TEXT])
{
    size_t used = 0;
    out[0] = '\0';
    for (int i = 0; i < N_WORDS; i++) {
        const int value = value_of(p, &words[i]);
        const int unwritten = words[i].min; /* 1 for sizes, 0 for zero */
        if (value != unwritten)
            used += (size_t)snprintf(out + used, ASSAY_LAYOUT_TEXT - used, "%s%s%d", used ? "," : "",
                                     words[i].prefix, value);
        if (words[i].offset == FIELD(tensor_model_parallel_size) && p->sequence_parallel)
            used += (size_t)snprintf(out + used, ASSAY_LAYOUT_TEXT - used, "%ssp", used ? "," : "");
        if (words[i].offset == FIELD(context_parallel_size) && p->cp_comm_type != ASSAY_CP_ALL_GATHER)
            used += (size_t)snprintf(out + used, ASSAY_LAYOUT_TEXT - used, "%s%s", used ? "," : "",
                                     assay_cp_comm_name(p->cp_comm_type));
    }
    if (used == 0)
        snprintf(out, ASSAY_LAYOUT_TEXT, "1");
}
