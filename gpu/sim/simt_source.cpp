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

/* "addr2line -i" says the line of every inlined function that holds the address, the innermost first, one a line. */
static std::string ask_addr2line(const char *file, uintptr_t offset)
{
    char line[1024];
    std::string out, quoted;
    for (const char *c = file; *c != '\0'; ++c) {
        quoted += *c == '\'' ? std::string("'\\''") : std::string(1, *c);
    }
    snprintf(line, sizeof line, " 0x%zx 2>/dev/null", static_cast<size_t>(offset));
    FILE *f = popen(("addr2line -i -e '" + quoted + "'" + line).c_str(), "re");
    if (f == nullptr) {
        return out;
    }
    while (fgets(line, sizeof line, f) != nullptr) {
        line[strcspn(line, " \n")] = '\0'; /* "file:12 (discriminator 3)" */
        if (strncmp(line, "??", 2) == 0 || strncmp(base_name(line), "assay_sim_", 10) == 0) {
            continue; /* unknown, or the simulator's own inline functions */
        }
        out += (out.empty() ? "" : " < ") + std::string(base_name(line));
    }
    pclose(f);
    return out;
}

std::string source_lines(const void *pc)
{
    Dl_info info;
    void *map = nullptr;
    if (dladdr1(pc, &info, &map, RTLD_DL_LINKMAP) == 0 || map == nullptr) {
        return "";
    }
    const struct link_map *module = static_cast<const struct link_map *>(map);
    char program[4096] = "";
    const char *file = module->l_name;
    if (file == nullptr || *file == '\0') { /* the main program; its own name may be anything */
        const ssize_t n = readlink("/proc/self/exe", program, sizeof program - 1);
        program[n > 0 ? n : 0] = '\0';
        file = program;
    }
    return ask_addr2line(file, reinterpret_cast<uintptr_t>(pc) - module->l_addr);
}

void source_place(const void *pc, char *text, size_t bytes)
{
    const std::string lines = source_lines(pc);
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
