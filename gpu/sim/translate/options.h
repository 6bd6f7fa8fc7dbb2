/* nvcc's command line, as far as simple makefiles use it.  What has no meaning for the simulator is accepted and said; what
 * cannot be done is refused by name; an option that is not known is refused as nvcc refuses it. */
#ifndef ASSAY_SIM_TRANSLATE_OPTIONS_H
#define ASSAY_SIM_TRANSLATE_OPTIONS_H

#include "text.h"

typedef struct words {
    const char **at;
    size_t count, room;
} words;

void words_add(words *w, const char *word);
void words_add_all(words *w, const words *more);

typedef enum option_mode {
    MODE_LINK,
    MODE_COMPILE,
    MODE_PREPROCESS,
    MODE_DEPENDENCIES,
    MODE_HELP,
    MODE_VERSION
} option_mode;

typedef struct options {
    option_mode mode;
    words inputs;       /* sources, objects and libraries, in their order */
    words preprocess;   /* -I, -D, ... */
    words compile;      /* -O2, -Xcompiler's, ... */
    words link;         /* -L, -Xlinker's, ... */
    words dependencies; /* -MD, -MF file, ... */
    words unused;       /* accepted, without effect */
    const char *output, *standard, *optimize, *host, *language;
    bool races, with_simulator, verbose, dry, keep_c, shared, dependency_file;
} options;

/* false: `why` says which option, and what is wrong with it. */
bool options_read(options *o, int argc, char **argv, text *why);
void options_help(void);

#endif
