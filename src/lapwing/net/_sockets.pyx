# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Many sockets in one epoll set: one call receives from all that are ready. Linux only."""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_SetFromErrno
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy
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
    MOST_SINGLE = 65536  # the same of PUBs, while other sockets are ready
    LOOKED_AT = 4096  # bytes in which a PUB is looked for
    HEAD = 34  # bytes of a frame before its body
    ROOM = 0x7FFFFFFF - 30  # of a body in a frame
    LARGEST = 0x7FFFFFFF  # of a number in a line of RESP
    MOST_FRAMES = 65536  # bytes of frames that a `LogTail` holds
    MOST_INPUT = 65536  # bytes that sockets have sent in one round of a `LogTail`
    MOST_ANSWERED = 65536  # bytes of the answers to them
    MOST_ANSWERS = 64  # answers to one socket in one round of a `LogTail`
    MOST_XADDS = 4096  # bytes of XADDs of one socket in one round of an `XaddTail`
    ID_REPLY = 48  # bytes of the reply to an XADD, at most
    STAY = 1000000  # ns that a call may serve a `LogTail` before others have their turn
    LOOK = 35000  # ns that it looks for the next publish before it sleeps
    MOST_FAILURES = 6  # of looking that are remembered
    PAUSE = 250000  # ns that it waits for the next publish, if the one before came after no longer pause

cdef Py_ssize_t ANSWER = 10  # bytes of an OK
cdef bytes ANSWERS = b"\0\0\0\6\0\0\0\0OK" * MOST_ANSWERS

LIMIT = MOST_RECEIVED


include "../kernel/_pubs.pxi"
include "../kernel/_fins.pxi"
include "../kernel/_xadds.pxi"


cdef struct Served:
    int fd
    Py_ssize_t messages
    Py_ssize_t received  # bytes
    Py_ssize_t answer  # bytes


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


