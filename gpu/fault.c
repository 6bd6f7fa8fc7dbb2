/* Planted faults: their texts, their places, what they do to operands and results. */
#include "gpu/fault.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const kinds[GPU_FAULT_KINDS] = {
    [GPU_FAULT_SKIP] = "skip",     [GPU_FAULT_OMIT] = "omit",     [GPU_FAULT_REPEAT] = "repeat",
    [GPU_FAULT_EXTRA] = "extra",   [GPU_FAULT_NEGATE] = "negate", [GPU_FAULT_SCALE] = "scale",
    [GPU_FAULT_HOLD] = "hold",     [GPU_FAULT_SPOIL] = "spoil",   [GPU_FAULT_ZERO_CHUNK] = "zero_chunk",
    [GPU_FAULT_ATTR] = "attr",     [GPU_FAULT_INPUT] = "input",   [GPU_FAULT_DROP] = "drop",
    [GPU_FAULT_GROUP] = "group",   [GPU_FAULT_LEAF] = "leaf",     [GPU_FAULT_NUDGE] = "nudge",
    [GPU_FAULT_SWITCH] = "switch",
};

/* --- words -------------------------------------------------------------------------------------------------- */
typedef enum {
    NEED_NONE,
    NEED_TP,
    NEED_CP,
    NEED_REDUCTION,
    NEED_STEPS,
    NEED_CHOICE,
    NEED_EP,
    NEED_PP,
    NEED_TRAINING,
    NEED_DOCUMENTS
} need;
static const struct {
    const char *word, *text;
    need need;
} words[] = {
    {"skip_all_reduce", "skip:decoder.layers.0.self_attention.reduce,phase=forward", NEED_REDUCTION},
    {"stale_weight", "hold:decoder.layers.0.self_attention.linear_qkv.weight:param,step=0", NEED_STEPS},
    {"double_microbatch",
     "repeat:decoder.layers.0.self_attention.linear_qkv,op=linear_bwd_weight,microbatch=1", NEED_NONE},
    {"wrong_expert", "spoil:decoder.layers.<first MoE layer>.mlp.router", NEED_CHOICE},
    {"flipped_sign", "negate:decoder.layers.0.input_layernorm:dx", NEED_NONE},
    {"wrong_scale", "attr:loss:scale=<1/microbatches>", NEED_NONE},
    {"missing_ep_chunk", "zero_chunk:decoder.layers.*.mlp.dispatch,phase=forward", NEED_EP},
    {"wrong_attention_scale", "attr:decoder.layers.0.self_attention.core_attention:scale=2", NEED_NONE},
    {"wrong_microbatch",
     "input:decoder.layers.0.self_attention.linear_qkv:x@microbatch-1,op=linear_bwd_weight", NEED_NONE},
    {"shifted_positions", "leaf:position_ids:shift", NEED_NONE},
    {"plain_positions", "leaf:position_ids:order", NEED_CP},
    {"plain_keys", "leaf:key_position_ids:order", NEED_CP},
    {"key_gradients_not_reduced", "skip:decoder.layers.0.self_attention.gather_k,phase=backward", NEED_CP},
    {"merge_skipped", "skip:decoder.layers.0.self_attention.core_attention,op=attention_merge", NEED_CP},
    {"ring_gradient_negated", "negate:decoder.layers.0.self_attention.ring.1.add_dk:y", NEED_CP},
    {"heads_in_one_part", "attr:decoder.layers.0.self_attention.unpack_o:parts=0.5,phase=forward", NEED_CP},
    {"positions_not_reset", "leaf:position_ids:row", NEED_DOCUMENTS},
    {"documents_not_masked", "leaf:*document_start:row", NEED_DOCUMENTS},
    {"shifted_documents", "leaf:*document_start:shift", NEED_DOCUMENTS},
    {"hidden_document_start", "nudge:decoder.layers.0.self_attention.core_attention*:first_key",
     NEED_DOCUMENTS},
    {"other_dropout_share", "attr:decoder.layers.0.self_attention.dropout:p=0.5,phase=forward", NEED_NONE},
    {"unscaled_dropout", "scale:decoder.layers.0.mlp.dropout:y=0.85,phase=forward", NEED_NONE},
    {"dropout_of_local_tokens", "leaf:dropout_token_ids:row", NEED_NONE},
    {"dropout_of_next_microbatch", "attr:decoder.layers.0.mlp.dropout:draw=+1,microbatch=0", NEED_NONE},
    {"dropout_of_other_backward", "nudge:decoder.layers.0.self_attention.dropout:token,phase=backward",
     NEED_NONE},
    {"dropout_of_local_heads", "attr:decoder.layers.0.self_attention.core_attention*:first_head=0",
     NEED_NONE},
    {"dropout_drawn_again", "attr:decoder.layers.0.self_attention.dropout:draw=+1,run=2", NEED_NONE},
    {"shifted_labels", "leaf:targets:shift", NEED_NONE},
    {"ids_of_another_rank", "leaf:input_ids:rank", NEED_NONE},
    {"aux_counts_not_reduced", "omit:decoder.layers.*.mlp.router.aux_counts", NEED_NONE},
    {"norm_over_wrong_group", "group:grad_norm.reduce:tp", NEED_TRAINING},
    {"extra_reduction", "extra:decoder.layers.0.self_attention.reduce,phase=forward", NEED_TP},
    {"missing_reduction", "omit:decoder.layers.0.self_attention.reduce,phase=forward", NEED_TP},
    {"loss_part_scale", "attr:loss:scale=2,op=cross_entropy_bwd,part=2", NEED_NONE},
    {"loss_part_overwrites", "attr:output_layer:accumulate=false,op=linear_bwd_weight,part=1", NEED_NONE},
    {"loss_part_omitted", "omit:output_layer,op=linear_bwd_weight,part=1", NEED_NONE},
    {"loss_part_skipped", "skip:output_layer,op=linear_bwd_input,part=1", NEED_NONE},
    {"fused_norm_eps", "attr:decoder.layers.0.self_attention.residual:eps=+0.01,op=add_rmsnorm_fwd",
     NEED_NONE},
    {"fused_residual", "scale:decoder.layers.1.self_attention.residual:residual=1.25,op=add_rmsnorm_fwd",
     NEED_NONE},
    {"fused_next_norm_eps", "attr:decoder.layers.0.mlp.residual:eps=+0.01,op=add_rmsnorm_fwd", NEED_NONE},
    {"fused_gradient", "scale:decoder.layers.1.pre_mlp_layernorm:y=1.25,op=rmsnorm_bwd_add", NEED_NONE},
    {"fused_balancing", "attr:decoder.layers.1.mlp.router:loss_scale_2=2,op=router_balanced_bwd_three",
     NEED_NONE},
    {GPU_SWITCH_SWAPPED_MOMENTS, "switch:swapped_moments", NEED_NONE},
    {GPU_SWITCH_DOUBLED_LOSS, "switch:doubled_loss", NEED_NONE},
    {GPU_SWITCH_HIDDEN_BF16, "switch:hidden_bf16", NEED_NONE},
    {GPU_SWITCH_BIAS_EVERYWHERE, "switch:bias_everywhere", NEED_TP},
    {GPU_SWITCH_KEPT_PARAMETERS, "switch:kept_parameters", NEED_NONE},
    {GPU_SWITCH_UNREADY_GRADIENTS, "switch:unready_gradients", NEED_NONE},
    {GPU_SWITCH_UNWAITED_GATHER, "switch:unwaited_gather", NEED_NONE},
    {GPU_SWITCH_UNWAITED_GRADIENTS, "switch:unwaited_gradients", NEED_NONE},
    {GPU_SWITCH_UNWAITED_TOKENS, "switch:unwaited_tokens", NEED_NONE},
    {GPU_SWITCH_UNWAITED_SHARED_EXPERT, "switch:unwaited_shared_expert", NEED_NONE},
    {GPU_SWITCH_UNWAITED_INPUT_GRADIENT, "switch:unwaited_input_gradient", NEED_TP},
    {GPU_SWITCH_UNWAITED_SUM, "switch:unwaited_sum", NEED_TP},
    {GPU_SWITCH_UNWAITED_PIECE, "switch:unwaited_piece", NEED_TP},
    {GPU_SWITCH_UNWAITED_SPLIT, "switch:unwaited_split", NEED_TP},
    {GPU_SWITCH_UNWAITED_PARTIAL, "switch:unwaited_partial", NEED_TP},
    {GPU_SWITCH_UNWAITED_SPLIT_SUM, "switch:unwaited_split_sum", NEED_TP},
    {GPU_SWITCH_UNWAITED_ROWS, "switch:unwaited_rows", NEED_EP},
    {GPU_SWITCH_UNWAITED_HALF, "switch:unwaited_half", NEED_EP},
    {GPU_SWITCH_UNWAITED_RETURN, "switch:unwaited_return", NEED_EP},
    {GPU_SWITCH_REUSED_SLOT, "switch:reused_slot", NEED_NONE},
    {GPU_SWITCH_EARLY_REDUCTION, "switch:early_reduction", NEED_NONE},
    {GPU_SWITCH_STALE_GRAPH, "switch:stale_graph", NEED_STEPS},
    {GPU_SWITCH_FORWARDS_FIRST, "switch:forwards_first", NEED_PP},
};
enum { N_WORDS = sizeof words / sizeof words[0] };

