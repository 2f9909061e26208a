# Whole publishes back to back: shared by the compiled kernel and the sockets.

cdef const char *DIGITS = b"0123456789abcdef"


cdef inline uint32_t get32(const uint8_t *p) noexcept nogil:
    return (<uint32_t>p[0] << 24) | (<uint32_t>p[1] << 16) | (<uint32_t>p[2] << 8) | <uint32_t>p[3]


cdef inline void put32(uint8_t *p, uint32_t value) noexcept nogil:
    p[0] = value >> 24
    p[1] = (value >> 16) & 255
    p[2] = (value >> 8) & 255
    p[3] = value & 255


cdef inline void put_head(uint8_t *p, uint32_t size, uint64_t timestamp, uint64_t identity) noexcept nogil:
    cdef int place
    put32(p, size + 30)
    put32(p + 4, 2)  # a frame with a message
    put32(p + 8, <uint32_t>(timestamp >> 32))
    put32(p + 12, <uint32_t>timestamp)
    p[16] = 0
    p[17] = 1
    for place in range(15, -1, -1):
        p[18 + place] = DIGITS[identity & 15]
        identity >>= 4


cdef void put_pubs(
    uint8_t *p, const uint8_t *begin, Py_ssize_t end, const uint8_t *start, Py_ssize_t prefix,
    uint64_t timestamp, uint64_t identity
) noexcept nogil:
    """Write the frames of publishes that `count_pubs` has counted, with ids from `identity` on."""
    cdef Py_ssize_t at = 0
    cdef int64_t count, size, number
    cdef bint batches = prefix > 0 and start[0] == 77
    while at < end:
        at += prefix
        count = 1
        if batches:
            count = <int64_t><int32_t>get32(begin + at + 4)
            at += 8
        for number in range(count):
            size = <int64_t><int32_t>get32(begin + at)
            put_head(p, <uint32_t>size, timestamp, identity)
            memcpy(p + HEAD, begin + at + 4, size)
            p += HEAD + size
            identity += 1
            at += 4 + size


cdef Py_ssize_t count_pubs(
    const uint8_t *begin, Py_ssize_t end, const uint8_t *start, Py_ssize_t prefix,
    int64_t most_count, int64_t most_size, int64_t most_body, Py_ssize_t *messages, Py_ssize_t *total
) noexcept nogil:
    """Return how many commands `begin` holds: whole PUBs or MPUBs that begin with `start`; 0 for anything else.

    Count their messages, and the bytes of their frames.
    """
    cdef Py_ssize_t at = 0, commands = 0
    cdef int64_t count, left, size, number
    cdef bint batches = prefix > 0 and start[0] == 77
    messages[0] = total[0] = 0
    if most_size > ROOM:
        most_size = ROOM
    while at < end:
        count, left = 1, -1
        if end - at - prefix < 4 or memcmp(begin + at, start, prefix) != 0:
            return 0
        at += prefix
        if batches:
            if end - at < 8:
                return 0
            left = <int64_t><int32_t>get32(begin + at) - 4
            count = <int64_t><int32_t>get32(begin + at + 4)
            if left + 4 > most_body or count <= 0 or count > most_count:
                return 0
            at += 8
        for number in range(count):
            if end - at < 4:
                return 0
            size = <int64_t><int32_t>get32(begin + at)
            if size <= 0 or size > most_size or end - at - 4 < size:
                return 0
            at += 4 + size
            left -= 4 + size
            total[0] += size + HEAD
        if batches and left:
            return 0
        messages[0] += count
        commands += 1
    return commands


cdef enum:
    BESIDE = 24  # bytes of a row beside its headers: brackets, commas, a sequence of at most 17 digits and a zero


cdef inline bint is_batch(const uint8_t *start, Py_ssize_t prefix) noexcept nogil:
    """Whether commands that begin with `start` are HMPUBs rather than HPUBs."""
    return prefix > 1 and start[1] == 77


cdef Py_ssize_t count_headed_pubs(
    const uint8_t *begin, Py_ssize_t end, const uint8_t *start, Py_ssize_t prefix,
    int64_t most_count, int64_t most_size, int64_t most_body, int64_t most_headers,
    Py_ssize_t *messages, Py_ssize_t *total, Py_ssize_t *beside
) noexcept nogil:
    """Return how many commands `begin` holds: whole HPUBs or HMPUBs that begin with `start`; 0 for anything else.

    Count their messages, the bytes of their frames, and room for their rows. Nobody has looked at the headers yet.
    """
    cdef Py_ssize_t at = 0, commands = 0
    cdef int64_t count, left, size, length, rest, number
    cdef bint batches = is_batch(start, prefix)
    messages[0] = total[0] = beside[0] = 0
    if most_size > ROOM:
        most_size = ROOM
    while at < end:
        count, left = 1, -1
        if end - at - prefix < 8 or memcmp(begin + at, start, prefix) != 0:
            return 0
        at += prefix
        if batches:
            left = <int64_t><int32_t>get32(begin + at) - 4
            count = <int64_t><int32_t>get32(begin + at + 4)
            if left + 4 > most_body or count <= 0 or count > most_count:
                return 0
            at += 8
        for number in range(count):
            if end - at < 8:
                return 0
            size = <int64_t><int32_t>get32(begin + at)
            length = <int64_t>get32(begin + at + 4)
            rest = size - 4 - length
            if length > most_headers or rest <= 0 or rest > most_size or end - at - 4 < size:
                return 0
            at += 4 + size
            left -= 4 + size
            total[0] += rest + HEAD
            if length:
                beside[0] += length + BESIDE
        if batches and left:
            return 0
        messages[0] += count
        commands += 1
    return commands
