/* By which calls a thread has come to a barrier: two threads that meet at one line through two calls of a helper have
 * diverged as much as two that meet at two lines.
 *
 * A path is the return addresses from the barrier up to the kernel.  Where in a frame the caller's return address lies is
 * learned from the unwinder once for each address and remembered, so that a path costs some nanoseconds.  A compiler may
 * copy one call of the source into two places; paths that differ are therefore compared as source lines, which need debug
 * information and addr2line.  Without them, paths that differ in addresses alone count as one. */
#include "simt.hpp"

#include <map>
#include <mutex>
#include <set>
#include <unwind.h>

namespace sim
{

#if defined(__x86_64__)

struct frames {
    int n;
    const void *pc[32];
    uintptr_t stack[32]; /* the stack pointer of the function at pc, when its callee has returned */
};

static _Unwind_Reason_Code note_frame(struct _Unwind_Context *context, void *arg)
{
    frames *f = static_cast<frames *>(arg);
    if (f->n == 32 || _Unwind_GetIP(context) == 0) /* above a thread's first function there is nothing */
        return _URC_END_OF_STACK;
    f->pc[f->n] = reinterpret_cast<const void *>(_Unwind_GetIP(context));
    f->stack[f->n++] = _Unwind_GetCFA(context);
    return _URC_NO_REASON;
}

static frame_step &step_of(worker &w, const void *pc)
{
    return w.steps[reinterpret_cast<uintptr_t>(pc) * 0x9e3779b97f4a7c15ull >> (64 - frame_step_bits)];
}

static const void *function_of(const void *pc)
{
    return _Unwind_FindEnclosingFunction(const_cast<char *>(static_cast<const char *>(pc) - 1));
}

/* The step from pc, and into the table those of every frame above it, up to the kernel's. */
static long learn(worker &w, const void *pc, uintptr_t stack)
{
    frames f = {};
    _Unwind_Backtrace(note_frame, &f);
    long asked = -1;
    int first = 0;
    while (first < f.n && (f.pc[first] != pc || f.stack[first] != stack))
        ++first;
    if (first + 1 >= f.n)
        step_of(w, pc) = frame_step{pc, -1}; /* the unwinder does not know it: not asked again */
    for (int k = first; k + 1 < f.n; ++k) {
        const void *function = function_of(f.pc[k]);
        const uintptr_t slot = f.stack[k + 1] - sizeof(void *);
        const bool top = function == nullptr || function == w.call->func || slot < f.stack[k] ||
                         *reinterpret_cast<const void *const *>(slot) != f.pc[k + 1];
        const long step = top ? -1 : static_cast<long>(slot - f.stack[k]);
        asked = k == first ? step : asked;
        step_of(w, f.pc[k]) = frame_step{f.pc[k], step};
        if (top)
            break;
    }
    return asked;
}

#if defined(__clang__) || defined(__GNUC__)
__attribute__((no_sanitize("address")))
#endif
void path_from(worker &w, const void *pc, const void *stack, call_path *path)
{
    uintptr_t at = reinterpret_cast<uintptr_t>(stack);
    path->n = 0;
    for (;;) {
        path->pc[path->n++] = pc;
        if (!w.callers) /* nobody asks by which calls */
            return;
        const frame_step known = step_of(w, pc); /* by value: another address may take the slot */
        const long step = known.pc == pc ? known.step : learn(w, pc, at);
        if (step < 0 || path->n == call_path::longest)
            return;
        const uintptr_t slot = at + static_cast<uintptr_t>(step);
        pc = *reinterpret_cast<const void *const *>(slot);
        at = slot + sizeof(void *);
    }
}

#else

void path_from(worker &, const void *pc, const void *, call_path *path)
{
    path->pc[0] = pc;
    path->n = 1;
}

#endif

/* Of calls, not of what follows them.  Each is asked for once. */
static std::vector<std::string> lines_of_calls(const std::vector<const void *> &pcs)
{
    static std::mutex lock;
    static std::map<const void *, std::string> *known = new std::map<const void *, std::string>;
    std::lock_guard<std::mutex> hold(lock);
    std::vector<const void *> unknown, calls;
    for (const void *pc : pcs) {
        if (known->emplace(pc, "").second) {
            unknown.push_back(pc);
            calls.push_back(static_cast<const char *>(pc) - 1);
        }
    }
    const std::vector<std::string> answers = source_lines(calls);
    for (size_t i = 0; i < unknown.size(); ++i)
        (*known)[unknown[i]] = answers[i];
    std::vector<std::string> out;
    for (const void *pc : pcs)
        out.push_back((*known)[pc]);
    return out;
}

std::string path_text(const call_path &p)
{
    std::string out;
    for (const std::string &lines : lines_of_calls(std::vector<const void *>(p.pc, p.pc + p.n))) {
        if (lines.empty())
            return "";
        out += (out.empty() ? "" : " < ") + lines;
    }
    return out;
}

/* Asks the source, once for each pair of paths.  On its own: setting up a frame of this size costs more than the look at the last pair, and
 * under the address sanitizer it was a seventh of `assay certify` of a library. */
static __attribute__((noinline)) bool lines_differ(const call_path &a, const call_path &b)
{
    static std::mutex lock;
    static std::set<std::pair<std::vector<const void *>, std::vector<const void *>>> *alike =
        new std::set<std::pair<std::vector<const void *>, std::vector<const void *>>>;
    const std::pair<std::vector<const void *>, std::vector<const void *>> key = {
        std::vector<const void *>(a.pc, a.pc + a.n), std::vector<const void *>(b.pc, b.pc + b.n)};
    {
        std::lock_guard<std::mutex> hold(lock);
        if (alike->count(key) != 0)
            return false;
    }
    std::vector<const void *> differ;
    for (int k = 0; k < a.n && k < b.n; ++k) {
        if (a.pc[k] != b.pc[k])
            differ.insert(differ.end(), {a.pc[k], b.pc[k]});
    }
    const std::vector<std::string> lines = lines_of_calls(differ);
    for (size_t i = 0; i < lines.size(); i += 2) {
        if (!lines[i].empty() && !lines[i + 1].empty() && lines[i] != lines[i + 1])
            return true;
    }
    std::lock_guard<std::mutex> hold(lock);
    alike->insert(key);
    return false;
}

bool path_differs(const call_path &a, const call_path &b)
{
    if (!config().callers)
        return false;
    static __thread call_path last_a, last_b; /* alike: the threads of a block ask for one pair in a row */
    if (last_a.n > 0 && a == last_a && b == last_b)
        return false;
    if (lines_differ(a, b))
        return true;
    last_a = a;
    last_b = b;
    return false;
}

} /* namespace sim */
