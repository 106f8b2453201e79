/* Scans records of machine-made JSON that all have the same keys in the same order.

   A program says which text comes next and what to do with the value after it. A record that does not follow it to the
   byte is refused, and whoever asked reads it in another way: nothing here decides what a record means. Every read is
   bounded by the end of its record. */

#include <stdlib.h>

#include "scan.h"

enum { NOTHING, SKIP, KEEP, OPEN, NONE };

#define DEEPEST 64
#define MOST_KNOWN 8

typedef struct {
    uint32_t text, size; /* what must come next, in the program's texts */
    uint32_t action;
    uint32_t slot;
    uint32_t slots; /* OPEN, NONE: how many slots its object has, its own included */
    uint32_t next;  /* OPEN, NONE: the step after the object */
} Step;

#if !defined(SOURCE)
#define SOURCE 0
#endif

/* Of which source this was made: a library of another one must not be used. */
uint32_t ch_source(void) { return SOURCE; }

/* After the backslash. A surrogate must have its other half. */
static Place escape(Place at, Place end) {
    if (at >= end) return NULL;
    if (*at != 'u') return *at && strchr("\"\\/bfnrt", *at) ? at + 1 : NULL;
    if (end - at < 5) return NULL;
    int first = hex4(at + 1);
    if (first < 0 || (first >= 0xDC00 && first < 0xE000)) return NULL;
    if (first < 0xD800 || first >= 0xE000) return at + 5;
    if (end - at < 11 || at[5] != '\\' || at[6] != 'u') return NULL;
    int second = hex4(at + 7);
    return second >= 0xDC00 && second < 0xE000 ? at + 11 : NULL;
}

/* A character of several bytes in UTF-8. */
static Place character(Place at, Place end) {
    int64_t room = end - at;
    uint8_t c = at[0];
    if (c < 0xC2 || room < 2 || (at[1] & 0xC0) != 0x80) return NULL;
    if (c < 0xE0) return at + 2;
    if (room < 3 || (at[2] & 0xC0) != 0x80) return NULL;
    if (c < 0xF0) {
        if ((c == 0xE0 && at[1] < 0xA0) || (c == 0xED && at[1] > 0x9F)) return NULL;
        return at + 3;
    }
    if (room < 4 || (at[3] & 0xC0) != 0x80 || c > 0xF4) return NULL;
    if ((c == 0xF0 && at[1] < 0x90) || (c == 0xF4 && at[1] > 0x8F)) return NULL;
    return at + 4;
}

/* Steps over ASCII without quotes, backslashes and control characters. */
static Place plain(Place at, Place end) {
#if defined(__SSE2__)
    const __m128i quote = _mm_set1_epi8('"'), slash = _mm_set1_epi8('\\'), space = _mm_set1_epi8(' ');
    while (end - at >= 16) {
        __m128i found = _mm_loadu_si128((const __m128i *)at);
        /* Compared as signed bytes, all above 127 are less than a space. */
        __m128i odd = _mm_or_si128(_mm_or_si128(_mm_cmpeq_epi8(found, quote), _mm_cmpeq_epi8(found, slash)),
                                   _mm_cmplt_epi8(found, space));
        int mask = _mm_movemask_epi8(odd);
        if (mask) return at + __builtin_ctz((unsigned)mask);
        at += 16;
    }
#else
    const uint64_t ones = 0x0101010101010101u, high = 0x8080808080808080u;
    while (end - at >= 8) {
        uint64_t w = word(at), q = w ^ ones * '"', s = w ^ ones * '\\';
        if ((((q - ones) & ~q) | ((s - ones) & ~s) | (w - ones * ' ') | w) & high) break;
        at += 8;
    }
#endif
    while (at < end && *at >= ' ' && *at < 128 && *at != '"' && *at != '\\') at++;
    return at;
}

/* After the opening quote; the place after the closing one. */
static Place string(Place at, Place end, uint32_t *kind) {
    *kind = TEXT;
    for (;;) {
        at = plain(at, end);
        if (at >= end || *at < ' ') return NULL;
        if (*at == '"') return at + 1;
        if (*at == '\\') {
            *kind = ESCAPED;
            at = escape(at + 1, end);
            if (!at) return NULL;
        }
        while (at < end && *at >= 128) {
            at = character(at, end);
            if (!at) return NULL;
        }
    }
}

