/* What the parts of `assay certify` share.  The verb writes requests (inputs of every call), a child process answers them with the
 * kernel under trial, and the judge of single operations (parity/checks/exact.c) compares.  Everything that the child sees
 * besides answers goes to a board: a file that both map. */
#ifndef PARITY_CERTIFY_H
#define PARITY_CERTIFY_H

#include "core/files/trace.h"
#include "core/model/ops.h"
#include "parity/assay_kernel.h"
#include "parity/parity.h"

/* Trials in the order of the report.  X(enum, name, what is claimed) */
#define CERTIFY_TRIAL_MAP(X)                                                                                 \
    X(CRASH, "crash", "no call ends the process")                                                            \
    X(TIME, "time", "every call ends within the time limit")                                                 \
    X(ACCEPTS, "accepts", "calls that the description takes succeed, others get an error code")              \
    X(GUARDS, "guards", "nothing is read or written outside a tensor or the workspace")                      \
    X(SIMULATOR, "simulator",                                                                                \
      "the simulator reports nothing (barriers, masks; with assay-cc --races: races, uninitialized memory)") \
    X(RACES, "races",                                                                                        \
      "the race checker reports nothing (races, reads of unwritten memory, misaligned vectors)")             \
    X(PROBE, "probe", "matrix units and functions of the device are as the declared bounds take them")       \
    X(DEVICE, "device", "launches and copies on the device succeed, or their errors are returned")           \
    X(SANITIZER, "sanitizer", "compute-sanitizer reports nothing on a real device")                          \
    X(INPUTS, "inputs", "inputs are unchanged")                                                              \
    X(WRITTEN, "written", "every element of every output is written")                                        \
    X(MESSAGES, "messages", "messages have the size that was sent, and no ranks wait for ever")              \
    X(RANKS, "ranks", "an all_reduce leaves equal bits on every rank")                                       \
    X(EXACT, "exact", "lattice inputs: equal bit for bit")                                                   \
    X(LOCAL, "local", "within the bound of the declared arithmetic")                                         \
    X(SPECIAL, "special", "NaN and infinities go where the operation sends them")                            \
    X(REPEAT, "repeat", "equal bits at other addresses, on other garbage, and run again")                    \
    X(STREAM, "stream", "the stream alone orders a call's work, which nothing else waits for")               \
    X(THREADS, "threads",                                                                                    \
      "another number or order of threads: equal bits, in the bound if not deterministic")                   \
    X(BATCH, "batch", "a row's bits do not depend on the other rows")                                        \
    X(WORKSPACE, "workspace", "the workspace asked for is enough and says the same without data")            \
    X(ARGUMENTS, "arguments", "illegal calls get an error code and write nothing")                           \
    X(STRIDES, "strides", "equal bits for rows with gaps, gaps untouched")                                   \
    X(IN_PLACE, "in_place", "equal bits where an output is an input's memory, which is declared")            \
    X(STATE, "state", "a Python function leaves torch's settings, random states and processes alone")        \
    X(SHADOW, "shadow", "the F32 shadow rounds to the output and lies within the bound")
typedef enum {
#define CERTIFY_TRIAL_ENUM(name, text, claim) CERTIFY_##name,
    CERTIFY_TRIAL_MAP(CERTIFY_TRIAL_ENUM)
#undef CERTIFY_TRIAL_ENUM
        CERTIFY_TRIALS
} certify_trial;
const char *certify_trial_name(certify_trial t);
const char *certify_trial_claim(certify_trial t);

/* --- board: counts of a child, readable when it died ---------------------------------------------------------- */
enum { CERTIFY_MESSAGE = 1024 };
typedef struct certify_tally {
    int64_t calls, bad;
    char first[CERTIFY_MESSAGE]; /* what was wrong first, and where */
} certify_tally;
typedef struct certify_board {
    certify_tally trial[CERTIFY_TRIALS];
    char now[480];   /* the call that is running */
    char error[512]; /* why the child could not go on, when that is no finding */
    int64_t runs;    /* calls of run() */
    int64_t refused; /* records outside the declared shapes: not judged */
    int32_t done;    /* the child came to its end */
    assay_op_binding
        most; /* of each symbol the largest of the calls that a library took; none: not counted */
} certify_board;
#if defined(__GNUC__)
__attribute__((format(printf, 3, 4)))
#endif
void certify_bad(certify_board *b, certify_trial t, const char *fmt, ...);
/* What does not hold, over all trials. */
int64_t certify_findings(const certify_board *b);

