# The types of `keys.py` where it is compiled.

cimport cython

@cython.final
cdef class Key:
    cdef public object name, waiting
    cdef public list again
    cdef public bint free, lined, blocked
    cdef public Py_ssize_t weight, out, at, level, credit
    cpdef bint waits(self)
    cpdef go_out(self)
    cpdef come_in(self)
    cpdef block(self)
    cpdef unblock(self)
    cpdef line_up(self, Py_ssize_t level)
    cpdef step_out(self)
    cpdef spend_credit(self)
    cpdef return_credit(self)
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


@cython.final
cdef class Page:
    cdef public object positions
    cdef public Py_ssize_t first, stop, used
    cdef public bytes frames
    cdef public list keys
    cpdef name(self, list keys)
    cpdef use(self, Py_ssize_t moment)


@cython.final
cdef class Pages:
    cdef public Py_ssize_t bytes
    cdef list _pages
    cdef Py_ssize_t _moment
    cdef object __weakref__
    @cython.locals(low=cython.Py_ssize_t, high=cython.Py_ssize_t, middle=cython.Py_ssize_t, page=Page)
    cpdef Page find(self, Py_ssize_t sequence)
    @cython.locals(each=Page)
    cpdef add(self, Page page)
    cdef _have(self, list pages)


cdef class Keys:
    cdef public object passed, now
    cdef public bint ordered, fair
    cdef public Py_ssize_t most
    cdef public dict blocked
    cdef object _ledger, _names, _weights, _behind, _reader, _place
    cdef Line _line
    cdef public dict _keys, _key_of, _resting, _unread
    cdef public Key _keyless
    cdef public bint _stale
    cdef Py_ssize_t _backlog_end
    cdef Page _page
    cdef Pages _pages
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
    cdef _unblock(self, Key key)
    cdef _put(self, Key key)
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
        fair=cython.bint, first_one=cython.bint, waiting=list,
    )
    cdef Py_ssize_t _look_at(
        self, Page page, Py_ssize_t start, Py_ssize_t stop, Py_ssize_t most, list sequences, list parts
    ) except -1
    cdef Page _load(self, topic, Py_ssize_t sequence, Py_ssize_t end)
    cpdef shed(self)
    cdef _keep(self, Page page)
