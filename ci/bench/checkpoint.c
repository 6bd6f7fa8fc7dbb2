/* bench_checkpoint DIR [RANKS]: saves, loads and verifies a checkpoint of 0.9 GB (66 million parameters in bf16 with masters and two
 * moments) in DIR by RANKS processes, and prints seconds of each, and
 * the processor's of rank 0; ci/bench_checkpoint.sh sets it beside cp and sha256sum. */
#include "core/files/checkpoint.h"
#include "core/base/file.h"
#include "core/base/log.h"
#include "core/model/grid.h"
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static const char config_text[] =
    "{\"model_type\":\"qwen3\",\"architectures\":[\"Qwen3ForCausalLM\"],\"hidden_act\":\"silu\","
    "\"num_hidden_layers\":4,\"hidden_size\":1024,\"intermediate_size\":2816,\"num_attention_heads\":16,"
    "\"num_key_value_heads\":16,\"head_dim\":64,\"vocab_size\":8000,\"max_position_embeddings\":512,"
    "\"rms_norm_eps\":1e-6,\"rope_theta\":10000.0,\"tie_word_embeddings\":false,\"attention_bias\":false}";
static const char *const state_names[] = {"exp_avg", "exp_avg_sq"};
static const char *const families[] = {"weight", "main_param", "exp_avg", "exp_avg_sq"};

typedef struct bench {
    const char *dir;
    int rank, world;
    uint64_t job;
    pthread_barrier_t *barrier; /* of the processes, in shared memory */
    assay_model_spec *spec;
    assay_checkpoint_content content;
    char *data;
} bench;

static assay_status make_model(bench *b)
{
    json_t *json;
    assay_model_config *config = calloc(1, sizeof *config);
    ASSAY_CHECK(config != NULL, ASSAY_OUT_OF_MEMORY, "model");
    assay_status st = assay_json_parse(&json, config_text, strlen(config_text), "config");
    if (st == ASSAY_OK) {
        st = assay_config_from_json(json, "config", config);
        json_decref(json);
    }
    if (st == ASSAY_OK)
        st = assay_spec_build(config, &b->spec);
    free(config);
    b->content = (assay_checkpoint_content){.spec = b->spec,
                                            .weight = ASSAY_BF16,
                                            .state = ASSAY_F32,
                                            .n_states = 2,
                                            .state_names = state_names,
                                            .max_shard_size = (int64_t)100 << 20};
    return st;
}

/* Rows in equal parts; what has one dimension is whole on every rank, and rank 0's goes to the file. */
static assay_shard piece_of(const bench *b, const assay_param_spec *p)
{
    assay_shard s;
    int64_t start, length;
    assay_shard_whole(&s, p->shape, p->ndim);
    if (p->ndim > 1) {
        assay_split(p->shape[0], b->world, b->rank, &start, &length);
        (void)assay_shard_narrow(&s, 0, start, length);
    }
    return s;
}

static void meet(const bench *b)
{
    pthread_barrier_wait(b->barrier);
}

/* Of this process: rank 0's share. */
static double cpu_s(void)
{
    struct rusage r;
    getrusage(RUSAGE_SELF, &r);
    return (double)r.ru_utime.tv_sec + (double)r.ru_stime.tv_sec +
           1e-6 * (double)(r.ru_utime.tv_usec + r.ru_stime.tv_usec);
}

static void say(const bench *b, const char *what, double begin, double *cpu)
{
    meet(b);
    if (b->rank == 0)
        printf("%s %.3f %.3f\n", what, assay_monotonic_s() - begin, cpu_s() - *cpu);
    fflush(stdout);
    *cpu = cpu_s();
    meet(b);
}

