/* The second compute stream: what it has is its own. */
#include "gpu/side.h"
#include "tests/support/engine.h"

TestSuite(engine_side, .timeout = 60, .init = engine_setup, .fini = engine_teardown);

enum { WORKSPACE = 4096 };

static void must(assay_status st)
{
    cr_assert_eq(st, ASSAY_OK, "%s", assay_error_message());
}

/* A run that has nothing but its device. */
static void open_run(gpu_run *run)
{
    *run = (gpu_run){.dry = false};
    must(gpu_ctx_init(&run->ctx, 0, WORKSPACE));
    must(gpu_side_create(run));
}

static unsigned ticket_of(const gpu_ctx *ctx)
{
    unsigned value = 77;
    cr_assert_eq(cudaMemcpy(&value, ctx->ticket, sizeof value, cudaMemcpyDeviceToHost), cudaSuccess);
    return value;
}

Test(engine_side, stream_workspace_and_ticket_are_others_between_begin_and_end)
{
    gpu_run run;
    open_run(&run);
    const gpu_ctx compute = run.ctx;
    must(gpu_side_begin(&run));
    cr_expect(run.side.open);
    cr_expect_neq(run.ctx.stream, compute.stream);
    cr_expect(run.ctx.workspace != NULL && run.ctx.workspace != compute.workspace);
    cr_expect(run.ctx.ticket != NULL && run.ctx.ticket != compute.ticket);
    cr_expect_eq(run.ctx.workspace_bytes, WORKSPACE);
    cr_expect_eq(ticket_of(&run.ctx), 0);
    must(gpu_side_end(&run));
    cr_expect(!run.side.open);
    cr_expect_eq(run.ctx.stream, compute.stream);
    cr_expect_eq(run.ctx.workspace, compute.workspace);
    cr_expect_eq(run.ctx.ticket, compute.ticket);
    cr_expect_eq(ticket_of(&run.ctx), 0);
    must(gpu_side_join(&run));
    gpu_side_destroy(&run);
    gpu_ctx_destroy(&run.ctx);
}

/* Blocks that come on the one stream are none that the other counts. */
Test(engine_side, a_ticket_that_is_drawn_on_one_stream_is_not_seen_on_the_other)
{
    const unsigned drawn = 5;
    gpu_run run;
    open_run(&run);
    must(gpu_side_begin(&run));
    cr_assert_eq(
        cudaMemcpyAsync(run.ctx.ticket, &drawn, sizeof drawn, cudaMemcpyHostToDevice, run.ctx.stream),
        cudaSuccess);
    must(gpu_side_end(&run));
    must(gpu_side_join(&run));
    must(gpu_ctx_sync(&run.ctx, "here"));
    cr_expect_eq(ticket_of(&run.ctx), 0);
    must(gpu_side_begin(&run));
    cr_expect_eq(ticket_of(&run.ctx), 5);
    must(gpu_side_end(&run));
    gpu_side_destroy(&run);
    gpu_ctx_destroy(&run.ctx);
}

/* An operation that fails leaves the side open: nothing is freed twice, and the context has its own again. */
Test(engine_side, a_side_that_is_left_open_is_destroyed)
{
    gpu_run run;
    open_run(&run);
    const gpu_ctx compute = run.ctx;
    must(gpu_side_begin(&run));
    gpu_side_destroy(&run);
    cr_expect_eq(run.ctx.stream, compute.stream);
    cr_expect_eq(run.ctx.workspace, compute.workspace);
    cr_expect_eq(run.ctx.ticket, compute.ticket);
    cr_expect_eq(ticket_of(&run.ctx), 0);
    gpu_ctx_destroy(&run.ctx);
}
