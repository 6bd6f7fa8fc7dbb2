/* Open addressing from text to a number, and the texts that serve as keys. */
#include "parity/judge/judge.h"

#include <stdlib.h>
#include <string.h>

typedef struct slot {
    char *key; /* NULL: free */
    uint64_t hash;
    int64_t value;
} slot;
struct parity_map {
    int64_t n, n_slots; /* n_slots: a power of two, more than twice n */
    slot *slots;
};

assay_status parity_map_create(parity_map **out)
{
    *out = NULL;
    parity_map *m = calloc(1, sizeof *m);
    ASSAY_CHECK(m, ASSAY_OUT_OF_MEMORY, "map");
    m->n_slots = 64;
    m->slots = calloc((size_t)m->n_slots, sizeof *m->slots);
    if (!m->slots) {
        free(m);
        ASSAY_FAIL(ASSAY_OUT_OF_MEMORY, "map");
    }
    *out = m;
    return ASSAY_OK;
}

void parity_map_destroy(parity_map *m)
{
    if (!m)
        return;
    for (int64_t i = 0; i < m->n_slots; i++)
        free(m->slots[i].key);
    free(m->slots);
    free(m);
}

/* The slot of `key`, or the free one where it belongs. */
static int64_t probe(const slot *slots, int64_t n_slots, const char *key, uint64_t hash)
{
    int64_t i = (int64_t)(hash & (uint64_t)(n_slots - 1));
    while (slots[i].key && (slots[i].hash != hash || strcmp(slots[i].key, key) != 0))
        i = (i + 1) & (n_slots - 1);
    return i;
}

int64_t parity_map_get(const parity_map *m, const char *key)
{
    const int64_t i = probe(m->slots, m->n_slots, key, assay_text_hash(key));
    return m->slots[i].key ? m->slots[i].value : -1;
}

static assay_status grow(parity_map *m)
{
    const int64_t n_slots = 2 * m->n_slots;
    slot *slots = calloc((size_t)n_slots, sizeof *slots);
    ASSAY_CHECK(slots, ASSAY_OUT_OF_MEMORY, "map of %lld entries", (long long)m->n);
    for (int64_t i = 0; i < m->n_slots; i++) {
        if (m->slots[i].key)
            slots[probe(slots, n_slots, m->slots[i].key, m->slots[i].hash)] = m->slots[i];
    }
    free(m->slots);
    m->slots = slots;
    m->n_slots = n_slots;
    return ASSAY_OK;
}

assay_status parity_map_put(parity_map *m, const char *key, int64_t value)
{
    if (2 * (m->n + 1) >= m->n_slots)
        ASSAY_TRY(grow(m));
    const uint64_t hash = assay_text_hash(key);
    slot *s = &m->slots[probe(m->slots, m->n_slots, key, hash)];
    if (!s->key) {
        s->key = strdup(key);
        ASSAY_CHECK(s->key, ASSAY_OUT_OF_MEMORY, "map key");
        s->hash = hash;
        m->n++;
    }
    s->value = value;
    return ASSAY_OK;
}

const char *parity_map_kept(const parity_map *m, const char *key)
{
    return m->slots[probe(m->slots, m->n_slots, key, assay_text_hash(key))].key;
}

assay_status parity_map_keep(parity_map *m, const char *key, const char **kept)
{
    *kept = parity_map_kept(m, key);
    if (*kept == NULL) {
        ASSAY_TRY(parity_map_put(m, key, 0));
        *kept = parity_map_kept(m, key);
    }
    return ASSAY_OK;
}

/* --- keys --------------------------------------------------------------------------------------------------- */

parity_key parity_key_begin(char *out, size_t capacity)
{
    out[0] = '\0';
    return (parity_key){out, capacity, 0};
}

static void append(parity_key *k, const char *text, size_t n)
{
    const size_t room = k->capacity - 1 - k->n;
    const size_t taken = n < room ? n : room;
    memcpy(k->out + k->n, text, taken);
    k->n += taken;
    k->out[k->n] = '\0';
}

void parity_key_text(parity_key *k, const char *text)
{
    append(k, text, strlen(text));
    append(k, "|", 1);
}

void parity_key_number(parity_key *k, int64_t number)
{
    char digits[24];
    size_t at = sizeof digits;
    uint64_t rest = number < 0 ? 0 - (uint64_t)number : (uint64_t)number;
    digits[--at] = '|';
    do {
        digits[--at] = (char)('0' + rest % 10);
        rest /= 10;
    } while (rest > 0);
    if (number < 0)
        digits[--at] = '-';
    append(k, digits + at, sizeof digits - at);
}
