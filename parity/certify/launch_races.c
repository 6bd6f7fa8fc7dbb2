/* Trial `races`: a plain CUDA file once more, compiled with the simulator's race checker.  Threads of the simulator change where they wait and
 * nowhere else, so that a missing barrier whose order of turns happens to be right leaves no other trace. */
#include "parity/certify/certify.h"

#include <string.h>

enum { SLOWER = 50 /* than without the checker, at most: a call's limit */ };

/* What the process said under the checker counts here alone: the same calls were looked at without it. */
static void book(const certify_board *checked, certify_board *board)
{
    static const certify_trial ends[] = {CERTIFY_CRASH, CERTIFY_TIME};
    board->trial[CERTIFY_RACES] = checked->trial[CERTIFY_SIMULATOR];
    board->runs += checked->runs;
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        if (checked->trial[ends[i]].bad > 0)
            certify_bad(board, ends[i], "under the race checker: %.900s", checked->trial[ends[i]].first);
}

assay_status certify_races(const certify_options *o, const char *work, certify_board *board,
                           certify_result *out)
{
    char source[ASSAY_PATH], library[ASSAY_PATH];
    bool good = false;
    if (o->cu[0] == '\0' || o->compiler[0] != '\0')
        return ASSAY_OK;
    snprintf(source, sizeof source, "%.900s/launch.cu", work);
    snprintf(library, sizeof library, "%.900s/races.so", work);
    ASSAY_TRY(certify_compile_races(work, source, library, &good, out->no_races, sizeof out->no_races));
    if (!good)
        return ASSAY_OK;
    out->no_races[0] = '\0';
    certify_options with = *o;
    snprintf(with.so, sizeof with.so, "%.1000s:assay_launch_entry", library);
    with.call_limit *= SLOWER;
    with.limit *= SLOWER;
    with.fail_fast = false;
    const certify_board before = *board;
    memset(board, 0, sizeof *board);
    const assay_status st = certify_run_child(&with, work, "races", board);
    const certify_board checked = *board;
    *board = before;
    ASSAY_TRY(st);
    book(&checked, board);
    return ASSAY_OK;
}
