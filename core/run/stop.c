/* Signals that ask a run to stop. */
#include "core/run/stop.h"

#include <signal.h>
#include <string.h>

static volatile sig_atomic_t asked;

static void note(int signal_number)
{
    (void)signal_number;
    asked = asked + 1;
}

void assay_stop_catch(void)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = note;
    action.sa_flags = SA_RESTART;
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}

int assay_stop_asked(void)
{
    return asked;
}
