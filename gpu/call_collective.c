/* A call that NCCL runs. */
#include "gpu/call_internal.h"

#include "gpu/check.h"
#include <stdlib.h>
#include <string.h>

int64_t gpu_call_rows(const int64_t *counts, int n)
{
    int64_t sum = 0;
    for (int i = 0; i < n; i++)
        sum += counts[i];
    return sum;
}

int64_t gpu_call_row_elements(gpu_tensor t, const int64_t *counts, int n)
{
    const int64_t rows = gpu_call_rows(counts, n);
    return rows > 0 ? gpu_tensor_count(t) / rows : 1;
}

typedef assay_status (*uneven)(gpu_comm *c, assay_group group, const void *send, void *recv,
                               const int64_t *counts, assay_dtype dtype, cudaStream_t stream);

static assay_status launch_uneven(gpu_run *run, const gpu_resolved *c, uneven call, gpu_tensor whole)
{
    const gpu_tensor send = gpu_operand(&c->o, "send"), recv = gpu_operand(&c->o, "recv");
    const int n = run->comm.group[c->group].size;
    int64_t *elements = calloc((size_t)n, sizeof *elements);
    ASSAY_CHECK(elements, ASSAY_OUT_OF_MEMORY, "%s: counts of %d ranks", c->o.op->name, n);
    for (int i = 0; i < n; i++)
        elements[i] = c->counts[i] * gpu_call_row_elements(whole, c->counts, n);
    const assay_status st =
        call(&run->comm, c->group, send.data, recv.data, elements, send.dtype, run->ctx.stream);
    free(elements);
    return st;
}

static assay_status launch_all_to_all(gpu_run *run, const gpu_resolved *c)
{
    const gpu_tensor send = gpu_operand(&c->o, "send"), recv = gpu_operand(&c->o, "recv");
    const int n = run->comm.group[c->group].size;
    int64_t *elements = calloc(2 * (size_t)n, sizeof *elements);
    ASSAY_CHECK(elements, ASSAY_OUT_OF_MEMORY, "all_to_all: counts of %d ranks", n);
    for (int i = 0; i < n; i++) {
        elements[i] = c->counts[i] * gpu_call_row_elements(send, c->counts, n);
        elements[n + i] = c->recv_counts[i] * gpu_call_row_elements(recv, c->recv_counts, n);
    }
    const assay_status st = gpu_comm_all_to_all_v(&run->comm, c->group, send.data, elements, recv.data,
                                                  elements + n, send.dtype, run->ctx.stream);
    free(elements);
    return st;
}

assay_status gpu_call_launch_collective(gpu_run *run, gpu_resolved *c)
{
    static const struct {
        const char *op;
        gpu_comm_op call;
    } plain[] = {{"all_reduce", GPU_COMM_ALL_REDUCE},
                 {"all_gather", GPU_COMM_ALL_GATHER},
                 {"reduce_scatter", GPU_COMM_REDUCE_SCATTER},
                 {"broadcast", GPU_COMM_BROADCAST},
                 {"send", GPU_COMM_SEND},
                 {"recv", GPU_COMM_RECV}};
    const gpu_tensor send = gpu_operand(&c->o, "send"), recv = gpu_operand(&c->o, "recv");
    const char *op = c->o.op->name;
    if (strcmp(op, "all_to_all") == 0)
        return launch_all_to_all(run, c);
    if (c->counts && strcmp(op, "all_gather") == 0)
        return launch_uneven(run, c, gpu_comm_all_gather_v, recv);
    if (c->counts && strcmp(op, "reduce_scatter") == 0)
        return launch_uneven(run, c, gpu_comm_reduce_scatter_v, send);
    gpu_comm_call call = {.group = c->group,
                          .send = send.data,
                          .recv = recv.data,
                          .dtype = gpu_operand(&c->o, gpu_tensor_present(send) ? "send" : "recv").dtype};
    for (size_t i = 0; i < sizeof plain / sizeof plain[0]; i++)
        if (strcmp(plain[i].op, op) == 0)
            call.op = plain[i].call;
    const gpu_tensor counted = call.op == GPU_COMM_REDUCE_SCATTER || call.op == GPU_COMM_RECV ? recv : send;
    call.count = gpu_tensor_count(counted);
    call.root = (int)(assay_op_attr_find(c->o.op, "peer")   ? gpu_operand_int(&c->o, "peer")
                      : assay_op_attr_find(c->o.op, "root") ? gpu_operand_int(&c->o, "root")
                                                            : 0);
    if (assay_op_attr_find(c->o.op, "start")) {
        const int64_t start = gpu_operand_int(&c->o, "start");
        const int64_t skipped = start * assay_dtype_bytes(call.dtype);
        call.send = (const char *)call.send + skipped;
        call.recv = (char *)call.recv + skipped;
        call.count -= start;
    }
    call.max = assay_op_attr_find(c->o.op, "reduction") && gpu_operand_word(&c->o, "reduction") == 1;
    return call.count > 0 ? gpu_comm_enqueue(&run->comm, &call, run->ctx.stream) : ASSAY_OK;
}

gpu_declared gpu_call_collective_arith(const gpu_run *run, const gpu_resolved *c)
{
    const assay_dtype dtype = c->n_out > 0 ? c->out[0].value->t.dtype : ASSAY_F32;
    return (gpu_declared){.variant_name = "nccl",
                          .arith.all =
                              gpu_comm_arith(run->ctx.simulated, run->comm.group[c->group].size, dtype)};
}
