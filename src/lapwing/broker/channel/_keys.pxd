# The types of `keys.py` where it is compiled.

cimport cython

cdef class Key:
    cdef public object name, waiting
    cdef public list again
    cdef public bint free, lined, blocked
    cdef public Py_ssize_t weight, out, at, level, credit
    cpdef bint waits(self)
    cpdef wait(self, object sequence)
    cpdef pass_first(self)
    cpdef put_back(self, object sequence)
    cpdef returns(self, object sequence)
    cpdef bint withdraw(self, object sequence)


cdef class Line:
    cdef object _keys
    cpdef push(self, Key key)
    cpdef Key pop(self)
    cpdef leave(self, Key key)
    cpdef move(self, Key key)
    cpdef back(self, Key key)
    cpdef put_first(self, Key key)


cdef class FairLine(Line):
    cdef dict _levels
    cdef list _heap


cdef class Page:
    cdef public object positions
    cdef public Py_ssize_t first, stop
    cdef public bytes frames
    cdef public list keys


cdef class Keys:
    cdef public object passed, now
    cdef public bint ordered, fair
    cdef public Py_ssize_t most
    cdef public dict blocked
    cdef object _ledger, _names, _weights, _behind, _reader
    cdef Line _line
    cdef public dict _keys, _key_of, _resting, _unread
    cdef public Key _keyless
    cdef public bint _stale
    cdef Page _page, _back
    @cython.locals(key=Key)
    cpdef wait_again(self, sequences, behind)
    cdef _return(self, Key key, sequence, behind)
    @cython.locals(key=Key)
    cpdef wait_no_more(self, sequence)
    @cython.locals(key=Key)
    cpdef leave(self, sequences)
    @cython.locals(key=Key)
    cpdef put_off(self, sequences)
    @cython.locals(key=Key)
    cpdef moved(self, sequence)
    @cython.locals(key=Key)
    cdef Key _key(self, name)
    cpdef bint may_deliver(self, Key key)
    cdef _place(self, Key key)
    @cython.locals(key=Key)
    cdef _learn(self, channel, sequence)
    @cython.locals(key=Key, following=cython.longlong)
    cpdef tuple pick(self, Py_ssize_t most)
    @cython.locals(key=Key)
    cpdef put_back(self, sequences)
    @cython.locals(page=Page, place=cython.Py_ssize_t)
    cpdef list read(self, topic, sequences)
    cpdef bint reach(self) except -1
    @cython.locals(page=Page, position=cython.Py_ssize_t, stop=cython.Py_ssize_t, before=cython.Py_ssize_t)
    cdef Py_ssize_t _look(self, topic, Py_ssize_t cursor, Py_ssize_t most, Py_ssize_t budget, list sequences, list parts) except? -1
    @cython.locals(
        key=Key, keys=dict, key_of=dict, names=list, frames=bytes, first=cython.Py_ssize_t, begun=cython.Py_ssize_t,
        place=cython.Py_ssize_t, end=cython.Py_ssize_t, count=cython.Py_ssize_t, limit=cython.Py_ssize_t,
        fair=cython.bint, first_one=cython.bint,
    )
    cdef Py_ssize_t _look_at(
        self, Page page, Py_ssize_t start, Py_ssize_t stop, Py_ssize_t most, list sequences, list parts
    ) except -1
    cdef Page _load(self, topic, Py_ssize_t position, Py_ssize_t stop)
