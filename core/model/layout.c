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
    {"first", FIELD(num_layers_in_first_pipeline_stage), 1, ASSAY_MAX_PIPELINE_LAYERS},
    {"last", FIELD(num_layers_in_last_pipeline_stage), 1, ASSAY_MAX_PIPELINE_LAYERS},
};
/* Words without a number. */
static const struct {
    const char *name;
    size_t offset; /* of a bool */
} switches[] = {
    {"sp", FIELD(sequence_parallel)},
    {"embed", FIELD(account_for_embedding_in_pipeline_split)},
    {"loss", FIELD(account_for_loss_in_pipeline_split)},
};
static const char stages_word[] = "stages=";
enum {
    N_WORDS = sizeof words / sizeof words[0],
    N_SWITCHES = sizeof switches / sizeof switches[0],
    STAGES_SEEN = N_WORDS + N_SWITCHES,
    CP_COMM_SEEN,
    N_SEEN
};

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

/* Whether the word of this member was given. */
static bool was_given(const bool *seen, size_t offset)
{
    bool given = false;
    for (int i = 0; i < N_WORDS; i++)
        given = given || (words[i].offset == offset && seen[i]);
    return given;
}

/* Decimal digits, the whole of [text, end); what is too large for any word stays too large. */
static bool parse_number(const char *text, const char *end, int *out)
{
    int value = 0;
    if (text == end)
        return false;
    for (; text != end; text++) {
        if (*text < '0' || *text > '9')
            return false;
        value = value < 100000 ? value * 10 + (*text - '0') : value;
    }
    *out = value;
    return true;
}

static assay_status parse_stages(const char *text, const char *from, const char *end, bool *seen,
                                 assay_parallel_config *p)
{
    char layout[ASSAY_LAYOUT_TEXT];
    assay_pipeline_layout found;
    ASSAY_CHECK(!seen[STAGES_SEEN], ASSAY_INVALID_ARGUMENT, "layout '%s': 'stages' is given twice", text);
    seen[STAGES_SEEN] = true;
    snprintf(layout, sizeof layout, "%.*s", (int)(end - from), from);
    return assay_context(assay_pipeline_layout_parse(layout, p->pipeline_model_parallel_layout, &found),
                         "layout '%s'", text);
}

/* The text says how many virtual stages there are: vpp follows from it and pp, or must agree. */
static assay_status settle_stages(const char *text, bool vpp_given, assay_parallel_config *p)
{
    assay_pipeline_layout found;
    char again[ASSAY_PIPELINE_LAYOUT];
    if (p->pipeline_model_parallel_layout[0] == '\0')
        return ASSAY_OK;
    ASSAY_TRY(assay_pipeline_layout_parse(p->pipeline_model_parallel_layout, again, &found));
    const int pp = p->pipeline_model_parallel_size;
    ASSAY_CHECK(found.stages % pp == 0, ASSAY_INVALID_ARGUMENT,
                "layout '%s': stages=%s has %d virtual stages, which pp%d does not divide", text, again,
                found.stages, pp);
    ASSAY_CHECK(!vpp_given || p->virtual_pipeline_model_parallel_size == found.stages / pp,
                ASSAY_INVALID_ARGUMENT, "layout '%s': stages=%s has %d virtual stages, pp%d,vpp%d has %d",
                text, again, found.stages, pp, p->virtual_pipeline_model_parallel_size,
                pp * p->virtual_pipeline_model_parallel_size);
    p->virtual_pipeline_model_parallel_size = found.stages / pp;
    return ASSAY_OK;
}

static assay_status parse_word(const char *text, const char *word, const char *end, bool *seen,
                               assay_parallel_config *p)
{
    const int length = (int)(end - word);
    for (int i = 0; i < N_SWITCHES; i++) {
        if (length != (int)strlen(switches[i].name) || memcmp(word, switches[i].name, (size_t)length) != 0)
            continue;
        ASSAY_CHECK(!seen[N_WORDS + i], ASSAY_INVALID_ARGUMENT, "layout '%s': '%s' is given twice", text,
                    switches[i].name);
        seen[N_WORDS + i] = true;
        memcpy((char *)p + switches[i].offset, &(bool){true}, sizeof(bool));
        return ASSAY_OK;
    }
    if (length >= (int)strlen(stages_word) && memcmp(word, stages_word, strlen(stages_word)) == 0)
        return parse_stages(text, word + strlen(stages_word), end, seen, p);
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
    ASSAY_FAIL(
        ASSAY_INVALID_ARGUMENT,
        "layout '%s': unknown word '%.*s', expected tpN ppN cpN epN etpN dpN vppN sp zeroN hsdpN all_gather "
        "a2a p2p firstN lastN embed loss stages=TEXT or 1",
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
    ASSAY_TRY(settle_stages(text, was_given(seen, FIELD(virtual_pipeline_model_parallel_size)), &p));
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
        const bool counts_layers = words[i].max == ASSAY_MAX_PIPELINE_LAYERS; /* 0: the word is absent */
        const int unwritten = counts_layers ? 0 : words[i].min;               /* 1 for sizes, 0 for zero */
        const bool follows = words[i].offset == FIELD(virtual_pipeline_model_parallel_size) &&
                             p->pipeline_model_parallel_layout[0] != '\0';
        /* dp1 that the experts do not fit in is refused later, by its own name: without the word another dp is read. */
        const bool needed = words[i].offset == FIELD(data_parallel_size) && value != smallest_dp(p);
        if ((value != unwritten && !follows) || needed)
            used += (size_t)snprintf(out + used, ASSAY_LAYOUT_TEXT - used, "%s%s%d", used ? "," : "",
                                     words[i].prefix, value);
        if (words[i].offset == FIELD(tensor_model_parallel_size) && p->sequence_parallel)
            used += (size_t)snprintf(out + used, ASSAY_LAYOUT_TEXT - used, "%ssp", used ? "," : "");
        if (words[i].offset == FIELD(context_parallel_size) && p->cp_comm_type != ASSAY_CP_ALL_GATHER)
            used += (size_t)snprintf(out + used, ASSAY_LAYOUT_TEXT - used, "%s%s", used ? "," : "",
                                     assay_cp_comm_name(p->cp_comm_type));
    }
    if (p->account_for_embedding_in_pipeline_split)
        used += (size_t)snprintf(out + used, ASSAY_LAYOUT_TEXT - used, "%sembed", used ? "," : "");
    if (p->account_for_loss_in_pipeline_split)
        used += (size_t)snprintf(out + used, ASSAY_LAYOUT_TEXT - used, "%sloss", used ? "," : "");
    if (p->pipeline_model_parallel_layout[0] != '\0')
        used += (size_t)snprintf(out + used, ASSAY_LAYOUT_TEXT - used, "%s%s%s", used ? "," : "", stages_word,
                                 p->pipeline_model_parallel_layout);
    if (used == 0)
        snprintf(out, ASSAY_LAYOUT_TEXT, "1");
}
