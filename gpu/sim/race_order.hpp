/* What happened before what, and what the shadow of memory keeps of it: race_order.cpp, race_shadow.cpp, race_calls.cpp. */
#ifndef ASSAY_SIM_RACE_ORDER_HPP
#define ASSAY_SIM_RACE_ORDER_HPP

#include "race.hpp"
#include "simt.hpp"

namespace sim
{

enum race_scope : uint8_t { SCOPE_BLOCK, SCOPE_DEVICE };

/* One access: who, and when in its thread's own count. */
struct race_access {
    uint32_t launch; /* 0: none */
    uint32_t block;
    uint32_t when;
    uint16_t thread;
    bool write, atomic;
    race_scope scope;
    const void *pc;
};

struct race_launch {
    std::string name;
    uint64_t stream, piece;
    uint3 grid, dim;
    bool kernel;
};
const race_launch &race_launch_of(uint32_t launch);
uint32_t race_current(); /* 0: no work has run yet */
/* The access that the running thread makes now. */
race_access race_now(const worker &w, bool write, const void *pc);
/* Has it happened before what the running thread does now? */
bool race_before(const race_access &past);

/* What an atomic at p hands on (write) and takes up (read); fences make both count. */
void race_atomic(const worker &w, uintptr_t p, bool read, bool write, race_scope scope);
void race_fence(const worker &w, race_scope scope);

enum race_byte : uint8_t { BYTE_PLAIN, BYTE_UNWRITTEN, BYTE_GUARD, BYTE_COMING };

/* Checks an access of a kernel and remembers it. */
void race_check(worker &w, const void *p, size_t bytes, const race_access &now, bool shared);
[[noreturn]] void race_misaligned(worker &w, const void *p, size_t align, bool write, const void *pc);
/* Whether device memory lies there. */
bool race_device(uintptr_t at);
/* Counts what is moved between global memory and the chip (race_traffic.cpp). */
void race_traffic_block(const worker &w);
void race_traffic(const worker &w, unsigned thread, const void *p, size_t bytes, bool write, const void *pc);
void race_host_check(const void *p, size_t bytes, bool write, const void *pc);

} /* namespace sim */

#endif
