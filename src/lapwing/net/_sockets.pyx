# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Many sockets in one epoll set: one call receives from all that are ready. Linux only."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_SetFromErrno
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec
from posix.unistd cimport close, pwrite

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
    HEAD = 34  # bytes of a frame before its body
    ROOM = 0x7FFFFFFF - 30  # of a body in a frame
    MOST_FRAMES = 65536  # bytes of frames that a `LogTail` holds
    MOST_ANSWERS = 64  # answers to one socket in one round of a `LogTail`
    MOST_XADDS = 4096  # bytes of XADDs of one socket in one round of an `XaddTail`
    STAY = 500000  # ns that a call may serve a `LogTail` before others have their turn
    PAUSE = 50000  # ns that it waits for the next publish
    CLOSE = 100000  # ns between two calls that follow each other so closely that waiting pays

cdef bytes ONE_ANSWER = b"\0\0\0\6\0\0\0\0OK"
cdef bytes ANSWERS = ONE_ANSWER * MOST_ANSWERS
cdef Py_ssize_t ANSWER = len(ONE_ANSWER)

LIMIT = MOST_RECEIVED


include "../kernel/_pubs.pxi"


cdef class Publishes:
    """Whole publishes that begin with the same line, from any number of sockets: those of one round.

    `taken` is called after each round that has brought some.
    """

    cdef readonly bytes line
    cdef readonly object taken
    cdef int64_t _most_count, _most_size, _most_body, _most_headers
    cdef bint _headed
    cdef list _pieces, _senders, _last

    def __init__(
        self, bytes line, taken, *, int64_t max_count, int64_t max_size, int64_t max_body, int64_t max_headers=0
    ):
        self.line = line
        self.taken = taken
        self._most_count, self._most_size, self._most_body = max_count, max_size, max_body
        self._most_headers = max_headers
        self._headed = line.startswith(b"H")
        self._pieces, self._senders, self._last = [], [], []

    @property
    def owners(self):
        """Return whose publishes were taken last."""
        return [owner for owner, _, _ in self._last]

    cdef bint receive(self, owner, char *data, Py_ssize_t size):
        """Keep what an owner has received, if that is whole publishes and nothing else."""
        cdef Py_ssize_t messages, total, beside, commands
        cdef const uint8_t *begin = <const uint8_t *>data
        cdef const uint8_t *start = <const uint8_t *>PyBytes_AS_STRING(self.line)
        cdef Py_ssize_t prefix = PyBytes_GET_SIZE(self.line)
        if self._headed:
            commands = count_headed_pubs(
                begin, size, start, prefix, self._most_count, self._most_size, self._most_body, self._most_headers,
                &messages, &total, &beside,
            )
        else:
            commands = count_pubs(
                begin, size, start, prefix, self._most_count, self._most_size, self._most_body, &messages, &total
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


cdef class Additions(Publishes):
    """Marks sockets that add entries to one stream of Redis: all that no `XaddTail` takes goes to their owners."""

    def __init__(self):
        self.line = b""
        self._pieces, self._senders, self._last = [], [], []

    cdef bint receive(self, owner, char *data, Py_ssize_t size):
        return False


cdef inline int64_t steady() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return <int64_t>now.tv_sec * 1000000000 + now.tv_nsec


cdef class LogTail:
    """The end of a log's file, to which publishes are written, and answered, without a turn of the event loop.

    `aim` gives it the place, and `take` returns what it has written since: the caller must call it whatever happens, as
    the log does not know of these frames before.
    """

    cdef readonly Publishes publishes
    cdef readonly bint failed  # a write may have left bytes behind the last frame
    cdef bint _stays
    cdef int _file
    cdef int64_t _offset, _room, _ahead
    cdef uint64_t _identity
    cdef uint8_t *_frames
    cdef Py_ssize_t _written, _used, _messages, _messages_written
    cdef list _senders, _round

    def __cinit__(self, Publishes publishes, *_):
        self.publishes = publishes
        self._frames = <uint8_t *>PyMem_Malloc(MOST_FRAMES)
        if self._frames == NULL:
            raise MemoryError
        self._senders, self._round = [], []

    def __dealloc__(self):
        PyMem_Free(self._frames)

    def aim(self, int file, int64_t offset, int64_t room, first_id, int64_t ahead, bint stays):
        """Write to a file from `offset` on, at most `room` bytes, with ids from `first_id` on.

        `ahead` is how far in ns the time of messages is ahead of the monotonic clock; with `stays`, a call may wait for
        more publishes.
        """
        if self._used:
            raise ValueError("the frames that were written were not taken")
        self._file, self._offset, self._room = file, offset, min(room, MOST_FRAMES)
        self._identity = first_id & 0xFFFFFFFFFFFFFFFF
        self._ahead, self._stays, self.failed = ahead, stays, False

    cdef bint receive(self, owner, char *data, Py_ssize_t size):
        """Frame what an owner has received, if that is whole publishes of one message each, and there is room."""
        cdef Publishes publishes = self.publishes
        cdef const uint8_t *line = <const uint8_t *>PyBytes_AS_STRING(publishes.line)
        cdef Py_ssize_t prefix = PyBytes_GET_SIZE(publishes.line), messages, total, commands
        if publishes._headed:
            return False  # headers lie in a file of their own
        commands = count_pubs(
            <const uint8_t *>data, size, line, prefix,
            publishes._most_count, publishes._most_size, publishes._most_body, &messages, &total,
        )
        if not commands or commands != messages or commands > MOST_ANSWERS or self._used + total > self._room:
            return False
        answer = ONE_ANSWER if commands == 1 else ANSWERS[: commands * ANSWER]
        self._round.append((owner, commands, PyBytes_FromStringAndSize(data, size), answer))
        put_pubs(
            self._frames + self._used, <const uint8_t *>data, size, line, prefix,
            <uint64_t>(steady() + self._ahead), self._identity + <uint64_t>self._messages,
        )
        self._used += total
        self._messages += messages
        return True

    cdef give_back(self, list found, list ran):
        """Give what the disk did not take to the ordinary way, which meets the error and reports it."""
        for owner, commands, piece, _ in self._round:
            self.publishes._pieces.append(piece)
            self.publishes._senders.append((owner, commands, commands))
        if self.publishes not in ran:
            ran.append(self.publishes)

    cdef bint finish_round(self, list found, list ran):
        """Write the frames of this round, then answer each; return False where the disk did not take them."""
        cdef Py_ssize_t size = self._used - self._written
        cdef bytes answer
        cdef Py_ssize_t wanted
        cdef ssize_t sent
        if pwrite(self._file, self._frames + self._written, size, self._offset + self._written) != size:
            self.failed = True
            self._used, self._messages = self._written, self._messages_written
            self.give_back(found, ran)
            self._round = []
            return False
        self._written, self._messages_written = self._used, self._messages
        for owner, messages, _, answer in self._round:
            self._senders.append((owner, messages))
            wanted = PyBytes_GET_SIZE(answer)
            sent = c_send(owner.fd, PyBytes_AS_STRING(answer), wanted, MSG_DONTWAIT | MSG_NOSIGNAL)
            if sent != wanted:
                owner.write(answer[max(sent, 0):])
        self._round = []
        return True

    def take(self):
        """Return the frames that were written, their number, and for each socket the owner and its messages."""
        cdef bytes frames = PyBytes_FromStringAndSize(<char *>self._frames, self._written)
        senders, count = self._senders, self._messages_written
        self._senders, self._round = [], []
        self._used = self._written = self._messages = self._messages_written = 0
        return frames, count, senders


cdef class XaddTail(LogTail):
    """The end of the log of a Redis stream, for plain XADDs."""

    cdef readonly int64_t newest  # the time of the last entry, ns
    cdef bytes _key
    cdef object _field, _find, _frame, _reply, _most_entry
    cdef int64_t _sequence

    def __init__(self, Additions additions, bytes key, max_entry, find, frame, reply):
        """`find`, `frame` and `reply` are `xadd_run`, `frame_xadds` and `id_replies` of the kernel."""
        self._key, self._most_entry = key, max_entry
        self._find, self._frame, self._reply = find, frame, reply

    def aim_entries(self, int64_t sequence, int64_t least, bytes field):
        """Give entries the sequences from `sequence` on, and no time before `least`; `field` names plain bodies."""
        self._sequence, self.newest, self._field = sequence, least, field

    cdef bint receive(self, owner, char *data, Py_ssize_t size):
        """Frame what an owner has received, if that is whole XADDs to the stream, and there is room."""
        cdef bytes piece, frames
        cdef Py_ssize_t count, total
        cdef int64_t stamp
        if size > MOST_XADDS:
            return False
        piece = PyBytes_FromStringAndSize(data, size)
        count, end, key = self._find(piece, 0, self._most_entry)
        if not count or end != size or key != self._key:
            return False
        stamp = max(steady() + self._ahead, self.newest)
        frames, _, _ = self._frame(piece, self._identity + <uint64_t>self._messages, stamp, self._field)
        total = PyBytes_GET_SIZE(frames)
        if self._used + total > self._room:
            return False
        self.newest = stamp
        answer = self._reply(stamp // 1000000, self._sequence + self._messages, count)
        self._round.append((owner, count, piece, answer))
        memcpy(self._frames + self._used, PyBytes_AS_STRING(frames), total)
        self._used += total
        self._messages += count
        return True

    cdef give_back(self, list found, list ran):
        for owner, _, piece, _ in self._round:
            found.append((owner, piece))


cdef class SocketSet:
    """An epoll set of sockets, each with its owner; `fileno` is readable when one of them is ready."""

    cdef int _epoll
    cdef char *_buffer
    cdef epoll_event _events[MOST]
    cdef dict _owners  # by descriptor; keeps alive what the events point to
    cdef int64_t _left  # when the last call with a `LogTail` ended
    cdef bint _patient  # whether it pays to wait for the next publish

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

    def receive(self, LogTail tail=None):
        """Receive from every socket that is ready: a list of (owner, what), and the `Publishes` that got some.

        Bytes that the `publishes` of an owner takes are not in the list. `what` is the bytes received, empty at the end
        of input; an errno where the connection failed; None where the socket has room to write again. One call takes at
        most `LIMIT` bytes from a socket. Publishes for the tail are written and answered at once, if their owner
        is `direct`; while no others come, the call may wait a moment for the next ones.
        """
        cdef list found = [], ran = []
        cdef int64_t began, now
        cdef int count = epoll_wait(self._epoll, self._events, MOST, 0)
        if count < 0:
            if errno == EINTR:
                return found, ran
            PyErr_SetFromErrno(OSError)
        if tail is None:
            self._receive(count, None, found, ran)
            return found, ran
        began = steady()
        self._patient = self._patient or began - self._left < CLOSE
        while self._receive(count, tail, found, ran):
            now = steady()
            if not tail._stays or found or ran or now - began > STAY or not self._patient:
                break
            count = lapwing_epoll_wait(self._epoll, self._events, MOST, PAUSE)
            if count <= 0:
                self._patient = False
                break
        self._left = steady()
        return found, ran

    cdef bint _receive(self, int count, LogTail tail, list found, list ran):
        """Receive from `count` sockets; return whether there is a tail, and it could be written."""
        cdef int number, fd
        cdef ssize_t size
        cdef uint32_t events
        cdef object owner, expected
        cdef Publishes publishes
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
                        if tail is not None and publishes is tail.publishes and owner.direct:
                            if tail.receive(owner, self._buffer, size):
                                continue
                        if publishes.receive(owner, self._buffer, size):
                            if len(publishes._pieces) == 1:
                                ran.append(publishes)
                            continue
                if size >= 0:
                    found.append((owner, PyBytes_FromStringAndSize(self._buffer, size)))
                elif errno != EAGAIN and errno != EINTR:
                    found.append((owner, errno))
        if tail is None:
            return False
        return not tail._round or tail.finish_round(found, ran)

    def send(self, int fd, bytes data):
        """Send what the socket takes now: how many bytes that is, or less than 0 for an errno."""
        cdef ssize_t size = c_send(fd, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data), MSG_DONTWAIT | MSG_NOSIGNAL)
        if size >= 0:
            return size
        if errno == EAGAIN or errno == EINTR:
            return 0
        return -errno
