# The types of `ledger.py` where it is compiled.

cdef class Lease:
    cdef public Holder holder
    cdef public object delivered, timeout, deadline
    cdef public list runs
    cpdef bint settled(self)


cdef class Holder:
    cdef public str name
    cdef public bint named, keeps
    cdef public dict in_flight
    cdef public Lease lease
    cdef public object seen, active
    cdef public Py_ssize_t attached, delivered_count, finished_count, requeued_count


cdef class Ready:
    cdef object _places
    cpdef tuple first(self)
    cpdef list first_run(self, object cursor, Py_ssize_t most)
    cpdef bint remove(self, object sequence)


cdef class Ledger:
    cdef public dict holders, named, alone, attempts
    cdef public Holder mover
    cdef public Ready ready
    cdef public object failures, deferred, side_logged, max_timeout
    cdef list _leases
    cdef Py_ssize_t _many, _number
    cdef object _latencies, _keys, _failed, _stamps
    cdef bint _journaled, _watched
    cpdef Holder holder_of(self, object sequence)
    cpdef bint remove_waiting(self, object sequence)
    cdef _drop_if_gone(self, Holder holder)
    cdef Lease _lease(self, Holder holder, object delivered, object timeout, object deadline)
    cdef list _pull(self, Holder holder, list sequences)
