/* Fuzz targets: each reads bytes that anybody may have written through a reader of this program, and holds what it accepts to
 * a law.  ci/fuzz.sh runs them under libFuzzer; tests/parity/test_corpus.c runs them over tests/fuzz/corpus, where every input that ever
 * broke one stays.
 *
 * An input of several files is text: "@@NAME" on a line, then the file's bytes up to the next such line (the newline before it
 * is not the file's).  A name that ends in .safetensors: the header on one line, then the data; the length of the header goes
 * before it. */
#ifndef TESTS_FUZZ_H
#define TESTS_FUZZ_H

#include "core/base/status.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct fuzz_target {
    const char *name;
    void (*run)(const uint8_t *data, size_t bytes);
} fuzz_target;

/* targets.c; ends with a row of name NULL. */
extern const fuzz_target fuzz_targets[];
const fuzz_target *fuzz_target_find(const char *name);

void fuzz_safetensors(const uint8_t *data, size_t bytes);
void fuzz_folder(const uint8_t *data, size_t bytes);
void fuzz_batches(const uint8_t *data, size_t bytes);
void fuzz_checkpoint(const uint8_t *data, size_t bytes);
void fuzz_paddle(const uint8_t *data, size_t bytes);
void fuzz_trace(const uint8_t *data, size_t bytes);
void fuzz_record(const uint8_t *data, size_t bytes);
void fuzz_config(const uint8_t *data, size_t bytes);
void fuzz_layout(const uint8_t *data, size_t bytes);
void fuzz_options(const uint8_t *data, size_t bytes);
void fuzz_map(const uint8_t *data, size_t bytes);
void fuzz_tokenizer(const uint8_t *data, size_t bytes);
void fuzz_text(const uint8_t *data, size_t bytes);
void fuzz_dataset(const uint8_t *data, size_t bytes);
void fuzz_adapter(const uint8_t *data, size_t bytes);
void fuzz_pattern(const uint8_t *data, size_t bytes);
void fuzz_quantized(const uint8_t *data, size_t bytes);
void fuzz_replay(const uint8_t *data, size_t bytes);
void fuzz_case(const uint8_t *data, size_t bytes);
void fuzz_results(const uint8_t *data, size_t bytes);

/* A law that is broken ends the process, as a crash does. */
#define FUZZ_LAW(condition, ...)                                                                             \
    do {                                                                                                     \
        if (!(condition))                                                                                    \
            fuzz_broken(__FILE__, __LINE__, __VA_ARGS__);                                                    \
    } while (0)
#if defined(__GNUC__)
__attribute__((format(printf, 3, 4), noreturn))
#endif
void fuzz_broken(const char *file, int line, const char *format, ...);
/* What a law wants: an error of the harness, not of the input. */
void fuzz_must(assay_status st);

/* files.c: an empty folder of this process, emptied again by every call, removed when the process ends. */
const char *fuzz_folder_make(void);
void fuzz_folder_remove(void);
/* A file in it. */
void fuzz_write(const char *name, const void *data, size_t bytes);
/* Its path, until the next call. */
const char *fuzz_path(const char *name);

typedef struct fuzz_section {
    char name[64]; /* no '/', no "..", not empty */
    const uint8_t *data;
    size_t bytes;
} fuzz_section;
enum { FUZZ_SECTIONS = 12 };
/* Sections of an input; 0: it is none.  Sections with other names than `names` (NULL-terminated) are left out. */
int fuzz_sections(const uint8_t *data, size_t bytes, const char *const *names,
                  fuzz_section out[FUZZ_SECTIONS]);
/* Writes them into a new folder, with .safetensors put together. */
void fuzz_write_sections(const fuzz_section *sections, int n);
/* Reads every byte: one that is not there is seen by the address sanitizer. */
uint64_t fuzz_touch(const void *data, size_t bytes);

#endif
