/* Starting ranks: environment, output, death, time limit, no survivors.  Ranks are shell scripts. */
#include "core/run/launch.h"

#include "core/run/launch_port.h"
#include "tests/support/core_files.h"
#include <arpa/inet.h>
#include <inttypes.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>

static char folder[TEST_PATH], out[TEST_PATH];

static void setup(void)
{
    test_folder_make(folder);
    test_path(out, folder, "log");
}

static void teardown(void)
{
    test_folder_remove(folder);
}

TestSuite(launch, .init = setup, .fini = teardown, .timeout = 60);

static assay_status run(const char *script, int world, double timeout_s, assay_launch_result *r)
{
    const char *const argv[] = {"/bin/sh", "-c", script, NULL};
    const assay_launch_options o = {
        .world = world, .timeout_s = timeout_s, .prefix_output = true, .log_path = out, .quiet = true};
    return assay_launch(argv, &o, r);
}

/* How often `line` stands in the log as a line of its own. */
static int count_lines(const char *line)
{
    int n = 0;
    char *text = test_read(out, NULL);
    for (char *at = strtok(text, "\n"); at; at = strtok(NULL, "\n"))
        n += strcmp(at, line) == 0;
    free(text);
    return n;
}

Test(launch, ranks_know_who_they_are)
{
    assay_launch_result r;
    setenv("ASSAY_RANK", "77", 1); /* of the launcher itself: replaced, not doubled */
    TEST_OK(run("echo $ASSAY_RANK $ASSAY_WORLD_SIZE $ASSAY_LOCAL_RANK $ASSAY_LOCAL_WORLD_SIZE; echo err >&2; "
                "case $NCCL_COMM_ID in 127.0.0.1:[1-9]*) echo id;; esac; env | grep -c ^ASSAY_RANK=",
                3, 0.0, &r));
    cr_expect_eq(r.failed_rank, -1);
    cr_expect_eq(r.exit_code, 0);
    cr_expect_eq(count_lines("[rank 0] 0 3 0 3"), 1);
    cr_expect_eq(count_lines("[rank 2] 2 3 2 3"), 1);
    cr_expect_eq(count_lines("[rank 1] err"), 1);
    cr_expect_eq(count_lines("[rank 1] id"), 1);
    cr_expect_eq(count_lines("[rank 1] 1"), 1);
}

/* Launches at the same time do not meet: without the sockets some of 600 ports would be the same. */
Test(launch, every_launch_has_a_port_of_its_own)
{
    enum { N = 600 };
    static bool used[65536];
    static int held[N];
    char address[64];
    for (int i = 0; i < N; i++) {
        TEST_OK(assay_launch_port(&held[i], address, sizeof address));
        const int port = atoi(strrchr(address, ':') + 1);
        cr_assert(port > 0 && port < 65536 && !used[port], "%s is given twice", address);
        used[port] = true;
    }
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    a.sin_port = htons((uint16_t)atoi(strrchr(address, ':') + 1));
    const int yes = 1, other = socket(AF_INET, SOCK_STREAM, 0), nccl = socket(AF_INET, SOCK_STREAM, 0);
    cr_expect_eq(bind(other, (struct sockaddr *)&a, sizeof a), -1);
    cr_expect_eq(setsockopt(nccl, SOL_SOCKET, SO_REUSEPORT, &yes, sizeof yes), 0);
    cr_expect_eq(bind(nccl, (struct sockaddr *)&a, sizeof a), 0);
    cr_expect_eq(listen(nccl, 8), 0);
    cr_expect_eq(connect(other, (struct sockaddr *)&a, sizeof a), 0);
    close(other);
    close(nccl);
    for (int i = 0; i < N; i++)
        close(held[i]);
}

Test(launch, devices_and_hosts)
{
    const char *const argv[] = {"/bin/sh", "-c", "echo $CUDA_VISIBLE_DEVICES $NCCL_HOSTID $NCCL_NET", NULL};
    assay_launch_options o = {
        .world = 3, .log_path = out, .quiet = true, .distinct_nccl_hosts = true, .n_devices = 2};
    unsetenv("CUDA_VISIBLE_DEVICES");
    TEST_OK(assay_launch(argv, &o, NULL));
    cr_expect_eq(count_lines("0 assay-rank-0 Socket"), 1);
    cr_expect_eq(count_lines("1 assay-rank-1 Socket"), 1);
    cr_expect_eq(count_lines("0 assay-rank-2 Socket"), 1);
    setenv("CUDA_VISIBLE_DEVICES", "6,7", 1);
    TEST_OK(assay_launch(argv, &o, NULL));
    cr_expect_eq(count_lines("7 assay-rank-1 Socket"), 1);
}

