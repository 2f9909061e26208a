# Plain XADDs back to back, and the lines of RESP: shared by the compiled modules.

cdef struct Span:
    Py_ssize_t begin
    Py_ssize_t end

cdef struct Xadd:
    Span key
    Span pairs
    int64_t words

cdef inline int64_t line_number(const uint8_t *p, Py_ssize_t *at, Py_ssize_t end, uint8_t kind) noexcept nogil:
    """The number in the line `<kind><number>` at `at`, which moves on to the next line; -1 if none is there."""
    cdef Py_ssize_t place = at[0]
    cdef int64_t value
    cdef int digits = 1
    if end - place < 4 or p[place] != kind:
        return -1
    place += 1
    if not 48 <= p[place] <= 57:
        return -1
    value = p[place] - 48
    place += 1
    if value:
        while place < end and 48 <= p[place] <= 57:
            digits += 1
            if digits > 10:
                return -1
            value = value * 10 + (p[place] - 48)
            place += 1
    if end - place < 2 or p[place] != 13 or p[place + 1] != 10 or value > LARGEST:
        return -1
    at[0] = place + 2
    return value

cdef inline bint bulk_at(const uint8_t *p, Py_ssize_t *at, Py_ssize_t end, Span *span) noexcept nogil:
    """Whether a whole bulk string is at `at`, which moves on behind it; `span` is where its bytes lie."""
    cdef Py_ssize_t place = at[0]
    cdef int64_t size = line_number(p, &place, end, 36)
    if size < 0 or end - place - 2 < size or p[place + size] != 13 or p[place + size + 1] != 10:
        return False
    span.begin = place
    span.end = place + size
    at[0] = place + size + 2
    return True

cdef bint pairs_only(const uint8_t *p, Py_ssize_t end) noexcept nogil:
    cdef Py_ssize_t at = 0
    cdef int64_t count
    cdef Span span
    if end < 4 or p[0] != 42:
        return False
    count = line_number(p, &at, end, 42)
    if count < 2 or count & 1:
        return False
    while count:
        if not bulk_at(p, &at, end, &span):
            return False
        count -= 1
    return at == end

cdef bint plain_xadd(const uint8_t *p, Py_ssize_t *at, Py_ssize_t end, Xadd *found) noexcept nogil:
    """Whether a whole plain XADD is at `at`, which moves on behind it."""
    cdef Py_ssize_t place = at[0], begin
    cdef int64_t count = line_number(p, &place, end, 42), left
    cdef Span span
    if count < 5 or not count & 1:
        return False
    if not bulk_at(p, &place, end, &span) or span.end - span.begin != 4:
        return False
    begin = span.begin
    if (
        p[begin] & 0xDF != 88 or p[begin + 1] & 0xDF != 65
        or p[begin + 2] & 0xDF != 68 or p[begin + 3] & 0xDF != 68
    ):
        return False
    if not bulk_at(p, &place, end, &found.key):
        return False
    if not bulk_at(p, &place, end, &span) or span.end - span.begin != 1 or p[span.begin] != 42:
        return False
    found.pairs.begin = place
    left = count - 3
    while left:
        if not bulk_at(p, &place, end, &span):
            return False
        left -= 1
    found.pairs.end = place
    found.words = count - 3
    at[0] = place
    return True

cdef inline int digits_of(uint64_t value) noexcept nogil:
    cdef int digits = 1
    while value >= 10:
        value //= 10
        digits += 1
    return digits

cdef inline uint8_t *put_number(uint8_t *out, uint64_t value) noexcept nogil:
    cdef int digits = digits_of(value), place
    for place in range(digits - 1, -1, -1):
        out[place] = 48 + <uint8_t>(value % 10)
        value //= 10
    return out + digits

cdef inline uint8_t *put_line(uint8_t *out, uint8_t kind, uint64_t value) noexcept nogil:
    out[0] = kind
    out = put_number(out + 1, value)
    out[0] = 13
    out[1] = 10
    return out + 2

cdef inline uint8_t *put_id(uint8_t *out, uint64_t milliseconds, uint64_t sequence) noexcept nogil:
    out = put_line(out, 36, digits_of(milliseconds) + 1 + digits_of(sequence))
    out = put_number(out, milliseconds)
    out[0] = 45
    out = put_number(out + 1, sequence)
    out[0] = 13
    out[1] = 10
    return out + 2

cdef Py_ssize_t count_xadds(
    const uint8_t *p, Py_ssize_t *at, Py_ssize_t end, Py_ssize_t most, Span *key
) noexcept nogil:
    """How many plain XADDs to one key are at `at`, which moves on behind them; none has a body of more than `most`."""
    cdef Py_ssize_t count = 0, place
    cdef Xadd found
    while at[0] < end:
        place = at[0]
        if not plain_xadd(p, &place, end, &found) or largest_body(&found) > most:
            break
        if count and not same_bytes(p, &found.key, p + key.begin, key.end - key.begin):
            break
        key[0] = found.key
        count += 1
        at[0] = place
    return count

cdef inline Py_ssize_t largest_body(Xadd *found) noexcept nogil:
    """The bytes of the body if it has to be pairs; a plain body is shorter."""
    return 3 + digits_of(found.words) + found.pairs.end - found.pairs.begin

cdef inline bint same_bytes(const uint8_t *p, Span *span, const void *wanted, Py_ssize_t size) noexcept nogil:
    return span.end - span.begin == size and memcmp(p + span.begin, wanted, size) == 0

cdef Py_ssize_t put_xadd(
    uint8_t *q, const uint8_t *p, Xadd *found, const char *field, Py_ssize_t field_size,
    uint64_t timestamp, uint64_t identity
) noexcept nogil:
    """Write the frame of one XADD, of at most HEAD + `largest_body` bytes; return the bytes of its body."""
    cdef Py_ssize_t place = found.pairs.begin, size
    cdef Span pair, value
    cdef uint8_t *body
    if (
        found.words == 2
        and bulk_at(p, &place, found.pairs.end, &pair)
        and same_bytes(p, &pair, field, field_size)
        and bulk_at(p, &place, found.pairs.end, &value)
        and value.end > value.begin
        and not pairs_only(p + value.begin, value.end - value.begin)
    ):
        size = value.end - value.begin
        memcpy(q + HEAD, p + value.begin, size)
    else:
        body = put_line(q + HEAD, 42, found.words)
        memcpy(body, p + found.pairs.begin, found.pairs.end - found.pairs.begin)
        size = body - q - HEAD + found.pairs.end - found.pairs.begin
    put_head(q, <uint32_t>size, timestamp, identity)
    return size