void gpu_fault_words(char *out, size_t capacity)
{
    size_t used = 0;
    for (int i = 0; i < N_WORDS && used < capacity; i++)
        used += (size_t)snprintf(out + used, capacity - used, "  %-24s %s\n", words[i].word, words[i].text);
}

static const char *lacking(need what, const gpu_fault_place *p)
{
    switch (what) {
    case NEED_TP:
        return p->tp > 1 ? NULL : "tp of at least 2";
    case NEED_CP:
        return p->cp > 1 ? NULL : "cp of at least 2";
    case NEED_REDUCTION:
        return p->tp > 1 || p->dp > 1 ? NULL : "tp or dp of at least 2";
    case NEED_STEPS:
        return p->training && p->steps >= 2 ? NULL : "a training batch of at least 2 steps";
    case NEED_CHOICE:
        return p->first_moe_layer >= 0 && p->topk < p->experts
                   ? NULL
                   : "a model with experts that a token does not choose";
    case NEED_EP:
        return p->ep > 1 ? NULL : "ep of at least 2";
    case NEED_PP:
        return p->pp > 1 && p->step_microbatches > 1 ? NULL : "pp and microbatches of at least 2";
    case NEED_TRAINING:
        return p->training ? NULL : "a training batch";
    case NEED_DOCUMENTS:
        return p->packed ? NULL : "a batch of rows with several documents";
    case NEED_NONE:
        break;
    }
    return NULL;
}

