/* What is drawn of a case, by a number that says all of it: numbers, words, and the model (random_model.c). */
#ifndef PARITY_RUN_RANDOM_DRAW_H
#define PARITY_RUN_RANDOM_DRAW_H

#include "core/base/json.h"
#include "core/base/philox.h"

typedef struct draws {
    uint64_t number, attempt, used;
    bool failed; /* an object that could not be made */
} draws;

static inline int64_t below(draws *d, int64_t n)
{
    return (int64_t)assay_philox_below(d->number, d->attempt, d->used++, (uint64_t)n);
}

static inline int64_t between(draws *d, int64_t least, int64_t most)
{
    return least + below(d, most - least + 1);
}

static inline bool chance(draws *d, int percent)
{
    return below(d, 100) < percent;
}

#define ONE_OF(d, ...)                                                                                       \
    ((const int64_t[]){                                                                                      \
        __VA_ARGS__}[below(d, (int64_t)(sizeof((const int64_t[]){__VA_ARGS__}) / sizeof(int64_t)))])
#define WORD_OF(d, ...)                                                                                      \
    ((const char *const[]){                                                                                  \
        __VA_ARGS__}[below(d, (int64_t)(sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *)))])
#define REAL_OF(d, ...)                                                                                      \
    ((const double[]){                                                                                       \
        __VA_ARGS__}[below(d, (int64_t)(sizeof((const double[]){__VA_ARGS__}) / sizeof(double)))])

static inline void put(draws *d, json_t *object, const char *key, json_t *value)
{
    if (json_object_set_new(object, key, value) != 0)
        d->failed = true;
}

static inline void put_int(draws *d, json_t *object, const char *key, int64_t value)
{
    put(d, object, key, json_integer(value));
}

static inline void put_real(draws *d, json_t *object, const char *key, double value)
{
    put(d, object, key, json_real(value));
}

static inline void put_word(draws *d, json_t *object, const char *key, const char *value)
{
    put(d, object, key, json_string(value));
}

static inline void put_flag(draws *d, json_t *object, const char *key, int percent)
{
    if (chance(d, percent))
        put(d, object, key, json_true());
}

static inline int64_t int_of(const json_t *object, const char *key)
{
    return json_integer_value(json_object_get(object, key));
}

/* A model of at most 5 layers, and what training needs to say of its router. */
void draws_model(draws *d, bool wide, json_t *model, json_t *training);

#endif
