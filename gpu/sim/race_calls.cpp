/* What code compiled with -fsanitize=thread calls: our own functions of these names, not the thread sanitizer's library, whose
 * happens-before knows neither blocks nor scopes.  The linker must not be given -fsanitize=thread.
 *
 * Volatile accesses (told apart by --param tsan-distinguish-volatile=1, clang: -mllvm -tsan-distinguish-volatile=1) are what
 * CUDA's memory model has them be: relaxed atomics of the widest scope. */
#include "race_order.hpp"

#include <link.h>

namespace sim
{

namespace
{

__thread int scope_now = SCOPE_DEVICE;

struct span {
    uintptr_t from, to;
};
/* Where the plain __shared__ arrays of this thread of the operating system lie. */
__thread std::vector<span> *thread_local_spans;

int add_span(struct dl_phdr_info *info, size_t, void *)
{
    for (int i = 0; i < info->dlpi_phnum; ++i) {
        const uintptr_t at = reinterpret_cast<uintptr_t>(info->dlpi_tls_data);
        if (info->dlpi_phdr[i].p_type == PT_TLS && at != 0)
            thread_local_spans->push_back(span{at, at + info->dlpi_phdr[i].p_memsz});
    }
    return 0;
}

bool is_shared(const worker &w, uintptr_t p)
{
    for (const shared_array &a : w.arrays) {
        if (p >= reinterpret_cast<uintptr_t>(a.region.raw) &&
            p < reinterpret_cast<uintptr_t>(a.region.raw) + a.region.raw_bytes)
            return true;
    }
    for (const span &s : *thread_local_spans) {
        if (p >= s.from && p < s.to)
            return true;
    }
    return false;
}

/* What a loop over threads writes between them. */
bool built_in(uintptr_t p)
{
    for (const uint3 *v : {&threadIdx, &blockIdx, &blockDim, &gridDim}) {
        if (p - reinterpret_cast<uintptr_t>(v) < sizeof *v)
            return true;
    }
    return false;
}

bool within(const stack *s, uintptr_t p)
{
    const uintptr_t base = reinterpret_cast<uintptr_t>(s->base);
    return p >= base && p - base < s->bytes;
}

/* A function of a whole warp reads and writes the stacks of all its lanes, which wait for it. */
bool on_stack(const worker &w, uintptr_t p)
{
    if (within(w.looping ? w.busy.back() : w.fibers[w.current].on, p))
        return true;
    const unsigned from = w.current / lanes * lanes;
    for (unsigned i = from; !w.looping && w.warps[w.current / lanes].calling && i < from + lanes; ++i) {
        if (within(w.fibers[i].on, p))
            return true;
    }
    return false;
}

enum how { PLAIN, VOLATILE, ATOMIC };

inline __attribute__((always_inline)) void access(const volatile void *ptr, size_t bytes, size_t align,
                                                  bool read, bool write, how kind, const void *pc)
{
    const void *p = const_cast<const void *>(ptr);
    const uintptr_t at = reinterpret_cast<uintptr_t>(p);
    worker *w = self;
    if (w == nullptr) {
        race_host_check(p, bytes, write, pc);
        return;
    }
    if (on_stack(*w, at) || built_in(at))
        return;
    if (at % align != 0)
        race_misaligned(*w, p, align, write, pc);
    if (kind != PLAIN && read)
        meeting_poll(*w);
    const bool shared = is_shared(*w, at);
    race_access now = race_now(*w, write, pc);
    now.atomic = kind != PLAIN;
    now.scope = kind == VOLATILE ? SCOPE_DEVICE : static_cast<race_scope>(scope_now);
    if (kind != PLAIN)
        race_atomic(*w, at, read, write, now.scope);
    race_check(*w, p, bytes, now, shared);
    for (int writes = 0; writes < 2 && !shared; ++writes) {
        if (writes != 0 ? write : read)
            race_traffic(*w, now.thread, p, bytes, writes != 0, pc);
    }
}

} /* namespace */

void race_touch(worker &, const void *p, size_t bytes, bool write, const void *pc)
{
    if (bytes != 0)
        access(p, bytes, 1, !write, write, PLAIN, pc);
}

void race_thread()
{
    static thread_local std::vector<span> spans;
    thread_local_spans = &spans;
    spans.clear();
    dl_iterate_phdr(add_span, nullptr);
}

} /* namespace sim */

using namespace sim;

