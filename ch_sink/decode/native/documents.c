/* Writes Extended JSON as plain JSON: the same bytes as `texts.plain_text` makes of what `values.parse` reads.

   A text that is in doubt is refused, and Python reads that one: wrappers that are rare, numbers whose shortest text may
   be another one, keys that may be there twice. Texts are those of JSON strings that the scanner found to be right, so
   they are UTF-8. What is written takes at most three times the bytes that are read: the longest is a date of one digit,
   {"$date":1}. So ``out`` always has room for three bytes for each that is left to read. */

#include "scan.h"

/* Kinds of values as a text column needs them. */
enum { NOTHING, NIL, WORD, WHOLE, DOUBLE, STRING, SLASHED, SPECIAL, DECIMAL, NESTED, BINARY };

#define DEEPEST 64
#define MOST_KEYS 512

typedef struct {
    uint32_t from, size; /* as it was given, in the texts */
    uint32_t at, length; /* as it is written, without quotes */
    uint32_t kind;
} Part;

typedef struct {
    Place at, end;
    uint8_t *out;
    uint32_t dotless, known;
    uint32_t hashes[MOST_KEYS]; /* of the keys of all objects that are open */
} Reader;

typedef struct {
    Place names;
    const uint32_t *ends;
    int64_t count;
    Part *parts;
    uint32_t *seen;
    Place texts;
    const uint8_t *begin;
} Wanted;

static int value(Reader *r, int depth);

static int next(Reader *r) {
    while (r->at < r->end && (*r->at == ' ' || *r->at == '\n' || *r->at == '\r' || *r->at == '\t')) r->at++;
    return r->at < r->end ? *r->at : 0;
}

static int take(Reader *r, uint8_t c) {
    if (next(r) != c) return 0;
    r->at++;
    return 1;
}

static void copy(Reader *r, Place from, Place to) {
    memcpy(r->out, from, (size_t)(to - from));
    r->out += to - from;
}

/* After the backslash: what msgspec writes for that character. */
static int escape(Reader *r, int *kind) {
    if (r->at >= r->end) return 0;
    uint8_t c = *r->at++;
    if (c == '/') {
        *r->out++ = c;
        return 1;
    }
    if (c != 'u') {
        if (!c || !strchr("\"\\bfnrt", c)) return 0;
        *r->out++ = '\\';
        *r->out++ = c;
        *kind = SLASHED;
        return 1;
    }
    if (r->end - r->at < 4) return 0;
    int code = hex4(r->at);
    r->at += 4;
    /* A key that begins with an escaped $ may be a wrapper's. */
    if (code < ' ' || code == '$' || code == '"' || code == '\\' || (code >= 0xDC00 && code < 0xE000)) return 0;
    if (code >= 0xD800 && code < 0xDC00) {
        if (r->end - r->at < 6 || r->at[0] != '\\' || r->at[1] != 'u') return 0;
        int second = hex4(r->at + 2);
        if (second < 0xDC00 || second >= 0xE000) return 0;
        code = 0x10000 + ((code - 0xD800) << 10) + (second - 0xDC00);
        r->at += 6;
    }
    r->out = put(r->out, (uint32_t)code);
    return 1;
}

/* A string at its opening quote. */
static int string(Reader *r) {
    int kind = STRING;
    Place at = r->at + 1, end = r->end;
    uint8_t *out = r->out;
    *out++ = '"';
    for (;;) {
#if defined(__SSE2__)
        const __m128i quote = _mm_set1_epi8('"'), slash = _mm_set1_epi8('\\'), control = _mm_set1_epi8(31);
        while (end - at >= 16) {
            __m128i found = _mm_loadu_si128((const __m128i *)at);
            _mm_storeu_si128((__m128i *)out, found);
            __m128i odd = _mm_or_si128(_mm_or_si128(_mm_cmpeq_epi8(found, quote), _mm_cmpeq_epi8(found, slash)),
                                       _mm_cmpeq_epi8(_mm_min_epu8(found, control), found));
            int mask = _mm_movemask_epi8(odd), run = mask ? __builtin_ctz((unsigned)mask) : 16;
            at += run;
            out += run;
            if (mask) break;
        }
#endif
        while (at < end && *at >= ' ' && *at != '"' && *at != '\\') *out++ = *at++;
        if (at >= end || *at < ' ') return 0;
        if (*at++ == '"') {
            *out++ = '"';
            r->at = at;
            r->out = out;
            return kind;
        }
        r->at = at;
        r->out = out;
        if (!escape(r, &kind)) return 0;
        at = r->at;
        out = r->out;
    }
}

