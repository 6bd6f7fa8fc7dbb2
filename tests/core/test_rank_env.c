/* Reading who started us: torchrun, Open MPI, Slurm, assay_launch, nobody. */
#include "core/run/launch.h"
#include "core/run/rank_env.h"

#include "tests/support/core_files.h"

static void clear_environment(void)
{
    static const char *const names[] = {"ASSAY_RANK",
                                        "ASSAY_WORLD_SIZE",
                                        "ASSAY_LOCAL_RANK",
                                        "ASSAY_LOCAL_WORLD_SIZE",
                                        "NCCL_COMM_ID",
                                        "RANK",
                                        "WORLD_SIZE",
                                        "LOCAL_RANK",
                                        "LOCAL_WORLD_SIZE",
                                        "MASTER_ADDR",
                                        "MASTER_PORT",
                                        "OMPI_COMM_WORLD_RANK",
                                        "OMPI_COMM_WORLD_SIZE",
                                        "OMPI_COMM_WORLD_LOCAL_RANK",
                                        "OMPI_COMM_WORLD_LOCAL_SIZE",
                                        "SLURM_PROCID",
                                        "SLURM_NTASKS",
                                        "SLURM_STEP_NUM_TASKS",
                                        "SLURM_LOCALID",
                                        "SLURM_NODEID",
                                        "SLURM_JOB_ID",
                                        "SLURM_TASKS_PER_NODE",
                                        "SLURM_STEP_TASKS_PER_NODE",
                                        "SLURM_STEP_NODELIST",
                                        "SLURM_JOB_NODELIST"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        unsetenv(names[i]);
}

TestSuite(rank_env, .init = clear_environment);

/* Pairs of name and value up to NULL. */
static void set(const char *const *pairs)
{
    clear_environment();
    for (; pairs[0]; pairs += 2)
        setenv(pairs[0], pairs[1], 1);
}
#define SET(...) set((const char *const[]){__VA_ARGS__, NULL})
#define TORCHRUN(rank, world, local, local_world)                                                            \
    "RANK", rank, "WORLD_SIZE", world, "LOCAL_RANK", local, "LOCAL_WORLD_SIZE", local_world
#define OPENMPI(rank, world, local, local_world)                                                             \
    "OMPI_COMM_WORLD_RANK", rank, "OMPI_COMM_WORLD_SIZE", world, "OMPI_COMM_WORLD_LOCAL_RANK", local,        \
        "OMPI_COMM_WORLD_LOCAL_SIZE", local_world
#define SLURM(rank, world, local)                                                                            \
    "SLURM_PROCID", rank, "SLURM_NTASKS", world, "SLURM_LOCALID", local, "SLURM_JOB_ID", "7"

static void expect(const char *launcher, int rank, int world, int local_rank, int local_world, const char *id)
{
    assay_rank_env e;
    TEST_OK(assay_rank_env_read(&e));
    cr_expect_str_eq(e.launcher, launcher);
    cr_expect_eq(e.launched, strcmp(launcher, "none") != 0);
    cr_expect_eq(e.rank, rank);
    cr_expect_eq(e.world, world);
    cr_expect_eq(e.local_rank, local_rank);
    cr_expect_eq(e.local_world, local_world);
    cr_expect_str_eq(e.nccl_comm_id, id);
}

Test(rank_env, nobody)
{
    expect("none", 0, 1, 0, 1, "");
}

Test(rank_env, torchrun)
{
    SET(TORCHRUN("5", "8", "1", "4"), "MASTER_ADDR", "node1", "MASTER_PORT", "1234");
    expect("torchrun", 5, 8, 1, 4, "node1:1234");
    SET(TORCHRUN("5", "8", "1", "4"), "MASTER_ADDR", "fe80::1");
    expect("torchrun", 5, 8, 1, 4, "[fe80::1]:29500");
    SET(TORCHRUN("0", "1", "0", "1"));
    expect("torchrun", 0, 1, 0, 1, "");
}

Test(rank_env, openmpi)
{
    SET(OPENMPI("1", "2", "1", "2"));
    expect("openmpi", 1, 2, 1, 2, "127.0.0.1:29500");
    SET(OPENMPI("2", "4", "0", "2"), "MASTER_ADDR", "10.0.0.1");
    expect("openmpi", 2, 4, 0, 2, "10.0.0.1:29500");
}

Test(rank_env, slurm)
{
    SET(SLURM("3", "4", "1"), "SLURM_STEP_NODELIST", "node[01-04,07]", "SLURM_STEP_TASKS_PER_NODE", "2(x2)",
        "SLURM_NODEID", "1");
    expect("slurm", 3, 4, 1, 2, "node01:20007");
    SET(SLURM("1", "2", "1"), "SLURM_JOB_NODELIST", "box", "MASTER_PORT", "99");
    expect("slurm", 1, 2, 1, 2, "box:99");
    /* The step is smaller than the job. */
    SET(SLURM("1", "64", "1"), "SLURM_STEP_NUM_TASKS", "2", "SLURM_JOB_NODELIST", "box");
    expect("slurm", 1, 2, 1, 2, "box:20007");
}

Test(rank_env, slurm_node_lists)
{
    static const char *const lists[][2] = {
        {"n1,n2", "n1:20007"},        {"node[01-04,07]", "node01:20007"},
        {"node[7]", "node7:20007"},   {"r[1-2]n[3,5]-ib,x", "r1n3-ib:20007"},
        {"a.b-c_d", "a.b-c_d:20007"}, {"gpu-[003,005-009]", "gpu-003:20007"},
    };
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        SET(SLURM("0", "2", "0"), "SLURM_JOB_NODELIST", lists[i][0]);
        expect("slurm", 0, 2, 0, 2, lists[i][1]);
    }
}

