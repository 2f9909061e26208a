# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Each hot byte loop compiled: the speed. `pure.py` is the meaning; both pass the same tests."""

from array import array

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.list cimport PyList_New, PyList_SET_ITEM
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from cpython.ref cimport Py_INCREF, PyObject
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy

from lapwing.errors import PublishRefused
from lapwing.kernel.pure_headers import _plain

cdef enum:
    HEAD = 34
    MESSAGE = 2
    HEADED = 3
    BAD_COUNT = 1
    BAD_SIZE = 2
    TOO_BIG = 3
    SHORT = 4
    SURPLUS = 5

cdef extern from "Python.h":
    Py_ssize_t PY_SSIZE_T_MAX
    Py_ssize_t PY_SSIZE_T_MIN
    long long PyLong_AsLongLongAndOverflow(object number, int *overflow) except? -1

cdef int64_t LARGEST = 0x7FFFFFFF
cdef int64_t ROOM = 0x7FFFFFFF - 30
include "_frames.pxi"
include "_fins.pxi"

cdef inline uint64_t get64(const uint8_t *p) noexcept nogil:
    return (<uint64_t>get32(p) << 32) | get32(p + 4)

cdef inline int digit(uint8_t c) noexcept nogil:
    if 48 <= c <= 57:
        return c - 48
    if 97 <= c <= 102:
        return c - 87
    return -1

cdef inline Py_ssize_t near(object number) except? -1:
    """The nearest number to any integer that C can hold: nothing lies beyond it anyway."""
    cdef int beyond = 0
    cdef long long value = PyLong_AsLongLongAndOverflow(number, &beyond)
    if beyond > 0 or value > PY_SSIZE_T_MAX:
        return PY_SSIZE_T_MAX
    if beyond < 0 or value < PY_SSIZE_T_MIN:
        return PY_SSIZE_T_MIN
    return <Py_ssize_t>value

cdef inline Py_ssize_t place_of(object start) except -1:
    cdef Py_ssize_t at = near(start)
    if at < 0:
        raise ValueError(f"start {start} is negative")
    return at

cdef inline Py_ssize_t before(Py_ssize_t most, object stop) except -1:
    """`stop`, but neither negative nor past `most`: no difference of two places can overflow then."""
    cdef Py_ssize_t end = near(stop)
    return 0 if end < 0 else min(end, most)

@cython.final
@cython.freelist(8)
@cython.no_gc  # else it would be collected by way of the buffer; what that belongs to refers to no view
cdef class View:
    """The bytes of an object, which stay where they are as long as this lives."""

    cdef Py_buffer buffer
    cdef uint8_t *at
    cdef Py_ssize_t size

    def __dealloc__(self):
        PyBuffer_Release(&self.buffer)


cdef View hold(object data, int flags=PyBUF_SIMPLE):
    cdef View view = View.__new__(View)
    PyObject_GetBuffer(data, &view.buffer, flags)
    view.at, view.size = <uint8_t *>view.buffer.buf, view.buffer.len
    return view


cdef Py_ssize_t size_of(object body) except -1:
    cdef Py_ssize_t size = PyBytes_GET_SIZE(body) if PyBytes_CheckExact(body) else hold(body).size
    if size > ROOM:
        raise OverflowError(f"a body of {size} bytes does not fit a frame")
    return size


def frame_one(body, first_id, int64_t timestamp):
    cdef View view
    cdef uint64_t identity = first_id & 0xFFFFFFFFFFFFFFFF
    cdef bytes out
    cdef uint8_t *p
    view = hold(body)
    if view.size > ROOM:
        raise OverflowError(f"a body of {view.size} bytes does not fit a frame")
    out = PyBytes_FromStringAndSize(NULL, view.size + HEAD)
    p = <uint8_t *>PyBytes_AS_STRING(out)
    put_head(p, <uint32_t>view.size, <uint64_t>timestamp, identity)
    memcpy(p + HEAD, view.at, view.size)
    return out


