/* Laws: a text of the grammar holds the layers that Megatron-LM core 0.16.1 makes of it (parse_str_to_list; the numbers of
 * the table are its own), its canonical form holds the same, and what is no such text is refused by name. */
#include "core/model/pipeline_layout.h"
#include "tests/support/core.h"

enum { MOST = 40 };

static const struct {
    const char *text, *canonical;
    int stages;
    int64_t layers[MOST];
} good[] = {
    {"Et|tL", "Et|tL", 2, {1, 1}},
    {"Et*3|(tt|)*29L", "Et*3|(t*2|)*29L", 31, {3, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2,
                                               2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 0}},
    {"E|t*5|L", "E|t*5|L", 3, {0, 5, 0}},
    {"Ettt,|(t|)*2,tt|L", "Et*3|(t|)*2t*2|L", 5, {3, 1, 1, 2, 0}},
    {"Et*2|(t|t*3|)*2L", "Et*2|t|t*3|t|t*3|L", 6, {2, 1, 3, 1, 3, 0}},
    {"E|||tL", "E|(|)*2tL", 4, {0, 0, 0, 1}},
    {"E(|t)*3|L", "E|(t|)*3L", 5, {0, 1, 1, 1, 0}},
    {"Et*3(|)*2tL", "Et*3||tL", 3, {3, 0, 1}},
    {"Et*10|tL", "Et*10|tL", 2, {10, 1}},
    {"E(tt)*2|L", "Et*4|L", 2, {4, 0}},
    {"E,t,|,t,*,1,2,L", "Et|t*12L", 2, {1, 12}},
    {"E|*3tL", "E|(|)*2tL", 4, {0, 0, 0, 1}},
    {"Et*0|tL", "E|tL", 2, {0, 1}},
    {"E(t*2|)*3tL", "Et*2|(t*2|)*2tL", 4, {2, 2, 2, 1}},
    {"EttL", "Et*2L", 1, {2}},
};

Test(core_pipeline_layout, means_what_megatron_lm_makes_of_it)
{
    for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
        char canonical[ASSAY_PIPELINE_LAYOUT], again[ASSAY_PIPELINE_LAYOUT];
        assay_pipeline_layout l, m;
        int64_t next = 0;
        expect_ok(assay_pipeline_layout_parse(good[i].text, canonical, &l));
        cr_expect_str_eq(canonical, good[i].canonical);
        expect_ok(assay_pipeline_layout_parse(canonical, again, &m));
        cr_expect_str_eq(again, canonical, "%s", good[i].text);
        cr_assert_eq(l.stages, good[i].stages, "%s: %d", good[i].text, l.stages);
        for (int v = 0; v < l.stages; v++) {
            int64_t first, count;
            assay_pipeline_layout_stage(canonical, v, &first, &count);
            cr_expect(first == next && count == good[i].layers[v], "%s: stage %d", good[i].text, v);
            for (int64_t k = first; k < first + count; k++)
                cr_expect_eq(assay_pipeline_layout_stage_of(canonical, k), v, "%s: layer %d", good[i].text,
                             (int)k);
            next += count;
        }
        cr_expect(l.layers == next && m.layers == next && m.stages == l.stages, "%s", good[i].text);
    }
}

