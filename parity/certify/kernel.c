/* A library under trial: opening it, and refusing a description that says what cannot be. */
#include "parity/certify/certify.h"
#include "parity/certify/shapes.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

/* --- in place: "y=x" ---------------------------------------------------------------------------------------- */
static assay_status check_in_place(const certify_kernel *c)
{
    for (const char *p = c->k->in_place; p != NULL && *p != '\0'; p += strcspn(p, " "), p += strspn(p, " ")) {
        char out[32] = "", in[32] = "";
        const int n = sscanf(p, "%31[^= ]=%31[^= ]", out, in);
        const assay_op_slot *o = n == 2 ? assay_op_slot_find(c->op, out, true) : NULL;
        const assay_op_slot *i = n == 2 ? assay_op_slot_find(c->op, in, false) : NULL;
        const bool piece = c->op->collective && strcmp(c->op->name, "all_to_all") != 0;
        ASSAY_CHECK(o != NULL && i != NULL && o->role == ASSAY_SLOT_OUT &&
                        (piece || (strcmp(o->shape, i->shape) == 0 && o->dtype == i->dtype)),
                    ASSAY_INVALID_ARGUMENT,
                    "%s: in_place: expected OUTPUT=INPUT of one shape and dtype of %s, found '%.*s'",
                    c->k->name, c->op->name, (int)strcspn(p, " "), p);
    }
    return ASSAY_OK;
}

/* --- arithmetic --------------------------------------------------------------------------------------------- */

/* Integers, and copies of numbers, have no arithmetic; a declaration for them is no error. */
static bool needs_arith(const assay_op_slot *s)
{
    return s->role != ASSAY_SLOT_IN && s->dtype != ASSAY_CLASS_I64;
}

static assay_status read_outputs(certify_kernel *c)
{
    bool seen[ASSAY_OP_SLOTS] = {false};
    c->declared = assay_declaration_make(assay_arith_elementwise());
    ASSAY_CHECK(c->k->n_outputs >= 0 && c->k->n_outputs <= ASSAY_OP_SLOTS &&
                    (c->k->n_outputs == 0 || c->k->outputs != NULL),
                ASSAY_INVALID_ARGUMENT, "%s: n_outputs: found %d", c->k->name, c->k->n_outputs);
    const char *bytes = (const char *)c->k->outputs;
    for (int i = 0; i < c->k->n_outputs; i++) {
        assay_kernel_output out = {0};
        uint32_t size;
        memcpy(&size, bytes, sizeof size);
        ASSAY_CHECK(size >= offsetof(assay_kernel_output, arith) + sizeof(uint32_t), ASSAY_INVALID_ARGUMENT,
                    "%s: outputs[%d]: size: found %u", c->k->name, i, (unsigned)size);
        memcpy(&out, bytes, size < sizeof out ? size : sizeof out);
        bytes += size;
        const bool known = out.slot >= 0 && out.slot < assay_op_n_slots(c->op) &&
                           c->op->slots[out.slot].role != ASSAY_SLOT_IN;
        ASSAY_CHECK(known && !seen[out.slot], ASSAY_INVALID_ARGUMENT,
                    "%s: outputs[%d]: expected the index of an output of %s, once, found %d", c->k->name, i,
                    c->op->name, out.slot);
        seen[out.slot] = true;
        assay_arith arith;
        char what[96];
        snprintf(what, sizeof what, "%.40s: output %s", c->k->name, c->op->slots[out.slot].name);
        ASSAY_TRY(certify_arith_of(&out.arith, what, &arith));
        if (i == 0)
            c->declared = assay_declaration_make(arith);
        ASSAY_TRY(assay_declaration_set(&c->declared, c->op->slots[out.slot].name, arith));
    }
    for (int i = 0; i < assay_op_n_slots(c->op); i++)
        ASSAY_CHECK(!needs_arith(&c->op->slots[i]) || seen[i], ASSAY_INVALID_ARGUMENT,
                    "%s: output %s of %s has no declared arithmetic", c->k->name, c->op->slots[i].name,
                    c->op->name);
    return ASSAY_OK;
}

