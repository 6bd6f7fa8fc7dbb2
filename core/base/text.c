/* Text from outside on its way to reports and terminals. */
#include "core/base/text.h"

#include <stdbool.h>
#include <string.h>

size_t assay_utf8_next(const char *text, uint32_t *point)
{
    static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000};
    const unsigned char *s = (const unsigned char *)text;
    const size_t n = s[0] < 0x80   ? 1
                     : s[0] < 0xC0 ? 0
                     : s[0] < 0xE0 ? 2
                     : s[0] < 0xF0 ? 3
                     : s[0] < 0xF8 ? 4
                                   : 0;
    uint32_t p = n == 1 ? s[0] : n == 2 ? s[0] & 0x1Fu : n == 3 ? s[0] & 0x0Fu : s[0] & 0x07u;
    for (size_t i = 1; i < n; i++) {
        if ((s[i] & 0xC0) != 0x80)
            return 0; /* the NUL at the end, too */
        p = p << 6 | (s[i] & 0x3Fu);
    }
    if (n == 0 || p < least[n] || p > 0x10FFFF || (p >= 0xD800 && p <= 0xDFFF))
        return 0;
    *point = p;
    return n;
}

/* Control characters (escape sequences of a terminal begin with one) and what XML forbids. */
static bool is_plain(uint32_t point)
{
    return point >= 0x20 && !(point >= 0x7f && point < 0xa0) && (point & 0xfffe) != 0xfffe &&
           !(point >= 0x202a && point <= 0x202e) && !(point >= 0x2066 && point <= 0x2069);
}

void assay_clean_text(char *text)
{
    while (*text >= ' ' && *text <= '~') /* nearly every text, to its end */
        text++;
    char *to = text;
    for (const char *from = text; *from != 0;) {
        uint32_t point = 0;
        const size_t n = assay_utf8_next(from, &point);
        if (n == 0 || !is_plain(point)) {
            *to++ = '?';
            from += n > 0 ? n : 1;
            continue;
        }
        memmove(to, from, n);
        to += n;
        from += n;
    }
    *to = 0;
}

size_t assay_copy_text(char *out, size_t capacity, const char *text)
{
    const size_t n = strnlen(text, capacity - 1);
    memcpy(out, text, n);
    out[n] = '\0';
    return n;
}