static Place digits(Place at, Place end) {
    if (at >= end || (uint8_t)(*at - '0') > 9) return NULL;
    while (at < end && (uint8_t)(*at - '0') <= 9) at++;
    return at;
}

static Place number(Place at, Place end, uint32_t *kind, int64_t *value) {
    int negative = *at == '-';
    at += negative;
    Place first = at;
    uint64_t sum = 0;
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    while (end - at >= 8) { /* eight digits at once */
        uint64_t w = word(at);
        if (((w & 0xF0F0F0F0F0F0F0F0u) | ((w + 0x0606060606060606u) & 0xF0F0F0F0F0F0F0F0u) >> 4) != 0x3333333333333333u)
            break;
        w = (w & 0x0F0F0F0F0F0F0F0Fu) * 2561 >> 8;
        w = (w & 0x00FF00FF00FF00FFu) * 6553601 >> 16;
        w = (w & 0x0000FFFF0000FFFFu) * 42949672960001u >> 32;
        sum = sum * 100000000 + w;
        at += 8;
    }
#endif
    while (at < end && (uint8_t)(*at - '0') <= 9) sum = sum * 10 + (uint64_t)(*at++ - '0');
    int64_t count = at - first;
    if (!count || (count > 1 && *first == '0')) return NULL;
    *kind = INTEGER;
    if (count > 19 || sum > (uint64_t)INT64_MAX + (uint64_t)negative) *kind = NUMBER;
    *value = (int64_t)(negative ? 0 - sum : sum);
    if (at < end && *at == '.') {
        *kind = NUMBER;
        if (!(at = digits(at + 1, end))) return NULL;
    }
    if (at < end && (*at | 32) == 'e') {
        *kind = NUMBER;
        at++;
        if (at < end && (*at == '+' || *at == '-')) at++;
        if (!(at = digits(at, end))) return NULL;
    }
    return at;
}

/* Any value; nothing of it is left unread. */
static Place value(Place at, Place end, uint32_t *kind, int64_t *integer, int depth) {
    uint32_t inner;
    int64_t unused;
    if (at >= end) return NULL;
    switch (*at) {
    case '"': return string(at + 1, end, kind);
    case 'n': *kind = NUL; return follows(at, end, (Place) "null", 4) ? at + 4 : NULL;
    case 't': *kind = TRUE_; return follows(at, end, (Place) "true", 4) ? at + 4 : NULL;
    case 'f': *kind = FALSE_; return follows(at, end, (Place) "false", 5) ? at + 5 : NULL;
    case '{':
    case '[':
        break;
    default: return number(at, end, kind, integer);
    }
    uint8_t close = *at == '{' ? '}' : ']';
    *kind = close == '}' ? OBJECT : ARRAY;
    if (!depth) return NULL;
    if (++at < end && *at == close) return at + 1;
    for (;;) {
        if (close == '}') {
            if (at >= end || *at != '"' || !(at = string(at + 1, end, &inner)) || at >= end || *at++ != ':') return NULL;
        }
        if (!(at = value(at, end, &inner, &unused, depth - 1)) || at >= end) return NULL;
        if (*at == close) return at + 1;
        if (*at++ != ',') return NULL;
    }
}