/* --- the description ---------------------------------------------------------------------------------------- */
static assay_status check_words(const certify_kernel *c)
{
    const assay_kernel *k = c->k;
    const uint32_t wire = c->op->collective
                              ? ASSAY_KERNEL_SET(ASSAY_KERNEL_F64) | ASSAY_KERNEL_SET(ASSAY_KERNEL_I64)
                              : 0u,
                   known = wire | ASSAY_KERNEL_SET(ASSAY_KERNEL_F32) | ASSAY_KERNEL_SET(ASSAY_KERNEL_BF16);
    ASSAY_CHECK(k->dtypes != 0 && (k->dtypes & ~known) == 0, ASSAY_UNSUPPORTED,
                "%s: dtypes: expected a set of F32 and BF16%s, found 0x%x", k->name,
                wire != 0u ? ", F64 and I64" : "", (unsigned)k->dtypes);
    ASSAY_CHECK(wire == 0u || (k->flags & (ASSAY_KERNEL_ROW_STRIDES | ASSAY_KERNEL_SHADOW |
                                           ASSAY_KERNEL_BATCH_INVARIANT)) == 0,
                ASSAY_INVALID_ARGUMENT, "%s: flags: a collective has no rows, gaps or shadows, found 0x%x",
                k->name, (unsigned)k->flags);
    ASSAY_CHECK(k->flags < 2u * ASSAY_KERNEL_FAST_MATH, ASSAY_UNSUPPORTED, "%s: flags: found 0x%x", k->name,
                (unsigned)k->flags);
    ASSAY_CHECK(k->alignment >= 0 && k->alignment <= 256 && (k->alignment & (k->alignment - 1)) == 0,
                ASSAY_INVALID_ARGUMENT, "%s: alignment: expected 0 or a power of two up to 256, found %d",
                k->name, k->alignment);
    ASSAY_CHECK(k->memory == ASSAY_KERNEL_MEMORY_HOST || k->memory == ASSAY_KERNEL_MEMORY_DEVICE,
                ASSAY_INVALID_ARGUMENT, "%s: memory: expected host (1) or device (2) memory, found %d",
                k->name, k->memory);
    ASSAY_CHECK(!((k->flags & ASSAY_KERNEL_DETERMINISTIC) && (k->flags & ASSAY_KERNEL_ATOMICS)),
                ASSAY_INVALID_ARGUMENT,
                "%s: flags: atomics in an order that nobody fixed are not deterministic", k->name);
    return ASSAY_OK;
}

static assay_status find_entry(certify_kernel *out, const char *so, assay_kernel_entry **entry)
{
    char path[ASSAY_PATH];
    const char *colon = strrchr(so, ':');
    ASSAY_CHECK(colon != NULL && colon[1] != '\0' && (size_t)(colon - so) < sizeof path,
                ASSAY_INVALID_ARGUMENT, "--so: expected LIBRARY:SYMBOL, found %s", so);
    memcpy(path, so, (size_t)(colon - so));
    path[colon - so] = '\0';
    out->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    ASSAY_CHECK(out->library != NULL, ASSAY_NOT_FOUND, "--so: %s", dlerror());
    void *symbol = dlsym(out->library, colon + 1);
    ASSAY_CHECK(symbol != NULL, ASSAY_NOT_FOUND, "%s: no function %s", path, colon + 1);
    memcpy(entry, &symbol, sizeof symbol);
    return ASSAY_OK;
}

