# The byte loops of RESP, compiled; part of `_speed.pyx`. `pure_resp.py` says what each function means.

cdef inline uint64_t milliseconds_at(const uint8_t *frame) noexcept nogil:
    cdef int64_t stamp = <int64_t>get64(frame + 8)
    return <uint64_t>(stamp // 1000000) if stamp > 0 else 0


def split_words(data, start, max_words):
    cdef View view
    cdef const uint8_t *p
    cdef Py_ssize_t at = place_of(start), most = near(max_words)
    cdef int64_t count, index
    cdef Span span
    cdef list words
    view = hold(data)
    p = view.at
    if at >= view.size:
        return [], start
    count = line_number(p, &at, view.size, 42)
    # every word takes at least 5 bytes, so a count that cannot fit never takes memory
    if count < 1 or count > most or count > (view.size - at) // 5:
        return [], start
    words = []
    for index in range(count):
        if not bulk_at(p, &at, view.size, &span):
            return [], start
        words.append(PyBytes_FromStringAndSize(<const char *>(p + span.begin), span.end - span.begin))
    return words, at


def take_words(data, start, max_words, room, unsigned short overhead):
    cdef View view
    cdef const uint8_t *p
    cdef Py_ssize_t at = place_of(start), place, most = near(max_words), space = max(near(room), <Py_ssize_t>-1)
    cdef Py_ssize_t taken = 0, count = 0, each = overhead
    cdef Span span
    cdef list words = []
    view = hold(data)
    p = view.at
    while count < most:
        place = at
        if not bulk_at(p, &place, view.size, &span) or span.end - span.begin > space - taken - each:
            break
        words.append(PyBytes_FromStringAndSize(<const char *>(p + span.begin), span.end - span.begin))
        taken += span.end - span.begin + each
        count += 1
        at = place
    return words, (at if count else start), taken


def is_pairs(body):
    cdef View view
    view = hold(body)
    return bool(pairs_only(view.at, view.size))


def xadd_run(data, start, max_size):
    cdef View view
    cdef Py_ssize_t at = place_of(start), count
    cdef Span key
    view = hold(data)
    count = count_xadds(view.at, &at, view.size, near(max_size), &key)
    if not count:
        return 0, start, b""
    return count, at, PyBytes_FromStringAndSize(<const char *>view.at + key.begin, key.end - key.begin)


def frame_xadds(block, first_id, int64_t timestamp, field):
    cdef View view, name
    cdef const uint8_t *p
    cdef uint64_t identity = first_id & 0xFFFFFFFFFFFFFFFF
    cdef Py_ssize_t at = 0, count = 0, size, total = 0, room
    cdef Xadd found
    cdef bytes out
    cdef uint8_t *q
    view = hold(block)
    name = hold(field)
    p = view.at
    room = 0
    while at < view.size:
        if not plain_xadd(p, &at, view.size, &found):
            raise ValueError(f"no plain XADD at {at}")
        size = largest_body(&found)
        if size > ROOM:
            raise OverflowError(f"a body of {size} bytes does not fit a frame")
        room += HEAD + size
    out = PyBytes_FromStringAndSize(NULL, room)
    q = <uint8_t *>PyBytes_AS_STRING(out)
    at = 0
    while at < view.size:
        if not plain_xadd(p, &at, view.size, &found) or room < HEAD + largest_body(&found):
            raise ValueError("the block changed while it was framed")
        size = put_xadd(q, p, &found, <const char *>name.at, name.size, <uint64_t>timestamp, identity)
        q += HEAD + size
        room -= HEAD + size
        total += size
        identity += 1
        count += 1
    return (out if not room else out[: len(out) - room]), count, total


def id_replies(milliseconds, first, count):
    cdef uint64_t time = milliseconds & 0xFFFFFFFFFFFFFFFF, sequence = first & 0xFFFFFFFFFFFFFFFF, number
    cdef Py_ssize_t many = near(count), index, room = 0
    cdef int head = digits_of(time) + 1, size
    cdef bytes out
    cdef uint8_t *q
    if many <= 0:
        return b""
    number = sequence
    for index in range(many):
        size = head + digits_of(number)
        room += size + 5 + digits_of(size)
        number += 1
    out = PyBytes_FromStringAndSize(NULL, room)
    q = <uint8_t *>PyBytes_AS_STRING(out)
    for index in range(many):
        q = put_id(q, time, sequence)
        sequence += 1
    return out


def entry_replies(data, start, stop, first, field):
    cdef View view, name
    cdef const uint8_t *p
    cdef uint64_t sequence = first & 0xFFFFFFFFFFFFFFFF
    cdef Py_ssize_t begin = place_of(start), at = begin, end, count = 0, room = 0, plain, index
    cdef Py_ssize_t body
    cdef uint32_t size
    cdef bytes out
    cdef uint8_t *q
    cdef uint8_t *full
    view = hold(data)
    name = hold(field)
    p = view.at
    end = before(min(view.size, LARGEST), stop)
    plain = 4 + 5 + digits_of(name.size) + name.size
    while end - at >= HEAD:
        size = get32(p + at)
        if size < 30 or size > end - at - 4 or get32(p + at + 4) != MESSAGE:
            break
        # at most: the array's line, an id of two numbers of 20 digits, and the body as one pair
        room += 4 + 47 + plain + 15 + (size - 30)
        at += 4 + <Py_ssize_t>size
        count += 1
    if not count:
        return b"", 0, start
    out = PyBytes_FromStringAndSize(NULL, room)
    q = <uint8_t *>PyBytes_AS_STRING(out)
    full = q + room
    at = begin
    for index in range(count):
        if end - at < HEAD:
            raise ValueError("the frames changed while they were answered")
        size = get32(p + at)
        if size < 30 or size > end - at - 4 or full - q < 4 + 47 + plain + 15 + <Py_ssize_t>size - 30:
            raise ValueError("the frames changed while they were answered")
        memcpy(q, b"*2\r\n", 4)
        q = put_id(q + 4, milliseconds_at(p + at), sequence)
        body = <Py_ssize_t>size - 30
        if not pairs_only(p + at + HEAD, body):
            memcpy(q, b"*2\r\n", 4)
            q = put_line(q + 4, 36, name.size)
            memcpy(q, name.at, name.size)
            q += name.size
            q[0] = 13
            q[1] = 10
            q = put_line(q + 2, 36, body)
            memcpy(q, p + at + HEAD, body)
            q += body
            q[0] = 13
            q[1] = 10
            q += 2
        else:
            memcpy(q, p + at + HEAD, body)
            q += body
        sequence += 1
        at += 4 + <Py_ssize_t>size
    return PyBytes_FromStringAndSize(PyBytes_AS_STRING(out), room - (full - q)), count, at


def publish_times(data, start, stop):
    cdef View view
    cdef const uint8_t *p
    cdef Py_ssize_t first = place_of(start), count = 0, index
    cdef int32_t *places
    cdef bytes out
    cdef int64_t *stamps
    view = hold(data)
    p = view.at
    places = positions_of(p, first, before(min(view.size, LARGEST), stop), &count)
    try:
        out = PyBytes_FromStringAndSize(NULL, count * sizeof(int64_t))
        stamps = <int64_t *>PyBytes_AS_STRING(out)
        for index in range(count):
            stamps[index] = <int64_t>milliseconds_at(p + places[index])
        times = array("q")
        times.frombytes(out)
        return times, (places[count] if count else start)
    finally:
        PyMem_Free(places)


cdef inline bint unsigned_at(const uint8_t *p, Py_ssize_t *at, Py_ssize_t end, uint64_t *value) noexcept nogil:
    """Whether a number of 64 bits in its only spelling is at `at`, which moves on behind it."""
    cdef Py_ssize_t place = at[0]
    cdef uint64_t number, figure
    if place >= end or not 48 <= p[place] <= 57:
        return False
    number = p[place] - 48
    place += 1
    if number:
        while place < end and 48 <= p[place] <= 57:
            figure = p[place] - 48
            if number > (<uint64_t>0xFFFFFFFFFFFFFFFF - figure) // 10:
                return False
            number = number * 10 + figure
            place += 1
    value[0] = number
    at[0] = place
    return True


cdef inline bint known_id(
    const uint8_t *p, Py_ssize_t at, Py_ssize_t end, uint64_t origin, const int64_t *stamps, Py_ssize_t many,
    uint64_t *sequence
) noexcept nogil:
    """Whether [at, end) is an id whose time is that of its sequence, by the ms from sequence `origin` on."""
    cdef uint64_t milliseconds
    if not unsigned_at(p, &at, end, &milliseconds) or at >= end or p[at] != 45:
        return False
    at += 1
    if not unsigned_at(p, &at, end, sequence) or at != end or sequence[0] < origin:
        return False
    return (
        sequence[0] - origin < <uint64_t>many
        and milliseconds <= <uint64_t>0x7FFFFFFFFFFFFFFF
        and stamps[sequence[0] - origin] == <int64_t>milliseconds
    )


cdef uint64_t sequence_from(first) except? 0xFFFFFFFFFFFFFFFF:
    try:
        return first
    except OverflowError:
        raise ValueError(f"first {first} is no sequence") from None


def known_sequences(list words not None, start, first, times):
    cdef View view
    cdef const int64_t *stamps
    cdef Py_ssize_t begin = place_of(start), index, many
    cdef uint64_t origin = sequence_from(first), sequence
    cdef list found = [], others = []
    view = hold(times)
    stamps = <const int64_t *>view.at
    many = view.size // <Py_ssize_t>sizeof(int64_t)
    for index in range(begin, len(words)):
        word = words[index]
        if PyBytes_CheckExact(word) and known_id(
            <const uint8_t *>PyBytes_AS_STRING(word), 0, PyBytes_GET_SIZE(word), origin, stamps, many, &sequence
        ):
            found.append(sequence)
        else:
            others.append(word)
    return found, others


def acked_sequences(data, head, first, times):
    cdef View view, wanted, stamps
    cdef const uint8_t *p
    cdef Py_ssize_t at = 0
    cdef int64_t count, many
    cdef uint64_t origin = sequence_from(first), sequence
    cdef Span span
    cdef list found = []
    view = hold(data)
    wanted = hold(head)
    stamps = hold(times)
    p = view.at
    many = stamps.size // <Py_ssize_t>sizeof(int64_t)
    count = line_number(p, &at, view.size, 42)
    if count < 4 or wanted.size > view.size - at or memcmp(p + at, wanted.at, wanted.size):
        return []
    at += wanted.size
    for _ in range(count - 3):
        if not bulk_at(p, &at, view.size, &span) or not known_id(
            p, span.begin, span.end, origin, <const int64_t *>stamps.at, many, &sequence
        ):
            return []
        found.append(sequence)
    return found if at == view.size else []