def frame_bodies(bodies, first_id, int64_t timestamp):
    cdef uint64_t identity = first_id & 0xFFFFFFFFFFFFFFFF
    cdef Py_ssize_t total = 0, size
    cdef list pieces = []
    cdef bytes piece, out
    cdef uint8_t *p
    for body in bodies:
        total += size_of(body) + HEAD
        pieces.append(flat(body))
    out = PyBytes_FromStringAndSize(NULL, total)
    p = <uint8_t *>PyBytes_AS_STRING(out)
    for piece in pieces:
        size = PyBytes_GET_SIZE(piece)
        put_head(p, <uint32_t>size, <uint64_t>timestamp, identity)
        memcpy(p + HEAD, PyBytes_AS_STRING(piece), size)
        p += HEAD + size
        identity += 1
    return out


def frame_mpub(body, first_id, int64_t timestamp, max_count, max_size):
    cdef View view
    cdef Py_ssize_t most = near(max_count), largest = min(near(max_size), ROOM)
    cdef uint64_t identity = first_id & 0xFFFFFFFFFFFFFFFF
    cdef const uint8_t *data
    cdef Py_ssize_t end, at = 4
    cdef int32_t count, size, index
    cdef bytes out
    cdef uint8_t *p
    cdef uint8_t *full
    view = hold(body)
    data = view.at
    end = view.size
    if end < 4:
        raise PublishRefused(SHORT, -1, end)
    count = <int32_t>get32(data)
    if count <= 0 or count > most:
        raise PublishRefused(BAD_COUNT, -1, count)
    # every message takes at least 4 bytes, so a count that cannot fit never takes memory
    for index in range(count):
        if end - at < 4:
            raise PublishRefused(SHORT, index, end)
        size = <int32_t>get32(data + at)
        if size <= 0:
            raise PublishRefused(BAD_SIZE, index, size)
        if size > largest:
            raise PublishRefused(TOO_BIG, index, size)
        at += 4
        if end - at < size:
            raise PublishRefused(SHORT, index, end)
        at += size
    if at != end:
        raise PublishRefused(SURPLUS, count, at)
    out = PyBytes_FromStringAndSize(NULL, end - 4 + <Py_ssize_t>count * (HEAD - 4))
    p = <uint8_t *>PyBytes_AS_STRING(out)
    full = p + len(out)
    at = 4
    for index in range(count):
        # looked at again: whoever owns the bytes may be another process
        if end - at < 4 or full - p < HEAD:
            raise ValueError("the body changed while it was framed")
        size = <int32_t>get32(data + at)
        if size < 0 or end - at - 4 < size or full - p - HEAD < size:
            raise ValueError("the body changed while it was framed")
        put_head(p, <uint32_t>size, <uint64_t>timestamp, identity)
        memcpy(p + HEAD, data + at + 4, size)
        p += HEAD + size
        at += 4 + size
        identity += 1
    return out, count


def mpub_run(data, at, count, max_size):
    cdef View view
    cdef const uint8_t *p
    cdef Py_ssize_t place = place_of(at), most = near(count), largest = min(near(max_size), ROOM), whole = 0
    cdef int32_t size
    view = hold(data)
    p = view.at
    while whole < most and view.size - place >= 4:
        size = <int32_t>get32(p + place)
        if size <= 0 or size > largest or view.size - place - 4 < size:
            break
        place += 4 + size
        whole += 1
    return whole, (at if whole == 0 else place)


def fin_run(data, start):
    cdef View view
    cdef Py_ssize_t at = place_of(start), size
    view = hold(data)
    size = fins_size(view.at + at, view.size - at)
    return at + size if size else start


