/* Exact requests of attention over documents packed in rows: a mask that is off by one token changes the value. */
#include "parity/checks/request.h"

#include <stdlib.h>

enum { BATCH = 2, DIM = 8 };

/* Lengths of documents, a row each, up to 0: one token, as many as a tile holds and one more, most of the row. */
static const int64_t lengths[BATCH][8] = {{1, 8, 8, 1, 2, 44, 0}, {7, 16, 8, 1, 32, 0}};
enum { POSITIONS = 64 };

/* Where the document of position s of a row begins. */
static int64_t start_of(int64_t row, int64_t s)
{
    int64_t start = 0;
    for (int i = 0; lengths[row][i] > 0 && start + lengths[row][i] <= s; i++)
        start += lengths[row][i];
    return start;
}

static double eights(const parity_ask *q, int64_t i)
{
    return 8.0 * parity_lattice(q, i);
}

static void ask_attention(parity_ask *q, int64_t seq_q, int64_t seq_k, int64_t heads, int64_t groups,
                          int64_t window)
{
    const struct {
        const char *name;
        int64_t value;
    } attrs[] = {{"batch", BATCH},   {"seq_q", seq_q},  {"seq_k", seq_k},    {"heads", heads},
                 {"groups", groups}, {"head_dim", DIM}, {"head_dim_v", DIM}, {"window", window}};
    for (size_t i = 0; i < sizeof attrs / sizeof *attrs; i++)
        parity_ask_int(q, attrs[i].name, attrs[i].value);
    parity_ask_real_attr(q, "scale", 1.0);
}

/* Positions and documents of `n` queries of each row, those that `chosen` names, and of all keys. */
static void ask_positions(parity_ask *q, int64_t n, const int64_t *chosen)
{
    int64_t query[BATCH * POSITIONS], key[BATCH * POSITIONS], first[BATCH * POSITIONS];
    for (int64_t t = 0; t < BATCH * POSITIONS; t++)
        key[t] = t / BATCH;
    for (int64_t t = 0; t < BATCH * n; t++) {
        query[t] = chosen ? chosen[t] : t / BATCH;
        first[t] = start_of(t % BATCH, query[t]);
    }
    parity_ask_i64(q, "q_position", BATCH * n, query);
    parity_ask_i64(q, "k_position", BATCH * POSITIONS, key);
    parity_ask_i64(q, "first_key", BATCH * n, first);
}

/* Equal scores over the 1, 2, 4 or 8 tokens that a query sees of its document: exact means of multiples of 8. */
static void ask_uniform(parity_ask *q, int64_t heads, int64_t groups, int64_t window)
{
    int64_t chosen[BATCH * POSITIONS], n = 0;
    for (int64_t s = 0; s < POSITIONS; s++)
        for (int64_t other = 0; other < POSITIONS; other++) {
            const int64_t position[BATCH] = {s, other};
            bool exact = true;
            for (int row = 0; row < BATCH; row++) {
                const int64_t sees = position[row] - start_of(row, position[row]) + 1;
                const int64_t seen = window > 0 && sees > window ? window : sees;
                exact = exact && seen <= 8 && (seen & (seen - 1)) == 0;
            }
            /* every position of row 0 that can be asked meets another one of row 1 */
            if (exact && n < POSITIONS && (other + 3 * s) % 7 < 2) {
                chosen[BATCH * n] = s;
                chosen[BATCH * n + 1] = other;
                n++;
                break;
            }
        }
    parity_ask_begin(q, "attention_fwd");
    parity_ask_real(q, "q", q->act, 3, (int64_t[]){BATCH * n, heads, DIM}, parity_zero);
    parity_ask_real(q, "k", q->act, 3, (int64_t[]){BATCH * POSITIONS, groups, DIM}, parity_lattice);
    parity_ask_real(q, "v", q->act, 3, (int64_t[]){BATCH * POSITIONS, groups, DIM}, eights);
    ask_positions(q, n, chosen);
    ask_attention(q, n, POSITIONS, heads, groups, window);
    parity_ask_finish(q);
}

/* A query looks at one key, of an odd place at itself; documents hold the same keys in the same order, so that a key of
 * another document has the same score. */
static void ask_one_hot(parity_ask *q, bool backward, int64_t heads, int64_t groups)
{
    const int64_t tokens = BATCH * POSITIONS, o[3] = {tokens, heads, DIM}, kv[3] = {tokens, groups, DIM};
    float *query = calloc((size_t)(tokens * heads * DIM), sizeof *query);
    float *key = calloc((size_t)(tokens * groups * DIM), sizeof *key);
    float *lse = calloc((size_t)(tokens * heads), sizeof *lse);
    if (!query || !key || !lse)
        q->st = ASSAY_ERROR(ASSAY_OUT_OF_MEMORY, "exact request: attention");
    for (int64_t t = 0; t < tokens && q->st == ASSAY_OK; t++) {
        /* of the last eight keys of its document: further back one has the same score */
        const int64_t p = t / BATCH - start_of(t % BATCH, t / BATCH);
        const int64_t away = p % 2 == 1 ? 0 : p / 2 < DIM ? p / 2 : DIM - 1;
        for (int64_t g = 0; g < groups; g++)
            key[(t * groups + g) * DIM + p % DIM] = 64.0f;
        for (int64_t a = 0; a < heads; a++) {
            query[(t * heads + a) * DIM + (p - away) % DIM] = 64.0f;
            lse[t * heads + a] = 4096.0f;
        }
    }
    parity_ask_begin(q, backward ? "attention_bwd" : "attention_fwd");
    if (backward)
        parity_ask_real(q, "do", q->act, 3, o, parity_lattice);
    parity_ask_floats(q, "q", 3, o, query);
    parity_ask_floats(q, "k", 3, kv, key);
    parity_ask_real(q, "v", q->act, 3, kv, backward ? parity_lattice : parity_unique);
    if (backward) {
        parity_ask_real(q, "o", q->act, 3, o, parity_lattice);
        parity_ask_bytes(q, "lse", ASSAY_F32, 2, (int64_t[]){tokens, heads}, lse);
    }
    ask_positions(q, POSITIONS, NULL);
    ask_attention(q, POSITIONS, POSITIONS, heads, groups, DIM);
    parity_ask_finish(q);
    free(lse);
    free(key);
    free(query);
}

void parity_ask_lattice_documents(parity_ask *q)
{
    q->tier = "exact";
    ask_uniform(q, 2, 1, 0);
    ask_uniform(q, 4, 2, 4);
    ask_one_hot(q, false, 2, 2);
    ask_one_hot(q, true, 4, 2);
    ask_one_hot(q, true, 3, 1);
}
