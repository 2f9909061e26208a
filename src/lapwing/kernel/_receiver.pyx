# cython: language_level=3
"""Where a set of sockets puts the bytes that it has received, before it gives the rest to the connections."""


from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE


cdef class Partial:
    """A request whose body is still coming: it is received where it will stay, without a copy in between."""

    def unfinished(self):
        """Return the bytes that are there of the request, as the client sent them."""
        raise NotImplementedError


cdef class Receiver:
    """Takes whole requests that need no look at anything else, and answers them. This one takes nothing."""

    def offer(self, owner, bytes data):
        """Take requests from the beginning of `data`, like a set of sockets; return how many bytes they have."""
        return self.take(owner, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data))

    def settle(self):
        """Carry out what was taken, like a set of sockets; return connections and their answers in turns."""
        return self.finish()

    cdef Py_ssize_t take(self, object owner, const char *data, Py_ssize_t size) except -1:
        """Take requests of one connection from the beginning of `data`; return how many bytes they have.

        The last one may be there in part: then `partial` of the owner gets it, and has its rest received.
        """
        return 0

    cdef bint complete(self, object owner, Partial partial) except -1:
        """Take a request of which all is there now; return whether it was taken. `partial` of its owner was this one."""
        return False

    cdef list finish(self):
        """Carry out what was taken; return the connections that have answers, each followed by its bytes.

        A connection for which that failed is followed by the error, and ends; the others have their answers. `stays`
        says then whether nobody else has to be told of it, so that more may be received at once.
        """
        return []
