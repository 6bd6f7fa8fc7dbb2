/* Text from outside on its way to reports and terminals. */
#include "parity/report/report_files.h"
#include <string.h>

/* Bytes of the UTF-8 sequence at s; 0: none, cut off, too long a form, a surrogate, or beyond U+10FFFF. */
static int sequence(const unsigned char *s, unsigned *point)
{
    static const unsigned char lead[] = {0, 0, 0xc0, 0xe0, 0xf0}, least[] = {0, 0, 0x1f, 0x0f, 0x07};
    static const unsigned smallest[] = {0, 0, 0x80, 0x800, 0x10000};
    if (s[0] < 0x80) {
        *point = s[0];
        return 1;
    }
    for (int n = 2; n <= 4; n++) {
        if ((s[0] & ~least[n] & 0xff) != lead[n])
            continue;
        *point = s[0] & least[n];
        for (int k = 1; k < n; k++) {
            if ((s[k] & 0xc0) != 0x80)
                return 0;
            *point = *point << 6 | (s[k] & 0x3f);
        }
        return *point >= smallest[n] && *point <= 0x10ffff && (*point < 0xd800 || *point > 0xdfff) ? n : 0;
    }
    return 0;
}

/* Control characters (escape sequences of a terminal begin with one) and what XML forbids. */
static bool is_plain(unsigned point)
{
    return point >= 0x20 && !(point >= 0x7f && point < 0xa0) && (point & 0xfffe) != 0xfffe &&
           !(point >= 0x202a && point <= 0x202e) && !(point >= 0x2066 && point <= 0x2069);
}

void parity_clean_text(char *text)
{
    unsigned char *to = (unsigned char *)text;
    for (const unsigned char *from = (const unsigned char *)text; *from != 0;) {
        unsigned point = 0;
        const int n = sequence(from, &point);
        if (n == 0 || !is_plain(point)) {
            *to++ = '?';
            from += n > 0 ? n : 1;
            continue;
        }
        memmove(to, from, (size_t)n);
        to += n;
        from += n;
    }
    *to = 0;
}
