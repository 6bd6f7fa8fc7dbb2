/* Who started this process: the variables of torchrun, Open MPI, Slurm and assay_launch. */
#include "core/run/rank_env.h"

#include <ctype.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT_PORT = 29500, MAX_WORLD = 1 << 20 };

/* Variables of one launcher.  It is taken as the one that started us when `rank` is set. */
typedef struct launcher {
    const char *name, *rank, *world, *local_rank, *local_world;
} launcher;

static const launcher LAUNCHERS[] = {
    {"assay", "ASSAY_RANK", "ASSAY_WORLD_SIZE", "ASSAY_LOCAL_RANK", "ASSAY_LOCAL_WORLD_SIZE"},
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {"openmpi", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"slurm", "SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", NULL},
};
enum { N_LAUNCHERS = sizeof LAUNCHERS / sizeof LAUNCHERS[0] };

/* Empty counts as unset: that is what shells leave behind. */
static const char *variable(const char *name)
{
    const char *value = name ? getenv(name) : NULL;
    return value && value[0] != '\0' ? value : NULL;
}

static assay_status parse_int(const char *name, const char *text, int min, int max, int *out)
{
    char *rest = NULL;
    const bool digits = isdigit((unsigned char)text[0]) != 0;
    const long value = digits ? strtol(text, &rest, 10) : -1;
    ASSAY_CHECK(digits && *rest == '\0' && value >= min && value <= max, ASSAY_INVALID_ARGUMENT,
                "%s: expected an integer from %d to %d, found '%.64s'", name, min, max, text);
    *out = (int)value;
    return ASSAY_OK;
}

static assay_status read_int(const char *who, const char *name, int min, int max, int *out)
{
    const char *text = variable(name);
    ASSAY_CHECK(text, ASSAY_INVALID_ARGUMENT, "started by %s, but %s is not set", who, name);
    return parse_int(name, text, min, max, out);
}

/* Entry `node` of Slurm's tasks per node: "4(x2),3" means 4, 4, 3. */
static assay_status slurm_tasks_of_node(const char *name, const char *text, int node, int *out)
{
    const char *at = text;
    while (*at) {
        char *rest = NULL;
        long tasks = -1, repeat = 1;
        if (isdigit((unsigned char)*at))
            tasks = strtol(at, &rest, 10);
        if (tasks >= 1 && rest[0] == '(' && rest[1] == 'x' && isdigit((unsigned char)rest[2])) {
            repeat = strtol(rest + 2, &rest, 10);
            if (*rest == ')')
                rest++;
            else
                repeat = -1;
        }
        ASSAY_CHECK(tasks >= 1 && tasks <= MAX_WORLD && repeat >= 1 && (*rest == ',' || *rest == '\0'),
                    ASSAY_INVALID_ARGUMENT, "%s: expected a list such as 4(x2),3, found '%.64s'", name, text);
        if (node < repeat) {
            *out = (int)tasks;
            return ASSAY_OK;
        }
        node -= (int)(repeat < INT_MAX ? repeat : INT_MAX);
        at = *rest == ',' ? rest + 1 : rest;
    }
    ASSAY_FAIL(ASSAY_INVALID_ARGUMENT, "%s: '%.64s' ends before this node", name, text);
}

static assay_status slurm_local_world(int world, int *out)
{
    const char *name =
        variable("SLURM_STEP_TASKS_PER_NODE") ? "SLURM_STEP_TASKS_PER_NODE" : "SLURM_TASKS_PER_NODE";
    const char *text = variable(name), *node_text = variable("SLURM_NODEID");
    int node = 0;
    *out = world; /* one node, when Slurm does not say otherwise */
    if (!text)
        return ASSAY_OK;
    if (node_text)
        ASSAY_TRY(parse_int("SLURM_NODEID", node_text, 0, MAX_WORLD, &node));
    return slurm_tasks_of_node(name, text, node, out);
}

/* First host of a Slurm node list: "node[01-04,07],x9" -> "node01"; "r[1-2]n[3,5]" -> "r1n3". */
static assay_status slurm_first_host(const char *name, const char *list, char *out, size_t capacity)
{
    size_t used = 0;
    bool ok = true;
    for (const char *at = list; *at && *at != ',' && ok; at++) {
        const char *first = at;
        size_t n = 1;
        if (*at == '[') {
            first = at + 1;
            n = strspn(first, "0123456789");
            at = strchr(at, ']');
            ok = n > 0 && at && strchr("-,]", first[n]);
        } else {
            ok = isalnum((unsigned char)*at) || strchr("-._", *at);
        }
        ok = ok && used + n < capacity;
        if (ok)
            memcpy(out + used, first, n);
        used += n;
        if (!at)
            break;
    }
    ASSAY_CHECK(ok && used > 0, ASSAY_INVALID_ARGUMENT,
                "%s: expected a node list such as node[01-04,07], found '%.128s'", name, list);
    out[used] = '\0';
    return ASSAY_OK;
}

static assay_status slurm_address(char *host, size_t capacity, int *port)
{
    const char *name = variable("SLURM_STEP_NODELIST") ? "SLURM_STEP_NODELIST" : "SLURM_JOB_NODELIST";
    const char *list = variable(name), *job = variable("SLURM_JOB_ID");
    ASSAY_CHECK(
        list, ASSAY_INVALID_ARGUMENT,
        "started by slurm, but neither MASTER_ADDR, SLURM_STEP_NODELIST nor SLURM_JOB_NODELIST is set");
    ASSAY_TRY(slurm_first_host(name, list, host, capacity));
    /* Two jobs that share a node must not meet. */
    int id = 0;
    if (job) {
        ASSAY_TRY(parse_int("SLURM_JOB_ID", job, 0, INT_MAX, &id));
        *port = 20000 + id % 16384;
    }
    return ASSAY_OK;
}

