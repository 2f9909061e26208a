# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""The road of plain publishes, compiled: from bytes of a connection to the end of a log, and back with the answer.

What the intakes take is what the parsers would have parsed and the sessions would have published; where this module is
missing, parsers and sessions do all of it.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.dict cimport PyDict_GetItem
from cpython.mem cimport PyMem_Free, PyMem_Malloc, PyMem_Realloc
from cpython.ref cimport PyObject
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memchr, memcmp, memcpy
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec

from lapwing.kernel._receiver cimport Partial, Receiver
from lapwing.kernel._tail cimport Tail

cdef enum:
    HEAD = 34  # bytes of a frame before its body
    ROOM = 0x7FFFFFFF - 30  # of a body in a frame
    LARGEST = 0x7FFFFFFF  # of a number in a line of RESP
    LARGE = 16384  # bytes of a body that gets a frame of its own, without a copy in between
    LONGEST_NAME = 128  # bytes after a command's word, in which the end of its line is looked for
    ID_REPLY = 48  # bytes of the reply to an XADD, at most
    MOST_OKS = 64

cdef bytes OK = b"\0\0\0\6\0\0\0\0OK"
cdef list OKS = [OK * count for count in range(MOST_OKS)]

include "_frames.pxi"
include "_fins.pxi"
include "_xadds.pxi"


cdef inline int64_t steady() noexcept nogil:
    cdef timespec now
    clock_gettime(CLOCK_MONOTONIC, &now)
    return <int64_t>now.tv_sec * 1000000000 + now.tv_nsec


cdef class Inlet:
    """The way in for plain messages of one topic, while the topic takes them without a look at each."""

    cdef readonly Tail tail
    cdef readonly object topic
    cdef readonly str name
    cdef public bint open
    cdef uint64_t _base  # of the ids
    cdef bint _touched  # in this round
    cdef int64_t _first, _bytes  # of this round: the first sequence, and bytes of bodies
    cdef object _error  # why this round could not be written

    def __init__(self, topic, Tail tail, base):
        self.topic, self.tail, self.name, self.open = topic, tail, topic.name, True
        self._base = base

    def close(self):
        """Take nothing more."""
        self.open, self.topic = False, None


cdef class Round:
    """What all intakes of a node take between two writes: the messages of any number of topics.

    `inlets` has the topics that take messages here, by their names as bytes.
    """

    cdef readonly dict inlets
    cdef public object watched  # what tells whether somebody waits for a topic to grow, by name
    cdef list _touched, _grown, _failed
    cdef bint _healing  # a write has failed, and the node is to learn of the next one that succeeds
    cdef int64_t _ahead, _stamp, _offset

    def __init__(self, watched):
        self.inlets, self.watched = {}, watched
        self._touched, self._grown, self._failed = [], [], []

    def begin(self, int64_t now, int64_t skew):
        """Note the broker's time, ns, and how far the time of messages is ahead of it."""
        self._offset = now - steady()
        self._ahead = self._offset + skew

    def open(self, topic, Tail tail, base):
        """Let a topic's plain messages in; return its inlet."""
        inlet = self.inlets[topic.name.encode()] = Inlet(topic, tail, base)
        return inlet

    def shut(self, Inlet inlet):
        """Let no more messages in by an inlet."""
        key = inlet.name.encode()
        if self.inlets.get(key) is inlet:
            del self.inlets[key]
        inlet.close()

    def news(self):
        """Return the topics that have grown and whose channels or readers have to be told, and the failed writes."""
        grown, failed, self._grown, self._failed = self._grown, self._failed, [], []
        return grown, failed

    cdef bint quiet(self):
        """Whether nobody has to be told."""
        return not self._grown and not self._failed

    cdef int64_t stamp(self):
        """Return the time of messages that come now."""
        if not self._stamp:
            self._stamp = steady() + self._ahead
        return self._stamp

    cdef bint admits(self, Inlet inlet):
        """Whether a topic takes messages in this round: nothing waits there for the end of the turn.

        Ask last: a topic that has been asked is written at the end of the round, which is one only where something is taken.
        """
        cdef Tail tail
        if inlet._touched:
            return True
        tail = inlet.tail
        if not inlet.open or tail.next != tail.end:
            return False
        self._touched.append(inlet)
        inlet._touched, inlet._first, inlet._bytes, inlet._error = True, tail.end, 0, None
        return True

    cdef write(self):
        """Write what was taken to the logs; `error` of an inlet says what went wrong. Once for all intakes."""
        cdef Inlet inlet
        cdef list touched = self._touched
        cdef Tail tail
        self._stamp = 0
        if not touched:
            return
        self._touched = []
        for inlet in touched:
            inlet._touched = False
        for inlet in touched:
            tail, topic = inlet.tail, inlet.topic
            try:
                if not tail._write_behind():
                    tail.flush()
            except Exception as error:  # of this topic alone, whatever it is
                inlet._error = error
                self._failed.append(error)
                self._healing = True
                self.take_back(tail)
                if tail.end == inlet._first:
                    continue  # else they are in the log, and channels get them, although their publishers have an error
            topic.message_count += tail.end - inlet._first
            topic.message_bytes += inlet._bytes
            if not tail.noted or topic.channels or inlet.name in self.watched or self._healing:
                tail.noted, self._healing = True, False
                self._grown.append(topic)

    cdef take_back(self, Tail tail):
        """Have a log forget what could not be written. Where it cannot, the next write has it too, without an answer."""
        try:
            tail.take_back()
        except Exception as error:
            self._failed.append(error)


