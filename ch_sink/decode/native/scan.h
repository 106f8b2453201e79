/* What the C files share: the cells of scanned values, and how texts are compared and written. */

#ifndef CH_SINK_SCAN_H
#define CH_SINK_SCAN_H

#include <stdint.h>
#include <string.h>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

enum { NUL, FALSE_, TRUE_, INTEGER, NUMBER, TEXT, ESCAPED, OBJECT, ARRAY };

typedef struct {
    int64_t number; /* of an INTEGER */
    uint32_t start;
    uint32_t sized; /* length << 4 | kind; quotes count */
} Cell;

#define KIND(cell) ((cell)->sized & 15)
#define SIZE(cell) ((cell)->sized >> 4)

typedef const uint8_t *Place; /* NULL: refused */

/* Which records count: all, or those of a mask. The others' values are null, but must be right. */
typedef const uint8_t *Mask;
#define COUNTS(i) (!kept || kept[i])

static inline uint64_t word(Place at) {
    uint64_t found;
    memcpy(&found, at, 8);
    return found;
}

static inline uint32_t half(Place at) {
    uint32_t found;
    memcpy(&found, at, 4);
    return found;
}

static inline int follows(Place at, Place end, Place text, uint32_t size) {
    if ((uint64_t)(end - at) < size) return 0;
    if (size >= 8) {
        for (uint32_t i = 0; i + 8 < size; i += 8)
            if (word(at + i) != word(text + i)) return 0;
        return word(at + size - 8) == word(text + size - 8);
    }
    if (size >= 4) return half(at) == half(text) && half(at + size - 4) == half(text + size - 4);
    while (size--)
        if (*at++ != *text++) return 0;
    return 1;
}

/* Values of hexadecimal digits, 1 more than they are; 0 for what is none. */
static const uint8_t HEX[256] = {
    ['0'] = 1, ['1'] = 2, ['2'] = 3, ['3'] = 4, ['4'] = 5, ['5'] = 6, ['6'] = 7, ['7'] = 8, ['8'] = 9, ['9'] = 10,
    ['a'] = 11, ['b'] = 12, ['c'] = 13, ['d'] = 14, ['e'] = 15, ['f'] = 16, ['A'] = 11, ['B'] = 12, ['C'] = 13,
    ['D'] = 14, ['E'] = 15, ['F'] = 16,
};

/* Values of base64 digits, 1 more than they are; 0 for what is none. */
static const uint8_t SIX[256] = {
    ['A'] = 1, ['B'] = 2, ['C'] = 3, ['D'] = 4, ['E'] = 5, ['F'] = 6, ['G'] = 7, ['H'] = 8, ['I'] = 9, ['J'] = 10,
    ['K'] = 11, ['L'] = 12, ['M'] = 13, ['N'] = 14, ['O'] = 15, ['P'] = 16, ['Q'] = 17, ['R'] = 18, ['S'] = 19,
    ['T'] = 20, ['U'] = 21, ['V'] = 22, ['W'] = 23, ['X'] = 24, ['Y'] = 25, ['Z'] = 26, ['a'] = 27, ['b'] = 28,
    ['c'] = 29, ['d'] = 30, ['e'] = 31, ['f'] = 32, ['g'] = 33, ['h'] = 34, ['i'] = 35, ['j'] = 36, ['k'] = 37,
    ['l'] = 38, ['m'] = 39, ['n'] = 40, ['o'] = 41, ['p'] = 42, ['q'] = 43, ['r'] = 44, ['s'] = 45, ['t'] = 46,
    ['u'] = 47, ['v'] = 48, ['w'] = 49, ['x'] = 50, ['y'] = 51, ['z'] = 52, ['0'] = 53, ['1'] = 54, ['2'] = 55,
    ['3'] = 56, ['4'] = 57, ['5'] = 58, ['6'] = 59, ['7'] = 60, ['8'] = 61, ['9'] = 62, ['+'] = 63, ['/'] = 64,
};

static inline int hex4(Place at) {
    int value = 0;
    for (int i = 0; i < 4; i++) {
        if (!HEX[at[i]]) return -1;
        value = value << 4 | (HEX[at[i]] - 1);
    }
    return value;
}

/* A character as UTF-8. */
static inline uint8_t *put(uint8_t *out, uint32_t code) {
    if (code < 0x80) {
        *out++ = (uint8_t)code;
    } else if (code < 0x800) {
        *out++ = (uint8_t)(0xC0 | code >> 6);
        *out++ = (uint8_t)(0x80 | (code & 63));
    } else if (code < 0x10000) {
        *out++ = (uint8_t)(0xE0 | code >> 12);
        *out++ = (uint8_t)(0x80 | (code >> 6 & 63));
        *out++ = (uint8_t)(0x80 | (code & 63));
    } else {
        *out++ = (uint8_t)(0xF0 | code >> 18);
        *out++ = (uint8_t)(0x80 | (code >> 12 & 63));
        *out++ = (uint8_t)(0x80 | (code >> 6 & 63));
        *out++ = (uint8_t)(0x80 | (code & 63));
    }
    return out;
}

/* Of a string that was found to be right: its text takes no more bytes than it does itself, and ``out`` has room for as
   many as are left to read. */
static inline uint8_t *unescaped(Place at, Place end, uint8_t *out) {
    for (;;) {
#if defined(__SSE2__)
        while (end - at >= 16) {
            __m128i found = _mm_loadu_si128((const __m128i *)at);
            _mm_storeu_si128((__m128i *)out, found);
            int mask = _mm_movemask_epi8(_mm_cmpeq_epi8(found, _mm_set1_epi8('\\')));
            int run = mask ? __builtin_ctz((unsigned)mask) : 16;
            at += run;
            out += run;
            if (mask) break;
        }
#endif
        while (at < end && *at != '\\') *out++ = *at++;
        if (at >= end) return out;
        uint8_t c = at[1];
        at += 2;
        if (c != 'u') {
            *out++ = c == 'b' ? '\b' : c == 'f' ? '\f' : c == 'n' ? '\n' : c == 'r' ? '\r' : c == 't' ? '\t' : c;
            continue;
        }
        uint32_t code = (uint32_t)hex4(at);
        at += 4;
        if (code >= 0xD800 && code < 0xE000) {
            code = 0x10000 + ((code - 0xD800) << 10) + ((uint32_t)hex4(at + 2) - 0xDC00);
            at += 6;
        }
        out = put(out, code);
    }
}

#endif