/* How many records follow the program, from the first one on. ``seen``: kinds by slot, as bits; ``sizes``: bytes. */
int64_t ch_scan(Place data, const int64_t *ends, int64_t count, const Step *steps, int64_t length, Place texts,
                Cell *cells, int64_t slots, uint32_t *seen, int64_t *sizes) {
    int64_t start = 0;
    for (int64_t i = 0; i < count; i++, cells += slots) {
        Place at = data + start, end = data + ends[i];
        start = ends[i];
        for (int64_t s = 0; s < length; s++) {
            const Step *step = &steps[s];
            if (!follows(at, end, texts + step->text, step->size)) return i;
            at += step->size;
            if (step->action == NOTHING) continue;
            uint32_t kind = OBJECT;
            int64_t integer = 0;
            Place begin = at;
            if (step->action >= OPEN) {
                if (at >= end) return i;
                if (*at == '{' && step->action == OPEN) {
                    at++;
                } else {
                    if (!follows(at, end, (Place) "null", 4)) return i;
                    at += 4;
                    memset(cells + step->slot, 0, step->slots * sizeof(Cell));
                    for (uint32_t slot = 0; slot < step->slots; slot++) seen[step->slot + slot] |= 1u << NUL;
                    s = (int64_t)step->next - 1;
                    continue;
                }
            } else {
                at = value(at, end, &kind, &integer, DEEPEST);
                if (!at) return i;
                if (step->action == SKIP) continue;
            }
            Cell *cell = cells + step->slot;
            uint32_t size = (uint32_t)(at - begin);
            cell->number = integer;
            cell->start = (uint32_t)(begin - data);
            cell->sized = size << 4 | kind;
            seen[step->slot] |= 1u << kind;
            sizes[step->slot] += size;
        }
        if (at != end) return i;
    }
    return count;
}

static void mark(uint8_t *bits, int64_t i, int one) {
    if (!(i & 7)) bits[i >> 3] = 0;
    bits[i >> 3] |= (uint8_t)((one != 0) << (i & 7));
}

/* Integers and their validity; 0 for what is none. */
void ch_integers(const Cell *cells, int64_t slots, int64_t count, Mask kept, int64_t *out, uint8_t *valid) {
    for (int64_t i = 0; i < count; i++, cells += slots) {
        int present = KIND(cells) == INTEGER && COUNTS(i);
        out[i] = present ? cells->number : 0;
        mark(valid, i, present);
    }
}

/* Of each value, whether it is of this kind. */
void ch_are(const Cell *cells, int64_t slots, int64_t count, uint32_t kind, uint8_t *out) {
    for (int64_t i = 0; i < count; i++, cells += slots) out[i] = KIND(cells) == kind;
}

/* Booleans and their validity. */
void ch_flags(const Cell *cells, int64_t slots, int64_t count, Mask kept, uint8_t *out, uint8_t *valid) {
    for (int64_t i = 0; i < count; i++, cells += slots) {
        mark(out, i, KIND(cells) == TRUE_);
        mark(valid, i, KIND(cells) != NUL && COUNTS(i));
    }
}

/* Texts as Arrow has them; ``out`` has room for all that the slot's strings take in JSON. */
void ch_texts(Place data, const Cell *cells, int64_t slots, int64_t count, Mask kept, int32_t *offsets,
              uint8_t *valid, uint8_t *out) {
    uint8_t *begin = out;
    for (int64_t i = 0; i < count; i++, cells += slots) {
        uint32_t kind = COUNTS(i) ? KIND(cells) : NUL;
        offsets[i] = (int32_t)(out - begin);
        mark(valid, i, kind != NUL);
        if (kind == TEXT) {
            uint32_t size = SIZE(cells) - 2;
            memcpy(out, data + cells->start + 1, size);
            out += size;
        } else if (kind == ESCAPED) {
            out = unescaped(data + cells->start + 1, data + cells->start + SIZE(cells) - 1, out);
        }
    }
    offsets[count] = (int32_t)(out - begin);
}

#if defined(__SIZEOF_INT128__)
/* A number divided by a power of ten, correctly rounded: of the quotient's 62 or more bits the last one tells whether
   there are more. Neither may be 0. */
static double quotient(uint64_t number, uint64_t power) {
    __extension__ typedef unsigned __int128 Wide;
    int shifted = __builtin_clzll(number), scaled = __builtin_clzll(power);
    Wide whole = (Wide)(number << shifted) << 62;
    uint64_t divisor = power << scaled, bits = (uint64_t)(whole / divisor);
    bits |= (Wide)bits * divisor != whole;
    uint64_t exponent = (uint64_t)(1023 + scaled - shifted - 62) << 52;
    double factor;
    memcpy(&factor, &exponent, 8);
    return (double)bits * factor;
}
#endif

