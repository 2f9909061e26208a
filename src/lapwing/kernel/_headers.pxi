# The byte loops of headers, compiled: `pure_headers.py` is the meaning.

cdef enum:
    BESIDE = 24  # bytes of a row beside its headers: brackets, commas, a sequence of at most 17 digits and a zero

cdef enum:
    BAD_HEADERS = 6
    HEADERS_TOO_BIG = 7
    LONGEST_NAME = 64
    LONGEST_MESSAGE_ID = 128

cdef extern from "Python.h":
    PyObject *PyBytes_FromStringAndSize_raw "PyBytes_FromStringAndSize" (const char *data, Py_ssize_t size)
    int _PyBytes_Resize(PyObject **made, Py_ssize_t size) except -1
    void Py_DECREF_raw "Py_DECREF" (PyObject *made)

cdef extern from *:
    """
    #if defined(__GNUC__) && defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
    typedef signed char lapwing_sixteen __attribute__((vector_size(16)));

    static inline int lapwing_first(lapwing_sixteen found) {
        unsigned long long half[2];
        memcpy(half, &found, 16);
        if (half[0]) return __builtin_ctzll(half[0]) >> 3;
        return half[1] ? 8 + (__builtin_ctzll(half[1]) >> 3) : 16;
    }

    static inline int lapwing_plain_run(const unsigned char *p) {
        lapwing_sixteen text;
        memcpy(&text, p, 16);
        return lapwing_first((text < 32) | (text == 34) | (text == 92));
    }

    static inline int lapwing_string_run(const unsigned char *p) {
        lapwing_sixteen text;
        memcpy(&text, p, 16);
        return lapwing_first((text == 34) | (text == 92));
    }
    #else
    static inline int lapwing_plain_run(const unsigned char *p) {
        int at = 0;
        while (at < 16 && p[at] >= 32 && p[at] < 128 && p[at] != 34 && p[at] != 92) at++;
        return at;
    }

    static inline int lapwing_string_run(const unsigned char *p) {
        int at = 0;
        while (at < 16 && p[at] != 34 && p[at] != 92) at++;
        return at;
    }
    #endif
    """
    # of the 16 bytes at p: how many come before the first that is no ASCII, a control character, a quote or a backslash
    int plain_run "lapwing_plain_run" (const uint8_t *p) noexcept nogil
    # the same, before the first quote or backslash
    int string_run "lapwing_string_run" (const uint8_t *p) noexcept nogil

cdef uint64_t SEQUENCE = (<uint64_t>1 << 54) - 1
cdef uint8_t IN_NAME[256]
cdef uint8_t IN_TEXT[256]  # 1: as it is, 0: not at all or with a meaning
cdef uint8_t DIGIT[256]  # the value of a hex digit, or 255


cdef void fill_tables() noexcept:
    cdef int place
    cdef const char *others = b"!#$%&'*+.^_`|~-"
    for place in range(256):
        IN_NAME[place] = 48 <= place <= 57 or 97 <= place <= 122
        IN_TEXT[place] = 32 <= place and place != 34 and place != 92
        DIGIT[place] = 255 if digit(<uint8_t>place) < 0 else digit(<uint8_t>place)
    for place in range(15):
        IN_NAME[<uint8_t>others[place]] = 1

fill_tables()


cdef bytes flat(object data):
    """The same bytes, which nobody can change."""
    cdef View view
    if PyBytes_CheckExact(data):
        return data
    view = hold(data)
    return PyBytes_FromStringAndSize(<const char *>view.at, view.size)


cdef inline Py_ssize_t past_space(const uint8_t *p, Py_ssize_t at, Py_ssize_t end) noexcept nogil:
    while at < end and (p[at] == 32 or p[at] == 10 or p[at] == 13 or p[at] == 9):
        at += 1
    return at


cdef inline bint is_hex(uint8_t c) noexcept nogil:
    return 48 <= c <= 57 or 97 <= c <= 102 or 65 <= c <= 70