Test(rank_env, slurm_node_lists_that_cannot_be_read)
{
    static const char *const lists[] = {"node[", "node[a-b]", "node[]", "node[01",
                                        ",n",    "n o",       "n;rm",   "node[01;"};
    assay_rank_env e;
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        SET(SLURM("0", "2", "0"), "SLURM_JOB_NODELIST", lists[i]);
        TEST_FAILS(assay_rank_env_read(&e), ASSAY_INVALID_ARGUMENT,
                   "SLURM_JOB_NODELIST: expected a node list such as");
    }
}

Test(rank_env, slurm_tasks_per_node)
{
    static const struct {
        const char *text, *node;
        int tasks;
    } lists[] = {
        {"4", "0", 4}, {"4(x2),3", "0", 4}, {"4(x2),3", "1", 4}, {"4(x2),3", "2", 3}, {"1,2", "1", 2}};
    assay_rank_env e;
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        SET(SLURM("0", "11", "0"), "SLURM_JOB_NODELIST", "n", "SLURM_TASKS_PER_NODE", lists[i].text,
            "SLURM_NODEID", lists[i].node);
        expect("slurm", 0, 11, 0, lists[i].tasks, "n:20007");
    }
    static const char *const bad[] = {"x", "4(x", "4(x2", "4(y2)", "0", "4;", "4(x0)"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        SET(SLURM("0", "11", "0"), "SLURM_JOB_NODELIST", "n", "SLURM_TASKS_PER_NODE", bad[i]);
        TEST_FAILS(assay_rank_env_read(&e), ASSAY_INVALID_ARGUMENT, "SLURM_TASKS_PER_NODE: expected a list");
    }
    SET(SLURM("0", "11", "0"), "SLURM_JOB_NODELIST", "n", "SLURM_TASKS_PER_NODE", "4", "SLURM_NODEID", "1");
    TEST_FAILS(assay_rank_env_read(&e), ASSAY_INVALID_ARGUMENT, "ends before this node");
}

#define OURS(rank, world)                                                                                    \
    "ASSAY_RANK", rank, "ASSAY_WORLD_SIZE", world, "ASSAY_LOCAL_RANK", rank, "ASSAY_LOCAL_WORLD_SIZE", world

Test(rank_env, our_own_variables_win)
{
    SET(OURS("1", "2"), TORCHRUN("5", "8", "1", "4"), SLURM("3", "4", "1"), "NCCL_COMM_ID", "127.0.0.1:5");
    expect("assay", 1, 2, 1, 2, "127.0.0.1:5");
    assay_rank_env e;
    SET(OURS("1", "2"));
    TEST_FAILS(assay_rank_env_read(&e), ASSAY_INVALID_ARGUMENT,
               "ASSAY_WORLD_SIZE is 2, but NCCL_COMM_ID is not set");
}

