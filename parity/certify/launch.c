/* `assay certify --cu FILE --launch TEXT`: a plain CUDA file as a library of the interface.  A file is written beside the work that
 * includes FILE, checks a call as parity/assay_kernel.h asks, gives the operation's slots, attributes and symbols their names as
 * variables, and launches what TEXT says; launch_compile.c makes a library of it, for the simulator or for a device. */
#include "parity/certify/launch.h"
#include "parity/certify/shapes.h"

#include "core/base/sha256.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { SHAPES = 256, BUILT = 128 };

/* --- the file ------------------------------------------------------------------------------------------------- */
static const char head[] =
    "#define ASSAY_TRY_CODE(call)                                 \\\n"
    "    do {                                                     \\\n"
    "        const int32_t code_ = (call);                        \\\n"
    "        if (code_ != ASSAY_KERNEL_OK)                        \\\n"
    "            return code_;                                    \\\n"
    "    } while (0)\n"
    "namespace assay_launch {\n"
    "static int32_t check(const assay_kernel_tensor *t, int32_t dtype, int ndim)\n"
    "{\n"
    "    int64_t stride = 1;\n"
    "    if (t == nullptr || t->size < offsetof(assay_kernel_tensor, host) || t->ndim != ndim)\n"
    "        return ASSAY_KERNEL_INVALID;\n"
    "    if (t->dtype != dtype)\n"
    "        return ASSAY_KERNEL_UNSUPPORTED;\n"
    "    for (int d = ndim - 1; d >= 0; d--) {\n"
    "        if (t->shape[d] < 0)\n"
    "            return ASSAY_KERNEL_INVALID;\n"
    "        if (t->stride[d] != stride && t->shape[d] > 1)\n"
    "            return ASSAY_KERNEL_UNSUPPORTED;\n"
    "        stride *= t->shape[d];\n"
    "    }\n"
    "    if ((uintptr_t)t->data % alignment != 0)\n"
    "        return ASSAY_KERNEL_UNSUPPORTED;\n"
    "    return stride == 0 || t->data != nullptr ? ASSAY_KERNEL_OK : ASSAY_KERNEL_INVALID;\n"
    "}\n";

static const char *const act_name[] = {"F32", "BF16"}, *const act_type[] = {"float", "__nv_bfloat16"};

/* The dtypes of activations: both where the launch says `act`, else the one that it names (float where it names none). */
static unsigned dtypes_of(const char *launch)
{
    return launch_has_word(launch, "act")                                                       ? 3u
           : launch_has_word(launch, "__nv_bfloat16") || launch_has_word(launch, "nv_bfloat16") ? 2u
                                                                                                : 1u;
}

/* Whether an extent of a slot is written with the symbol. */
static bool is_extent(const assay_op *op, const char *symbol)
{
    bool found = false;
    for (int i = 0; i < assay_op_n_slots(op); i++)
        found = found || launch_has_word(op->slots[i].shape, symbol);
    return found;
}

/* What the launch takes, beside what is said: sizes of 0 make launches of no blocks, which are errors. */
static assay_status shapes_of(const certify_options *o, const launch_file *s, char out[SHAPES])
{
    char symbols[SHAPES], attributes[SHAPES];
    certify_shapes_split(o->shapes, s->op, symbols, attributes, SHAPES);
    int n = snprintf(out, SHAPES, "%s", o->shapes);
    for (int i = 0; i < s->n_symbols && symbols[0] == '\0' && n < SHAPES; i++)
        if (is_extent(s->op, s->symbol[i]))
            n += snprintf(out + n, (size_t)(SHAPES - n), "%s%s>=1", n > 0 ? " " : "", s->symbol[i]);
    ASSAY_CHECK(n < SHAPES, ASSAY_LIMIT, "--shapes: more than %d characters", SHAPES);
    return certify_shapes_check(out, s->op, "--shapes");
}

