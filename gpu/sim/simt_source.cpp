/* From an address in the program to the source line, for reports: asks addr2line, where it is installed and the program
 * has debug information, and falls back to "<file>+0x<offset>", which addr2line takes later. */
#include "simt.hpp"

#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

namespace sim
{

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* "addr2line -a -i" says for every address a line with it, and then the line of every inlined function that holds it, the innermost
 * first.  One call for all: it reads all debug information each time. */
static void ask_addr2line(const char *file, const std::vector<uintptr_t> &offsets,
                          std::vector<std::string> &out)
{
    char line[1024];
    std::string command = "addr2line -a -i -e '";
    for (const char *c = file; *c != '\0'; ++c)
        command += *c == '\'' ? std::string("'\\''") : std::string(1, *c);
    command += '\'';
    for (const uintptr_t offset : offsets) {
        snprintf(line, sizeof line, " 0x%zx", static_cast<size_t>(offset));
        command += line;
    }
    const size_t first = out.size();
    size_t answers = 0;
    out.resize(first + offsets.size());
    FILE *f = popen((command + " 2>/dev/null").c_str(), "re");
    if (f == nullptr)
        return;
    while (fgets(line, sizeof line, f) != nullptr) {
        line[strcspn(line, " \n")] = '\0'; /* "file:12 (discriminator 3)" */
        if (strncmp(line, "0x", 2) == 0) {
            ++answers;
            continue;
        }
        if (answers == 0 || answers > offsets.size() || strncmp(line, "??", 2) == 0 ||
            strncmp(base_name(line), "assay_sim_", 10) == 0) {
            continue; /* unknown, or the simulator's own inline functions */
        }
        std::string &of = out[first + answers - 1];
        of += (of.empty() ? "" : " < ") + std::string(base_name(line));
    }
    pclose(f);
}

static const struct link_map *module_of(const void *pc)
{
    Dl_info info;
    void *map = nullptr;
    return dladdr1(pc, &info, &map, RTLD_DL_LINKMAP) == 0 ? nullptr
                                                          : static_cast<const struct link_map *>(map);
}

std::vector<std::string> source_lines(const std::vector<const void *> &pcs)
{
    std::vector<std::string> out;
    while (out.size() < pcs.size()) {
        const struct link_map *module = module_of(pcs[out.size()]);
        if (module == nullptr) {
            out.emplace_back();
            continue;
        }
        std::vector<uintptr_t> offsets; /* of all that follow in the same module */
        for (size_t i = out.size(); i < pcs.size() && module_of(pcs[i]) == module; ++i)
            offsets.push_back(reinterpret_cast<uintptr_t>(pcs[i]) - module->l_addr);
        char program[4096] = "";
        const char *file = module->l_name;
        if (file == nullptr || *file == '\0') { /* the main program; its own name may be anything */
            const ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
            program[n > 0 ? n : 0] = '\0';
            file = program;
        }
        ask_addr2line(file, offsets, out);
    }
    return out;
}

void source_place(const void *pc, char *text, size_t bytes)
{
    const std::string lines = source_lines({pc})[0];
    Dl_info info;
    void *map = nullptr;
    if (!lines.empty()) {
        snprintf(text, bytes, "%s", lines.c_str());
    } else if (dladdr1(pc, &info, &map, RTLD_DL_LINKMAP) == 0 || map == nullptr) {
        snprintf(text, bytes, "an unknown place");
    } else {
        const uintptr_t base = static_cast<const struct link_map *>(map)->l_addr;
        snprintf(text, bytes, "%s+0x%zx", base_name(info.dli_fname),
                 static_cast<size_t>(reinterpret_cast<uintptr_t>(pc) - base));
    }
}

} /* namespace sim */