cdef class Finishes(Publishes):
    """Whole FINs of the consumers of one channel."""

    def __init__(self, taken):
        self.line, self.taken = b"FIN ", taken
        self._pieces, self._senders, self._last = [], [], []

    cdef bint receive(self, owner, char *data, Py_ssize_t size):
        """Keep what an owner has received, if that is whole FINs and nothing else."""
        if fins_size(<const uint8_t *>data, size) != size:
            return False
        self._pieces.append(PyBytes_FromStringAndSize(data, size))
        self._senders.append((owner, size // FIN, size // FIN))
        return True


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
    cdef readonly int64_t waits  # for the next publish, since the tail was made
    cdef readonly int64_t looks  # those of them that began by looking for it
    cdef bint _stays
    cdef int _file
    cdef int64_t _offset, _room, _ahead
    cdef int64_t _answered  # when the last publishes were answered, ns of the monotonic clock
    cdef int _failures  # of looking for the next publish, less the successes
    cdef int _sleeps  # waits for the next publish that do not look for it first
    cdef uint64_t _identity
    cdef uint8_t *_frames
    cdef uint8_t *_input  # what the sockets of this round have sent
    cdef uint8_t *_answers  # to them
    cdef Py_ssize_t _written, _used, _messages, _messages_written, _input_used, _answers_used
    cdef Served _served[MOST]
    cdef list _round  # owners of the sockets of this round
    cdef dict _counts  # messages that were written, by owner: of those that do not count themselves
    cdef str _topic
    cdef object _now

    def __init__(self, Publishes publishes, str topic):
        self._topic = topic

    def __cinit__(self, Publishes publishes, *_):
        self.publishes = publishes
        self._frames = <uint8_t *>PyMem_Malloc(MOST_FRAMES + MOST_INPUT + MOST_ANSWERED)
        if self._frames == NULL:
            raise MemoryError
        self._input = self._frames + MOST_FRAMES
        self._answers = self._input + MOST_INPUT
        self._round, self._counts = [], {}

    def __dealloc__(self):
        PyMem_Free(self._frames)

    def aim(self, int file, int64_t offset, int64_t room, first_id, int64_t ahead, bint stays, now):
        """Write to a file from `offset` on, at most `room` bytes, with ids from `first_id` on.

        `ahead` is how far in ns the time of messages is ahead of the monotonic clock; with `stays`, a call may wait for
        more publishes. Clients that publish were active at `now`.
        """
        if self._used:
            raise ValueError("the frames that were written were not taken")
        self._file, self._offset, self._room = file, offset, min(room, MOST_FRAMES)
        self._identity = first_id & 0xFFFFFFFFFFFFFFFF
        self._ahead, self._stays, self.failed, self._now = ahead, stays, False, now

    cdef bint receive(self, owner, int fd, char *data, Py_ssize_t size):
        """Frame what an owner has received, if that is whole publishes of one message each, and there is room."""
        cdef Publishes publishes = self.publishes
        cdef const uint8_t *line = <const uint8_t *>PyBytes_AS_STRING(publishes.line)
        cdef Py_ssize_t prefix = PyBytes_GET_SIZE(publishes.line), messages, total, commands, answer
        if publishes._headed:
            return False  # headers lie in a file of their own
        commands = count_pubs(
            <const uint8_t *>data, size, line, prefix,
            publishes._most_count, publishes._most_size, publishes._most_body, &messages, &total,
        )
        if not commands or commands != messages or commands > MOST_ANSWERS or self._used + total > self._room:
            return False
        answer = commands * ANSWER
        if self._input_used + size > MOST_INPUT or self._answers_used + answer > MOST_ANSWERED:
            return False
        put_pubs(
            self._frames + self._used, <const uint8_t *>data, size, line, prefix,
            <uint64_t>(steady() + self._ahead), self._identity + <uint64_t>self._messages,
        )
        memcpy(self._answers + self._answers_used, PyBytes_AS_STRING(ANSWERS), answer)
        self.note(owner, fd, data, size, messages, total, answer)
        return True

    cdef note(
        self, owner, int fd, char *data, Py_ssize_t size, Py_ssize_t messages, Py_ssize_t frames, Py_ssize_t answer
    ):
        """Note whose frames and answer were put behind the others, and what has been received."""
        cdef Served *served = &self._served[len(self._round)]
        served.fd, served.messages, served.received, served.answer = fd, messages, size, answer
        self._round.append(owner)
        memcpy(self._input + self._input_used, data, size)
        self._input_used += size
        self._answers_used += answer
        self._used += frames
        self._messages += messages

    cdef give_back(self, owner, bytes piece, Py_ssize_t messages, list found, list ran):
        """Give what the disk did not take to the ordinary way, which meets the error and reports it."""
        self.publishes._pieces.append(piece)
        self.publishes._senders.append((owner, messages, messages))
        if self.publishes not in ran:
            ran.append(self.publishes)

    cdef bint finish_round(self, list found, list ran):
        """Write the frames of this round, then answer each; return False where the disk did not take them."""
        cdef Py_ssize_t size = self._used - self._written, number, at = 0
        cdef Served *served
        cdef ssize_t sent
        cdef list round_ = self._round
        cdef bint written = pwrite(self._file, self._frames + self._written, size, self._offset + self._written) == size
        if written:
            self._written, self._messages_written = self._used, self._messages
        else:
            self.failed = True
            self._used, self._messages = self._written, self._messages_written
        self._round, self._input_used, self._answers_used = [], 0, 0
        for number in range(len(round_)):
            owner, served = round_[number], &self._served[number]
            if not written:
                piece = PyBytes_FromStringAndSize(<char *>self._input + at, served.received)
                self.give_back(owner, piece, served.messages, found, ran)
                at += served.received
                continue
            counts, key = owner.published, self._topic
            if counts is None:
                counts, key = self._counts, owner
            else:
                owner.timer.last_command = self._now
            messages = (<dict>counts).get(key)
            (<dict>counts)[key] = served.messages if messages is None else served.messages + messages
            sent = c_send(served.fd, self._answers + at, served.answer, MSG_DONTWAIT | MSG_NOSIGNAL)
            if sent != served.answer:
                sent = max(sent, 0)
                owner.write(PyBytes_FromStringAndSize(<char *>self._answers + at + sent, served.answer - sent))
            at += served.answer
        self._answered = steady()
        return written

    def take(self):
        """Return the frames that were written, their number, and how many of them each owner has sent.

        Those of owners that have a dictionary `published` are counted there, by topic, and not returned.
        """
        cdef bytes frames = PyBytes_FromStringAndSize(<char *>self._frames, self._written)
        counts, count = self._counts, self._messages_written
        self._counts, self._round = {}, []
        self._used = self._written = self._messages = self._messages_written = 0
        self._input_used = self._answers_used = 0
        return frames, count, counts


cdef class XaddTail(LogTail):
    """The end of the log of a Redis stream, for plain XADDs."""

    cdef readonly int64_t newest  # the time of the last entry, ns
    cdef bytes _key, _field
    cdef int64_t _sequence, _most_entry

    def __init__(self, Additions additions, bytes key, int64_t max_entry):
        self._topic = ""
        self._key, self._most_entry, self._field = key, max_entry, b""

    def aim_entries(self, int64_t sequence, int64_t least, bytes field):
        """Give entries the sequences from `sequence` on, and no time before `least`; `field` names plain bodies."""
        self._sequence, self.newest, self._field = sequence, least, field

    cdef bint receive(self, owner, int fd, char *data, Py_ssize_t size):
        """Frame what an owner has received, if that is whole XADDs to the stream, and there is room."""
        cdef const uint8_t *p = <const uint8_t *>data
        cdef const char *key = PyBytes_AS_STRING(self._key)
        cdef const char *field = PyBytes_AS_STRING(self._field)
        cdef Py_ssize_t key_size = PyBytes_GET_SIZE(self._key), field_size = PyBytes_GET_SIZE(self._field)
        cdef Py_ssize_t at = 0, count = 0, most
        cdef uint8_t *frame = self._frames + self._used
        cdef uint8_t *answer = self._answers + self._answers_used
        cdef int64_t stamp
        cdef Xadd found
        if size > MOST_XADDS or self._input_used + size > MOST_INPUT:
            return False
        stamp = max(steady() + self._ahead, self.newest)
        while at < size:
            if not plain_xadd(p, &at, size, &found) or not same_bytes(p, &found.key, key, key_size):
                return False
            most = largest_body(&found)
            if most > self._most_entry or frame - self._frames + HEAD + most > self._room:
                return False
            if answer - self._answers + ID_REPLY > MOST_ANSWERED:
                return False
            frame += HEAD + put_xadd(
                frame, p, &found, field, field_size, <uint64_t>stamp,
                self._identity + <uint64_t>(self._messages + count),
            )
            answer = put_id(
                answer, <uint64_t>(stamp // 1000000), <uint64_t>(self._sequence + self._messages + count)
            )
            count += 1
        self.newest = stamp
        self.note(
            owner, fd, data, size, count,
            frame - self._frames - self._used, answer - self._answers - self._answers_used,
        )
        return True

    cdef give_back(self, owner, bytes piece, Py_ssize_t messages, list found, list ran):
        found.append((owner, piece))


cdef bint has_pub(const char *p):
    """Return whether the first command that begins in `p` is a PUB, as far as one looks."""
    cdef Py_ssize_t at
    for at in range(1, LOOKED_AT):
        if p[at] == b"P" and p[at + 1] == b"U" and p[at + 2] == b"B" and p[at + 3] == b" ":
            return p[at - 1] != b"M"
    return p[0] == b"P"


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

    def receive(self, LogTail tail=None):
        """Receive from every socket that is ready: a list of (owner, what), and the `Publishes` that got some.

        Bytes that the `publishes` of an owner takes are not in the list. `what` is the bytes received, empty at the end
        of input; an errno where the connection failed; None where the socket has room to write again. One call takes at
        most `LIMIT` bytes from a socket, and less of PUBs while others are ready. Publishes for the tail are written
        and answered at once, if their owner is `direct`; while no others come, the call may wait a moment for the next.
        """
        cdef list found = [], ran = []
        cdef int64_t began
        cdef bint patient
        cdef int count = epoll_wait(self._epoll, self._events, MOST, 0)
        if count < 0:
            if errno == EINTR:
                return found, ran
            PyErr_SetFromErrno(OSError)
        if tail is None:
            self._receive(count, None, found, ran)
            return found, ran
        began = steady()
        patient = tail._stays and began - tail._answered < PAUSE
        while self._receive(count, tail, found, ran):
            if not patient or found or ran or steady() - began > STAY:
                break
            count = self._wait(tail)
            if count <= 0:
                break
        return found, ran

    cdef int _wait(self, LogTail tail):
        """Wait for sockets, but no longer than `PAUSE`; return how many are ready.

        A client that waits for each answer sends the next publish at once. To look for it again and again is then
        cheaper than to sleep and be woken, and it is answered sooner. The more often looking finds nothing, the fewer
        waits begin with it: one in 64 at last, and more again when it succeeds.
        """
        cdef int count = 0
        cdef int64_t until
        cdef bint looks = not tail._sleeps
        tail.waits += 1
        tail.looks += looks
        with nogil:  # other threads know nothing of the set, nor of the log that is written to
            if looks:
                until = steady() + LOOK
                while not count and steady() < until:
                    count = epoll_wait(self._epoll, self._events, MOST, 0)
                tail._failures = max(tail._failures - 1, 0) if count > 0 else min(tail._failures + 1, MOST_FAILURES)
                tail._sleeps = (1 << tail._failures) - 1
            else:
                tail._sleeps -= 1
            if not count:
                count = lapwing_epoll_wait(self._epoll, self._events, MOST, PAUSE)
        return count

    cdef ssize_t _take(self, int fd, bint shared):
        """Receive from a socket. A flood of PUBs costs more than batches do: while others wait, it gets less."""
        cdef ssize_t more, size = c_recv(fd, self._buffer, MOST_SINGLE if shared else MOST_RECEIVED, MSG_DONTWAIT)
        if size == MOST_SINGLE and shared and not has_pub(self._buffer):
            more = c_recv(fd, self._buffer + size, MOST_RECEIVED - size, MSG_DONTWAIT)
            if more > 0:
                size += more
        return size

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
                size = self._take(fd, count > 1)
                if size > 0:
                    expected = owner.publishes
                    if expected is not None:
                        publishes = <Publishes?>expected
                        if tail is not None and publishes is tail.publishes and owner.direct:
                            if tail.receive(owner, fd, self._buffer, size):
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
