/* The translator of CUDA's syntax (gpu/sim/translate): each form that it knows, each that it refuses, and sources that are cut
 * and stirred. */
#include "gpu/sim/translate/translate.h"

#include <criterion/criterion.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool run(const char *source, text *out, translate_counts *counts, complaint *why)
{
    return translate(out, source, strlen(source), "t.cu", counts, why);
}

static size_t lines(const char *s, size_t n)
{
    size_t k = 0;
    for (size_t i = 0; i < n; ++i)
        k += s[i] == '\n';
    return k;
}

typedef struct form {
    const char *source, *want;
} form;

static void same(const form *f)
{
    text out = {0};
    translate_counts counts;
    complaint why;
    cr_assert(run(f->source, &out, &counts, &why), "%s: line %d: %s", f->source, why.line, why.text);
    cr_expect_str_eq(out.at, f->want, "%s\n  gives     %s\n  expected  %s", f->source, out.at, f->want);
    cr_expect_eq(lines(f->source, strlen(f->source)), lines(out.at, out.bytes), "%s: lines are kept",
                 f->source);
    text_free(&out);
}

#define LAUNCH(name, line, cfg) "(::assay_sim::configure(\"" name "\", " line ", " cfg ") ? (void)0 : (void)"

Test(sim_translate, a_launch_configures_in_front_of_the_kernels_call)
{
    static const form forms[] = {
        {"k<<<g, b>>>(x);", LAUNCH("k", "1", "g, b") "k(x));"},
        {"k <<< g , b, 0, s >>> (x, y);", LAUNCH("k", "1", "g , b, 0, s") "k  (x, y));"},
        {"k << <g, b >> > (x);", LAUNCH("k", "1", "g, b") "k  (x));"},
        {"k<T, (1 > 2)><<<g, b>>>();", LAUNCH("k<T, (1 > 2)>", "1", "g, b") "k<T, (1 > 2)>());"},
        {"::n::k<a<b<int>>><<<g, b>>>();", LAUNCH("::n::k<a<b<int>>>", "1", "g, b") "::n::k<a<b<int>>>());"},
        {"p->f<<<f<a>(1), b<c>::v>>>(1);", LAUNCH("p->f", "1", "f<a>(1), b<c>::v") "p->f(1));"},
        {"s.t[i](j)<<<g, b>>>(1);", LAUNCH("s.t[i](j)", "1", "g, b") "s.t[i](j)(1));"},
        {"(*f)<<<g, b>>>(1);", LAUNCH("(*f)", "1", "g, b") "(*f)(1));"},
        {"if (a) k<<<g, b>>>(1); else k<<<g, b>>>(2);",
         "if (a) " LAUNCH("k", "1", "g, b") "k(1)); else " LAUNCH("k", "1", "g, b") "k(2));"},
        {"x;\nk<<<g,\n   b>>>(1,\n 2);", "x;\n" LAUNCH("k", "2", "g, b") "k\n(1,\n 2));"},
        {"c<<<1, x<y<z>>>>();", LAUNCH("c", "1", "1, x<y<z>") "c());"},
        {"a<\"<<<\", 'x'><<<1, 2>>>(\">>>\");",
         LAUNCH("a<\\\"<<<\\\", 'x'>", "1", "1, 2") "a<\"<<<\", 'x'>(\">>>\"));"},
        {"# 7 \"b.cuh\"\nk<<<1, 2>>>();", "# 7 \"b.cuh\"\n" LAUNCH("k", "7", "1, 2") "k());"},
    };
    for (size_t i = 0; i < sizeof forms / sizeof *forms; ++i)
        same(&forms[i]);
}

