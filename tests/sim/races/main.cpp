/* Runs every kernel under the race checker and holds its reports against the table and against the marks in the source.
 *   assay_sim_races [NAME | --alone NAME] */
#include "races.h"

#include <algorithm>
#include <ctype.h>
#include <fstream>
#include <sstream>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <string>
#include <unistd.h>

static int failures, checked;
static char findings[] = "/tmp/assay-races-XXXXXX";

/* "file.cu:12" for the line with this mark; "" when there is none, "twice" when there are two. */
static std::string marked(const char *file, char side, const char *name)
{
    const char *base = strrchr(file, '/');
    std::ifstream in(std::string(ASSAY_SOURCE_DIR "/tests/sim/races/") + (base ? base + 1 : file));
    const std::string mark = std::string(1, side) + ": " + name + " *";
    std::string text, found;
    for (int line = 1; std::getline(in, text); ++line) {
        if (text.find(mark) != std::string::npos)
            found = !found.empty() ? "twice" : (base ? base + 1 : file) + (":" + std::to_string(line));
    }
    return found;
}

static void fail(const race_case &c, const char *what, const std::string &reports)
{
    ++failures;
    fprintf(stderr, "%s: %s: %s\n", c.name, what, reports.c_str());
}

/* Whether the line names that place: file.cu:12 is not in "file.cu:123".  "": no place is asked for. */
static bool names(const std::string &line, const std::string &place)
{
    size_t at = line.find(place);
    while (at != std::string::npos && !place.empty() && at + place.size() < line.size() &&
           isdigit(static_cast<unsigned char>(line[at + place.size()])) != 0)
        at = line.find(place, at + 1);
    return at != std::string::npos;
}

/* A line that says all of it. */
static bool said(const std::string &reports, const char *kind, const char *words, const std::string &a,
                 const std::string &b)
{
    const std::string head = std::string("assay-sim: ") + kind + ": ";
    std::istringstream in(reports);
    std::string line;
    while (std::getline(in, line)) {
        if (line.compare(0, head.size(), head) == 0 && line.find(words) != std::string::npos &&
            names(line, a) && names(line, b))
            return true;
    }
    return false;
}

/* A report that is held to no line would pass wherever it is: the file has the marks that the case declares. */
static void check_marks(const race_case &c, const std::string &a, const std::string &b)
{
    const int wanted = c.marks >= 0 ? c.marks : strcmp(c.kind, "race") == 0 ? 2 : 1;
    if (a == "twice" || b == "twice" || !a.empty() != (wanted > 0) || !b.empty() != (wanted > 1))
        fail(c, ("expected marks of " + std::to_string(wanted) + " lines, found").c_str(),
             "a: " + a + ", b: " + b);
}

static void run(const race_case &c)
{
    int *x = nullptr, *y = nullptr;
    ++checked;
    (void)cudaDeviceReset();
    if (cudaMalloc(&x, 4096 * 4 + 8) != cudaSuccess || cudaMalloc(&y, 4096 * 4) != cudaSuccess ||
        cudaMemset(x, 0, 4096 * 4 + 8) != cudaSuccess || cudaMemset(y, 0, 4096 * 4) != cudaSuccess ||
        cudaDeviceSynchronize() != cudaSuccess) {
        fail(c, "no memory", "");
        return;
    }
    if (truncate(findings, 0) != 0)
        abort();
    c.body(x, y);
    const cudaError_t end = cudaDeviceSynchronize();
    (void)cudaFree(x);
    (void)cudaFree(y);
    std::ifstream in(findings);
    const std::string reports((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    if (c.kind == nullptr && !reports.empty())
        fail(c, "a false alarm", reports);
    if (c.kind != nullptr) {
        const std::string a = marked(c.file, 'a', c.name), b = marked(c.file, 'b', c.name);
        check_marks(c, a, b);
        if (!said(reports, c.kind, c.words, a, b))
            fail(c, "not reported as it should be", reports);
    }
    if (c.also != nullptr &&
        (marked(c.file, 'c', c.name).empty() || !said(reports, c.also, "", marked(c.file, 'c', c.name), "")))
        fail(c, (std::string("not reported: ") + c.also).c_str(), reports);
    if (c.reports != 0 && std::count(reports.begin(), reports.end(), '\n') != c.reports)
        fail(c, ("not " + std::to_string(c.reports) + " lines").c_str(), reports);
    if (c.reports != 0 && end != cudaErrorIllegalAddress)
        fail(c, "the launch does not end with an illegal address", cudaGetErrorName(end));
}

/* One case as a program that somebody else might run under `assay sanitize`. */
static int alone(const char *name)
{
    for (const race_case *table : {RACES_IN_BLOCKS, RACES_IN_GRIDS, RACES_OF_MEMORY, COOPERATIVE, BAD_ACCESS,
                                   RACES_OF_TILES, RACES_WITH_LIBRARIES, CLEAN}) {
        for (const race_case *c = table; c->name != nullptr; ++c) {
            int *x = nullptr, *y = nullptr;
            if (strcmp(name, c->name) != 0)
                continue;
            if (cudaMalloc(&x, 4096 * 4 + 8) != cudaSuccess || cudaMalloc(&y, 4096 * 4) != cudaSuccess ||
                cudaMemset(x, 0, 4096 * 4 + 8) != cudaSuccess || cudaMemset(y, 0, 4096 * 4) != cudaSuccess)
                return 3;
            c->body(x, y);
            (void)cudaDeviceSynchronize();
            (void)cudaFree(x);
            return cudaFree(y) == cudaSuccess || c->kind != nullptr ? 0 : 4;
        }
    }
    return 5;
}

int main(int argc, char **argv)
{
    if (argc > 2 && strcmp(argv[1], "--alone") == 0)
        return alone(argv[2]);
    const int file = mkstemp(findings);
    if (file < 0 || setenv("ASSAY_SIM_FINDINGS", findings, 1) != 0)
        return 2;
    close(file);
    assay_sim_print_reports(argc > 1);
    for (const race_case *table : {RACES_IN_BLOCKS, RACES_IN_GRIDS, RACES_OF_MEMORY, COOPERATIVE, BAD_ACCESS,
                                   RACES_OF_TILES, RACES_WITH_LIBRARIES, CLEAN}) {
        for (const race_case *c = table; c->name != nullptr; ++c) {
            if (argc < 2 || strcmp(argv[1], c->name) == 0)
                run(*c);
        }
    }
    unlink(findings);
    printf("%d cases, %d failures\n", checked, failures);
    return failures != 0 || checked == 0;
}
