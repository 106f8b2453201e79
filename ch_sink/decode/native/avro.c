/* Steps through the datums of one Avro schema.

   A program says which value comes next and where it goes. A datum that does not follow it is refused, and with it all
   the others: whoever asked reads them in another way, which tells what is wrong with which. Every read is bounded by
   the end of its datum. */

#include <stdint.h>
#include <string.h>

enum { LONG, SIZED, FIXED, FLOAT, DOUBLE, FLAG, SYMBOL, OPTIONAL };

#define MOST_KNOWN 8

typedef struct {
    int64_t action;
    int64_t slot;     /* where the value goes, -1 if it is stepped over; OPTIONAL: the first slot of the value */
    int64_t argument; /* FIXED: bytes. SYMBOL: how many there are. OPTIONAL: which branch is null */
    int64_t slots;    /* OPTIONAL: how many slots the value has … */
    int64_t flag;     /* … its own flag, -1 if it is stepped over … */
    int64_t flags;    /* … how many flags there are with those inside … */
    int64_t next;     /* … and the step after it */
} Step;

typedef const uint8_t *Place; /* NULL: refused */

#define START(cell) ((uint32_t)(cell))
#define SIZE(cell) ((uint32_t)((cell) >> 32))

/* Seven bits a byte, the lowest first; at most 64 bits. */
static Place digits(Place at, Place end, uint64_t *found) {
    uint64_t sum = 0;
    for (unsigned shift = 0; at < end; shift += 7) {
        uint8_t octet = *at++;
        if (shift == 63 && octet > 1) return NULL;
        sum |= (uint64_t)(octet & 127) << shift;
        if (octet < 128) {
            *found = sum;
            return at;
        }
    }
    return NULL;
}

static inline Place number(Place at, Place end, uint64_t *found) {
    if (at < end && *at < 128) {
        *found = *at;
        return at + 1;
    }
    return digits(at, end, found);
}

/* The sign is the lowest bit. */
#define SIGNED(number) ((number) >> 1 ^ (0 - ((number) & 1)))

/* How many datums follow the program, from the first one on. A slot's cells and a flag's octets are side by side.
   ``skip``: bytes before each datum; ``nulls``: how many values each flag lacks; ``sizes``: bytes by slot. */
int64_t ch_avro(Place data, const int64_t *ends, int64_t count, int64_t skip, const Step *steps, int64_t length,
                uint64_t *cells, uint8_t *flags, int64_t *nulls, int64_t *sizes) {
    int64_t start = 0;
    for (int64_t i = 0; i < count; i++) {
        if (ends[i] - start < skip) return i;
        Place at = data + start + skip, end = data + ends[i];
        start = ends[i];
        for (int64_t s = 0; s < length; s++) {
            const Step *step = &steps[s];
            uint64_t cell = 0;
            uint32_t half;
            switch (step->action) {
            case LONG:
                if (!(at = number(at, end, &cell))) return i;
                cell = SIGNED(cell);
                break;
            case SIZED:
                if (!(at = number(at, end, &cell))) return i;
                if (cell & 1 || cell >> 1 > (uint64_t)(end - at)) return i;
                cell >>= 1;
                at += cell;
                if (step->slot < 0) continue;
                sizes[step->slot] += (int64_t)cell;
                cell = cell << 32 | (uint32_t)(at - cell - data);
                break;
            case FIXED:
                if (step->argument > end - at) return i;
                at += step->argument;
                if (step->slot < 0) continue;
                sizes[step->slot] += step->argument;
                cell = (uint64_t)step->argument << 32 | (uint32_t)(at - step->argument - data);
                break;
            case FLOAT:
                if (end - at < 4) return i;
                memcpy(&half, at, 4);
                cell = half;
                at += 4;
                break;
            case DOUBLE:
                if (end - at < 8) return i;
                memcpy(&cell, at, 8);
                at += 8;
                break;
            case FLAG:
                if (at >= end || *at > 1) return i;
                cell = *at++;
                break;
            case SYMBOL:
                if (!(at = number(at, end, &cell))) return i;
                if (cell & 1 || cell >> 1 >= (uint64_t)step->argument) return i;
                cell >>= 1;
                break;
            default:
                if (!(at = number(at, end, &cell))) return i;
                if (cell & 1 || cell > 2) return i;
                if ((int64_t)(cell >> 1) != step->argument) {
                    if (step->flag >= 0) flags[step->flag * count + i] = 1;
                    continue;
                }
                for (int64_t slot = step->slot; slot < step->slot + step->slots; slot++) cells[slot * count + i] = 0;
                for (int64_t flag = step->flag; flag < step->flag + step->flags; flag++) {
                    flags[flag * count + i] = 0;
                    nulls[flag]++;
                }
                s = step->next - 1;
                continue;
            }
            if (step->slot >= 0) cells[step->slot * count + i] = cell;
        }
        if (at != end) return i;
    }
    return count;
}

typedef const uint8_t *Mask; /* which values there are; NULL: all */

/* Texts as Arrow has them; ``out`` has room for all of the slot. Whether they are all ASCII. */
int ch_avro_texts(Place data, const uint64_t *cells, int64_t count, Mask there, int32_t *offsets, uint8_t *valid,
                  uint8_t *out) {
    uint8_t *begin = out;
    uint64_t all = 0;
    for (int64_t i = 0; i < count; i++) {
        int present = !there || there[i];
        offsets[i] = (int32_t)(out - begin);
        if (!(i & 7)) valid[i >> 3] = 0;
        valid[i >> 3] |= (uint8_t)(present << (i & 7));
        if (!present) continue;
        uint32_t size = SIZE(cells[i]);
        memcpy(out, data + START(cells[i]), size);
        out += size;
    }
    int64_t size = out - begin, at = 0;
    offsets[count] = (int32_t)size;
    for (; size - at >= 8; at += 8) {
        uint64_t word;
        memcpy(&word, begin + at, 8);
        all |= word;
    }
    for (; at < size; at++) all |= begin[at];
    return !(all & 0x8080808080808080u);
}

/* Which of up to eight different texts each is; how many there are, 0 for more. ``first``: where each comes first. */
int64_t ch_avro_distinct(Place data, const uint64_t *cells, int64_t count, Mask there, uint8_t *codes,
                         int64_t *first) {
    int64_t found = 0, code = 0;
    for (int64_t i = 0; i < count; i++) {
        int present = !there || there[i];
        for (int64_t tried = 0; tried < found; tried++, code = code + 1 < found ? code + 1 : 0) {
            int64_t other = first[code];
            if (present != (!there || there[other])) continue;
            if (!present || (SIZE(cells[other]) == SIZE(cells[i]) &&
                             !memcmp(data + START(cells[other]), data + START(cells[i]), SIZE(cells[i]))))
                goto same;
        }
        if (found == MOST_KNOWN) return 0;
        code = found++;
        first[code] = i;
    same:
        codes[i] = (uint8_t)code;
    }
    return found;
}
