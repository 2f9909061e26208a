/* Inputs with a few things wrong: bits, sizes, numbers, cuts, repeats, another input's bytes.
 *
 * The number of an input alone decides what becomes of the corpus, so that an input can be built again from it.
 */
#include <stdint.h>
#include <stdio.h>
#include <string.h>

static const uint32_t EDGES[] = {0, 1, 4, 16, 21, 34, 127, 128, 255, 1u << 15, (1u << 16) - 1, (1u << 31) - 31,
                                 (1u << 31) - 1, 1u << 31, 0xffffffffu};
static const uint8_t BYTES[] = "\x00\x01\x02\x1e\x22\x7f\x80\xff\n\r *$:-0 9{}[]\"";
static const uint8_t TIMES[] = {1, 1, 1, 2, 2, 3, 6}; /* how many things are wrong */
enum { MOST = 1 << 14, PIECE = 80 };

static uint64_t draw(uint64_t *state) { /* splitmix64 */
    uint64_t mixed = *state += 0x9E3779B97F4A7C15u;
    mixed = (mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9u;
    mixed = (mixed ^ (mixed >> 27)) * 0x94D049BB133111EBu;
    return mixed ^ (mixed >> 31);
}

static uint32_t below(uint64_t *state, uint32_t end) { return (uint32_t)((draw(state) >> 32) * end >> 32); }

/* Put `count` bytes in the place of `gone` bytes at `at`; return the new size, which stays below MOST. */
static uint32_t put(uint8_t *out, uint32_t size, uint32_t at, uint32_t gone, const uint8_t *data, uint32_t count) {
    if (gone > size - at) gone = size - at;
    if (size - gone + count > MOST) return size;
    memmove(out + at + count, out + at + gone, size - at - gone);
    memcpy(out + at, data, count);
    return size - gone + count;
}

static uint32_t spoil(uint8_t *out, uint32_t size, const uint8_t *corpus, const uint32_t *ends, uint32_t inputs,
                      uint64_t *state) {
    uint8_t piece[PIECE];
    uint32_t at = below(state, size + 1), begin, count, edge;
    switch (below(state, 9)) {
    case 0:
        if (at < size) out[at] ^= 1u << below(state, 8);
        return size;
    case 1:
        if (at < size) out[at] = BYTES[below(state, sizeof BYTES - 1)];
        return size;
    case 2: /* a size */
        edge = EDGES[below(state, sizeof EDGES / sizeof *EDGES)];
        begin = below(state, 2);
        for (count = 0; count < 4; count++) piece[begin ? count : 3 - count] = (uint8_t)(edge >> (8 * count));
        return put(out, size, at, 4, piece, 4);
    case 3:
        return at;
    case 4:
        return put(out, size, at, 1 + below(state, 40), piece, 0);
    case 5: /* a repeat */
        begin = below(state, size + 1);
        count = 1 + below(state, PIECE);
        if (count > size - begin) count = size - begin;
        memcpy(piece, out + begin, count);
        return put(out, size, at, 0, piece, count);
    case 6: /* the end of another input */
        edge = below(state, inputs);
        begin = edge ? ends[edge - 1] : 0;
        begin += below(state, ends[edge] - begin + 1);
        return put(out, size, at, size - at, corpus + begin, ends[edge] - begin);
    case 7: /* another number in text */
        for (begin = at; begin < size && (out[begin] < '0' || out[begin] > '9'); begin++) continue;
        for (count = begin; count < size && out[count] >= '0' && out[count] <= '9'; count++) continue;
        edge = EDGES[below(state, sizeof EDGES / sizeof *EDGES)];
        at = (uint32_t)snprintf((char *)piece, PIECE, below(state, 4) ? "%u" : "-%u0000000000", edge);
        return put(out, size, begin, count - begin, piece, at);
    default:
        count = 1 + below(state, 12);
        for (begin = 0; begin < count; begin++) piece[begin] = (uint8_t)draw(state);
        return put(out, size, at, 0, piece, count);
    }
}

/* Write the inputs `first` to `first + count` one behind the other to `out`, and where each ends to `until`. An input of
 * the corpus ends where `ends` has it; `out` has room for MOST bytes of each input. */
void mutate(uint64_t first, uint32_t count, const uint8_t *corpus, const uint32_t *ends, uint32_t inputs, uint8_t *out,
            uint32_t *until) {
    uint32_t place = 0;
    for (uint32_t number = 0; number < count; number++) {
        uint64_t state = (first + number) * 0xD1342543DE82EF95u;
        uint32_t chosen = below(&state, inputs);
        uint32_t begin = chosen ? ends[chosen - 1] : 0, size = ends[chosen] - begin;
        memcpy(out + place, corpus + begin, size);
        for (uint32_t times = TIMES[below(&state, sizeof TIMES)]; times; times--)
            size = spoil(out + place, size, corpus, ends, inputs, &state);
        until[number] = place += size;
    }
}