/* Ranks that meet in collectives load their kernels before; one rank alone need not, nor who says otherwise. */
Test(launch, kernels_are_loaded_before_collectives)
{
    const char *const argv[] = {"/bin/sh", "-c", "echo loading=$CUDA_MODULE_LOADING", NULL};
    assay_launch_options o = {.world = 2, .log_path = out, .quiet = true, .n_devices = 1};
    unsetenv("CUDA_MODULE_LOADING");
    TEST_OK(assay_launch(argv, &o, NULL));
    cr_expect_eq(count_lines("loading=EAGER"), 2);
    o.n_devices = 0;
    TEST_OK(assay_launch(argv, &o, NULL));
    o.n_devices = 1;
    o.world = 1;
    TEST_OK(assay_launch(argv, &o, NULL));
    cr_expect_eq(count_lines("loading=EAGER"), 2);
    setenv("CUDA_MODULE_LOADING", "LAZY", 1);
    o.world = 2;
    TEST_OK(assay_launch(argv, &o, NULL));
    cr_expect_eq(count_lines("loading=LAZY"), 2);
}

Test(launch, exit_code_of_the_first_that_fails)
{
    assay_launch_result r;
    TEST_FAILS(run("if [ $ASSAY_RANK = 1 ]; then exit 2; fi; exec sleep 1000", 3, 0.0, &r), ASSAY_CHILD,
               "rank 1 exited with code 2");
    cr_expect_eq(r.failed_rank, 1);
    cr_expect_eq(r.exit_code, 2);
    cr_expect_eq(r.signal, 0);
    cr_expect_not(r.timed_out);
}

Test(launch, signal_that_killed_a_rank)
{
    assay_launch_result r;
    TEST_FAILS(run("if [ $ASSAY_RANK = 2 ]; then kill -SEGV $$; fi; exec sleep 1000", 3, 0.0, &r),
               ASSAY_CHILD, "rank 2 died of signal 11 (Segmentation fault)");
    cr_expect_eq(r.failed_rank, 2);
    cr_expect_eq(r.exit_code, -1);
    cr_expect_eq(r.signal, SIGSEGV);
}

/* SIGTERM is asked first; two seconds later nobody is asked any more. */
Test(launch, ranks_that_ignore_sigterm_are_killed)
{
    assay_launch_result r;
    TEST_FAILS(
        run("if [ $ASSAY_RANK = 0 ]; then exit 3; fi; trap '' TERM; while :; do sleep 1; done", 2, 0.0, &r),
        ASSAY_CHILD, "rank 0 exited with code 3");
    cr_expect_eq(r.failed_rank, 0);
}

Test(launch, time_limit)
{
    assay_launch_result r;
    TEST_FAILS(run("exec sleep 1000", 2, 0.2, &r), ASSAY_TIMEOUT,
               "the time limit of 0.2 s is over: all 2 ranks were stopped");
    cr_expect(r.timed_out);
    cr_expect_eq(r.failed_rank, -1);
    cr_expect_eq(r.exit_code, -1);
}

/* What a rank left in the background ends with it, and does not keep the launcher waiting. */
Test(launch, nothing_of_a_rank_survives_it)
{
    assay_launch_result r;
    char pid_file[TEST_PATH], script[4 * TEST_PATH];
    snprintf(script, sizeof script, "sleep 1000 & echo $! > %s", test_path(pid_file, folder, "pid"));
    TEST_OK(run(script, 1, 0.0, &r));
    char *text = test_read(pid_file, NULL);
    const pid_t pid = (pid_t)atoi(text);
    free(text);
    cr_assert_gt(pid, 1);
    char stat_path[64], state = 'X';
    snprintf(stat_path, sizeof stat_path, "/proc/%d/stat", (int)pid);
    for (int attempt = 0; attempt < 1000; attempt++) {
        FILE *f = fopen(stat_path, "r");
        state = 'X'; /* gone */
        if (f && fscanf(f, "%*d %*s %c", &state) != 1)
            state = 'X';
        if (f)
            fclose(f);
        if (state == 'X' || state == 'Z')
            break;
        usleep(10000);
    }
    cr_expect(state == 'X' || state == 'Z', "process %d is in state %c", (int)pid, state);
}

