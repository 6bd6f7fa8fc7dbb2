/* assay certify --cu: a plain CUDA file and its launch. */
#include "tests/support/certify.h"

TestSuite(certify_cu, .init = certify_setup, .fini = cli_teardown, .timeout = 600);

#define RMS ASSAY_SOURCE_DIR "/examples/certify/rms.cu"
#define LAUNCH "--launch rms<act><<<T,256>>>(y,rstd,x,gamma,eps,H)"

Test(certify_cu, an_honest_kernel_is_certified)
{
    cli_result r = cli_run("keygen");
    cli_expect_success(&r, "keygen");
    cli_free(&r);
    r = cli_run("certify --seeds 1 --out certs --cu " RMS " --operation rmsnorm_fwd " LAUNCH);
    cli_expect_success(&r, "certify --cu");
    static const char *const trials[] = {"exact",     "local",  "guards", "simulator",
                                         "arguments", "repeat", "special"};
    for (size_t i = 0; i < sizeof trials / sizeof *trials; i++)
        cr_expect(certify_passed(&r, trials[i]), "%s:\n%s", trials[i], r.out);
    cli_free(&r);
    char *text = cli_read(cli_file("certs/rmsnorm_fwd-rms.cu-sim.json"));
    cr_expect_not_null(strstr(text, "\"kind\":\"source\""), "%s", text);
    cr_expect_not_null(strstr(text, "\"launch\":\"rms<act><<<T,256>>>(y,rstd,x,gamma,eps,H)\""), "%s", text);
    free(text);
    r = cli_run("verify --key certs.pub %s", cli_file("certs/rmsnorm_fwd-rms.cu-sim.json"));
    cli_free(&r);
    /* `float` where `act` could be: that dtype alone */
    r = cli_run("certify --seeds 1 --cu " RMS " --operation rmsnorm_fwd --shapes H%%2=0 "
                "--launch rms<float><<<T<1?1:T,64>>>(y,rstd,x,gamma,eps,H)");
    cr_expect(r.code == 1 || r.code == 0);
    cr_expect_not_null(strstr(r.out, "F32"));
    cr_expect_null(strstr(r.out, "BF16"), "%s", r.out);
    cli_free(&r);
}

/* The example with one piece of text replaced. */
static void plant(const char *is, const char *becomes)
{
    char *text = cli_read(RMS), *at = strstr(text, is);
    cr_assert_not_null(at, "%s", is);
    FILE *f = fopen(cli_file("planted.cu"), "w");
    cr_assert_not_null(f);
    fprintf(f, "%.*s%s%s", (int)(at - text), text, becomes, at + strlen(is));
    cr_assert_eq(fclose(f), 0);
    free(text);
}

Test(certify_cu, wrong_kernels_fail_and_say_how)
{
    static const struct {
        const char *is, *becomes, *trial;
    } rows[] = {
        {"+ eps)", "+ 2.0f * eps)", "exact"},
        {"    part[threadIdx.x] = sum;\n    __syncthreads();", "    part[threadIdx.x] = sum;", "exact"},
        {"rstd[blockIdx.x] = r;", "rstd[blockIdx.x + 1] = r;", "simulator"},
        {"float sum = 0.0f;", "float sum = threadIdx.x > 99 ? 1.0f : 0.0f;", "local"},
        {"if (threadIdx.x < n)\n", "if (threadIdx.x >= n)\n            return;\n", "written"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        plant(rows[i].is, rows[i].becomes);
        cli_result r =
            cli_run("certify --seeds 1 --cu %s --operation rmsnorm_fwd " LAUNCH, cli_file("planted.cu"));
        cr_expect_eq(r.code, 1, "%s: exit code %d:\n%s%s", rows[i].becomes, r.code, r.out, r.err);
        cr_expect(!certify_passed(&r, rows[i].trial), "%s: %s passes\n%s", rows[i].becomes, rows[i].trial,
                  r.out);
        cli_free(&r);
    }
}

Test(certify_cu, refused_by_name)
{
    static const char *const rows[][2] = {
        {"certify --cu " RMS " --operation rmsnorm_fwd", "expected --launch"},
        {"certify --cu " RMS " --operation rmsnorm_fwd --launch rms(y)", "expected --launch"},
        {"certify --cu " RMS " --operation nothing " LAUNCH, "a row of docs/OPS.md"},
        {"certify --cu " RMS " --operation all_reduce " LAUNCH, "a row of docs/OPS.md"},
        {"certify --cu " RMS " --operation linear_fwd " LAUNCH, "slot bias of linear_fwd"},
        {"certify --cu nowhere.cu --operation rmsnorm_fwd " LAUNCH, "nowhere.cu: No such file"},
        {"certify --cu " RMS " --operation rmsnorm_fwd --launch rms<act><<<T,256>>>(y,\"x\")",
         "without quotes"},
        {"certify --cu " RMS " --operation rmsnorm_fwd --shapes H>=system(1) " LAUNCH,
         "--shapes: expected conditions"},
        {"certify --cu " RMS " --operation rmsnorm_fwd --launch rms<act><<<T,256>>>(y,nothing)",
         "error: 'nothing' was not declared in this scope"},
        {"certify --launch x --so a.so:b", "they are of --cu"},
        {"certify --cu " RMS " --so a.so:b", "expected --so LIBRARY:SYMBOL, --cu FILE"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        cli_result r = cli_run("%s", rows[i][0]);
        cli_expect_refusal(&r, rows[i][0], (const char *const[]){rows[i][1], NULL});
        cli_free(&r);
    }
}