def fin_sequences(block, base):
    cdef View view
    cdef const uint8_t *p
    cdef uint64_t origin, value
    cdef Py_ssize_t at = 4
    cdef int place, nibble
    cdef list found = []
    try:
        origin = base
    except OverflowError:
        raise ValueError(f"base {base} is no id") from None
    view = hold(block)
    p = view.at
    while view.size - at > 16:
        value = 0
        for place in range(16):
            nibble = digit(p[at + place])
            if nibble < 0:
                break
            value = (value << 4) | <uint64_t>nibble
        found.append(value - origin if nibble >= 0 and value >= origin else -1)
        at += FIN
    return found


def take_frames(data, start, stop, max_count, max_bytes):
    cdef View view
    cdef const uint8_t *p
    cdef Py_ssize_t first = place_of(start), most = near(max_count), room = near(max_bytes)
    cdef Py_ssize_t count = 0, at = first, end, limit
    cdef uint32_t size
    view = hold(data)
    p = view.at
    end = before(view.size, stop)
    limit = end if room >= end - first else first + room
    while count < most and end - at >= HEAD:
        size = get32(p + at)
        if size < 30 or size > LARGEST or size > end - at - 4 or get32(p + at + 4) != MESSAGE:
            break
        if count and at + 4 + <Py_ssize_t>size > limit:
            break
        at += 4 + <Py_ssize_t>size
        count += 1
    return count, (at if count else start)


def fins_of(data, start, stop):
    cdef View view
    cdef const uint8_t *p
    cdef Py_ssize_t first = place_of(start), count = 0, at = first, index, end
    cdef uint32_t size
    cdef bytes out
    cdef char *line
    view = hold(data)
    p = view.at
    end = before(min(view.size, LARGEST), stop)
    while end - at >= HEAD:
        size = get32(p + at)
        if size < 30 or size > end - at - 4 or (get32(p + at + 4) != MESSAGE and get32(p + at + 4) != HEADED):
            break
        at += 4 + <Py_ssize_t>size
        count += 1
    out = PyBytes_FromStringAndSize(NULL, count * FIN)
    line = PyBytes_AS_STRING(out)
    at = first
    for index in range(count):
        if end - at < HEAD:
            raise ValueError("the frames changed while they were answered")
        memcpy(line, b"FIN ", 4)
        memcpy(line + 4, p + at + 18, 16)
        line[20] = 10
        line += FIN
        at += 4 + <Py_ssize_t>get32(p + at)
    return out, count, (at if count else start)


cdef int32_t *positions_of(const uint8_t *p, Py_ssize_t start, Py_ssize_t stop, Py_ssize_t *count) except NULL:
    """The begins of all whole frames and the end of the last; the caller frees them."""
    cdef Py_ssize_t room = 256, found = 0, at = start
    cdef uint32_t size
    cdef int32_t *grown
    cdef int32_t *places = <int32_t *>PyMem_Malloc(room * sizeof(int32_t))
    if places == NULL:
        raise MemoryError()
    places[0] = <int32_t>at if at <= LARGEST else 0
    while stop - at >= HEAD:
        size = get32(p + at)
        if size < 30 or size > stop - at - 4 or get32(p + at + 4) != MESSAGE:
            break
        at += 4 + <Py_ssize_t>size
        found += 1
        if found == room:
            room *= 2
            grown = <int32_t *>PyMem_Realloc(places, room * sizeof(int32_t))
            if grown == NULL:
                PyMem_Free(places)
                raise MemoryError()
            places = grown
        places[found] = <int32_t>at
    count[0] = found
    return places


def scan_frames(data, start, stop):
    cdef View view
    cdef Py_ssize_t first = place_of(start), count = 0
    cdef int32_t *places
    view = hold(data)
    places = positions_of(view.at, first, before(min(view.size, LARGEST), stop), &count)
    try:
        positions = array("i")
        positions.frombytes(PyBytes_FromStringAndSize(<const char *>places, (count + 1) * sizeof(int32_t)))
        return positions, (places[count] if count else start)
    finally:
        PyMem_Free(places)