cdef inline Py_ssize_t past_text(
    const uint8_t *p, Py_ssize_t at, Py_ssize_t end, Py_ssize_t readable, uint8_t *seen
) noexcept nogil:
    """Where the string of JSON whose inside begins at `at` ends, at its quote; -1 if it is not lawful."""
    cdef uint8_t c
    cdef int run
    while at < end:
        if readable - at >= 16:
            run = plain_run(p + at)
            at += run
            if run == 16:
                continue
            if at >= end:
                return -1
        c = p[at]
        if IN_TEXT[c]:
            seen[0] |= c
            at += 1
        elif c == 34:
            return at
        elif c == 92 and end - at >= 2:
            c = p[at + 1]
            if c == 117:
                if end - at < 6 or not (
                    is_hex(p[at + 2]) and is_hex(p[at + 3]) and is_hex(p[at + 4]) and is_hex(p[at + 5])
                ):
                    return -1
                at += 6
            elif c in (34, 92, 47, 98, 102, 110, 114, 116):
                at += 2
            else:
                return -1
        else:
            return -1
    return -1


cdef Py_ssize_t object_of(
    const uint8_t *p, Py_ssize_t end, Py_ssize_t readable, Py_ssize_t *begin, Py_ssize_t *stop
) except -2:
    """How many headers a lawful text has, and where its braces begin and end; -1 if it is not lawful.

    The text ends at `end`. Bytes up to `readable` may be looked at, and mean nothing.
    """
    cdef Py_ssize_t at = past_space(p, 0, end), count = 0, first, last
    cdef uint8_t seen = 0
    begin[0] = stop[0] = 0
    if at >= end or p[at] != 123:
        return -1
    begin[0] = at
    at = past_space(p, at + 1, end)
    if at < end and p[at] == 125:
        begin[0] = 0
        return 0 if past_space(p, at + 1, end) == end else -1
    while True:
        at = past_space(p, at, end)
        if at >= end or p[at] != 34:
            return -1
        first = at + 1
        last = first
        while last < end and IN_NAME[p[last]]:
            last += 1
        if last >= end or p[last] != 34 or last == first or last - first > LONGEST_NAME:
            return -1
        at = past_space(p, last + 1, end)
        if at >= end or p[at] != 58:
            return -1
        at = past_space(p, at + 1, end)
        if at >= end or p[at] != 34:
            return -1
        at += 1
        if last - first == 10 and memcmp(p + first, b"message-id", 10) == 0:
            first = at
            at = past_text(p, at, end, readable, &seen)
            if at < 0 or at - first > LONGEST_MESSAGE_ID:
                return -1
        else:
            at = past_text(p, at, end, readable, &seen)
            if at < 0:
                return -1
        count += 1
        at = past_space(p, at + 1, end)
        if at >= end:
            return -1
        if p[at] == 44:
            at += 1
            continue
        if p[at] != 125:
            return -1
        stop[0] = at + 1
        if past_space(p, at + 1, end) != end:
            return -1
        break
    if seen & 128:
        try:
            (<const char *>p)[:end].decode("utf-8")
        except UnicodeDecodeError:
            return -1
    return count


def count_headers(text):
    cdef bytes data = flat(text)
    cdef Py_ssize_t begin, stop, end = PyBytes_GET_SIZE(data)
    return object_of(<const uint8_t *>PyBytes_AS_STRING(data), end, end, &begin, &stop)


cdef struct Counter:  # a number that grows by one, in decimal digits
    uint8_t digits[20]
    int first


cdef void count_from(Counter *counter, uint64_t value) noexcept nogil:
    counter.first = 20
    while True:
        counter.first -= 1
        counter.digits[counter.first] = 48 + <uint8_t>(value % 10)
        value //= 10
        if value == 0:
            break


cdef inline void count_on(Counter *counter) noexcept nogil:
    """Add one. The number stays below 2**54."""
    cdef int place = 19
    while place >= counter.first and counter.digits[place] == 57:
        counter.digits[place] = 48
        place -= 1
    if place < counter.first:
        counter.first = place
        counter.digits[place] = 48
    counter.digits[place] += 1