/* The long form of word number i for this run. */
static void expand(int i, const gpu_fault_place *p, char *out, size_t capacity)
{
    const char *word = words[i].word;
    if (strcmp(word, "wrong_expert") == 0)
        snprintf(out, capacity, "spoil:decoder.layers.%lld.mlp.router", (long long)p->first_moe_layer);
    else if (strcmp(word, "wrong_scale") == 0)
        snprintf(out, capacity, "attr:loss:scale=%.17g",
                 1.0 / (double)(p->step_microbatches > 1 ? p->step_microbatches : 2));
    else if (strcmp(word, "skip_all_reduce") == 0 && p->tp == 1) /* the gradient bucket of layer 0 */
        snprintf(out, capacity, "skip:decoder.layers.0.input_layernorm.weight,%s",
                 p->scattered ? "op=reduce_scatter" : "phase=reduced_grad");
    else
        snprintf(out, capacity, "%s", words[i].text);
}

/* --- text --------------------------------------------------------------------------------------------------- */
static assay_status parse_condition(gpu_fault *f, const char *text, const char *whole)
{
    const char *value = strchr(text, '=');
    const size_t n = value ? (size_t)(value - text) : 0;
    char *end = NULL;
    assay_phase phase;
    ASSAY_CHECK(value, ASSAY_INVALID_ARGUMENT,
                "fault '%s': condition '%s': expected op=, phase=, step=, microbatch=, part=, run= or "
                "variant=",
                whole, text);
    value++;
    if (n == 2 && strncmp(text, "op", n) == 0) {
        ASSAY_CHECK(assay_op_find(value), ASSAY_INVALID_ARGUMENT, "fault '%s': no operation is called %s",
                    whole, value);
        snprintf(f->op, sizeof f->op, "%s", value);
        return ASSAY_OK;
    }
    if (n == 5 && strncmp(text, "phase", n) == 0) {
        ASSAY_TRY(assay_phase_from_name(value, &phase));
        f->phase = (int)phase;
        return ASSAY_OK;
    }
    if (n == 7 && strncmp(text, "variant", n) == 0) {
        ASSAY_CHECK(value[0] == 'k' && value[1] >= '0' && value[1] <= '9' && value[2] == '\0',
                    ASSAY_INVALID_ARGUMENT, "fault '%s': variant=: expected kN, found '%s'", whole, value);
        ASSAY_CHECK(f->kind == GPU_FAULT_NEGATE || f->kind == GPU_FAULT_SCALE || f->kind == GPU_FAULT_SPOIL,
                    ASSAY_INVALID_ARGUMENT,
                    "fault '%s': variant= has a meaning for negate, scale and spoil alone", whole);
        f->variant = value[1] - '0';
        return ASSAY_OK;
    }
    const bool step = n == 4 && strncmp(text, "step", n) == 0, run = n == 3 && strncmp(text, "run", n) == 0;
    const bool part = n == 4 && strncmp(text, "part", n) == 0;
    const long long number = strtoll(value, &end, 10);
    ASSAY_CHECK((step || run || part || (n == 10 && strncmp(text, "microbatch", n) == 0)) && end != value &&
                    *end == '\0' && number >= 0 && (!run || number == 1 || number == 2),
                ASSAY_INVALID_ARGUMENT,
                "fault '%s': condition '%s': expected op=, phase=, step=N, microbatch=N, part=N, run=1, "
                "run=2 or variant=kN",
                whole, text);
    *(step ? &f->step : run ? &f->run : part ? &f->part : &f->microbatch) = number;
    return ASSAY_OK;
}

