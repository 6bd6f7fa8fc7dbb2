/* The jump from one stack to another.  On x86-64 it saves what a call preserves and nothing else: the floating-point control
 * words, which Boost.Context's jump saves as well, are the same for all threads of a block.  It is left by `ret` and has one
 * caller for each kind of wait, so that the processor predicts where threads that wait at one place go on.  Elsewhere it is
 * Boost.Context's assembly (Oliver Kowalke). */
#include "simt.hpp"

#include <stdint.h>
#include <string.h>

#if defined(__x86_64__)

__asm__(".text\n"
        ".p2align 4\n"
        ".globl assay_sim_switch\n"
        ".hidden assay_sim_switch\n"
        ".type assay_sim_switch, @function\n"
        "assay_sim_switch:\n"
        "    .cfi_startproc\n"
        "    pushq %rbp\n"
        "    pushq %rbx\n"
        "    pushq %r12\n"
        "    pushq %r13\n"
        "    pushq %r14\n"
        "    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n"
        "    popq %r14\n"
        "    popq %r13\n"
        "    popq %r12\n"
        "    popq %rbx\n"
        "    popq %rbp\n"
        "    ret\n"
        "    .cfi_endproc\n"
        ".size assay_sim_switch, . - assay_sim_switch\n");

namespace sim
{

/* Six registers, the entry, and a return address of 0, where an unwinder stops; at the entry the stack is aligned as after a
 * call. */
stop_point stop_make(char *top, size_t, void (*entry)())
{
    const uintptr_t end = reinterpret_cast<uintptr_t>(top) & ~static_cast<uintptr_t>(15);
    void **at = reinterpret_cast<void **>(end) - 8;
    memset(at, 0, 8 * sizeof *at);
    at[6] = reinterpret_cast<void *>(entry);
    return at;
}

} /* namespace sim */

#else

#include <boost/context/detail/fcontext.hpp>

namespace sim
{

using boost::context::detail::jump_fcontext;
using boost::context::detail::make_fcontext;
using boost::context::detail::transfer_t;

static __thread void (*entry_of_next)();

static void arrive(transfer_t from)
{
    *static_cast<stop_point *>(from.data) = from.fctx;
}

static void entry_of_boost(transfer_t from)
{
    arrive(from);
    entry_of_next();
}

stop_point stop_make(char *top, size_t bytes, void (*entry)())
{
    entry_of_next = entry; /* every stack of one launch begins at the same one */
    return make_fcontext(top, bytes, entry_of_boost);
}

void assay_sim_switch(stop_point *save, stop_point to)
{
    arrive(jump_fcontext(to, save));
}

} /* namespace sim */

#endif
