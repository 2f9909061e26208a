# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Many sockets in one epoll set: one call receives from all that are ready. Linux only."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_SetFromErrno
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcmp
from posix.unistd cimport close

cdef extern from "sys/epoll.h" nogil:
    ctypedef union epoll_data_t:
        int fd
        void *ptr
    struct epoll_event:
        uint32_t events
        epoll_data_t data
    int epoll_create1(int flags)
    int epoll_ctl(int epfd, int op, int fd, epoll_event *event)
    int epoll_wait(int epfd, epoll_event *events, int maxevents, int timeout)
    int EPOLL_CLOEXEC, EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLL_CTL_DEL
    uint32_t EPOLLIN, EPOLLOUT, EPOLLERR, EPOLLHUP

cdef extern from "sys/socket.h" nogil:
    ssize_t c_recv "recv"(int fd, void *buffer, size_t size, int flags)
    ssize_t c_send "send"(int fd, const void *data, size_t size, int flags)
    int MSG_DONTWAIT, MSG_NOSIGNAL

cdef enum:
    MOST = 256  # sockets that one call looks at
    MOST_RECEIVED = 262144  # bytes that one call takes from one socket
    HEAD = 34  # bytes of a frame before its body
    ROOM = 0x7FFFFFFF - 30  # of a body in a frame

LIMIT = MOST_RECEIVED


cdef inline uint32_t get32(const uint8_t *p) noexcept nogil:
    return (<uint32_t>p[0] << 24) | (<uint32_t>p[1] << 16) | (<uint32_t>p[2] << 8) | <uint32_t>p[3]


include "../kernel/_pubs.pxi"


cdef class Publishes:
    """Whole publishes that begin with the same line, from any number of sockets: those of one round.

    `taken` is called after each round that has brought some.
    """

    cdef readonly bytes line
    cdef readonly object taken
    cdef int64_t _most_count, _most_size, _most_body
    cdef list _pieces, _senders, _last

    def __init__(self, bytes line, taken, *, int64_t max_count, int64_t max_size, int64_t max_body):
        self.line = line
        self.taken = taken
        self._most_count, self._most_size, self._most_body = max_count, max_size, max_body
        self._pieces, self._senders, self._last = [], [], []

    @property
    def owners(self):
        """Return whose publishes were taken last."""
        return [owner for owner, _, _ in self._last]

    cdef bint receive(self, owner, char *data, Py_ssize_t size):
        """Keep what an owner has received, if that is whole publishes and nothing else."""
        cdef Py_ssize_t messages, total
        cdef Py_ssize_t commands = count_pubs(
            <const uint8_t *>data, size, <const uint8_t *>PyBytes_AS_STRING(self.line), PyBytes_GET_SIZE(self.line),
            self._most_count, self._most_size, self._most_body, &messages, &total,
        )
        if not commands:
            return False
        self._pieces.append(PyBytes_FromStringAndSize(data, size))
        self._senders.append((owner, messages, commands))
        return True

    def take(self):
        """Return the pieces, and for each its owner, messages and commands; keep none."""
        pieces, senders = self._pieces, self._senders
        self._pieces, self._senders, self._last = [], [], senders
        return pieces, senders


cdef class SocketSet:
    """An epoll set of sockets, each with its owner; `fileno` is readable when one of them is ready."""

    cdef int _epoll
    cdef char *_buffer
    cdef epoll_event _events[MOST]
    cdef dict _owners  # by descriptor; keeps alive what the events point to

    def __cinit__(self):
        self._epoll = -1
        self._buffer = <char *>PyMem_Malloc(MOST_RECEIVED)
        if self._buffer == NULL:
            raise MemoryError
        self._owners = {}
        self._epoll = epoll_create1(EPOLL_CLOEXEC)
        if self._epoll < 0:
            PyErr_SetFromErrno(OSError)

    def __dealloc__(self):
        self.close()
        PyMem_Free(self._buffer)

    def __len__(self):
        return len(self._owners)

    def fileno(self):
        """Return the descriptor of the set, for an event loop to watch."""
        return self._epoll

    cpdef close(self):
        """Close the set; the sockets stay open."""
        if self._epoll >= 0:
            close(self._epoll)
            self._epoll = -1

    def add(self, int fd, owner):
        """Watch a socket for input on behalf of `owner`."""
        self._control(EPOLL_CTL_ADD, fd, EPOLLIN, owner)
        self._owners[fd] = owner

    def watch(self, int fd, *, bint reading, bint writing):
        """Watch a socket for input, for room to write, for both or for neither."""
        self._control(EPOLL_CTL_MOD, fd, (EPOLLIN if reading else 0) | (EPOLLOUT if writing else 0), self._owners[fd])

    def remove(self, int fd):
        """Watch a socket no more. To be called before it is closed."""
        if self._owners.pop(fd, None) is not None:
            self._control(EPOLL_CTL_DEL, fd, 0, None)

    cdef _control(self, int operation, int fd, uint32_t wanted, owner):
        cdef epoll_event event
        event.events = wanted
        event.data.ptr = <void *>owner
        if epoll_ctl(self._epoll, operation, fd, &event) < 0:
            PyErr_SetFromErrno(OSError)

    def receive(self):
        """Receive from every socket that is ready: a list of (owner, what), and the `Publishes` that got some.

        Bytes that the `publishes` of an owner takes are not in the list. `what` is the bytes received, empty at the end of input; an errno where the connection failed; None where the
        socket has room to write again. One call takes at most `LIMIT` bytes from a socket.
        """
        cdef int count, number, fd
        cdef ssize_t size
        cdef uint32_t events
        cdef object owner, expected
        cdef Publishes publishes
        cdef list found = [], ran = []
        count = epoll_wait(self._epoll, self._events, MOST, 0)
        if count < 0:
            if errno == EINTR:
                return found, ran
            PyErr_SetFromErrno(OSError)
        for number in range(count):
            owner = <object>self._events[number].data.ptr
            events = self._events[number].events
            if events & EPOLLOUT:
                found.append((owner, None))
            if events & (EPOLLIN | EPOLLERR | EPOLLHUP):
                fd = owner.fd
                size = c_recv(fd, self._buffer, MOST_RECEIVED, MSG_DONTWAIT)
                if size > 0:
                    expected = owner.publishes
                    if expected is not None:
                        publishes = <Publishes?>expected
                        if publishes.receive(owner, self._buffer, size):
                            if len(publishes._pieces) == 1:
                                ran.append(publishes)
                            continue
                if size >= 0:
                    found.append((owner, PyBytes_FromStringAndSize(self._buffer, size)))
                elif errno != EAGAIN and errno != EINTR:
                    found.append((owner, errno))
        return found, ran

    def send(self, int fd, bytes data):
        """Send what the socket takes now: how many bytes that is, or less than 0 for an errno."""
        cdef ssize_t size = c_send(fd, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data), MSG_DONTWAIT | MSG_NOSIGNAL)
        if size >= 0:
            return size
        if errno == EAGAIN or errno == EINTR:
            return 0
        return -errno