cdef class Finishes:
    """FINs of the consumers of one channel, from any number of sockets: those of one round."""

    cdef list _pieces, _owners

    def __init__(self):
        self._pieces, self._owners = [], []

    def take(self):
        """Return the runs of FINs, and the connection of each; keep none."""
        pieces, owners = self._pieces, self._owners
        self._pieces, self._owners = [], []
        return pieces, owners


cdef class PartialPub(Partial):
    """A large PUB whose body is still coming, into its frame."""

    cdef bytes _line, _frame
    cdef Inlet _inlet

    def unfinished(self):
        return self._line + self._frame[HEAD : HEAD + self.have]


cdef class NsqIntake(Receiver):
    """Takes PUBs, MPUBs and DPUBs to topics that are there, and runs of FINs, from connections that speak NSQ's protocol.

    A connection has an attribute `direct`, whether it may be answered at once as no other answer waits, `finishes`, and
    where its publishes are counted: `published` by topic, and `timer.last_command`. With `waits`, answers wait for a
    sync: nothing is answered here, and `news` returns what is to be.
    """

    cdef Round _round
    cdef int64_t _most_count, _most_size, _most_body
    cdef bint _waits
    cdef int64_t _longest_defer  # ns; -1 where a delay may have to be left out
    cdef object _rows
    cdef list _notes, _waiting, _failures, _ran
    cdef uint8_t *_frames  # of the run of commands that is being taken
    cdef Py_ssize_t _room, _used

    def __cinit__(self, Round round_, *, int64_t max_count, int64_t max_size, int64_t max_body, int64_t max_defer, rows, bint waits):
        self._round, self._waits = round_, waits
        self._longest_defer, self._rows = max_defer, rows
        self._most_count, self._most_size, self._most_body = max_count, min(max_size, ROOM), max_body
        self._notes, self._waiting, self._failures, self._ran = [], [], [], []
        self._frames, self._room = NULL, 0

    def __dealloc__(self):
        PyMem_Free(self._frames)

    def news(self):
        """Return what the node has to learn of this round, in three lists.

        They are publishes to be answered after a sync (connection, topic, word, messages, commands, first sequence),
        publishes that could not be written (connection, word, error), and the `Finishes` that got some.
        """
        waiting, failures, ran = self._waiting, self._failures, self._ran
        self._waiting, self._failures, self._ran = [], [], []
        return waiting, failures, ran

    cdef uint8_t *room(self, Py_ssize_t size) except NULL:
        """Return room for `size` more bytes of frames."""
        cdef uint8_t *frames
        if self._used + size > self._room:
            frames = <uint8_t *>PyMem_Realloc(self._frames, 2 * (self._used + size))
            if frames == NULL:
                raise MemoryError
            self._frames, self._room = frames, 2 * (self._used + size)
        return self._frames + self._used

    cdef int close_run(self, owner, Inlet inlet, str word, int64_t messages, int64_t commands) except -1:
        """Append the frames of a run of commands to the log's end."""
        cdef Tail tail = inlet.tail
        cdef int64_t first = tail.next
        if self._used:
            frames = PyBytes_FromStringAndSize(<char *>self._frames, self._used)
            tail._put(frames, messages)
            inlet._bytes += self._used - HEAD * messages
            self._used = 0
        else:
            first -= messages  # they were appended each for itself
        self._notes.append((owner, inlet, word, messages, commands, first))
        return 0

    cdef Py_ssize_t take(self, object owner, const char *data, Py_ssize_t size) except -1:
        self._used = 0  # should the run before have failed, nothing of it goes into another
        return self.take_commands(owner, data, size)

    cdef Py_ssize_t take_commands(self, object owner, const char *data, Py_ssize_t size) except -1:
        cdef const uint8_t *p = <const uint8_t *>data
        cdef Py_ssize_t at = 0, name
        cdef const void *end
        cdef PyObject *found
        cdef Inlet inlet, current = None
        cdef bint batch
        cdef int64_t body, count, messages = 0, commands = 0, number, total, left
        cdef Py_ssize_t place, line = 0, known = 0
        cdef uint8_t *frame
        cdef uint64_t identity
        cdef bytes alone
        cdef bint direct = owner.direct
        cdef Tail tail
        if size and p[0] == 70:  # F
            return self.take_finishes(owner, p, size)
        while direct and size - at >= 10:
            if current is not None and line and size - at >= line and memcmp(p + at, p + known, line) == 0:
                inlet, place, batch = current, at + line, False  # a PUB to the same topic
            elif p[at] == 68:  # D
                if current is not None:
                    self.close_run(owner, current, "PUB", messages, commands)
                    current, line = None, 0
                place = self.take_deferred(owner, p, at, size)
                if place < 0:
                    break
                at = place
                continue
            else:
                batch = p[at] == 77
                name = at + (5 if batch else 4)
                if memcmp(p + at, <const char *>b"MPUB " if batch else <const char *>b"PUB ", name - at) != 0:
                    break
                end = memchr(p + name, 10, min(size - name, LONGEST_NAME))
                if end == NULL:
                    break
                place = <const uint8_t *>end - p
                found = PyDict_GetItem(self._round.inlets, PyBytes_FromStringAndSize(<const char *>p + name, place - name))
                if found == NULL:
                    break
                inlet = <Inlet>found
                place += 1
            if size - place < 4:
                break
            body = <int64_t><int32_t>get32(p + place)
            place += 4
            if not batch:
                if body > LARGE and body <= self._most_size and size - place < body and inlet.open:
                    owner.partial = self.begin(inlet, p, at, place, size, body)
                    at = size
                    break
                if body <= 0 or body > self._most_size or size - place < body or not self._round.admits(inlet):
                    break
                if current is not inlet or not line:
                    if current is not None:
                        self.close_run(owner, current, "PUB", messages, commands)
                    current, messages, commands, line, known = inlet, 0, 0, place - 4 - at, at
                tail = inlet.tail
                if body > LARGE:
                    if self._used:
                        self.close_run(owner, current, "PUB", messages, commands)
                        messages = commands = 0
                    alone = PyBytes_FromStringAndSize(NULL, HEAD + body)
                    frame = <uint8_t *>PyBytes_AS_STRING(alone)
                    put_head(frame, <uint32_t>body, <uint64_t>self._round.stamp(), inlet._base + <uint64_t>tail.next)
                    memcpy(frame + HEAD, p + place, body)
                    tail._put(alone, 1)
                    inlet._bytes += body
                    self.close_run(owner, current, "PUB", 1, 1)
                    at, current, line = place + body, None, 0
                    continue
                frame = self.room(HEAD + body)
                put_head(
                    frame, <uint32_t>body, <uint64_t>self._round.stamp(), inlet._base + <uint64_t>(tail.next + messages)
                )
                memcpy(frame + HEAD, p + place, body)
                self._used += HEAD + body
                messages += 1
                commands += 1
                at = place + body
                continue
            if size - place < body or body < 4 or body > self._most_body:
                break
            count, left = <int64_t><int32_t>get32(p + place), body - 4
            if count <= 0 or count > self._most_count:
                break
            place += 4
            at_first, total = place, 0
            for number in range(count):
                if left < 4:
                    break
                body = <int64_t><int32_t>get32(p + place)
                if body <= 0 or body > self._most_size or left - 4 < body:
                    left = -1
                    break
                place += 4 + body
                left -= 4 + body
                total += HEAD + body
            else:
                number = count
            if number != count or left or not self._round.admits(inlet):
                break
            if current is not None:
                self.close_run(owner, current, "PUB", messages, commands)
                current, line = None, 0
            tail = inlet.tail
            alone = PyBytes_FromStringAndSize(NULL, total)
            frame = <uint8_t *>PyBytes_AS_STRING(alone)
            identity = inlet._base + <uint64_t>tail.next
            place = at_first
            for number in range(count):
                body = <int64_t><int32_t>get32(p + place)
                put_head(frame, <uint32_t>body, <uint64_t>self._round.stamp(), identity)
                memcpy(frame + HEAD, p + place + 4, body)
                frame += HEAD + body
                place += 4 + body
                identity += 1
            if count > 1:
                tail.several = True
            tail._put(alone, count)
            inlet._bytes += total - HEAD * count
            self.close_run(owner, inlet, "MPUB", count, 1)
            at = place
        if current is not None:
            self.close_run(owner, current, "PUB", messages, commands)
        return at

    cdef PartialPub begin(
        self, Inlet inlet, const uint8_t *p, Py_ssize_t at, Py_ssize_t place, Py_ssize_t size, int64_t body
    ):
        """Return the PUB at `at`, whose body begins at `place` and ends beyond `size`."""
        cdef PartialPub partial = PartialPub()
        partial._line = PyBytes_FromStringAndSize(<const char *>p + at, place - at)
        partial._frame = PyBytes_FromStringAndSize(NULL, HEAD + body)
        partial._inlet = inlet
        partial.room, partial.have, partial.size = PyBytes_AS_STRING(partial._frame) + HEAD, size - place, body
        memcpy(partial.room, p + place, size - place)
        return partial

    cdef bint complete(self, object owner, Partial partial) except -1:
        cdef PartialPub whole = <PartialPub?>partial
        cdef Inlet inlet = whole._inlet
        cdef Tail tail = inlet.tail
        if not owner.direct or not inlet.open or not self._round.admits(inlet):
            return False
        self._used = 0
        put_head(
            <uint8_t *>PyBytes_AS_STRING(whole._frame), <uint32_t>partial.size, <uint64_t>self._round.stamp(),
            inlet._base + <uint64_t>tail.next,
        )
        tail._put(whole._frame, 1)
        inlet._bytes += partial.size
        self.close_run(owner, inlet, "PUB", 1, 1)
        return True

    cdef Py_ssize_t take_deferred(self, owner, const uint8_t *p, Py_ssize_t at, Py_ssize_t size) except? -2:
        """Take the DPUB at `at` and return where it ends; -1 where it is none that needs no look."""
        cdef Py_ssize_t name = at + 5, place, stop
        cdef const void *end
        cdef const uint8_t *frame
        cdef PyObject *found
        cdef Inlet inlet
        cdef int64_t delay = 0, body
        cdef bytes alone
        cdef Tail tail
        if memcmp(p + at, <const char *>b"DPUB ", 5) != 0 or self._longest_defer < 0:
            return -1
        end = memchr(p + name, 10, min(size - name, LONGEST_NAME))
        if end == NULL:
            return -1
        stop = <const uint8_t *>end - p
        end = memchr(p + name, 32, stop - name)
        if end == NULL:
            return -1
        place = <const uint8_t *>end - p
        found = PyDict_GetItem(self._round.inlets, PyBytes_FromStringAndSize(<const char *>p + name, place - name))
        if found == NULL or not 0 < stop - place - 1 <= 12:
            return -1
        inlet = <Inlet>found
        for place in range(place + 1, stop):
            if not 48 <= p[place] <= 57:
                return -1
            delay = 10 * delay + p[place] - 48
        delay *= 1000000
        place = stop + 5
        if delay > self._longest_defer or size < place:
            return -1
        body = <int64_t><int32_t>get32(p + stop + 1)
        if body <= 0 or body > self._most_size or size - place < body or not self._round.admits(inlet):
            return -1
        tail = inlet.tail
        alone = PyBytes_FromStringAndSize(NULL, HEAD + body)
        put_head(
            <uint8_t *>PyBytes_AS_STRING(alone), <uint32_t>body, <uint64_t>self._round.stamp(),
            inlet._base + <uint64_t>tail.next,
        )
        memcpy(PyBytes_AS_STRING(alone) + HEAD, p + place, body)
        if delay:
            (<list>tail._pending_rows).append(self._rows(tail.next, tail.next, b"[%d,%d,{}]" % (tail.next, delay)))
            inlet.topic.has_extras = True
        try:
            tail._put(alone, 1)
        except MemoryError:
            if delay:
                (<list>tail._pending_rows).pop()
            raise
        inlet._bytes += body
        self.close_run(owner, inlet, "DPUB", 1, 1)
        return place + body

    cdef Py_ssize_t take_finishes(self, owner, const uint8_t *p, Py_ssize_t size) except -1:
        """Take the run of FINs at the beginning. Nothing behind it is taken: its answers come before others."""
        cdef Finishes finishes
        cdef Py_ssize_t taken
        expected = owner.finishes
        if expected is None:
            return 0
        taken = fins_size(p, size)
        if taken:
            finishes = <Finishes?>expected
            if not finishes._pieces:
                self._ran.append(finishes)
            finishes._pieces.append(PyBytes_FromStringAndSize(<const char *>p, taken))
            finishes._owners.append(owner)
        return taken

    cdef list finish(self):
        cdef list answers = [], notes = self._notes
        cdef int64_t messages, commands, now, ok = 0
        cdef Inlet inlet
        cdef bint failed = False
        if notes:
            self._notes = []
        self._round.write()
        if notes:
            now, current = steady() + self._round._offset, None
            for owner, inlet, word, messages, commands, first in notes:
                if owner is not current:
                    if ok:
                        answers += (current, OKS[ok] if ok < MOST_OKS else OK * ok)
                    current, ok, failed = owner, 0, False
                if failed:
                    continue  # the connection ends with the first error
                try:
                    if inlet._error is not None:
                        failed = True
                        self._failures.append((owner, word, inlet._error))
                    elif self._waits:
                        self._waiting.append((owner, inlet.topic, word, messages, commands, first))
                    else:
                        owner.timer.last_command = now
                        counts = <dict>owner.published
                        before = counts.get(inlet.name)
                        counts[inlet.name] = messages if before is None else before + messages
                        ok += commands
                except Exception as error:  # of this connection alone, whatever it is
                    failed, ok = True, 0
                    answers += (owner, error)
            if ok:
                answers += (current, OKS[ok] if ok < MOST_OKS else OK * ok)
        self.stays = not self._failures and not self._ran and not self._waiting and self._round.quiet()
        return answers


