# Whole publishes back to back: shared by the compiled kernel and the sockets.

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