assay_status certify_kernel_open(certify_kernel *out, const char *so, assay_kernel *storage)
{
    assay_kernel_entry *entry = NULL;
    memset(out, 0, sizeof *out);
    memset(storage, 0, sizeof *storage);
    ASSAY_TRY(find_entry(out, so, &entry));
    const assay_kernel *k = entry(ASSAY_KERNEL_ABI);
    ASSAY_CHECK(k != NULL, ASSAY_UNSUPPORTED, "%s: the library does not know version %u of the interface", so,
                ASSAY_KERNEL_ABI);
    ASSAY_CHECK(k->size >= offsetof(assay_kernel, adapt), ASSAY_INVALID_ARGUMENT,
                "%s: size: expected at least %zu, found %u", so, offsetof(assay_kernel, adapt),
                (unsigned)k->size);
    memcpy(storage, k, k->size < sizeof *storage ? k->size : sizeof *storage);
    out->k = storage;
    ASSAY_CHECK(storage->abi == ASSAY_KERNEL_ABI, ASSAY_UNSUPPORTED, "%s: abi: expected %u, found %u", so,
                ASSAY_KERNEL_ABI, (unsigned)storage->abi);
    ASSAY_CHECK(storage->name != NULL && storage->name[0] != '\0' && storage->version != NULL &&
                    storage->built != NULL && storage->operation != NULL && storage->run != NULL,
                ASSAY_INVALID_ARGUMENT, "%s: expected name, version, operation, built and run", so);
    out->op = assay_op_find(storage->operation);
    ASSAY_CHECK(out->op != NULL, ASSAY_NOT_FOUND, "%s: operation '%s': unknown (docs/OPS.md lists them)",
                storage->name, storage->operation);
    ASSAY_CHECK(strcmp(out->op->name, "recv") != 0, ASSAY_INVALID_ARGUMENT,
                "%s: operation recv: expected send: a library has both ends of a message", storage->name);
    ASSAY_TRY(check_words(out));
    char who[96];
    snprintf(who, sizeof who, "%.80s: shapes", storage->name);
    ASSAY_TRY(certify_shapes_check(storage->shapes, out->op, who));
    ASSAY_TRY(check_in_place(out));
    return read_outputs(out);
}

/* --- as JSON ------------------------------------------------------------------------------------------------- */
static json_t *words_of(uint32_t set, const char *const *words, int n)
{
    json_t *list = json_array();
    for (int i = 0; i < n; i++)
        if (set >> i & 1u)
            json_array_append_new(list, json_string(words[i]));
    return list;
}

assay_status certify_kernel_json(const certify_kernel *c, json_t **out)
{
    static const char *const dtype_words[] = {"", "F32", "BF16", "F64", "I64"};
    static const char *const flag_words[] = {"deterministic", "batch_invariant", "row_strides",
                                             "shadow",        "atomics",         "fast_math"};
    const assay_kernel *k = c->k;
    json_t *outputs = json_object();
    for (int i = 0; i < assay_op_n_slots(c->op); i++)
        if (needs_arith(&c->op->slots[i]))
            json_object_set_new(
                outputs, c->op->slots[i].name,
                assay_arith_to_json(assay_declaration_of(&c->declared, c->op->slots[i].name)));
    *out =
        json_pack("{s:s, s:s, s:s, s:s, s:s, s:o, s:o, s:i, s:s, s:s, s:o, s:b, s:b, s:b}", "name", k->name,
                  "version", k->version, "operation", k->operation, "built", k->built, "memory",
                  k->memory == ASSAY_KERNEL_MEMORY_HOST ? "host" : "device", "dtypes",
                  words_of(k->dtypes, dtype_words, 5), "flags", words_of(k->flags, flag_words, 6),
                  "alignment", k->alignment, "shapes", k->shapes != NULL ? k->shapes : "", "in_place",
                  k->in_place != NULL ? k->in_place : "", "arithmetic", outputs, "adapts", k->adapt != NULL,
                  "workspace", k->workspace != NULL, "asynchronous", k->synchronize != NULL);
    ASSAY_CHECK(*out != NULL, ASSAY_INVALID_ARGUMENT, "%s: a text of the description is not UTF-8",
                k->operation);
    return ASSAY_OK;
}
