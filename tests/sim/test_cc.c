/* assay-cc in nvcc's place: programs of tests/sim/cc are compiled, linked and run, and options are read as nvcc reads them. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define CC ASSAY_BIN_DIR "/assay-cc"
#define SOURCES ASSAY_SOURCE_DIR "/tests/sim/cc"

static char folder[64], staging[160];

static void begin(void)
{
    snprintf(folder, sizeof folder, "/tmp/assay-test-cc-XXXXXX");
    cr_assert(mkdtemp(folder) != NULL);
    cr_assert(chdir(folder) == 0);
    /* What lies between the steps, in a folder of this test alone and with a long path. */
    snprintf(staging, sizeof staging, "%s/a_folder_for_what_lies_between_the_steps_of_a_compilation", folder);
    cr_assert(mkdir(staging, 0700) == 0 && setenv("TMPDIR", staging, 1) == 0);
}

static void end(void)
{
    char command[128];
    snprintf(command, sizeof command, "rm -rf %s", folder);
    cr_expect(chdir("/") == 0 && system(command) == 0);
}

/* The exit status; what the command prints, both streams, in `out`. */
static int shell(char *out, size_t bytes, const char *command)
{
    char with[2048];
    snprintf(with, sizeof with, "(%s) 2>&1", command);
    FILE *p = popen(with, "r");
    cr_assert(p != NULL);
    const size_t n = fread(out, 1, bytes - 1, p);
    out[n] = 0;
    const int status = pclose(p);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void write_file(const char *path, const char *with)
{
    FILE *f = fopen(path, "w");
    cr_assert(f != NULL && fputs(with, f) >= 0 && fclose(f) == 0);
}

static void expect_run(const char *command, int status, const char *want)
{
    static char out[65536];
    const int got = shell(out, sizeof out, command);
    cr_expect_eq(got, status, "%s: status %d, expected %d:\n%s", command, got, status, out);
    cr_expect(strstr(out, want) != NULL, "%s prints\n%s\nexpected\n%s", command, out, want);
}

TestSuite(sim_cc, .init = begin, .fini = end);

Test(sim_cc, every_form_of_cuda_syntax_runs)
{
    expect_run(CC " -o prog " SOURCES "/syntax.cu && ./prog", 0,
               "sum 260\ntable 265\nunnamed 10 4 17\nnames 5 6\nuntyped 263\nlarge "
               "cudaErrorInvalidValue\nlarge 1\n");
}

Test(sim_cc, cooperative_groups_and_launches)
{
    expect_run(CC " -o prog " SOURCES "/groups.cu && ./prog", 0,
               "2016 16 28 7 0 0 1 0 1 170 40 9 \n"
               "156 23 111 90 22 16 20 170 42 209 \n"
               "348 47 123 81 43 40 43 170 41 509 \n"
               "476 63 476 413 63 56 62 170 43 709 \n"
               "0 1 2 3 4 5 6 7 8 \ncudaSuccess cudaSuccess\n37 "
               "36\ncudaErrorCooperativeLaunchTooLarge\ncudaErrorLaunchFailure\n");
}

Test(sim_cc, groups_and_barriers_in_another_order_of_threads)
{
    expect_run(CC " -o prog " SOURCES "/groups.cu && ASSAY_SIM_ORDER=random:5 ./prog", 0,
               "0 1 2 3 4 5 6 7 8 \n");
}

#if ASSAY_RACES /* builds under a sanitizer have no race checker, those by clang no compiler for it */
Test(sim_cc, groups_and_cooperative_launches_under_the_race_checker)
{
    expect_run(CC " --races -o prog " SOURCES "/groups.cu && ./prog 2>reports", 0,
               "37 36\ncudaErrorCooperativeLaunchTooLarge\ncudaErrorLaunchFailure\n");
    expect_run("grep -c '' reports; grep -v -e cooperative reports", 1, "2\n");
}
#endif

Test(sim_cc, wmma_of_every_shape_type_and_layout)
{
    expect_run(CC " -O1 -o prog " SOURCES "/wmma.cu && ./prog", 0,
               "0 wrong\nsmall terms 0x1.000004p+0\nlimits inf 65504 -2147483640 2147483647\n");
    expect_run("ASSAY_SIM_MATRIX_TRUNCATES=1 ./prog", 0, "0 wrong\nsmall terms 0x1p+0\n");
    expect_run("ASSAY_SIM_ORDER=random:3 ./prog", 0, "0 wrong\n");
}

/* What ./prog prints when it is asked for a mistake. */
struct mistake {
    const char *name, *want;
};

static void expect_mistakes(const struct mistake *rows, size_t n)
{
    char command[64];
    for (size_t i = 0; i < n; ++i) {
        snprintf(command, sizeof command, "./prog %s", rows[i].name);
        expect_run(command, 0, rows[i].want);
    }
}

Test(sim_cc, wmma_misuse_is_named)
{
    static const struct mistake rows[] = {
        {"alignment",
         "misaligned: kernel k.kernel block (0,0,0) thread (0,0,0) line 15: the matrix of a fragment"},
        {"leading_dimension",
         "leading dimension 20 of a fragment's matrix: no multiple of 16 bytes (8 elements)"},
        {"pointers", "wrong fragment: kernel k.kernel block (0,0,0) thread (30,0,0) line 25: lane 30 loads"},
        {"never_loaded", "line 34: an operand of mma_sync that nobody has loaded or filled"},
        {"never_filled", "line 43: an operand of mma_sync that nobody has loaded or filled"},
        {"stored_unset", "line 48: a fragment is stored that nobody has filled or computed"},
        {"overlapping", "leading dimension 8 of a matrix with rows of 16 elements: they overlap"},
        {"half_a_warp", "absent lane: kernel k.kernel block (0,0,0) thread (0,0,0) line 60: "},
        {"half_a_block", "lacks lane 16, which does not exist in this block"},
        {"in_a_branch", "divergent warp: kernel k.kernel block (0,0,0) thread (16,0,0) line 68: "},
        {"one_copy",
         "thread (7,0,0) line 79: lanes have changed their copies of one element of a factor differently"},
        {"not_rounded", "line 89: a factor of precision::tf32 that __float_to_tf32 has not rounded"},
    };
    expect_run(CC " -o prog " SOURCES "/wmma_misuse.cu", 0, "");
    expect_mistakes(rows, sizeof rows / sizeof *rows);
#if ASSAY_RACES
    expect_run(CC " --races -o prog " SOURCES "/wmma_misuse.cu && ./prog no_barrier", 0,
               "race: shared memory, byte ");
    expect_run("./prog behind_the_end", 0, "wmma_misuse.cu:95"); /* the address sanitizer ends there */
#endif
    write_file("a.cu",
               "#include <mma.h>\n__global__ void k() {\n nvcuda::wmma::fragment<nvcuda::wmma::matrix_a, 8, "
               "8, 32, int, nvcuda::wmma::row_major> f;\n}\nint main() { return 0; }\n");
    expect_run(CC " a.cu", 1,
               "gpu/sim: nvcuda::wmma: a fragment of this use, shape, type and layout is not modelled");
}

Test(sim_cc, pipelines_barriers_and_copies_that_arrive_late)
{
    expect_run(CC " -O1 -o prog " SOURCES "/pipelines.cu && ./prog", 0, "0 wrong\n");
    expect_run("ASSAY_SIM_ORDER=reverse ./prog && ASSAY_SIM_ORDER=random:2 ./prog", 0, "0 wrong\n0 wrong\n");
#if ASSAY_RACES
    expect_run(CC " -O1 --races -o prog " SOURCES "/pipelines.cu && ./prog 2>&1", 0, "0 wrong\n");
    expect_run("./prog 2>&1 | grep -c assay-sim", 1, "0\n");
    expect_run("ASSAY_SIM_ORDER=random:2 ./prog 2>&1 | grep -c assay-sim", 1, "0\n");
#endif
}

Test(sim_cc, misuse_of_pipelines_barriers_and_copies_is_named)
{
    static const struct mistake any[] = {
        {"read_before_wait", "read_before_wait: 0 0\n"}, /* poison and 1 */
        {"wait_one_stage_short", "wait_one_stage_short: -1 -1\n"},
        {"barrier_copy_read_early", "barrier_copy_read_early: 0 0\n"},
        {"source_written", "its source was written before the copy was waited for"},
        {"destination_written", "its destination was written before the copy was waited for"},
        {"two_copies_to_one_place", "another copy goes to where it is under way"},
        {"never_waited", "the block is over before anybody has waited for this asynchronous copy"},
        {"not_acquired", "memcpy_async outside producer_acquire and producer_commit"},
        {"released_unwaited", "consumer_release without consumer_wait"},
        {"too_many_stages", "cuda::pipeline::producer_acquire (all stages are in use) waits for ever"},
        {"nothing_committed",
         "cuda::pipeline::consumer_wait waits for ever: no thread of the block can go on"},
        {"wrong_role", "thread (16,0,0) line "},
        {"wrong_role", "producer_acquire by a consumer"},
        {"promise", "misaligned: kernel k.kernel"},
        {"primitive_alignment", "__pipeline_memcpy_async: a pointer is no multiple of the size"},
        {"primitive_to_global", "to something else than shared memory"},
        {"too_few_arrivals", "cuda::barrier::wait waits for ever: no thread of the block can go on"},
        {"too_many_arrivals", "more arrivals at a cuda::barrier than it expects"},
        {"never_initialized", "a cuda::barrier that nobody has initialized"},
        {"old_token", "with a token of neither this phase nor the last one"},
    };
    expect_run(CC " -O1 -o prog " SOURCES "/pipelines_misuse.cu", 0, "");
    expect_mistakes(any, sizeof any / sizeof *any);
#if ASSAY_RACES
    static const struct mistake races[] = {
        {"read_before_wait", "a read of 4 bytes where an asynchronous copy is under way"},
        {"wait_one_stage_short", "a read of 4 bytes where an asynchronous copy is under way"},
        {"barrier_copy_read_early", "a read of 4 bytes where an asynchronous copy is under way"},
        {"destination_written", "a write of 4 bytes where an asynchronous copy is under way"},
        {"no_barrier_behind_wait", "late read: kernel k.kernel"},
        {"waited_behind_barrier", "race: shared memory, byte 28 of shared array s"},
        {"read_behind_release", "race: shared memory, byte "},
    };
    expect_run(CC " -O1 --races -o prog " SOURCES "/pipelines_misuse.cu", 0, "");
    expect_mistakes(races, sizeof races / sizeof *races);
#endif
}

Test(sim_cc, cublas_computes_what_loops_compute)
{
    expect_run(CC " -O1 -o prog " SOURCES "/blas.cu -lcublas -lcudart && ./prog", 0, "0 wrong\n");
}

Test(sim_cc, intrinsics_are_what_they_are_defined_to_be)
{
    expect_run(CC " -o prog " SOURCES "/intrinsics.cu && ./prog", 0,
               "cudaSuccess 0 wrong\ncudaErrorInvalidValue\ncudaErrorInvalidValue\n"
               "cudaErrorInvalidMemcpyDirection\n4 1 cudaErrorInvalidValue\n");
    expect_run("./prog", 0,
               "out of bounds: cudaMemcpyToSymbol: 16 bytes from byte 0 of a variable of 4 bytes\n");
    expect_run("./prog", 0,
               "out of bounds: cudaMemcpyFromSymbol: 2 bytes from byte 3 of a variable of 4 bytes\n");
}

Test(sim_cc, what_is_not_modelled_is_refused_by_name_with_its_line)
{
    static char out[65536];
    cr_assert_eq(shell(out, sizeof out, CC " -o prog " SOURCES "/refused.cu && (./prog || true)"), 0, "%s",
                 out);
    static const char *const wants[] = {
        "unsupported: kernel parent block (0,0,0) thread (0,0,0) line 13: the launch of child by a kernel "
        "(dynamic "
        "parallelism)\n",
        "unsupported: kernel ptx block (0,0,0) thread (3,0,0) line 18: inline PTX \"shl.b32 %0, 1, 2;\"\n",
        "inline PTX \"barrier.cluster.arrive;\"\n",
        "inline PTX \"cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster ",
        "inline PTX \"griddepcontrol.wait;\"\n",
        "assert: kernel claims block (0,0,0) thread (5,0,0) line 22: assertion `",
        "assert: cudaErrorAssert\n",
        "true assumption: cudaSuccess\n",
        "assert: kernel assumes block (0,0,0) thread (6,0,0) line 26: assertion `__builtin_assume(",
        "assumption: cudaErrorAssert\n",
        "unsupported: cuLaunchKernel\n",
        "driver: 801\n",
        "unsupported: nvrtcVersion\n",
        "nvrtc: NVRTC is not modelled by the simulator\n",
        "unsupported: cudnnCreate\n",
        "cudnn: 3000\n",
        "unsupported: cudaGraphCreate\n",
        "unsupported: a synchronization asked for by a kernel\n",
        "by value: cudaSuccess\n",
        "graph: cudaErrorNotSupported\n",
        "kernel child: called by the host without <<<grid, block>>>\n",
        "host: cudaErrorMissingConfiguration\n",
    };
    for (size_t i = 0; i < sizeof wants / sizeof *wants; ++i)
        cr_expect(strstr(out, wants[i]) != NULL, "%s\nis not in\n%s", wants[i], out);
    cr_expect(strstr(out, "out of bounds") != NULL || strstr(out, "AddressSanitizer") != NULL, "%s", out);
}

Test(sim_cc, makefiles_of_several_files)
{
    write_file("k.cuh", "#pragma once\n__global__ void twice(int *x);\nint host(int);\n");
    write_file("k.cu", "#include \"k.cuh\"\n__global__ void twice(int *x) { x[threadIdx.x] *= FACTOR; }\n");
    write_file("host.cpp", "#include <cuda_runtime.h>\nint host(int v) { dim3 d(v); return d.x + 1; }\n");
    write_file("plain.c", "int plain(void) { return 40; }\n");
    write_file("main.cu", "#include \"k.cuh\"\n#include <cstdio>\nextern \"C\" int plain(void);\n"
                          "int main() { int *d, h = host(plain()); cudaMalloc(&d, 4); cudaMemcpy(d, &h, 4, "
                          "cudaMemcpyHostToDevice); twice<<<1, 1>>>(d); cudaMemcpy(&h, d, 4, "
                          "cudaMemcpyDeviceToHost); printf(\"%d\\n\", h); return 0; }\n");
    expect_run(
        CC
        " -arch=sm_80 -gencode arch=compute_80,code=sm_80 -Xptxas -v -DFACTOR=3 -I. -O3 --std=c++14 -c k.cu "
        "-MD && cat k.d",
        0, "k.o: ");
    expect_run(CC " -dc main.cu -o main.o && " CC
                  " --compile -Xcompiler -Wall,-Wextra host.cpp plain.c && " CC
                  " -rdc=true -o prog main.o host.o k.o plain.o -lcudart -lcublas -lpthread && ./prog",
               0, "123\n");
    expect_run(CC " -DFACTOR=2 main.cu host.cpp k.cu plain.c && ./a.out", 0, "82\n");
    expect_run(CC " -M main.cu", 0, "main.o: ");
    expect_run(CC " -E main.cu | grep configure..twice", 0, "::assay_sim::configure(\"twice\", 4, 1, 1)");
    expect_run(CC " --dryrun -o never main.cu; test ! -e never", 0, "-fno-strict-aliasing");
    expect_run("rmdir \"$TMPDIR\" && mkdir \"$TMPDIR\"", 0, ""); /* nothing is left there */
}

Test(sim_cc, options_are_used_said_or_refused_by_name)
{
    write_file("a.cu", "int main() { return 0; }\n");
    static const struct {
        const char *arguments;
        int status;
        const char *want;
    } rows[] = {
        {"--version", 0, "release 13.0"},
        {"--help", 0, "accepted, without effect, and said:"},
        {"", 2, "assay-cc: no input files"},
        {"-arch=sm_90 -use_fast_math -c a.cu", 0,
         "assay-cc: accepted, without effect: -arch=sm_90 -use_fast_math"},
        {"--std=c++11 -c a.cu", 0, "-std=c++11 (the simulator's headers need C++17)"},
        {"-std=c++97 -c a.cu", 2, "assay-cc: -std=c++97: expected c++11"},
        {"-ptx a.cu", 2, "assay-cc: -ptx: not supported: there is no PTX"},
        {"--default-stream per-thread a.cu", 2, "assay-cc: --default-stream: not supported"},
        {"-fopenmp a.cu", 2,
         "assay-cc: unknown option -fopenmp (an option for the host compiler is written -Xcompiler"},
        {"a.cu -o", 2, "assay-cc: -o: a value is missing"},
        {"-c -o x.o a.cu a.cu", 2, "-o x.o with -c and 2 sources"},
        {"a.cu -lcurand", 2, "assay-cc: -lcurand: not modelled by the simulator"},
        {"a.cu -lcudnn_ops -o x", 2, "assay-cc: -lcudnn_ops: not modelled"},
        {"a.cu -lnccl -lcublasLt -lcuda -lnvToolsExt -o x && ./x", 0, ""},
        {"-x ptx a.cu", 2, "assay-cc: -x ptx: expected cu, c++ or c"},
        {"--races -ccbin clang++ -c a.cu", 2, "assay-cc: --races: clang++: not with clang"},
        {"missing.cu", 1, "o such file or directory"},
    };
    char command[512];
    for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
        snprintf(command, sizeof command, CC " %s", rows[i].arguments);
        expect_run(command, rows[i].status, rows[i].want);
    }
}

/* A toolkit's folder on the include path is left out, so that its headers do not stand beside the simulator's. */
Test(sim_cc, errors_name_the_file_and_line_of_the_source)
{
    write_file("inner.cuh", "\n\n__global__ int not_a_kernel;\n");
    write_file("a.cu", "#include \"inner.cuh\"\nint main() { return 0; }\n");
    write_file("b.cu", "__global__ void k(int *x)\n{\n    __shared__ int s[4];\n    s[0] = nothing;\n}\n");
    write_file("c.cu", "#include <cufft.h>\nint main() { return 0; }\n");
    cr_assert(mkdir("toolkit", 0777) == 0);
    write_file("toolkit/cuda_runtime.h", "#error a toolkit\n");
    write_file("d.cu", "#include <cuda_runtime.h>\nint main() { return 0; }\n");
    expect_run(CC " a.cu", 1, "inner.cuh:3: assay-cc: error: __global__ without a function");
    expect_run(CC " b.cu", 1, "b.cu:4:");
    expect_run(CC " c.cu", 1, "gpu/sim: <cufft.h>: cuFFT is not modelled by the simulator");
    expect_run(CC " -Itoolkit d.cu", 0, "-I toolkit (a CUDA toolkit)");
}
