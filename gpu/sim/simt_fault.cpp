/* A processor fault inside a kernel becomes a report that names kernel, block, thread, place and memory, and the launch
 * fails, as it does on a GPU.  The handler runs on a stack of its own, because a fiber's may be what overflowed, and
 * leaves it by the jump to the scheduler.  Faults of host code go to whoever handled them before. */
#include "simt.hpp"

#include <mutex>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#if SIM_ASAN
#include <sanitizer/common_interface_defs.h>
#endif

namespace sim
{

const void *program_counter(const void *context)
{
#if defined(__x86_64__)
    return reinterpret_cast<const void *>(
        static_cast<const ucontext_t *>(context)->uc_mcontext.gregs[REG_RIP]);
#elif defined(__aarch64__)
    return reinterpret_cast<const void *>(static_cast<const ucontext_t *>(context)->uc_mcontext.pc);
#else
    (void)context;
    return nullptr;
#endif
}

bool bad_place(const worker &w, const void *pc)
{
    for (unsigned i = 0; i < w.hurts; ++i) {
        if (w.hurt_at[i] == pc)
            return false;
    }
    return true;
}

/* Its lane is not among those that have returned, for whom nobody waits: no exchange that names it ends any more. */
void leave_block(worker &w)
{
    static __thread stop_point nowhere;
    w.state[w.current] = EXITED;
    ++w.exited;
    --w.runnable;
    advance(w, true);
    /* A thread that has not begun: on the stack of the one that has ended, whose frames nobody needs. */
    fiber &f = w.fibers[w.current];
    f.at = stop_make(f.on->top, static_cast<size_t>(f.on->top - f.on->base), fiber_entry);
    jump(w, f.at, f.on, &nowhere, nullptr);
    abort();
}

void bad_access(worker &w, const void *pc, cudaError_t error)
{
    constexpr unsigned most = sizeof w.hurt_at / sizeof w.hurt_at[0];
    if (!ASSAY_SIM_RACES || w.looping || w.meeting != nullptr || w.tracing ||
        (w.hurts == most && bad_place(w, pc)))
        abandon(w, error);
    if (bad_place(w, pc))
        w.hurt_at[w.hurts++] = pc;
    w.hurt = w.hurt_block = true;
    w.hurt_by = error;
    leave_block(w);
}

#if !SIM_ASAN && !SIM_TSAN

constexpr size_t handler_stack_bytes = 256 * 1024; /* the handler asks addr2line for the source line */

static const int signals[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
static struct sigaction before[sizeof signals / sizeof signals[0]];

static const char *access_name(const void *context)
{
#if defined(__x86_64__)
    return static_cast<const ucontext_t *>(context)->uc_mcontext.gregs[REG_ERR] & 2 ? "a write" : "a read";
#else
    (void)context;
    return "an access";
#endif
}

/* General protection, for which there is no address: the host's instruction asks for an alignment, as a device's of a float4 does. */
static bool is_misaligned(int signal, const void *context)
{
#if defined(__x86_64__)
    return signal == SIGSEGV && static_cast<const ucontext_t *>(context)->uc_mcontext.gregs[REG_TRAPNO] == 13;
#else
    (void)context;
    return signal == SIGBUS;
#endif
}

/* What the host did to device memory that it may not touch (ASSAY_SIM_DEVICE_PRIVATE); "": it was something else. */
static const char *private_access(const void *context, const void *ptr)
{
    if (!memory_is_private(ptr))
        return "";
    return strcmp(access_name(context), "a write") == 0 ? "device memory written by the host: "
                                                        : "device memory read by the host: ";
}

static bool stack_overflown(const worker &w, const void *ptr)
{
    const uintptr_t at = reinterpret_cast<uintptr_t>(ptr);
    const uintptr_t page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    for (const stack *s : w.busy) {
        const uintptr_t base = reinterpret_cast<uintptr_t>(s->base);
        if (at < base && at >= base - page)
            return true;
    }
    return false;
}

static void what_happened(const worker *w, int signal, const siginfo_t *info, const void *context, char *text,
                          size_t bytes)
{
    char where[192];
    if (signal == SIGFPE) {
        snprintf(text, bytes, "an integer division by zero, whose result is unspecified on a GPU");
    } else if (signal == SIGILL) {
        snprintf(text, bytes, "an illegal instruction");
    } else if (is_misaligned(signal, context)) {
        snprintf(text, bytes,
                 "an access at an address that is not aligned to the vector's size, or at none at all");
    } else if (w != nullptr && stack_overflown(*w, info->si_addr)) {
        snprintf(text, bytes, "the thread's stack of %zu bytes is full (ASSAY_SIM_STACK_KB)",
                 config().stack_bytes);
    } else if ((w != nullptr && shared_describe(*w, info->si_addr, where, sizeof where)) ||
               memory_describe(info->si_addr, where, sizeof where)) {
        snprintf(text, bytes, "%s at %s", access_name(context), where);
    } else {
        snprintf(text, bytes, "%s at %p, which is no device memory", access_name(context), info->si_addr);
    }
}

static void fault_handler(int signal, siginfo_t *info, void *context)
{
    char text[384];
    worker *w = self;
    what_happened(w, signal, info, context, text, sizeof text);
    if (w == nullptr) {
        char where[192];
        if (memory_describe(info->si_addr, where, sizeof where)) {
            char place[512];
            source_place(program_counter(context), place, sizeof place);
            assay_sim_report("illegal address", "host code: %s%s, in %s",
                             private_access(context, info->si_addr), text, place);
        }
        for (size_t i = 0; i < sizeof signals / sizeof signals[0]; ++i) {
            if (signals[i] == signal)
                sigaction(signal, &before[i], nullptr);
        }
        return; /* the instruction faults again, for the handler of before */
    }
    const void *pc = program_counter(context);
    if (bad_place(*w, pc)) {
        const int line = w->looping ? 0 : w->fibers[w->current].line;
        char place[512];
        source_place(pc, place, sizeof place);
        assay_sim_report("illegal address", WHERE "%s, in %s", WHERE_ARGS(*w, threadIdx, line), text, place);
    }
    bad_access(*w, pc, cudaErrorIllegalAddress);
}

static void install()
{
    struct sigaction act = {};
    act.sa_sigaction = fault_handler;
    act.sa_flags =
        SA_SIGINFO | SA_ONSTACK | SA_NODEFER; /* the handler does not return, so nothing may stay blocked */
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; ++i)
        sigaction(signals[i], &act, &before[i]);
}

void faults_watch()
{
    static std::once_flag once;
    static thread_local bool ready;
    if (ready)
        return;
    ready = true;
    std::call_once(once, install);
    stack_t now;
    if (sigaltstack(nullptr, &now) == 0 && (now.ss_flags & SS_DISABLE) && !(now.ss_flags & SS_ONSTACK)) {
        /* Kept for the life of the thread; the stack of an ended thread is given back by its destructor. */
        static thread_local struct handler_stack {
            void *memory = nullptr;
            ~handler_stack()
            {
                stack_t off = {};
                off.ss_flags = SS_DISABLE;
                sigaltstack(&off, nullptr);
                free(memory);
            }
        } mine;
        mine.memory = malloc(handler_stack_bytes);
        stack_t s = {};
        s.ss_sp = mine.memory;
        s.ss_size = handler_stack_bytes;
        if (mine.memory != nullptr)
            sigaltstack(&s, nullptr);
    }
}

#else

/* The sanitizers handle faults themselves; what they do not know is said when the program dies. */
static void last_words()
{
#if SIM_ASAN
    if (self != nullptr)
        assay_sim_report("illegal address", WHERE "the address sanitizer's report is above",
                         WHERE_ARGS(*self, threadIdx, self->looping ? 0 : self->fibers[self->current].line));
#endif
}

void faults_watch()
{
    static std::once_flag once;
    std::call_once(once, [] {
#if SIM_ASAN
        __sanitizer_set_death_callback(last_words);
#else
        (void)last_words;
#endif
    });
}

#endif

} /* namespace sim */