static int digit(Place at, Place end) { return at < end && (uint8_t)(*at - '0') <= 9; }

/* A number whose text is the one that msgspec writes; the place after it. With up to 15 digits a decimal is the shortest
   text of its double, if it does not end in a 0 that says nothing. */
static Place number(Place at, Place end, int *kind, int64_t *integer) {
    int negative = at < end && *at == '-';
    Place first = at + negative, point = first;
    uint64_t sum = 0;
    while (digit(point, end) && point - first < 20) sum = sum * 10 + (uint64_t)(*point++ - '0');
    int64_t count = point - first;
    if (!count || count > 19 || (count > 1 && *first == '0')) return NULL;
    if (point >= end || *point != '.') {
        if (sum > (uint64_t)INT64_MAX || (negative && !sum)) return NULL;
        *kind = WHOLE;
        *integer = negative ? -(int64_t)sum : (int64_t)sum;
        return point;
    }
    Place fraction = point + 1, stop = fraction;
    while (digit(stop, end) && stop - fraction < 16) stop++;
    int64_t after = stop - fraction;
    if (!after || count + after > 15) return NULL;
    if (stop[-1] == '0' && (after > 1 || (negative && !sum))) return NULL;
    if (!sum && after > 2 && !memcmp(fraction, "000", 3)) return NULL;
    *kind = DOUBLE;
    return stop;
}

/* What is between the quotes of a simple string. */
static int quoted(Reader *r, Place *from, Place *to) {
    if (next(r) != '"') return 0;
    *from = r->at + 1;
    *to = memchr(*from, '"', (size_t)(r->end - *from));
    if (!*to) return 0;
    r->at = *to + 1;
    return 1;
}

static uint8_t *decimal(uint8_t *out, int number, int digits) {
    for (int i = digits - 1; i >= 0; i--, number /= 10) out[i] = (uint8_t)('0' + number % 10);
    return out + digits;
}

/* Milliseconds as `texts.iso` writes them: the proleptic calendar, counted from March of the year -400. */
static int iso(Reader *r, int64_t milliseconds) {
    const int64_t day = 86400000;
    if (milliseconds < -719528 * day || milliseconds >= 2932897 * day) return 0;
    int64_t shifted = milliseconds + (719468 + 146097) * day, days = shifted / day;
    int rest = (int)(shifted % day);
    int era = (int)(days / 146097), of_era = (int)(days % 146097);
    int year = (of_era - of_era / 1460 + of_era / 36524 - of_era / 146096) / 365;
    int of_year = of_era - (365 * year + year / 4 - year / 100);
    int month = (5 * of_year + 2) / 153, date = of_year - (153 * month + 2) / 5 + 1;
    month = month < 10 ? month + 3 : month - 9;
    uint8_t *out = r->out;
    *out++ = '"';
    out = decimal(out, year + era * 400 - 400 + (month <= 2), 4);
    *out++ = '-';
    out = decimal(out, month, 2);
    *out++ = '-';
    out = decimal(out, date, 2);
    *out++ = 'T';
    out = decimal(out, rest / 3600000, 2);
    *out++ = ':';
    out = decimal(out, rest / 60000 % 60, 2);
    *out++ = ':';
    out = decimal(out, rest / 1000 % 60, 2);
    *out++ = '.';
    out = decimal(out, rest % 1000, 3);
    *out++ = 'Z';
    *out++ = '"';
    r->out = out;
    return SPECIAL;
}

static int two(Place at) { return (at[0] - '0') * 10 + at[1] - '0'; }