/* Numbers as doubles; 0 if one has to be read otherwise. */
int ch_floats(Place data, const Cell *cells, int64_t slots, int64_t count, Mask kept, double *out,
              uint8_t *valid) {
    static const double powers[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                                    1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
    for (int64_t i = 0; i < count; i++, cells += slots) {
        uint32_t kind = KIND(cells), size = SIZE(cells);
        mark(valid, i, kind != NUL && COUNTS(i));
        out[i] = 0;
        if (kind == INTEGER) out[i] = (double)cells->number;
        if (kind != NUMBER) continue;
        char text[64], *end;
        if (size >= sizeof text) return 0;
        memcpy(text, data + cells->start, size);
        text[size] = 0;
        /* Digits and one division of exact numbers: correctly rounded, as strtod is. */
        int negative = text[0] == '-', after = 0, point = 0;
        uint64_t sum = 0;
        uint32_t at = (uint32_t)negative;
        for (; at < size && size - (uint32_t)negative <= 20; at++) {
            if (text[at] == '.') point = 1;
            else if ((uint8_t)(text[at] - '0') > 9) break;
            else sum = sum * 10 + (uint64_t)(text[at] - '0'), after += point;
        }
        if (at == size && point && sum <= (1ull << 53)) {
            out[i] = (negative ? -(double)sum : (double)sum) / powers[after];
            continue;
        }
#if defined(__SIZEOF_INT128__)
        if (at == size && point) {
            uint64_t power = 1;
            for (int digit = 0; digit < after; digit++) power *= 10;
            out[i] = negative ? -quotient(sum, power) : quotient(sum, power);
            continue;
        }
#endif
        out[i] = strtod(text, &end);
        if (end != text + size || out[i] - out[i] != 0) return 0;
    }
    return 1;
}

/* Big-endian integers of at most eight bytes from their base64; 0 if there is another text. */
int ch_base64(Place data, const Cell *cells, int64_t slots, int64_t count, Mask kept, int64_t *out,
              uint8_t *valid) {
    for (int64_t i = 0; i < count; i++, cells += slots) {
        mark(valid, i, KIND(cells) != NUL && COUNTS(i));
        out[i] = 0;
        if (KIND(cells) == NUL) continue;
        Place at = data + cells->start + 1;
        uint32_t size = SIZE(cells) - 2, pads = 0, bits = 0;
        if (KIND(cells) != TEXT || size % 4 || size > 12) return 0;
        if (!size) continue;
        if (at[size - 1] == '=') pads = at[size - 2] == '=' ? 2 : 1;
        uint32_t octets = size / 4 * 3 - pads;
        if (octets > 8) return 0;
        uint64_t sum = 0;
        for (uint32_t c = 0; c < size - pads; c++) {
            int found = SIX[at[c]] - 1;
            if (found < 0) return 0;
            bits += 6;
            if (bits <= 64) sum = sum << 6 | (uint64_t)found;
            else sum = sum << (70 - bits) | (uint64_t)(found >> (bits - 64)), bits = 64;
        }
        sum <<= 64 - bits;
        out[i] = (int64_t)sum >> (64 - 8 * octets);
    }
    return 1;
}

/* Which of up to eight different values each is; how many there are, 0 for more. ``first``: where each comes first. */
int64_t ch_distinct(Place data, const Cell *cells, int64_t slots, int64_t count, uint8_t *codes, int64_t *first) {
    const Cell *known[MOST_KNOWN];
    int64_t found = 0, code = 0;
    for (int64_t i = 0; i < count; i++, cells += slots) {
        for (int64_t tried = 0; tried < found; tried++, code = code + 1 < found ? code + 1 : 0)
            if (known[code]->sized == cells->sized &&
                !memcmp(data + known[code]->start, data + cells->start, SIZE(cells)))
                goto same;
        if (found == MOST_KNOWN) return 0;
        known[code = found++] = cells;
        first[code] = i;
    same:
        codes[i] = (uint8_t)code;
    }
    return found;
}

/* A JSON array of the values, in the room of their sizes and five bytes more for each and one. */
int64_t ch_listed(Place data, const Cell *cells, int64_t slots, int64_t count, uint8_t *out) {
    uint8_t *begin = out;
    *out++ = '[';
    for (int64_t i = 0; i < count; i++, cells += slots) {
        if (i) *out++ = ',';
        uint32_t size = SIZE(cells);
        memcpy(out, size ? data + cells->start : (Place) "null", size ? size : 4);
        out += size ? size : 4;
    }
    *out++ = ']';
    return out - begin;
}
