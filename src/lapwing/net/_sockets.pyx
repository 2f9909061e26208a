# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Many sockets in one epoll set: one call receives from all that are ready. Linux only."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_SetFromErrno
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport uint32_t
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
    ROOM = 262144  # bytes that one call takes from one socket

LIMIT = ROOM


cdef class SocketSet:
    """An epoll set of sockets, each with its owner; `fileno` is readable when one of them is ready."""

    cdef int _epoll
    cdef char *_buffer
    cdef epoll_event _events[MOST]
    cdef dict _owners  # by descriptor; keeps alive what the events point to

    def __cinit__(self):
        self._epoll = -1
        self._buffer = <char *>PyMem_Malloc(ROOM)
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
        """Receive from every socket that is ready: a list of (owner, what).

        `what` is the bytes received, empty at the end of input; an errno where the connection failed; None where the
        socket has room to write again. One call takes at most `LIMIT` bytes from a socket.
        """
        cdef int count, number, fd
        cdef ssize_t size
        cdef uint32_t events
        cdef object owner
        cdef list found = []
        count = epoll_wait(self._epoll, self._events, MOST, 0)
        if count < 0:
            if errno == EINTR:
                return found
            PyErr_SetFromErrno(OSError)
        for number in range(count):
            owner = <object>self._events[number].data.ptr
            events = self._events[number].events
            if events & EPOLLOUT:
                found.append((owner, None))
            if events & (EPOLLIN | EPOLLERR | EPOLLHUP):
                fd = owner.fd
                size = c_recv(fd, self._buffer, ROOM, MSG_DONTWAIT)
                if size >= 0:
                    found.append((owner, PyBytes_FromStringAndSize(self._buffer, size)))
                elif errno != EAGAIN and errno != EINTR:
                    found.append((owner, errno))
        return found

    def send(self, int fd, bytes data):
        """Send what the socket takes now: how many bytes that is, or less than 0 for an errno."""
        cdef ssize_t size = c_send(fd, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data), MSG_DONTWAIT | MSG_NOSIGNAL)
        if size >= 0:
            return size
        if errno == EAGAIN or errno == EINTR:
            return 0
        return -errno
