# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Many sockets in one epoll set: one call receives from all that are ready. Linux only."""

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_SetFromErrno
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.errno cimport EAGAIN, EINTR, ENOMEM, errno
from libc.stdint cimport int64_t, uint32_t
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec
from posix.unistd cimport close

from lapwing.kernel._receiver cimport Partial, Receiver

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

cdef extern from *:
    """
    #include <errno.h>
    #include <sys/epoll.h>
    #include <sys/syscall.h>
    #include <time.h>
    #include <unistd.h>

    /* Like epoll_wait, for at most so many ns; no wait where the system cannot do that. */
    static int lapwing_epoll_wait(int epoll, struct epoll_event *events, int most, long long ns) {
    #ifdef SYS_epoll_pwait2
        struct timespec timeout = {0, ns};
        int count = (int)syscall(SYS_epoll_pwait2, epoll, events, most, &timeout, (void *)0, (size_t)0);
        return count < 0 && (errno == ENOSYS || errno == EPERM || errno == EINTR) ? 0 : count;
    #else
        return 0;
    #endif
    }
    """
    int lapwing_epoll_wait(int epoll, epoll_event *events, int most, long long ns) nogil

cdef enum:
    MOST = 256  # sockets that one call looks at
    MOST_RECEIVED = 262144  # bytes that one call takes from one socket
    STAY = 1000000  # ns that a call may go on receiving before others have their turn
    LOOK = 35000  # ns that it looks for the next bytes before it sleeps
    MOST_FAILURES = 6  # of looking that are remembered
    PAUSE = 250000  # ns that it waits for the next bytes, if the ones before came after no longer pause

LIMIT = MOST_RECEIVED


cdef inline int64_t steady() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return <int64_t>now.tv_sec * 1000000000 + now.tv_nsec