/* "SLOT", "NAME=X", "SLOT@microbatch-1" behind the instance */
static assay_status parse_what(gpu_fault *f, const char *text, const char *whole)
{
    static const bool needs[GPU_FAULT_KINDS] = {
        [GPU_FAULT_NEGATE] = true, [GPU_FAULT_SCALE] = true, [GPU_FAULT_HOLD] = true,
        [GPU_FAULT_ATTR] = true,   [GPU_FAULT_INPUT] = true, [GPU_FAULT_DROP] = true,
        [GPU_FAULT_GROUP] = true,  [GPU_FAULT_LEAF] = true,  [GPU_FAULT_NUDGE] = true};
    const size_t n = strcspn(text, "=@");
    ASSAY_CHECK((*text != '\0') == needs[f->kind] && n < sizeof f->what, ASSAY_INVALID_ARGUMENT,
                "fault '%s': %s %s a slot or a name behind the instance", whole, kinds[f->kind],
                needs[f->kind] ? "needs" : "takes no");
    snprintf(f->what, sizeof f->what, "%.*s", (int)n, text);
    const char *rest = text + n;
    if (f->kind == GPU_FAULT_ATTR || f->kind == GPU_FAULT_SCALE) {
        ASSAY_CHECK(rest[0] == '=' && rest[1] != '\0' && strlen(rest + 1) < sizeof f->value,
                    ASSAY_INVALID_ARGUMENT, "fault '%s': expected %s:INSTANCE:%s=X", whole, kinds[f->kind],
                    f->kind == GPU_FAULT_ATTR ? "NAME" : "SLOT");
        snprintf(f->value, sizeof f->value, "%s", rest + 1);
    } else if (f->kind == GPU_FAULT_INPUT) {
        ASSAY_CHECK(strcmp(rest, "@microbatch-1") == 0, ASSAY_INVALID_ARGUMENT,
                    "fault '%s': expected input:INSTANCE:SLOT@microbatch-1", whole);
    } else {
        ASSAY_CHECK(*rest == '\0', ASSAY_INVALID_ARGUMENT, "fault '%s': '%s' is not understood", whole, rest);
    }
    ASSAY_CHECK(f->kind != GPU_FAULT_LEAF || strcmp(f->what, "shift") == 0 || strcmp(f->what, "rank") == 0 ||
                    strcmp(f->what, "order") == 0 || strcmp(f->what, "row") == 0,
                ASSAY_INVALID_ARGUMENT,
                "fault '%s': expected leaf:NAME:shift, leaf:NAME:rank, leaf:NAME:order or leaf:NAME:row",
                whole);
    return ASSAY_OK;
}