cdef struct Headed:  # where messages with headers are framed to
    uint8_t *frames
    uint8_t *rows
    uint64_t identity  # of the next message
    uint64_t timestamp
    Counter sequence  # of the next message


cdef int frame_headed_run(Headed *to, const uint8_t *p, Py_ssize_t end, int64_t count, Py_ssize_t *at) except -2:
    """Frame the `count` messages at `at`, whose sizes were checked: -1, or the place of the first with bad headers."""
    cdef Py_ssize_t place = at[0], size, length, rest, begin, stop, number
    cdef uint8_t *q = to.frames
    cdef uint8_t *r = to.rows
    cdef int64_t index
    for index in range(count):
        size = <int32_t>get32(p + place)
        length = get32(p + place + 4)
        rest = size - 4 - length
        place += 8
        if length:
            number = object_of(p + place, length, end - place, &begin, &stop)
            if number < 0:
                return <int>index
            if number:
                r[0] = 91
                memcpy(r + 1, to.sequence.digits + to.sequence.first, 20 - to.sequence.first)
                r += 21 - to.sequence.first
                memcpy(r, b",0,", 3)
                memcpy(r + 3, p + place + begin, stop - begin)
                r += 3 + stop - begin
                r[0] = 93
                r[1] = 44  # the caller takes the last one off
                r += 2
        put_head(q, <uint32_t>rest, to.timestamp, to.identity)
        memcpy(q + HEAD, p + place + length, rest)
        q += HEAD + rest
        place += size - 4
        to.identity += 1
        if to.identity & SEQUENCE:
            count_on(&to.sequence)
        else:
            count_from(&to.sequence, 0)
    to.frames, to.rows, at[0] = q, r, place
    return -1


cdef bytes rows_of(const uint8_t *rows, const uint8_t *end):
    """The rows from `rows` on without the last comma."""
    return PyBytes_FromStringAndSize(<const char *>rows, end - rows - 1 if end > rows else 0)


cdef void frame_to(Headed *to, bytes frames, uint8_t *rows, uint64_t identity, int64_t timestamp) noexcept:
    to.frames = <uint8_t *>PyBytes_AS_STRING(frames)
    to.rows = rows
    to.identity = identity
    to.timestamp = <uint64_t>timestamp
    count_from(&to.sequence, identity & SEQUENCE)


def frame_headed(body, first_id, int64_t timestamp, max_count, max_size, max_headers):
    cdef bytes data = flat(body)
    cdef const uint8_t *p = <const uint8_t *>PyBytes_AS_STRING(data)
    cdef Py_ssize_t end = PyBytes_GET_SIZE(data), at = 4, most = near(max_count)
    cdef Py_ssize_t largest = min(near(max_size), ROOM), longest = near(max_headers), total = 0, beside = 0
    cdef int64_t size, length, rest
    cdef int32_t count, index
    cdef int bad
    cdef Headed to
    cdef bytes out
    cdef uint8_t *rows
    if end < 4:
        raise PublishRefused(SHORT, -1, end)
    count = <int32_t>get32(p)
    if count <= 0 or count > most:
        raise PublishRefused(BAD_COUNT, -1, count)
    for index in range(count):
        if end - at < 8:
            raise PublishRefused(SHORT, index, end)
        size = <int32_t>get32(p + at)
        length = get32(p + at + 4)
        if size < 4:
            raise PublishRefused(BAD_SIZE, index, size)
        if length > longest:
            raise PublishRefused(HEADERS_TOO_BIG, index, length)
        rest = size - 4 - length
        if rest <= 0:
            raise PublishRefused(BAD_SIZE, index, rest)
        if rest > largest:
            raise PublishRefused(TOO_BIG, index, rest)
        if end - at - 4 < size:
            raise PublishRefused(SHORT, index, end)
        at += 4 + size
        total += HEAD + rest
        if length:
            beside += length + BESIDE
    if at != end:
        raise PublishRefused(SURPLUS, count, at)
    out = PyBytes_FromStringAndSize(NULL, total)
    rows = <uint8_t *>PyMem_Malloc(beside + 1)
    if rows == NULL:
        raise MemoryError()
    try:
        frame_to(&to, out, rows, first_id & 0xFFFFFFFFFFFFFFFF, timestamp)
        at = 4
        bad = frame_headed_run(&to, p, end, count, &at)
        if bad >= 0:
            raise PublishRefused(BAD_HEADERS, bad, get32(p + headed_at(p, bad) + 4))
        return out, rows_of(rows, to.rows), count
    finally:
        PyMem_Free(rows)