def decode_columns(data, start, stop, row, ids, times, offsets, bodies):
    cdef View view, id_view, time_view, offset_view, body_view
    cdef const uint8_t *p
    cdef char *id_at
    cdef int64_t *time_at
    cdef int32_t *offset_at
    cdef char *body_at
    cdef Py_ssize_t at = place_of(start), end, index = place_of(row), most, room, total, size
    view = hold(data)
    id_view = hold(ids, PyBUF_WRITABLE)
    time_view = hold(times, PyBUF_WRITABLE)
    offset_view = hold(offsets, PyBUF_WRITABLE)
    body_view = hold(bodies, PyBUF_WRITABLE)
    p = view.at
    id_at = <char *>id_view.at
    time_at = <int64_t *>time_view.at
    offset_at = <int32_t *>offset_view.at
    body_at = <char *>body_view.at
    end = before(min(view.size, LARGEST), stop)
    most = min(id_view.size // 16, time_view.size // 8, offset_view.size // 4 - 1)
    room = min(body_view.size, LARGEST)
    if index > most:
        raise ValueError("a row outside of the columns")
    total = offset_at[index]
    if total < 0:
        raise ValueError("an offset that is negative")
    while index < most and end - at >= HEAD:
        size = get32(p + at)
        if size < 30 or size > end - at - 4 or get32(p + at + 4) != MESSAGE:
            break
        size -= 30
        if size > room - total:
            break
        time_at[index] = <int64_t>get64(p + at + 8) / 1000
        memcpy(id_at + index * 16, p + at + 18, 16)
        memcpy(body_at + total, p + at + HEAD, size)
        total += size
        index += 1
        offset_at[index] = <int32_t>total
        at += HEAD + size
    return index, at if at > start else start


def decode_messages(data, start, stop):
    cdef View view
    cdef const uint8_t *p
    cdef Py_ssize_t first = place_of(start), count = 0, index, at
    cdef int32_t *places
    cdef list messages
    cdef tuple message
    view = hold(data)
    p = view.at
    places = positions_of(p, first, before(min(view.size, LARGEST), stop), &count)
    try:
        messages = PyList_New(count)
        for index in range(count):
            at = places[index]
            message = (
                <int64_t>get64(p + at + 8),
                (<int>p[at + 16] << 8) | p[at + 17],
                PyBytes_FromStringAndSize(<const char *>(p + at + 18), 16),
                PyBytes_FromStringAndSize(<const char *>(p + at + HEAD), places[index + 1] - at - HEAD),
            )
            Py_INCREF(message)
            PyList_SET_ITEM(messages, index, message)
        return messages, (places[count] if count else start)
    finally:
        PyMem_Free(places)


def with_each_attempts(bytes frames not None, attempts):
    cdef Py_ssize_t size = PyBytes_GET_SIZE(frames), at = 0
    cdef bytes out = PyBytes_FromStringAndSize(PyBytes_AS_STRING(frames), size)
    cdef uint8_t *p = <uint8_t *>PyBytes_AS_STRING(out)
    cdef uint16_t tries
    for each in attempts:
        if size - at < HEAD:
            raise ValueError(f"{len(attempts)} frames were expected")
        tries = min(max(each, 0), 0xFFFF)
        p[at + 16] = tries >> 8
        p[at + 17] = tries & 255
        at += 4 + <Py_ssize_t>get32(p + at)
    if at != size:
        raise ValueError(f"{len(attempts)} frames were expected")
    return out


def with_attempts(frame, attempts):
    cdef bytes out
    cdef View view
    cdef uint8_t *p
    cdef uint16_t tries = min(max(attempts, 0), 0xFFFF)
    view = hold(frame)
    if view.size < HEAD:
        raise ValueError(f"frame of {view.size} bytes, at least {HEAD} needed")
    out = PyBytes_FromStringAndSize(<const char *>view.at, view.size)
    p = <uint8_t *>PyBytes_AS_STRING(out)
    p[16] = tries >> 8
    p[17] = tries & 255
    return out


include "_xadds.pxi"
include "_resp.pxi"
include "_headers.pxi"