static assay_status parse_long(gpu_fault *f, char *text, const char *whole)
{
    char *conditions = text + strcspn(text, ",");
    char *instance = text + strcspn(text, ":");
    memset(f, 0, sizeof *f);
    f->phase = f->variant = -1;
    f->step = f->microbatch = f->part = f->run = -1;
    f->kind = GPU_FAULT_KINDS;
    if (*conditions)
        *conditions++ = '\0';
    if (*instance)
        *instance++ = '\0';
    for (int k = 0; k < GPU_FAULT_KINDS; k++)
        if (strcmp(kinds[k], text) == 0)
            f->kind = (gpu_fault_kind)k;
    if (f->kind == GPU_FAULT_KINDS) {
        char legal[1024] = "";
        size_t used = 0;
        for (int i = 0; i < N_WORDS && used < sizeof legal; i++)
            used += (size_t)snprintf(legal + used, sizeof legal - used, "%s%s", i ? ", " : "", words[i].word);
        ASSAY_FAIL(ASSAY_INVALID_ARGUMENT,
                   "fault '%s': unknown, expected one of %s, or KIND:INSTANCE... (gpu/fault.h)", whole,
                   legal);
    }
    char *what = instance + strcspn(instance, ":");
    if (*what)
        *what++ = '\0';
    ASSAY_CHECK(*instance && strlen(instance) < sizeof f->instance, ASSAY_INVALID_ARGUMENT,
                "fault '%s': no instance", whole);
    snprintf(f->instance, sizeof f->instance, "%s", instance);
    ASSAY_TRY(parse_what(f, what, whole));
    for (char *next; *conditions; conditions = next) {
        next = conditions + strcspn(conditions, ",");
        if (*next)
            *next++ = '\0';
        ASSAY_TRY(parse_condition(f, conditions, whole));
    }
    return ASSAY_OK;
}

assay_status gpu_fault_parse(const char *text, const gpu_fault_place *place, gpu_fault_plan **out)
{
    char longer[256];
    gpu_fault f;
    const char *at = strchr(text, '@');
    const size_t n = at && !strchr(text, ':') ? (size_t)(at - text) : strlen(text);
    int word = -1;
    *out = NULL;
    if (text[0] == '\0')
        return ASSAY_OK;
    for (int i = 0; i < N_WORDS; i++)
        if (strlen(words[i].word) == n && strncmp(words[i].word, text, n) == 0)
            word = i;
    if (word >= 0) {
        const char *needs = lacking(words[word].need, place);
        ASSAY_CHECK(needs == NULL, ASSAY_INVALID_ARGUMENT, "fault '%s' needs %s", text, needs);
        expand(word, place, longer, sizeof longer);
    } else {
        ASSAY_CHECK(strlen(text) < sizeof longer, ASSAY_INVALID_ARGUMENT, "fault '%s': too long", text);
        snprintf(longer, sizeof longer, "%s", text);
    }
    ASSAY_TRY(parse_long(&f, longer, text));
    if (word >= 0 && text[n] == '@') {
        ASSAY_CHECK(f.kind != GPU_FAULT_SWITCH && text[n + 1] != '\0' &&
                        strlen(text + n + 1) < sizeof f.instance,
                    ASSAY_INVALID_ARGUMENT, "fault '%s': expected %s@INSTANCE", text, words[word].word);
        snprintf(f.instance, sizeof f.instance, "%s", text + n + 1);
    }
    *out = calloc(1, sizeof **out);
    ASSAY_CHECK(*out, ASSAY_OUT_OF_MEMORY, "fault: %zu bytes", sizeof **out);
    (*out)->text = text;
    (*out)->fault = f;
    return ASSAY_OK;
}

void gpu_fault_destroy(gpu_fault_plan *plan)
{
    for (int i = 0; plan && i < plan->n_copies; i++)
        (void)cudaFree(plan->copies[i]);
    free(plan);
}

assay_status gpu_fault_check_met(gpu_run *run)
{
    int64_t met = run->fault ? run->fault->met : 0;
    void *device;
    if (run->fault == NULL)
        return ASSAY_OK;
    if (run->comm.world > 1) {
        CUDA_TRY(cudaMalloc(&device, sizeof met));
        const gpu_comm_call call = {.op = GPU_COMM_ALL_REDUCE,
                                    .group = ASSAY_GROUP_WORLD,
                                    .send = device,
                                    .recv = device,
                                    .count = 1,
                                    .dtype = ASSAY_I64};
        assay_status st = gpu_run_upload(run, device, &met, sizeof met, "fault");
        if (st == ASSAY_OK)
            st = gpu_comm_enqueue(&run->comm, &call, run->ctx.stream);
        if (st == ASSAY_OK)
            st = gpu_run_download(run, &met, device, sizeof met, "fault");
        if (st != ASSAY_OK)
            gpu_comm_destroy(&run->comm, true); /* cudaFree would wait for a collective that never ends */
        (void)cudaFree(device);
        ASSAY_TRY(st);
    }
    ASSAY_CHECK(met > 0, ASSAY_INVALID_ARGUMENT,
                "fault '%s': this run never met it: no call has that instance, slot and conditions",
                run->fault->text);
    return ASSAY_OK;
}

