/* assay certify of collectives in device memory, the simulator as their runtime: the example, and the example with one fault planted. */
#include "tests/support/certify.h"

TestSuite(certify_device_collectives, .init = certify_setup, .fini = cli_teardown, .timeout = 600);

#define EXAMPLE ASSAY_SOURCE_DIR "/examples/certify/collectives_device.cu"
#define BARRIER                                                                                              \
    "    if (c->comm->barrier(c->comm) != 0)\n"                                                              \
    "        return ASSAY_KERNEL_INTERNAL;\n"
#define COPIES                                                                                               \
    "    if ((code = copy(c, c->workspace, c->slot[SEND]->data, (size_t)n * width)) != 0 ||\n"               \
    "        (code = copy(c, c->slot[RECV]->data, c->slot[SEND]->data, (size_t)first * width)) != 0)\n"      \
    "        return code;\n"
enum { CHANGES = 3 };

/* The example with pieces of its text replaced, for F32 alone and, where faults are planted, up to 13 elements. */
static void build(const certify_change *changes)
{
    static char line[CLI_LINE];
    char *text = certify_replaced(cli_read(EXAMPLE), " | ASSAY_KERNEL_SET(ASSAY_KERNEL_BF16)", "");
    if (changes != NULL)
        text = certify_replaced(text, "    k.in_place = ", "    k.shapes = \"n<=13\";\n    k.in_place = ");
    for (int i = 0; changes != NULL && i < CHANGES && changes[i].is != NULL; i++)
        text = certify_replaced(text, changes[i].is, changes[i].becomes);
    cli_write_text(cli_file("k.cu"), text);
    free(text);
    snprintf(line, sizeof line,
             ASSAY_BIN_DIR "/assay-cc " CERTIFY_LEVEL " -shared --with-simulator -I " ASSAY_SOURCE_DIR
                           "/parity"
                           " -I " ASSAY_SOURCE_DIR "/examples/certify -o %s %s",
             cli_file("k.so"), cli_file("k.cu"));
    cli_result r = cli_wait(cli_start(line));
    cr_assert_eq(r.code, 0, "assay-cc: %s", r.err);
    cli_free(&r);
}

Test(certify_device_collectives, the_example_is_certified)
{
    static const char *const trials[] = {"guards",  "simulator", "probe",  "device",   "inputs",  "written",
                                         "exact",   "messages",  "repeat", "stream",   "threads", "in_place",
                                         "accepts", "crash",     "time",   "arguments"};
    static const char *const symbols[] = {"example_all_reduce_device", "example_all_gather_device"};
    cli_result r = cli_run("keygen");
    cli_expect_success(&r, "keygen");
    cli_free(&r);
    build(NULL);
    for (size_t s = 0; s < 2; s++) {
        r = cli_run("certify --seeds 1 --out certs --so ./k.so:%s", symbols[s]);
        cli_expect_success(&r, symbols[s]);
        for (size_t i = 0; i < sizeof trials / sizeof *trials; i++)
            cr_expect(certify_passed(&r, trials[i]), "%s: %s:\n%s", symbols[s], trials[i], r.out);
        cr_expect(s > 0 || (certify_passed(&r, "ranks") && certify_passed(&r, "workspace")), "%s", r.out);
        cli_free(&r);
    }
    char *text = cli_read(cli_file("certs/all_reduce-k.so-example_all_reduce_device-sim.json"));
    cr_expect(strstr(text, "\"memory\":\"device\"") != NULL &&
                  strstr(text, "\"ranks\":[1,2,3,4,5,8]") != NULL &&
                  strstr(text, "\"probe\":{\"functions\"") != NULL,
              "%s", text);
    free(text);
    r = cli_run("gate --require all_reduce,all_gather --tier sim certs");
    cli_expect_success(&r, "gate");
    cli_free(&r);
}

typedef struct planted {
    const char *name, *trial, *word;
    bool gather;
    certify_change changes[CHANGES];
} planted;

static void expect_found(const planted *p)
{
    build(p->changes);
    cli_result r = certify_caught(p->trial, p->word,
                                  p->gather ? "--so ./k.so:example_all_gather_device"
                                            : "--so ./k.so:example_all_reduce_device");
    cr_expect_eq(r.code, 1, "%s: exit code %d:\n%s%s", p->name, r.code, r.out, r.err);
    if (!certify_stopped(&r)) {
        cr_expect(certify_failed(&r, p->trial), "%s: %s does not fail\n%s", p->name, p->trial, r.out);
        cr_expect(p->word == NULL || strstr(r.out, p->word) != NULL, "%s: no '%s' in\n%s", p->name, p->word,
                  r.out);
    }
    cli_free(&r);
}

Test(certify_device_collectives, faults_of_order)
{
    static const planted rows[] = {
        {"no barrier", "exact", NULL, false, {{BARRIER, ""}}},
        {"the barrier before the copy", "exact", NULL, false, {{COPIES BARRIER, BARRIER COPIES}}},
        {"the default stream",
         "stream",
         "changes after the call's stream was waited for",
         false,
         {{"<<<blocks, THREADS, 0, stream>>>", "<<<blocks, THREADS>>>"}}},
        {"a copy that nobody waits for",
         "exact",
         NULL,
         false,
         {{"    if ((code = copy(c, c->workspace, c->slot[SEND]->data, (size_t)n * width)) != 0 ||\n",
           "    static cudaStream_t mine;\n    if (mine == NULL)\n"
           "        cudaStreamCreateWithFlags(&mine, cudaStreamNonBlocking);\n"
           "    cudaMemcpyAsync(c->workspace, c->slot[SEND]->data, (size_t)n * width, "
           "cudaMemcpyDeviceToDevice, "
           "mine);\n    if (\n"}}},
        {"a synchronization of the stream",
         "stream",
         "run() waits for its stream",
         false,
         {{BARRIER, "    cudaStreamSynchronize((cudaStream_t)c->stream);\n" BARRIER}}},
        {"a message of what another stream writes",
         "exact",
         NULL,
         true,
         {{"/* On the call's stream; nothing",
           "static cudaStream_t other(void)\n{\n    static cudaStream_t mine;\n    if (mine == NULL)\n"
           "        cudaStreamCreateWithFlags(&mine, cudaStreamNonBlocking);\n    return mine;\n}\n/*"},
          {"cudaMemcpyDeviceToDevice, (cudaStream_t)c->stream)", "cudaMemcpyDeviceToDevice, other())"}}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        expect_found(&rows[i]);
}

Test(certify_device_collectives, faults_of_memory)
{
    static const planted rows[] = {
        {"pieces in another order",
         "exact",
         NULL,
         true,
         {{"in = (me - step - 1 + ranks) % ranks",
           "in = (me - step - (counts->list == NULL ? 2 : 1) + 2 * ranks) % ranks"}}},
        {"a write behind the end", "guards", "recv", false, {{"if (i >= n)", "if (i > n)"}}},
        {"more than is sent",
         "messages",
         "expects",
         true,
         {{"(size_t)(start[in + 1] - start[in]) * width) != 0)",
           "(size_t)(start[in + 1] - start[in] + 1) * width) != 0)"}}},
        {"a message from the host's memory",
         "messages",
         "bytes on the device: cudaErrorInvalidValue",
         true,
         {{"(me + 1) % ranks, all + (size_t)start[out] * width,", "(me + 1) % ranks, (char *)start,"}}},
        {"a workspace that is too small for its kernel",
         "guards",
         "workspace",
         false,
         {{"x = other;\n    }\n", "x = other;\n    }\n    ((A *)p.of[0])[n] = 0.0f;\n"}}},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        expect_found(&rows[i]);
}
