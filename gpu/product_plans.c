/* Plans of the library's products: those that are kept, and the file of a device. */
#include "gpu/product_plans.h"
#include "core/base/file.h"
#include "core/base/json.h"
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define FORMAT "assay-product-plans-1"
enum { PROBES = 8, ALGO_HEX = 2 * sizeof(cublasLtMatmulAlgo_t) + 1, FILE_LIMIT = 8 << 20, DEVICE_NAME = 256 };

typedef struct kept {
    gpu_product_plan plan;
    uint64_t asked; /* when last; 0: an empty place */
} kept;

typedef struct choice {
    gpu_product_key key;
    cublasLtMatmulAlgo_t algo;
    double ms;
} choice;

struct gpu_product_plans {
    kept kept[GPU_PRODUCT_PLANS];
    uint64_t asked, hits;
    /* those of the file, `used` of them when the context began; then what was timed */
    choice *choices;
    int n, used;
    char folder[PATH_MAX], path[PATH_MAX], device[DEVICE_NAME]; /* path "": no file */
    int sm;
    bool times;
};

static bool same(const gpu_product_key *a, const gpu_product_key *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

/* FNV-1a over the members. */
static uint64_t hash_of(const gpu_product_key *key)
{
    const unsigned char *byte = (const unsigned char *)key;
    uint64_t h = 14695981039346656037u;
    for (size_t i = 0; i < sizeof *key; i++)
        h = (h ^ byte[i]) * 1099511628211u;
    return h ^ h >> 32;
}

/* Where the key is; NULL: nowhere.  *least: the place that it gets. */
static kept *place_of(gpu_product_plans *p, const gpu_product_key *key, kept **least)
{
    const uint64_t h = hash_of(key);
    *least = &p->kept[h % GPU_PRODUCT_PLANS];
    for (uint64_t i = 0; i < PROBES; i++) {
        kept *at = &p->kept[(h + i) % GPU_PRODUCT_PLANS];
        if (at->asked > 0 && same(&at->plan.key, key))
            return at;
        if (at->asked < (*least)->asked)
            *least = at;
    }
    return NULL;
}

bool gpu_product_plans_find(gpu_product_plans *p, const gpu_product_key *key, gpu_product_plan *out)
{
    kept *unused, *at = NULL;
    if (p == NULL)
        return false;
    p->asked++;
    at = place_of(p, key, &unused);
    if (at == NULL)
        return false;
    p->hits++;
    at->asked = p->asked;
    *out = at->plan;
    return true;
}

void gpu_product_plans_keep(gpu_product_plans *p, const gpu_product_plan *plan)
{
    kept *least;
    if (p == NULL || place_of(p, &plan->key, &least) != NULL)
        return;
    *least = (kept){*plan, p->asked > 0 ? p->asked : 1};
}

void gpu_product_plans_counts(const gpu_product_plans *p, uint64_t *asked, uint64_t *hits)
{
    *asked = p != NULL ? p->asked : 0;
    *hits = p != NULL ? p->hits : 0;
}

static const choice *choice_of(const choice *of, int n, const gpu_product_key *key)
{
    for (int i = 0; i < n; i++)
        if (same(&of[i].key, key))
            return &of[i];
    return NULL;
}

bool gpu_product_plans_in_use(const gpu_product_plans *p)
{
    return p != NULL && p->used > 0;
}

const cublasLtMatmulAlgo_t *gpu_product_plans_chosen(const gpu_product_plans *p, const gpu_product_key *key)
{
    const choice *c = p != NULL ? choice_of(p->choices, p->used, key) : NULL;
    return c != NULL ? &c->algo : NULL;
}

bool gpu_product_plans_wants(const gpu_product_plans *p, const gpu_product_key *key)
{
    return p != NULL && p->times && p->n < GPU_PRODUCT_CHOICES && choice_of(p->choices, p->n, key) == NULL;
}

void gpu_product_plans_record(gpu_product_plans *p, const gpu_product_key *key,
                              const cublasLtMatmulHeuristicResult_t *offered, const float *ms, int n)
{
    int best = -1;
    for (int i = 0; i < n; i++)
        if (isfinite(ms[i]) && ms[i] > 0.0f && (best < 0 || ms[i] < ms[best]))
            best = i;
    if (best < 0 || !gpu_product_plans_wants(p, key))
        return;
    p->choices[p->n++] = (choice){*key, offered[best].algo, (double)ms[best]};
}

/* --- the file -------------------------------------------------------------------------------------------------- */

#define KEY_MEMBERS(X)                                                                                       \
    X(m, 1, INT64_MAX)                                                                                       \
    X(n, 1, INT64_MAX)                                                                                       \
    X(k, 1, INT64_MAX)                                                                                       \
    X(a_is_km, 0, 1)                                                                                         \
    X(b_is_kn, 0, 1)                                                                                         \
    X(accumulate, 0, 1)                                                                                      \
    X(bias, 0, 1)                                                                                            \
    X(align_a, 1, 256)                                                                                       \
    X(align_b, 1, 256)                                                                                       \
    X(align_c, 1, 256)                                                                                       \
    X(workspace_bytes, 0, INT64_MAX)

static assay_status read_dtype(const json_t *of, const char *name, const char *what, int64_t *out)
{
    char word[16] = "";
    assay_dtype dtype = ASSAY_F32;
    ASSAY_TRY(assay_json_get_string(of, name, true, what, word, sizeof word));
    const assay_status st = assay_dtype_from_name(word, &dtype);
    if (st != ASSAY_OK)
        return assay_context(st, "%s: %s", what, name);
    *out = dtype;
    return ASSAY_OK;
}

static assay_status read_algo(const json_t *of, const char *what, cublasLtMatmulAlgo_t *out)
{
    char hex[ALGO_HEX] = "";
    unsigned char *byte = (unsigned char *)out;
    ASSAY_TRY(assay_json_get_string(of, "algo", true, what, hex, sizeof hex));
    ASSAY_CHECK(strlen(hex) == ALGO_HEX - 1 && strspn(hex, "0123456789abcdef") == ALGO_HEX - 1, ASSAY_FORMAT,
                "%s: algo: expected %d hexadecimal digits, found '%s'", what, (int)ALGO_HEX - 1, hex);
    for (size_t i = 0; i < sizeof *out; i++) {
        const char two[] = {hex[2 * i], hex[2 * i + 1], 0};
        byte[i] = (unsigned char)strtoul(two, NULL, 16);
    }
    return ASSAY_OK;
}

static assay_status read_choice(const json_t *of, const char *what, choice *c)
{
#define NAME(member, least, most) #member,
    static const char *const names[] = {KEY_MEMBERS(NAME) "in", "out", "algo", "ms", NULL};
#undef NAME
    memset(c, 0, sizeof *c);
    ASSAY_CHECK(json_is_object(of), ASSAY_FORMAT, "%s: expected an object", what);
    ASSAY_TRY(assay_json_only(of, names, what));
#define READ(member, least, most)                                                                            \
    ASSAY_TRY(assay_json_get_i64(of, #member, true, least, most, what, &c->key.member));
    KEY_MEMBERS(READ)
#undef READ
    const int64_t align[] = {c->key.align_a, c->key.align_b, c->key.align_c};
    for (int i = 0; i < 3; i++)
        ASSAY_CHECK((align[i] & (align[i] - 1)) == 0, ASSAY_FORMAT,
                    "%s: align_%c: expected a power of two, found %lld", what, "abc"[i], (long long)align[i]);
    ASSAY_TRY(read_dtype(of, "in", what, &c->key.in));
    ASSAY_TRY(read_dtype(of, "out", what, &c->key.out));
    ASSAY_TRY(assay_json_get_double(of, "ms", true, 0.0, 1e9, what, &c->ms));
    return read_algo(of, what, &c->algo);
}

static assay_status read_head(const gpu_product_plans *p, const json_t *root)
{
    static const char *const names[] = {"format", "device", "sm", "cublaslt", "plans", NULL};
    char format[64] = "", device[DEVICE_NAME] = "";
    int64_t sm = 0, library = 0;
    ASSAY_CHECK(json_is_object(root), ASSAY_FORMAT, "%s: expected an object", p->path);
    ASSAY_TRY(assay_json_only(root, names, p->path));
    ASSAY_TRY(assay_json_get_string(root, "format", true, p->path, format, sizeof format));
    ASSAY_TRY(assay_json_get_string(root, "device", true, p->path, device, sizeof device));
    ASSAY_TRY(assay_json_get_i64(root, "sm", true, 0, 1000, p->path, &sm));
    ASSAY_TRY(assay_json_get_i64(root, "cublaslt", true, 0, INT64_MAX, p->path, &library));
    ASSAY_CHECK(strcmp(format, FORMAT) == 0, ASSAY_FORMAT, "%s: format: expected '" FORMAT "', found '%s'",
                p->path, format);
    ASSAY_CHECK(strcmp(device, p->device) == 0 && sm == p->sm && library == (int64_t)cublasLtGetVersion(),
                ASSAY_FORMAT,
                "%s: expected plans of %s, sm_%d, cuBLASLt %zu, found %s, sm_%lld, cuBLASLt %lld", p->path,
                p->device, p->sm, cublasLtGetVersion(), device, (long long)sm, (long long)library);
    return ASSAY_OK;
}

/* choices [GPU_PRODUCT_CHOICES]; an absent file has none. */
static assay_status read_file(const gpu_product_plans *p, choice *choices, int *n)
{
    char *text = NULL, what[PATH_MAX + 32];
    uint64_t bytes = 0;
    json_t *root = NULL;
    assay_status st = ASSAY_OK;
    *n = 0;
    if (access(p->path, F_OK) != 0 && errno == ENOENT)
        return ASSAY_OK;
    ASSAY_TRY(assay_read_file(p->path, FILE_LIMIT, &text, &bytes));
    ASSAY_TRY_GOTO(assay_json_parse(&root, text, (size_t)bytes, p->path), st, done);
    ASSAY_TRY_GOTO(read_head(p, root), st, done);
    const json_t *plans = json_object_get(root, "plans");
    ASSAY_CHECK_GOTO(json_is_array(plans) && json_array_size(plans) <= GPU_PRODUCT_CHOICES, ASSAY_FORMAT, st,
                     done, "%s: plans: expected a list of at most %d", p->path, GPU_PRODUCT_CHOICES);
    for (int i = 0; i < (int)json_array_size(plans); i++) {
        (void)snprintf(what, sizeof what, "%s: plans[%d]", p->path, i);
        ASSAY_TRY_GOTO(read_choice(json_array_get(plans, (size_t)i), what, &choices[i]), st, done);
        ASSAY_CHECK_GOTO(choice_of(choices, i, &choices[i].key) == NULL, ASSAY_FORMAT, st, done,
                         "%s: the same product as an earlier one", what);
        *n = i + 1;
    }
done:
    if (st != ASSAY_OK)
        *n = 0;
    json_decref(root);
    free(text);
    return st;
}

static json_t *choice_json(const choice *c)
{
    char hex[ALGO_HEX] = "";
    json_t *o = json_object();
    for (size_t i = 0; i < sizeof c->algo; i++)
        (void)snprintf(hex + 2 * i, 3, "%02x", ((const unsigned char *)&c->algo)[i]);
    bool ok = o != NULL;
#define WRITE(member, least, most)                                                                           \
    ok = ok && json_object_set_new(o, #member, json_integer(c->key.member)) == 0;
    KEY_MEMBERS(WRITE)
#undef WRITE
    ok = ok && json_object_set_new(o, "in", json_string(assay_dtype_name((assay_dtype)c->key.in))) == 0 &&
         json_object_set_new(o, "out", json_string(assay_dtype_name((assay_dtype)c->key.out))) == 0 &&
         json_object_set_new(o, "ms", json_real(c->ms)) == 0 &&
         json_object_set_new(o, "algo", json_string(hex)) == 0;
    if (ok)
        return o;
    json_decref(o);
    return NULL;
}

/* What the file has now stays, whoever wrote it; what was timed comes behind it. */
static assay_status write_file(gpu_product_plans *p)
{
    assay_status st = ASSAY_OK;
    int n = 0;
    json_t *root = NULL, *plans = json_array();
    choice *all = calloc(GPU_PRODUCT_CHOICES, sizeof *all);
    ASSAY_CHECK_GOTO(all && plans, ASSAY_OUT_OF_MEMORY, st, done, "%s", p->path);
    if (read_file(p, all, &n) != ASSAY_OK)
        assay_error_clear(); /* said when it was opened: replaced */
    for (int i = p->used; i < p->n && n < GPU_PRODUCT_CHOICES; i++)
        if (choice_of(all, n, &p->choices[i].key) == NULL)
            all[n++] = p->choices[i];
    for (int i = 0; i < n; i++)
        ASSAY_CHECK_GOTO(json_array_append_new(plans, choice_json(&all[i])) == 0, ASSAY_OUT_OF_MEMORY, st,
                         done, "%s", p->path);
    root = json_pack("{s:s, s:s, s:i, s:I, s:O}", "format", FORMAT, "device", p->device, "sm", p->sm,
                     "cublaslt", (json_int_t)cublasLtGetVersion(), "plans", plans);
    ASSAY_CHECK_GOTO(root, ASSAY_OUT_OF_MEMORY, st, done, "%s", p->path);
    ASSAY_TRY_GOTO(assay_mkdir_p(p->folder), st, done);
    st = assay_json_save(root, p->path);
done:
    json_decref(root);
    json_decref(plans);
    free(all);
    return st;
}

/* The file's name: letters and digits of the device's, others as '-'. */
static assay_status path_of(gpu_product_plans *p)
{
    char name[DEVICE_NAME];
    size_t n = 0;
    for (const char *c = p->device; *c != 0; c++) {
        const bool plain = (*c >= '0' && *c <= '9') || (*c >= 'a' && *c <= 'z') || (*c >= 'A' && *c <= 'Z');
        name[n] = '-';
        if (plain)
            name[n] = *c;
        n++;
    }
    name[n] = 0;
    const int length = snprintf(p->path, sizeof p->path, "%s/%s-sm_%d-cublaslt-%zu.json", p->folder, name,
                                p->sm, cublasLtGetVersion());
    ASSAY_CHECK(length > 0 && (size_t)length < sizeof p->path, ASSAY_LIMIT,
                "ASSAY_PRODUCT_PLANS: expected a path of at most %d bytes", PATH_MAX);
    return ASSAY_OK;
}

static bool is_on(const char *word)
{
    return word != NULL && strcmp(word, "") != 0 && strcmp(word, "0") != 0;
}

static void said(const char *what)
{
    (void)fprintf(stderr, "assay: warning: %s: %s\n", what, assay_error_message());
    assay_error_clear();
}

assay_status gpu_product_plans_open(gpu_product_plans **out, const char *device, int sm)
{
    const char *folder = getenv("ASSAY_PRODUCT_PLANS");
    gpu_product_plans *p = calloc(1, sizeof *p);
    ASSAY_CHECK(p, ASSAY_OUT_OF_MEMORY, "plans of products");
    *out = p;
    p->sm = sm;
    (void)snprintf(p->device, sizeof p->device, "%s", device);
    if (!is_on(folder))
        return ASSAY_OK;
    p->choices = calloc(GPU_PRODUCT_CHOICES, sizeof *p->choices);
    ASSAY_CHECK(p->choices, ASSAY_OUT_OF_MEMORY, "plans of products");
    ASSAY_CHECK((size_t)snprintf(p->folder, sizeof p->folder, "%s", folder) < sizeof p->folder, ASSAY_LIMIT,
                "ASSAY_PRODUCT_PLANS: expected a path of at most %d bytes", PATH_MAX);
    ASSAY_TRY(path_of(p));
    p->times = is_on(getenv("ASSAY_PRODUCT_PLANS_TIME"));
    if (read_file(p, p->choices, &p->n) != ASSAY_OK)
        said("plans of products are not used");
    p->used = p->n;
    return ASSAY_OK;
}

void gpu_product_plans_close(gpu_product_plans *p)
{
    if (p == NULL)
        return;
    const bool fails = assay_error_message()[0] != 0; /* a message that is on its way stays */
    if (p->n > p->used && !fails && write_file(p) != ASSAY_OK)
        said("plans of products are not kept");
    free(p->choices);
    free(p);
}