/* --- places ------------------------------------------------------------------------------------------------- */
gpu_fault_plan *gpu_fault_at(const gpu_run *run, gpu_fault_kind kind, const char *op, const char *instance)
{
    gpu_fault_plan *p = run->fault;
    if (p == NULL || p->fault.kind != kind || run->dry)
        return NULL;
    const gpu_fault *f = &p->fault;
    const bool here =
        (f->op[0] == '\0' || strcmp(f->op, op) == 0) && (f->phase < 0 || f->phase == (int)run->phase) &&
        (f->step < 0 || f->step == run->step) && (f->microbatch < 0 || f->microbatch == run->microbatch) &&
        (f->part < 0 || f->part + 1 == run->part) && (f->run < 0 || (f->run == 2) == run->recompute) &&
        (f->variant < 0 || f->variant == run->ran) && fnmatch(f->instance, instance, 0) == 0;
    return here ? p : NULL;
}

/* Conditions that hold for a launch and its results alone (variant=kN) are left open. */
bool gpu_fault_meets(const gpu_run *run, const char *op, const char *instance)
{
    const gpu_fault_plan *p = run->fault;
    return p != NULL && p->fault.kind != GPU_FAULT_LEAF && p->fault.kind != GPU_FAULT_SWITCH &&
           (p->fault.op[0] == '\0' || strcmp(p->fault.op, op) == 0) &&
           fnmatch(p->fault.instance, instance, 0) == 0;
}

static gpu_fault_plan *with_slot(const gpu_run *run, gpu_fault_kind kind, const char *op,
                                 const char *instance, const char *slot)
{
    gpu_fault_plan *p = gpu_fault_at(run, kind, op, instance);
    return p && strcmp(p->fault.what, slot) == 0 ? p : NULL;
}

bool gpu_run_is_watched(const gpu_run *run)
{
    const bool fault = run->fault && run->fault->fault.kind != GPU_FAULT_SWITCH;
    return run->trace || fault || run->substitute || run->rules || run->observer;
}

bool gpu_fault_switch(const gpu_run *run, const char *word)
{
    gpu_fault_plan *p = run->fault;
    if (p == NULL || p->fault.kind != GPU_FAULT_SWITCH || strcmp(p->fault.instance, word) != 0)
        return false;
    p->met++;
    return true;
}

const char *gpu_fault_leaf(const gpu_run *run, const char *name)
{
    gpu_fault_plan *p = gpu_fault_at(run, GPU_FAULT_LEAF, "", name);
    return p ? p->fault.what : NULL;
}

void gpu_fault_leaf_met(const gpu_run *run)
{
    run->fault->met++;
}

/* --- operands ----------------------------------------------------------------------------------------------- */
assay_status gpu_fault_attrs(gpu_run *run, gpu_operands *o, const char *instance)
{
    gpu_fault_plan *p = gpu_fault_at(run, GPU_FAULT_ATTR, o->op->name, instance);
    gpu_attr *a = NULL;
    for (int i = 0; p && i < o->n_attrs; i++)
        if (strcmp(o->attr[i].name, p->fault.what) == 0)
            a = &o->attr[i];
    if (a == NULL)
        return ASSAY_OK;
    const char *text = p->fault.value;
    const bool added = text[0] == '+';
    char *end = NULL;
    const double x = strtod(added ? text + 1 : text, &end);
    const bool number = end != text && *end == '\0';
    const assay_attr_type type = assay_op_attr_find(o->op, a->name)->type;
    if (type == ASSAY_ATTR_DOUBLE || type == ASSAY_ATTR_INT) {
        ASSAY_CHECK(number, ASSAY_INVALID_ARGUMENT, "fault '%s': attribute %s of %s is a number", p->text,
                    a->name, o->op->name);
        a->number = added ? a->number + x : a->number * x;
        a->integer = added ? a->integer + (int64_t)x : (int64_t)((double)a->integer * x);
    } else if (type == ASSAY_ATTR_BOOL) {
        a->integer = strcmp(text, "true") == 0;
    } else {
        const char *before = a->word;
        a->word = text;
        ASSAY_CHECK(type != ASSAY_ATTR_WORD || gpu_operand_word(o, a->name) >= 0, ASSAY_INVALID_ARGUMENT,
                    "fault '%s': attribute %s of %s, which is %s, cannot be %s", p->text, a->name,
                    o->op->name, before, text);
    }
    p->met++;
    return ASSAY_OK;
}