cdef Py_ssize_t headed_at(const uint8_t *p, int index) noexcept:
    """Where a message of an HMPUB body begins that was checked before."""
    cdef Py_ssize_t at = 4
    cdef int number
    for number in range(index):
        at += 4 + <Py_ssize_t><int32_t>get32(p + at)
    return at


cdef inline Py_ssize_t past_string(const uint8_t *p, Py_ssize_t at, Py_ssize_t end) noexcept nogil:
    """Where the string whose quote is at `at` ends, behind its other quote; -1 if it does not end."""
    cdef int run
    at += 1
    while at < end:
        if end - at >= 16:
            run = string_run(p + at)
            at += run
            if run == 16:
                continue
        if p[at] == 34:
            return at + 1
        at += 2 if p[at] == 92 else 1
    return -1


cdef inline Py_ssize_t decimal_at(const uint8_t *p, Py_ssize_t at, Py_ssize_t end, int64_t *value) noexcept nogil:
    """Where the number at `at` ends; -1 unless it fits 63 bits and has no leading zero."""
    cdef Py_ssize_t begin = at
    cdef uint64_t number = 0
    while at < end and 48 <= p[at] <= 57 and at - begin < 20:
        number = number * 10 + (p[at] - 48)
        at += 1
    if at == begin or at - begin > 19 or (p[begin] == 48 and at - begin > 1) or number >> 63:
        return -1
    value[0] = <int64_t>number
    return at


cdef Py_ssize_t next_row(
    const uint8_t *p, Py_ssize_t at, Py_ssize_t end, int64_t *sequence, int64_t *deferral,
    Py_ssize_t *begin, Py_ssize_t *stop,
) except -1:
    """Where the row behind the one at `at` begins."""
    cdef Py_ssize_t start = at
    if p[at] != 91:
        raise ValueError(f"no row of headers at {start}")
    at = decimal_at(p, at + 1, end, sequence)
    if at < 0 or at >= end or p[at] != 44:
        raise ValueError(f"no row of headers at {start}")
    at = decimal_at(p, at + 1, end, deferral)
    if at < 0 or at + 1 >= end or p[at] != 44 or p[at + 1] != 123:
        raise ValueError(f"no row of headers at {start}")
    begin[0] = at + 1
    at += 2
    while True:
        if at >= end:
            raise ValueError("headers without an end")
        if p[at] == 34:
            at = past_string(p, at, end)
            if at < 0:
                raise ValueError("headers without an end")
        elif p[at] == 125:
            break
        else:
            at += 1
    stop[0] = at + 1
    at += 1
    if at >= end or p[at] != 93 or (at + 1 < end and p[at + 1] != 44):
        raise ValueError(f"a row of headers does not end at {at}")
    return at + 2


def find_rows(rows, start, stop):
    cdef bytes data = flat(rows)
    cdef const uint8_t *p = <const uint8_t *>PyBytes_AS_STRING(data)
    cdef Py_ssize_t end = PyBytes_GET_SIZE(data), at = 0, begin = 0, after = 0
    cdef int64_t sequence = 0, deferral = 0
    cdef Py_ssize_t first = near(start), last = near(stop)
    cdef list found = []
    while at < end:
        at = next_row(p, at, end, &sequence, &deferral, &begin, &after)
        if first <= sequence < last:
            found.append((sequence, deferral, PyBytes_FromStringAndSize(<const char *>(p + begin), after - begin)))
    return found


