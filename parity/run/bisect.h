/* `assay bisect`: which operations of the engine have to be replaced for a mismatch to vanish.  Private to parity/run/bisect*.c. */
#ifndef PARITY_BISECT_H
#define PARITY_BISECT_H

#include "parity/judge/judge.h"
#include "parity/run/engine.h"

/* What replaces an operation. */
typedef enum { BISECT_VARIANT, BISECT_VALUES, BISECT_WAYS } bisect_way;
enum { BISECT_WORDS = 256 };

/* An operation of the failing run: all of its calls in one phase, on every rank, step and microbatch. */
typedef struct bisect_element {
    char op[48], instance[ASSAY_NAME];
    assay_phase phase;
    int variant;                  /* highest that ran */
    bool collective, suspect;     /* suspect: the local check fails it */
    bool feeds;                   /* what it makes comes into the first wrong tensor, in its step */
    char unplanned[BISECT_WORDS]; /* what the plan check says of it; "": it is as planned */
    bool replaceable[BISECT_WAYS];
    int64_t layer, rank, sequence; /* its place in the order of execution */
    int64_t group;                 /* its kind of operation in its layer, or outside of all layers */
} bisect_element;

/* --- bisect_search.c: the smallest sets --------------------------------------------------------------------- */
/* *healed: whether the mismatch vanishes when exactly those are replaced (set [n], one for each element). */
typedef assay_status (*bisect_test)(void *user, const bool *set, bool *healed);
typedef struct bisect_search {
    bisect_test test;
    void *user;
    int64_t n;     /* elements, in order of execution */
    int64_t limit; /* tests at the most */
    int64_t most;  /* elements that bisect_smallest finds one by one */
    int64_t tests; /* made */
    bool stopped;  /* at the limit: the set heals, but may not be the smallest */
    bool many;     /* more than `most` are needed: bisect_smallest left the set as it was */
    int64_t n_answers;
    bool *asked, *answers; /* sets that were tested [n_answers][n], what came of them [n_answers] */
} bisect_search;
/* Frees what the search remembers. */
void bisect_search_forget(bisect_search *s);
/* set [n]: in: what may be replaced, which heals; out: a set that heals and of which no element can be left out.  Of several
 * the one that ends earliest in the order of execution: what merely lies behind the mistake is not in it. */
assay_status bisect_smallest(bisect_search *s, bool *set);
/* Tries to leave out each element of a set that heals. */
assay_status bisect_thin_out(bisect_search *s, bool *set);
/* The same for groups of elements, group [n] below n_groups, in their order. */
assay_status bisect_fewest_groups(bisect_search *s, const int64_t *group, int64_t n_groups, bool *set);

/* --- bisect_run.c: one run of the engine and its verdict ------------------------------------------------------ */
typedef struct bisect {
    assay_train_options options; /* of every run of the engine */
    parity_engine engine;
    char engine_program[ASSAY_PATH]; /* --engine-program; "": none */
    double timeout_s;
    char target[ASSAY_NAME]; /* the tensor that has to agree; "": all that the whole check compares */
    char against[ASSAY_PATH],
        against_layout[ASSAY_LAYOUT_TEXT]; /* the run that it has to agree with; both "": the reference */
    char dir[ASSAY_PATH];
    bool quiet;
    assay_model_config *config;
    assay_model_spec *spec;
    assay_batches batches;
    double **weights;
    parity_whole_cache *cache;
    assay_trace
        *other;   /* the run in the reference's place, unsharded, in DIR/other; NULL: the reference itself */
    double widen; /* how much more of rounding lies between two runs than between one and the truth */
    char than[128];    /* what the engine is held to, in words ... */
    const char *whose; /* ... and whose values replace results */
    int64_t n, n_groups;
    bisect_element *elements;
    bisect_way way;      /* of the search under way */
    int64_t runs, limit; /* of the engine: made, at the most */
    double started;
    int64_t n_compared, n_failed;  /* tensors of the run before */
    char first[PARITY_TEXT];       /* the first of them that differs; "" ... */
    char first_tensor[ASSAY_NAME]; /* ... its name ... */
    int64_t first_step;            /* ... and where it was seen */
} bisect;

assay_status bisect_open(bisect *b);
void bisect_close(bisect *b);
/* Runs the engine with that set replaced (NULL: nothing) and judges it; its trace lies in DIR/NAME until the next run of that name. */
assay_status bisect_run(bisect *b, const char *name, const bool *set, bool *agrees);
/* The same with the reference's values for whatever has some. */
assay_status bisect_run_everything(bisect *b, const char *name, bool *agrees);
/* The layer that an instance names; -1: none. */
int64_t bisect_layer_in(const char *instance);
/* The elements of the trace in DIR/NAME, and what the local check says of them. */
assay_status bisect_read_elements(bisect *b, const char *name);
/* Which of them the run in DIR/NAME, which asked for all values, got from the reference. */
assay_status bisect_read_replaced(bisect *b, const char *name);
/* The trace of the unsharded reference, to DIR/reference. */
assay_status bisect_reference(bisect *b);
/* The engine in the other layout and without the planted fault, its trace to DIR/NAME. */
assay_status bisect_run_other(bisect *b, const char *name);
/* DIR/NAME */
assay_status bisect_path(const bisect *b, const char *name, char out[ASSAY_PATH]);
/* Rules for the engine (--substitute). */
assay_status bisect_write_rules(const bisect *b, const bool *set, const char *path);

/* --- bisect_feeds.c: where the first wrong tensor comes from --------------------------------------------------- */
/* Marks the elements that feed it in the trace of the run before, and what the plan check says of elements. */
assay_status bisect_mark_feeds(bisect *b, const assay_trace *t);
/* It feeds the first wrong tensor, is not as planned, and nothing has a value for it (known behind bisect_read_replaced). */
bool bisect_is_unplanned_feed(const bisect_element *e);

/* --- bisect_tell.c: what was found, in words ------------------------------------------------------------------ */
enum { BISECT_SENTENCE = 3072 };
typedef struct bisect_verdict {
    char sentence[BISECT_SENTENCE], command[4 * ASSAY_PATH];
    int code;
    bool keep; /* the folder has what the command needs */
    json_t *set, *notes;
} bisect_verdict;
#if defined(__GNUC__)
__attribute__((format(printf, 2, 3)))
#endif
void bisect_note(bisect_verdict *v, const char *fmt, ...);
int64_t bisect_count(const bisect *b, const bool *set);
/* What was found: of the set no operation, or (groups) no kind of operation of a layer can be left out; stopped: at --runs,
 * before that was known. */
typedef struct bisect_found {
    const bool *set;
    bool groups, stopped;
    const char *mismatch;
} bisect_found;
/* A set that heals: sentence, command and DIR/set.txt. */
assay_status bisect_tell_set(bisect *b, const bisect_found *found, bisect_verdict *v);
/* Operations that feed the first wrong tensor `tensor` are not as planned, and nothing can replace them. */
void bisect_tell_unplanned(const bisect *b, const char *tensor, const char *mismatch, bisect_verdict *v);
/* `replaced` operations have the reference's values, and `left` differs all the same. */
void bisect_tell_nothing(const bisect *b, int64_t replaced, const char *mismatch, const char *left,
                         bisect_verdict *v);

/* --- bisect_other.c: another run in the reference's place ----------------------------------------------------- */
/* Takes the trace in `dir` as b->other; what of it cannot be taken is noted.  ASSAY_INVALID_ARGUMENT: another batch or precision, no
 * values. */
assay_status bisect_take_other(bisect *b, const char *dir, bisect_verdict *v);

#endif
