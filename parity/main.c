/* The front door: `assay VERB ...`. */
#include "assay_commit.h" /* of the build: cmake/AssayCommit.cmake */
#include "core/base/suggest.h"
#include "core/files/checkpoint_async.h"
#include "core/run/outputs.h"
#include "parity/parity.h"
#include "parity/run/manual.h"
#include "ref/fast/restart.h"
#include <stdio.h>
#include <string.h>

static const parity_verb VERBS[] = {
    {"step", parity_main_step,
     "one training step (or N) of a Hugging Face folder on a batch file, by either engine"},
    {"train", parity_main_train,
     "train a model on text or a batch file: checkpoints, resume, metrics, export"},
    {"ckpt", parity_main_ckpt, "inspect, verify, compare and rewrite checkpoints"},
    {"batch", parity_main_batch, "make a batch file from text"},
    {"run", parity_main_run, "parity of both engines over a matrix of layouts"},
    {"diff", parity_main_diff, "first difference between two traces"},
    {"replay", parity_main_replay, "recompute every recorded operation of a trace with its error bound"},
    {"check", parity_main_check,
     "a recorded run of another framework against its model folder: one sentence"},
    {"bisect", parity_main_bisect,
     "the smallest set of operations that has to be replaced for a mismatch to vanish"},
    {"map", parity_main_map, "Hugging Face's names, axes and pieces beside ours"},
    {"layout", parity_main_layout, "explain a layout: ranks, groups, what each rank holds"},
    {"report", parity_main_report, "join the results of shards: assay report merge"},
    {"selftest", parity_main_selftest, "plant faults and demand that each is caught and named"},
    {"draw-case", parity_main_draw_case, "a case that nobody thought of, drawn from a number, for assay run"},
    {"bench", parity_main_bench, "times of a step and of its operations, beside what the device can do"},
    {"certify", parity_main_certify,
     "try a kernel of a shared library, or the engine's own: report, certificate"},
    {"probe", parity_main_probe,
     "how a device's matrix units add, and whether its functions meet their documented error"},
    {"sanitize", parity_main_sanitize,
     "run a CUDA program built for the simulator under its memory, race, barrier and collective checks"},
    {"keygen", parity_main_keygen, "a pair of keys for certificates"},
    {"verify", parity_main_verify, "a certificate: signature, hashes, validity; offline"},
    {"gate", parity_main_gate, "whether a folder holds the certificates that are required"},
    {"doctor", parity_main_doctor, "what is installed, which engine will be used, why"},
    {"help", parity_main_help, "this list, the options of a verb, or the manual page"},
    {"completion", parity_main_completion, "what bash completes: source <(assay completion bash)"},
};
enum { N_VERBS = sizeof VERBS / sizeof *VERBS };

int main(int argc, char **argv)
{
    int writer;
    if (assay_async_writer(argc, argv, &writer))
        return writer;
    ref_restart(argv);
    parity_set_commit(ASSAY_COMMIT);
    parity_verbs_set(VERBS, N_VERBS);
    if (argc < 2) {
        parity_usage(stderr);
        return 2;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0) {
        parity_usage(stdout);
        return assay_outputs_finish("assay", 0);
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("assay %s\n", parity_version());
        return assay_outputs_finish("assay", 0);
    }
    for (int i = 0; i < N_VERBS; i++)
        if (strcmp(argv[1], VERBS[i].name) == 0) {
            /* The name that --help and its usage line show. */
            char program[32];
            snprintf(program, sizeof program, "assay %s", VERBS[i].name);
            argv[1] = program;
            return assay_outputs_finish("assay", VERBS[i].main(argc - 1, argv + 1));
        }
    assay_suggestion near;
    assay_suggest_begin(&near, argv[1], strlen(argv[1]));
    for (int i = 0; i < N_VERBS; i++)
        assay_suggest_add(&near, VERBS[i].name);
    fprintf(stderr, "assay: unknown verb \"%s\"%s\n\n", argv[1], assay_suggest_end(&near, ""));
    parity_usage(stderr);
    return 2;
}