def row_places(rows):
    cdef bytes data = flat(rows)
    cdef const uint8_t *p = <const uint8_t *>PyBytes_AS_STRING(data)
    cdef Py_ssize_t end = PyBytes_GET_SIZE(data), at = 0, begin = 0, after = 0, count = 0, room = 256
    cdef int64_t deferral = 0
    cdef int64_t *pairs = <int64_t *>PyMem_Malloc(room * 16)  # the sequence of each row, and where the next begins
    cdef int64_t *grown
    cdef bytes first, second
    try:
        if pairs == NULL:
            raise MemoryError()
        while at < end:
            if count == room:
                room *= 2
                grown = <int64_t *>PyMem_Realloc(pairs, room * 16)
                if grown == NULL:
                    raise MemoryError()
                pairs = grown
            at = next_row(p, at, end, &pairs[2 * count], &deferral, &begin, &after)
            pairs[2 * count + 1] = at
            count += 1
        first, second = PyBytes_FromStringAndSize(NULL, 8 * count), PyBytes_FromStringAndSize(NULL, 8 * count)
        for at in range(count):
            memcpy(PyBytes_AS_STRING(first) + 8 * at, &pairs[2 * at], 8)
            memcpy(PyBytes_AS_STRING(second) + 8 * at, &pairs[2 * at + 1], 8)
    finally:
        PyMem_Free(pairs)
    places = array("q", [0])
    places.frombytes(second)
    return array("q", first), places


def message_ids(rows):
    return header_values(rows, b"message-id")


cdef bytes value_in(const uint8_t *p, Py_ssize_t at, Py_ssize_t end, bytes header):
    """The value of the last header of that name among those at `at`, as UTF-8; None if there is none."""
    cdef const char *named = PyBytes_AS_STRING(header)
    cdef Py_ssize_t longest = PyBytes_GET_SIZE(header), first, begin = 0, length = 0
    cdef bint naming = True, wanted = False
    cdef bytes value
    while at < end:
        if p[at] != 34:
            at += 1
            continue
        first = at + 1
        at = past_string(p, at, end)
        if naming:
            wanted = at - 1 - first == longest and memcmp(p + first, named, longest) == 0
        elif wanted:
            begin, length = first, at - 1 - first
        naming = not naming
    if not length:
        return None
    value = PyBytes_FromStringAndSize(<const char *>(p + begin), length)
    return value if memchr(p + begin, 92, length) == NULL else _plain(value)


def header_values(rows, bytes header not None):
    cdef bytes data = flat(rows), value
    cdef const uint8_t *p = <const uint8_t *>PyBytes_AS_STRING(data)
    cdef Py_ssize_t end = PyBytes_GET_SIZE(data), at = 0, begin = 0, after = 0
    cdef int64_t sequence = 0, deferral = 0
    cdef list found = []
    while at < end:
        at = next_row(p, at, end, &sequence, &deferral, &begin, &after)
        value = value_in(p, begin, after, header)
        if value is not None:
            found.append((sequence, value))
    return found


def header_column(rows, bytes header not None, int64_t first, Py_ssize_t count):
    cdef bytes data = flat(rows), value
    cdef const uint8_t *p = <const uint8_t *>PyBytes_AS_STRING(data)
    cdef Py_ssize_t end = PyBytes_GET_SIZE(data), at = 0, begin = 0, after = 0, longest = 0
    cdef int64_t sequence = 0, deferral = 0
    cdef list found = [None] * count
    while at < end:
        at = next_row(p, at, end, &sequence, &deferral, &begin, &after)
        if first <= sequence < first + count:
            value = value_in(p, begin, after, header)
            if value is not None:
                found[sequence - first] = value
                longest = max(longest, PyBytes_GET_SIZE(value))
    return found, longest


def place_among(sequences, int64_t sequence, Py_ssize_t first):
    cdef Py_buffer view
    cdef const int64_t *those
    cdef Py_ssize_t last, middle
    PyObject_GetBuffer(sequences, &view, PyBUF_SIMPLE)
    those, last = <const int64_t *>view.buf, view.len // 8
    while first < last:
        middle = (first + last) >> 1
        if those[middle] < sequence:
            first = middle + 1
        else:
            last = middle
    PyBuffer_Release(&view)
    return first