static assay_status save(bench *b)
{
    assay_checkpoint_writer *w = NULL;
    assay_status st = ASSAY_OK;
    const double begin = assay_monotonic_s();
    double cpu = cpu_s();
    for (int turn = 0; turn < 2; turn++) { /* rank 0 first */
        if ((b->rank > 0) == (turn > 0))
            ASSAY_TRY(assay_checkpoint_writer_open(&w, b->dir, b->job, 1, b->rank, b->world, &b->content));
        meet(b);
    }
    for (int64_t i = 0; i < b->spec->n_params; i++)
        for (int f = 0; f < 4; f++) {
            const assay_param_spec *p = &b->spec->params[i];
            const assay_shard s = piece_of(b, p);
            ASSAY_TRY_GOTO(assay_checkpoint_add(w, families[f], p->name, f == 0 ? ASSAY_BF16 : ASSAY_F32, &s,
                                                b->data, b->rank == 0 || p->ndim > 1),
                           st, done);
        }
    ASSAY_TRY_GOTO(assay_checkpoint_writer_finish(w), st, done);
    ASSAY_TRY_GOTO(assay_checkpoint_seal(w), st, done);
    meet(b);
    if (b->rank == 0) {
        json_t *state = json_object();
        st = assay_checkpoint_publish(w, state);
        json_decref(state);
    }
    say(b, "save", begin, &cpu);
done:
    assay_checkpoint_writer_destroy(w);
    return st;
}

static assay_status load(bench *b)
{
    assay_checkpoint *c = NULL;
    assay_status st = ASSAY_OK;
    const double begin = assay_monotonic_s();
    double cpu = cpu_s();
    ASSAY_TRY(assay_checkpoint_open_share(&c, b->dir, &(assay_checkpoint_ignore){.missing = NULL}, b->rank,
                                          b->world));
    meet(b);
    for (int64_t i = 0; i < b->spec->n_params && st == ASSAY_OK; i++)
        for (int f = 1; f < 4 && st == ASSAY_OK; f++) {
            const assay_param_spec *p = &b->spec->params[i];
            const assay_shard s = piece_of(b, p);
            st = assay_checkpoint_read(c, families[f], p->name, ASSAY_F32, &s, b->data);
        }
    assay_checkpoint_close(c);
    say(b, "load", begin, &cpu);
    return st;
}

static void finding(void *user, const char *text)
{
    (void)user;
    fprintf(stderr, "%s\n", text);
}

static assay_status verify(bench *b)
{
    int64_t found = 0;
    const double begin = assay_monotonic_s();
    double cpu = cpu_s();
    if (b->rank == 0)
        ASSAY_TRY(assay_checkpoint_verify_each(b->dir, &(assay_checkpoint_ignore){.missing = NULL}, finding,
                                               NULL, &found));
    ASSAY_CHECK(found == 0, ASSAY_FORMAT, "%lld findings", (long long)found);
    say(b, "verify", begin, &cpu);
    return ASSAY_OK;
}

static assay_status all(bench *b)
{
    uint64_t bits = 1;
    int64_t most = 0;
    ASSAY_TRY(make_model(b));
    for (int64_t i = 0; i < b->spec->n_params; i++) {
        const assay_shard s = piece_of(b, &b->spec->params[i]);
        most = assay_shard_count(&s) > most ? assay_shard_count(&s) : most;
    }
    b->data = malloc((size_t)most * 4);
    ASSAY_CHECK(b->data != NULL, ASSAY_OUT_OF_MEMORY, "%lld elements", (long long)most);
    for (int64_t i = 0; i < most; i++) { /* replicas are equal, neighbours are not */
        bits = bits * 6364136223846793005u + 1442695040888963407u;
        memcpy(b->data + 4 * i, (const char *)&bits + 4, 4);
    }
    ASSAY_TRY(save(b));
    ASSAY_TRY(verify(b));
    return load(b);
}

int main(int argc, char **argv)
{
    bench b = {.dir = argc > 1 ? argv[1] : "", .world = argc > 2 ? atoi(argv[2]) : 1};
    pthread_barrierattr_t shared;
    if (argc < 2 || b.world < 1 || b.world > 64) {
        fputs("usage: bench_checkpoint DIR [RANKS]\n", stderr);
        return 2;
    }
    b.barrier = mmap(NULL, sizeof *b.barrier, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (b.barrier == MAP_FAILED)
        return 2;
    pthread_barrierattr_init(&shared);
    pthread_barrierattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(b.barrier, &shared, (unsigned)b.world);
    (void)assay_hash_init();
    b.job = assay_checkpoint_job();
    for (int r = 1; r < b.world; r++)
        if (fork() == 0) {
            b.rank = r;
            break;
        }
    const assay_status st = all(&b);
    if (st != ASSAY_OK) { /* the others wait for this one */
        assay_error_print(stderr, "bench_checkpoint", 0);
        kill(0, SIGTERM);
    }
    while (b.rank == 0 && wait(NULL) > 0)
        ;
    return st == ASSAY_OK ? 0 : 1;
}