Test(sim_translate, what_is_no_code_stays)
{
    static const char *const sources[] = {
        "// k<<<1, 2>>>(x)\n",
        "/* __global__ \" */ int a; // '\n",
        "const char *s = \"k<<<1, 2>>>() __shared__ \\\" \";",
        "auto s = R\"x(k<<<1,2>>>(\" )\" __global__)x\" u8\"\\\\\";",
        "#define K(x) k<<<1, 2>>>(x) \\\n  __global__\nint a;",
        "int n = 1'000'000 << 2; char c = '\"', d = '\\''; float f = 1.e+3f;",
        "a << b; c >>= 2; std::vector<std::vector<std::vector<int>>> v; x = a < b && c > d;",
        "std::ostream &operator<<<char>(int);",
        "# 1 \"/usr/include/x.h\" 1 3\n__global__ void k() { __shared__ int a; k<<<1,2>>>(); }\n",
        "int f() __asm__(\"g\"); extern int x __asm__(\"a b\");",
        "",
    };
    for (size_t i = 0; i < sizeof sources / sizeof *sources; ++i)
        same(&(form){sources[i], sources[i]});
}

Test(sim_translate, a_kernel_stays_a_function_of_its_type)
{
#define BODY(list) " ::assay_sim::kernel(\"k\", +[](" list ") {"
    static const form forms[] = {
        {"__global__ void k();", " void k();"},
        {"__global__ void k() {}", " void k() {" BODY("") "}); }"},
        {"static __global__ void k(void)\n{ return; }", "static  void k(void)\n{" BODY("") " return; }); }"},
        {"void __global__ k(float *x, int n = 3) { a; }",
         "void  k(float *x, int n = 3) {" BODY("float *x, int n") " a; }, x, n); }"},
        {"template <class T, int N> __global__ void k(T *const __restrict__ x, std::array<T, N> a) {}",
         "template <class T, int N>  void k(T *const __restrict__ x, std::array<T, N> a) {" BODY(
             "T *const __restrict__ x, std::array<T, N> a") "}, x, a); }"},
        {"template <> __global__ void k<int, 3>(int x) {}",
         "template <>  void k<int, 3>(int x) {" BODY("int x") "}, x); }"},
        {"template <class... A> __global__ void k(A... a) {}",
         "template <class... A>  void k(A... a) {" BODY("A... a") "}, a...); }"},
        {"__global__ void k(float *, const T, unsigned long, std::s<a> b[4], void (*f)(int)) {}",
         " void k(float * assay_argument_0, const T assay_argument_1, unsigned long assay_argument_2, "
         "std::s<a> "
         "b[4], void (*f)(int)) {" BODY(
             "float *, const T, unsigned long, std::s<a> b[4], void (*f)(int)") "},  assay_argument_0,  "
                                                                                "assay_argument_1,  "
                                                                                "assay_argument_2, b, f); }"},
        {"__global__ void __attribute__((used)) k(struct s x, T const y, n::t z) {}",
         " void __attribute__((used)) k(struct s x, T const y, n::t z) {" BODY(
             "struct s x, T const y, n::t z") "}, x, y, z); }"},
    };
    for (size_t i = 0; i < sizeof forms / sizeof *forms; ++i)
        same(&forms[i]);
}

