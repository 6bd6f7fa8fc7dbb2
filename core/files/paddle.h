/* Folders of PaddleNLP's unified checkpoint: read as the parameters of a model, and written.  docs/PADDLE.md.
 *
 * Everything in such a folder is hostile until checked: nothing is executed (pickled files are refused by name, but for the four
 * values of scheduler.pdparams, which have a strict reader), index files cannot lead out of the folder, and nothing is allocated by
 * a file's say-so.  What PaddleNLP itself would read wrongly without a word is a finding. */
#ifndef ASSAY_CORE_PADDLE_H
#define ASSAY_CORE_PADDLE_H

#include "core/base/dtype.h"
#include "core/base/json.h"
#include "core/model/spec.h"

ASSAY_BEGIN_DECLS

/* What a tensor of the folder is to its parameter. */
typedef enum {
    ASSAY_PADDLE_WEIGHT,
    ASSAY_PADDLE_MASTER,
    ASSAY_PADDLE_MOMENT1,
    ASSAY_PADDLE_MOMENT2,
    ASSAY_PADDLE_POW1, /* beta1^(step+1), one for each parameter */
    ASSAY_PADDLE_POW2,
    ASSAY_PADDLE_ROLES
} assay_paddle_role;
/* "weight", "main_param", "exp_avg", "exp_avg_sq": assay's families; "beta1_pow_acc_0", "beta2_pow_acc_0". */
const char *assay_paddle_role_name(assay_paddle_role role);

/* A finding: wrong, or a note (what is lost although the folder is whole). */
typedef void (*assay_paddle_finding)(void *user, bool wrong, const char *text);

/* What the folder says of itself. */
typedef struct assay_paddle_facts {
    assay_dtype weight;      /* of model-*: BF16 (also where it is stored as U16), F16 or F32 */
    bool has_optimizer;      /* an optimizer index */
    bool has_masters;        /* masters, of their own or under the names of the weights */
    bool masters_as_weights; /* skip_save_model_weight: model-* holds the masters, there are no weights */
    bool quantized;          /* optimizer states of ckpt_quant_stage O1 or O2 */
    bool unmerged;           /* ignore_merge_optimizer */
    int files[3];            /* of model, optimizer, master_weights */
    size_t bytes[3];         /* of their tensors */
    int64_t tensors[3];
    int64_t step, consumed_samples; /* trainer_state.json; -1: not there */
    int64_t last_epoch;             /* scheduler.pdparams; -1: not there */
    double learning_rate;           /* of the next step */
    int64_t trained, without;       /* parameters with states, and without any (frozen, or lost) */
    char version[32];               /* of PaddleNLP */
} assay_paddle_facts;

typedef struct assay_paddle assay_paddle;
/* Whether the folder has no manifest of assay's and files that only PaddleNLP writes. */
bool assay_paddle_is(const char *dir);
/* Looks at everything but the values of tensors.  An error: the configuration cannot be read, or the folder holds what is not read
 * at all; everything else goes to `sink`. */
assay_status assay_paddle_open(assay_paddle **out, const char *dir, assay_paddle_finding sink, void *user);
void assay_paddle_close(assay_paddle *p);
const assay_model_spec *assay_paddle_spec(const assay_paddle *p);
const assay_paddle_facts *assay_paddle_facts_of(const assay_paddle *p);
/* Whether the role of a parameter is there, whole and in one type: that type; ASSAY_DTYPE_COUNT: not. */
assay_dtype assay_paddle_has(const assay_paddle *p, assay_paddle_role role, int64_t param);
/* Fills dst with the canonical parameter, in the type that assay_paddle_has says (U16 is BF16's bits).  Powers: dst[] has one F32 for
 * each of the parameter's tensors, at most `capacity`, *n is their number. */
assay_status assay_paddle_read(const assay_paddle *p, assay_paddle_role role, int64_t param, void *dst);
assay_status assay_paddle_powers(const assay_paddle *p, assay_paddle_role role, int64_t param, float *dst,
                                 int64_t capacity, int64_t *n);

/* scheduler.pdparams: a pickled dict of last_epoch (an integer) and last_lr (a number).  The reader knows the opcodes that such a
 * dict is written with and refuses every other. */
assay_status assay_paddle_scheduler_parse(const unsigned char *bytes, size_t n, const char *what,
                                          int64_t *last_epoch, double *last_lr);
/* Number of bytes written to out[64]. */
size_t assay_paddle_scheduler_format(unsigned char out[64], int64_t last_epoch, double last_lr);

/* The writer: open, add_tensor for every role and parameter, finish, destroy.  One shard of each kind: PaddleNLP on one process
 * reads the first alone. */
typedef struct assay_paddle_writer assay_paddle_writer;
typedef struct assay_paddle_target {
    const assay_model_spec *spec; /* borrowed */
    assay_dtype weight;           /* BF16 (stored as U16) or F32 */
    bool states, masters;
    int64_t step, consumed_samples;
    double learning_rate;
    float pow1, pow2; /* beta^(step+1) */
} assay_paddle_target;
assay_status assay_paddle_writer_open(assay_paddle_writer **out, const char *dir,
                                      const assay_paddle_target *target);
/* The canonical parameter; F32, or BF16 for weights. */
assay_status assay_paddle_writer_add(assay_paddle_writer *w, assay_paddle_role role, int64_t param,
                                     const void *data);
assay_status assay_paddle_writer_finish(assay_paddle_writer *w);
/* Also removes the staged folder when finish was not reached.  NULL is legal. */
void assay_paddle_writer_destroy(assay_paddle_writer *w);

ASSAY_END_DECLS

#endif