/* Device memory with a copy of the value's bytes, freed with the plan. */
static assay_status copy_of(gpu_run *run, gpu_fault_plan *p, const gpu_value *v, void **out)
{
    const size_t bytes = gpu_tensor_bytes(v->t);
    ASSAY_CHECK(p->n_copies < (int)(sizeof p->copies / sizeof p->copies[0]), ASSAY_LIMIT,
                "fault '%s': too many calls are its place; name one", p->text);
    CUDA_TRY(cudaMalloc(out, bytes + 1));
    p->copies[p->n_copies++] = *out;
    if (bytes > 0)
        CUDA_TRY(cudaMemcpyAsync(*out, v->t.data, bytes, cudaMemcpyDeviceToDevice, run->ctx.stream));
    return ASSAY_OK;
}

assay_status gpu_fault_input(gpu_run *run, const assay_op *op, const char *instance, const char *slot,
                             gpu_value **v)
{
    gpu_fault_plan *p = with_slot(run, GPU_FAULT_DROP, op->name, instance, slot);
    if (p && *v) {
        const assay_op_slot *row = assay_op_slot_find(op, slot, false);
        ASSAY_CHECK(row && row->optional, ASSAY_INVALID_ARGUMENT, "fault '%s': slot %s of %s is not optional",
                    p->text, slot, op->name);
        *v = NULL;
        p->met++;
        return ASSAY_OK;
    }
    p = with_slot(run, GPU_FAULT_INPUT, op->name, instance, slot);
    if (p == NULL || *v == NULL)
        return ASSAY_OK;
    gpu_value mine = **v, before = p->last;
    const bool there = p->has_last && before.microbatch != run->microbatch &&
                       gpu_tensor_count(before.t) == gpu_tensor_count(mine.t);
    ASSAY_TRY(copy_of(run, p, *v, &mine.t.data));
    p->last = mine;
    p->has_last = true;
    if (!there)
        return ASSAY_OK;
    p->met++;
    p->used = before;
    *v = &p->used;
    return ASSAY_OK;
}

assay_status gpu_fault_hold(gpu_run *run, const assay_op *op, const char *instance, const char *slot,
                            const gpu_value *v, void **copy)
{
    gpu_fault_plan *p = with_slot(run, GPU_FAULT_HOLD, op->name, instance, slot);
    *copy = NULL;
    if (p == NULL)
        return ASSAY_OK;
    p->met++;
    return copy_of(run, p, v, copy);
}

assay_status gpu_fault_nudge(gpu_run *run, gpu_operands *o, const char *instance)
{
    gpu_fault_plan *p = gpu_fault_at(run, GPU_FAULT_NUDGE, o->op->name, instance);
    const int i = p ? gpu_operands_index(o, p->fault.what) : -1;
    if (i < 0 || o->slot[i].dtype != ASSAY_I64 || gpu_tensor_bytes(o->slot[i]) == 0)
        return ASSAY_OK;
    const size_t bytes = gpu_tensor_bytes(o->slot[i]);
    gpu_value v = {.t = o->slot[i]};
    ASSAY_TRY(copy_of(run, p, &v, &v.t.data));
    int64_t *x = malloc(bytes);
    ASSAY_CHECK(x, ASSAY_OUT_OF_MEMORY, "fault nudge: %zu bytes", bytes);
    assay_status st = gpu_run_download(run, x, v.t.data, bytes, "fault nudge");
    for (size_t k = 0; k < bytes / sizeof *x; k++)
        x[k]--;
    if (st == ASSAY_OK)
        st = gpu_run_upload(run, v.t.data, x, bytes, "fault nudge");
    free(x);
    o->slot[i].data = v.t.data;
    p->met++;
    return st;
}

/* --- results ------------------------------------------------------------------------------------------------ */
/* Two bytes or four hold the sign in their top bit. */
static assay_status flip_sign(gpu_run *run, gpu_value *v)
{
    enum { CHUNK = 4096 };
    unsigned char bytes[CHUNK];
    const size_t total = gpu_tensor_bytes(v->t), width = (size_t)assay_dtype_bytes(v->t.dtype);
    for (size_t at = 0; at < total; at += CHUNK) {
        const size_t n = total - at < CHUNK ? total - at : CHUNK;
        ASSAY_TRY(gpu_run_download(run, bytes, (char *)v->t.data + at, n, "fault negate"));
        for (size_t i = width - 1; i < n; i += width)
            bytes[i] ^= 0x80u;
        ASSAY_TRY(gpu_run_upload(run, (char *)v->t.data + at, bytes, n, "fault negate"));
    }
    return ASSAY_OK;
}