/* --- abi.c: the interface's words ------------------------------------------------------------------------------ */
/* The text of assay_kernel_ops.h, from the table of operations; the caller's. */
assay_status certify_abi_header(char **out);
assay_dtype certify_dtype_of(int32_t abi_dtype); /* ASSAY_DTYPE_COUNT: unknown */
int32_t certify_abi_dtype(assay_dtype dtype);    /* 0: none */
assay_status certify_arith_of(const assay_kernel_arith *a, const char *what, assay_arith *out);
/* What adapt() made of the declared arithmetic of an output: the order of a sum may be another.  ASSAY_INVALID_ARGUMENT names the member that
 * is another, too: a certificate shows what was declared. */
assay_status certify_arith_adapted(const assay_arith *was, const assay_kernel_arith *a, const char *slot,
                                   assay_arith *out);

/* --- kernel.c: a library under trial, in the child ------------------------------------------------------------- */
typedef struct certify_kernel {
    const assay_kernel *k; /* a copy of our size */
    const assay_op *op;
    assay_declaration declared; /* without what adapt() changes */
    void *library;
    struct certify_device *device; /* NULL: tensors lie in host memory */
} certify_kernel;
/* "k.so:symbol".  ASSAY_INVALID_ARGUMENT names what is wrong with the description. */
assay_status certify_kernel_open(certify_kernel *out, const char *so, assay_kernel *storage);
assay_status certify_kernel_json(const certify_kernel *c, json_t **out);

/* --- request.c ---------------------------------------------------------------------------------------------- */
typedef struct certify_plan {
    const char *op; /* NULL: every operation */
    int64_t seeds;
} certify_plan;
/* All calls of one dtype of activations as a trace; *n_calls grows by their number. */
assay_status certify_request(const char *dir, assay_dtype act, const certify_plan *plan, int64_t *n_calls);
/* SHA-256 over everything that says what is tried: trials, data modes, sizes, boundaries, seeds. */
assay_status certify_plan_digest(const certify_plan *plan, char out[ASSAY_SHA256_HEX]);
/* {"seeds":..,"modes":[..],"sizes":[..],"boundaries":{..}}: what the plan tries of an operation. */
json_t *certify_plan_json(const certify_plan *plan);

/* --- judge.c ----------------------------------------------------------------------------------------------------- */
typedef struct certify_output {
    char op[48], slot[32], dtype[8];
    double share, ratio; /* largest of the local trial */
    char place[160];     /* data mode and index of the largest ratio */
    int64_t elements;
} certify_output;
enum { CERTIFY_OUTPUTS = 2 * ASSAY_OP_SLOTS }; /* every output of any operation in both dtypes */
/* Everything about one kernel. */
typedef struct certify_result {
    const assay_op *op;
    json_t *subject; /* what was certified: name, file, hashes, description */
    json_t *where;   /* tier, machine, device */
    json_t *not_tried;
    json_t *throughput; /* of a library on a device: information, NULL where it was not measured */
    char no_throughput[256];
    char no_races[128]; /* why no call ran under the race checker; "": there is no word on it */
    bool stopped;       /* --fail-fast: at something that does not hold; what follows was not tried */
    certify_plan plan;
    certify_board board;
    certify_output output[CERTIFY_OUTPUTS];
    int n_outputs;
    int64_t calls; /* records that were asked for */
    /* Records of an engine that a trial left out, because the engine says so of the variant that ran: of `batch`, those of a library; of
     * `repeat` at addresses aligned to an element, those of another variant there or of a library. */
    int64_t excused_rows, excused_bits;
    double seconds;
} certify_result;
/* untried.c: a line for each of these trials that no call came to, for those that have no sentence of their own. */
void certify_add_uncalled(json_t *list, const certify_result *r, const certify_trial *trials, size_t n);
/* extents.c: a line that says how far the trial went in each size of the operation ("sizes beyond T 4097, H 1025"), and what a certificate
 * has of it ("T 4097, H 1025"; NULL: nothing). */
void certify_add_extents(json_t *list, const certify_result *r);
const char *certify_largest(const json_t *certificate);
/* *most: of each symbol the larger of what it is and of the call's. */
void certify_note_extents(assay_op_binding *most, const assay_op_binding *call);
/* r->not_tried of a trial that stopped at its first failure. */
void certify_list_stopped(certify_result *r);
/* r->not_tried of a library. */
void certify_list_untried(certify_result *r, const char *tier);
bool certify_has_flag(const json_t *subject, const char *flag);
/* An answer beside its request; shapes: of the description, NULL: all.  only: the trial that gets everything (SHADOW, THREADS),
 * CERTIFY_TRIALS: by what the record is.  theirs: of a library or a Python function, not of an engine. */