/* 2024-02-29T12:34:56[.789]Z: the same with three digits after the point. */
static int instant(Reader *r, Place at, Place end) {
    static const char form[] = "0000-00-00T00:00:00";
    static const uint8_t days[] = {31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
    if (end - at < 20 || end - at > 30 || end[-1] != 'Z') return 0;
    for (int i = 0; i < 19; i++)
        if (form[i] == '0' ? !digit(at + i, end) : at[i] != form[i]) return 0;
    int year = two(at) * 100 + two(at + 2), month = two(at + 5), date = two(at + 8);
    if (month < 1 || month > 12 || date < 1 || date > days[month - 1]) return 0;
    if (month == 2 && date == 29 && (year % 4 || (year % 100 == 0 && year % 400))) return 0;
    if (two(at + 11) > 23 || two(at + 14) > 59 || two(at + 17) > 59) return 0;
    Place fraction = at + 20;
    if (end - at > 20) {
        if (at[19] != '.' || fraction == end - 1) return 0;
        for (Place one = fraction; one < end - 1; one++)
            if (!digit(one, end)) return 0;
    }
    *r->out++ = '"';
    copy(r, at, at + 19);
    *r->out++ = '.';
    for (int i = 0; i < 3; i++) *r->out++ = fraction + i < end - 1 ? fraction[i] : '0';
    *r->out++ = 'Z';
    *r->out++ = '"';
    return SPECIAL;
}

/* Whether the text is digits with at most one point and an exponent. */
static int is_decimal(Place at, Place end) {
    if (at < end && (*at == '-' || *at == '+')) at++;
    if (!digit(at, end)) return 0;
    while (digit(at, end)) at++;
    if (at < end && *at == '.')
        for (at++; digit(at, end);) at++;
    if (at < end && (*at | 32) == 'e') {
        at++;
        if (at < end && (*at == '-' || *at == '+')) at++;
        if (!digit(at, end)) return 0;
        while (digit(at, end)) at++;
    }
    return at == end;
}

/* A key with its colon. */
static int named(Reader *r, const char *key, uint32_t size) {
    Place before = r->at;
    if (!follows(before, r->end, (Place)key, size)) return 0;
    r->at += size;
    if (take(r, ':')) return 1;
    r->at = before; /* another key is looked for from here */
    return 0;
}

#define NAMED(key) named(r, "\"" key "\"", sizeof key + 1)

static int date(Reader *r) {
    Place from, to;
    int kind;
    int64_t at;
    int c = next(r);
    if (c == '"') return quoted(r, &from, &to) ? instant(r, from, to) : 0;
    if (c == '{') {
        r->at++;
        next(r);
        if (!NAMED("$numberLong") || !quoted(r, &from, &to) || !take(r, '}')) return 0;
        if (number(from, to, &kind, &at) != to || kind != WHOLE) return 0;
        return iso(r, at);
    }
    r->at = number(r->at, r->end, &kind, &at);
    return r->at && kind == WHOLE ? iso(r, at) : 0;
}

/* Base64 as it would be written again: how many bytes it holds, or -1. */
static int64_t octets(Place at, Place end) {
    int64_t size = end - at, pads = 0;
    if (size % 4) return -1;
    if (size && end[-1] == '=') pads = end[-2] == '=' ? 2 : 1;
    for (int64_t i = 0; i < size - pads; i++)
        if (!SIX[at[i]]) return -1;
    if (pads && (SIX[at[size - pads - 1]] - 1) & (pads == 2 ? 15 : 3)) return -1;
    return size / 4 * 3 - pads;
}

/* Binary data: a UUID's text, or what canonical Extended JSON writes. */
static int binary(Reader *r) {
    static const char begin[] = "{\"$binary\":{\"base64\":", middle[] = ",\"subType\":";
    static const char digits[] = "0123456789abcdef";
    Place from, to, type, after;
    if (next(r) == '{') {
        r->at++;
        next(r);
        if (!NAMED("base64") || !quoted(r, &from, &to) || !take(r, ',')) return 0;
        next(r);
        if (!NAMED("subType") || !quoted(r, &type, &after) || !take(r, '}')) return 0;
    } else {
        if (!quoted(r, &from, &to) || !take(r, ',')) return 0;
        next(r);
        if (!NAMED("$type") || !quoted(r, &type, &after)) return 0;
    }
    int64_t size = octets(from, to);
    if (size < 0 || after - type != 2 || !HEX[type[0]] || !HEX[type[1]]) return 0;
    if (size == 16 && type[0] == '0' && type[1] == '4') {
        uint32_t bits = 0, count = 0;
        *r->out++ = '"';
        for (int nibble = 0; nibble < 32; nibble++) {
            if (count < 4) bits = bits << 6 | (uint32_t)(SIX[*from++] - 1), count += 6;
            count -= 4;
            if (nibble == 8 || nibble == 12 || nibble == 16 || nibble == 20) *r->out++ = '-';
            *r->out++ = (uint8_t)digits[bits >> count & 15];
        }
        *r->out++ = '"';
        return SPECIAL;
    }
    copy(r, (Place)begin, (Place)begin + sizeof begin - 1);
    copy(r, from - 1, to + 1);
    copy(r, (Place)middle, (Place)middle + sizeof middle - 1);
    *r->out++ = '"';
    *r->out++ = type[0] | 32;
    *r->out++ = type[1] | 32;
    *r->out++ = '"';
    *r->out++ = '}';
    *r->out++ = '}';
    return BINARY;
}

/* A wrapper, at its key. */
static int special(Reader *r) {
    Place from, to;
    int kind = 0;
    int64_t unused;
    if (NAMED("$oid")) {
        if (!quoted(r, &from, &to) || to - from != 24) return 0;
        *r->out++ = '"';
        for (; from < to; from++) {
            if (!HEX[*from]) return 0;
            *r->out++ = *from | 32;
        }
        *r->out++ = '"';
        kind = SPECIAL;
    } else if (NAMED("$date")) {
        kind = date(r);
    } else if (NAMED("$numberLong") || NAMED("$numberInt")) {
        if (!quoted(r, &from, &to) || number(from, to, &kind, &unused) != to || kind != WHOLE) return 0;
        copy(r, from, to);
    } else if (NAMED("$numberDouble")) {
        if (!quoted(r, &from, &to) || number(from, to, &kind, &unused) != to || kind != DOUBLE) return 0;
        copy(r, from, to);
    } else if (NAMED("$numberDecimal")) {
        if (!quoted(r, &from, &to) || !is_decimal(from, to)) return 0;
        copy(r, from - 1, to + 1);
        kind = DECIMAL;
    } else if (NAMED("$binary")) {
        kind = binary(r);
    }
    return kind && take(r, '}') ? kind : 0;
}

static uint32_t hash(Place at, uint32_t size) {
    const uint64_t prime = 0x9E3779B97F4A7C15u;
    uint64_t sum = size;
    for (; size >= 8; size -= 8, at += 8) {
        sum = (sum ^ word(at)) * prime;
        sum ^= sum >> 32;
    }
    uint64_t rest = 0;
    if (size >= 4) rest = (uint64_t)half(at) << 32 | half(at + size - 4);
    else if (size) rest = (uint64_t)at[0] << 16 | (uint64_t)at[size / 2] << 8 | at[size - 1];
    return (uint32_t)((sum ^ rest) * prime >> 32);
}

/* After the brace. ``wanted``: of the document itself, whose fields are asked for. */
static int object(Reader *r, int depth, Wanted *wanted) {
    uint32_t mark = r->known;
    uint64_t seen = 0; /* bits of the hashes: most keys need not be compared */
    *r->out++ = '{';
    if (next(r) == '}') {
        r->at++;
        *r->out++ = '}';
        return NESTED;
    }
    if (follows(r->at, r->end, (Place) "\"$", 2)) {
        r->out--;
        return wanted ? 0 : special(r);
    }
    for (;;) {
        Place key = r->out + 1;
        if (next(r) != '"' || string(r) != STRING) return 0;
        uint32_t size = (uint32_t)(r->out - 1 - key), sum = hash(key, size);
        uint64_t bit = (uint64_t)1 << (sum & 63);
        if (seen & bit)
            for (uint32_t i = mark; i < r->known; i++)
                if (r->hashes[i] == sum) return 0;
        if (r->known == MOST_KEYS || (r->dotless && memchr(key, '.', size))) return 0;
        seen |= bit;
        r->hashes[r->known++] = sum;
        if (!take(r, ':')) return 0;
        *r->out++ = ':';
        next(r);
        Place from = r->at;
        const uint8_t *at = r->out;
        int kind = value(r, depth - 1);
        if (!kind) return 0;
        for (int64_t i = 0; wanted && i < wanted->count; i++) {
            uint32_t start = i ? wanted->ends[i - 1] : 0;
            if (wanted->ends[i] - start != size || memcmp(wanted->names + start, key, size)) continue;
            int quotes = *at == '"';
            wanted->parts[i] = (Part){(uint32_t)(from - wanted->texts), (uint32_t)(r->at - from),
                                      (uint32_t)(at + quotes - wanted->begin), (uint32_t)(r->out - at - 2 * quotes),
                                      (uint32_t)kind};
        }
        int c = next(r);
        if (c != ',' && c != '}') return 0;
        r->at++;
        *r->out++ = (uint8_t)c;
        if (c == '}') break;
    }
    r->known = mark;
    return NESTED;
}

static int array(Reader *r, int depth) {
    *r->out++ = '[';
    if (next(r) == ']') {
        r->at++;
        *r->out++ = ']';
        return NESTED;
    }
    for (;;) {
        if (!value(r, depth - 1)) return 0;
        int c = next(r);
        if (c != ',' && c != ']') return 0;
        r->at++;
        *r->out++ = (uint8_t)c;
        if (c == ']') return NESTED;
    }
}

static int literal(Reader *r, const char *text, uint32_t size, int kind) {
    if (!follows(r->at, r->end, (Place)text, size)) return 0;
    copy(r, r->at, r->at + size);
    r->at += size;
    return kind;
}

/* Any value, at its first character or the white space before it; its kind, or 0 if it is refused. */
static int value(Reader *r, int depth) {
    int kind;
    int64_t unused;
    switch (next(r)) {
    case '"': return string(r);
    case 'n': return literal(r, "null", 4, NIL);
    case 't': return literal(r, "true", 4, WORD);
    case 'f': return literal(r, "false", 5, WORD);
    case '{': return depth ? (r->at++, object(r, depth, NULL)) : 0;
    case '[': return depth ? (r->at++, array(r, depth)) : 0;
    }
    Place after = number(r->at, r->end, &kind, &unused);
    if (!after) return 0;
    copy(r, r->at, after);
    r->at = after;
    return kind;
}

enum { MISSING, REFUSED, WRITTEN };
enum { DOTLESS = 1, VALUES = 2 };

/* The texts of a slot's strings as plain JSON, one behind the other; those of refused ones are empty.

   ``mode``: no key may hold a dot; each text is a value and not a document, and its one part. ``names``, ``ends``: the
   ``wanted`` fields. ``texts`` gets the given texts without JSON's escapes, in the room of the slot's strings, and
   ``out`` has three times that room; ``starts`` and ``offsets`` tell where each begins. ``seen``: kinds of each part. */
void ch_documents(Place data, const Cell *cells, int64_t slots, int64_t count, Mask kept, uint32_t mode, Place names,
                  const uint32_t *ends, int64_t wanted, uint8_t *texts, int64_t *starts, uint8_t *out,
                  int32_t *offsets, uint8_t *states, Part *parts, uint32_t *seen) {
    uint8_t *text = texts;
    Reader r;
    Wanted fields = {names, ends, wanted, parts, seen, texts, out};
    r.out = out;
    r.dotless = mode & DOTLESS;
    for (int64_t i = 0; i < count; i++, cells += slots, fields.parts += wanted) {
        uint32_t kind = COUNTS(i) ? KIND(cells) : NUL;
        uint8_t *begin = r.out;
        int found = 0;
        starts[i] = text - texts;
        offsets[i] = (int32_t)(begin - out);
        states[i] = MISSING;
        if (wanted) memset(fields.parts, 0, (size_t)wanted * sizeof(Part));
        if (kind == NUL) continue;
        states[i] = REFUSED;
        if (kind != TEXT && kind != ESCAPED) continue;
        r.at = text;
        text = unescaped(data + cells->start + 1, data + cells->start + SIZE(cells) - 1, text);
        r.end = text;
        r.known = 0;
        if (mode & VALUES) {
            next(&r);
            Place from = r.at;
            found = value(&r, DEEPEST);
            if (found) {
                int quotes = *begin == '"';
                fields.parts[0] = (Part){(uint32_t)(from - texts), (uint32_t)(r.at - from),
                                         (uint32_t)(begin + quotes - out), (uint32_t)(r.out - begin - 2 * quotes),
                                         (uint32_t)found};
            }
        } else if (take(&r, '{')) {
            found = object(&r, DEEPEST, &fields);
        }
        if (!found || next(&r) || r.at != r.end) {
            r.out = begin;
            if (wanted) memset(fields.parts, 0, (size_t)wanted * sizeof(Part));
            continue;
        }
        states[i] = WRITTEN;
        for (int64_t field = 0; field < wanted; field++) seen[field] |= 1u << fields.parts[field].kind;
    }
    starts[count] = text - texts;
    offsets[count] = (int32_t)(r.out - out);
}

/* A part's written texts one behind the other, in the room of their lengths. */
void ch_parts(Place out, const Part *parts, int64_t wanted, int64_t count, int32_t *offsets, uint8_t *texts) {
    uint8_t *at = texts;
    for (int64_t i = 0; i < count; i++, parts += wanted) {
        offsets[i] = (int32_t)(at - texts);
        memcpy(at, out + parts->at, parts->length);
        at += parts->length;
    }
    offsets[count] = (int32_t)(at - texts);
}