/* Every element times x; BF16 is cut off behind the product. */
static assay_status multiply(gpu_run *run, gpu_value *v, float x)
{
    enum { CHUNK = 1024 };
    unsigned char bytes[CHUNK];
    const size_t total = gpu_tensor_bytes(v->t), width = (size_t)assay_dtype_bytes(v->t.dtype);
    for (size_t at = 0; at < total; at += CHUNK) {
        const size_t n = total - at < CHUNK ? total - at : CHUNK;
        ASSAY_TRY(gpu_run_download(run, bytes, (char *)v->t.data + at, n, "fault scale"));
        for (size_t i = 0; i < n; i += width) {
            float value = 0.0f;
            memcpy((unsigned char *)&value + sizeof value - width, bytes + i, width);
            value *= x;
            memcpy(bytes + i, (unsigned char *)&value + sizeof value - width, width);
        }
        ASSAY_TRY(gpu_run_upload(run, (char *)v->t.data + at, bytes, n, "fault scale"));
    }
    return ASSAY_OK;
}

/* One expert of row 0 becomes the lowest number that was not chosen; the row stays ascending. */
static assay_status spoil_first_row(gpu_run *run, gpu_value *indices, int64_t experts)
{
    const int64_t k = indices->t.shape[indices->t.ndim - 1];
    int64_t row[64];
    if (gpu_tensor_count(indices->t) == 0 || k > 64 || k >= experts)
        return ASSAY_OK;
    const size_t bytes = (size_t)k * sizeof row[0];
    ASSAY_TRY(gpu_run_download(run, row, indices->t.data, bytes, "fault spoil"));
    int64_t free_expert = 0;
    while (free_expert < k && row[free_expert] == free_expert)
        free_expert++;
    if (free_expert < k)
        row[free_expert] = free_expert;
    else
        row[k - 1] = k;
    return gpu_run_upload(run, indices->t.data, row, bytes, "fault spoil");
}

assay_status gpu_fault_output(gpu_run *run, const gpu_operands *o, const char *instance, const char *slot,
                              gpu_value *v, const int64_t *recv_counts, int ranks)
{
    const char *op = o->op->name;
    gpu_fault_plan *p = with_slot(run, GPU_FAULT_NEGATE, op, instance, slot);
    if (p) {
        ASSAY_CHECK(assay_dtype_is_float(v->t.dtype), ASSAY_INVALID_ARGUMENT,
                    "fault '%s': slot %s has no sign", p->text, slot);
        p->met++;
        ASSAY_TRY(flip_sign(run, v));
    }
    p = with_slot(run, GPU_FAULT_SCALE, op, instance, slot);
    if (p) {
        ASSAY_CHECK(v->t.dtype == ASSAY_F32 || v->t.dtype == ASSAY_BF16, ASSAY_INVALID_ARGUMENT,
                    "fault '%s': slot %s is neither F32 nor BF16", p->text, slot);
        p->met++;
        ASSAY_TRY(multiply(run, v, strtof(p->fault.value, NULL)));
    }
    p = gpu_fault_at(run, GPU_FAULT_SPOIL, op, instance);
    if (p && strcmp(slot, "indices") == 0) {
        const gpu_tensor logits = gpu_operand(o, "logits");
        p->met++;
        ASSAY_TRY(spoil_first_row(run, v, logits.shape[logits.ndim - 1]));
    }
    p = gpu_fault_at(run, GPU_FAULT_ZERO_CHUNK, op, instance);
    if (p == NULL || recv_counts == NULL || ranks < 2 || recv_counts[ranks - 1] == 0)
        return ASSAY_OK;
    int64_t rows = 0;
    for (int i = 0; i < ranks; i++)
        rows += recv_counts[i];
    const size_t row_bytes = gpu_tensor_bytes(v->t) / (size_t)rows;
    const size_t chunk = (size_t)recv_counts[ranks - 1] * row_bytes;
    p->met++;
    CUDA_TRY(
        cudaMemsetAsync((char *)v->t.data + (gpu_tensor_bytes(v->t) - chunk), 0, chunk, run->ctx.stream));
    return ASSAY_OK;
}