/* The conditions as C++, on the variables of the file. */
static assay_status write_conditions(const launch_file *s, const char *shapes)
{
    certify_condition c;
    char why[96], name[64], modulus[32];
    for (const char *p = shapes; *p != '\0';) {
        if (!certify_condition_read(&p, &c, why, sizeof why))
            continue;
        const assay_op_attr *attr = certify_condition_attr(s->op, &c);
        ASSAY_CHECK(attr == NULL || attr->type != ASSAY_ATTR_DTYPE, ASSAY_UNSUPPORTED,
                    "--shapes: %s: dtypes follow from --launch", c.name);
        launch_variable(c.name, name);
        modulus[0] = '\0';
        if (c.modulus > 0)
            snprintf(modulus, sizeof modulus, " %% %lld", (long long)c.modulus);
        if (attr != NULL && attr->type == ASSAY_ATTR_WORD)
            fprintf(s->out, "    if (strcmp(%s, \"%s\") != 0)\n", name, c.value);
        else
            fprintf(s->out, "    if (!(%s%s %c%s %s))\n", name, modulus, c.sign, c.equal ? "=" : "", c.value);
        fputs("        return ASSAY_KERNEL_UNSUPPORTED;\n", s->out);
    }
    return ASSAY_OK;
}

/* A launch that names `stream` is enqueued there.  One that does not runs on the default stream, and the call waits for both. */
static bool names_stream(const certify_options *o)
{
    return launch_has_word(o->launch, "stream");
}

static assay_status write_run(launch_file *s, int act, const certify_options *o)
{
    char shapes[SHAPES];
    fprintf(s->out, "static int32_t run_%s(const assay_kernel_call *c)\n{\n    using act = %s;\n",
            act_name[act], act_type[act]);
    ASSAY_TRY(launch_write_variables(s));
    ASSAY_TRY(shapes_of(o, s, shapes));
    ASSAY_TRY(write_conditions(s, shapes));
    fprintf(s->out,
            "    const cudaStream_t stream = (cudaStream_t)c->stream;\n%s#line 1 \"--launch\"\n    %s;\n"
            "    return cudaGetLastError() == cudaSuccess%s ? ASSAY_KERNEL_OK : ASSAY_KERNEL_DEVICE;\n}\n",
            names_stream(o) ? ""
                            : "    if (cudaStreamSynchronize(stream) != cudaSuccess)\n"
                              "        return ASSAY_KERNEL_DEVICE;\n",
            o->launch, names_stream(o) ? "" : " && cudaStreamSynchronize(nullptr) == cudaSuccess");
    return ASSAY_OK;
}

/* Any order of a sum in F32, --suggest says what is tighter; beside it what --rounding says is stored in activations. */
static void write_outputs(const launch_file *s, unsigned rounding)
{
    int n = 0;
    fprintf(s->out, "static const assay_kernel_output outputs[] = {\n");
    for (int i = 0; i < assay_op_n_slots(s->op); i++) {
        const assay_op_slot *slot = &s->op->slots[i];
        if (slot->role == ASSAY_SLOT_IN || slot->dtype == ASSAY_CLASS_I64)
            continue;
        fprintf(s->out,
                "    {sizeof(assay_kernel_output), %d, {sizeof(assay_kernel_arith), %s, "
                "ASSAY_KERNEL_ORDER_UNKNOWN, 1, 1, 1, 0, 1, 0, 4, 0, %u}},\n",
                i, slot->dtype == ASSAY_CLASS_F64 ? "ASSAY_KERNEL_F64" : "ASSAY_KERNEL_F32", rounding);
        n++;
    }
    fprintf(s->out, "};\nenum { N_OUTPUTS = %d };\n", n);
}