cdef class StreamInlet:
    """The way in for plain entries of one Redis stream: that of its topic, and how entries look there."""

    cdef readonly object stream
    cdef readonly Inlet inlet
    cdef object _effective  # the settings that the two below come from
    cdef bytes _field
    cdef bint _json

    def __init__(self, stream, Inlet inlet):
        self.stream, self.inlet = stream, inlet

    cdef bint admits(self) except -1:
        """Whether entries need no look: nobody has chosen an id, and bodies are not JSON."""
        topic = self.inlet.topic
        if topic is None:
            return False
        if topic.effective is not self._effective:
            self._effective = topic.effective
            self._field, self._json = self._effective.body_field.encode(), self._effective.fields == "json"
        if self._json:
            return False
        state = topic.door_state
        return not state or not ("chosen" in state or "last" in state)


cdef class RedisIntake(Receiver):
    """Takes plain XADDs to streams that are there, and requests like earlier ones, of connections that speak RESP.

    A connection has an attribute `direct`, whether it may be answered at once, and `peer`, which notes its last command
    and may have `repeated`, to answer requests that are like earlier ones. `refusal` makes the reply to an XADD of an
    error; `work` is true while something is to be done at the end of the turn.
    """

    cdef Round _round
    cdef readonly dict streams  # by key
    cdef public int64_t commands  # that were taken
    cdef int64_t _most_entry
    cdef object _refusal, _work
    cdef list _notes
    cdef list _replies  # connections, each followed by its reply
    cdef uint8_t *_frames
    cdef Py_ssize_t _room

    def __cinit__(self, Round round_, int64_t max_entry, refusal, work):
        self._round, self._most_entry, self._refusal, self._work = round_, max_entry, refusal, work
        self.streams, self._notes, self._replies = {}, [], []
        self._frames, self._room = NULL, 0

    def __dealloc__(self):
        PyMem_Free(self._frames)

    def open(self, bytes key, stream, Inlet inlet):
        """Let a stream's plain entries in by the inlet of its topic."""
        self.streams[key] = StreamInlet(stream, inlet)

    cdef Py_ssize_t take(self, object owner, const char *data, Py_ssize_t size) except -1:
        cdef const uint8_t *p = <const uint8_t *>data
        cdef Py_ssize_t at = 0, begin, place
        cdef bint direct = owner.direct
        cdef Span key
        cdef PyObject *known
        cdef StreamInlet stream
        cdef Inlet inlet
        cdef int64_t count
        while direct and at < size:
            begin = at
            count = count_xadds(p, &at, size, self._most_entry, &key)
            if not count:
                if not begin and self.repeat(owner, data, size):
                    return size
                break
            known = PyDict_GetItem(self.streams, PyBytes_FromStringAndSize(<const char *>p + key.begin, key.end - key.begin))
            if known == NULL:
                return begin
            stream = <StreamInlet>known
            inlet = stream.inlet
            if not inlet.open:
                del self.streams[PyBytes_FromStringAndSize(<const char *>p + key.begin, key.end - key.begin)]
                return begin
            if not stream.admits() or not self._round.admits(inlet):
                return begin
            self.put(owner, stream, p, begin, at, count)
        return at

    cdef bint repeat(self, owner, const char *data, Py_ssize_t size) except -1:
        """Have a request answered that is like an earlier one; return whether it was."""
        repeated = owner.peer.repeated
        if repeated is None:
            return False
        reply = repeated.answer(PyBytes_FromStringAndSize(data, size), steady() + self._round._offset)
        if reply is None:
            return False
        self.commands += 1
        self._replies += (owner, reply)
        return True

    cdef int put(
        self, owner, StreamInlet stream, const uint8_t *p, Py_ssize_t at, Py_ssize_t end, int64_t count
    ) except -1:
        """Append the entries of a run of XADDs to one stream."""
        cdef Py_ssize_t most = (end - at) + count * (HEAD + 16), used = 0, body
        cdef int64_t stamp = self._round.stamp(), newest, number, bodies = 0
        cdef Xadd found
        cdef Tail tail = stream.inlet.tail
        cdef int64_t first = tail.next
        cdef bytes field = stream._field
        cdef uint8_t *frames
        if most > self._room:
            frames = <uint8_t *>PyMem_Realloc(self._frames, 2 * most)
            if frames == NULL:
                raise MemoryError
            self._frames, self._room = frames, 2 * most
        newest = stream.stream.newest
        stamp = max(stamp, newest)
        stream.stream.newest = stamp
        for number in range(count):
            plain_xadd(p, &at, end, &found)
            body = put_xadd(
                self._frames + used, p, &found, PyBytes_AS_STRING(field), PyBytes_GET_SIZE(field),
                <uint64_t>stamp, stream.inlet._base + <uint64_t>(first + number),
            )
            bodies += body
            used += HEAD + body
        tail._put(PyBytes_FromStringAndSize(<char *>self._frames, used), count)
        stream.inlet._bytes += bodies
        self._notes.append((owner, stream.inlet, stamp // 1000000, first, count))
        return 0

    cdef list finish(self):
        cdef list answers = self._replies, notes = self._notes, replies = []
        cdef bint answered = bool(answers)
        cdef int64_t milliseconds, first, count, number
        cdef Inlet inlet
        cdef bint failed = False
        cdef uint8_t reply[ID_REPLY]
        cdef uint8_t *end
        self._replies = []
        if notes:
            self._notes = []
        self._round.write()
        if notes:
            current, now = None, steady() + self._round._offset
            for owner, inlet, milliseconds, first, count in notes:
                if owner is not current:
                    if replies:
                        answers += (current, replies[0] if len(replies) == 1 else b"".join(replies))
                    current, replies, failed = owner, [], False
                if failed:
                    continue
                try:
                    owner.peer.active, owner.peer.command = now, "xadd"
                    self.commands += count
                    if inlet._error is not None:
                        replies.append(<bytes>self._refusal(inlet._error) * count)
                        continue
                    for number in range(first, first + count):
                        end = put_id(reply, <uint64_t>milliseconds, <uint64_t>number)
                        replies.append(PyBytes_FromStringAndSize(<char *>reply, end - reply))
                except Exception as error:  # of this connection alone, whatever it is
                    failed, replies = True, []
                    answers += (owner, error)
            if replies:
                answers += (current, replies[0] if len(replies) == 1 else b"".join(replies))
        self.stays = self._round.quiet() and not (answered and self._work)
        return answers