cdef class SocketSet:
    """An epoll set of sockets, each with its owner; `fileno` is readable when one of them is ready."""

    cdef int _epoll
    cdef char *_buffer
    cdef epoll_event _events[MOST]
    cdef dict _owners  # by descriptor; keeps alive what the events point to
    cdef int64_t _answered  # when requests were last answered in a call
    cdef int _failures  # of looking for the next bytes, less the successes
    cdef int _sleeps  # waits that do not begin with looking

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
        """Receive from every socket that is ready: a list of (owner, what).

        The `receiver` of an owner, if it has one, takes what needs no look, and it is answered at once; only the rest is
        in the list. A large request that is there in part is the `partial` of its owner until all of it has come. `what` is the bytes received, empty at the end of input; an errno where the connection failed, or what
        its receiver raised; None where the socket has room to write again. One call takes at most `LIMIT` bytes from a socket, unless receivers
        take all that comes, and then goes on for no longer than `STAY`.
        """
        cdef list found = [], used, givers
        cdef int64_t began = 0, now
        cdef bint patient = True
        cdef Receiver receiver
        cdef int count = epoll_wait(self._epoll, self._events, MOST, 0)
        if count < 0:
            if errno == EINTR:
                return found
            PyErr_SetFromErrno(OSError)
        while count > 0:
            used, givers = [], []
            self._receive(count, found, used, givers)
            for receiver in used:
                try:
                    answers = receiver.finish()
                except Exception as error:  # it is not known what is answered: all that it took from end
                    patient = False
                    found += [(owner, error) for owner in givers if owner.receiver is receiver]
                else:
                    self._answer(answers, found)
                    patient = patient and receiver.stays
            now = steady()
            began = began or now
            if found or not used or not patient or now - began > STAY:
                break
            count = self._wait(now - self._answered < PAUSE)
            self._answered = now
        return found

    cdef int _wait(self, bint patient):
        """Return how many sockets are ready; wait a moment if none is and the last bytes came soon after others.

        A client that waits for each answer sends its next request at once. To look for it again and again is then
        cheaper than to sleep and be woken, and it is answered sooner. The more often looking finds nothing, the fewer
        waits begin with it: one in 64 at last, and more again when it succeeds.
        """
        cdef int count
        cdef int64_t until
        cdef bint looks
        with nogil:
            count = epoll_wait(self._epoll, self._events, MOST, 0)
            if count or not patient:
                return count
            looks = not self._sleeps
            if looks:
                until = steady() + LOOK
                while not count and steady() < until:
                    count = epoll_wait(self._epoll, self._events, MOST, 0)
                self._failures = max(self._failures - 1, 0) if count > 0 else min(self._failures + 1, MOST_FAILURES)
                self._sleeps = (1 << self._failures) - 1
            else:
                self._sleeps -= 1
            if not count:
                count = lapwing_epoll_wait(self._epoll, self._events, MOST, PAUSE)
        return count

    cdef int _answer(self, list answers, list found) except -1:
        """Send answers, each behind its owner; what fails for one connection ends it alone."""
        cdef Py_ssize_t at, size
        cdef ssize_t sent
        cdef bytes answer
        for at in range(0, len(answers), 2):
            owner, what = answers[at], answers[at + 1]
            try:
                answer = <bytes?>what
                size = PyBytes_GET_SIZE(answer)
                sent = c_send(owner.fd, PyBytes_AS_STRING(answer), size, MSG_DONTWAIT | MSG_NOSIGNAL)
                if sent != size:
                    owner.write(answer[max(sent, 0):])
            except Exception as error:
                found.append((owner, what if isinstance(what, Exception) else error))
        return 0

    cdef int _receive(self, int count, list found, list used, list givers) except -1:
        """Receive from `count` sockets, and note the receivers that took something, and of whom."""
        cdef int number, fd
        cdef ssize_t size, taken
        cdef uint32_t events
        cdef object owner, expected
        cdef Receiver receiver
        for number in range(count):
            owner = <object>self._events[number].data.ptr
            events = self._events[number].events
            if events & EPOLLOUT:
                found.append((owner, None))
            if events & (EPOLLIN | EPOLLERR | EPOLLHUP):
                fd = owner.fd
                partial = owner.partial
                if partial is not None:
                    self._receive_rest(fd, owner, <Partial?>partial, found, used, givers)
                    continue
                size = c_recv(fd, self._buffer, MOST_RECEIVED, MSG_DONTWAIT)
                taken = 0
                if size > 0:
                    expected = owner.receiver
                    if expected is not None:
                        receiver = <Receiver?>expected
                        failure = None
                        try:
                            taken = receiver.take(owner, self._buffer, size)
                        except Exception as error:  # such as want of memory: it ends this connection alone
                            taken, failure = size, error
                        if taken:
                            givers.append(owner)
                            if receiver not in used:
                                used.append(receiver)
                        if failure is not None:
                            found.append((owner, failure))
                        if taken == size:
                            continue
                if size >= 0:
                    self._pass_on(found, owner, taken, size)
                elif errno != EAGAIN and errno != EINTR:
                    found.append((owner, errno))
        return 0

    cdef int _receive_rest(self, int fd, owner, Partial partial, list found, list used, list givers) except -1:
        """Receive more of a request that is there in part; when it is whole, its receiver takes it, or the connection."""
        cdef ssize_t size = c_recv(fd, partial.room + partial.have, partial.size - partial.have, MSG_DONTWAIT)
        cdef Receiver receiver
        cdef bint taken = False
        if size < 0:
            if errno != EAGAIN and errno != EINTR:
                found.append((owner, errno))
            return 0
        partial.have += size
        expected = owner.receiver
        if expected is not None and expected not in used:
            used.append(expected)  # the rest comes soon
        if size and partial.have < partial.size:
            return 0
        owner.partial = None
        try:
            if size and expected is not None:
                receiver = <Receiver?>expected
                taken = receiver.complete(owner, partial)
            if not taken:
                found.append((owner, partial.unfinished()))
        except Exception as error:  # such as want of memory: it ends this connection alone
            found.append((owner, error))
        if taken:
            givers.append(owner)
        if not size:
            found.append((owner, b""))
        return 0

    cdef int _pass_on(self, list found, owner, Py_ssize_t taken, Py_ssize_t size) except -1:
        """Note what is left of received bytes; without memory for it this connection ends, and the others keep theirs."""
        try:
            rest = PyBytes_FromStringAndSize(self._buffer + taken, size - taken)
        except MemoryError:
            found.append((owner, ENOMEM))
        else:
            found.append((owner, rest))
        return 0

    def send(self, int fd, data, Py_ssize_t start=0):
        """Send what the socket takes now of the bytes from `start` on: how many, or less than 0 for an errno."""
        cdef Py_buffer view
        cdef ssize_t size
        cdef int failed
        PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
        size = c_send(fd, <char *>view.buf + start, max(view.len - start, 0), MSG_DONTWAIT | MSG_NOSIGNAL)
        failed = errno
        PyBuffer_Release(&view)
        if size >= 0:
            return size
        return 0 if failed == EAGAIN or failed == EINTR else -failed