Test(sim_translate, shared_memory_is_named_and_typed)
{
#define SHARED(n, decl, type, name, line)                                                                    \
    "struct assay_shared_" #n " { " decl "; }; auto &" name                                                  \
    " = ::assay_sim::shared_array<decltype(assay_shared_" #n "::" name "), assay_shared_" #n ">(\"" name     \
    "\", " #line ");"
#define DYNAMIC(n, decl, name, line)                                                                         \
    "struct assay_shared_" #n " { " decl "; }; auto *" name                                                  \
    " = ::assay_sim::dynamic_shared<decltype(assay_shared_" #n "::" name ")>(" #line ");"
    static const form forms[] = {
        {"void f() { __shared__ float a; }", "void f() { " SHARED(1, "float a", , "a", 1) " }"},
        {"void f() { static __shared__ volatile T a[N][M + 1]; }",
         "void f() { " SHARED(1, "volatile T a[N][M + 1]", , "a", 1) " }"},
        {"void f() {\n__shared__ int a[2],\n *b;\n}",
         "void f() {\n" SHARED(1, "int a[2]", , "a", 2) SHARED(2, "int *b", , "b", 3) "\n\n}"},
        {"void f() { __shared__ typename B<T, 4>::S t; }",
         "void f() { " SHARED(1, "typename B<T, 4>::S t", , "t", 1) " }"},
        {"void f() { __shared__ float a[x128::size][32],b; }",
         "void f() { " SHARED(1, "float a[x128::size][32]", , "a", 1) SHARED(2, "float b", , "b", 1) " }"},
        {"void f() { __shared__ struct { int x; } s[2]; }",
         "void f() { " SHARED(1, "struct { int x; } s[2]", , "s", 1) " }"},
        {"void f() { extern __shared__ float s[]; }", "void f() { " DYNAMIC(1, "float s[1]", "s", 1) " }"},
        {"void f() { extern volatile __shared__ __attribute__((aligned(16))) char s[]; }",
         "void f() { " DYNAMIC(1, "volatile __attribute__((aligned(16))) char s[1]", "s", 1) " }"},
        {"extern __shared__ int s[];\nvoid f() { s[0] = o.s + n::s; }",
         "struct assay_shared_1 { int s[1]; };\nvoid f() { "
         "(::assay_sim::dynamic_shared<decltype(assay_shared_1::s)>(1))[0] = o.s + n::s; }"},
        {"namespace n { __shared__ int s[4]; }\nint g() { return s[0]; }",
         "namespace n { struct assay_shared_1 { int s[4]; }; }\nint g() { return "
         "(::assay_sim::shared_array<decltype(assay_shared_1::s), assay_shared_1>(\"s\", 1))[0]; }"},
        {"void f() { asm volatile(\"bar.sync 0;\" : : \"r\"(x)); }",
         "void f() { ::assay_sim::inline_assembly(\"bar.sync 0;\", 1); }"},
        {"void f() { asm volatile(\"mov.u32 %0, %%lanemask_lt;\" : \"=r\"(x[1])); }",
         "void f() { (x[1]) = ::assay_sim::special_register(::assay_sim::LANEMASK_LT); }"},
        {"void f() { asm(\"red.global.add.u64 [%0],%1;\" :: \"l\"(p + 1), \"l\"(v) : \"memory\"); }",
         "void f() { (void)atomicAdd(reinterpret_cast<unsigned long long *>((p + 1)), (v)); }"},
        {"void f() { asm(\"red.global.add.u64 [%0],%1;\" :: \"l\"(p)); }",
         "void f() { ::assay_sim::inline_assembly(\"red.global.add.u64 [%0],%1;\", 1); }"},
        {"f((const void *)k, (void)0, (void **)a, (void *)b);",
         "f((const void *)k, (void)0, (void **)a, (void *)b);"},
        {"__global__ void k(int);\nf((const void *)&n::k<1, (2>1)>, (void *)(k), "
         "reinterpret_cast<void *>(k), (void const *)k::x);",
         " void k(int);\nf(::assay_sim::address_of(&n::k<1, (2>1)>), ::assay_sim::address_of((k)), "
         "::assay_sim::address_of((k)), (void const *)k::x);"},
    };
    for (size_t i = 0; i < sizeof forms / sizeof *forms; ++i)
        same(&forms[i]);
}