/* host:port for NCCL_COMM_ID.  What is set already wins; then MASTER_ADDR; then what the launcher tells. */
static assay_status find_comm_id(assay_rank_env *e)
{
    const char *id = variable("NCCL_COMM_ID"), *address = variable("MASTER_ADDR"),
               *port_text = variable("MASTER_PORT");
    char host[256] = "127.0.0.1";
    int port = DEFAULT_PORT;
    if (e->world == 1)
        return ASSAY_OK;
    if (id) {
        const char *colon = strrchr(id, ':');
        ASSAY_CHECK(colon && colon > id && strlen(id) < sizeof e->nccl_comm_id, ASSAY_INVALID_ARGUMENT,
                    "NCCL_COMM_ID: expected host:port, found '%.128s'", id);
        ASSAY_TRY(parse_int("port of NCCL_COMM_ID", colon + 1, 1, 65535, &port));
        snprintf(e->nccl_comm_id, sizeof e->nccl_comm_id, "%s", id);
        return ASSAY_OK;
    }
    ASSAY_CHECK(strcmp(e->launcher, "assay") != 0, ASSAY_INVALID_ARGUMENT,
                "ASSAY_WORLD_SIZE is %d, but NCCL_COMM_ID is not set", e->world);
    if (address) {
        ASSAY_CHECK(strlen(address) < sizeof host, ASSAY_INVALID_ARGUMENT, "MASTER_ADDR: %zu bytes",
                    strlen(address));
        snprintf(host, sizeof host, "%s", address);
    } else if (strcmp(e->launcher, "slurm") == 0) {
        ASSAY_TRY(slurm_address(host, sizeof host, &port));
    } else {
        ASSAY_CHECK(e->local_world == e->world, ASSAY_INVALID_ARGUMENT,
                    "started by %s on several hosts (%d of %d ranks are on this one), but MASTER_ADDR is not "
                    "set",
                    e->launcher, e->local_world, e->world);
    }
    if (port_text)
        ASSAY_TRY(parse_int("MASTER_PORT", port_text, 1, 65535, &port));
    const bool ipv6 = strchr(host, ':') && host[0] != '[';
    snprintf(e->nccl_comm_id, sizeof e->nccl_comm_id, ipv6 ? "[%s]:%d" : "%s:%d", host, port);
    return ASSAY_OK;
}

static const launcher *find_launcher(void)
{
    for (int i = 0; i < N_LAUNCHERS; i++)
        if (variable(LAUNCHERS[i].rank))
            return &LAUNCHERS[i];
    return NULL;
}

/* A world without a rank is half an environment: somebody's launcher failed to reach us. */
static assay_status check_no_lonely_world(void)
{
    for (int i = 0; i < N_LAUNCHERS - 1; i++) /* Slurm sets its number of tasks outside of steps, too */
        ASSAY_CHECK(!variable(LAUNCHERS[i].world), ASSAY_INVALID_ARGUMENT, "%s is set, but %s is not",
                    LAUNCHERS[i].world, LAUNCHERS[i].rank);
    return ASSAY_OK;
}

assay_status assay_rank_env_read(assay_rank_env *out)
{
    *out = (assay_rank_env){.world = 1, .local_world = 1, .launcher = "none"};
    const launcher *l = find_launcher();
    if (!l)
        return check_no_lonely_world();
    assay_rank_env e = {.launched = true};
    const char *world = l->world;
    snprintf(e.launcher, sizeof e.launcher, "%s", l->name);
    if (strcmp(l->name, "slurm") == 0 && variable("SLURM_STEP_NUM_TASKS"))
        world = "SLURM_STEP_NUM_TASKS"; /* the step may be smaller than the job */
    ASSAY_TRY(read_int(l->name, l->rank, 0, MAX_WORLD, &e.rank));
    ASSAY_TRY(read_int(l->name, world, 1, MAX_WORLD, &e.world));
    ASSAY_TRY(read_int(l->name, l->local_rank, 0, MAX_WORLD, &e.local_rank));
    if (l->local_world)
        ASSAY_TRY(read_int(l->name, l->local_world, 1, MAX_WORLD, &e.local_world));
    else
        ASSAY_TRY(slurm_local_world(e.world, &e.local_world));
    ASSAY_CHECK(e.rank < e.world, ASSAY_INVALID_ARGUMENT, "%s is %d, but %s is %d", l->rank, e.rank, world,
                e.world);
    ASSAY_CHECK(e.local_world <= e.world, ASSAY_INVALID_ARGUMENT,
                "%d ranks on this host according to %s, but %s is %d", e.local_world, l->name, world,
                e.world);
    ASSAY_CHECK(e.local_rank < e.local_world && e.local_rank <= e.rank, ASSAY_INVALID_ARGUMENT,
                "%s is %d, but this host has %d ranks and %s is %d", l->local_rank, e.local_rank,
                e.local_world, l->rank, e.rank);
    ASSAY_TRY(find_comm_id(&e));
    *out = e;
    return ASSAY_OK;
}