static assay_status write_file(const certify_options *o, const char *file, const char *built,
                               const char *path)
{
    const unsigned dtypes = dtypes_of(o->launch);
    char shapes[SHAPES] = "";
    unsigned rounding = 0;
    launch_file s = {.out = fopen(path, "wxe"), .op = assay_op_find(o->operation)};
    ASSAY_CHECK(s.out != NULL, ASSAY_IO, "%s: %s", path, strerror(errno));
    assay_status st = ASSAY_OK;
    fprintf(
        s.out,
        "#include <cstring>\n#include <cuda_bf16.h>\n#include <cuda_runtime.h>\n#include \"%s\"\n#include "
        "\"assay_kernel.h\"\nnamespace assay_launch {\nenum { alignment = %d };\n}\n%s",
        file, o->alignment > 0 ? (int)o->alignment : 1, head);
    for (int act = 0; act < 2 && st == ASSAY_OK; act++)
        if (dtypes >> act & 1u)
            st = write_run(&s, act, o);
    if (st == ASSAY_OK)
        st = assay_rounding_read(o->rounding, "--rounding", &rounding);
    write_outputs(&s, rounding);
    if (st == ASSAY_OK)
        st = shapes_of(o, &s, shapes);
    fprintf(s.out, "static const char shapes[] = \"%s\";\n", shapes);
    fprintf(s.out, "static int32_t run(const assay_kernel_call *c)\n{\n    if (c == nullptr || c->size < "
                   "offsetof(assay_kernel_call, shadow))\n        return ASSAY_KERNEL_INVALID;\n");
    for (int act = 0; act < 2; act++)
        if (dtypes >> act & 1u)
            fprintf(s.out, "    if (c->act == ASSAY_KERNEL_%s)\n        return run_%s(c);\n", act_name[act],
                    act_name[act]);
    fprintf(s.out,
            "    return ASSAY_KERNEL_UNSUPPORTED;\n}\n"
            "static inline int32_t synchronize(void *stream)\n{\n"
            "    return cudaStreamSynchronize((cudaStream_t)stream) == cudaSuccess ? 0 : 1;\n}\n"
            "static const assay_kernel description = {sizeof(assay_kernel), ASSAY_KERNEL_ABI, \"%s\", \"1\", "
            "\"%s\", \"%s\",\n    ASSAY_KERNEL_MEMORY_DEVICE, %s%s%s, %s, %d, shapes, nullptr, N_OUTPUTS, "
            "outputs, nullptr, run, nullptr, %s};\n"
            "}\nextern \"C\" const assay_kernel *assay_launch_entry(uint32_t abi)\n{\n    return abi == "
            "ASSAY_KERNEL_ABI ? &assay_launch::description : nullptr;\n}\n",
            strrchr(file, '/') + 1, s.op->name, built,
            dtypes & 1u ? "ASSAY_KERNEL_SET(ASSAY_KERNEL_F32)" : "", dtypes == 3u ? " | " : "",
            dtypes & 2u ? "ASSAY_KERNEL_SET(ASSAY_KERNEL_BF16)" : "",
            o->atomics ? "ASSAY_KERNEL_ATOMICS" : "ASSAY_KERNEL_DETERMINISTIC", (int)o->alignment,
            names_stream(o) ? "synchronize" : "nullptr");
    const bool failed = ferror(s.out) != 0;
    ASSAY_CHECK_GOTO(fclose(s.out) == 0 && !failed, ASSAY_IO, st, done, "%s: cannot write", path);
done:
    return st;
}

/* Everything that a text must not bring into the file: quotes and lines of its own. */
static assay_status check_text(const char *option, const char *text)
{
    ASSAY_CHECK(strpbrk(text, "\"\\\n\r") == NULL, ASSAY_INVALID_ARGUMENT,
                "--%s: expected one line without quotes and backslashes", option);
    return ASSAY_OK;
}

