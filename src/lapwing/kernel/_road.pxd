from libc.stdint cimport int64_t


cdef class Tail:
    cdef public int64_t next, end, written, fresh_bytes, since_check
    cdef public list fresh, fresh_counts
    cdef public bint several, noted
    cdef int append(self, bytes frames, int64_t count) except -1
    cdef bint put(self) except -1