assay_status certify_judge(const char *request, const char *answer, bool theirs, const char *shapes,
                           certify_trial only, certify_result *results, int n_results);
/* Outputs of two answers bit for bit. */
assay_status certify_judge_bits(const char *a, const char *b, certify_trial which, certify_result *results,
                                int n_results);
bool certify_passes(const certify_result *r);
void certify_result_free(certify_result *r);

/* --- certify.c, engine.c ------------------------------------------------------------------------------------------ */
typedef struct certify_options {
    char so[ASSAY_PATH], engine[16], operation[64], out[ASSAY_PATH], key[ASSAY_PATH], keep[ASSAY_PATH];
    char variant[96], program[ASSAY_PATH];
    char python[256], python_program[ASSAY_PATH], python_device[8];
    char cu[ASSAY_PATH], launch[1024], shapes[256], cuda_runtime[ASSAY_PATH];
    char compiler[ASSAY_PATH], arch[64]; /* "": assay-cc, for the simulator */
    char cu_sha256[ASSAY_SHA256_HEX];    /* of `cu` before it was compiled: certify_launch */
    char rounding[160];                  /* of `cu`, as `alignment` is (0: an element's) */
    int64_t alignment;
    char campaign[32], cells[ASSAY_PATH];
    int64_t seeds, valid_days;
    double call_limit, limit;
    bool suggest, abi_header, atomics, fail_fast;
} certify_options;
assay_status certify_library(const certify_options *o, const char *work, certify_result *out);
/* A board of a child in the folder, and what runs there: part "describe", "plain", "trial", "threads", "races" or "time" to its end or the time
 * limit, with --fail-fast to the first call that leaves a finding; what went wrong with the process itself is a finding. */
assay_status certify_make_board(const char *work, certify_board **out);
void certify_free_board(certify_board *board);
assay_status certify_run_child(const certify_options *o, const char *work, const char *part,
                               certify_board *board);
/* device_probe.c: trial `probe` of a library on a device of this tier and name, behind its answers; no engine of the tier is a finding. */
assay_status certify_probe_device(const certify_options *o, const char *work, const char *tier,
                                  const char *device, certify_result *r);
/* device_sanitize.c: trial `sanitizer`: the exact calls again, under each tool of compute-sanitizer.  Nothing without it in PATH. */
assay_status certify_sanitize(const certify_options *o, const char *work, certify_board *board);
bool certify_sanitizer_installed(void);
/* launch_races.c: trial `races` of a plain CUDA file in the simulator: it is compiled once more, with the race checker, and every size runs
 * once.  Nothing where that cannot be made; out->no_races says why. */
assay_status certify_races(const certify_options *o, const char *work, certify_board *board,
                           certify_result *out);
/* In a child: its streams go into `log`, it has a process group of its own, and ends with its parent. */
void certify_enter_child(const char *log);
/* launch.c: makes a library of `cu` and `launch` in the folder `work`, and `so` names it.  ASSAY_UNSUPPORTED: a slot that has no plain
 * variable (optional, a dtype that follows from others). */
assay_status certify_launch(certify_options *o, const char *work);
/* Behind the last process of a trial: `cu` and all that it includes are what they were before it was compiled; else ASSAY_MISMATCH. */
assay_status certify_launch_unchanged(const certify_options *o, const char *work);
/* certify.c: the file still has this SHA-256; else ASSAY_MISMATCH: nobody knows which of the two was tried. */
assay_status certify_unchanged(const char *file, const char *sha256);
/* launch_compile.c: "nvcc 13.0, -O2 -arch=native".  ASSAY_NOT_FOUND: no such compiler. */
assay_status certify_compiler(const certify_options *o, const char *work, char *built, size_t capacity);
/* `source` as a shared library; what the compiler says of an error goes to stderr. */
assay_status certify_compile(const certify_options *o, const char *work, const char *source,
                             const char *library);
/* The same for the simulator with the race checker.  *good: false where the compiler does not; its words are in `why`, shortened. */
assay_status certify_compile_races(const char *work, const char *source, const char *library, bool *good,
                                   char *why, size_t capacity);
/* What the source includes of files that are not the system's, with their SHA-256; the caller's. */
assay_status certify_compile_includes(const certify_options *o, const char *work, const char *source,
                                      const char *file, json_t **out);