static void ignore_it(int signal_number)
{
    (void)signal_number;
}

static uint64_t signals_of(const char *field)
{
    uint64_t bits = 1;
    char line[256];
    bool found = false;
    FILE *f = fopen("/proc/self/status", "r");
    cr_assert_not_null(f);
    while (!found && fgets(line, sizeof line, f) != NULL)
        found = strncmp(line, field, strlen(field)) == 0;
    fclose(f);
    cr_assert(found && sscanf(line + strlen(field), "%" SCNx64, &bits) == 1, "%s", field);
    return bits;
}

/* A rank starts with no signal blocked whatever its launcher blocks, and a launcher keeps its handlers and its mask, although ranks
 * begin on its memory. */
Test(launch, signals_of_ranks_and_of_their_launcher)
{
    sigset_t blocked;
    signal(SIGUSR2, ignore_it);
    sigemptyset(&blocked);
    sigaddset(&blocked, SIGUSR1);
    sigprocmask(SIG_BLOCK, &blocked, NULL);
    const uint64_t mask = signals_of("SigBlk:"), caught = signals_of("SigCgt:");
    cr_assert(mask == 1ull << (SIGUSR1 - 1) && (caught >> (SIGUSR2 - 1) & 1) == 1);
    TEST_FAILS(run("grep '^SigBlk' /proc/self/status | tr '\\t' ' '; kill -USR2 $$; sleep 60", 1, 0.0, NULL),
               ASSAY_CHILD, "died of signal 12");
    cr_expect_eq(count_lines("[rank 0] SigBlk: 0000000000000000"), 1);
    cr_expect_eq(signals_of("SigBlk:"), mask);
    cr_expect_eq(signals_of("SigCgt:"), caught);
}

/* A launcher that is killed outright takes its ranks along. */
Test(launch, ranks_die_with_the_launcher)
{
    char pid_file[TEST_PATH], script[4 * TEST_PATH];
    snprintf(script, sizeof script, "echo $$ > %s.part; mv %s.part %s; exec sleep 1000",
             test_path(pid_file, folder, "pid"), pid_file, pid_file);
    const pid_t launcher = fork();
    if (launcher == 0)
        _exit(run(script, 1, 0.0, NULL) == ASSAY_OK ? 0 : 1);
    for (int attempt = 0; attempt < 3000 && access(pid_file, F_OK) != 0; attempt++)
        usleep(10000);
    char *text = test_read(pid_file, NULL);
    const pid_t rank = (pid_t)atoi(text);
    free(text);
    cr_assert_gt(rank, 1);
    kill(launcher, SIGKILL);
    waitpid(launcher, NULL, 0);
    char stat_path[64], state = 'R';
    snprintf(stat_path, sizeof stat_path, "/proc/%d/stat", (int)rank);
    for (int attempt = 0; attempt < 1000 && state != 'X' && state != 'Z'; attempt++) {
        FILE *f = fopen(stat_path, "r");
        if (!f || fscanf(f, "%*d %*s %c", &state) != 1)
            state = 'X';
        if (f)
            fclose(f);
        usleep(10000);
    }
    cr_expect(state == 'X' || state == 'Z', "rank %d is in state %c", (int)rank, state);
}

/* Four ranks write long lines at once: every line of the log belongs to one rank. */
Test(launch, long_lines_do_not_mix)
{
    enum { WORLD = 4, LINES = 8, LENGTH = 200000 };
    assay_launch_result r;
    int seen[WORLD] = {0};
    TEST_OK(run("for i in 1 2 3 4 5 6 7 8; do head -c 200000 /dev/zero | tr '\\0' $ASSAY_RANK; echo; done",
                WORLD, 0.0, &r));
    char *text = test_read(out, NULL);
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        int rank = -1;
        cr_assert_eq(sscanf(line, "[rank %d] ", &rank), 1);
        cr_assert(rank >= 0 && rank < WORLD);
        const char digit[2] = {(char)('0' + rank), '\0'};
        const char *body = line + strlen("[rank 0] ");
        cr_expect_eq(strspn(body, digit), (size_t)LENGTH);
        cr_expect_eq(strlen(body), (size_t)LENGTH);
        seen[rank]++;
    }
    free(text);
    for (int rank = 0; rank < WORLD; rank++)
        cr_expect_eq(seen[rank], LINES);
}

