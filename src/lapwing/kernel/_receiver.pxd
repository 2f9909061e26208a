cdef class Receiver:
    cdef bint stays
    cdef Py_ssize_t take(self, object owner, const char *data, Py_ssize_t size) except -1
    cdef list finish(self)
