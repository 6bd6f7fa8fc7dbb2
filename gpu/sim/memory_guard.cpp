/* The pattern in front of and behind a block, and whether it is still there. */
#include "sim.hpp"

#include <string.h>

namespace sim
{

/* A guard is made so that what a kernel reads from it is a NaN, that what it writes back after computing with it has other
 * bits (arithmetic quiets a signalling NaN, conversions to 16 bits make 0x7FFF of every NaN), and that a plain copy from one
 * block's guard into another's has other bits too: the `serial` of the block is in every element.  In each aligned group of
 * 8 bytes the 16-bit halves are 0xFF81..0xFFBF, a signalling NaN in bf16 and a NaN in fp16; the first word is a signalling
 * NaN in fp32; the last half is 0xFFF1..0xFFF7, which makes the group a signalling NaN in fp64.  A guard that does not begin
 * at a multiple of 8 begins with the widest elements that may begin there, and the group that ends where a block begins has
 * two fp32 words, because no group is a signalling NaN in both widths.  Shared arrays have the same with the sign clear. */
static unsigned char salted(uint64_t serial, unsigned modulus)
{
    return static_cast<unsigned char>(0x81 + serial % modulus);
}

static uint64_t guard_group(uint64_t serial, bool before)
{
    const uint64_t last = before ? salted(serial, 58) : 0xf1 + serial % 7;
    return (serial & guard_of_shared ? 0x7f007f007f007f00ull : 0xff00ff00ff00ff00ull) | salted(serial, 63) |
           static_cast<uint64_t>(salted(serial, 61)) << 16 | static_cast<uint64_t>(salted(serial, 59)) << 32 |
           last << 48;
}

/* Bytes of the guard in front of its first aligned group: one odd byte, one half and one word at most. */
static size_t guard_head(const unsigned char *p, size_t bytes, uint64_t serial, unsigned char head[8])
{
    const uint64_t group = guard_group(serial, false);
    const uintptr_t at = reinterpret_cast<uintptr_t>(p);
    size_t n = 0;
    if (at & 1) {
        head[n++] = salted(serial, 62);
    }
    if ((at + n) & 2) {
        memcpy(head + n, &group, 2);
        n += 2;
    }
    if ((at + n) & 4) {
        memcpy(head + n, &group, 4);
        n += 4;
    }
    return n < bytes ? n : bytes;
}

void memory_fill_guard(unsigned char *p, size_t bytes, uint64_t serial)
{
    unsigned char head[8];
    const uint64_t group = guard_group(serial, false);
    size_t i = guard_head(p, bytes, serial, head);
    memcpy(p, head, i);
    for (; i < bytes; i += 8) {
        memcpy(p + i, &group, bytes - i < 8 ? bytes - i : 8);
    }
}

/* The same without a place, and without a branch for each group: this is run for every block after every kernel. */
static bool groups_intact(const unsigned char *p, size_t bytes, uint64_t group)
{
    uint64_t word, damage = 0;
    size_t i = 0;
    for (; i + 8 <= bytes; i += 8) {
        memcpy(&word, p + i, 8);
        damage |= word ^ group;
    }
    for (size_t k = 0; i + k < bytes; ++k) {
        damage |= p[i + k] ^ (group >> (8 * k) & 0xff);
    }
    return damage == 0;
}

bool memory_guard_intact(const unsigned char *p, size_t bytes, uint64_t serial, size_t *at)
{
    unsigned char expected[8];
    const uint64_t group = guard_group(serial, false);
    if (bytes == 0 || (reinterpret_cast<uintptr_t>(p) % 8 == 0 && groups_intact(p, bytes, group))) {
        return true;
    }
    const size_t head = guard_head(p, bytes, serial, expected);
    for (size_t i = 0; i < bytes; ++i) {
        const unsigned char want =
            i < head ? expected[i] : static_cast<unsigned char>(group >> (8 * ((i - head) % 8)));
        if (p[i] != want) {
            *at = i;
            return false;
        }
    }
    return true;
}

/* The guard of `bytes` bytes that ends at p; both are multiples of 8. */
void memory_fill_guard_before(unsigned char *p, size_t bytes, uint64_t serial)
{
    for (size_t back = bytes; back >= 8; back -= 8) {
        const uint64_t group = guard_group(serial, back == 8);
        memcpy(p - back, &group, 8);
    }
}

typedef uint64_t two_groups __attribute__((vector_size(16)));

/* *back: how many bytes before p the damage in the nearest group begins. */
bool memory_guard_before_intact(const unsigned char *p, size_t bytes, uint64_t serial, size_t *back)
{
    const uint64_t group = guard_group(serial, false);
    const two_groups both = {group, group};
    two_groups part[4], changes = {0, 0};
    uint64_t word, damage = 0;
    size_t b = bytes;
    for (; b >= 72; b -= 64) { /* without a branch for each group: this is run after every kernel */
        memcpy(part, p - b, sizeof part);
        changes |= (part[0] ^ both) | (part[1] ^ both) | (part[2] ^ both) | (part[3] ^ both);
    }
    damage = changes[0] | changes[1];
    for (; b > 8; b -= 8) {
        memcpy(&word, p - b, 8);
        damage |= word ^ group;
    }
    if (b == 8) {
        memcpy(&word, p - 8, 8);
        damage |= word ^ guard_group(serial, true);
    }
    for (b = 8; damage != 0 && b <= bytes; b += 8) {
        memcpy(&word, p - b, 8);
        const uint64_t changed = word ^ guard_group(serial, b == 8);
        if (changed != 0) {
            *back = b - static_cast<size_t>(__builtin_ctzll(changed)) / 8;
            return false;
        }
    }
    return true;
}

} /* namespace sim */