def with_headers(frames, rows):
    cdef bytes data = flat(frames), beside = flat(rows)
    cdef const uint8_t *p = <const uint8_t *>PyBytes_AS_STRING(data)
    cdef const uint8_t *r = <const uint8_t *>PyBytes_AS_STRING(beside)
    cdef Py_ssize_t end = PyBytes_GET_SIZE(data), full = PyBytes_GET_SIZE(beside), at = 0, row = 0
    cdef Py_ssize_t begin = 0, after = 0, length
    cdef int64_t carried = -1, deferral = 0, sequence
    cdef uint64_t value
    cdef uint32_t size
    cdef int place
    cdef uint8_t nibble, bad
    cdef PyObject *made = PyBytes_FromStringAndSize_raw(NULL, end + full)  # a row is longer than its headers and length
    cdef uint8_t *out
    cdef uint8_t *q
    if made == NULL:
        raise MemoryError()
    out = q = <uint8_t *>PyBytes_AS_STRING(<object>made)
    try:
        if row < full:
            row = next_row(r, row, full, &carried, &deferral, &begin, &after)
        while end - at >= HEAD:
            size = get32(p + at)
            if size < 30 or size > end - at - 4 or get32(p + at + 4) != MESSAGE:
                break
            value = 0
            bad = 0
            for place in range(16):
                nibble = DIGIT[p[at + 18 + place]]
                bad |= nibble
                value = (value << 4) | nibble
            sequence = -1 if bad & 128 else <int64_t>(value & SEQUENCE)
            while carried >= 0 and carried < sequence:
                carried = -1
                if row < full:
                    row = next_row(r, row, full, &carried, &deferral, &begin, &after)
            length = after - begin
            if carried >= 0 and carried == sequence and length > 2 and <int64_t>size + 4 + length <= LARGEST:
                put32(q, size + 4 + <uint32_t>length)
                put32(q + 4, HEADED)
                memcpy(q + 8, p + at + 8, 26)
                put32(q + HEAD, <uint32_t>length)
                memcpy(q + HEAD + 4, r + begin, length)
                q += HEAD + 4 + length
                memcpy(q, p + at + HEAD, size - 30)
                q += size - 30
                carried = -1  # once: there is room for each row once
                if row < full:
                    row = next_row(r, row, full, &carried, &deferral, &begin, &after)
            else:
                memcpy(q, p + at, size + 4)
                q += size + 4
            at += 4 + <Py_ssize_t>size
    except BaseException:
        Py_DECREF_raw(made)
        raise
    _PyBytes_Resize(&made, q - out)
    if made == NULL:
        raise MemoryError()
    frames = <object>made
    Py_DECREF_raw(made)
    return frames


def decode_headed(data, start, stop):
    cdef View view
    cdef const uint8_t *p
    cdef Py_ssize_t at = place_of(start), end, after
    cdef uint32_t size, length
    cdef list messages = []
    view = hold(data)
    p = view.at
    end = before(min(view.size, LARGEST), stop)
    while end - at >= HEAD + 4:
        size = get32(p + at)
        if size < 34 or size > end - at - 4 or get32(p + at + 4) != HEADED:
            break
        length = get32(p + at + HEAD)
        if length > size - 34:
            break
        after = at + 4 + <Py_ssize_t>size
        messages.append((
            <int64_t>get64(p + at + 8),
            (<int>p[at + 16] << 8) | p[at + 17],
            PyBytes_FromStringAndSize(<const char *>(p + at + 18), 16),
            PyBytes_FromStringAndSize(<const char *>(p + at + HEAD + 4 + length), after - at - HEAD - 4 - length),
            PyBytes_FromStringAndSize(<const char *>(p + at + HEAD + 4), length),
        ))
        at = after
    return messages, (at if messages else start)
