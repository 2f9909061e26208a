cdef class Partial:
    cdef char *room
    cdef Py_ssize_t have, size


cdef class Receiver:
    cdef bint stays
    cdef Py_ssize_t take(self, object owner, const char *data, Py_ssize_t size) except -1
    cdef bint complete(self, object owner, Partial partial) except -1
    cdef list finish(self)