Test(rank_env, half_an_environment_is_an_error)
{
    assay_rank_env e;
    SET("RANK", "1");
    TEST_FAILS(assay_rank_env_read(&e), ASSAY_INVALID_ARGUMENT,
               "started by torchrun, but WORLD_SIZE is not set");
    SET("RANK", "1", "WORLD_SIZE", "2");
    TEST_FAILS(assay_rank_env_read(&e), ASSAY_INVALID_ARGUMENT,
               "started by torchrun, but LOCAL_RANK is not set");
    SET("WORLD_SIZE", "2");
    TEST_FAILS(assay_rank_env_read(&e), ASSAY_INVALID_ARGUMENT, "WORLD_SIZE is set, but RANK is not");
    SET("OMPI_COMM_WORLD_SIZE", "2");
    TEST_FAILS(assay_rank_env_read(&e), ASSAY_INVALID_ARGUMENT,
               "OMPI_COMM_WORLD_SIZE is set, but OMPI_COMM_WORLD_RANK is not");
    SET(SLURM("0", "2", "0"));
    TEST_FAILS(assay_rank_env_read(&e), ASSAY_INVALID_ARGUMENT, "started by slurm, but neither MASTER_ADDR");
    SET(OPENMPI("2", "4", "0", "2"));
    TEST_FAILS(
        assay_rank_env_read(&e), ASSAY_INVALID_ARGUMENT,
        "started by openmpi on several hosts (2 of 4 ranks are on this one), but MASTER_ADDR is not set");
    /* An allocation without a step is not a launch. */
    SET("SLURM_NTASKS", "4");
    expect("none", 0, 1, 0, 1, "");
}

Test(rank_env, contradictions_are_errors)
{
    assay_rank_env e;
    SET(TORCHRUN("2", "2", "0", "1"));
    TEST_FAILS(assay_rank_env_read(&e), ASSAY_INVALID_ARGUMENT, "RANK is 2, but WORLD_SIZE is 2");
    SET(TORCHRUN("1", "2", "0", "4"));
    TEST_FAILS(assay_rank_env_read(&e), ASSAY_INVALID_ARGUMENT,
               "4 ranks on this host according to torchrun, but WORLD_SIZE is 2");
    SET(TORCHRUN("1", "4", "2", "2"));
    TEST_FAILS(assay_rank_env_read(&e), ASSAY_INVALID_ARGUMENT, "LOCAL_RANK is 2, but this host has 2 ranks");
    SET(TORCHRUN("0", "4", "1", "2"));
    TEST_FAILS(assay_rank_env_read(&e), ASSAY_INVALID_ARGUMENT, "LOCAL_RANK is 1");
}

Test(rank_env, values_that_are_no_numbers_are_named)
{
    static const char *const bad[] = {"x", "-1", "1x", " 1", "+1", "1.0", "99999999999999999999"};
    assay_rank_env e;
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        SET(TORCHRUN(bad[i], "2", "0", "2"));
        TEST_FAILS(assay_rank_env_read(&e), ASSAY_INVALID_ARGUMENT, "RANK: expected an integer from 0 to");
    }
    SET(TORCHRUN("0", "0", "0", "1"));
    TEST_FAILS(assay_rank_env_read(&e), ASSAY_INVALID_ARGUMENT, "WORLD_SIZE: expected an integer from 1 to");
    SET(TORCHRUN("0", "2", "0", "2"), "MASTER_PORT", "65536");
    TEST_FAILS(assay_rank_env_read(&e), ASSAY_INVALID_ARGUMENT,
               "MASTER_PORT: expected an integer from 1 to 65535");
    SET(TORCHRUN("0", "2", "0", "2"), "NCCL_COMM_ID", "nowhere");
    TEST_FAILS(assay_rank_env_read(&e), ASSAY_INVALID_ARGUMENT, "NCCL_COMM_ID: expected host:port");
    SET(TORCHRUN("0", "2", "0", "2"), "NCCL_COMM_ID", "here:x");
    TEST_FAILS(assay_rank_env_read(&e), ASSAY_INVALID_ARGUMENT, "port of NCCL_COMM_ID");
}