Test(launch, a_last_line_without_line_feed_is_completed)
{
    TEST_OK(run("printf 'a\\n\\nend'", 1, 0.0, NULL));
    char *text = test_read(out, NULL);
    cr_expect_str_eq(text, "[rank 0] a\n[rank 0] \n[rank 0] end\n");
    free(text);
}

/* A rank that never ends its line cannot fill our memory: the line is broken at one MiB. */
Test(launch, endless_lines_are_broken)
{
    TEST_OK(run("head -c 3000000 /dev/zero | tr '\\0' x", 1, 0.0, NULL));
    char *text = test_read(out, NULL);
    int lines = 0;
    size_t letters = 0;
    for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
        lines++;
        letters += strlen(line) - strlen("[rank 0] ");
    }
    cr_expect_eq(letters, 3000000u);
    cr_expect_eq(lines, 3);
    free(text);
}

Test(launch, arguments_are_checked)
{
    const char *const none[] = {NULL}, *const missing[] = {"/no/such/program", NULL},
                      *const folder_argv[] = {"/tmp", NULL}, *const good[] = {"/bin/true", NULL};
    assay_launch_options o = {.world = 1, .quiet = true};
    TEST_FAILS(assay_launch(none, &o, NULL), ASSAY_INVALID_ARGUMENT, "launch: no program");
    TEST_FAILS(assay_launch(missing, &o, NULL), ASSAY_NOT_FOUND, "/no/such/program: expected an executable");
    TEST_FAILS(assay_launch(folder_argv, &o, NULL), ASSAY_NOT_FOUND, "/tmp: expected an executable");
    o.world = 0;
    TEST_FAILS(assay_launch(good, &o, NULL), ASSAY_INVALID_ARGUMENT, "expected 1...16384 ranks, found 0");
    o.world = 16385;
    TEST_FAILS(assay_launch(good, &o, NULL), ASSAY_INVALID_ARGUMENT, "found 16385");
    o.world = 1;
    o.timeout_s = -1.0;
    TEST_FAILS(assay_launch(good, &o, NULL), ASSAY_INVALID_ARGUMENT, "the time limit is -1 s");
    o.timeout_s = 0.0;
    o.log_path = "/no/such/folder/log";
    TEST_FAILS(assay_launch(good, &o, NULL), ASSAY_IO, "/no/such/folder/log: cannot open");
}

/* A file with the right to be executed that is no program: the rank says so and ends with 127. */
Test(launch, a_program_that_cannot_be_executed)
{
    char program[TEST_PATH];
    test_write_text(test_path(program, folder, "program"), "\177ELF nonsense");
    cr_assert_eq(chmod(program, 0700), 0);
    const char *const argv[] = {program, NULL};
    const assay_launch_options o = {.world = 1, .log_path = out, .quiet = true};
    TEST_FAILS(assay_launch(argv, &o, NULL), ASSAY_CHILD, "rank 0 exited with code 127");
    cr_expect_eq(count_lines("cannot execute the program of this rank"), 1);
}

Test(launch, sibling_programs)
{
    char path[TEST_PATH];
    TEST_FAILS(assay_sibling_program("no-such-program", path, sizeof path), ASSAY_NOT_FOUND,
               "no-such-program: expected an executable program beside");
    TEST_FAILS(assay_sibling_program("../x", path, sizeof path), ASSAY_INVALID_ARGUMENT,
               "plain program name");
    TEST_FAILS(assay_sibling_program("x", path, 3), ASSAY_LIMIT, "too long");
    char self[TEST_PATH];
    const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    cr_assert_gt(n, 0);
    self[n] = '\0';
    TEST_OK(assay_sibling_program(strrchr(self, '/') + 1, path, sizeof path));
    cr_expect_str_eq(path, self);
}