/* What is included is listed first, and again behind the trial: what the compiler reads lies between. */
static assay_status compile(const certify_options *o, const char *work, const char *source,
                            const char *library, const char *file)
{
    char path[ASSAY_PATH];
    json_t *list = NULL;
    snprintf(path, sizeof path, "%.900s/includes.json", work);
    assay_status listed = certify_compile_includes(o, work, source, file, &list);
    if (listed == ASSAY_OK)
        listed = assay_json_save(list, path);
    json_decref(list);
    if (listed != ASSAY_OK)
        assay_error_clear(); /* a file that is missing: the compiler says where */
    ASSAY_TRY(certify_compile(o, work, source, library));
    ASSAY_CHECK(listed == ASSAY_OK, ASSAY_INVALID_ARGUMENT,
                "--cu: %s: compiled, but -MM did not say before what it includes", file);
    return ASSAY_OK;
}

assay_status certify_launch(certify_options *o, const char *work)
{
    char source[ASSAY_PATH], library[ASSAY_PATH], built[BUILT];
    const assay_op *op = assay_op_find(o->operation);
    ASSAY_CHECK(o->launch[0] != '\0' && strstr(o->launch, "<<<") != NULL, ASSAY_INVALID_ARGUMENT,
                "--cu: expected --launch 'kernel<act><<<blocks, threads>>>(arguments)', found '%.200s'",
                o->launch);
    ASSAY_CHECK(op != NULL && !op->collective, ASSAY_INVALID_ARGUMENT,
                "--cu: expected --operation, a row of docs/OPS.md that is no collective, found '%s'",
                o->operation);
    ASSAY_TRY(check_text("launch", o->launch));
    ASSAY_TRY(check_text("shapes", o->shapes));
    ASSAY_TRY(certify_shapes_check(o->shapes, op, "--shapes"));
    ASSAY_TRY(certify_compiler(o, work, built, sizeof built));
    char *file = realpath(o->cu, NULL);
    ASSAY_CHECK(file != NULL, ASSAY_NOT_FOUND, "--cu: %s: %s", o->cu, strerror(errno));
    assay_status st = check_text("cu", file);
    snprintf(source, sizeof source, "%.900s/launch.cu", work);
    snprintf(library, sizeof library, "%.900s/launch.so", work);
    if (st == ASSAY_OK)
        st = assay_sha256_file(file, o->cu_sha256);
    if (st == ASSAY_OK)
        st = write_file(o, file, built, source);
    if (st == ASSAY_OK)
        st = compile(o, work, source, library, file);
    free(file);
    ASSAY_TRY(st);
    snprintf(o->so, sizeof o->so, "%s:assay_launch_entry", library);
    return ASSAY_OK;
}

assay_status certify_launch_unchanged(const certify_options *o, const char *work)
{
    char source[ASSAY_PATH], path[ASSAY_PATH];
    json_t *before = NULL, *now = NULL;
    ASSAY_TRY(certify_unchanged(o->cu, o->cu_sha256));
    char *file = realpath(o->cu, NULL);
    ASSAY_CHECK(file != NULL, ASSAY_NOT_FOUND, "--cu: %s: %s", o->cu, strerror(errno));
    snprintf(source, sizeof source, "%.900s/launch.cu", work);
    snprintf(path, sizeof path, "%.900s/includes.json", work);
    assay_status st = assay_json_load(&before, path);
    if (st == ASSAY_OK)
        st = certify_compile_includes(o, work, source, file, &now);
    const char *name = NULL;
    json_t *sha;
    json_object_foreach(before, name, sha)
    {
        if (st == ASSAY_OK && !json_equal(sha, json_object_get(now, name)))
            break;
    }
    ASSAY_CHECK_GOTO(st != ASSAY_OK || json_equal(before, now), ASSAY_MISMATCH, st, done,
                     "--cu: %s: includes %s, which was changed while it was tried: nothing is said of either",
                     o->cu, name != NULL ? name : "another set of files");
done:
    free(file);
    json_decref(before);
    json_decref(now);
    return st;
}
