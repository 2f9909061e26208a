from libc.stdint cimport int64_t


cdef class Extent:
    cdef public int64_t end, size, newest, merge_bytes, reserved
    cdef public bint recorded_boot, torn
    cdef public object last


cdef class Blocks:
    cdef public list firsts, blocks
    cdef public int64_t end, bytes
    cdef int put(self, int64_t count, bytes frames) except -1


cdef class Tail:
    cdef public int64_t next, end, written, fresh_bytes, since_check
    cdef public list fresh, fresh_counts
    cdef public bint several, noted
    cdef int append(self, bytes frames, int64_t count) except -1
    cdef bint put(self) except -1
