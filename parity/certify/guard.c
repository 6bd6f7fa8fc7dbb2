/* Guarded memory of a trial. */
#include "parity/certify/guard.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <ucontext.h>
#include <unistd.h>

enum { PAGE = 4096, AROUND = 1024, STACK = 1 << 18 };

static certify_board *the_board;
enum { ARENAS = 32 };
static const guard_arena *arenas[ARENAS];
static int n_arenas;
static bool (*explain)(char *text, size_t capacity);
static volatile sig_atomic_t is_inside = 1; /* loading a library runs its code, too */

/* --- words, with what a signal handler may call ------------------------------------------------------------- */
typedef struct words {
    char *out;
    size_t n, capacity;
} words;

static void say(words *w, const char *text)
{
    for (; *text != '\0' && w->n + 1 < w->capacity; text++)
        w->out[w->n++] = *text;
    w->out[w->n] = '\0';
}

static void say_number(words *w, uint64_t v)
{
    char digits[24];
    int n = (int)sizeof digits - 1;
    digits[n] = '\0';
    do
        digits[--n] = (char)('0' + v % 10);
    while ((v /= 10) > 0);
    say(w, digits + n);
}

static words open_tally(certify_trial t)
{
    certify_tally *tally = &the_board->trial[t];
    tally->bad++;
    return (words){tally->first, 0, sizeof tally->first};
}

static const guard_buffer *buffer_at(const unsigned char *address, const guard_arena **arena)
{
    for (int a = 0; a < n_arenas; a++)
        for (int i = 0; i < arenas[a]->n; i++) {
            const guard_buffer *b = &arenas[a]->buffer[i];
            *arena = arenas[a];
            if (b->map != NULL && address >= b->map && address < b->map + b->room + 2 * (size_t)PAGE)
                return b;
        }
    return NULL;
}

static bool is_write(const void *context)
{
#if defined(__x86_64__)
    return (((const ucontext_t *)context)->uc_mcontext.gregs[REG_ERR] & 2) != 0;
#else
    (void)context;
    return false;
#endif
}

/* A fault beside or inside a buffer of the call. */
static void say_fault(const guard_buffer *b, const guard_arena *a, const unsigned char *address, bool writes)
{
    const bool inside = address >= b->data && address < b->data + b->bytes;
    words w = open_tally(inside ? CERTIFY_INPUTS : CERTIFY_GUARDS);
    say(&w, writes ? "wrote " : "read ");
    if (inside) {
        say(&w, "byte ");
        say_number(&w, (uint64_t)(address - b->data));
        say(&w, " of input ");
        say(&w, b->name);
    } else {
        const bool behind = address >= b->data + b->bytes;
        say_number(&w,
                   behind ? (uint64_t)(address - (b->data + b->bytes)) + 1 : (uint64_t)(b->data - address));
        say(&w, behind ? " bytes past the end of " : " bytes before the start of ");
        say(&w, b->name);
    }
    say(&w, a->of);
    say(&w, ", in ");
    say(&w, the_board->now);
}

static void on_fault(int number, siginfo_t *info, void *context)
{
    const unsigned char *address = info->si_addr;
    const bool memory = number == SIGSEGV || number == SIGBUS;
    const guard_arena *arena = NULL;
    const guard_buffer *b = memory ? buffer_at(address, &arena) : NULL;
    if (!is_inside && number != SIGALRM) {
        words own = {the_board->error, 0, sizeof the_board->error};
        say(&own, "a fault of the trial itself, in ");
        say(&own, the_board->now);
        _exit(2);
    }
    if (b != NULL) {
        say_fault(b, arena, address, is_write(context));
        _exit(3);
    }
    char why[384];
    if (memory && explain != NULL && explain(why, sizeof why)) {
        words w = open_tally(CERTIFY_SIMULATOR);
        say(&w, why);
        say(&w, ", in ");
        say(&w, the_board->now);
        _exit(3);
    }
    words w = open_tally(number == SIGALRM ? CERTIFY_TIME : CERTIFY_CRASH);
    say(&w, number == SIGALRM ? "a call did not end within the time limit"
            : number == SIGSEGV
                ? "segmentation fault (an address of no tensor, or an instruction that needs a better "
                  "alignment than was declared)"
            : number == SIGBUS ? "bus error"
            : number == SIGFPE ? "integer division by zero or overflow (SIGFPE)"
            : number == SIGILL ? "illegal instruction"
                               : "abort()");
    say(&w, ", in ");
    say(&w, the_board->now);
    _exit(3);
}

static bool take_stack(stack_t *mine, stack_t *before)
{
    *mine = (stack_t){.ss_sp = malloc(STACK), .ss_size = STACK};
    return mine->ss_sp != NULL && sigaltstack(mine, before) == 0;
}

void guard_thread(void (*body)(void *user), void *user)
{
    stack_t mine, before;
    const bool taken =
        take_stack(&mine, &before); /* without one an overflow of the stack is a crash that nobody names */
    body(user);
    if (taken)
        (void)sigaltstack(&before, NULL); /* a sanitizer gives its own back when the thread ends */
    free(mine.ss_sp);
}

