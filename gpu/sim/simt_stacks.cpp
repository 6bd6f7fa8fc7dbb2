/* Stacks of a block's threads: made when first needed, kept for the life of the process. */
#include "sim.hpp"
#include "simt.hpp"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#if SIM_TSAN
#include <sanitizer/tsan_interface.h>
#endif

namespace sim
{

/* Pages in which an access is a segmentation fault.  Linux 6.13 has them without a mapping of their own: 1,024 stacks are then 16
 * mappings instead of 2,048, and processes that live for milliseconds spend a good part of them on mappings. */
static bool guard_page(void *p, size_t page)
{
    enum { guard_install = 102 }; /* MADV_GUARD_INSTALL; older headers do not have it */
    return madvise(p, page, guard_install) == 0 || mprotect(p, page, PROT_NONE) == 0;
}

/* The next stack's bytes, of which the lowest page is its guard. */
static char *stack_memory(worker &w, size_t bytes, size_t page)
{
    const size_t together = 64;
    if (w.stacks_left == 0) {
        void *p = mmap(nullptr, together * bytes, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
        w.stacks_at = p == MAP_FAILED ? nullptr : static_cast<char *>(p);
        w.stacks_left = together;
    }
    char *p = w.stacks_at;
    if (p == nullptr || !guard_page(p, page)) {
        assay_sim_report("fatal", "no memory for the stack of thread %zu of a block (%zu bytes)",
                         w.stacks_made, bytes);
        abort();
    }
    w.stacks_at += bytes;
    --w.stacks_left;
    return p;
}

stack *stack_take(worker &w)
{
    stack *s;
    if (!w.idle.empty()) {
        s = w.idle.back();
        w.idle.pop_back();
    } else {
        const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
        const size_t bytes = (config().stack_bytes + page - 1) / page * page + 2 * page;
        char *p = stack_memory(w, bytes, page);
        s = new stack{};
        s->base = p + page;
        s->bytes = bytes - page;
        s->top = s->base + s->bytes - (w.stacks_made * 192) % page;
#if SIM_TSAN
        s->tsan = __tsan_create_fiber(0);
#endif
        ++w.stacks_made;
    }
    w.busy.push_back(s);
    return s;
}

/* All stacks are idle again after a block, finished or abandoned.  What a function has poisoned around its variables it clears when it
 * returns: of threads that have all ended, only the frames between a stack's top and the last jump are left.  The shadow of a whole
 * stack is 8 KiB, a third of what a step took under the address sanitizer. */
void stacks_reclaim(worker &w)
{
    const ptrdiff_t last_frames = 2048;
    const bool ended = !w.looping && !w.failed && !w.hurt_block && w.exited == w.n;
    for (stack *s : w.busy) {
        char *low = ended ? s->top - last_frames : s->base;
        memory_asan_unpoison(low, static_cast<size_t>(s->base + s->bytes - low));
        w.idle.push_back(s);
    }
    w.busy.clear();
}

} /* namespace sim */
