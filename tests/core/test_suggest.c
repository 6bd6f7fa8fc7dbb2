/* The nearest known word is named, and a word that is near to none has no suggestion. */
#include "core/base/suggest.h"
#include <criterion/criterion.h>
#include <string.h>

static const char *nearest(const char *word)
{
    static assay_suggestion s;
    static const char *const known[] = {"layout",    "lr",     "train-iters", "weight-decay",
                                        "clip-grad", "report", "replay"};
    assay_suggest_begin(&s, word, strlen(word));
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        assay_suggest_add(&s, known[i]);
    return assay_suggest_end(&s, "--");
}

Test(suggest, names_the_nearest_word)
{
    static const char *const rows[][2] = {{"layuot", "layout"},
                                          {"layouts", "layout"},
                                          {"train_iter", "train-iters"},
                                          {"weigth-decay", "weight-decay"},
                                          {"grad-clip-norm", NULL},
                                          {"replya", "replay"},
                                          {"x", NULL},
                                          {"", NULL},
                                          {"learning-rate", NULL},
                                          {"lr2", NULL}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char wanted[80] = "";
        if (rows[i][1] != NULL)
            snprintf(wanted, sizeof wanted, "; did you mean --%s?", rows[i][1]);
        cr_expect_str_eq(nearest(rows[i][0]), wanted, "%s: %s", rows[i][0], nearest(rows[i][0]));
    }
}

Test(suggest, any_length_is_safe)
{
    char word[300];
    for (size_t n = 0; n < sizeof word - 1; n++) {
        memset(word, 'a', n);
        word[n] = '\0';
        cr_expect_str_eq(nearest(word), "");
    }
}