#define CALLER __builtin_return_address(0)

extern "C" {

int assay_sim_scope(int scope)
{
    const int before = scope_now;
    scope_now = scope == 0 ? SCOPE_BLOCK : SCOPE_DEVICE;
    return before;
}

void assay_sim_fence(int scope)
{
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
    if (self != nullptr)
        race_fence(*self, scope == 0 ? SCOPE_BLOCK : SCOPE_DEVICE);
}

void __tsan_init(void);
void __tsan_init(void)
{
}
void __tsan_func_entry(void *);
void __tsan_func_entry(void *)
{
}
void __tsan_func_exit(void);
void __tsan_func_exit(void)
{
}
void __tsan_vptr_update(void **, void *);
void __tsan_vptr_update(void **, void *)
{
}
void __tsan_vptr_read(void **);
void __tsan_vptr_read(void **)
{
}

#define ACCESS(name, bytes, align, read, write, kind)                                                        \
    void name(void *p);                                                                                      \
    void name(void *p)                                                                                       \
    {                                                                                                        \
        access(p, bytes, align, read, write, kind, CALLER);                                                  \
    }
#define ACCESSES(bytes)                                                                                      \
    ACCESS(__tsan_read##bytes, bytes, bytes, true, false, PLAIN)                                             \
    ACCESS(__tsan_write##bytes, bytes, bytes, false, true, PLAIN)                                            \
    ACCESS(__tsan_read_write##bytes, bytes, bytes, true, true, PLAIN)                                        \
    ACCESS(__tsan_volatile_read##bytes, bytes, bytes, true, false, VOLATILE)                                 \
    ACCESS(__tsan_volatile_write##bytes, bytes, bytes, false, true, VOLATILE)                                \
    ACCESS(__tsan_unaligned_read##bytes, bytes, 1, true, false, PLAIN)                                       \
    ACCESS(__tsan_unaligned_write##bytes, bytes, 1, false, true, PLAIN)                                      \
    ACCESS(__tsan_unaligned_read_write##bytes, bytes, 1, true, true, PLAIN)                                  \
    ACCESS(__tsan_unaligned_volatile_read##bytes, bytes, 1, true, false, VOLATILE)                           \
    ACCESS(__tsan_unaligned_volatile_write##bytes, bytes, 1, false, true, VOLATILE)
ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)

/* -fsanitize=alignment calls this where a pointer that is followed does not have its type's alignment: a float4, or the two halves of a
 * __nv_bfloat162, which the accesses above have as halves by the time that they are made.  The members are GCC's. */
struct type_mismatch {
    const char *file;
    uint32_t line, column;
    const void *type;
    unsigned char log_align, kind; /* 1: a store */
};
void __ubsan_handle_type_mismatch_v1(const type_mismatch *data, const void *p);
void __ubsan_handle_type_mismatch_v1(const type_mismatch *data, const void *p)
{
    const uintptr_t at = reinterpret_cast<uintptr_t>(p);
    const size_t align = static_cast<size_t>(1) << data->log_align;
    if (self != nullptr && at % align != 0 && !on_stack(*self, at) && !built_in(at))
        race_misaligned(*self, p, align, data->kind == 1, CALLER);
}

void __tsan_read_range(void *p, size_t bytes);
void __tsan_read_range(void *p, size_t bytes)
{
    if (bytes != 0)
        access(p, bytes, 1, true, false, PLAIN, CALLER);
}
void __tsan_write_range(void *p, size_t bytes);
void __tsan_write_range(void *p, size_t bytes)
{
    if (bytes != 0)
        access(p, bytes, 1, false, true, PLAIN, CALLER);
}

/* Orders that C++ gives an atomic are fences beside it. */
static void before_atomic(int order)
{
    if (self != nullptr &&
        (order == __ATOMIC_RELEASE || order == __ATOMIC_ACQ_REL || order == __ATOMIC_SEQ_CST))
        race_fence(*self, static_cast<race_scope>(scope_now));
}
static void after_atomic(int order)
{
    if (self != nullptr && order != __ATOMIC_RELAXED && order != __ATOMIC_RELEASE)
        race_fence(*self, static_cast<race_scope>(scope_now));
}

#define UPDATE(bits, type, name)                                                                             \
    type __tsan_atomic##bits##_##name(volatile type *p, type v, int order);                                  \
    type __tsan_atomic##bits##_##name(volatile type *p, type v, int order)                                   \
    {                                                                                                        \
        before_atomic(order);                                                                                \
        access(p, sizeof(type), sizeof(type), true, true, ATOMIC, CALLER);                                   \
        const type old = __atomic_##name(p, v, __ATOMIC_SEQ_CST);                                            \
        after_atomic(order);                                                                                 \
        return old;                                                                                          \
    }
#define EXCHANGE(bits, type, name)                                                                           \
    int __tsan_atomic##bits##_compare_exchange_##name(volatile type *p, type *expected, type v, int order,   \
                                                      int failed);                                           \
    int __tsan_atomic##bits##_compare_exchange_##name(volatile type *p, type *expected, type v, int order,   \
                                                      int failed)                                            \
    {                                                                                                        \
        (void)failed;                                                                                        \
        before_atomic(order);                                                                                \
        const bool match = __atomic_load_n(p, __ATOMIC_RELAXED) == *expected;                                \
        access(p, sizeof(type), sizeof(type), true, match, ATOMIC, CALLER);                                  \
        const bool done =                                                                                    \
            __atomic_compare_exchange_n(p, expected, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);          \
        after_atomic(order);                                                                                 \
        return done;                                                                                         \
    }
#define ATOMICS(bits, type)                                                                                  \
    type __tsan_atomic##bits##_load(const volatile type *p, int order);                                      \
    type __tsan_atomic##bits##_load(const volatile type *p, int order)                                       \
    {                                                                                                        \
        access(p, sizeof(type), sizeof(type), true, false, ATOMIC, CALLER);                                  \
        const type v = __atomic_load_n(p, __ATOMIC_SEQ_CST);                                                 \
        after_atomic(order);                                                                                 \
        return v;                                                                                            \
    }                                                                                                        \
    void __tsan_atomic##bits##_store(volatile type *p, type v, int order);                                   \
    void __tsan_atomic##bits##_store(volatile type *p, type v, int order)                                    \
    {                                                                                                        \
        before_atomic(order);                                                                                \
        access(p, sizeof(type), sizeof(type), false, true, ATOMIC, CALLER);                                  \
        __atomic_store_n(p, v, __ATOMIC_SEQ_CST);                                                            \
    }                                                                                                        \
    UPDATE(bits, type, fetch_add)                                                                            \
    UPDATE(bits, type, fetch_sub)                                                                            \
    UPDATE(bits, type, fetch_and)                                                                            \
    UPDATE(bits, type, fetch_or)                                                                             \
    UPDATE(bits, type, fetch_xor)                                                                            \
    UPDATE(bits, type, fetch_nand)                                                                           \
    type __tsan_atomic##bits##_exchange(volatile type *p, type v, int order);                                \
    type __tsan_atomic##bits##_exchange(volatile type *p, type v, int order)                                 \
    {                                                                                                        \
        before_atomic(order);                                                                                \
        access(p, sizeof(type), sizeof(type), true, true, ATOMIC, CALLER);                                   \
        const type old = __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST);                                        \
        after_atomic(order);                                                                                 \
        return old;                                                                                          \
    }                                                                                                        \
    EXCHANGE(bits, type, strong)                                                                             \
    EXCHANGE(bits, type, weak)                                                                               \
    type __tsan_atomic##bits##_compare_exchange_val(volatile type *p, type expected, type v, int order,      \
                                                    int failed);                                             \
    type __tsan_atomic##bits##_compare_exchange_val(volatile type *p, type expected, type v, int order,      \
                                                    int failed)                                              \
    {                                                                                                        \
        (void)failed;                                                                                        \
        before_atomic(order);                                                                                \
        access(p, sizeof(type), sizeof(type), true, __atomic_load_n(p, __ATOMIC_RELAXED) == expected,        \
               ATOMIC, CALLER);                                                                              \
        __atomic_compare_exchange_n(p, &expected, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);             \
        after_atomic(order);                                                                                 \
        return expected;                                                                                     \
    }
ATOMICS(8, char)
ATOMICS(16, short)
ATOMICS(32, int)
ATOMICS(64, long)

void __tsan_atomic_thread_fence(int order);
void __tsan_atomic_thread_fence(int order)
{
    if (order != __ATOMIC_RELAXED)
        assay_sim_fence(scope_now);
}
void __tsan_atomic_signal_fence(int);
void __tsan_atomic_signal_fence(int)
{
}

} /* extern "C" */