/* launch_includes.c: what a certified file includes is what it was; else ASSAY_MISMATCH with its name. */
assay_status certify_check_includes(const json_t *subject, const char *file, const char *who);
/* The members of "where": tier, machine, processor, and device, driver, toolkit, probe as null. */
json_t *certify_machine(const char *tier);
/* python.c */
assay_status certify_python(const certify_options *o, const char *work, certify_result *out);
/* One result for each operation; *out is the caller's. */
assay_status certify_engine(const certify_options *o, const char *work, certify_result **out, int *n);

/* --- report.c --------------------------------------------------------------------------------------------------- */
void certify_report(const certify_result *r, FILE *out);
assay_status certify_html(const certify_result *r, const char *path);

/* --- certificate.c, key.c, verify.c -------------------------------------------------------------------------------- */
enum { CERTIFY_KEY_HEX = 65, CERTIFY_SECRET_HEX = 129, CERTIFY_SIGNATURE_HEX = 129 };
typedef struct certify_key {
    char public_hex[CERTIFY_KEY_HEX];
    unsigned char secret[64];
} certify_key;
/* "": ~/.config/assay/certify.key and its .pub. */
assay_status certify_key_path(const char *given, const char *ending, char out[ASSAY_PATH]);
assay_status certify_key_create(const char *path);
assay_status certify_key_read(const char *path, certify_key *out);
assay_status certify_key_read_public(const char *path, char out[CERTIFY_KEY_HEX]);
/* Signs contents and writes the file. */
assay_status certify_sign(json_t *certificate, const certify_key *key, const char *path);
/* ASSAY_INVALID_ARGUMENT: a trial failed. */
assay_status certify_certificate_write(const certify_result *r, const certify_key *key, int64_t valid_days,
                                       const char *path);
/* certificate_name.c: "rmsnorm_fwd-libmine.so-my_rmsnorm-host": operation, file, symbol (of a plain CUDA file digits of its launch, of an engine its
 * variant where that is not the fastest), tier. */
enum { CERTIFY_STEM = 256 };
/* subject.variant of an engine without --variant, and of a certificate that has no such member. */
#define CERTIFY_FASTEST "fastest"
void certify_file_stem(const certify_result *r, char out[CERTIFY_STEM]);
/* Certificates in the folder that say of this subject, operation and tier what is no longer so. */
void certify_remove_older(const certify_result *r, const char *folder);
/* What a certificate says, after its signature held. */
typedef struct certify_checked {
    json_t *certificate; /* the caller's */
    char key[CERTIFY_KEY_HEX];
    char operation[48], tier[16], name[128], sha256[ASSAY_SHA256_HEX];
    char sources[ASSAY_SHA256_HEX]; /* of the judge that made it */
    const char *shapes;             /* what the description takes, a part of `certificate`; "": every size */
    char dtypes[32];                /* of activations, whose outputs were judged: "F32 BF16" */
    char rounds[160];               /* rounding points that an output declares: "probs"; "": none */
    int64_t seeds;                  /* of random inputs that were tried */
    int64_t issued, valid_until;    /* seconds since 1970 */
} certify_checked;
/* ASSAY_MISMATCH with the reason: not in canonical form, changed, signed by a key that is not among `keys` (none: any), not yet or no
 * longer valid, tried otherwise than this version tries.  ASSAY_UNSUPPORTED: made by another version, whose checks this one does
 * not know. */
assay_status certify_verify(const char *path, const char (*keys)[CERTIFY_KEY_HEX], int n_keys, int64_t now,
                            certify_checked *out);
/* good_for.c: "every shape, activations F32, 1 seed, tried up to T 4097, addresses aligned to 16 bytes, on NVIDIA H200"; texts of the certificate are
 * as it has them. */
void certify_good_for(const certify_checked *c, char *out, size_t capacity);
/* Judged by the sources of this program. */
bool certify_same_sources(const certify_checked *c);
/* "1970-01-01T00:00:00Z" */
void certify_time_text(int64_t t, char out[32]);
assay_status certify_time_read(const char *text, int64_t *out);
/* SHA-256 of the sources of core, ref and parity that this program was built from. */
const char *certify_source_hash(void);

/* --- trial.c: the child -------------------------------------------------------------------------------------------- */
/* part: "describe" (writes description.json), "trial", "threads" (plain runs alone), "exact" (plain runs of lattice inputs, no answers), "races" (of every
 * size, no answers), "time" (writes times.json).
 * Does not return. */
int certify_child(const certify_options *o, const char *dir, const char *part);

#endif