Test(sim_translate, what_cannot_be_translated_is_said_with_its_line)
{
    static const struct {
        const char *source;
        int line;
        const char *text;
    } bad[] = {
        {"\n<<<1, 2>>>(x);", 2, "'<<<' without a kernel's name in front of it"},
        {"k<<<1, 2>>(x);", 1, "a launch's '<<<' without its '>>>'"},
        {"{ k<<<1, 2 }", 1, "a launch's '<<<' without its '>>>'"},
        {"k<<<1, 2>>>;", 1, "a launch without the kernel's arguments behind '>>>'"},
        {"k<<<>>>();", 1, "a launch without grid and block between '<<<' and '>>>'"},
        {"int a;\n\n__global__ int a;", 3, "__global__ without a function"},
        {"__global__ void (x);", 1, "__global__ without a function's name"},
        {"__global__ void k(int a", 1, "this '(' is never closed"},
        {"__global__ void k(int a,, int b) {}", 1, "a kernel's parameter without a type"},
        {"__global__ void k(int[3]) {}", 1, "a kernel's parameter is an array without a name"},
        {"void f() { __shared__ float a = 1; }", 1,
         "a __shared__ variable with an initial value, which CUDA refuses"},
        {"void f() { __shared__ float a[]; }", 1, "a __shared__ array of open length without extern"},
        {"void f() { extern __shared__ float a; }", 1, "extern __shared__ that is no array of open length"},
        {"__shared__ float a", 1, "a __shared__ declaration without ';'"},
        {"void f() { __shared__ [3]; }", 1, "a __shared__ variable without a name"},
        {"void f() {\n  g(]; }", 2, "']' closes the '(' of line 2"},
        {"}", 1, "'}' closes nothing"},
        {"int a; /* x", 1, "a comment that does not end"},
        {"\nchar *s = \"x;\n", 2, "a string that does not end"},
        {"char c = 'x;\n", 1, "a character that does not end"},
        {"auto s = R\"y(x)z\";", 1, "a raw string that does not end"},
        {"auto s = R\"this_is_too_long_a_word(x)\";", 1, "a raw string without its '('"},
        {"# 40 \"inner.cuh\" 1\nk<<<1>>;", 40, "a launch's '<<<' without its '>>>'"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; ++i) {
        text out = {0};
        translate_counts counts;
        complaint why = {0};
        cr_expect(!run(bad[i].source, &out, &counts, &why), "%s is refused", bad[i].source);
        cr_expect_str_eq(why.text, bad[i].text, "%s: %s", bad[i].source, why.text);
        cr_expect_eq(why.line, bad[i].line, "%s: line %d", bad[i].source, why.line);
        cr_expect_str_eq(why.file, strstr(bad[i].source, "inner.cuh") ? "inner.cuh" : "t.cu");
        text_free(&out);
    }
}

/* Pieces of CUDA in any order, and with bytes changed: an answer, never a fault; lines are kept where it is yes. */
Test(sim_translate, stirred_sources_get_an_answer)
{
    static const char *const pieces[] = {"k<<<",
                                         ">>>",
                                         "(",
                                         ")",
                                         "{",
                                         "}",
                                         "[",
                                         "]",
                                         "<",
                                         ">",
                                         ",",
                                         ";",
                                         "\n",
                                         " ",
                                         "__global__",
                                         " void k(",
                                         "int *x",
                                         "__shared__",
                                         "extern ",
                                         "float s[]",
                                         "template <class T>",
                                         "asm volatile(\"x\")",
                                         "\"",
                                         "'",
                                         "/*",
                                         "*/",
                                         "//",
                                         "#",
                                         "# 3 \"f.h\" 3\n",
                                         "R\"(",
                                         ")\"",
                                         "...",
                                         "=",
                                         "::",
                                         "->",
                                         ".",
                                         "cudaLaunchKernel((void *)k",
                                         "const",
                                         "namespace n {",
                                         "operator",
                                         "\\",
                                         "struct {",
                                         "T::u",
                                         "1e+",
                                         "0x1'f",
                                         "\xff",
                                         "decltype(x)",
                                         "&"};
    const size_t n_pieces = sizeof pieces / sizeof *pieces;
    uint64_t state = 20261123;
    int accepted = 0;
    for (int round = 0; round < 20000; ++round) {
        text source = {0}, out = {0};
        text_add(&source, "");
        state = state * 6364136223846793005u + 1442695040888963407u;
        const int length = 1 + (int)(state >> 59);
        for (int i = 0; i < length; ++i) {
            state = state * 6364136223846793005u + 1442695040888963407u;
            text_add(&source, pieces[(state >> 33) % n_pieces]);
        }
        translate_counts counts;
        complaint why = {0};
        if (translate(&out, source.at, source.bytes, "t.cu", &counts, &why)) {
            ++accepted;
            cr_assert_eq(lines(source.at, source.bytes), lines(out.at, out.bytes), "lines of: %s", source.at);
        } else {
            cr_assert(why.text[0] != 0 && why.line >= 0, "a reason for: %s", source.at);
        }
        text_free(&source);
        text_free(&out);
    }
    cr_expect(accepted > 1000 && accepted < 19000, "%d of 20000 accepted", accepted);
}
