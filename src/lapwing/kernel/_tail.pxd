# The types of `tail.py` where it is compiled.

cimport cython
from libc.stdint cimport int64_t


cdef class Extent:
    cdef public int64_t end, size, newest, merge_bytes, reserved
    cdef public bint recorded_boot, torn
    cdef public object last


cdef class Blocks:
    cdef public list firsts, blocks
    cdef public int64_t end, bytes
    cpdef add(self, int64_t count, bytes frames)


cdef class Tail:
    cdef public int64_t next, end, written, fresh_bytes, since_check
    cdef public list fresh, fresh_counts
    cdef public bint several, noted
    cdef int _put(self, bytes frames, int64_t count) except -1
    @cython.locals(
        segments=list, rows=list, segment=Extent, window=Blocks, frames=bytes, size=int64_t, place=int64_t,
        after=int64_t, time=int64_t, count=int64_t, grown_count=int64_t, grown_length=int64_t, held=int64_t,
        noted=int64_t, change=int64_t, merges=bint,
    )
    cdef bint _write_behind(self) except -1