Test(core_pipeline_layout, what_is_no_layout_is_named)
{
    static const struct {
        const char *text;
        assay_status st;
        const char *message;
    } rows[] = {
        {"", ASSAY_INVALID_ARGUMENT, "there is no E"},
        {"t|tL", ASSAY_INVALID_ARGUMENT, "there is no E"},
        {"Et|t", ASSAY_INVALID_ARGUMENT, "there is no L"},
        {"tE|L", ASSAY_INVALID_ARGUMENT, "E (the embedding) is not the first of all"},
        {"|EtL", ASSAY_INVALID_ARGUMENT, "E (the embedding) is not the first of all"},
        {"E*2tL", ASSAY_INVALID_ARGUMENT, "E (the embedding) is there more than once"},
        {"EtEL", ASSAY_INVALID_ARGUMENT, "E (the embedding) is there more than once"},
        {"EtL|t", ASSAY_INVALID_ARGUMENT, "something follows L"},
        {"EtL|", ASSAY_INVALID_ARGUMENT, "something follows L"},
        {"EtLL", ASSAY_INVALID_ARGUMENT, "L (the loss) is there more than once"},
        {"EtL*2", ASSAY_INVALID_ARGUMENT, "L (the loss) is there more than once"},
        {"EtmL", ASSAY_UNSUPPORTED, "m: layers of multi-token prediction"},
        {"Ext|L", ASSAY_INVALID_ARGUMENT, "expected E, t, m, L, | or (...)*N, found 'x'"},
        {"Et |L", ASSAY_INVALID_ARGUMENT, "found ' '"},
        {"E((t|)*2t)*3L", ASSAY_INVALID_ARGUMENT, "no other parenthesis"},
        {"E()*3L", ASSAY_INVALID_ARGUMENT, "at least one character"},
        {"E(t|L", ASSAY_INVALID_ARGUMENT, "expected (...)*N"},
        {"Et)|L", ASSAY_INVALID_ARGUMENT, "found ')'"},
        {"E(t|)L", ASSAY_INVALID_ARGUMENT, "behind a parenthesis"},
        {"E(t|)*L", ASSAY_INVALID_ARGUMENT, "behind a parenthesis"},
        {"Et**2L", ASSAY_INVALID_ARGUMENT, "digits behind *"},
        {"Et*|L", ASSAY_INVALID_ARGUMENT, "digits behind *"},
        {"Et*-1L", ASSAY_INVALID_ARGUMENT, "digits behind *"},
        {"Et*99999L", ASSAY_INVALID_ARGUMENT, "at most four digits behind *"},
        {"E(t*9999|)*9999L", ASSAY_INVALID_ARGUMENT, "more layers than any model has"},
        {"E|*9999L", ASSAY_INVALID_ARGUMENT, "more virtual stages than are supported"},
        {"E(||||)*9999L", ASSAY_INVALID_ARGUMENT, "more virtual stages than are supported"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        char canonical[ASSAY_PIPELINE_LAYOUT];
        assay_pipeline_layout l;
        expect_error(assay_pipeline_layout_parse(rows[i].text, canonical, &l), rows[i].st, rows[i].message);
    }
    /* 40 stages that differ from their neighbours have no short form; a text of any length is looked at once. */
    char text[400] = "E", canonical[ASSAY_PIPELINE_LAYOUT];
    assay_pipeline_layout l;
    for (int i = 0; i < 40; i++)
        strcat(text, i % 2 ? "t|" : "tt|");
    strcat(text, "L");
    expect_error(assay_pipeline_layout_parse(text, canonical, &l), ASSAY_LIMIT,
                 "more than 79 characters in its shortest form");
    memset(text, 't', sizeof text - 1);
    text[sizeof text - 1] = '\0';
    expect_error(assay_pipeline_layout_parse(text, canonical, &l), ASSAY_INVALID_ARGUMENT,
                 "more than 319 characters");
}

/* Texts of the alphabet, drawn: each is refused with a message or its canonical form means the same. */
Test(core_pipeline_layout, any_text_is_refused_or_understood)
{
    static const char alphabet[] = "EtttLm|||(())**0123,x";
    uint64_t state = 7;
    int understood = 0;
    for (int n = 0; n < 40000; n++) {
        char text[24], canonical[ASSAY_PIPELINE_LAYOUT], again[ASSAY_PIPELINE_LAYOUT];
        assay_pipeline_layout l, m;
        const int length = n % 20 + 2;
        for (int i = 0; i < length; i++) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            text[i] = alphabet[(state >> 33) % (sizeof alphabet - 1)];
        }
        text[0] = 'E';
        text[length - 1] = 'L';
        text[length] = '\0';
        if (assay_pipeline_layout_parse(text, canonical, &l) != ASSAY_OK) {
            cr_assert(strstr(assay_error_message(), "pipeline_model_parallel_layout '"), "%s", text);
            assay_error_clear();
            continue;
        }
        understood++;
        expect_ok(assay_pipeline_layout_parse(canonical, again, &m));
        cr_assert(strcmp(canonical, again) == 0 && l.stages == m.stages && l.layers == m.layers, "%s", text);
    }
    cr_expect_gt(understood, 100);
}