void guard_add(const guard_arena *arena)
{
    if (n_arenas < ARENAS)
        arenas[n_arenas++] = arena;
}

assay_status guard_begin(certify_board *board, guard_arena *arena)
{
    static const int numbers[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGALRM};
    the_board = board;
    guard_add(arena);
    stack_t mine;
    ASSAY_CHECK(take_stack(&mine, NULL), ASSAY_OUT_OF_MEMORY, "signal stack");
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        ASSAY_CHECK(sigaction(numbers[i], &action, NULL) == 0, ASSAY_INTERNAL, "sigaction: %s",
                    strerror(errno));
    return ASSAY_OK;
}

void guard_explain(bool (*why)(char *text, size_t capacity))
{
    explain = why;
}

void guard_inside(bool inside)
{
    is_inside = inside;
}

void guard_limit(double seconds)
{
    struct itimerval v;
    memset(&v, 0, sizeof v);
    v.it_value.tv_sec = (time_t)seconds;
    v.it_value.tv_usec = (suseconds_t)((seconds - (double)v.it_value.tv_sec) * 1e6);
    (void)setitimer(ITIMER_REAL, &v, NULL);
}

static assay_status make_room(guard_buffer *b, size_t bytes)
{
    const size_t room = (bytes + PAGE - 1) / PAGE * PAGE + PAGE;
    if (b->map != NULL && b->room >= room)
        return ASSAY_OK;
    if (b->map != NULL)
        (void)munmap(b->map, b->room + 2 * (size_t)PAGE);
    b->map = mmap(NULL, room + 2 * (size_t)PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (b->map == MAP_FAILED) {
        b->map = NULL;
        ASSAY_FAIL(ASSAY_OUT_OF_MEMORY, "%s: %zu bytes", b->name, room);
    }
    b->room = room;
    ASSAY_CHECK(mprotect(b->map, PAGE, PROT_NONE) == 0 &&
                    mprotect(b->map + PAGE + room, PAGE, PROT_NONE) == 0,
                ASSAY_INTERNAL, "mprotect: %s", strerror(errno));
    return ASSAY_OK;
}

/* What surrounds the data on both sides, as far as it is looked at. */
static void look_around(guard_buffer *b)
{
    unsigned char *first = b->map + PAGE, *last = b->map + PAGE + b->room;
    b->low = b->data - first > AROUND ? b->data - AROUND : first;
    b->high = last - (b->data + b->bytes) > AROUND ? b->data + b->bytes + AROUND : last;
}

/* The same for a buffer with a twin, whose first byte is as well aligned as the device's memory is. */
static void place_twin(const guard_arena *a, guard_buffer *b, size_t align, guard_place place)
{
    b->low = b->map + PAGE;
    b->data = b->low + AROUND + (place == GUARD_START ? align : 0);
    b->high = b->data + b->bytes + (a->ends_guarded && place == GUARD_END ? 0 : AROUND);
}

assay_status guard_take(guard_arena *a, int index, const char *name, size_t bytes, size_t align,
                        guard_place place, unsigned char fill)
{
    guard_buffer *b = &a->buffer[index];
    if (index >= a->n)
        a->n = index + 1;
    snprintf(b->name, sizeof b->name, "%s", name);
    ASSAY_TRY(make_room(b, bytes + 2 * align + (a->on_device ? 2 * AROUND : 0)));
    b->bytes = bytes;
    b->is_input = false;
    b->taken = true;
    if (a->on_device) {
        place_twin(a, b, align, place);
    } else {
        const size_t whole = (bytes + align - 1) / align * align;
        b->data = place == GUARD_END ? b->map + PAGE + b->room - whole : b->map + PAGE + align;
        look_around(b);
    }
    memset(b->low, fill, (size_t)(b->high - b->low));
    return ASSAY_OK;
}

void guard_clear(guard_arena *a)
{
    for (int i = 0; i < a->n; i++)
        a->buffer[i].taken = false;
}

assay_status guard_lock(guard_arena *a, int index, bool locked)
{
    guard_buffer *b = &a->buffer[index];
    ASSAY_CHECK(mprotect(b->map + PAGE, b->room, locked ? PROT_READ : PROT_READ | PROT_WRITE) == 0,
                ASSAY_INTERNAL, "mprotect: %s", strerror(errno));
    return ASSAY_OK;
}

int64_t guard_damage(const guard_buffer *b, unsigned char fill)
{
    for (const unsigned char *p = b->data + b->bytes; p < b->high; p++)
        if (*p != fill)
            return p - (b->data + b->bytes) + 1;
    for (const unsigned char *p = b->data; p > b->low; p--)
        if (p[-1] != fill)
            return p - 1 - b->data;
    return 0;
}

void guard_free(guard_arena *a)
{
    for (int i = 0; i < a->n; i++)
        if (a->buffer[i].map != NULL)
            (void)munmap(a->buffer[i].map, a->buffer[i].room + 2 * (size_t)PAGE);
    memset(a, 0, sizeof *a);
}
